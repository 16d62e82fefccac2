"""The order in which a worker's jobs run: first come, first served, one at a time.

Party 0's queue is the order of all three: it opens a job at the others when the job's turn comes.
Theirs only count, so that each operator's limits hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tfe_bench.errors import QueueFull


@dataclass(eq=False)
class Place:
    """One job's place.

    Attributes:
        client: whose job it is.
        move: told how many jobs are before this one, whenever that changes.
        ready: all three workers have it; before that, later jobs may overtake it.
        running: it is this one's turn.
    """

    client: str
    move: Callable[[int], None] = field(default=lambda before: None)
    ready: bool = False
    running: bool = False
    _told: int = 0


class JobQueue:
    """Places of running and waiting jobs, in the order in which they came.

    Args:
        party: whose queue, for error texts.
        total: how many places there are.
        per_client: how many of them one client may take.
    """

    def __init__(self, party: int, total: int, per_client: int) -> None:
        self._party = party
        self._total = total
        self._per_client = per_client
        self._places: list[Place] = []
        self._changed = threading.Condition()
        self._closed = False

    def enter(self, client: str) -> Place:
        """Takes the last place.

        Raises:
            QueueFull: all are taken, or as many as one client may have.
        """
        with self._changed:
            own = sum(place.client == client for place in self._places)
            if own >= self._per_client:
                raise QueueFull(
                    f"Party {self._party} takes {self._per_client} jobs of one client at a time. "
                    f"Received: one more. Wait for one of them or cancel it; its operator sets "
                    "max_jobs_per_client under [limits] in worker.toml."
                )
            if len(self._places) >= self._total:
                raise QueueFull(
                    f"Party {self._party} takes {self._total} jobs at a time. Received: one more. "
                    "Try again later; its operator sets max_jobs under [limits] in worker.toml."
                )
            place = Place(client)
            self._places.append(place)
            return place

    def set_ready(self, place: Place) -> None:
        """Lets a job run when its turn comes, and tells how many are before it."""
        with self._changed:
            place.ready = True
            self._changed.notify_all()
            self._tell()

    def leave(self, place: Place) -> None:
        """Gives a place back, if that has not happened."""
        with self._changed:
            if place in self._places:
                self._places.remove(place)
                self._changed.notify_all()
                self._tell()

    def next(self) -> Place | None:
        """Waits for the first ready job and lets it run; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                for place in self._places:
                    if place.ready and not place.running:
                        place.running = True
                        self._tell()
                        return place
                self._changed.wait()
            return None

    def waiting(self) -> list[Place]:
        """Those that could run now, in their order."""
        with self._changed:
            return [place for place in self._places if place.ready and not place.running]

    def put_back(self, place: Place) -> None:
        """Gives a job that was taken with another its own turn again."""
        with self._changed:
            place.running = False
            self._changed.notify_all()
            self._tell()

    def before(self, place: Place) -> int:
        """How many jobs run or wait before this one."""
        with self._changed:
            return self._before(place)

    def others(self, client: str) -> tuple[bool, int]:
        """Whether a job of somebody else runs, and how many of theirs wait."""
        with self._changed:
            foreign = [place for place in self._places if place.client != client]
            return any(p.running for p in foreign), sum(not p.running for p in foreign)

    def close(self) -> None:
        """Ends `next`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _before(self, place: Place) -> int:
        if place.running or place not in self._places:
            return 0
        earlier = self._places[: self._places.index(place)]
        return sum(other.running or (other.ready and other in earlier) for other in self._places)

    def _tell(self) -> None:
        for place in self._places:
            before = self._before(place)
            if place.ready and before != place._told:
                place._told = before
                place.move(before)
