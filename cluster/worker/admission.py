"""Which submissions a worker takes: checked by itself, before any of a job's inputs is read."""

from __future__ import annotations

from typing import Any

from tfe_bench.cluster import agreement, jobs
from tfe_bench.cluster.seeds import SEED_BYTES
from tfe_bench.cluster.worker import memory, outcomes
from tfe_bench.cluster.worker.host import Host
from tfe_bench.cluster.worker.job_queue import QueueSlot
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ProtocolError, VersionMismatch


def accept_submission(
    host: Host, header: dict[str, Any], client: str, slot: QueueSlot, certificate: str = ""
) -> Job:
    """A job of a submission that this worker takes part in.

    Args:
        header: the client's first message, as submission.parse gives it.
        client: who sent it.
        place: in this worker's queue.
        certificate: the fingerprint of the one that the client presented; "" without TLS.

    Raises:
        ProtocolError: it is malformed.
        VersionMismatch: the client has other versions, or another cluster.toml.
        UsageError, PolicyError: the program or the operator does not permit it.
    """
    policy = host.policy
    for name, own_value in host.get_facts().items():
        submitted = header.get(name)
        # (a client runs no ops and no TensorFlow; parts only name what differs)
        if name not in ("isa", "abi", "tensorflow", "cluster_parts") and submitted != own_value:
            parts = agreement.describe_differences(host.config, header.get("cluster_parts"))
            differing_parts = f" ({parts})" if name == "cluster" and parts else ""
            raise VersionMismatch(
                f"The client and party {host.party} differ in {name}{differing_parts}. Received: "
                f"{str(submitted)[:24]} (client) and {str(own_value)[:24]} (party {host.party}). "
                "Use one version and one cluster.toml everywhere."
            )
    try:
        job = Job(header["job"], client, header, slot, certificate)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError("A job's submission is malformed.") from error
    policy.permit_inputs(len(job.inputs))
    for spec in job.inputs:
        # In words: the limit is about memory.  Before a program looks at them: what it counts may
        # take time and memory in proportion.
        policy.permit_elements(spec.extent)
    if job.shaping is not None:
        policy.permit_shaping()
    policy.permit_program(header["program"])
    policy.permit_reveal(header["program"], client)
    program = jobs.load_program(header["program"])
    program.admit(header["parameters"], job.inputs)
    job.description = outcomes.describe_job(
        program.name, client, program.kept_names(header["parameters"])
    )
    for other in program.needs(header["parameters"]):
        policy.permit_program(other)
        policy.permit_reveal(other, client)
        job.programs.append(other)
    if program.permit is not None:
        program.permit(client, host.store, header["parameters"], job.inputs)
    size = program.sized(client, host.store, header["parameters"], job.inputs)
    policy.permit_size(size)
    held_seeds = {0: {"l1", "l2"}, 1: {"l1"}, 2: {"l2"}}[host.role]
    for submitted in header["inputs"]:
        try:
            job.seeds.append({k: bytes.fromhex(v) for k, v in submitted["seeds"].items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError("A job's submission is malformed.") from error
        if {k: len(v) for k, v in job.seeds[-1].items()} != dict.fromkeys(held_seeds, SEED_BYTES):
            raise ProtocolError("A job's submission has other seeds than are due.")
    own_value = 0 if host.role == 0 else job.input_bytes  # (the dealer is sent seeds alone)
    memory.check_memory(host, own_value + size.memory)
    return job
