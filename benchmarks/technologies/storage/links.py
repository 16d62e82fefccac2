"""A link with an equal rate for each stream, in simulated time."""

from __future__ import annotations

import heapq
import math


class SharedLink:
    """A link that gives each stream the same rate: the single rate or an equal part of the total.

    All active streams progress equally, so one counter suffices: the bytes that the link has
    given to each stream (`_given`).  A stream ends when the counter has grown by its size.

    Args:
        alone: the largest rate of one stream, in bytes per second.
        together: the rate of all streams together, in bytes per second; may be infinite.
    """

    def __init__(self, alone: float, together: float) -> None:
        self._alone, self._together = alone, together
        self._given = 0.0
        self._time = 0.0
        self._streams: list[tuple[float, int]] = []
        self.total = 0.0

    def start_stream(self, now: float, of: int, size: float) -> None:
        """Start a stream.

        Args:
            now: the time in seconds.
            of: the number that identifies the stream.
            size: bytes of the stream.
        """
        self._advance_time(now)
        heapq.heappush(self._streams, (self._given + size, of))
        self.total += size

    def next_end(self) -> float:
        """Return the time when the next stream ends if none starts; infinite without streams."""
        if not self._streams:
            return math.inf
        return self._time + max(0.0, self._streams[0][0] - self._given) / self._stream_rate()

    def end_stream(self, now: float) -> int:
        """Remove the stream that ends now, and return its number."""
        self._advance_time(now)
        ends, of = heapq.heappop(self._streams)
        self._given = max(self._given, ends)
        return of

    def _stream_rate(self) -> float:
        return min(self._alone, self._together / len(self._streams))

    def _advance_time(self, now: float) -> None:
        if self._streams:
            self._given += (now - self._time) * self._stream_rate()
        else:
            self._given = 0.0  # a reset limits rounding errors of the sums
        self._time = now
