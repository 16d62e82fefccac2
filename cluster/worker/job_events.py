"""A job's messages to its client: put by any thread, sent by the coroutine of its stream."""

from __future__ import annotations

import time
from collections import deque

from tfe_bench.cluster import wire
from tfe_bench.cluster.worker.loop_waits import LoopWaits

# Seconds without a message after which a sign of life is sent.
_ALIVE_SECONDS = 1.0
# Time between two reports of progress, and before the first: a job that ends before it has none.
PROGRESS_SECONDS = 0.2


class JobEvents:
    """Messages of a job that its client has not been sent yet.

    Args:
        waits: of the loop that sends them.
    """

    def __init__(self, waits: LoopWaits) -> None:
        self._waits = waits
        self._messages: deque[bytes] = deque()
        self._progress: tuple[float, float, str] | None = None
        self._has_ended = False

    def put_messages(self, *messages: bytes) -> None:
        """Send messages as soon as possible, small ones together."""
        self._messages.extend(messages)
        self._waits.check_waits()

    def report_progress(self, fraction: float, text: str, not_before: float) -> None:
        """Replace the report of progress that is sent next.

        Args:
            not_before: time of the clock `time.monotonic`.
        """
        self._progress = not_before, fraction, text

    def end_messages(self) -> None:
        """Mark the last message."""
        self._has_ended = True
        self._waits.check_waits()

    async def take_message(self) -> bytes | None:
        """Wait for the next message, and return it; None after the last one."""
        deadline = time.monotonic() + _ALIVE_SECONDS
        while not await self._waits.wait_for(self._has_news, PROGRESS_SECONDS):
            self._add_progress()
            if not self._messages and time.monotonic() >= deadline:
                self._messages.append(wire.event("alive"))
        self._add_progress()
        return wire.take_bundle(self._messages) if self._messages else None

    def _has_news(self) -> bool:
        return bool(self._messages) or self._has_ended

    def _add_progress(self) -> None:
        if self._progress is not None and time.monotonic() >= self._progress[0]:
            (_, fraction, text), self._progress = self._progress, None
            self._messages.appendleft(wire.event("progress", fraction=fraction, text=text))
