"""Bounds of products, of sums of them, and of means.

Each rule is that of the operations which it names; see bounds.py.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.models.arrays.bounds import (
    LIMIT,
    MOST,
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
from tfe_bench.models.arrays.plan import INT
from tfe_bench.protocols.api import operands

# ---- products


def weight(value: Any, kept: int) -> tuple[int, int]:
    """A public factor's largest ring element, and its fractional bits (operands.encode_weight)."""
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return max((abs(int(v)) for v in array.reshape(-1)), default=0), 0
    _, bits = operands.encode_weight("multiply", array, kept)
    largest = float(np.abs(array).max(initial=0.0))
    return math.ceil(Fraction(largest) * (1 << bits)), bits


def _product(call: Call, names: tuple[str, str], terms: int) -> Bounds:
    return times(call, call.given[names[0]], call.given[names[1]], terms, (0, 1))


def times(call: Call, x: Any, y: Any, terms: int, places: tuple[int, ...]) -> Bounds:
    """Of sums of products, each sum truncated to the larger scale.

    Where the exact sum may leave 62 bits, a private operand is taken in two parts
    (amounts.in_parts); where that does not do either, private operands have to be smaller.

    Args:
        terms: of each sum.
        places: of the operands among the arguments; none: they are not taken in parts.
    """
    factors = [x, y]
    private = [isinstance(v, Known) for v in factors]
    scales, sizes, kept = [0, 0], [Bounds(0, 0)] * 2, 0
    for i, (value, other) in enumerate(((x, y), (y, x))):
        if private[i]:
            scales[i], sizes[i] = value.scale, value.bounds
        else:
            kept = 0 if other.scale else operands.WEIGHT_BITS
            largest, scales[i] = weight(value, kept)
            sizes[i] = Bounds(-largest, largest)
    if call.made[0].kind == INT:
        return _exact(sizes, terms)
    if all(private):
        drop = min(scales)
    else:
        drop = scales[private.index(False)]
        drop -= min(drop, kept)
    if max(1, sizes[0].most) * max(1, sizes[1].most) * terms <= MOST:
        return _truncated(sizes, terms, drop)
    extra = (terms - 1).bit_length()
    bits = [b.bits for b in sizes]
    part = _part(private, scales, bits, drop, extra) if places else None
    limits = _caps(bits, private, LIMIT - 1 - extra + (0 if part is None else scales[part]))
    if part is not None:
        call.extra["split"] = places[part]
        limits[1 - part] = min(limits[1 - part], LIMIT - scales[part] - extra)
    for i, most in enumerate(limits):
        if private[i]:
            sizes[i] = call.within(factors[i], most).bounds
    return _truncated(sizes, terms, drop)


def _part(
    private: list[bool], scales: list[int], bits: list[int], drop: int, extra: int
) -> int | None:
    """Which operand is taken in two parts: the larger one whose whole part leaves a right scale."""
    due = drop if all(private) else operands.WEIGHT_BITS
    found = [i for i in (0, 1) if private[i] and drop and scales[i] == due]
    found = [i for i in found if private[1 - i] or bits[1 - i] <= LIMIT - scales[i] - extra]
    return max(found, key=lambda i: bits[i], default=None)


def _caps(bits: list[int], private: list[bool], room: int) -> list[int]:
    """Bits of two factors whose product fits: the larger one is cut down to the other first."""
    a, b = bits
    if a + b <= room:
        return [a, b]
    if not private[0]:
        return [a, max(0, room - a)]
    if not private[1]:
        return [max(0, room - b), b]
    if a >= b:
        a = max(room - b, room // 2)
        return [a, min(b, room - a)]
    b = max(room - a, room // 2)
    return [min(a, room - b), b]


def _exact(sizes: list[Bounds], terms: int) -> Bounds:
    a, b = sizes
    corners = [p * q * terms for p in a for q in b]
    return Bounds(min(corners), max(corners))


def _truncated(sizes: list[Bounds], terms: int, drop: int) -> Bounds:
    found = _exact(sizes, terms)
    if not drop:
        return found
    return Bounds(found.low >> drop, -(-found.high >> drop)).spread(2)


@rule("multiply")
def _multiply(call: Call) -> list[Bounds]:
    x, y = call.given["x"], call.given["y"]
    if isinstance(x, Known) and isinstance(y, Known) and x.node is y.node:
        return [_squared(call, x, 0)]
    return [_product(call, ("x", "y"), 1)]


def _squared(call: Call, x: Known, split: int) -> Bounds:
    if x.whole:
        return Bounds(0, x.bounds.most**2)
    if x.bounds.most**2 <= MOST:
        return Bounds(0, x.bounds.most**2 >> x.scale).spread(1)
    x = call.within(x, min((LIMIT + x.scale - 1) // 2, LIMIT - x.scale - 1))
    if x.bounds.most**2 > MOST:
        if call.op == "square":
            call.extra["wide"] = True
        else:
            call.extra["split"] = split
    return Bounds(0, x.bounds.most**2 >> x.scale).spread(2)


@rule("square")
def _square(call: Call) -> list[Bounds]:
    return [_squared(call, first_of(call), 0)]


def _shape(value: Any) -> tuple[int, ...]:
    return value.meaning.shape if isinstance(value, Known) else np.shape(value)


@rule("matmul")
def _matmul(call: Call) -> list[Bounds]:
    shape = _shape(call.given["x"])
    turned = bool(call.given.get("transpose_a", False)) and len(shape) > 1
    return [_product(call, ("x", "y"), shape[-2 if turned else -1])]


@rule("matvec")
def _matvec(call: Call) -> list[Bounds]:
    return [_product(call, ("a", "b"), _shape(call.given["b"])[-1])]


@rule("tensordot")
def _tensordot(call: Call) -> list[Bounds]:
    both = [math.prod(_shape(call.given[name])) for name in ("a", "b")]
    terms = math.isqrt(max(1, both[0] * both[1] // max(1, call.made[0].elements)))
    return [_product(call, ("a", "b"), max(1, terms))]


@rule("einsum")
def _einsum(call: Call) -> list[Bounds]:
    values = call.given["inputs"]
    indexes = math.prod(_labels(call.given["equation"], [_shape(v) for v in values]).values())
    terms = max(1, indexes // max(1, call.made[0].elements))
    if len(values) == 1:
        return [joined([summed(call, values[0], terms), values[0].bounds])]
    x, y = values
    return [times(call, x, y, terms, (1, 2))]


def _labels(equation: str, shapes: list[tuple[int, ...]]) -> dict[str, int]:
    """The sizes of an equation's axes."""
    found: dict[str, int] = {}
    for term, shape in zip(
        equation.replace(" ", "").split("->")[0].split(","), shapes, strict=True
    ):
        before, dots, after = term.partition("...")
        more = len(shape) - len(before) - len(after)
        names = [*before, *([f"-{i}" for i in range(more, 0, -1)] if dots else []), *after]
        for name, size in zip(names, shape, strict=True):
            found[name] = max(found.get(name, 1), size)
    return found


@rule("conv2d", "depthwise_conv2d")
def _convolution(call: Call) -> list[Bounds]:
    shape = _shape(call.given["filters"])
    # (a bias is added by itself, planning.py)
    return [_product(call, ("x", "filters"), math.prod(shape[: 3 if call.op == "conv2d" else 2]))]


@rule("reduce_prod", "cumprod")
def _prod(call: Call) -> list[Bounds]:
    x = first_of(call)
    if x.whole:
        return [WORDS]
    count = (
        terms_of(x, call.made[0]) if call.op == "reduce_prod" else max(x.meaning.shape, default=1)
    )
    one, most = 1 << x.scale, max(x.bounds.most, 1 << x.scale)
    # products of any of them are below 2^30 as the one of all is
    room = (LIMIT + x.scale - 2) // 2 - x.scale
    if (Fraction(most, one) ** min(count, 4096)) >= 1 << room or count > 4096:
        limit = math.floor(2 ** (room / count) * one)
        x = call.capped(x, -limit, limit)
        most = max(x.bounds.most, one)
    found = math.ceil((Fraction(most, one) ** count) * one * (1 + Fraction(count, one)))
    return [Bounds(-found, found).spread(count)]


@rule("scaled_dot_product_attention")
def _attention(call: Call) -> list[Bounds]:
    value = call.given["value"]
    for name in ("query", "key"):
        call.within(
            call.given[name], 30 - (call.given["query"].meaning.shape[-1] - 1).bit_length() // 2
        )
    value = call.within(value, min(bits_of(call) - 1, 44))
    return [value.bounds.spread(value.bounds.most // 512 + 8)]


# ---- means


# Bits of a sum whose mean by one product with the count's reciprocal is off by half an ulp.
_PLAIN = 30


@rule("reduce_mean")
def _mean(call: Call) -> list[Bounds]:
    x, made = first_of(call), call.made[0]
    x = call.within(x, LIMIT - 1 - (made.scale - x.scale))
    up = made.scale - x.scale
    if x.bounds.bits + (terms_of(x, made) - 1).bit_length() > _PLAIN:
        call.extra["bits"] = max(1, x.bounds.bits)
    return [Bounds(x.bounds.low << up, x.bounds.high << up).spread(4)]


@rule("avg_pool2d", "adaptive_avg_pool2d")
def _average(call: Call) -> list[Bounds]:
    x, up = first_of(call), call.made[0].scale - first_of(call).scale
    x = call.within(x, 31)
    return [Bounds(x.bounds.low << up, x.bounds.high << up).spread(4)]


def _squares(call: Call, more: int) -> tuple[Known, int, int]:
    """What a sum of squares is of: it and its bits, and of how many values."""
    x = first_of(call)
    terms = terms_of(x, call.made[0])
    x = call.within(x, 59 - more - max(1, (terms - 1).bit_length()))
    number = (terms - 1).bit_length()
    most = min(x.bounds.bits, 30 + (60 - number) // 2 - 8 - more, 24 + (60 - number) // 2 - more)
    x = call.within(x, most)
    return x, x.bounds.bits + more, terms


@rule("norm")
def _norm(call: Call) -> list[Bounds]:
    x = first_of(call)
    order = call.given.get("ord", "euclidean")
    if order not in ("euclidean", 2):
        x = call.within(x, LIMIT - 1)
        return [Bounds(0, summed(call, x, terms_of(x, call.made[0])).most)]
    x, bits, terms = _squares(call, 0)
    if x.bounds.most**2 * terms > MOST >> 1:
        call.extra["bits"] = bits
    root = math.isqrt(x.bounds.most**2 * terms) + 1
    return [Bounds(0, root + (root >> 18)).spread(4)]


@rule("reduce_variance", "reduce_std")
def _variance(call: Call) -> list[Bounds]:
    x, bits, terms = _squares(call, 1)
    # (a variance is at most a quarter of the range's square)
    most = (x.bounds.high - x.bounds.low + 2) // 2 + 1
    if max(bits, 2 * bits - x.scale) + (terms - 1).bit_length() > _PLAIN:
        call.extra["bits"] = bits - 1
    if call.op == "reduce_std":
        return [Bounds(0, most + (most >> 17)).spread(4)]
    square = most**2 >> x.scale
    if square > MOST:
        x = call.within(x, (LIMIT - 2 + x.scale) // 2)
        square = MOST - 4
    return [Bounds(0, square).spread(4)]
