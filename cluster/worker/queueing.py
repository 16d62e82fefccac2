"""The order in which a worker's jobs run: first come, first served, one at a time.

Party 0's queue is the order of all three: it opens a job at the others when the job's turn comes.
Theirs only count, so that each operator's limits hold.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.errors import PolicyError, QueueFull


@dataclass(eq=False)
class Place:
    """One job's place.

    Attributes:
        client: whose job it is.
        move: told how many jobs are before this one, whenever that changes.
        ready: all three workers have it; before that, later jobs may overtake it.
        running: it is this one's turn.
        over: its turn has ended; its client is taking the results.
        left: its client has gone.
        held: bytes that are kept for it: inputs, then results.
    """

    client: str
    move: Callable[[int], None] = field(default=lambda before: None)
    ready: bool = False
    running: bool = False
    over: bool = False
    left: bool = False
    held: int = 0
    _told: int = 0

    @property
    def waits(self) -> bool:
        """It could run now."""
        return self.ready and not self.running and not self.over


class JobQueue:
    """Places of jobs, in the order in which they came.

    A job has its place from before its submission is read until its turn has ended and its client
    has taken the results or gone.

    Args:
        policy: whose limits hold.

    Attributes:
        limits: of this policy, or of one that was read later.
    """

    def __init__(self, policy: WorkerPolicy) -> None:
        self._party = policy.party
        self.limits = policy
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
            if own >= self.limits.max_jobs_per_client:
                raise QueueFull(
                    f"Party {self._party} takes {self.limits.max_jobs_per_client} jobs of one "
                    "client at a time. Received: one more. Wait for one of them, take its results "
                    "or cancel it; its operator sets max_jobs_per_client under [limits] in "
                    "worker.toml."
                )
            if len(self._places) >= self.limits.max_jobs:
                raise QueueFull(
                    f"Party {self._party} takes {self.limits.max_jobs} jobs at a time. Received: "
                    "one more. Try again later; its operator sets max_jobs under [limits] in "
                    "worker.toml."
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

    def hold(self, place: Place, count: int) -> None:
        """Notes how many bytes are kept for a job from now on.

        Raises:
            PolicyError: more than one job may have.
            QueueFull: more than there is room for at the moment.
        """
        with self._changed:
            limits = self.limits
            if count > limits.max_bytes_per_job:
                raise PolicyError(self._too_much("one job", "max_bytes_per_job"))
            others = [other for other in self._places if other is not place]
            own = sum(other.held for other in others if other.client == place.client)
            if own + count > limits.max_bytes_per_client:
                raise QueueFull(self._too_much("one client's jobs", "max_bytes_per_client"))
            if sum(other.held for other in others) + count > limits.max_bytes:
                raise QueueFull(self._too_much("all jobs together", "max_bytes"))
            place.held = count

    def _too_much(self, what: str, limit: str) -> str:
        return (
            f"Party {self._party} keeps {getattr(self.limits, limit)} bytes of inputs and of "
            f"results that were not taken for {what}. Received: a job that needs more. Send less "
            f"at a time, take results or cancel jobs; its operator sets {limit} under [limits] in "
            "worker.toml."
        )

    def leave(self, place: Place) -> None:
        """Gives a place back, if that has not happened; one whose turn it is once that ends."""
        with self._changed:
            place.left = True
            if not place.running:
                self._remove(place)

    def finish(self, place: Place) -> None:
        """Ends a job's turn; it keeps its place until its client has left."""
        with self._changed:
            place.running = False
            place.over = True
            if place.left:
                self._remove(place)
            else:
                self._changed.notify_all()
                self._tell()

    def _remove(self, place: Place) -> None:
        if place in self._places:
            self._places.remove(place)
            self._changed.notify_all()
            self._tell()

    def next(self) -> Place | None:
        """Waits for the first ready job and lets it run; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                for place in self._places:
                    if place.waits:
                        place.running = True
                        self._tell()
                        return place
                self._changed.wait()
            return None

    def waiting(self) -> list[Place]:
        """Those that could run now, in their order."""
        with self._changed:
            return [place for place in self._places if place.waits]

    def put_back(self, place: Place) -> None:
        """Gives a job that was taken with another its own turn again."""
        with self._changed:
            place.running = False
            if place.left:
                self._remove(place)
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
            return any(p.running for p in foreign), sum(
                not p.running and not p.over for p in foreign
            )

    def close(self) -> None:
        """Ends `next`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _before(self, place: Place) -> int:
        if place.running or place.over or place not in self._places:
            return 0
        earlier = self._places[: self._places.index(place)]
        return sum(other.running or (other.waits and other in earlier) for other in self._places)

    def _tell(self) -> None:
        for place in self._places:
            before = self._before(place)
            if place.ready and before != place._told:
                place._told = before
                place.move(before)
