"""A submitted job at one worker, from submission to its last event."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfe_bench.cluster import faults, wire
from tfe_bench.cluster.job_use import JobUse
from tfe_bench.cluster.jobs import NOTHING, InputSpec, digest_job
from tfe_bench.cluster.receipts import Line
from tfe_bench.cluster.seeds import Ring
from tfe_bench.cluster.transport import SessionLink
from tfe_bench.cluster.worker.job_events import JobEvents
from tfe_bench.cluster.worker.job_queue import QueueSlot
from tfe_bench.cluster.worker.late_inputs import MAX_AHEAD, LateInputBuffer
from tfe_bench.cluster.worker.loop_waits import LoopWaits
from tfe_bench.errors import ProtocolError, TfeBenchError
from tfe_bench.protocols.session.openings import Opening

# Seconds from a session's start at one worker to its start at the next.
_LINK_SECONDS = 17.0
_MOST_WARM_UP = 16 << 20


class Job:
    """A worker's record of one job.

    Args:
        name: chosen by the client, 32 hex digits.
        client: the submitting client.
        header: its submission, from submission.parse_job_submission.
        slot: in this worker's queue.
        loop: the channel's event loop, whose coroutines wait for this job.
        certificate: the fingerprint of the client's certificate, "" without TLS.

    Raises:
        KeyError, TypeError, ValueError: the submission is malformed.
        UsageError: an input is invalid.

    Attributes:
        shaping: microseconds of one-way delay and bytes per second to impose; None for no shaping.
        warm_up_bytes: to exchange before the program starts.
        waits: of coroutines, for a change of this job.
        events: for the client.
        over: set after the last event.
        is_complete: all inputs except late ones have arrived, or never will.
        late_inputs: the buffer of late inputs.
        is_turn: the job's turn has come.
        peer_connected: party 0 has opened its stream for this job here.
        began: start of its turn.
        ended: time of its last events.
        batched_jobs: other clients' jobs in its batch; not cancelled when this job's client
            disconnects.
        is_batched: it is part of another job's batch, and uses that job's session.
        is_joined: the three workers have agreed on that, so that its own streams are free.
        is_sealed: its client demands that it opens nothing to workers.
        declared_openings: what it opens to workers, as its program declares; None: unknown.
        is_concealing: returns whether its client receives codes alone of errors (faults.py).
        programs: that its client must be allowed: its own, and those that it needs.
        request: what its program parsed, by admission.accept_job_submission.
        use: what it uses, for its receipt.
        receipt: its line of this worker's receipts.
        description: its program, its stored values and its client, for logs.
    """

    def __init__(
        self,
        name: str,
        client: str,
        header: dict[str, Any],
        slot: QueueSlot,
        loop: asyncio.AbstractEventLoop,
        certificate: str = "",
    ) -> None:
        self.name = name
        self.client = client
        self.certificate = certificate
        self.header = header
        self.slot = slot
        self.inputs = [
            InputSpec(
                i["name"],
                tuple(i["shape"]),
                i["fractional_bits"],
                i["limbs"],
                bool(i.get("late")),
            )
            for i in header["inputs"]
        ]
        late = [spec.late for spec in self.inputs]
        if late != sorted(late):
            raise ValueError("an input after a late one")
        if not (len(name) == 32 and set(name) <= set("0123456789abcdef")):
            raise ValueError("a name of another form")
        self.shaping = _parse_traffic_shaping(header.get("shaping"))
        self.warm_up_bytes = _check_shaping_integer(
            header.get("warm_up_bytes", 0), 0, _MOST_WARM_UP
        )
        self.is_sealed = header.get("opens") == NOTHING
        self.declared_openings: Sequence[Opening] | None = ()
        self.seeds: list[dict[str, bytes]] = []
        self.masked: list[Ring] = []
        self.late_inputs = LateInputBuffer()
        self.waits = LoopWaits(loop)
        self.events = JobEvents(self.waits)
        self.keys: dict[int, bytes] = {}
        self.changed = threading.Condition()
        self.link: SessionLink | None = None
        self.failed: TfeBenchError | None = None
        self.over = threading.Event()
        self.is_complete = False
        self.is_turn = False
        self.peer_connected = False
        self.submitted = time.monotonic()
        self.began: float | None = None
        self.ended: float | None = None
        self.batched_jobs: list[Job] = []
        self.is_batched = False
        self.is_joined = False
        self.request: Any = None
        self.use = JobUse()
        self.receipt: Line | None = None
        self.description = ""
        self.is_concealing: Callable[[], bool] = lambda: False
        self.programs: list[str] = [header["program"]]
        self._closers: list[Callable[[], object]] = []
        # The client is part of it: the three workers apply their policies to the same client.
        self.digest = digest_job(
            *(header["program"], header["parameters"], client, certificate, self.inputs),
            *(self.shaping, self.warm_up_bytes, self.is_sealed),
        )

    @property
    def client_identity(self) -> str:
        """The client's identity at this worker, for comparison with the other two."""
        return f"{self.client} {self.certificate}".strip()

    @property
    def short_name(self) -> str:
        """Its name in logs."""
        return self.name[:12]

    @property
    def input_bytes(self) -> int:
        """The bytes of its inputs that an evaluator holds at once."""
        late = sorted((spec.words for spec in self.inputs if spec.late), reverse=True)
        ahead = late[: MAX_AHEAD + 1]  # one more is read while it waits for room
        return 8 * (sum(spec.words for spec in self.inputs if not spec.late) + sum(ahead))

    def mark_complete(self) -> None:
        """Mark its inputs except late ones as arrived."""
        self.is_complete = True
        self.waits.check_waits()

    def mark_turn(self) -> None:
        """Mark its turn as come."""
        self.is_turn = True
        self.waits.check_waits()

    def mark_joined(self) -> None:
        """Mark it as part of a batch on which the three workers have agreed."""
        self.is_joined = True
        self.waits.check_waits()

    def mark_running(self) -> None:
        """Mark it as running: from now on its runner ends its events.

        Raises:
            TfeBenchError: it has failed before.
        """
        with self.changed:
            if self.failed is not None:
                raise self.failed
            self.began = time.monotonic()

    def join_batch(self) -> None:
        """Mark it as part of another job's batch.

        Raises:
            TfeBenchError: it has failed before.
        """
        self.mark_running()
        self.is_batched = True

    def requeue(self) -> None:
        """Undo `join_batch`: it waits for its own turn, or ends if it has failed since."""
        with self.changed:
            self.is_batched = False
            self.began = None
            if self.failed is not None:
                self.finish(self.failed)

    def fail(self, error: TfeBenchError) -> bool:
        """End the job; the first cause counts.  Return whether this was the first."""
        with self.changed:
            is_first = self.failed is None and not self.over.is_set()
            if is_first:
                self.failed = error
                if self.began is None:
                    self.finish(error)
            closers, self._closers = self._closers, []
            self.changed.notify_all()
        self.waits.check_waits()
        self.late_inputs.end_waits(error)
        for closer in closers:
            closer()
        if self.link is not None and not self.batched_jobs:
            self.link.fail(error)
        return is_first

    def finish(self, error: BaseException | None = None, results: Sequence[bytes] = ()) -> None:
        """Put the last events, and release the inputs; only the first call has an effect.

        Args:
            results: messages of a job that has not failed.
        """
        if self.over.is_set():
            return
        self.ended = time.monotonic()
        # Before its client receives all results and disconnects, which is no failure.
        self.over.set()
        self.events.put_messages(*(results if error is None else [self.encode_failure(error)]))
        self.events.end_messages()
        self.mark_complete()
        self.late_inputs.end_waits()
        self.masked.clear()
        self.seeds.clear()

    def encode_failure(self, error: BaseException) -> bytes:
        """Encode an error as an event for its client."""
        reported = faults.reduce_to_code(error) if self.is_concealing() else error
        return wire.encode_failure_event(reported)

    def on_fail(self, closer: Callable[[], object]) -> None:
        """Call a function when the job fails, at once if it has failed."""
        with self.changed:
            if self.failed is None:
                self._closers.append(closer)
                return
        closer()

    def set_key(self, peer: int, key: bytes) -> None:
        """Keep the key of a pair until the session begins."""
        with self.changed:
            self.keys[peer] = key
            self.changed.notify_all()

    def start_link(self, link: SessionLink) -> None:
        """Set its session; its keys are of no further use.

        The lock `changed` is held.
        """
        self.link = link
        self.keys = dict.fromkeys(self.keys, b"")
        self.waits.check_waits()

    async def wait_link(self) -> SessionLink | None:
        """Return the session after its start; None if it does not start."""
        await self.waits.wait_for(
            lambda: self.link is not None or self.failed is not None, _LINK_SECONDS
        )
        return self.link if self.failed is None else None


class JobRegistry:
    """The jobs of a worker, by name.

    Args:
        loop: the channel's event loop, whose coroutines wait for jobs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._jobs: dict[str, Job] = {}
        self._waits = LoopWaits(loop)

    def add_job(self, job: Job) -> None:
        """Register a job.

        Raises:
            ProtocolError: a job of this name exists.
        """
        if self._jobs.setdefault(job.name, job) is not job:
            raise ProtocolError("A job of this name exists already.", code="duplicate-job")
        self._waits.check_waits()

    def remove_job(self, job: Job) -> None:
        """Remove a job."""
        self._jobs.pop(job.name, None)

    def get_job(self, name: str) -> Job | None:
        """Return the job of a name, or None."""
        return self._jobs.get(name)

    def list_jobs(self) -> list[Job]:
        """Return all present jobs."""
        return list(self._jobs.values())

    async def wait_for_job(self, name: str, seconds: float) -> Job | None:
        """Wait for the job of a name; return None if it does not arrive within some seconds."""
        await self._waits.wait_for(lambda: name in self._jobs, seconds)
        return self._jobs.get(name)


def _check_shaping_integer(value: object, least: int, largest: int) -> int:
    if type(value) is not int or not least <= value <= largest:
        raise ValueError("a number out of its range")
    return value


def _parse_traffic_shaping(value: list[object] | None) -> tuple[int, int] | None:
    """Parse a client's (microseconds of delay, bytes per second)."""
    if value is None:
        return None
    delay, rate = value
    return _check_shaping_integer(delay, 0, 2_000_000), _check_shaping_integer(
        rate, 10_000, 1 << 40
    )
