"""A job's inputs: what came from its client, compared with the peers, as private tensors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tfe_bench.cluster import holders, seeds
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.worker.host import DEALER
from tfe_bench.cluster.worker.late import Inputs
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def tensors(party: Party, job: Job) -> Inputs:
    """A job's inputs as private tensors.

    Raises:
        ProtocolError: its client gave shares that do not fit each other; only once all of them
            were looked at, so that the workers stay in step.
    """
    import tensorflow as tf

    role = (party.index - DEALER) % 3
    wrong: list[ProtocolError] = []

    def shared(spec: InputSpec, seed: dict[str, bytes], masked: bytearray) -> Shared:
        try:
            check_copies(party, spec.name, seed, masked)
        except ProtocolError as error:
            if spec.late:
                raise
            wrong.append(error)
        parts: dict[str, Any] = {"m": None, "l1": None, "l2": None}
        for name, value in seed.items():
            words = seeds.expand(value, spec.words)
            parts[name] = tf.constant(words.reshape(spec.word_shape), tf.int64)
            del words
        if role != 0:
            words = np.frombuffer(masked, np.int64)
            parts["m"] = tf.constant(words.reshape(spec.word_shape), tf.int64)
            del words, masked
        return Shared(
            **parts,
            dealer=DEALER,
            fractional_bits=spec.fractional_bits,
            limbs=spec.limbs,
        )

    def arrived(spec: InputSpec, seed: dict[str, bytes]) -> Shared:
        return shared(spec, seed, job.arrivals.take(spec.name))

    inputs = Inputs()
    for i, (spec, seed) in enumerate(zip(job.inputs, job.seeds, strict=True)):
        if spec.late:
            inputs.expect(spec.name, functools.partial(arrived, spec, seed))
            continue
        # Every buffer goes as soon as it is a tensor: inputs may be large models.
        masked, job.masked[i] = job.masked[i], bytearray()
        inputs[spec.name] = shared(spec, seed, masked)
        del masked
    job.masked.clear()
    job.seeds.clear()
    if wrong:
        raise wrong[0]
    return inputs


def check_copies(party: Party, name: str, seed: dict[str, bytes], masked: bytearray) -> None:
    """The two holders of each part of a client's input hold the same (clients may be malicious).

    Raises:
        ProtocolError: they differ.
    """
    peer = holders.differing(party, {**seed, "m": masked})
    if peer is not None:
        raise ProtocolError(
            f"The client gave parties {party.index} and {peer} shares of {name!r} that do not "
            "fit each other. The job is refused: such shares could turn outputs into masks."
        )
