"""Waits of an event loop's coroutines for conditions that any thread may change."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


class LoopWaits:
    """Waits for conditions: each thread that changes one calls `check_waits` afterwards.

    A wait occupies no thread, and a change for which no coroutine waits does not wake the loop.

    Args:
        loop: runs the waiting coroutines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waits: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self._is_check_due = False

    def check_waits(self) -> None:
        """End the waits whose conditions hold now; any thread may call this."""
        if asyncio._get_running_loop() is self._loop:
            self._check_conditions()
            return
        with self._lock:
            if self._is_check_due or not self._waits:
                return
            self._is_check_due = True
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._check_conditions)

    def watch_condition(self, condition: Callable[[], bool]) -> asyncio.Future[bool]:
        """Return a future of the loop that is done when a condition holds.

        Args:
            condition: is called on the loop; it neither waits nor calls this object.
        """
        future = self._loop.create_future()
        with self._lock:
            if condition():
                future.set_result(True)
            else:
                self._waits.append((condition, future))
        return future

    async def wait_for(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until a condition holds; return False if it does not within some seconds."""
        future = self.watch_condition(condition)
        if future.done():
            return True
        timer = None if seconds is None else self._loop.call_later(seconds, _end_wait, future)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()

    def _check_conditions(self) -> None:
        with self._lock:
            self._is_check_due = False
            for condition, future in self._waits:
                if not future.done() and condition():
                    future.set_result(True)
            self._waits = [wait for wait in self._waits if not wait[1].done()]


def _end_wait(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
