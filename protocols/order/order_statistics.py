"""Order statistics of rows (largest k, median, quantiles) by sorting each row.

Call these functions between graph calls, as `sort`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.order.sort import SortResult, sort
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.ring.checks import (
    check_known_shape,
    check_private_64bit_tensor,
    is_integer_between,
)
from tfe_bench.protocols.ring.truncation import truncate
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of the weight that interpolates between two neighbors.
WEIGHT_BITS = 16


def top_k(
    party: Party, x: Shared, k: int = 1, *, algorithm: str = "auto", profile: str = "local"
) -> tuple[Shared, Shared]:
    """Return the k largest of each row in descending order, and their positions, as tf.math.top_k.

    Args:
        x: [..., n]; among equal values the one with the lower position comes first.
        k: 1 to n.

    Rounds and bits: those of `sort`.
    Raises:
        UsageError: k is out of range, or a row has no values.
    """
    shape = _check_rows_to_sort("top_k", x)
    if not is_integer_between(k, 1, shape[-1]):
        raise UsageError(
            f"top_k expects k from 1 to {shape[-1]}. Received: {k!r}.",
            code="number-out-of-range",
            operation="top_k",
            received=k,
            expected=f"1 to {shape[-1]}",
        )
    sorted_rows = _sort_rows_for_statistics(party, x, shape, True, algorithm, profile)
    result = [*shape[:-1], k]
    return tuple(_take_first(part, k, result) for part in (sorted_rows.keys, sorted_rows.indices))  # type: ignore[return-value]


def median(party: Party, x: Shared, *, algorithm: str = "auto", profile: str = "local") -> Shared:
    """Return the middle value of each row [..., n]; for even n the mean of the two middle values.

    Error: below one ulp. Rounds and bits: those of `sort`, and of one truncation for even n.
    """
    return _row_quantile("median", party, x, 0.5, algorithm, profile)


def quantile(
    party: Party, x: Shared, q: float, *, algorithm: str = "auto", profile: str = "local"
) -> Shared:
    """Return the q-quantile of each row [..., n], linearly interpolated as by numpy.quantile.

    Args:
        q: public, 0 to 1; rounded so that the position between two neighbors is a multiple of
            2^-16.

    Error: below 1 ulp, and 2^-17 of the distance between the two neighbors of the position. That
    distance must be less than 2^(62 - b) ring units for the b <= 16 bits of the position (b = 1: a
    median).
    Rounds and bits: those of `sort`, and of one truncation if the position is between two values.
    Raises:
        UsageError: q is out of range, or a row has no values.
    """
    return _row_quantile("quantile", party, x, q, algorithm, profile)


def _row_quantile(
    name: str, party: Party, x: Shared, q: float, algorithm: str, profile: str
) -> Shared:
    shape = _check_rows_to_sort(name, x)
    if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 <= q <= 1:
        raise UsageError(
            f"quantile expects q from 0 to 1. Received: {q!r}.",
            code="number-out-of-range",
            operation="quantile",
            received=q,
            expected="0 to 1",
        )
    fractional_rank = q * (shape[-1] - 1)
    below = min(math.floor(fractional_rank), shape[-1] - 1)
    weight = round((fractional_rank - below) * (1 << WEIGHT_BITS))
    keys = _sort_rows_for_statistics(party, x, shape, False, algorithm, profile).keys
    flat = keys.map(lambda a: tensor_ops.reshape(a, [-1, shape[-1]]))
    left = flat.map(lambda a: tensor_ops.reshape(a[:, below], shape[:-1]))
    if weight == 0:
        return left
    # Fewer bits leave more room: the truncation takes products below 2^62.
    bits = WEIGHT_BITS
    while weight % 2 == 0 and bits > 1:
        weight, bits = weight // 2, bits - 1
    right = flat.map(lambda a: tensor_ops.reshape(a[:, below + 1], shape[:-1]))

    def interpolate_quantile_neighbors(a: Shared, b: Shared) -> Shared:
        part = arithmetic.mul_public(arithmetic.sub(b, a), np.int64(weight), bits)
        return arithmetic.add(a, truncate(party, part, bits))

    graph = party.cached_function(
        ("quantile", tuple(shape), weight, bits), lambda: interpolate_quantile_neighbors
    )
    result: Shared = graph(left, right)
    return result


def _check_rows_to_sort(name: str, x: Any) -> list[int]:
    shape = check_known_shape(name, check_private_64bit_tensor(name, x))
    if not shape or shape[-1] == 0:
        raise UsageError(
            f"{name} expects [..., n] with at least one value. Received: shape {shape}.",
            code="empty-input",
            operation=name,
            received=shape,
        )
    return shape


def _sort_rows_for_statistics(
    party: Party, x: Shared, shape: list[int], descending: bool, algorithm: str, profile: str
) -> SortResult:
    rows = x.map(lambda a: tensor_ops.reshape(a, [-1, shape[-1]]))
    return sort(party, rows, descending=descending, algorithm=algorithm, profile=profile)


def _take_first(x: Shared, k: int, shape: list[int]) -> Shared:
    return x.map(lambda a: tensor_ops.reshape(a[:, :k], shape))
