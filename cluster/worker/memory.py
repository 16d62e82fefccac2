"""A worker's memory: whether a job fits, and the peak of this process above its idle state."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tfe_bench.cluster import processor
from tfe_bench.protocols.session import heap, ops

if TYPE_CHECKING:
    from tfe_bench.cluster.worker.host import WorkerState

# A smaller need is accepted without a check.
_MUCH = 64 << 20
_STATUS = "/proc/self/status"
_CLEAR = Path("/proc/self/clear_refs")


def check_job_memory(host: WorkerState, needed: int) -> None:
    """Reject a job that does not fit, before any of its inputs is read.

    Args:
        needed: approximate bytes at this worker.

    Raises:
        PolicyError: less memory is available, or the operator's limit is lower.
    """
    if needed < _MUCH:
        return
    sharing = sum(party.host == host.own_party.host for party in host.config.parties)
    host.policy.permit_memory(needed, int(ops.native().available_memory()), sharing)


def _read_process_memory(name: str) -> int:
    _, label, rest = processor.read_proc_file(_STATUS, 1 << 14).partition(f"\n{name}:".encode())
    return int(rest.split(None, 1)[0]) * 1024 if label else 0


# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE, _SPARE = 8 << 20, 64 << 20


def return_freed_memory_blocks() -> None:
    """Make this process return freed blocks of 8 MiB and more to the system at once.

    glibc raises that threshold to 32 MiB when the first such blocks are freed, and then keeps
    the freed memory of tensors and messages: up to twice the memory in use.  Smaller blocks are
    reused: to get each as fresh pages takes a tenth of the processor's time in a training by
    Adam.  A thread reuses those of its arena alone, and glibc makes eight arenas for each
    processor: their free blocks take more memory than a job of slices (session/slices.py).
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_M_TRIM_THRESHOLD, _SPARE)
        library.mallopt(_M_ARENA_MAX, max(2, len(os.sched_getaffinity(0))))


# A job that grows by more bytes leaves freed blocks below 8 MiB.
_LARGE_GROWTH = 64 << 20
# Seconds without a job until they are returned: jobs in a row reuse them, and the session of the
# last one is dropped before.
_IDLE_SECONDS = 6.0


class MemoryMeter:
    """Resident memory in bytes; the kernel keeps the high-water mark."""

    def __init__(self) -> None:
        self._idle = 0
        self._has_free_blocks = False
        self._trim_timer = threading.Timer(_IDLE_SECONDS, self._return_memory)

    def reset_peak(self) -> int:
        """Reset the high-water mark; return the memory of the idle worker."""
        self._trim_timer.cancel()
        with contextlib.suppress(OSError):  # not permitted everywhere: the mark then never falls
            _CLEAR.write_text("5")
        self._idle = _read_process_memory("VmRSS")
        return self._idle

    def peak_growth(self) -> int:
        """Return the growth above idle at the highest point since `reset_peak`."""
        return max(0, _read_process_memory("VmHWM") - self._idle)

    def schedule_return(self) -> None:
        """After a job, return freed blocks to the system if a large job has left any.

        This happens once no job has begun for _IDLE_SECONDS, in a thread of its own.
        """
        self._has_free_blocks |= self.peak_growth() > _LARGE_GROWTH
        self._trim_timer.cancel()
        if self._has_free_blocks:
            self._trim_timer = threading.Timer(_IDLE_SECONDS, self._return_memory)
            self._trim_timer.daemon = True
            self._trim_timer.start()

    def _return_memory(self) -> None:
        self._has_free_blocks = False
        heap.return_free_blocks()
