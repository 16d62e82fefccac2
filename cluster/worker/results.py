"""A job's results: this party's shares of them, which the client alone reconstructs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from tfe_bench.cluster import wire
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared


def count_held_result_bytes(party: int, outputs: Mapping[str, Shared]) -> int:
    """Return the bytes of results that this party holds until their client has received them."""
    return sum(
        8 * math.prod(getattr(value, wire.RESULT_PARTS[_find_result_role(party, value)][0]).shape)
        for value in outputs.values()
    )


def encode_result_share(party: int, name: str, value: Shared) -> list[bytes]:
    """Return the messages with this party's share of a result, which the client reconstructs.

    A party sends one of the two parts that it holds, and a SHA-256 digest of the other one.
    """
    part, compared_part = wire.RESULT_PARTS[_find_result_role(party, value)]
    words, compared_words = (
        np.asarray(getattr(value, p), np.int64, order="C") for p in (part, compared_part)
    )
    description = wire.event(
        "result",
        name=name,
        shape=list(words.shape if value.limbs == 1 else words.shape[:-1]),
        fractional_bits=value.fractional_bits,
        limbs=value.limbs,
        part=part,
        digest=hashlib.sha256(compared_words.reshape(-1).data).hexdigest(),
    )
    return [description, *wire.chunk_stream_data(words.reshape(-1).data.cast("B"))]


def _find_result_role(party: int, value: object) -> int:
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
