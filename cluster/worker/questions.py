"""What a client may ask a worker, besides ordering jobs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from tfe_bench.cluster import wire
from tfe_bench.cluster.stored import KINDS
from tfe_bench.cluster.worker.callers import Call, Callers
from tfe_bench.cluster.worker.host import Host
from tfe_bench.cluster.worker.log import log, where
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import JobCancelled, ProtocolError, TfeBenchError


class Questions:
    """Answers them: each method is one call of the service."""

    def __init__(self, host: Host, callers: Callers) -> None:
        self._host, self._callers = host, callers
        self._started = time.monotonic()

    async def hello(self, requests: object, context: Call) -> AsyncIterator[bytes]:
        """Who this worker is, and what it runs."""
        del requests
        host = self._host
        try:
            self._callers.member(context)
            yield wire.event("hello", party=host.party, now=time.time(), **host.facts())
        except TfeBenchError as error:
            yield wire.failure(error)

    async def status(self, requests: object, context: Call) -> AsyncIterator[bytes]:
        """The asking client's own jobs; of the others' only how many there are."""
        del requests
        host = self._host
        try:
            client = self._callers.client(context)
            now = time.monotonic()
            own = [
                {
                    "job": job.name,
                    "program": job.header["program"],
                    "client": client,
                    "state": _state(job),
                    "before": host.queue.before(job.place),
                    "age": now - job.submitted,
                    "running": None if job.began is None else now - job.began,
                }
                for job in host.jobs.all()
                if job.client == client and (not job.over.is_set() or job.failed is None)
            ]
            others_run, others_wait = host.queue.others(client)
            yield wire.event(
                "status",
                party=host.party,
                uptime=now - self._started,
                jobs=own,
                others_running=others_run,
                others_waiting=others_wait,
            )
        except TfeBenchError as error:
            yield wire.failure(error)

    async def cancel(self, requests: object, context: Call) -> AsyncIterator[bytes]:
        """Ends a job of the asking client; somebody else's is as unknown as none."""
        del requests
        host = self._host
        try:
            client = self._callers.client(context)
            name = str((await self._callers.question(context)).get("job"))
            job = host.jobs.get(name)
            found = job is not None and job.client == client and not job.over.is_set()
            if job is not None and found:
                log.info("job %s: %s cancels it", job.short, client)
                why = JobCancelled("The job was cancelled by its client's order.")
                await host.loop.run_in_executor(None, job.fail, why)
            yield wire.event("cancelled", party=host.party, found=found)
        except TfeBenchError as error:
            yield wire.failure(error)

    async def models(self, requests: object, context: Call) -> AsyncIterator[bytes]:
        """The models or data sets that the asking client may use; others are as unknown as none."""
        del requests
        host = self._host
        try:
            client = self._callers.client(context)
            kind = KINDS.get(str((await self._callers.question(context)).get("of", "")))
            if kind is None:
                raise ProtocolError("Nothing of this kind is kept.")
            rows = await host.loop.run_in_executor(None, host.store.of(kind).visible, client)
            yield wire.event("models", party=host.party, models=rows)
        except TfeBenchError as error:
            yield wire.failure(error)
        except Exception as error:
            log.error("listing the models failed: %s", where(error))
            yield wire.failure(error)


def _state(job: Job) -> str:
    if job.over.is_set():
        return "delivering"
    if job.began is not None:
        return "running"
    return "waiting" if job.complete.is_set() else "arriving"
