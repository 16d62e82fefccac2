"""Queries of clients that a worker answers, in addition to jobs."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from tfe_bench.cluster import agreement, wire
from tfe_bench.cluster.config import ClientConfig
from tfe_bench.cluster.stored import KINDS
from tfe_bench.cluster.worker.callers import Call, CallerAuthenticator
from tfe_bench.cluster.worker.host import WorkerState
from tfe_bench.cluster.worker.log import foreign_error_location, log
from tfe_bench.cluster.worker.outcomes import UNKNOWN
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import JobCancelled, ProtocolError, TfeBenchError


def _answer_client_query(
    answer: Callable[[ClientRpc, Call], Awaitable[bytes]],
) -> Callable[[ClientRpc, object, Call], AsyncIterator[bytes]]:
    """Wrap a method as a call of the service that returns one answer, or its error."""

    @functools.wraps(answer)
    async def answer_call(self: ClientRpc, requests: object, context: Call) -> AsyncIterator[bytes]:
        del requests  # read through the context
        try:
            yield await answer(self, context)
        except TfeBenchError as error:
            self.log_refusal(context, answer.__name__, error)
            yield wire.encode_failure_event(error)
        except Exception as error:
            log.error("a query failed: %s", foreign_error_location(error))
            yield wire.encode_failure_event(error)

    return answer_call


class ClientRpc:
    """Answers queries of clients: each method is one call of the service."""

    def __init__(self, host: WorkerState, callers: CallerAuthenticator) -> None:
        self._host, self._callers = host, callers
        self._started = time.monotonic()

    def log_refusal(self, context: Call, question: str, error: TfeBenchError) -> None:
        """Log a refused query with its client."""
        name = UNKNOWN
        with contextlib.suppress(TfeBenchError):
            name = self._callers.look_up_caller(context).name
        self._host.outcomes.log_failure(name, f"the query {question!r} of {name} is refused", error)

    @_answer_client_query
    async def hello(self, context: Call) -> bytes:
        """Return this worker's identity and versions."""
        host = self._host
        caller = self._callers.authenticate_member(context)
        # (a client learns about no other client)
        client_digests = agreement.digest_clients(host.config)
        if isinstance(caller, ClientConfig):
            client_digests = {
                name: client_digests[name] for name in client_digests if name == caller.name
            }
        facts = host.get_facts()
        return wire.event(
            "hello", party=host.party, now=time.time(), clients=client_digests, **facts
        )

    @_answer_client_query
    async def status(self, context: Call) -> bytes:
        """Return the client's own jobs, and only the number of others."""
        host = self._host
        client = self._callers.authenticate_client(context)
        now = time.monotonic()
        own_jobs = [
            {
                "job": job.name,
                "program": job.header["program"],
                "client": client,
                "state": _describe_job_state(job),
                "before": host.queue.count_before(job.slot),
                "age": now - job.submitted,
                "running": None if job.began is None else now - job.began,
            }
            for job in host.jobs.list_jobs()
            if job.client == client and (not job.over.is_set() or job.failed is None)
        ]
        others_run, others_wait = host.queue.count_others(client)
        return wire.event(
            "status",
            party=host.party,
            uptime=now - self._started,
            jobs=own_jobs,
            others_running=others_run,
            others_waiting=others_wait,
        )

    @_answer_client_query
    async def cancel(self, context: Call) -> bytes:
        """End a job of the client.

        Another client's job is indistinguishable from one that does not exist.
        """
        host = self._host
        client = self._callers.authenticate_client(context)
        name = str((await self._callers.read_client_query(context)).get("job"))
        job = host.jobs.get_job(name)
        is_found = job is not None and job.client == client and not job.over.is_set()
        if job is not None and is_found:
            log.info("job %s: cancelled by %s", job.short_name, client)
            cause = JobCancelled("The client cancelled the job.", code="job-cancelled")
            await host.loop.run_in_executor(None, job.fail, cause)
        return wire.event("cancelled", party=host.party, found=is_found)

    @_answer_client_query
    async def models(self, context: Call) -> bytes:
        """Return the stored values of a kind that the client may use, and no others."""
        host = self._host
        client = self._callers.authenticate_client(context)
        kind = KINDS.get(str((await self._callers.read_client_query(context)).get("of", "")))
        if kind is None:
            raise ProtocolError(
                "Expected a kind of stored values. Received: an unknown one.", code="unknown-kind"
            )
        rows = await host.loop.run_in_executor(None, host.store.for_kind(kind).list_visible, client)
        return wire.event("models", party=host.party, models=rows)


def _describe_job_state(job: Job) -> str:
    if job.over.is_set():
        return "delivering"
    if job.began is not None:
        return "running"
    return "waiting" if job.is_complete else "arriving"
