"""Admission of submissions by a worker, before it reads any of a job's inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfe_bench.cluster import agreement, jobs
from tfe_bench.cluster.seeds import SEED_BYTES
from tfe_bench.cluster.worker import memory, outcomes
from tfe_bench.cluster.worker.host import WorkerState
from tfe_bench.cluster.worker.job_queue import QueueSlot
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ProtocolError, VersionMismatch


def accept_job_submission(
    host: WorkerState,
    header: dict[str, Any],
    client: str,
    slot: QueueSlot,
    certificate: str = "",
    describe: Callable[[str], None] = lambda description: None,
) -> Job:
    """Return the job of a submission that this worker accepts.

    Args:
        header: the client's first message, from submission.parse_job_submission.
        client: the client that sent it.
        slot: the job's slot in this worker's queue.
        certificate: the fingerprint of the client's presented certificate; "" without TLS.
        describe: receives the job's description once its program has parsed it, for the log of a
            later refusal.

    Raises:
        ProtocolError: it is malformed.
        VersionMismatch: the client has other versions, or another cluster.toml.
        UsageError, PolicyError: the program or the operator rejects it.
    """
    policy = host.policy
    for name, own_value in host.get_facts().items():
        submitted = header.get(name)
        # (a client runs no ops and no TensorFlow; parts only name a difference)
        if name not in ("isa", "abi", "tensorflow", "cluster_parts") and submitted != own_value:
            parts = agreement.describe_cluster_differences(host.config, header.get("cluster_parts"))
            differing_parts = f" ({parts})" if name == "cluster" and parts else ""
            raise VersionMismatch(
                f"The client and party {host.party} differ in {name}{differing_parts}. Received: "
                f"{str(submitted)[:24]} (client) and {str(own_value)[:24]} (party {host.party}). "
                "Use one version and one cluster.toml everywhere.",
                code="members-differ",
                operation=name,
                received=str(submitted)[:24],
                expected=str(own_value)[:24],
                party=host.party,
            )
    try:
        job = Job(header["job"], client, header, slot, host.loop, certificate)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(
            "A job's submission is malformed.", code="malformed-submission"
        ) from error
    policy.permit_inputs(len(job.inputs))
    for spec in job.inputs:
        # In words, as the limit is about memory.  The check precedes the program's own, whose time
        # and memory may be proportional to the size.
        policy.permit_elements(spec.extent)
    if job.shaping is not None:
        policy.permit_shaping()
    policy.permit_program(header["program"])
    policy.permit_reveal(header["program"], client)
    program = jobs.load_program(header["program"])
    job.request = program.admit(header["parameters"], job.inputs)
    job.description = outcomes.describe_job_for_log(
        program.name, client, program.kept_names(job.request)
    )
    describe(job.description)
    for other in program.needs(job.request):
        policy.permit_program(other)
        policy.permit_reveal(other, client)
        job.programs.append(other)
    if program.permit is not None:
        program.permit(client, host.store, job.request, job.inputs)
    size = program.sized(client, host.store, job.request, job.inputs)
    policy.permit_size(size)
    job.declared_openings = size.openings
    policy.permit_openings(size.openings, job.is_sealed)
    held_seeds = {0: {"l1", "l2"}, 1: {"l1"}, 2: {"l2"}}[host.role]
    for submitted in header["inputs"]:
        try:
            job.seeds.append({k: bytes.fromhex(v) for k, v in submitted["seeds"].items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                "A job's submission is malformed.", code="malformed-submission"
            ) from error
        if {k: len(v) for k, v in job.seeds[-1].items()} != dict.fromkeys(held_seeds, SEED_BYTES):
            raise ProtocolError(
                "A job's submission contains the seeds of this worker's role. Received: others.",
                code="malformed-submission",
                operation="seeds",
            )
    own_value = 0 if host.role == 0 else job.input_bytes  # (the dealer receives seeds alone)
    memory.check_job_memory(host, own_value + size.memory)
    return job
