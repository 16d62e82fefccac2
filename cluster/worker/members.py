"""The members of a batch at one worker: the waiting jobs that join, and their inputs."""

from __future__ import annotations

from typing import Any

from tfe_bench.cluster.jobs import Program
from tfe_bench.cluster.stored_shares import track_store_use
from tfe_bench.cluster.worker import batching
from tfe_bench.cluster.worker.host import WorkerState
from tfe_bench.cluster.worker.inputs import load_job_inputs
from tfe_bench.cluster.worker.late_inputs import JobInputs
from tfe_bench.cluster.worker.log import log
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ProtocolError, TfeBenchError
from tfe_bench.protocols.session.party import Party


def collect_batch_inputs(
    host: WorkerState, party: Party, program: Program[Any], job: Job
) -> list[tuple[Job, JobInputs | None]]:
    """Return the inputs of a job and of its batch; None for a job that is refused now."""
    if not job.batched_jobs:
        return [(job, load_job_inputs(party, job))]
    collected: list[tuple[Job, JobInputs | None]] = []
    failures: list[TfeBenchError | None] = []
    for member in (job, *job.batched_jobs):
        inputs = JobInputs()
        error: TfeBenchError | None = None
        try:
            inputs = load_job_inputs(party, member)
            if program.permit is not None:  # the store may have changed since the submission
                specs = member.inputs
                store = track_store_use(host.store, member.use)
                program.permit(member.client, store, member.request, specs)
        except TfeBenchError as refusal:
            error = refusal
        collected.append((member, inputs))
        failures.append(error)
    accepted = batching.agree_on_batch_jobs(party, [error is None for error in failures])
    for i, (member, _) in enumerate(collected):
        if not accepted[i]:
            # invalid shares of one client do not affect the others
            member.fail(
                failures[i]
                or ProtocolError(
                    "Another worker refused this job's inputs.", code="inconsistent-shares"
                )
            )
            collected[i] = (member, None)
    return collected


def form_job_batch(host: WorkerState, job: Job, party: Party, program: Program[Any]) -> list[Job]:
    """Return the waiting jobs that all three workers run together with this one."""
    if batching.count_batchable_samples(program, job) == 0:
        return []
    waiting: list[Job] = []
    if host.party == 0:
        job_by_slot = {id(candidate.slot): candidate for candidate in host.jobs.list_jobs()}
        ready = [job_by_slot.get(id(place)) for place in host.queue.list_waiting()]
        waiting = batching.select_batch_jobs(
            program, job, [candidate for candidate in ready if candidate is not None]
        )
    offer = batching.exchange_batch_offer(party, waiting)
    if not offer:
        return []
    candidates = [_take_batch_candidate(host, program, job, *row) for row in offer]
    fits = batching.agree_on_batch_jobs(party, [candidate is not None for candidate in candidates])
    batched_jobs = []
    for candidate, is_accepted in zip(candidates, fits, strict=True):
        if candidate is None:
            continue
        if is_accepted:
            batched_jobs.append(candidate)
            candidate.mark_joined()
            log.info(
                "job %s joins the batch of job %s (%s)",
                candidate.short_name,
                job.short_name,
                candidate.description,
            )
        else:
            candidate.requeue()
            host.queue.requeue(candidate.slot)
    return batched_jobs


def _take_batch_candidate(
    host: WorkerState, program: Program[Any], lead: Job, name: str, digest: str
) -> Job | None:
    """Take a job of a name from the queue; None if it cannot join the batch."""
    job = host.jobs.get_job(name)
    if job is None or job.digest != digest or job is lead or job.began is not None:
        return None
    if not job.is_complete or not batching.is_same_computation(lead, job):
        return None
    if batching.count_batchable_samples(program, job) == 0:
        return None
    try:
        job.join_batch()
    except TfeBenchError:
        return None
    job.slot.running = True
    return job
