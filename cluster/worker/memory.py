"""A worker's memory: whether a job fits, and the peak of this process above what it held before."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from tfe_bench.protocols.session import ops

if TYPE_CHECKING:
    from tfe_bench.cluster.worker.host import Host

# What is less is let pass without a look.
_MUCH = 64 << 20
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def check_memory(host: Host, needed: int) -> None:
    """Refuses a job that does not fit, before any of its inputs is read.

    Args:
        needed: bytes that it takes here, about.

    Raises:
        PolicyError: there are not so many, or its operator does not give as many to a job.
    """
    if needed < _MUCH:
        return
    sharing = sum(party.host == host.own_party.host for party in host.config.parties)
    host.policy.permit_memory(needed, int(ops.native().available_memory()), sharing)


def _read_status(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE, _SPARE = 8 << 20, 64 << 20


def return_large_blocks() -> None:
    """Makes this process give freed blocks of 8 MiB and more back to the system at once.

    glibc raises that threshold to 32 MiB as soon as it sees such blocks freed, and then keeps what
    tensors and messages leave behind: up to twice what is in use.  Smaller blocks are used again:
    to get each as fresh pages takes a tenth of the processor's time in a training by Adam.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_M_TRIM_THRESHOLD, _SPARE)


class MemoryMeter:
    """Resident memory, in bytes; the kernel keeps the high-water mark."""

    def __init__(self) -> None:
        self._idle = 0

    def reset_peak(self) -> int:
        """Resets the high-water mark; returns the memory of the idle worker."""
        with contextlib.suppress(OSError):  # not permitted everywhere: the mark then never falls
            _CLEAR.write_text("5")
        self._idle = _read_status("VmRSS")
        return self._idle

    def peak_growth(self) -> int:
        """Growth above idle at the highest point since `start`."""
        return max(0, _read_status("VmHWM") - self._idle)
