"""Norms and moments of private reals, and counts of values, by TensorFlow's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands, operators, ranking
from tfe_bench.protocols.api.tensors import reduce_mean
from tfe_bench.protocols.functions import roots
from tfe_bench.protocols.order import extremes, one_hot
from tfe_bench.protocols.ring import (
    arithmetic,
    checks,
    compare,
    reductions,
    shapes,
    truncation,
)
from tfe_bench.protocols.session import slices, tensor_ops
from tfe_bench.protocols.session.party import Party, current_party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Axes, Operand

ORDERS = ("euclidean", 1, 2, math.inf)
# Additional fractional bits of a square; its root has half as many.
_ROOT_BITS = 8
# Most edges to compare: checked before memory is allocated.
MAX_BINS = 1 << 16


def _check_statistics_operand(operation: str, x: Shared) -> Shared:
    x = operands.check_private_operand(operation, x)
    if x.fractional_bits == 0:
        raise UsageError(
            f"{operation} expects fractional bits. Received: {x!r}. Use cast(x, 16).",
            code="unsupported-scale",
            operation=operation,
            received=repr(x),
            expected="fractional bits",
        )
    if 2 * x.fractional_bits > truncation.MAX_DROPPED_BITS:
        raise UsageError(
            f"{operation} expects at most {truncation.MAX_DROPPED_BITS // 2} fractional "
            f"bits. Received: {x!r}. Rescale it: cast(x, 16).",
            code="unsupported-scale",
            operation=operation,
            received=repr(x),
            expected=f"at most {truncation.MAX_DROPPED_BITS // 2}",
        )
    operands.sizes(operation, x)
    return x


def _root_of_squares(operation: str, x: Shared, axes: list[int], keepdims: bool) -> Shared:
    """Compute sqrt(sum x^2) with f + _ROOT_BITS / 2 fractional bits, from exact squares."""
    party = operands.require_party_in_graph(operation)
    total = reductions.reduce_sum(reductions.square(party, x), axes, keepdims)
    root = roots.sqrt(party, replace(total, fractional_bits=_ROOT_BITS))
    return replace(root, fractional_bits=x.fractional_bits + _ROOT_BITS // 2)


@operands.check_arguments("tensor", check=_check_statistics_operand)
def norm(
    tensor: Shared,
    ord: str | float = "euclidean",
    axis: Axes = None,
    keepdims: bool = False,
) -> Shared:
    """Compute the norm of vectors along an axis, or of all values (None), at the tensor's scale.

    Args:
        ord: "euclidean" (for two axes or more the Frobenius norm), 1, 2 or infinity.
        axis: for the orders 1, 2 and infinity one axis, or None.

    Error: relative 2^-20 and 1.1 ulp, for norms below 2^31 ring units (2^15 at 16 fractional bits);
    the orders 1 and infinity are exact.
    Rounds: 11 online, 12 in total; order 1: those of `abs`; infinity: of `abs` and `reduce_max`.
    Raises:
        UsageError: another order or a matrix norm, integers, or more than 24 fractional bits.
    """
    axes = checks.normalize_axes("norm", axis, len(tensor.shape))
    if isinstance(ord, bool) or ord not in ORDERS:
        raise UsageError(
            'norm supports the orders "euclidean", 1, 2 and infinity. Received: '
            f"{ord!r}. Sum powers of abs(x) for others.",
            code="unsupported-argument",
            operation="norm",
            received=ord,
            expected="euclidean, 1, 2, inf",
        )
    if ord != "euclidean" and axis is not None and len(axes) > 1:
        raise UsageError(
            f"norm of the order {ord!r} expects one axis, or None for all values. "
            f"Received: {axes}, which would be a norm of matrices.",
            code="rank-mismatch",
            operation="norm",
            received=axes,
            expected="one axis",
        )
    if ord == 1:
        return reductions.reduce_sum(operators.abs(tensor), axes, keepdims)
    if ord == math.inf:
        return ranking.reduce_max(operators.abs(tensor), axes, keepdims)
    root = _root_of_squares("norm", tensor, axes, keepdims)
    return truncation.truncate(current_party(), root, _ROOT_BITS // 2)


def _center_values_for_variance(
    operation: str, x: Shared, axis: Axes
) -> tuple[Shared, list[int], int]:
    """Return x minus its means, the axes, and the number of values of each mean."""
    x = _check_statistics_operand(operation, x)
    sizes = x.shape.as_list()
    axes = checks.normalize_axes(operation, axis, len(sizes))
    count = operands.count_elements([sizes[i] for i in axes])
    if count == 0:
        raise UsageError(
            f"{operation} expects at least one value. Received: axes {axes} of {x!r}.",
            code="empty-input",
            operation=operation,
            received=f"axes {axes} of {x!r}",
        )
    return arithmetic.sub(x, reduce_mean(x, axes, True)), axes, count


def reduce_variance(x: Shared, axis: Axes = None, keepdims: bool = False) -> Shared:
    """Compute the mean of (x - mean)^2 over one axis, several or all (None), at x's scale.

    Error: 3 ulp, and of the variance count 2^-31, while the sum of squares is below 2^30 and the
    variance below 2^15 at 16 fractional bits (2^62 ring units before the squares are truncated).
    Rounds: 4 online, 5 in total. Bits sent: those of `reduce_mean` twice, and of a `square` without
    its truncation.
    Raises:
        UsageError: integers, no values, or more than 24 fractional bits.
    """
    centered, axes, count = _center_values_for_variance("reduce_variance", x, axis)
    party = operands.require_party_in_graph("reduce_variance")
    total = reductions.reduce_sum(reductions.square(party, centered), axes, keepdims)
    total = truncation.truncate(party, total, centered.fractional_bits)
    return reductions.divide_sum_by_public_counts(party, total, count)


def reduce_std(x: Shared, axis: Axes = None, keepdims: bool = False) -> Shared:
    """Compute the square root of the variance, accurate for small values too.

    Error: relative 2^-19 and 3 ulp; range and errors raised: as `reduce_variance`.
    Rounds: 12 online, 13 in total. Bits sent: those of `reduce_mean`, `square` and `sqrt`.
    """
    centered, axes, count = _center_values_for_variance("reduce_std", x, axis)
    root = _root_of_squares("reduce_std", centered, axes, keepdims)
    ring, bits = operands.encode_public_weight("reduce_std", 1 / math.sqrt(count))
    scaled = arithmetic.mul_public(root, ring, bits)
    return truncation.truncate(
        operands.require_party_in_graph("reduce_std"), scaled, bits + _ROOT_BITS // 2
    )


# ---- counts


def _count_below(
    operation: str, x: Shared, edges: list[int], weights: Shared | None, bits: int
) -> Shared:
    """Sum the weights (None: 1) of the values below each edge, for x [..., n]; [n] in slices."""
    party = operands.require_party_in_graph(operation)

    def sum_below_edges(party: Party, x: Shared, *weights_of_x: Shared) -> Shared:
        *rows, n = x.shape.as_list()
        below_bits = one_hot.compare_edges(party, x, np.array(edges, np.int64), bits)
        if weights_of_x:
            (added,) = weights_of_x
        else:
            one = arithmetic.share_public(x, np.ones([1], np.int64))
            added = shapes.broadcast_to(one, [*rows, n])
        # sum_one_hot_selected sums over a first axis: of [n, edges, rows].
        count, row_count = len(edges), operands.count_elements(rows)
        bits_of = one_hot.move_one_hot_values_first(below_bits, count, row_count, n)
        flat = shapes.transpose(shapes.reshape(added, [row_count, n]), [1, 0])
        repeated_weights = shapes.broadcast_to(shapes.expand_dims(flat, 1), [n, count, row_count])
        summed = shapes.transpose(
            extremes.sum_one_hot_selected(party, bits_of, repeated_weights), [1, 0]
        )
        return shapes.reshape(summed, [*rows, count])

    values = [x] if weights is None else [x, weights]
    if len(x.shape) > 1:
        return sum_below_edges(party, *values)
    return slices.sum_slices(party, sum_below_edges, values)


def _histogram_count_differences(below: Shared) -> Shared:
    """Return differences along the last axis."""
    return arithmetic.sub(
        below.map(lambda a: tensor_ops.strided_slice(a, np.s_[..., 1:])),
        below.map(lambda a: tensor_ops.strided_slice(a, np.s_[..., :-1])),
    )


def bincount(
    arr: Shared,
    weights: Operand | None = None,
    minlength: int | None = None,
    maxlength: int | None = None,
    axis: int | None = None,
    bits: int = compare.EXACT_BITS,
) -> Shared:
    """Count each of 0 .. maxlength - 1 among private integers, as integers; exact.

    Args:
        weights: of arr's shape, private or public: their sums instead of counts, at their scale.
        minlength: None, or at most maxlength, which is the length of the result: the largest value
            stays private.
        maxlength: required, 1 to 65536; negative and larger values are not counted.
        axis: None or 0 for all values, -1 for each row of [..., n].
        bits: right while |arr - j| < 2^(bits-1).

    Rounds: 5 online, 6 in total. Bits sent: for each value those of maxlength + 1 comparisons, and
    for D 128 for each of them.
    """
    arr = operands.check_integer_operand(
        "bincount", arr, "private integers", "Use histogram_fixed_width."
    )
    bits = operands.check_comparison_width("bincount", bits)
    sizes = operands.sizes("bincount", arr)
    expected = f"maxlength from 1 to {MAX_BINS}"
    description = f"{expected}, the length of its result"
    length = operands.check_integer_range("bincount", maxlength, 1, MAX_BINS, description, expected)
    if minlength is not None:
        expected = f"minlength from 0 to {length}"
        description = f"minlength from 0 to maxlength {length}"
        operands.check_integer_range("bincount", minlength, 0, length, description, expected)
    if axis not in (None, 0, -1) or isinstance(axis, bool) or (axis == -1 and not sizes):
        raise UsageError(
            f"bincount expects the axis None, 0 or -1. Received: {axis!r}.",
            code="axis-out-of-range",
            operation="bincount",
            received=axis,
            expected="None, 0 or -1",
        )
    shape = sizes if axis == -1 else [operands.count_elements(sizes)]
    shared_weights: Shared | None = None
    if weights is not None:
        shared_weights = _share_histogram_weights(arr, weights, sizes)
        shared_weights = shapes.reshape(shared_weights, shape)
    below = _count_below(
        "bincount", shapes.reshape(arr, shape), list(range(length + 1)), shared_weights, bits
    )
    return _histogram_count_differences(below)


def _share_histogram_weights(arr: Shared, weights: Operand, sizes: Sequence[int]) -> Shared:
    if operands.is_private(weights):
        shared_weights = operands.check_private_operand("bincount", weights)
        has_shape = (
            shared_weights.shape.as_list() == list(sizes) and shared_weights.dealer == arr.dealer
        )
    else:
        array = operands.static_public_operand("bincount", weights)
        is_real = array is None or array.dtype.kind == "f"
        like = replace(arr, fractional_bits=operands.WEIGHT_BITS if is_real else 0)
        shared_weights = operands.share_operand("bincount", weights, like)
        has_shape = shared_weights.shape.as_list() == list(sizes)
    if not has_shape:
        raise UsageError(
            f"bincount expects weights of the values' shape {list(sizes)}. Received: "
            f"{shared_weights!r}.",
            code="shape-mismatch",
            operation="bincount",
            received=repr(shared_weights),
            expected=list(sizes),
        )
    return shared_weights


@operands.check_arguments("values", max_bits=64, known=True)
def histogram_fixed_width(
    values: Shared,
    value_range: Sequence[float],
    nbins: int = 100,
    bits: int = compare.EXACT_BITS,
) -> Shared:
    """Count values in each of nbins parts of a public range, as integers; exact.

    Args:
        value_range: (low, high); values below or above count in the first or last part.
        nbins: 1 to 65536.
        bits: right while |value - edge| < 2^(bits-1) ring units.

    Part j is floor(nbins (value - low) / (high - low)), in exact arithmetic.
    Rounds: 5 online, 6 in total. Bits sent: for each value those of nbins - 1 comparisons, and for
    D 128 for each of them.
    """
    name = "histogram_fixed_width"
    n = operands.count_elements(operands.sizes(name, values))
    limits = operands.static_public_operand(name, value_range)
    if limits is None or limits.shape != (2,) or not np.all(np.isfinite(limits)):
        raise UsageError(
            f"{name} expects a public range (low, high). Received: {value_range!r}.",
            code="shape-mismatch" if limits is None or limits.shape != (2,) else "not-finite",
            operation=name,
            received=value_range,
            expected="(low, high)",
        )
    low, high = (Fraction(v.item()) for v in limits)
    if not low < high:
        raise UsageError(
            f"{name} expects low < high. Received: {value_range!r}.",
            code="invalid-range",
            operation=name,
            received=value_range,
            expected="low < high",
        )
    expected = f"nbins from 1 to {MAX_BINS}"
    operands.check_integer_range(name, nbins, 1, MAX_BINS, expected, expected)
    steps = [low + (high - low) * j / nbins for j in range(1, nbins)]
    edges = [math.ceil(e * (1 << values.fractional_bits)) for e in steps]
    operands.encode_public(
        name, limits.astype(np.float64), max(values.fractional_bits, 1)
    )  # check only
    total_count = arithmetic.share_public(values, np.array([n], np.int64))
    if not edges:
        return total_count
    flat = replace(shapes.reshape(values, [n]), fractional_bits=0)
    below = _count_below(name, flat, edges, None, bits)
    zero = arithmetic.share_public(values, np.array([0], np.int64))
    return _histogram_count_differences(shapes.concat([zero, below, total_count], 0))
