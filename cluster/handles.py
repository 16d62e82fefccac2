"""Values that a worker holds in memory for its clients between jobs, under handles that expire.

A handle belongs to one client, by name: another client's handle is indistinguishable from one that
does not exist.  Held values are bounded in bytes and in time, whatever clients do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tfe_bench.errors import PolicyError, UsageError

# Handles of one client: even an array of one element takes memory.
MOST_HANDLES = 10_000
MOST_BYTES, MOST_BYTES_PER_CLIENT, SECONDS = 4 << 30, 1 << 30, 3600.0
# Python's overhead for each handle.
_OVERHEAD = 1024


@dataclass(frozen=True, eq=False, repr=False)
class HeldValue:
    """A value under a handle.

    Attributes:
        value: shares; never part of a text.
        public_facts: public facts about the value.
        size: bytes.
        expires_at: time of expiry by the monotonic clock.
    """

    value: Any
    public_facts: Any
    size: int
    expires_at: float


class HandleStore:
    """A worker's handles.

    Args:
        party: the worker's party.
        most, per_client: bytes of all clients together, and of one client.
        seconds: the lifetime of a handle since its last use.
    """

    def __init__(
        self,
        party: int,
        max_bytes: int = MOST_BYTES,
        per_client: int = MOST_BYTES_PER_CLIENT,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._party, self._max_bytes, self._per_client = party, max_bytes, per_client
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], HeldValue] = {}
        self._timer: threading.Timer | None = None

    def put_value(self, client: str, handle: str, value: Any, public_facts: Any, size: int) -> None:
        """Hold a value.

        Raises:
            UsageError: the handle exists already.
            PolicyError: the operator's limits do not allow another value.
        """
        with self._lock:
            self._remove_expired_handles()
            if (client, handle) in self._held:
                raise UsageError(
                    f"Party {self._party} holds such a handle already.",
                    code="duplicate-handle",
                    party=self._party,
                )
            self._check_limits(client, [size])
            expires_at = self._clock() + self._seconds
            self._held[client, handle] = HeldValue(
                value, public_facts, size + _OVERHEAD, expires_at
            )
            self._schedule_handle_expiry()

    def check_capacity(
        self, client: str, handles: Iterable[str], sizes: list[int], released: set[str]
    ) -> None:
        """Reject values that could not be held.

        Args:
            handles, sizes: the handles that a job would create, and the bytes of each.
            released: handles that are released before.

        Raises:
            UsageError, PolicyError: as `put_value`.
        """
        with self._lock:
            self._remove_expired_handles()
            if any((client, handle) in self._held for handle in handles):
                raise UsageError(
                    f"Party {self._party} holds such a handle already.",
                    code="duplicate-handle",
                    party=self._party,
                )
            self._check_limits(client, sizes, released)

    def _check_limits(
        self, client: str, sizes: list[int], released: set[str] | None = None
    ) -> None:
        added_bytes = sum(sizes) + _OVERHEAD * len(sizes)
        released_handles = released or set()
        stored_sizes = [
            (k, h.size)
            for k, h in self._held.items()
            if k[0] != client or k[1] not in released_handles
        ]
        client_sizes = [size for (owner, _), size in stored_sizes if owner == client]
        for needed, limit, name in (
            (len(client_sizes) + len(sizes), MOST_HANDLES, "handles"),
            (sum(client_sizes) + added_bytes, self._per_client, "bytes (max_held_per_client)"),
            (
                sum(size for _, size in stored_sizes) + added_bytes,
                self._max_bytes,
                "bytes of all clients (max_held)",
            ),
        ):
            if needed > limit:
                raise PolicyError(
                    f"Party {self._party} holds no more for a client. Received: {needed} "
                    f"{name}, the limit is {limit}. Release some (del y), reveal or keep them, or "
                    "its operator raises the limit under [limits] in worker.toml.",
                    code="held-limit-exceeded",
                    received=needed,
                    expected=limit,
                    party=self._party,
                )

    def get_value(self, client: str, handle: str) -> HeldValue:
        """Return the value of a client's handle and renew its lifetime.

        Raises:
            UsageError: the client has no such handle, or it has expired.
        """
        with self._lock:
            self._remove_expired_handles()
            entry = self._held.get((client, handle))
            if entry is None:
                minutes = self._seconds / 60
                raise UsageError(
                    f"Party {self._party} holds no array under this handle for this client: it "
                    f"expired ({minutes:g} minutes without use), the worker was restarted, or "
                    "it is another client's. Compute it again; keep(name) stores it permanently.",
                    code="handle-not-found",
                    party=self._party,
                )
            renewed = HeldValue(
                entry.value, entry.public_facts, entry.size, self._clock() + self._seconds
            )
            self._held[client, handle] = renewed
            return renewed

    def release_handles(self, client: str, handles: Iterable[str]) -> None:
        """Release handles of one client alone; "*" stands for all of them."""
        with self._lock:
            for handle in handles:
                if handle == "*":
                    for key in [k for k in self._held if k[0] == client]:
                        del self._held[key]
                self._held.pop((client, handle), None)

    def count_handles(self, client: str) -> tuple[int, int]:
        """Return the number of a client's handles, and their bytes."""
        with self._lock:
            self._remove_expired_handles()
            client_sizes = [h.size for (owner, _), h in self._held.items() if owner == client]
            return len(client_sizes), sum(client_sizes)

    def _remove_expired_handles(self) -> None:
        now = self._clock()
        for key in [k for k, h in self._held.items() if h.expires_at <= now]:
            del self._held[key]

    def _schedule_handle_expiry(self) -> None:
        """Release expired memory even if no other job arrives."""
        if self._timer is not None or not self._held:
            return

        def expire_later() -> None:
            with self._lock:
                self._timer = None
                self._remove_expired_handles()
                self._schedule_handle_expiry()

        earliest = min(h.expires_at for h in self._held.values())
        self._timer = threading.Timer(max(1.0, min(earliest - self._clock(), 600.0)), expire_later)
        self._timer.daemon = True
        self._timer.start()
