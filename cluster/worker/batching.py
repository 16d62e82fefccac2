"""Waiting jobs that go with the one whose turn it is: one session and one graph for all of them.

A program says which of its jobs may (`Program.together`), and takes what they bring as one batch.
Party 0 offers the jobs that wait in its queue.  One goes along if all three workers have it,
complete and with the same digest, permit it now, and find its shares in order.  The others keep
their turn.

Each job's inputs come from its own client and its outputs go there alone.  What a client learns of
the others is that there were some: their number of samples, by the figures of the whole batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfe_bench.cluster import json_limits
from tfe_bench.cluster.jobs import Program
from tfe_bench.errors import ProtocolError

if TYPE_CHECKING:
    from tfe_bench.cluster.worker.pending import Job
    from tfe_bench.protocols.session.party import Party
    from tfe_bench.protocols.session.sharing import Shared

# Samples of one batch: what a client alone may send at once.
MOST_SAMPLES = 4096
_MOST_BYTES = 1 << 20


def count_samples(program: Program, job: Job) -> int:
    """How many samples a job brings if it may go with others, else 0."""
    if program.together is None or any(spec.limbs != 1 or spec.late for spec in job.inputs):
        return 0
    return program.together(job.header["parameters"], job.inputs)


def is_same_computation(a: Job, b: Job) -> bool:
    """Whether two jobs are one computation on different samples."""

    def computation_key(job: Job) -> tuple[object, ...]:
        return (
            job.header["program"],
            job.header["parameters"],
            [(i.name, i.shape[1:], i.fractional_bits, i.limbs) for i in job.inputs],
            job.shaping,
            job.warm_up_bytes,
        )

    return computation_key(a) == computation_key(b)


def select_jobs(program: Program, lead: Job, waiting: Sequence[Job]) -> list[Job]:
    """The waiting jobs that go with one: in their order, as long as there is room."""
    room = MOST_SAMPLES - count_samples(program, lead)
    selected: list[Job] = []
    for job in waiting:
        count = count_samples(program, job)
        if 0 < count <= room and is_same_computation(lead, job):
            selected.append(job)
            room -= count
    return selected


def exchange_offer(party: Party, jobs: Sequence[Job]) -> list[tuple[str, str]]:
    """What party 0 offers, at all three: names and digests."""
    offer = json.dumps([[job.name, job.digest] for job in jobs]).encode()
    # messages of an exchange are of one length, which all three know
    size = int.from_bytes(party.exchange(len(offer).to_bytes(8, "little"))[0], "little")
    if size > _MOST_BYTES:
        raise ProtocolError("Party 0's offer is malformed.")
    reply = party.exchange(offer.ljust(size)[:size])[0]
    try:
        pairs = json_limits.parse_json(reply, "Party 0's offer", _MOST_BYTES)
        rows = [(str(name), str(digest)) for name, digest in pairs]
    except (ValueError, TypeError) as error:
        raise ProtocolError("Party 0's offer is malformed.") from error
    return rows


def agree_on_jobs(party: Party, own_votes: Sequence[bool]) -> list[bool]:
    """For each job, whether all three workers said so."""
    votes = party.exchange(bytes(own_votes))
    if any(len(vote) != len(own_votes) for vote in votes):
        raise ProtocolError("The workers do not speak of the same jobs.")
    return [all(vote[i] for vote in votes) for i in range(len(own_votes))]


def merge_inputs(inputs: Sequence[Mapping[str, Shared]]) -> tuple[dict[str, Shared], list[int]]:
    """The samples of all jobs one after the other, and how many each brought."""
    from tfe_bench.protocols.ring import shapes

    counts = [int(next(iter(job_inputs.values())).shape[0]) for job_inputs in inputs]
    return {
        name: shapes.concat([job_inputs[name] for job_inputs in inputs], 0) for name in inputs[0]
    }, counts


def split_outputs(outputs: Mapping[str, Shared], counts: Sequence[int]) -> list[dict[str, Shared]]:
    """What of a batch's outputs belongs to each job."""
    outputs_by_job: list[dict[str, Shared]] = []
    begin = 0
    for count in counts:
        end = begin + count
        outputs_by_job.append(
            {k: x.map(lambda a, b=begin, e=end: a[b:e]) for k, x in outputs.items()}
        )
        begin = end
    return outputs_by_job
