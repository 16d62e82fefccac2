"""Jobs in their turn, one at a time: each in a session of its own, from its keys to its results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, MutableMapping

from tfe_bench.cluster import jobs, wire
from tfe_bench.cluster.jobs import Context
from tfe_bench.cluster.transport import SessionLink
from tfe_bench.cluster.worker import batching, members, results
from tfe_bench.cluster.worker.host import DEALER, Host
from tfe_bench.cluster.worker.log import log, where
from tfe_bench.cluster.worker.memory import MemoryMeter
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ClusterError, PolicyError, TfeBenchError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


class Turns:
    """Runs a worker's jobs.

    Args:
        meet: begins a job's session with the peers.
    """

    def __init__(self, host: Host, meet: Callable[[Job], SessionLink]) -> None:
        self._host, self._meet = host, meet
        self._turn = threading.Lock()
        self._memory = MemoryMeter()

    def coordinate(self) -> None:
        """Party 0: runs what is ready, in order."""
        while (place := self._host.queue.next()) is not None:
            job = next((j for j in self._host.jobs.all() if j.place is place), None)
            if job is None:  # its client has just left
                self._host.queue.finish(place)
            else:
                self.run(job)

    def run(self, job: Job) -> None:
        """Runs a job, after the one that runs now."""
        try:
            with self._turn:
                job.begin()
                job.place.running = True
                self._run_begun(job)
        except TfeBenchError:
            pass  # it failed before its turn
        finally:
            self._host.queue.finish(job.place)

    def _run_begun(self, job: Job) -> None:
        log.info("job %s begins (%s)", job.short, job.about)
        link: SessionLink | None = None

        def expire() -> None:
            error = PolicyError(
                f"The job ran longer than party {self._host.party} allows "
                f"({self._host.policy.job_seconds:g} s, limits.job_seconds in worker.toml)."
            )
            _fail(job, error)
            if link is not None:
                link.fail(error)

        timer = threading.Timer(self._host.policy.job_seconds, expire)
        timer.daemon = True
        timer.start()
        failure: BaseException | None = None
        try:
            link = self._meet(job)
            self._compute(job, link)
        except TfeBenchError as error:
            cause = (link.cause if link else None) or error
            _fail(job, cause)
            failure = job.failed or cause
        except Exception as error:
            log.error("job %s failed: %s", job.short, where(error))
            _fail(job, ClusterError(f"Party {self._host.party} failed ({wire.kind_of(error)})."))
            failure = error
        finally:
            timer.cancel()
            if link is not None:
                link.finish()
                # Its streams' last words may still be on their way.
                self._host.loop.call_soon_threadsafe(self._host.loop.call_later, 5.0, link.drop)
            for companion in job.companions:
                companion.finish(companion.failed)
                self._host.queue.finish(companion.place)
            job.finish(failure or job.failed)

    def _compute(self, job: Job, link: SessionLink) -> None:
        party = Party(self._host.party, link.handle, DEALER, client=job.client)
        party._on_abort = lambda _: link.cause
        if job.warm_up_bytes:
            # Windows open on what is sent, and what is timed later shall find them open.
            for _ in range(2):
                party.exchange(bytes(job.warm_up_bytes))
        idle = self._memory.start()
        program = jobs.load(job.header["program"])
        job.companions = members.gather(self._host, job, party, program)
        brought = members.taken(self._host, party, program, job)
        batch = [each for each, inputs in brought if inputs is not None]
        own = [inputs for _, inputs in brought if inputs is not None]
        del brought
        if not batch:
            raise job.failed or ClusterError("No job of the batch is left.")
        counts: list[int] = []
        inputs: MutableMapping[str, Shared] = own[0]
        if job.companions:
            inputs, counts = batching.merged(own)
        own.clear()

        shown = 0.0

        def progress(fraction: float, text: str) -> None:
            nonlocal shown
            # One worker tells, not more often than a person can read, but always of the end.
            now = time.monotonic()
            if self._host.party == 0 and (now - shown > 0.1 or fraction >= 1):
                shown = now
                for each in batch:
                    each.events.put(wire.event("progress", fraction=fraction, text=text))

        context = Context(
            party,
            job.header["parameters"],
            inputs,
            progress,
            client=batch[0].client,
            store=self._host.store,
        )
        with party.active():
            outputs = program.run(context)
        # Nobody closes before everybody has finished.
        party.exchange(b"done")
        measured = {
            "build_seconds": party.build_seconds,
            **context.measurements,
            **context.at_end(),
            "idle_memory": idle,
            "peak_memory": self._memory.peak(),
        }
        if counts:
            measured["batched"] = {"requests": len(counts), "samples": sum(counts)}
        parts = batching.parted(outputs, counts) if counts else [outputs]
        for each, part in zip(batch, parts, strict=True):
            if each.failed is not None:  # its client has left
                continue
            try:
                # The inputs are used up.
                self._host.queue.hold(each.place, results.held_bytes(self._host.party, part))
            except TfeBenchError as error:
                each.fail(error)
                continue
            each.events.put(wire.event("measured", **measured))
            for name, output in part.items():
                results.give(self._host.party, each, name, output)
            each.events.put(wire.event("done"))
            _log_done(each, party.sent_bytes, len(batch))


def _log_done(job: Job, sent: int, together: int) -> None:
    seconds = time.monotonic() - (job.began or 0.0)
    figures = (
        f"{seconds:.2f} s, {job.input_bytes} bytes of inputs here, {sent} bytes sent to workers"
    )
    shared = f", with {together - 1} other jobs" if together > 1 else ""
    log.info("job %s is done (%s): %s%s", job.short, job.about, figures, shared)


def _fail(job: Job, error: TfeBenchError) -> None:
    """Ends a job, and those that go with it."""
    for each in (job, *job.companions):
        each.fail(error)
