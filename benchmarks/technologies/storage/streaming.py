"""Reading of plaintexts from a file, ahead of their use, in order, and at a limited rate.

A second process reads into a ring buffer of shared memory, as a device's engine reads into its own
memory.  The homomorphic library holds Python's global lock while it computes, so a thread could
not read at the same time.
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
_PATIENCE: Final = 60.0  # seconds without data after which the reader counts as failed
_CREDIT: Final = 0.05
# Shorter waits poll the clock instead of sleeping, which is more exact.
_SHORTEST: Final = 2e-4


class Bucket:
    """A token bucket, which limits the bytes that pass within a time.

    It holds the bytes of _CREDIT seconds, so that a reader catches up after the system has
    delayed it: a device's engine would not have been delayed.

    Args:
        rate: bytes per second.
        now: the start time, at which the bucket is empty.

    Raises:
        UsageError: the rate is outside its bounds.
    """

    def __init__(self, rate: float, now: float) -> None:
        check_range("The rate", rate, 1.0, MOST_RATE)
        self._rate, self._free = rate, now

    def due_time(self, size: int, now: float) -> float:
        """Return the time at which `size` further bytes, requested now, have passed."""
        self._free = max(self._free, now - _CREDIT) + size / self._rate
        return self._free


class PlaintextReader:
    """A reader of the pieces of a file at a rate, in order, any number of times.

    Args:
        file: contains the pieces in sequence.
        sizes: bytes of each piece.
        memory: the most bytes that are read ahead; at least twice the largest piece.

    Raises:
        UsageError: no piece has bytes, or the memory does not hold two pieces.
    """

    def __init__(self, file: Path, sizes: Sequence[int], memory: int) -> None:
        if not sizes or min(sizes) < 0 or max(sizes) == 0:
            raise UsageError(
                "Expected pieces of 0 or more bytes, at least one of them not empty. "
                f"Received: {len(sizes)} pieces.",
                code="invalid-pieces",
            )
        slot = max(sizes)
        count = min(memory // slot, len(sizes))
        if count < min(2, len(sizes)):
            raise UsageError(
                f"Expected memory for two pieces of {slot} bytes. Received: room for {memory} "
                "bytes. Use more memory or smaller pieces.",
                code="memory-too-small",
                operation="memory",
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

    def __enter__(self) -> PlaintextReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()
        self._memory.close()
        self._memory.unlink()

    def iterate_pieces(self, rate: float) -> Iterator[bytes]:
        """Yield the pieces in order as they arrive; reading starts with the first request.

        Args:
            rate: bytes per second.

        Raises:
            UsageError: the rate is outside its bounds.
            ClusterError: the reading process has stopped or hangs.
        """
        check_range("The rate", rate, 1.0, MOST_RATE)
        self._pipe.send(rate)
        for _ in range(self._count):
            self._free.release()
        for number, size in enumerate(self._sizes):
            if not self._full.acquire(timeout=_PATIENCE):
                raise ClusterError(
                    f"Expected a piece from the reading process within {_PATIENCE:g} s. "
                    "Received: nothing. Check the file and the memory, then start again.",
                    code="reader-stalled",
                )
            begin = (number % self._count) * self._slot
            piece = bytes(_create_buffer(self._memory)[begin : begin + size])
            if number + self._count < len(self._sizes):
                self._free.release()
            yield piece

    def reading_seconds(self) -> float:
        """Return seconds of the reading process for the last round, including waits for memory.

        Raises:
            ClusterError: the reading process has stopped or hangs.
        """
        if not self._pipe.poll(_PATIENCE):
            raise ClusterError(
                f"Expected the time of the reading process within {_PATIENCE:g} s. "
                "Received: nothing. Check the file and the memory, then start again.",
                code="reader-stalled",
            )
        return float(self._pipe.recv())


def _read_pieces(
    pipe: Any, file: str, sizes: list[int], slot: int, count: int, shared: tuple[Any, ...]
) -> None:
    """Run the reading process: it reads all pieces once for each rate that it receives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
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
