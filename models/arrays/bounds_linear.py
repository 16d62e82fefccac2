"""Bounds of what moves, adds up, compares or takes apart values.

Each rule is that of the operations which it names; see bounds.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.arrays.bounds import (
    LIMIT,
    MOST,
    TRUTH,
    WORDS,
    Bounds,
    Call,
    Known,
    bits_of,
    first_of,
    joined,
    rule,
    summed,
    terms_of,
)
from tfe_bench.models.arrays.plan import BITS, FIXED
from tfe_bench.protocols.api import operands

# ---- what moves, joins and adds


@rule(
    *("broadcast_to", "expand_dims", "getitem", "reshape", "reverse", "slice", "split"),
    *("squeeze", "tile", "transpose", "unstack", "cummax", "sort"),
)
def _same(call: Call) -> list[Bounds]:
    x = first_of(call)
    return [compared(call, x) if call.op in ("cummax", "sort") else x.bounds]


@rule("concat", "stack")
def _listed(call: Call) -> list[Bounds]:
    scale = call.made[0].scale
    return [joined([call.bounds_of(v, scale) for v in call.given["values"]])]


@rule("where")
def _where(call: Call) -> list[Bounds]:
    scale = call.made[0].scale
    return [joined([call.bounds_of(call.given[name], scale) for name in ("x", "y")])]


@rule("pad")
def _pad(call: Call) -> list[Bounds]:
    fill = call.bounds_of(call.given.get("constant_values", 0), call.made[0].scale)
    return [joined([first_of(call).bounds, fill])]


@rule("tensor_scatter_nd_update")
def _update(call: Call) -> list[Bounds]:
    scale = call.made[0].scale
    return [joined([call.bounds_of(call.given[n], scale) for n in ("tensor", "updates")])]


@rule("scatter_nd")
def _scatter(call: Call) -> list[Bounds]:
    indices = np.asarray(call.given["indices"])
    rows = indices.reshape(-1, indices.shape[-1]) if indices.ndim else indices.reshape(-1, 1)
    times = int(np.unique(rows, axis=0, return_counts=True)[1].max(initial=1))
    return [joined([summed(call, call.given["updates"], times), Bounds(0, 0)])]


@rule("gather")
def _gather(call: Call) -> list[Bounds]:
    x, indices = call.given["x"], call.given["indices"]
    if not isinstance(indices, Known):
        return [x.bounds]
    size = max(x.meaning.shape, default=1)
    _fits(call, indices, size)
    return [joined([x.bounds, Bounds(0, 0)])]


def _fits(call: Call, indices: Any, size: int) -> None:
    """Differences to positions take all of 64 bits, or `bits`."""
    width = bits_of(call) - 1
    call.capped(indices, size - (1 << width), (1 << width) - 1)


@rule("one_hot")
def _one_hot(call: Call) -> list[Bounds]:
    _fits(call, call.given["indices"], int(call.given["depth"]))
    values = [call.given.get("on_value", 1), call.given.get("off_value", 0)]
    return [joined([call.bounds_of(v, call.made[0].scale) for v in values])]


@rule("bincount")
def _bincount(call: Call) -> list[Bounds]:
    arr, weights = call.given["arr"], call.given.get("weights")
    _fits(call, arr, int(call.given["maxlength"]) + 1)
    count = math.prod(arr.meaning.shape)
    if weights is None:
        return [Bounds(0, count)]
    return [joined([summed(call, weights, count), Bounds(0, 0)])]


@rule("histogram_fixed_width")
def _histogram(call: Call) -> list[Bounds]:
    x = first_of(call)
    edges = call.bounds_of(call.given["value_range"], x.scale)
    width = bits_of(call) - 1
    call.capped(x, edges.high - (1 << width) + 1, edges.low + (1 << width) - 1)
    return [Bounds(0, math.prod(x.meaning.shape))]


@rule("reduce_sum", "cumsum")
def _sum(call: Call) -> list[Bounds]:
    x = first_of(call)
    if call.op == "cumsum":
        shape = x.meaning.shape
        count = shape[int(call.given.get("axis", 0))] if shape else 1
        return [joined([summed(call, x, max(1, count)), Bounds(0, 0)])]
    return [summed(call, x, terms_of(x, call.made[0]))]


@rule("add", "subtract")
def _add(call: Call) -> list[Bounds]:
    scale = call.made[0].scale
    x, y = _summands(call, [call.given["x"], call.given["y"]])
    a, b = (call.bounds_of(v, scale) for v in (x, y))
    if call.op == "add":
        return [Bounds(a.low + b.low, a.high + b.high)]
    return [Bounds(a.low - b.high, a.high - b.low)]


def _summands(call: Call, values: Sequence[Any]) -> list[Any]:
    """Terms of one sum, the larger private ones capped equally so that the sum of reals fits.

    Raises:
        RangeError: the public terms alone do not fit.
    """
    scale = call.made[0].scale
    sizes = [(call.bounds_of(v, scale).most, isinstance(v, Known)) for v in values]
    if call.made[0].kind != FIXED or sum(size for size, _ in sizes) <= MOST:
        return list(values)
    room = MOST - sum(size for size, private in sizes if not private)
    if room < 0:
        most = MOST / (1 << scale)
        raise RangeError(f"{call.op}: expected public numbers below {most:.6g}. Received: larger.")
    private = sorted(size for size, private in sizes if private)
    cap = 0
    for place, size in enumerate(private):
        cap = room // (len(private) - place)
        if size > cap:
            break
        room -= size
    return [call.capped(v, -cap, cap) for v in values]


@rule("add_n")
def _add_n(call: Call) -> list[Bounds]:
    values = _summands(call, call.given["inputs"])
    several = [call.bounds_of(v, call.made[0].scale) for v in values]
    return [Bounds(sum(b.low for b in several), sum(b.high for b in several))]


@rule("negative")
def _negative(call: Call) -> list[Bounds]:
    own = first_of(call).bounds
    return [Bounds(-own.high, -own.low)]


@rule("abs")
def _abs(call: Call) -> list[Bounds]:
    x = call.within(first_of(call), bits_of(call) - 2)
    return [Bounds(0, x.bounds.most)]


@rule("cast")
def _cast(call: Call) -> list[Bounds]:
    x, made = first_of(call), call.made[0]
    if x.meaning.kind == BITS:
        return [Bounds(0, 1 << made.scale)]
    up = made.scale - x.scale
    if up == 0:
        return [x.bounds]
    if up < 0:
        x = call.within(x, LIMIT) if call.given.get("method") != "exact" else x
        top = MOST - (1 << (-up - 1))
        x = call.capped(x, -top, top)
        return [Bounds(x.bounds.low >> -up, -(-x.bounds.high >> -up)).spread()]
    x = call.within(x, LIMIT - up)
    return [Bounds(x.bounds.low << up, x.bounds.high << up)]


@rule("bitcast")
def _bitcast(call: Call) -> list[Bounds]:
    x = first_of(call)
    if call.made[0].kind == FIXED and x.whole:
        x = call.within(x, LIMIT)
    return [x.bounds]


# ---- comparisons


def compared(call: Call, x: Any) -> Bounds:
    """Values that are compared with one another, in `bits`."""
    bits = bits_of(call)
    own = x.bounds
    if own.high - own.low >= 1 << (bits - 1):
        own = call.within(x, bits - 2).bounds
    return Bounds(*own)


@rule("less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "maximum", "minimum")
def _comparison(call: Call) -> list[Bounds]:
    x, y = call.given["x"], call.given["y"]
    scale = max(v.scale for v in (x, y) if isinstance(v, Known))
    a, b = (call.bounds_of(v, scale) for v in (x, y))
    bits = bits_of(call)
    if max(a.high - b.low, b.high - a.low) >= 1 << (bits - 1):
        for value, other in ((x, b), (y, a)):
            if isinstance(value, Known):
                if isinstance(x, Known) and isinstance(y, Known):
                    call.within(value, bits - 2)
                else:
                    _near(call, value, other, bits)
    if call.op == "maximum":
        return [Bounds(max(a.low, b.low), max(a.high, b.high))]
    if call.op == "minimum":
        return [Bounds(min(a.low, b.low), min(a.high, b.high))]
    return [TRUTH]


@rule("clip_by_value")
def _clip(call: Call) -> list[Bounds]:
    x, scale, bits = call.given["x"], call.made[0].scale, bits_of(call)
    limits = [call.given[name] for name in ("clip_value_min", "clip_value_max")]
    low, high = (call.bounds_of(limit, scale) for limit in limits)
    own = joined([x.bounds, low, high])
    if own.high - own.low >= 1 << (bits - 1):
        private = [limit for limit in limits if isinstance(limit, Known)]
        for limit in private:
            call.within(limit, bits - 2)
        x = call.within(x, bits - 2) if private else x
        for limit, near in zip(limits, (low, high), strict=True):
            if not isinstance(limit, Known):
                x = _near(call, x, near, bits)
    found = Bounds(max(x.bounds.low, low.low), max(x.bounds.high, low.high))
    return [Bounds(min(found.low, high.low), min(found.high, high.high))]


def _near(call: Call, x: Any, other: Bounds, bits: int) -> Any:
    """A private value that is compared with public ones in `bits`."""
    room = 1 << (bits - 1)
    return call.capped(x, other.high - room + 1, other.low + room - 1)


@rule(
    *("reduce_max", "reduce_min", "max_pool2d", "adaptive_max_pool2d", "max_pool_with_argmax"),
    *("argmax", "argmin", "top_k"),
)
def _extreme(call: Call) -> list[Bounds]:
    x = first_of(call)
    found = compared(call, x)
    places = Bounds(0, max(1, x.meaning.elements))
    if call.op in ("argmax", "argmin"):
        return [places]
    return [found, places] if call.op in ("top_k", "max_pool_with_argmax") else [found]


@rule("median", "quantile")
def _quantile(call: Call) -> list[Bounds]:
    x = call.within(first_of(call), 44)
    return [x.bounds.spread(2)]


@rule("sign")
def _sign(call: Call) -> list[Bounds]:
    call.within(first_of(call), bits_of(call) - 1)
    unit = 1 << call.made[0].scale
    return [Bounds(-unit, unit)]


@rule("in_range", "bit_extract", "unpack_bits", "logical_and", "logical_not")
@rule("logical_or", "logical_xor")
def _truth(call: Call) -> list[Bounds]:
    return [TRUTH]


@rule("relu", "relu_derivative", "leaky_relu")
def _relu(call: Call) -> list[Bounds]:
    x = call.within(first_of(call), min(bits_of(call), 63) - 1)
    if call.op == "relu_derivative":
        return [TRUTH]
    if call.op == "relu":
        return [Bounds(max(0, x.bounds.low), max(0, x.bounds.high))]
    alpha = Fraction(float(call.given.get("alpha", 0.2)))
    factor = abs(int(operands.encode_weight("leaky_relu", float(alpha))[0]))
    x = call.capped(x, -(MOST // max(1, factor)), None)
    ends = [math.floor(alpha * b) for b in x.bounds]
    return [Bounds(min(*x.bounds, *ends, 0), max(*x.bounds, *ends, 0)).spread(2)]


# ---- words of bits


@rule("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift")
def _words(call: Call) -> list[Bounds]:
    x = first_of(call)
    if call.op == "invert":
        return [Bounds(-1 - x.bounds.high, -1 - x.bounds.low)]
    if call.op == "right_shift":
        x = call.within(x, LIMIT)
        y = int(np.asarray(call.given["y"]).max(initial=0))
        return [Bounds(x.bounds.low >> y, x.bounds.high >> y)]
    if call.op == "left_shift":
        y = int(np.asarray(call.given["y"]).max(initial=0))
        return [Bounds(x.bounds.low << y, x.bounds.high << y)]
    both = [call.bounds_of(call.given[name], 0) for name in ("x", "y")]
    if min(b.low for b in both) < 0:
        return [WORDS]
    bits = [b.high.bit_length() for b in both]
    width = min(bits) if call.op == "bitwise_and" else max(bits)
    return [Bounds(0, (1 << width) - 1)]


@rule("popcount", "pack_bits")
def _counted(call: Call) -> list[Bounds]:
    if call.op == "popcount":
        return [Bounds(0, 64)]
    size = first_of(call).meaning.shape[-1]
    return [Bounds(0, (1 << size) - 1)]


@rule("count_outside", "count_steep", "count_zeros")
def _violations(call: Call) -> list[Bounds]:
    return [Bounds(0, 1 << 40)]
