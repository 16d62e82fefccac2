"""The k largest, median and quantiles: what a sort of each row gives.

Called between graph calls, as `sort` is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order.sort import SortResult, sort
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.ring.checks import check_known_shape, check_ring, is_integer_between
from tfe_bench.protocols.ring.truncation import truncate
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Weights of an interpolation between two neighbors.
WEIGHT_BITS = 16


def top_k(
    party: Party, x: Shared, k: int = 1, *, algorithm: str = "auto", profile: str = "local"
) -> tuple[Shared, Shared]:
    """(the k largest of each row in falling order, their positions), as tf.math.top_k.

    Args:
        x: [..., n]; of equal values the one with the lower position comes first.
        k: 1 to n.

    Rounds and bits: those of `sort`.
    Raises:
        UsageError: k out of range, no values.
    """
    shape = _check_rows("top_k", x)
    if not is_integer_between(k, 1, shape[-1]):
        raise UsageError(f"top_k wants k from 1 to {shape[-1]}. Received: {k!r}.")
    sorted_rows = _sort_rows(party, x, shape, True, algorithm, profile)
    result = [*shape[:-1], k]
    return tuple(_take_first(part, k, result) for part in (sorted_rows.keys, sorted_rows.indices))  # type: ignore[return-value]


def median(party: Party, x: Shared, *, algorithm: str = "auto", profile: str = "local") -> Shared:
    """The middle value of each row [..., n]; of an even number the mean of the middle two.

    Error below one ulp.  Rounds and bits: those of `sort`, and of one truncation for even n.
    """
    return _row_quantile("median", party, x, 0.5, algorithm, profile)


def quantile(
    party: Party, x: Shared, q: float, *, algorithm: str = "auto", profile: str = "local"
) -> Shared:
    """The q-quantile of each row [..., n], linearly interpolated as numpy.quantile does.

    Args:
        q: public, 0 to 1; rounded so that the place between two neighbors is a multiple of 2^-16.

    Error: below 1 ulp, and 2^-17 of the distance between the two neighbors of the place, which
    must be less than 2^(62 - b) ring units for the b <= 16 bits of that place (b = 1: a median).
    Rounds and bits: those of `sort`, and of one truncation where the place is between two values.
    Raises:
        UsageError: q out of range, no values.
    """
    return _row_quantile("quantile", party, x, q, algorithm, profile)


def _row_quantile(
    name: str, party: Party, x: Shared, q: float, algorithm: str, profile: str
) -> Shared:
    shape = _check_rows(name, x)
    if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 <= q <= 1:
        raise UsageError(f"quantile wants q from 0 to 1. Received: {q!r}.")
    fractional_rank = q * (shape[-1] - 1)
    below = min(math.floor(fractional_rank), shape[-1] - 1)
    weight = round((fractional_rank - below) * (1 << WEIGHT_BITS))
    keys = _sort_rows(party, x, shape, False, algorithm, profile).keys
    flat = keys.map(lambda a: tensor_ops.reshape(a, [-1, shape[-1]]))
    left = flat.map(lambda a: tensor_ops.reshape(a[:, below], shape[:-1]))
    if weight == 0:
        return left
    # Fewer bits leave more room: the truncation takes products below 2^62.
    bits = WEIGHT_BITS
    while weight % 2 == 0 and bits > 1:
        weight, bits = weight // 2, bits - 1
    right = flat.map(lambda a: tensor_ops.reshape(a[:, below + 1], shape[:-1]))

    def interpolate_pair(a: Shared, b: Shared) -> Shared:
        part = arithmetic.mul_public(arithmetic.sub(b, a), np.int64(weight), bits)
        return arithmetic.add(a, truncate(party, part, bits))

    graph = party.cached_function(
        ("quantile", tuple(shape), weight, bits), lambda: interpolate_pair
    )
    result: Shared = graph(left, right)
    return result


def _check_rows(name: str, x: Any) -> list[int]:
    shape = check_known_shape(name, check_ring(name, x))
    if not shape or shape[-1] == 0:
        raise UsageError(f"{name} wants [..., n] with values. Received: shape {shape}.")
    return shape


def _sort_rows(
    party: Party, x: Shared, shape: list[int], descending: bool, algorithm: str, profile: str
) -> SortResult:
    rows = x.map(lambda a: tensor_ops.reshape(a, [-1, shape[-1]]))
    return sort(party, rows, descending=descending, algorithm=algorithm, profile=profile)


def _take_first(x: Shared, k: int, shape: list[int]) -> Shared:
    return x.map(lambda a: tensor_ops.reshape(a[:, :k], shape))
