"""The messages of a job, counted by running its program on symbolic shares, without TensorFlow."""

from __future__ import annotations

from tfe_bench.cluster.jobs import ARGUMENT_ERRORS, Context, load_program
from tfe_bench.cluster.requests import SubmittedJob
from tfe_bench.errors import TfeBenchError
from tfe_bench.protocols.session.counting import CostParty, Private
from tfe_bench.protocols.session.message_graph import MessageGraph


def count_job_messages(job: SubmittedJob) -> MessageGraph | None:
    """Count the messages of one run of a job.

    Returns:
        None if its program cannot be counted: it uses stored values, works on elements, or calls a
        protocol that does not declare its cost.
    """
    graph = MessageGraph()
    party = CostParty(expected=True, graph=graph)
    try:
        program = load_program(job.program)
        inputs = {
            spec.name: Private(spec.shape, spec.fractional_bits, limbs=spec.limbs).to_symbolic()
            for spec in job.inputs
        }
        context = Context(
            party,
            job.parameters,
            inputs,
            lambda fraction, text: None,
            request=program.admit(job.parameters, job.inputs),
        )
        with party.active():
            program.run(context)
    except (TfeBenchError, *ARGUMENT_ERRORS):
        return None
    return graph if graph.is_complete else None
