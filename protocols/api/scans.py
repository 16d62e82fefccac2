"""Products and running extremes along an axis, in steps that double the combined length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tfe_bench.protocols.api import operands
from tfe_bench.protocols.api.operators import multiply
from tfe_bench.protocols.ring import arithmetic, checks, compare, relational, shapes
from tfe_bench.protocols.session import slices, tensor_ops
from tfe_bench.protocols.session.party import current_party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Axes


def _share_public_ones_like(template: Shared, shape: list[int]) -> Shared:
    ring = np.broadcast_to(np.int64(1 << template.fractional_bits), shape)
    return replace(
        arithmetic.share_public(template, ring), fractional_bits=template.fractional_bits
    )


@operands.check_arguments(known=True, in_graph=False)
def reduce_prod(x: Shared, axis: Axes = None, keepdims: bool = False) -> Shared:
    """Return the product over one axis, several or all (None), at x's scale; of no values 1.

    Each intermediate product must be below 2^62 before it is truncated; integers: modulo 2^64.

    Error: of n values less than n M ulp if no product of some of them exceeds M >= 1; none for
    integers.
    Rounds: 2 (integers: 1) for each binary digit of n - 1. Bits sent: those of n - 1 `multiply`.
    """
    sizes = operands.sizes("reduce_prod", x)
    axes = checks.normalize_axes("reduce_prod", axis, len(sizes))
    kept_axes = [i for i in range(len(sizes)) if i not in axes]
    kept_sizes = [sizes[i] for i in kept_axes]
    count = operands.count_elements([sizes[i] for i in axes])
    transposed = shapes.transpose(x, [*axes, *kept_axes])
    rows = shapes.reshape(transposed, [count, *kept_sizes])
    if count == 0:
        rows, count = _share_public_ones_like(x, [1, *kept_sizes]), 1
    while count > 1:
        half = count // 2
        low, high, odd = shapes.split(rows, [half, half, count % 2])
        rows = shapes.concat([multiply(low, high), odd], 0)
        count -= half
    if keepdims:
        for i in axes:
            kept_sizes.insert(i, 1)
    return shapes.reshape(rows, kept_sizes)


def _scan_operand_axis(
    operation: str,
    x: Shared,
    axis: int,
    reverse: bool,
    combine: Callable[[Shared, Shared], Shared],
) -> tuple[Shared, int]:
    """Return running results along an axis, which comes first, and the axis.

    Source: Sklansky, Conditional-sum addition logic, 1960: in step s each second block of 2^s
    values is combined with the last value of the block before it.
    """
    sizes = operands.sizes(operation, x)
    scan_axis = checks.normalize_axis(operation, axis, len(sizes))
    order = [scan_axis, *(i for i in range(len(sizes)) if i != scan_axis)]
    rows = shapes.transpose(x, order)
    count = sizes[scan_axis]
    rows = shapes.reverse(rows, 0) if reverse else rows
    if not operands.count_elements(sizes):
        return rows, scan_axis
    places, width = np.arange(count), 1
    while width < count:
        later = places[places // width % 2 == 1]
        previous_ends = shapes.gather(rows, later // width * width - 1)
        combined = combine(previous_ends, shapes.gather(rows, later))
        source = places.copy()
        source[later] = count + np.arange(len(later))
        rows = shapes.gather(shapes.concat([rows, combined], 0), source)
        width *= 2
    return rows, scan_axis


def _scan_in_slices(
    operation: str, scan: Callable[[Shared, int], Shared], x: Shared, axis: int
) -> Shared:
    """Return scan(x, axis), in slices of rows if the axis is the last one of several."""
    rank = len(operands.sizes(operation, x))
    if rank < 2 or checks.normalize_axis(operation, axis, rank) != rank - 1:
        return scan(x, axis)
    return slices.map_slices(current_party(), lambda _, part: scan(part, -1), [x], row_axes=1)


def _restore_axis(rows: Shared, scan_axis: int, reverse: bool) -> Shared:
    rows = shapes.reverse(rows, 0) if reverse else rows
    rank = len(rows.shape)
    return shapes.transpose(rows, [*range(1, scan_axis + 1), 0, *range(scan_axis + 1, rank)])


@operands.check_arguments(known=True, in_graph=False)
def cumprod(x: Shared, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Shared:
    """Return running products along an axis, as tf.math.cumprod.

    Args:
        exclusive: True: without the value itself, so that the first is 1.
        reverse: True: from the end.

    Error and range: as `reduce_prod`. Rounds: 2 (integers: 1) for each binary digit of n - 1. Bits
    sent: those of n/2 `multiply` for each of these digits.
    """

    def multiply_scanned(x: Shared, axis: int) -> Shared:
        rows, scan_axis = _scan_operand_axis("cumprod", x, axis, reverse, multiply)
        count = int(rows.shape[0])
        if exclusive and count:
            first = _share_public_ones_like(rows, [1, *rows.shape.as_list()[1:]])
            rows = shapes.concat(
                [first, rows.map(lambda a: tensor_ops.strided_slice(a, np.s_[: count - 1]))], 0
            )
        return _restore_axis(rows, scan_axis, reverse)

    return _scan_in_slices("cumprod", multiply_scanned, x, axis)


@operands.check_arguments(max_bits=64, known=True)
def cummax(
    x: Shared, axis: int = 0, reverse: bool = False, bits: int = compare.EXACT_BITS
) -> Shared:
    """Return the largest value so far along an axis, exact (numpy.maximum.accumulate).

    Args:
        reverse: True: from the end.
        bits: right while differences along the axis are below 2^(bits-1) ring units.

    Rounds: those of `maximum` for each binary digit of n - 1. Bits sent: those of n/2 `maximum` for
    each.
    """

    def take_larger_scanned(a: Shared, b: Shared) -> Shared:
        return relational.maximum(current_party(), a, b, bits)

    def find_running_maximum(x: Shared, axis: int) -> Shared:
        rows, scan_axis = _scan_operand_axis("cummax", x, axis, reverse, take_larger_scanned)
        return _restore_axis(rows, scan_axis, reverse)

    return _scan_in_slices("cummax", find_running_maximum, x, axis)
