"""Freed blocks of this process, returned to the system."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

# Seconds between two returns: slices free about 8 MB of small blocks meanwhile.
_INTERVAL = 0.25


def return_free_blocks() -> None:
    """Return the free pages of the C library's heap, also those between used blocks."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def returning_free_blocks() -> Iterator[None]:
    """Return free pages again and again, in a thread of its own.

    Slices allocate many blocks of 10 to 250 kB between small ones that remain. The free space
    between these is reused in part only: it grows with each slice, to several times the memory in
    use.
    """
    is_over = threading.Event()

    def return_until_over() -> None:
        while not is_over.wait(_INTERVAL):
            return_free_blocks()

    thread = threading.Thread(target=return_until_over, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
