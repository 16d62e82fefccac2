"""Peak memory of this process above what it held before a job."""

from __future__ import annotations

import contextlib
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


class MemoryMeter:
    """Resident memory, in bytes; the kernel keeps the high-water mark."""

    def __init__(self) -> None:
        self._idle = 0

    def start(self) -> int:
        """Resets the high-water mark; returns the memory of the idle worker."""
        with contextlib.suppress(OSError):  # not permitted everywhere: the mark then never falls
            _CLEAR.write_text("5")
        self._idle = _field("VmRSS")
        return self._idle

    def peak(self) -> int:
        """Growth above idle at the highest point since `start`."""
        return max(0, _field("VmHWM") - self._idle)
