"""Runs jobs in their turn, one at a time: each in its own session, from its keys to its results."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, MutableMapping

from tfe_bench.cluster import jobs, wire
from tfe_bench.cluster.job_receipts import encode_client_fields
from tfe_bench.cluster.jobs import Context
from tfe_bench.cluster.stored_shares import track_store_use
from tfe_bench.cluster.transport import SessionLink
from tfe_bench.cluster.worker import batching, members, results
from tfe_bench.cluster.worker.host import DEALER, WorkerState
from tfe_bench.cluster.worker.job_events import PROGRESS_SECONDS
from tfe_bench.cluster.worker.log import foreign_error_location, log
from tfe_bench.cluster.worker.memory import MemoryMeter
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ClusterError, PolicyError, TfeBenchError
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.openings import OpeningLog, encode_openings
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Time for the last messages of a session's streams.
_LAST_MESSAGES_SECONDS = 5.0


class JobRunner:
    """Runs a worker's jobs.

    Args:
        start_session: starts a job's session with the peers.
    """

    def __init__(self, host: WorkerState, start_session: Callable[[Job], SessionLink]) -> None:
        self._host, self._start_session = host, start_session
        self._begun: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._memory = MemoryMeter()

    def begin_job(self, job: Job) -> None:
        """Run a job that party 0 has begun, after those that it has begun before."""
        self._begun.put(job)

    def end_jobs(self) -> None:
        """End `run_jobs` at parties 1 and 2."""
        self._begun.put(None)

    def run_jobs(self) -> None:
        """Run jobs in order: at party 0 ready ones, elsewhere those that party 0 has begun."""
        take_job = self._take_ready_job if self._host.party == 0 else self._begun.get
        while (job := take_job()) is not None:
            try:
                job.mark_running()
                job.slot.running = True
                self._run_session(job)
            except TfeBenchError:
                pass  # it failed before its turn
            except Exception as error:  # the next job runs all the same
                log.error("job %s failed: %s", job.short_name, foreign_error_location(error))
            finally:
                self._host.queue.finish_turn(job.slot)

    def _take_ready_job(self) -> Job | None:
        while (slot := self._host.queue.take_next()) is not None:
            for job in self._host.jobs.list_jobs():
                if job.slot is slot:
                    return job
            self._host.queue.finish_turn(slot)  # its client has just disconnected
        return None

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

        deadline = time.monotonic() + self._host.policy.job_seconds
        failure: BaseException | None = None
        try:
            link = self._start_session(job)
            link.limit_time(deadline, fail_expired)
            self._run_program(job, link)
        except TfeBenchError as error:
            cause = (link.cause if link else None) or error
            _fail_job_batch(job, cause)
            if link is not None:
                link.fail(cause)
            failure = job.failed or cause
        except Exception as error:
            log.error("job %s failed: %s", job.short_name, foreign_error_location(error))
            cause = ClusterError(
                f"Party {self._host.party} failed ({wire.describe_foreign_error(error)}).",
                code="worker-failed",
                party=self._host.party,
            )
            _fail_job_batch(job, cause)
            if link is not None:
                link.fail(cause)
            failure = error
        finally:
            ended_jobs, receipts = (job, *job.batched_jobs), self._host.receipts
            for ended_job in ended_jobs:
                receipts.record_end(ended_job, ended_job.failed or failure)
            if link is not None:
                # Last messages of its streams may still be in transit.
                in_transit = [link.drop_session]
                if link.is_finished:
                    exchange = receipts.start_exchange(ended_jobs)
                    link.exchange_receipts(exchange.message, exchange.receive_message)
                    in_transit.append(exchange.end_exchange)
                link.finish()
                for end_session in in_transit:
                    self._host.loop.call_soon_threadsafe(
                        self._host.loop.call_later, _LAST_MESSAGES_SECONDS, end_session
                    )
            for batched in job.batched_jobs:
                batched.finish(batched.failed)
                self._host.queue.finish_turn(batched.slot)
            job.finish(failure or job.failed)
            self._memory.schedule_return()

    def _run_program(self, job: Job, link: SessionLink) -> None:
        party = Party(self._host.party, link.handle, DEALER, client=job.client)
        party._on_abort = lambda _: link.cause
        party._end_session = link.fail
        # (by the rules of this moment: worker.toml may have been reloaded)
        policy = self._host.policy
        party.openings = OpeningLog(policy.permit_openings(job.declared_openings, job.is_sealed))
        job.use.opened = party.openings.list_openings

        def is_concealing() -> bool:
            return party.is_computing and party.openings.is_sealed

        link.is_concealing = job.is_concealing = is_concealing
        if job.warm_up_bytes:
            # TCP windows grow with traffic, and must be open before measurements.
            for _ in range(2):
                party.exchange(bytes(job.warm_up_bytes))
        idle = self._memory.reset_peak()
        program = jobs.load_program(job.header["program"])
        job.batched_jobs = members.form_job_batch(self._host, job, party, program)
        for member in job.batched_jobs:
            member.use.opened = party.openings.list_openings
            member.is_concealing = is_concealing
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

        first_report = time.monotonic() + PROGRESS_SECONDS

        def report_progress(fraction: float, text: str) -> None:
            if self._host.party == 0:  # (one worker reports)
                for member in batch:
                    member.events.report_progress(fraction, text, first_report)

        context = Context(
            party,
            job.header["parameters"],
            inputs,
            report_progress,
            request=batch[0].request,
            client=batch[0].client,
            store=track_store_use(self._host.store, job.use),
            use=job.use,
            joined_jobs=len(batch),
        )
        with party.active():
            outputs = program.run(context)
        # No worker closes before all have finished.
        party.exchange(b"done")
        if context.afterwards is None:
            link.mark_finished()
        else:
            job.link = None  # its client may leave without ending the session
        measured = {
            "build_seconds": party.build_seconds,
            **context.measurements,
            **context.at_end(),
            "idle_memory": idle,
            "peak_memory": self._memory.peak_growth(),
            "instruction_set": ops.native().isa().decode(),
            "opened": encode_openings(party.openings.list_openings()),
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
            messages = [wire.event("measured", **measured)]
            for name, output in part.items():
                messages += results.encode_result_share(self._host.party, name, output)
            try:
                receipt = self._host.receipts.sign_result(member, bool(part))
            except TfeBenchError as error:
                member.fail(error)
                continue
            messages.append(wire.event("done", **encode_client_fields(receipt)))
            member.finish(results=messages)
            _log_job_done(member, party.sent_bytes, len(batch))
        if context.afterwards is not None:
            self._work_afterwards(job, link, context)

    def _work_afterwards(self, job: Job, link: SessionLink, context: Context) -> None:
        """Do what follows a job whose clients have their results, as long as no job waits."""
        assert context.afterwards is not None
        for member in (job, *job.batched_jobs):
            self._host.queue.finish_turn(member.slot)
        text = f"work after job {job.short_name} ran longer than limits.job_seconds allows"
        late = ClusterError(text, code="job-timeout", party=self._host.party)
        deadline = time.monotonic() + self._host.policy.job_seconds
        link.limit_time(deadline, lambda: link.fail(late))
        error: TfeBenchError
        try:
            with context.party.active():
                context.afterwards(self._host.queue.is_idle, log.info)
            context.party.exchange(b"done")
            link.mark_finished()
        except Exception as failure:  # no client waits for it
            if isinstance(failure, TfeBenchError):
                error, text = failure, str(link.cause or failure)
            else:
                text = f"party {self._host.party} failed ({wire.describe_foreign_error(failure)})"
                error = ClusterError(text, code="worker-failed", party=self._host.party)
            log.info("work after job %s ended: %s", job.short_name, text)
            link.fail(error)


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
