"""A file of plaintexts that is read in the order of use, ahead of it, and no faster than a rate.

Another process reads into a ring of shared memory, as a device's engine reads into its own: the
homomorphic library holds Python's global lock, so a thread could not read while it computes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any, Final

from tfe_bench.errors import ClusterError, UsageError, check_range

MOST_RATE: Final = 1e11
_PATIENCE: Final = 60.0  # seconds until a reader that gives nothing is given up
_CREDIT: Final = 0.05
# Waits shorter than this are not slept but looked at, which is more exact.
_SHORTEST: Final = 2e-4


class Bucket:
    """A token bucket: so many bytes may have passed after so much time.

    It holds what _CREDIT seconds give, so that a reader that the system has kept waiting catches
    up, as a device's engine would not have waited.

    Args:
        rate: bytes per second.
        now: when it begins, empty.
    """

    def __init__(self, rate: float, now: float) -> None:
        check_range("The rate", rate, 1.0, MOST_RATE)
        self._rate, self._free = rate, now

    def due_time(self, size: int, now: float) -> float:
        """When so many more bytes have passed, if they are asked for now."""
        self._free = max(self._free, now - _CREDIT) + size / self._rate
        return self._free


class Reader:
    """Reads pieces of a file at a rate, in order, over and over.

    Args:
        file: holds the pieces one after the other.
        sizes: of the pieces, in bytes.
        memory: bytes that are read ahead at most; at least two of the largest piece.

    Raises:
        UsageError: the memory does not hold two pieces.
        ClusterError: the reading process ends.
    """

    def __init__(self, file: Path, sizes: Sequence[int], memory: int) -> None:
        if not sizes or min(sizes) < 0 or max(sizes) == 0:
            raise UsageError("A reader has pieces, and some are not empty.")
        slot = max(sizes)
        count = min(memory // slot, len(sizes))
        if count < min(2, len(sizes)):
            raise UsageError(
                f"Two pieces of {slot} bytes are read ahead at least. Received: room for "
                f"{memory} bytes."
            )
        context = multiprocessing.get_context("spawn")
        self._sizes, self._slot, self._count = sizes, slot, count
        self._memory = shared_memory.SharedMemory(create=True, size=slot * count)
        self._free, self._full = context.Semaphore(0), context.Semaphore(0)
        self._pipe, theirs = context.Pipe()
        shared = (self._memory.name, self._free, self._full)
        self._process: Any = context.Process(
            target=_read_pieces,
            args=(theirs, str(file), [*sizes], slot, count, shared),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()
        self._memory.close()
        self._memory.unlink()

    def iterate_pieces(self, rate: float) -> Iterator[bytes]:
        """The pieces in order, each when it is there; the reading begins with the first.

        Args:
            rate: bytes per second.
        """
        check_range("The rate", rate, 1.0, MOST_RATE)
        self._pipe.send(rate)
        for _ in range(self._count):
            self._free.release()
        for number, size in enumerate(self._sizes):
            if not self._full.acquire(timeout=_PATIENCE):
                raise ClusterError("The reading process gives nothing any more.")
            begin = (number % self._count) * self._slot
            piece = bytes(_create_buffer(self._memory)[begin : begin + size])
            if number + self._count < len(self._sizes):
                self._free.release()
            yield piece

    def reading_seconds(self) -> float:
        """Seconds of the reading process for the last round, its waits for room among them."""
        if not self._pipe.poll(_PATIENCE):
            raise ClusterError("The reading process does not answer.")
        return float(self._pipe.recv())


def _read_pieces(
    pipe: Any, file: str, sizes: list[int], slot: int, count: int, shared: tuple[Any, ...]
) -> None:
    """The reading process: rounds of all pieces, each at the rate that it is told."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    name, free, full = shared
    memory = shared_memory.SharedMemory(name=name)
    handle = os.open(file, os.O_RDONLY)
    with contextlib.suppress(EOFError):
        while True:
            rate = pipe.recv()
            started = time.perf_counter()
            bucket, offset = Bucket(rate, started), 0
            for number, size in enumerate(sizes):
                free.acquire()
                due = bucket.due_time(size, time.perf_counter())
                begin = (number % count) * slot
                os.preadv(handle, [_create_buffer(memory)[begin : begin + size]], offset)
                offset += size
                _wait_until(due)
                full.release()
            pipe.send(time.perf_counter() - started)
    memory.close()
    os.close(handle)


def _create_buffer(memory: shared_memory.SharedMemory) -> memoryview:
    assert memory.buf is not None, "it is open"
    return memory.buf


def _wait_until(due: float) -> None:
    while (left := due - time.perf_counter()) > 0:
        if left > _SHORTEST:
            time.sleep(left - _SHORTEST)
