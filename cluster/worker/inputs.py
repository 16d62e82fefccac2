"""A job's inputs as private tensors, after a comparison of their copies with the peers."""

from __future__ import annotations

import functools

from tfe_bench.cluster import holders, seeds
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.seeds import Ring
from tfe_bench.cluster.worker.host import DEALER
from tfe_bench.cluster.worker.late_inputs import JobInputs
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.session import aligned_buffers
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import MIN_SEEDED_WORDS, Seeded
from tfe_bench.protocols.session.sharing import Shared


def load_job_inputs(party: Party, job: Job) -> JobInputs:
    """Return a job's inputs as private tensors; masks of large ones are expanded on access.

    Raises:
        ProtocolError: the client's shares are inconsistent; raised after the check of all inputs,
            so that the workers stay in step.
    """
    role = (party.index - DEALER) % 3
    failures: list[ProtocolError] = []

    def build_private_input(
        spec: InputSpec, seed: dict[str, bytes], masked: Ring
    ) -> Shared | Seeded:
        try:
            check_input_copies(party, spec.name, seed, masked)
        except ProtocolError as error:
            if spec.late:
                raise
            failures.append(error)
        m = (
            aligned_buffers.view_words_as_tensor(masked.reshape(spec.word_shape))
            if role != 0
            else None
        )
        if spec.limbs == 1 and spec.words >= MIN_SEEDED_WORDS:
            return Seeded.from_seeds(m, seed, spec.shape, DEALER, spec.fractional_bits)
        words = {
            name: aligned_buffers.view_words_as_tensor(
                seeds.expand_seed(value, spec.words).reshape(spec.word_shape)
            )
            for name, value in seed.items()
        }
        parts = (m, words.get("l1"), words.get("l2"))
        return Shared(*parts, DEALER, spec.fractional_bits, spec.limbs)

    def take_late_input(spec: InputSpec, seed: dict[str, bytes]) -> Shared | Seeded:
        return build_private_input(spec, seed, job.late_inputs.take_input(spec.name))

    inputs = JobInputs()
    for i, (spec, seed) in enumerate(zip(job.inputs, job.seeds, strict=True)):
        if spec.late:
            inputs.add_late(spec.name, functools.partial(take_late_input, spec, seed))
            continue
        inputs.add_input(spec.name, build_private_input(spec, seed, job.masked[i]))
    job.masked.clear()
    job.seeds.clear()
    if failures:
        raise failures[0]
    return inputs


def check_input_copies(party: Party, name: str, seed: dict[str, bytes], masked: Ring) -> None:
    """Check that the two holders of each part of an input have equal copies.

    Clients may be malicious.

    Raises:
        ProtocolError: they differ.
    """
    peer = holders.find_differing_peer(party, {**seed, "m": masked.data})
    if peer is not None:
        raise ProtocolError(
            f"The client gave parties {party.index} and {peer} shares of {name!r} that do not "
            "fit each other. The job is refused: such shares could turn outputs into masks.",
            code="inconsistent-shares",
            operation=name,
        )
