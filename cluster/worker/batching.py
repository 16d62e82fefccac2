"""Batches of waiting jobs: one session and one graph for a job and compatible ones in the queue.

A program declares which of its jobs may be batched (`Program.together`), and runs their samples as
one batch.  Party 0 offers the jobs that wait in its queue.  A job joins if all three workers have
it complete and with the same digest, permit it now, and find its shares consistent.  The others
keep their place in the queue.

Each job's inputs come from its own client and its outputs are sent to that client alone.  A client
learns that other jobs were in the batch, and their number of samples, from the batch's figures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.cluster import json_limits
from tfe_bench.cluster.jobs import Program
from tfe_bench.errors import ProtocolError

if TYPE_CHECKING:
    from tfe_bench.cluster.worker.pending import Job
    from tfe_bench.protocols.session.party import Party
    from tfe_bench.protocols.session.sharing import Shared

# Samples of one batch: the number that one client may send at once.
MOST_SAMPLES = 4096
_MOST_BYTES = 1 << 20
_SIZE_BYTES = 8


def count_batchable_samples(program: Program[Any], job: Job) -> int:
    """Return the number of a job's samples if it may be batched, else 0."""
    if program.together is None or any(spec.limbs != 1 or spec.late for spec in job.inputs):
        return 0
    return program.together(job.request, job.inputs)


def is_same_computation(a: Job, b: Job) -> bool:
    """Return whether two jobs are one computation on different samples."""

    def computation_key(job: Job) -> tuple[object, ...]:
        return (
            job.header["program"],
            job.header["parameters"],
            [(i.name, i.shape[1:], i.fractional_bits, i.limbs) for i in job.inputs],
            job.shaping,
            job.warm_up_bytes,
            job.is_sealed,
        )

    return computation_key(a) == computation_key(b)


def select_batch_jobs(program: Program[Any], lead: Job, waiting: Sequence[Job]) -> list[Job]:
    """Return the waiting jobs that join a batch: in their order, while there is room."""
    room = MOST_SAMPLES - count_batchable_samples(program, lead)
    selected: list[Job] = []
    for job in waiting:
        count = count_batchable_samples(program, job)
        if 0 < count <= room and is_same_computation(lead, job):
            selected.append(job)
            room -= count
    return selected


def exchange_batch_offer(party: Party, jobs: Sequence[Job]) -> list[tuple[str, str]]:
    """Send party 0's offer to all three workers: names and digests.

    The workers agree on its size and digest first, so that party 0 offers both others the same.

    Rounds: 2, and 1 more if a job is offered.
    """
    rows = [[job.name, job.digest] for job in jobs]
    offer = json.dumps(rows).encode() if rows else b""
    header = len(offer).to_bytes(_SIZE_BYTES, "little") + hashlib.sha256(offer).digest()
    header = party.exchange_facts("the jobs of this batch", header)[0]
    # messages of an exchange have the same length, which all three workers know
    size = int.from_bytes(header[:_SIZE_BYTES], "little")
    if size == 0:
        return []
    try:
        if size > _MOST_BYTES:
            raise ValueError("too long")
        reply = party.exchange(offer.ljust(size)[:size])[0]
        if hashlib.sha256(reply).digest() != header[_SIZE_BYTES:]:
            raise ValueError("another offer")
        pairs = json_limits.parse_untrusted_json(reply, "Party 0's offer", _MOST_BYTES)
        return [(str(name), str(digest)) for name, digest in pairs]
    except (ValueError, TypeError) as error:
        raise ProtocolError(
            "Party 0's offer is malformed.", code="malformed-message", operation="offer", party=0
        ) from error


def agree_on_batch_jobs(party: Party, own_votes: Sequence[bool]) -> list[bool]:
    """Return for each job whether all three workers voted for it."""
    votes = party.exchange_facts("the jobs of this batch", bytes(own_votes))
    return [all(vote[i] for vote in votes) for i in range(len(own_votes))]


def merge_batch_inputs(
    inputs: Sequence[Mapping[str, Shared]],
) -> tuple[dict[str, Shared], list[int]]:
    """Concatenate the samples of all jobs; also return each job's number of samples."""
    from tfe_bench.protocols.ring import shapes

    counts = [int(next(iter(job_inputs.values())).shape[0]) for job_inputs in inputs]
    return {
        name: shapes.concat([job_inputs[name] for job_inputs in inputs], 0) for name in inputs[0]
    }, counts


def split_batch_outputs(
    outputs: Mapping[str, Shared], counts: Sequence[int]
) -> list[dict[str, Shared]]:
    """Split a batch's outputs by job."""
    outputs_by_job: list[dict[str, Shared]] = []
    begin = 0
    for count in counts:
        end = begin + count
        outputs_by_job.append(
            {k: x.map(lambda a, b=begin, e=end: a[b:e]) for k, x in outputs.items()}
        )
        begin = end
    return outputs_by_job
