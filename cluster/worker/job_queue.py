"""The order in which a worker's jobs run: one at a time, and clients take turns.

The next job is the first one of the client whose last turn is longest ago.  So a client that keeps
many jobs in flight delays another client's job by one of its own.

Party 0's queue determines the order of all three: it starts a job at the others when the job's
turn comes.  Their queues only count, to enforce each operator's limits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.errors import PolicyError, QueueFull


@dataclass(eq=False)
class QueueSlot:
    """One job's slot in the queue.

    Attributes:
        client: of the job.
        on_move: called with the number of jobs before this one, whenever it changes.
        ready: all three workers have the job; before that, later jobs may overtake it.
        running: it is this job's turn.
        over: its turn has ended; its client is receiving the results.
        client_left: its client has disconnected.
        held_bytes: bytes that are held for it: inputs, then results.
    """

    client: str
    on_move: Callable[[int], None] = field(default=lambda before: None)
    ready: bool = False
    running: bool = False
    over: bool = False
    client_left: bool = False
    held_bytes: int = 0
    _reported: int = 0

    @property
    def is_waiting(self) -> bool:
        """True if the job could run now."""
        return self.ready and not self.running and not self.over


class JobQueue:
    """Slots of jobs, in the order of their arrival.

    A job has its slot from before its submission is read until its turn has ended and its client
    has received the results or disconnected.

    Args:
        policy: of the limits.

    Attributes:
        limits: of this policy, or of one that was loaded later.
    """

    def __init__(self, policy: WorkerPolicy) -> None:
        self._party = policy.party
        self.limits = policy
        self._slots: list[QueueSlot] = []
        self._changed = threading.Condition()
        self._closed = False
        self._turns = 0
        self._last_turns: dict[str, int] = {}

    def enter(self, client: str) -> QueueSlot:
        """Add a slot at the end.

        Raises:
            QueueFull: the queue is full, or the client has its largest number of jobs.
        """
        with self._changed:
            client_jobs = sum(slot.client == client for slot in self._slots)
            if client_jobs >= self.limits.max_jobs_per_client:
                raise QueueFull(
                    f"Party {self._party} takes {self.limits.max_jobs_per_client} jobs of one "
                    "client at a time. Received: one more. Wait for one of them, take its results "
                    "or cancel it; its operator sets max_jobs_per_client under [limits] in "
                    "worker.toml.",
                    code="too-many-jobs",
                    operation="max_jobs_per_client",
                    expected=self.limits.max_jobs_per_client,
                    party=self._party,
                )
            if len(self._slots) >= self.limits.max_jobs:
                raise QueueFull(
                    f"Party {self._party} takes {self.limits.max_jobs} jobs at a time. Received: "
                    "one more. Try again later; its operator sets max_jobs under [limits] in "
                    "worker.toml.",
                    code="too-many-jobs",
                    operation="max_jobs",
                    expected=self.limits.max_jobs,
                    party=self._party,
                )
            slot = QueueSlot(client)
            self._slots.append(slot)
            return slot

    def set_ready(self, slot: QueueSlot) -> None:
        """Mark a job as ready to run, and report the number of jobs before it."""
        with self._changed:
            slot.ready = True
            self._changed.notify_all()
            self._report_positions()

    def hold(self, slot: QueueSlot, count: int) -> None:
        """Record the bytes that are held for a job from now on.

        Raises:
            PolicyError: more than one job may hold.
            QueueFull: more than is free at present.
        """
        with self._changed:
            limits = self.limits
            if count > limits.max_bytes_per_job:
                raise PolicyError(
                    self._limit_message("one job", "max_bytes_per_job"),
                    code="too-many-bytes",
                    operation="max_bytes_per_job",
                    expected=limits.max_bytes_per_job,
                    party=self._party,
                )
            others = [other for other in self._slots if other is not slot]
            client_bytes = sum(other.held_bytes for other in others if other.client == slot.client)
            if client_bytes + count > limits.max_bytes_per_client:
                raise QueueFull(
                    self._limit_message("one client's jobs", "max_bytes_per_client"),
                    code="too-many-bytes",
                    operation="max_bytes_per_client",
                    expected=limits.max_bytes_per_client,
                    party=self._party,
                )
            if sum(other.held_bytes for other in others) + count > limits.max_bytes:
                raise QueueFull(
                    self._limit_message("all jobs together", "max_bytes"),
                    code="too-many-bytes",
                    operation="max_bytes",
                    expected=limits.max_bytes,
                    party=self._party,
                )
            slot.held_bytes = count

    def _limit_message(self, subject: str, limit: str) -> str:
        return (
            f"Party {self._party} keeps {getattr(self.limits, limit)} bytes of inputs and of "
            f"results that were not taken for {subject}. Received: a job that needs more. Send "
            f"less at a time, take results or cancel jobs; its operator sets {limit} under "
            "[limits] in worker.toml."
        )

    def release_slot(self, slot: QueueSlot) -> None:
        """Release a slot once; that of a running job when its turn ends."""
        with self._changed:
            slot.client_left = True
            if not slot.running:
                self._remove_slot(slot)

    def finish_turn(self, slot: QueueSlot) -> None:
        """End a job's turn; it keeps its slot until its client has disconnected."""
        with self._changed:
            slot.running = False
            slot.over = True
            if slot.client_left:
                self._remove_slot(slot)
            else:
                self._changed.notify_all()
                self._report_positions()

    def _remove_slot(self, slot: QueueSlot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
            self._changed.notify_all()
            self._report_positions()

    def take_next(self) -> QueueSlot | None:
        """Wait for the next ready job and mark it as running; None if the queue is closed."""
        with self._changed:
            while not self._closed:
                for slot in self._order_waiting()[:1]:
                    self._turns += 1
                    self._last_turns[slot.client] = self._turns
                    slot.running = True
                    self._report_positions()
                    return slot
                self._changed.wait()
            return None

    def _order_waiting(self, other: QueueSlot | None = None) -> list[QueueSlot]:
        """Return the waiting slots in the order of their turns.

        Args:
            other: a slot that counts as waiting.
        """
        waiting = [slot for slot in self._slots if slot.is_waiting or slot is other]
        turns, last_turns = self._turns, dict(self._last_turns)
        ordered: list[QueueSlot] = []
        while waiting:
            slot = min(waiting, key=lambda slot: last_turns.get(slot.client, 0))
            waiting.remove(slot)
            turns += 1
            last_turns[slot.client] = turns
            ordered.append(slot)
        return ordered

    def list_waiting(self) -> list[QueueSlot]:
        """Return the slots that could run now, in order."""
        with self._changed:
            return [place for place in self._slots if place.is_waiting]

    def is_idle(self, seconds: float) -> bool:
        """Return whether no job waits for some seconds, and the queue stays open."""
        with self._changed:
            return not self._changed.wait_for(
                lambda: self._closed or any(slot.is_waiting for slot in self._slots), seconds
            )

    def requeue(self, slot: QueueSlot) -> None:
        """Return a job that was taken into a batch to its own turn."""
        with self._changed:
            slot.running = False
            if slot.client_left:
                self._remove_slot(slot)
            self._changed.notify_all()
            self._report_positions()

    def count_before(self, slot: QueueSlot) -> int:
        """Return the number of jobs that run or wait before this one."""
        with self._changed:
            return self._count_before(slot)

    def count_others(self, client: str) -> tuple[bool, int]:
        """Return whether another client's job runs, and how many of theirs wait."""
        with self._changed:
            other_slots = [place for place in self._slots if place.client != client]
            return any(p.running for p in other_slots), sum(
                not p.running and not p.over for p in other_slots
            )

    def close(self) -> None:
        """End `take_next`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _count_before(self, slot: QueueSlot) -> int:
        if slot.running or slot.over or slot not in self._slots:
            return 0
        running = sum(other.running for other in self._slots)
        return running + self._order_waiting(slot).index(slot)

    def _report_positions(self) -> None:
        running = sum(slot.running for slot in self._slots)
        waiting = self._order_waiting()
        for slot in self._slots:
            before = running + waiting.index(slot) if slot.is_waiting else 0
            if slot.ready and before != slot._reported:
                slot._reported = before
                slot.on_move(before)
