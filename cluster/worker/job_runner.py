"""Runs jobs in their turn, one at a time: each in its own session, from its keys to its results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, MutableMapping

from tfe_bench.cluster import jobs, wire
from tfe_bench.cluster.jobs import Context
from tfe_bench.cluster.transport import SessionLink
from tfe_bench.cluster.worker import batching, members, results
from tfe_bench.cluster.worker.host import DEALER, WorkerState
from tfe_bench.cluster.worker.log import foreign_error_location, log
from tfe_bench.cluster.worker.memory import MemoryMeter
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ClusterError, PolicyError, TfeBenchError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


class JobRunner:
    """Runs a worker's jobs.

    Args:
        start_session: starts a job's session with the peers.
    """

    def __init__(self, host: WorkerState, start_session: Callable[[Job], SessionLink]) -> None:
        self._host, self._start_session = host, start_session
        self._run_lock = threading.Lock()
        self._memory = MemoryMeter()

    def run_ready_jobs(self) -> None:
        """At party 0: run ready jobs in order."""
        while (slot := self._host.queue.take_next()) is not None:
            job = next((j for j in self._host.jobs.list_jobs() if j.slot is slot), None)
            if job is None:  # its client has just disconnected
                self._host.queue.finish_turn(slot)
            else:
                self.run_job(job)

    def run_job(self, job: Job) -> None:
        """Run a job, after the one that runs now."""
        try:
            with self._run_lock:
                job.mark_running()
                job.slot.running = True
                self._run_session(job)
        except TfeBenchError:
            pass  # it failed before its turn
        finally:
            self._host.queue.finish_turn(job.slot)

    def _run_session(self, job: Job) -> None:
        log.info("job %s begins (%s)", job.short_name, job.description)
        link: SessionLink | None = None

        def fail_expired() -> None:
            error = PolicyError(
                f"The job ran longer than party {self._host.party} allows "
                f"({self._host.policy.job_seconds:g} s, limits.job_seconds in worker.toml).",
                code="job-timeout",
                operation="job_seconds",
                expected=self._host.policy.job_seconds,
                party=self._host.party,
            )
            _fail_job_batch(job, error)
            if link is not None:
                link.fail(error)

        timer = threading.Timer(self._host.policy.job_seconds, fail_expired)
        timer.daemon = True
        timer.start()
        failure: BaseException | None = None
        try:
            link = self._start_session(job)
            self._run_program(job, link)
        except TfeBenchError as error:
            cause = (link.cause if link else None) or error
            _fail_job_batch(job, cause)
            failure = job.failed or cause
        except Exception as error:
            log.error("job %s failed: %s", job.short_name, foreign_error_location(error))
            _fail_job_batch(
                job,
                ClusterError(
                    f"Party {self._host.party} failed ({wire.describe_foreign_error(error)}).",
                    code="worker-failed",
                    party=self._host.party,
                ),
            )
            failure = error
        finally:
            timer.cancel()
            if link is not None:
                link.finish()
                # Last messages of its streams may still be in transit.
                self._host.loop.call_soon_threadsafe(
                    self._host.loop.call_later, 5.0, link.drop_session
                )
            for batched in job.batched_jobs:
                batched.finish(batched.failed)
                self._host.queue.finish_turn(batched.slot)
            job.finish(failure or job.failed)

    def _run_program(self, job: Job, link: SessionLink) -> None:
        party = Party(self._host.party, link.handle, DEALER, client=job.client)
        party._on_abort = lambda _: link.cause
        if job.warm_up_bytes:
            # TCP windows grow with traffic, and must be open before measurements.
            for _ in range(2):
                party.exchange(bytes(job.warm_up_bytes))
        idle = self._memory.reset_peak()
        program = jobs.load_program(job.header["program"])
        job.batched_jobs = members.form_job_batch(self._host, job, party, program)
        collected = members.collect_batch_inputs(self._host, party, program, job)
        batch = [member for member, inputs in collected if inputs is not None]
        accepted_inputs = [inputs for _, inputs in collected if inputs is not None]
        del collected
        if not batch:
            raise job.failed or ClusterError("No job of the batch is left.", code="batch-empty")
        counts: list[int] = []
        inputs: MutableMapping[str, Shared] = accepted_inputs[0]
        if job.batched_jobs:
            inputs, counts = batching.merge_batch_inputs(accepted_inputs)
        accepted_inputs.clear()

        last_report = 0.0

        def report_progress(fraction: float, text: str) -> None:
            nonlocal last_report
            # One worker reports, not more often than a person can read, but always the end.
            now = time.monotonic()
            if self._host.party == 0 and (now - last_report > 0.1 or fraction >= 1):
                last_report = now
                for member in batch:
                    member.events.put(wire.event("progress", fraction=fraction, text=text))

        context = Context(
            party,
            job.header["parameters"],
            inputs,
            report_progress,
            request=batch[0].request,
            client=batch[0].client,
            store=self._host.store,
        )
        with party.active():
            outputs = program.run(context)
        # No worker closes before all have finished.
        party.exchange(b"done")
        measured = {
            "build_seconds": party.build_seconds,
            **context.measurements,
            **context.at_end(),
            "idle_memory": idle,
            "peak_memory": self._memory.peak_growth(),
        }
        if counts:
            measured["batched"] = {"requests": len(counts), "samples": sum(counts)}
        parts = batching.split_batch_outputs(outputs, counts) if counts else [outputs]
        for member, part in zip(batch, parts, strict=True):
            if member.failed is not None:  # its client has disconnected
                continue
            try:
                # The inputs are no longer needed.
                self._host.queue.hold(
                    member.slot, results.count_held_result_bytes(self._host.party, part)
                )
            except TfeBenchError as error:
                member.fail(error)
                continue
            member.events.put(wire.event("measured", **measured))
            for name, output in part.items():
                results.send_result_share(self._host.party, member, name, output)
            member.events.put(wire.event("done"))
            _log_job_done(member, party.sent_bytes, len(batch))


def _log_job_done(job: Job, sent: int, batch_size: int) -> None:
    seconds = time.monotonic() - (job.began or 0.0)
    figures = (
        f"{seconds:.2f} s, {job.input_bytes} bytes of inputs here, {sent} bytes sent to workers"
    )
    shared = f", with {batch_size - 1} other jobs" if batch_size > 1 else ""
    log.info("job %s is done (%s): %s%s", job.short_name, job.description, figures, shared)


def _fail_job_batch(job: Job, error: TfeBenchError) -> None:
    """End a job with its batch."""
    for member in (job, *job.batched_jobs):
        member.fail(error)
