"""A job's results: this party's shares of them, which the client alone reconstructs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from tfe_bench.cluster import seeds, wire
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared


def count_held_result_bytes(party: int, outputs: Mapping[str, Shared]) -> int:
    """Return the bytes of results that this party holds until their client has received them."""
    return sum(
        8 * math.prod(getattr(value, _FIELDS[_result_party_role(party, value)][0]).shape)
        for value in outputs.values()
        if _result_party_role(party, value) != 2  # whose part is compared, not sent
    )


def encode_result_share(party: int, name: str, value: Shared) -> list[bytes]:
    """Return the messages with this party's share of a result, which the client reconstructs."""
    role = _result_party_role(party, value)
    fields = [np.asarray(getattr(value, f), np.int64, order="C") for f in _FIELDS[role]]
    shape = list(fields[0].shape if value.limbs == 1 else fields[0].shape[:-1])
    part, array, digest = "m", fields[0], ""
    if role == 0:  # the client only needs their sum
        part, array = "lam", seeds.add_ring_words(fields[0], fields[1], value.limbs)
    elif role == 2:  # the copy of m is compared, not sent twice
        part, digest = "", hashlib.sha256(array.tobytes()).hexdigest()
    description = wire.event(
        "result",
        name=name,
        shape=shape,
        fractional_bits=value.fractional_bits,
        limbs=value.limbs,
        part=part,
        digest=digest,
    )
    return [
        description,
        *(wire.chunk_stream_data(array.reshape(-1).data.cast("B")) if part else ()),
    ]


# The fields of a value that each role holds.
_FIELDS = (("l1", "l2"), ("m",), ("m",))


def _result_party_role(party: int, value: object) -> int:
    """Return a party's role for a result.

    Raises:
        UsageError: it cannot be revealed: bits, or a value of a small ring.
    """
    shared = value if isinstance(value, Shared) else None
    if shared is None or shared.limbs not in (1, 2) or shared.ring_bits != 64 * shared.limbs:
        received = repr(value) if shared is not None else type(value).__name__
        raise UsageError(
            f"A program returns values over Z_2^64 or Z_2^128. Received: {received}.",
            code="unsupported-ring",
            received=received,
            expected="Z_2^64 or Z_2^128",
        )
    return (party - shared.dealer) % 3
