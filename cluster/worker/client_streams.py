"""Clients' streams of jobs: submissions and inputs arrive, events and results are sent."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tfe_bench.cluster import wire
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.seeds import Ring
from tfe_bench.cluster.worker import outcomes, submission
from tfe_bench.cluster.worker.admission import accept_job_submission
from tfe_bench.cluster.worker.callers import Call, CallerAuthenticator
from tfe_bench.cluster.worker.host import DEALER, MEET_SECONDS, WorkerState
from tfe_bench.cluster.worker.job_queue import QueueSlot
from tfe_bench.cluster.worker.log import foreign_error_location, log
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ClusterError, JobCancelled, PolicyError, TfeBenchError
from tfe_bench.protocols.session import aligned_buffers
from tfe_bench.protocols.session.openings import encode_openings


class ClientStreams:
    """Serves the streams of clients.

    Args:
        open_streams: opens a job's streams to other workers.
    """

    def __init__(
        self,
        host: WorkerState,
        callers: CallerAuthenticator,
        open_streams: Callable[[Job], Coroutine[Any, Any, None]],
    ) -> None:
        self._host, self._callers, self._open_streams = host, callers, open_streams

    async def serve_job(self, requests: object, context: Call) -> None:
        """Accept a job from its client, and send the job's events until they end."""
        # A coroutine, because only a coroutine is cancelled at once when its client disconnects.
        del requests  # read through the context
        host = self._host
        client, subject, about = outcomes.UNKNOWN, "a job", outcomes.UNKNOWN
        job: Job | None = None
        slot: QueueSlot | None = None
        connect_timer: asyncio.TimerHandle | None = None
        receiving: asyncio.Future[None] | None = None
        submitted: dict[str, Any] | None = None
        try:
            client = self._callers.look_up_caller(context).name
            about = f"client {client}"
            client = self._callers.authenticate_client(context)
            # Before any read: a client that stalls occupies one of its own slots.
            slot = host.queue.enter(client)
            first = await self._callers.read_first_message(context, wire.MOST_MESSAGE_BYTES)
            certificate = self._callers.get_fingerprint(context)
            first_messages = deque(wire.split_bundle(first))

            def accept_submission() -> Job:
                nonlocal subject, about, submitted
                submitted = header = submission.parse_job_submission(first_messages.popleft())
                subject, about = outcomes.describe_submission_for_log(client, header)

                def describe_parsed(description: str) -> None:
                    nonlocal about
                    about = description

                return accept_job_submission(
                    host, header, client, slot, certificate, describe_parsed
                )

            accepted = await host.loop.run_in_executor(None, accept_submission)
            if host.party != DEALER:  # the dealer receives seeds alone
                host.queue.hold(slot, accepted.input_bytes)
            host.jobs.add_job(accepted)
            job = accepted
            host.recheck_job(job)  # (the files may have been reloaded)
            job.events.put_messages(
                wire.event("accepted", opens=encode_openings(job.declared_openings))
            )
            # Also if the client disconnects while an event is being sent to it.
            context.add_done_callback(
                functools.partial(_cancel_job, accepted)  # pyright: ignore[reportArgumentType]
            )
            receiving = host.start_task(self._receive_inputs(job, context, first_messages))
            if host.party == 0:
                slot.on_move = functools.partial(_report_queue_position, job)
            else:
                connect_timer = host.loop.call_later(
                    MEET_SECONDS + 3, self._check_peer_connected, job
                )
            if host.party != 2:
                host.start_task(self._open_streams(job))
            while (message := await job.events.take_message()) is not None:
                if not await self._send_message(job, context, message):
                    return
        except TfeBenchError as error:
            if job is not None:
                job.fail(error)
            else:
                host.outcomes.log_failure(client, f"{subject} is refused ({about})", error)
                if submitted is not None:
                    host.receipts.record_refusal(client, submitted, error)
            await self._send_refusal(context, error, job)
        except Exception as error:
            log.error("%s (%s) failed: %s", subject, about, foreign_error_location(error))
            await self._send_refusal(context, error, job)
        finally:
            if connect_timer is not None:
                connect_timer.cancel()
            if receiving is not None:
                receiving.cancel()
            if job is not None:
                job.fail(_client_left_error())
                host.jobs.remove_job(job)
                self._log_end(job)
            if slot is not None:
                host.queue.release_slot(slot)

    async def _send_message(self, job: Job, context: Call, blob: bytes) -> bool:
        """Send a message to a job's client; return False if the client does not read it in time."""
        seconds = self._host.policy.stall_seconds
        if job.ended is not None:  # the time for the remaining results is limited, too
            remaining = job.ended + self._host.policy.job_seconds - time.monotonic()
            seconds = min(seconds, max(0.0, remaining))
        try:
            async with asyncio.timeout(seconds):
                await context.write(blob)
            return True
        except TimeoutError:
            error = self._stall_error("did not read the results that were ready")
            if not job.fail(error):  # (it has ended, except for its results)
                host = self._host
                host.outcomes.log_failure(
                    job.client, f"job {job.short_name} failed ({job.description})", error
                )
            # A stream that its client does not read delivers nothing else, not even its end.
            self._callers.disconnect_caller(context, "ready results were not read, stall_seconds")
            return False

    def _log_end(self, job: Job) -> None:
        """Log once why a job has no result here, whichever part of the worker found the reason."""
        if job.failed is None:
            return
        ended = "failed" if job.began is not None else "is refused"
        if job.began is None:
            self._host.receipts.record_end(job, job.failed)
        if job.began is None and isinstance(job.failed, JobCancelled):
            ended = "ended before its turn"
        self._host.outcomes.log_failure(
            job.client, f"job {job.short_name} {ended} ({job.description})", job.failed
        )

    async def _send_refusal(self, context: Call, error: Exception, job: Job | None) -> None:
        """Send a client the reason of a refusal.

        Args:
            job: None if its submission is refused.
        """
        encode = wire.encode_failure_event if job is None else job.encode_failure
        with contextlib.suppress(Exception):
            async with asyncio.timeout(self._host.policy.stall_seconds):
                await context.write(encode(error))

    def _stall_error(self, omission: str) -> PolicyError:
        return PolicyError(
            f"The job's client {omission} within the time that party {self._host.party} allows "
            f"({self._host.policy.stall_seconds:g} s for each message of {wire.CHUNK_BYTES} bytes, "
            f"limits.stall_seconds in worker.toml; {self._host.policy.job_seconds:g} s for all, "
            "limits.job_seconds).",
            code="client-stalled",
            operation="stall_seconds",
            party=self._host.party,
        )

    def _check_peer_connected(self, job: Job) -> None:
        if job.peer_connected or job.over.is_set():
            return
        job.fail(
            ClusterError(
                f"Party 0 has no job {job.short_name}, or cannot reach party {self._host.party}. "
                "Received: no stream from it. A client submits a job to all three workers.",
                code="worker-not-reachable",
                party=0,
            )
        )

    async def _read_message(self, job: Job, context: Call, arrived: deque[bytes]) -> bytes | None:
        """Return a client's next message, None at the end of its stream.

        Args:
            arrived: messages that arrived together with earlier ones.

        Raises:
            PolicyError: the client does not send due inputs.
        """
        if not arrived:
            seconds = self._host.policy.stall_seconds
            if not job.is_complete:  # (late inputs arrive while it waits or runs)
                remaining = job.submitted + self._host.policy.job_seconds - time.monotonic()
                seconds = min(seconds, max(0.0, remaining))
            try:
                async with asyncio.timeout(seconds):
                    blob = await context.read()
            except TimeoutError:
                raise self._stall_error("did not send its inputs") from None
            if not isinstance(blob, bytes):
                return None
            arrived.extend(wire.split_bundle(blob))
        return arrived.popleft()

    async def _receive_inputs(self, job: Job, context: Call, arrived: deque[bytes]) -> None:
        """Read a job's inputs; peers may open it as soon as its header is read.

        Args:
            arrived: messages that arrived together with its submission.
        """

        async def read_input(spec: InputSpec) -> Ring:
            # (memory pages are allocated on writes, not by the size in a header)
            words = aligned_buffers.allocate_words((0 if self._host.role == 0 else spec.words,))
            data = words.data.cast("B")
            for begin in range(0, len(data), wire.CHUNK_BYTES):
                part = data[begin : begin + wire.CHUNK_BYTES]
                message = await self._read_message(job, context, arrived)
                part[:] = wire.read_data_chunk(message, len(part))
            return words

        try:
            for spec in job.inputs:
                if not spec.late:
                    job.masked.append(await read_input(spec))
            job.mark_complete()
            for spec in job.inputs:
                if spec.late:
                    words = await read_input(spec)
                    # (it waits for room)
                    await self._host.loop.run_in_executor(
                        None, job.late_inputs.put_input, spec.name, words
                    )
        except TfeBenchError as error:
            job.fail(error)
        except BaseException:  # the stream was cancelled
            job.fail(_client_left_error())


def _client_left_error() -> JobCancelled:
    text = "The client cancelled the job or its connection ended."
    return JobCancelled(text, code="job-cancelled")


def _cancel_job(job: Job, _: object) -> None:
    job.fail(_client_left_error())


def _report_queue_position(job: Job, before: int) -> None:
    if before:
        log.info("job %s waits: %d before it", job.short_name, before)
        job.events.put_messages(wire.event("queued", before=before))
