"""What is larger, and by how much: extremes, and what sorts, by TensorFlow's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands as given
from tfe_bench.protocols.order import extremes, order_statistics
from tfe_bench.protocols.order import sort as sorting
from tfe_bench.protocols.ring import checks, compare, convert, relational, shapes
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.session.types import Axes, Operand

EXACT_BITS = compare.EXACT_BITS


def _larger(operation: relational.OfTwo[Shared], x: Operand, y: Operand, bits: int) -> Shared:
    name = operation.__name__
    bits = given.bits_of(name, bits)
    x, y = given.pair(name, x, y)
    return operation(given.in_graph(name), given.private(name, x), y, bits)


def maximum(x: Operand, y: Operand, bits: int = EXACT_BITS) -> Shared:
    """max(x, y) elementwise, broadcast, exact; one of them may be public.

    Args:
        bits: right while |x - y| < 2^(bits-1) ring units.

    Rounds and bits: those of relational.maximum.
    """
    return _larger(relational.maximum, x, y, bits)


def minimum(x: Operand, y: Operand, bits: int = EXACT_BITS) -> Shared:
    """min(x, y); as `maximum`."""
    return _larger(relational.minimum, x, y, bits)


def clip_by_value(
    x: Shared, clip_value_min: Operand, clip_value_max: Operand, bits: int = EXACT_BITS
) -> Shared:
    """min(max(x, clip_value_min), clip_value_max), exact; the limits may be public.

    Rounds and bits: those of `maximum` twice.
    """
    x = given.private("clip_by_value", x)
    limits = (clip_value_min, clip_value_max)
    known = [None if given.is_private(v) else given.static("clip_by_value", v) for v in limits]
    low, high = known
    if low is not None and high is not None:
        given.broadcast("clip_by_value", low.shape, high.shape)
        if np.any(low > high):
            raise UsageError(
                "clip_by_value wants clip_value_min <= clip_value_max. Received: a larger one. "
                "Swap them."
            )
    bits = given.bits_of("clip_by_value", bits)
    for limit in limits:
        given.pair("clip_by_value", x, limit)
    return minimum(maximum(x, clip_value_min, bits), clip_value_max, bits)


def sign(x: Shared, bits: int = EXACT_BITS) -> Shared:
    """-1, 0 or 1 at x's scale: [x > 0] - [x < 0], both compared at once.

    Rounds: those of `less`, and 1.  Bits sent: those of `less` and of `cast`, twice.
    """
    x = given.private("sign", x)
    bits = given.bits_of("sign", bits)
    shape = given.sizes("sign", x)
    party = given.in_graph("sign")
    n = given.elements(shape)
    both = x.map(lambda a: local.stack([local.reshape(-a, [n]), local.reshape(a, [n])]))
    signs = relational.negative(party, both, bits)
    ones = convert.b2a(party, signs, [2, n])
    one = 1 << x.fractional_bits
    result = ones.map(lambda a: local.reshape(a[0] - a[1], shape) * one)
    return replace(result, fractional_bits=x.fractional_bits)


def _rows(operation: str, x: Shared, axis: Axes) -> tuple[Shared, list[int], list[int]]:
    """x with the given axes as its last one, the sizes of the others, and all axes."""
    x = given.private(operation, x)
    sizes = given.sizes(operation, x)
    axes = checks.axes_of(operation, axis, len(sizes))
    kept = [i for i in range(len(sizes)) if i not in axes]
    width = given.elements([sizes[i] for i in axes])
    if width == 0:
        raise UsageError(
            f"{operation} wants at least one value along the axis. Received: shape {sizes}. "
            "An empty tensor has none."
        )
    rest = [sizes[i] for i in kept]
    order = [*kept, *axes]
    rows = x.map(lambda a: local.reshape(local.transpose(a, order), [*rest, width]))
    return rows, rest, axes


def _extreme(
    operation: str,
    function: Callable[..., Shared],
    x: Shared,
    axis: Axes,
    keepdims: bool,
    bits: int,
) -> Shared:
    bits = given.bits_of(operation, bits)
    rows, rest, axes = _rows(operation, x, axis)
    found = function(given.in_graph(operation), rows, -1, bits=bits)
    if keepdims:
        for i in axes:
            rest.insert(i, 1)
    return shapes.reshape(found, rest)


def reduce_max(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int = EXACT_BITS
) -> Shared:
    """The largest value over one axis, several or all (None), exact.

    Args:
        bits: right while differences are below 2^(bits-1) ring units.

    Rounds and bits: those of extremes.reduce_max.
    """
    return _extreme("reduce_max", extremes.reduce_max, x, axis, keepdims, bits)


def reduce_min(
    x: Shared, axis: Axes = None, keepdims: bool = False, bits: int = EXACT_BITS
) -> Shared:
    """The smallest value; as `reduce_max`."""
    return _extreme("reduce_min", extremes.reduce_min, x, axis, keepdims, bits)


def argmax(x: Shared, axis: int = 0, bits: int = EXACT_BITS) -> Shared:
    """Index of the first largest value along an axis, an integer (0 fractional bits).

    Rounds and bits: those of extremes.argmax.
    """
    return _extreme("argmax", extremes.argmax, x, [axis], False, bits)


def argmin(x: Shared, axis: int = 0, bits: int = EXACT_BITS) -> Shared:
    """Index of the first smallest value; as `argmax`."""
    return _extreme("argmin", extremes.argmin, x, [axis], False, bits)


# ---- order: between graphs


def sort(x: Shared, axis: int = -1, direction: str = "ASCENDING") -> Shared:
    """The values along an axis in order, as tf.sort.  Called between graphs.

    Rounds and bits: those of sort.sort, which chooses among its algorithms.
    """
    if direction not in ("ASCENDING", "DESCENDING"):
        raise UsageError(
            f'sort wants the direction "ASCENDING" or "DESCENDING". Received: {direction!r}.'
        )
    party = given.between_graphs("sort")
    rank = checks.rank_of("sort", given.private("sort", x))
    rows, rest, (at,) = _rows("sort", x, [axis] if rank else _no_axis("sort", x))
    flat = rows.map(lambda a: local.reshape(a, [given.elements(rest), a.shape[-1]]))
    found = sorting.sort(party, flat, descending=direction == "DESCENDING").keys
    order = list(range(rank - 1))
    order.insert(at, rank - 1)
    return found.map(lambda a: local.transpose(local.reshape(a, [*rest, a.shape[-1]]), order))


def _no_axis(operation: str, x: Shared) -> NoReturn:
    raise UsageError(f"{operation} wants a tensor with an axis. Received: {x!r}. Reshape it.")


def top_k(x: Shared, k: int = 1) -> tuple[Shared, Shared]:
    """(the k largest along the last axis in falling order, their positions), as tf.math.top_k.

    Called between graphs.  Rounds and bits: those of sort.sort.
    """
    party = given.between_graphs("top_k")
    return order_statistics.top_k(party, given.private("top_k", x), given.integer("top_k", "k", k))


def median(x: Shared, axis: Axes = None) -> Shared:
    """The middle value over one axis, several or all (None); of an even number the middle two's
    mean, error below 1 ulp.

    Called between graphs.  Rounds and bits: those of sort.sort, and 1 round more for the mean.
    """
    return _quantile("median", x, 0.5, axis)


def quantile(x: Shared, q: float, axis: Axes = None) -> Shared:
    """The q-quantile over one axis, several or all (None), interpolated as numpy.quantile does.

    Args:
        q: public, 0 to 1.

    Called between graphs.  Error: order_statistics.quantile.  Rounds and bits: as `median`.
    """
    if given.is_private(q) or isinstance(q, bool) or not isinstance(q, (int, float, np.number)):
        raise UsageError(
            f"quantile wants a public number q from 0 to 1. Received: {type(q).__name__}."
        )
    return _quantile("quantile", x, float(q), axis)


def _quantile(operation: str, x: Shared, q: float, axis: Axes) -> Shared:
    party = given.between_graphs(operation)
    rows, _, _ = _rows(operation, x, axis)
    return order_statistics.quantile(party, rows, q)
