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
class HeldValue:
    """What is held under a handle.

    Attributes:
        value: shares; never in a text.
        about: what is public of them.
        size: bytes.
        until: by the monotonic clock.
    """

    value: Any
    public_facts: Any
    size: int
    expires_at: float


class HandleStore:
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
        self._party, self._max_bytes, self._per_client = party, most, per_client
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], HeldValue] = {}
        self._timer: threading.Timer | None = None

    def put_value(self, client: str, handle: str, value: Any, public_facts: Any, size: int) -> None:
        """Holds a value.

        Raises:
            UsageError: there is such a handle.
            PolicyError: the operator's bounds do not admit one more.
        """
        with self._lock:
            self._remove_expired()
            if (client, handle) in self._held:
                raise UsageError(f"Party {self._party} holds such a handle already.")
            self._check_limits(client, [size])
            expires_at = self._clock() + self._seconds
            self._held[client, handle] = HeldValue(
                value, public_facts, size + _OVERHEAD, expires_at
            )
            self._schedule_expiry()

    def check_capacity(
        self, client: str, handles: Iterable[str], sizes: list[int], released: set[str]
    ) -> None:
        """Refuses what could not be held.

        Args:
            handles, sizes: that a job would make, and how many bytes each has.
            free: that are let go of before.

        Raises:
            UsageError, PolicyError: as `put`.
        """
        with self._lock:
            self._remove_expired()
            if any((client, handle) in self._held for handle in handles):
                raise UsageError(f"Party {self._party} holds such a handle already.")
            self._check_limits(client, sizes, released)

    def _check_limits(
        self, client: str, sizes: list[int], released: set[str] | None = None
    ) -> None:
        added_bytes = sum(sizes) + _OVERHEAD * len(sizes)
        released_handles = released or set()
        kept = [
            (k, h.size)
            for k, h in self._held.items()
            if k[0] != client or k[1] not in released_handles
        ]
        client_sizes = [size for (owner, _), size in kept if owner == client]
        for needed, limit, name in (
            (len(client_sizes) + len(sizes), MOST_HANDLES, "handles"),
            (sum(client_sizes) + added_bytes, self._per_client, "bytes (max_held_per_client)"),
            (
                sum(size for _, size in kept) + added_bytes,
                self._max_bytes,
                "bytes of all clients (max_held)",
            ),
        ):
            if needed > limit:
                raise PolicyError(
                    f"Party {self._party} does not hold so much for a client. Received: {needed} "
                    f"{name}, the limit is {limit}. Let go of some (del y), reveal or keep them, or "
                    "its operator raises the limit under [limits] in worker.toml."
                )

    def get_value(self, client: str, handle: str) -> HeldValue:
        """What a client has under a handle, which lives anew from now.

        Raises:
            UsageError: nothing, or no more.
        """
        with self._lock:
            self._remove_expired()
            entry = self._held.get((client, handle))
            if entry is None:
                minutes = self._seconds / 60
                raise UsageError(
                    f"Party {self._party} holds no array under this handle for this client: it "
                    f"expired ({minutes:g} minutes without use), the worker was started again, or "
                    "it is another client's. Compute it again; keep(name) lasts."
                )
            renewed = HeldValue(
                entry.value, entry.public_facts, entry.size, self._clock() + self._seconds
            )
            self._held[client, handle] = renewed
            return renewed

    def release_handles(self, client: str, handles: Iterable[str]) -> None:
        """Lets go of a client's handles, and of nobody else's; "*" is all of them."""
        with self._lock:
            for handle in handles:
                if handle == "*":
                    for key in [k for k in self._held if k[0] == client]:
                        del self._held[key]
                self._held.pop((client, handle), None)

    def count_handles(self, client: str) -> tuple[int, int]:
        """How many handles a client has, and their bytes."""
        with self._lock:
            self._remove_expired()
            client_sizes = [h.size for (owner, _), h in self._held.items() if owner == client]
            return len(client_sizes), sum(client_sizes)

    def _remove_expired(self) -> None:
        now = self._clock()
        for key in [k for k, h in self._held.items() if h.expires_at <= now]:
            del self._held[key]

    def _schedule_expiry(self) -> None:
        """Memory is given back also where no other job comes."""
        if self._timer is not None or not self._held:
            return

        def expire_later() -> None:
            with self._lock:
                self._timer = None
                self._remove_expired()
                self._schedule_expiry()

        earliest = min(h.expires_at for h in self._held.values())
        self._timer = threading.Timer(max(1.0, min(earliest - self._clock(), 600.0)), expire_later)
        self._timer.daemon = True
        self._timer.start()
