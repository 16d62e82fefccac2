"""What a worker holds in memory for its clients between jobs: values under handles, for a while.

A handle is a client's own, by its name: another client's is as unknown as none.  What is held is
bounded in bytes and in time, whatever clients do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tfe_bench.errors import PolicyError, UsageError

# Of one client: a handle of an array of one element takes memory, too.
MOST_HANDLES = 10_000
MOST_BYTES, MOST_BYTES_PER_CLIENT, SECONDS = 4 << 30, 1 << 30, 3600.0
# Python's own, for each.
_OVERHEAD = 1024


@dataclass(frozen=True, eq=False, repr=False)
class Held:
    """What is held under a handle.

    Attributes:
        value: shares; never in a text.
        about: what is public of them.
        size: bytes.
        until: by the monotonic clock.
    """

    value: Any
    about: Any
    size: int
    until: float


class Handles:
    """A worker's handles.

    Args:
        party: whose.
        most, per_client: bytes of all clients together, and of one.
        seconds: after which a handle expires that was not used meanwhile.
    """

    def __init__(
        self,
        party: int,
        most: int = MOST_BYTES,
        per_client: int = MOST_BYTES_PER_CLIENT,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._party, self._most, self._per_client = party, most, per_client
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], Held] = {}
        self._timer: threading.Timer | None = None

    def put(self, client: str, handle: str, value: Any, about: Any, size: int) -> None:
        """Holds a value.

        Raises:
            UsageError: there is such a handle.
            PolicyError: the operator's bounds do not admit one more.
        """
        with self._lock:
            self._expire()
            if (client, handle) in self._held:
                raise UsageError(f"Party {self._party} holds such a handle already.")
            self._permit(client, [size])
            until = self._clock() + self._seconds
            self._held[client, handle] = Held(value, about, size + _OVERHEAD, until)
            self._wake()

    def permit(self, client: str, handles: Iterable[str], sizes: list[int], free: set[str]) -> None:
        """Refuses what could not be held.

        Args:
            handles, sizes: that a job would make, and how many bytes each has.
            free: that are let go of before.

        Raises:
            UsageError, PolicyError: as `put`.
        """
        with self._lock:
            self._expire()
            if any((client, handle) in self._held for handle in handles):
                raise UsageError(f"Party {self._party} holds such a handle already.")
            self._permit(client, sizes, free)

    def _permit(self, client: str, sizes: list[int], free: set[str] | None = None) -> None:
        more = sum(sizes) + _OVERHEAD * len(sizes)
        gone = free or set()
        kept = [(k, h.size) for k, h in self._held.items() if k[0] != client or k[1] not in gone]
        own = [size for (who, _), size in kept if who == client]
        for given, most, name in (
            (len(own) + len(sizes), MOST_HANDLES, "handles"),
            (sum(own) + more, self._per_client, "bytes (max_held_per_client)"),
            (sum(size for _, size in kept) + more, self._most, "bytes of all clients (max_held)"),
        ):
            if given > most:
                raise PolicyError(
                    f"Party {self._party} does not hold so much for a client. Received: {given} "
                    f"{name}, the limit is {most}. Let go of some (del y), reveal or keep them, or "
                    "its operator raises the limit under [limits] in worker.toml."
                )

    def get(self, client: str, handle: str) -> Held:
        """What a client has under a handle, which lives anew from now.

        Raises:
            UsageError: nothing, or no more.
        """
        with self._lock:
            self._expire()
            found = self._held.get((client, handle))
            if found is None:
                minutes = self._seconds / 60
                raise UsageError(
                    f"Party {self._party} holds no array under this handle for this client: it "
                    f"expired ({minutes:g} minutes without use), the worker was started again, or "
                    "it is another client's. Compute it again; keep(name) lasts."
                )
            again = Held(found.value, found.about, found.size, self._clock() + self._seconds)
            self._held[client, handle] = again
            return again

    def free(self, client: str, handles: Iterable[str]) -> None:
        """Lets go of a client's handles, and of nobody else's; "*" is all of them."""
        with self._lock:
            for handle in handles:
                if handle == "*":
                    for key in [k for k in self._held if k[0] == client]:
                        del self._held[key]
                self._held.pop((client, handle), None)

    def count(self, client: str) -> tuple[int, int]:
        """How many handles a client has, and their bytes."""
        with self._lock:
            self._expire()
            own = [h.size for (who, _), h in self._held.items() if who == client]
            return len(own), sum(own)

    def _expire(self) -> None:
        now = self._clock()
        for key in [k for k, h in self._held.items() if h.until <= now]:
            del self._held[key]

    def _wake(self) -> None:
        """Memory is given back also where no other job comes."""
        if self._timer is not None or not self._held:
            return

        def later() -> None:
            with self._lock:
                self._timer = None
                self._expire()
                self._wake()

        first = min(h.until for h in self._held.values())
        self._timer = threading.Timer(max(1.0, min(first - self._clock(), 600.0)), later)
        self._timer.daemon = True
        self._timer.start()
