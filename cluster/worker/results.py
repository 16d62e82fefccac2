"""A job's results: this party's parts of them, which its client alone puts together."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from tfe_bench.cluster import wire
from tfe_bench.cluster.worker.pending import Job
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared


def held_bytes(party: int, outputs: Mapping[str, Shared]) -> int:
    """What this party keeps of results until their client has taken them."""
    return sum(
        8 * math.prod(getattr(value, part).shape)
        for value in outputs.values()
        for part in _result_parts(party, value)
        if (party - value.dealer) % 3 != 2  # whose part is compared, not sent
    )


def give(party: int, job: Job, name: str, value: Shared) -> None:
    """Sends this party's parts of a result: the client alone puts them together."""
    parts = _result_parts(party, value)
    role = (party - value.dealer) % 3
    arrays = [np.asarray(getattr(value, part), np.int64, order="C") for part in parts]
    shape = list(arrays[0].shape if value.limbs == 1 else arrays[0].shape[:-1])
    digest = ""
    if role == 2:  # the copy of m is compared, not sent twice
        digest = hashlib.sha256(arrays[0].tobytes()).hexdigest()
        arrays = []
    job.events.put(
        wire.event(
            "result",
            name=name,
            shape=shape,
            fractional_bits=value.fractional_bits,
            limbs=value.limbs,
            parts=list(parts) if arrays else [],
            digest=digest,
        )
    )
    for array in arrays:
        for chunk in wire.data(array.reshape(-1).data.cast("B")):
            job.events.put(chunk)


def _result_parts(party: int, value: object) -> tuple[str, ...]:
    """Which parts of a result a party has, as far as a client needs them.

    Raises:
        UsageError: it is nothing that can be revealed: bits, or a value of a small ring.
    """
    shared = value if isinstance(value, Shared) else None
    if shared is None or shared.limbs not in (1, 2) or shared.ring_bits != 64 * shared.limbs:
        shown = repr(value) if shared is not None else type(value).__name__
        raise UsageError(f"A program returns values over Z_2^64 or Z_2^128. Received: {shown}.")
    return ("l1", "l2") if (party - shared.dealer) % 3 == 0 else ("m",)
