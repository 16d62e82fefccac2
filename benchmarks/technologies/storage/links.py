"""A link that streams share equally, in simulated time."""

from __future__ import annotations

import heapq
import math


class Link:
    """Gives each of its streams the same rate: what one has alone, or its part of the whole.

    All streams have had equally much since they began, so what counts is how much the link has
    given to each since the beginning (`_given`): a stream ends when that has grown by its size.

    Args:
        alone: bytes per second that one stream has at most.
        together: bytes per second of all of them, may be infinite.
    """

    def __init__(self, alone: float, together: float) -> None:
        self._alone, self._together = alone, together
        self._given = 0.0
        self._time = 0.0
        self._streams: list[tuple[float, int]] = []
        self.total = 0.0

    def start_stream(self, now: float, of: int, size: float) -> None:
        """A stream of so many bytes begins, known by a number."""
        self._advance_time(now)
        heapq.heappush(self._streams, (self._given + size, of))
        self.total += size

    def next_end(self) -> float:
        """When the next stream ends if none begins; infinite without streams."""
        if not self._streams:
            return math.inf
        return self._time + max(0.0, self._streams[0][0] - self._given) / self._stream_rate()

    def end_stream(self, now: float) -> int:
        """Takes away the stream that ends now; its number."""
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
            self._given = 0.0  # so that sums do not lose digits
        self._time = now
