"""Products and running extremes along an axis, in steps that double what has been joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tfe_bench.protocols.api import operands as given
from tfe_bench.protocols.api.operators import multiply
from tfe_bench.protocols.ring import arithmetic, checks, compare, relational, shapes
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Axes


def _one(like: Shared, shape: list[int]) -> Shared:
    ring = np.broadcast_to(np.int64(1 << like.fractional_bits), shape)
    return replace(arithmetic.public(like, ring), fractional_bits=like.fractional_bits)


def reduce_prod(x: Shared, axis: Axes = None, keepdims: bool = False) -> Shared:
    """The product over one axis, several or all (None), at x's scale; of no values 1.

    Each product on the way must be below 2^62 before it is truncated; integers: modulo 2^64.

    Error: of n values less than n M ulp where no product of some of them exceeds M >= 1; none for
    integers.
    Rounds: 2 (integers: 1) for each binary digit of n - 1.  Bits sent: those of n - 1 `multiply`.
    """
    x = given.private("reduce_prod", x)
    sizes = given.sizes("reduce_prod", x)
    axes = checks.axes_of("reduce_prod", axis, len(sizes))
    kept = [i for i in range(len(sizes)) if i not in axes]
    rest = [sizes[i] for i in kept]
    count = given.elements([sizes[i] for i in axes])
    moved = shapes.transpose(x, [*axes, *kept])
    rows = shapes.reshape(moved, [count, *rest])
    if count == 0:
        rows, count = _one(x, [1, *rest]), 1
    while count > 1:
        half = count // 2
        low, high, odd = shapes.split(rows, [half, half, count % 2])
        rows = shapes.concat([multiply(low, high), odd], 0)
        count -= half
    if keepdims:
        for i in axes:
            rest.insert(i, 1)
    return shapes.reshape(rows, rest)


def _scanned(
    operation: str,
    x: Shared,
    axis: int,
    reverse: bool,
    joined: Callable[[Shared, Shared], Shared],
) -> tuple[Shared, int]:
    """Running results along an axis, which comes first, and the axis.

    Source: Sklansky, Conditional-sum addition logic, 1960: in step s each second block of 2^s
    values takes the last of the block before it.
    """
    x = given.private(operation, x)
    sizes = given.sizes(operation, x)
    at = checks.axis_of(operation, axis, len(sizes))
    order = [at, *(i for i in range(len(sizes)) if i != at)]
    rows = shapes.transpose(x, order)
    count = sizes[at]
    rows = shapes.reverse(rows, 0) if reverse else rows
    if not given.elements(sizes):
        return rows, at
    places, width = np.arange(count), 1
    while width < count:
        later = places[places // width % 2 == 1]
        before = shapes.gather(rows, later // width * width - 1)
        made = joined(before, shapes.gather(rows, later))
        source = places.copy()
        source[later] = count + np.arange(len(later))
        rows = shapes.gather(shapes.concat([rows, made], 0), source)
        width *= 2
    return rows, at


def _back(rows: Shared, at: int, reverse: bool) -> Shared:
    rows = shapes.reverse(rows, 0) if reverse else rows
    rank = len(rows.shape)
    return shapes.transpose(rows, [*range(1, at + 1), 0, *range(at + 1, rank)])


def cumprod(x: Shared, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Shared:
    """Running products along an axis, as tf.math.cumprod.

    Args:
        exclusive: without the value itself, so that the first is 1.
        reverse: from the end.

    Error and range: as `reduce_prod`.  Rounds: 2 (integers: 1) for each binary digit of n - 1.
    Bits sent: those of n/2 `multiply` for each of these digits.
    """
    rows, at = _scanned("cumprod", x, axis, reverse, multiply)
    count = int(rows.shape[0])
    if exclusive and count:
        first = _one(rows, [1, *rows.shape.as_list()[1:]])
        rows = shapes.concat([first, rows.map(lambda a: local.at(a, np.s_[: count - 1]))], 0)
    return _back(rows, at, reverse)


def cummax(
    x: Shared, axis: int = 0, reverse: bool = False, bits: int = compare.EXACT_BITS
) -> Shared:
    """The largest so far along an axis, exact (numpy.maximum.accumulate).

    Args:
        reverse: from the end.
        bits: right while differences along the axis are below 2^(bits-1) ring units.

    Rounds: those of `maximum` for each binary digit of n - 1.  Bits sent: those of n/2 `maximum`
    for each.
    """
    bits = given.bits_of("cummax", bits)

    def larger(a: Shared, b: Shared) -> Shared:
        return relational.maximum(given.in_graph("cummax"), a, b, bits)

    rows, at = _scanned("cummax", x, axis, reverse, larger)
    return _back(rows, at, reverse)
