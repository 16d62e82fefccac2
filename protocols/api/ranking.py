"""Extremes, sorting and order statistics of private tensors, by TensorFlow's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands
from tfe_bench.protocols.order import extremes, order_statistics
from tfe_bench.protocols.order import sort as sorting
from tfe_bench.protocols.ring import checks, compare, convert, relational, shapes
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import current_party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Axes, Operand

EXACT_BITS = compare.EXACT_BITS


def _select_elementwise_extreme(
    operation: relational.Comparison[Shared], x: Operand, y: Operand, bits: int
) -> Shared:
    name = operation.__name__
    bits = operands.check_comparison_width(name, bits)
    x, y = operands.share_operand_pair(name, x, y)
    return operation(
        operands.require_party_in_graph(name), operands.check_private_operand(name, x), y, bits
    )


def maximum(x: Operand, y: Operand, bits: int = EXACT_BITS) -> Shared:
    """Compute max(x, y) elementwise, broadcast, exact; one of them may be public.

    Args:
        bits: right while |x - y| < 2^(bits-1) ring units.

    Rounds and bits: those of relational.maximum.
    """
    return _select_elementwise_extreme(relational.maximum, x, y, bits)


def minimum(x: Operand, y: Operand, bits: int = EXACT_BITS) -> Shared:
    """Compute min(x, y); as `maximum`."""
    return _select_elementwise_extreme(relational.minimum, x, y, bits)


@operands.check_arguments(max_bits=64, in_graph=False)
def clip_by_value(
    x: Shared, clip_value_min: Operand, clip_value_max: Operand, bits: int = EXACT_BITS
) -> Shared:
    """Compute min(max(x, clip_value_min), clip_value_max), exact; the limits may be public.

    Rounds and bits: those of `maximum` twice.
    """
    limits = (clip_value_min, clip_value_max)
    public_limits = [
        None if operands.is_private(v) else operands.static_public_operand("clip_by_value", v)
        for v in limits
    ]
    low, high = public_limits
    if low is not None and high is not None:
        operands.broadcast_shapes("clip_by_value", low.shape, high.shape)
        if np.any(low > high):
            raise UsageError(
                "clip_by_value expects clip_value_min <= clip_value_max. Received: a larger "
                "clip_value_min. Swap them.",
                code="invalid-range",
                operation="clip_by_value",
                expected="clip_value_min <= clip_value_max",
            )
    for limit in limits:
        operands.share_operand_pair("clip_by_value", x, limit)
    return minimum(maximum(x, clip_value_min, bits), clip_value_max, bits)


@operands.check_arguments(max_bits=64, known=True)
def sign(x: Shared, bits: int = EXACT_BITS) -> Shared:
    """Return -1, 0 or 1 at x's scale: [x > 0] - [x < 0], both compared at once.

    Rounds: those of `less`, and 1. Bits sent: those of `less` and of `cast`, twice.
    """
    shape = operands.sizes("sign", x)
    n = operands.count_elements(shape)
    negated_and_value = x.map(
        lambda a: tensor_ops.stack([tensor_ops.reshape(-a, [n]), tensor_ops.reshape(a, [n])])
    )
    signs = relational.is_negative(current_party(), negated_and_value, bits)
    ones = convert.b2a(current_party(), signs, [2, n])
    one = 1 << x.fractional_bits
    result = ones.map(lambda a: tensor_ops.reshape(a[0] - a[1], shape) * one)
    return replace(result, fractional_bits=x.fractional_bits)


def _flatten_reduced_axes(
    operation: str, x: Shared, axis: Axes
) -> tuple[Shared, list[int], list[int]]:
    """Return x with the given axes as its last one, the sizes of the others, and all axes."""
    x = operands.check_private_operand(operation, x)
    sizes = operands.sizes(operation, x)
    axes = checks.normalize_axes(operation, axis, len(sizes))
    kept_axes = [i for i in range(len(sizes)) if i not in axes]
    width = operands.count_elements([sizes[i] for i in axes])
    if width == 0:
        raise UsageError(
            f"{operation} expects at least one value along the axis. Received: shape {sizes}.",
            code="empty-input",
            operation=operation,
            received=sizes,
        )
    kept_sizes = [sizes[i] for i in kept_axes]
    order = [*kept_axes, *axes]
    rows = x.map(lambda a: tensor_ops.reshape(tensor_ops.transpose(a, order), [*kept_sizes, width]))
    return rows, kept_sizes, axes


def _reduce_extreme_over_axes(
    operation: str,
    function: Callable[..., Shared],
    x: Shared,
    axis: Axes,
    keepdims: bool,
    bits: int,
) -> Shared:
    bits = operands.check_comparison_width(operation, bits)
    rows, kept_sizes, axes = _flatten_reduced_axes(operation, x, axis)
    reduced = function(operands.require_party_in_graph(operation), rows, -1, bits=bits)
    if keepdims:
        for i in axes:
            kept_sizes.insert(i, 1)
    return shapes.reshape(reduced, kept_sizes)


def reduce_max(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int = EXACT_BITS
) -> Shared:
    """Return the largest value over one axis, several or all (None), exact.

    Args:
        bits: right while differences are below 2^(bits-1) ring units.

    Rounds and bits: those of extremes.reduce_max.
    """
    return _reduce_extreme_over_axes("reduce_max", extremes.reduce_max, x, axis, keepdims, bits)


def reduce_min(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int = EXACT_BITS
) -> Shared:
    """Return the smallest value; as `reduce_max`."""
    return _reduce_extreme_over_axes("reduce_min", extremes.reduce_min, x, axis, keepdims, bits)


def argmax(x: Shared, axis: int = 0, bits: int = EXACT_BITS) -> Shared:
    """Return the index of the first largest value along an axis, an integer (0 fractional bits).

    Rounds and bits: those of extremes.argmax.
    """
    return _reduce_extreme_over_axes("argmax", extremes.argmax, x, [axis], False, bits)


def argmin(x: Shared, axis: int = 0, bits: int = EXACT_BITS) -> Shared:
    """Return the index of the first smallest value; as `argmax`."""
    return _reduce_extreme_over_axes("argmin", extremes.argmin, x, [axis], False, bits)


# ---- order: between graphs


def sort(x: Shared, axis: int = -1, direction: str = "ASCENDING") -> Shared:
    """Sort the values along an axis, as tf.sort. Call it between graphs.

    Rounds and bits: those of sort.sort, which chooses among its algorithms.
    """
    if direction not in ("ASCENDING", "DESCENDING"):
        raise UsageError(
            f'sort expects the direction "ASCENDING" or "DESCENDING". Received: {direction!r}.',
            code="unknown-name",
            operation="sort",
            received=direction,
            expected="ASCENDING, DESCENDING",
        )
    party = operands.require_party_between_graphs("sort")
    rank = checks.check_private_rank_is_known("sort", operands.check_private_operand("sort", x))
    rows, kept_sizes, (sort_axis,) = _flatten_reduced_axes(
        "sort", x, [axis] if rank else _raise_scalar_has_no_axis("sort", x)
    )
    flat = rows.map(
        lambda a: tensor_ops.reshape(a, [operands.count_elements(kept_sizes), a.shape[-1]])
    )
    sorted_keys = sorting.sort(party, flat, descending=direction == "DESCENDING").keys
    order = list(range(rank - 1))
    order.insert(sort_axis, rank - 1)
    return sorted_keys.map(
        lambda a: tensor_ops.transpose(tensor_ops.reshape(a, [*kept_sizes, a.shape[-1]]), order)
    )


def _raise_scalar_has_no_axis(operation: str, x: Shared) -> NoReturn:
    raise UsageError(
        f"{operation} expects a tensor with an axis. Received: {x!r}. Reshape it.",
        code="rank-mismatch",
        operation=operation,
        received=repr(x),
    )


def top_k(x: Shared, k: int = 1) -> tuple[Shared, Shared]:
    """Return the k largest along the last axis in descending order, and their positions.

    As tf.math.top_k. Call it between graphs. Rounds and bits: those of sort.sort.
    """
    party = operands.require_party_between_graphs("top_k")
    return order_statistics.top_k(
        party,
        operands.check_private_operand("top_k", x),
        operands.check_integer_argument("top_k", "k", k),
    )


def median(x: Shared, axis: Axes = None) -> Shared:
    """Return the middle value over one axis, several or all (None).

    For an even number it is the mean of the two middle values, error below 1 ulp. Call it between
    graphs. Rounds and bits: those of sort.sort, and 1 round more for the mean.
    """
    return _quantile_over_axes("median", x, 0.5, axis)


def quantile(x: Shared, q: float, axis: Axes = None) -> Shared:
    """Return the q-quantile over one axis, several or all (None), as numpy.quantile.

    Args:
        q: public, 0 to 1.

    Call it between graphs. Error: order_statistics.quantile. Rounds and bits: as `median`.
    """
    if operands.is_private(q) or isinstance(q, bool) or not isinstance(q, (int, float, np.number)):
        raise UsageError(
            f"quantile expects a public number q from 0 to 1. Received: {type(q).__name__}.",
            code="wrong-type",
            operation="quantile",
            received=type(q).__name__,
            expected="0 to 1",
        )
    return _quantile_over_axes("quantile", x, float(q), axis)


def _quantile_over_axes(operation: str, x: Shared, q: float, axis: Axes) -> Shared:
    party = operands.require_party_between_graphs(operation)
    rows, _, _ = _flatten_reduced_axes(operation, x, axis)
    return order_statistics.quantile(party, rows, q)
