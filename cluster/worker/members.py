"""The members of a batch at one worker: which waiting jobs go with one, and what they bring."""

from __future__ import annotations

from tfe_bench.cluster.jobs import Program
from tfe_bench.cluster.worker import batching
from tfe_bench.cluster.worker.host import Host
from tfe_bench.cluster.worker.inputs import tensors
from tfe_bench.cluster.worker.late import Inputs
from tfe_bench.cluster.worker.log import log
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ProtocolError, TfeBenchError
from tfe_bench.protocols.session.party import Party


def taken(host: Host, party: Party, program: Program, job: Job) -> list[tuple[Job, Inputs | None]]:
    """The inputs of a job and of those that go with it; None of one that is refused now."""
    if not job.companions:
        return [(job, tensors(party, job))]
    found: list[tuple[Job, Inputs | None]] = []
    refused: list[TfeBenchError | None] = []
    for each in (job, *job.companions):
        inputs = Inputs()
        error: TfeBenchError | None = None
        try:
            inputs = tensors(party, each)
            if program.permit is not None:  # the store may have changed since it came
                specs = each.inputs
                program.permit(each.client, host.store, each.header["parameters"], specs)
        except TfeBenchError as its:
            error = its
        found.append((each, inputs))
        refused.append(error)
    fine = batching.agreed(party, [error is None for error in refused])
    for i, (each, _) in enumerate(found):
        if not fine[i]:
            # what is wrong with one client's shares is no matter of the others
            each.fail(refused[i] or ProtocolError("Another worker refused this job's inputs."))
            found[i] = (each, None)
    return found


def gather(host: Host, job: Job, party: Party, program: Program) -> list[Job]:
    """The waiting jobs that all three workers take along with this one."""
    if batching.samples(program, job) == 0:
        return []
    waiting: list[Job] = []
    if host.party == 0:
        by_place = {id(each.place): each for each in host.jobs.all()}
        ready = [by_place.get(id(place)) for place in host.queue.waiting()]
        waiting = batching.chosen(program, job, [each for each in ready if each is not None])
    offered = batching.offered(party, waiting)
    if not offered:
        return []
    taken_along = [_taken_along(host, program, job, *row) for row in offered]
    fits = batching.agreed(party, [each is not None for each in taken_along])
    companions = []
    for each, fine in zip(taken_along, fits, strict=True):
        if each is None:
            continue
        if fine:
            companions.append(each)
            log.info("job %s goes with job %s (%s)", each.short, job.short, each.about)
        else:
            each.stay()
            host.queue.put_back(each.place)
    return companions


def _taken_along(host: Host, program: Program, lead: Job, name: str, digest: str) -> Job | None:
    """A job of a name, taken from the queue; None if it cannot go along."""
    job = host.jobs.get(name)
    if job is None or job.digest != digest or job is lead or job.began is not None:
        return None
    if not job.complete.is_set() or not batching.alike(lead, job):
        return None
    if batching.samples(program, job) == 0:
        return None
    try:
        job.join_batch()
    except TfeBenchError:
        return None
    job.place.running = True
    return job
