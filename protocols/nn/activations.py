"""Sigmoid, tanh and softmax, right over the whole range of layer values (|v| < 2^14 at f = 16).

Both rest on the one-round exponential of a non-positive argument, which is where it is
most exact, and on a one-round polynomial.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import replace
from decimal import Decimal
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import (
    approximation,
    exponential,
    normalize,
    polynomial,
    power,
    product,
    reciprocal,
)
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Exponentials carry this many fractional bits on the way, so that their rounding does not show.
INNER_BITS = 24
# Beyond it sigmoid is 0 or 1 to within half an ulp, and a class has no softmax to speak of.
_MARGIN = 1.5


def _cutoff(f: int) -> int:
    """Ring units (at f) of the argument from where e^-x counts as 0."""
    return math.ceil((f + _MARGIN) * math.log(2)) << f


def _edge(f: int) -> int:
    """Ring units of where sigmoid is compared: beyond it e^-|x| counts as 0."""
    return _cutoff(f) + (1 << f)


def _check(name: str, x: Any) -> int:
    if not isinstance(x, Shared):
        raise UsageError(f"{name} wants a private tensor. Received: {type(x).__name__}.")
    if x.limbs != 1 or x.ring_bits != 64 or not 8 <= x.fractional_bits <= 20:
        raise UsageError(
            f"{name} wants a value of Z_2^64 with 8 to 20 fractional bits. Received: {x!r}."
        )
    return x.fractional_bits


# ---- sigmoid


def _part(t: Decimal) -> Decimal:
    return t / (1 + t)


@functools.cache
def _tail(f: int) -> tuple[polynomial.Plan, int]:
    """t / (1 + t) on [0, 1] for t with INNER_BITS: the plan, in a small ring, and its center."""
    found = approximation.approximate(
        _part, Decimal(0), Decimal(1), INNER_BITS, Decimal(2) ** -(f + 3), False
    )
    more = max(0, f + 2 - found.scale)
    whole = {(i,): a << more for i, a in enumerate(found.coefficients)}
    bits = found.limit.bit_length() + 2
    # the value is below 1/2 and a rounding; one bit of sign
    return polynomial.plan((bits,), whole, found.scale + more - f, f + 2), found.center


def sigmoid(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, openings: int | None = None
) -> Shared:
    """1 / (1 + e^-x), off by less than 2 ulp, for every |x| < 2^(bits-1) ring units.

    With t = e^-|x| it is 1 - t / (1 + t) for x >= 0 and t / (1 + t) for x < 0: three comparisons
    (with 0 and with where it becomes 0 or 1) choose.

    Args:
        openings: of the comparisons; None takes 1 for few elements, 2 for many.

    Rounds: openings + 5 (cold + 6).  Bits sent: `sigmoid_cost`.
    """
    f = _check("sigmoid", x)
    return _logistic(party, x, f, f, bits, openings)


def tanh(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, openings: int | None = None
) -> Shared:
    """tanh(x) = 2 sigmoid(2x) - 1, off by less than 2 ulp, for |x| < 2^(bits-1) ring units.

    Rounds and bits: as `sigmoid` with one fractional bit more.
    """
    import tensorflow as tf

    f = _check("tanh", x)
    # twice the value is the same ring element with one fractional bit less
    doubled = replace(x, fractional_bits=f - 1)
    y = _logistic(party, doubled, f - 1, f + 1, bits, openings)
    halves = replace(y, fractional_bits=f)  # 2 sigmoid
    return arithmetic.add_public(halves, tf.constant(-(1 << f), tf.int64))


def _openings(n: int, width: int, openings: int | None) -> int:
    """Of n comparisons: one where they are few and it suffices."""
    if openings is not None:
        return openings
    return 1 if n <= 4096 and width <= compare.MOST_AT_ONCE else 2


def _size(x: Shared) -> int:
    shape = x.shape
    return 1 << 20 if shape.num_elements() is None else int(shape.num_elements())


def _logistic(
    party: Party, x: Shared, f: int, f_out: int, bits: int, openings: int | None
) -> Shared:
    import tensorflow as tf

    n = _size(x)
    shape = x.shape.as_list()
    flat = x.map(lambda a: tf.reshape(a, [-1]))
    edge = _edge(f)
    # [x < -T], [x < 0], [x < T]
    shifts = tf.constant([[edge], [0], [-edge]], tf.int64)
    three = replace(
        flat.map(lambda a: tf.tile(a[None], [3, 1])),
        m=None if flat.m is None else flat.m[None] + shifts,
    )
    width = compare.moved(bits, edge)
    count = _openings(n, width, openings)
    nested = convert.open_bits(party, compare.msb(party, three, width, count))
    low, negative, below = (
        logic.rearrange(nested, (3, n), operator.itemgetter(i), n) for i in range(3)
    )
    left, right = logic.xor(low, negative), logic.xor(negative, below)  # [-T, 0), [0, T)
    # |x| inside of (-T, T), 0 outside: the exponential then never leaves its range
    s = party.site("magnitude", f, dealer=x.dealer)
    y = _difference(
        s, convert.inject_shares(s, right, flat, 0, 0), convert.inject_shares(s, left, flat, 2, 1)
    )
    m = None if s.is_dealer else s.open_mask(y, 4, 2)
    l1, l2 = s.new_mask(tf.constant([n], tf.int64), 4)
    magnitude = Shared(m, l1, l2, x.dealer, f)
    exponent = _widened(arithmetic.neg(magnitude))
    t = exponential.exp(party, exponent, softmax=True)
    plan, center = _tail(f_out)
    centered = replace(t, m=None if t.m is None else t.m - center)
    h = polynomial.evaluate(party, "sigmoid_tail", plan, [centered], f_out)
    # (1 - [x < 0]) + [-T <= x < 0] h - [0 <= x < T] h
    s = party.site("sigmoid", f, dealer=x.dealer)
    a = convert.inject_shares(s, left, h, 0, 0, extend_ring=True)
    b = convert.inject_shares(s, right, h, 5, 1, extend_ring=True)
    c = convert.b2a_shares(s, logic.invert(negative), tf.constant([n], tf.int64), 10, 2)
    m = None
    if not s.is_dealer:
        m = s.open_mask(a - b + c * (1 << f_out), 11, 3)
    l1, l2 = s.new_mask(tf.constant([n], tf.int64), 11)
    result = Shared(m, l1, l2, x.dealer, f_out)
    return result.map(lambda v: tf.reshape(v, shape))


def _difference(s: Any, a: Any, b: Any) -> Any:
    return None if s.is_dealer else a - b


def _widened(x: Shared) -> Shared:
    """The same value with INNER_BITS fractional bits.  Local."""
    import tensorflow as tf

    more = tf.constant(INNER_BITS - x.fractional_bits, tf.int64)
    return replace(x.map(lambda a: tf.bitwise.left_shift(a, more)), fractional_bits=INNER_BITS)


def sigmoid_cost(
    n: int, f: int = 16, bits: int = compare.LAYER_BITS, openings: int | None = None
) -> Cost:
    """Cost of `sigmoid` for n elements; `tanh_cost` is that of the other scale."""
    return _logistic_cost(n, f, f, bits, openings)


def tanh_cost(
    n: int, f: int = 16, bits: int = compare.LAYER_BITS, openings: int | None = None
) -> Cost:
    """Cost of `tanh` for n elements."""
    return _logistic_cost(n, f - 1, f + 1, bits, openings)


def _logistic_cost(n: int, f: int, f_out: int, bits: int, openings: int | None) -> Cost:
    plan, _ = _tail(f_out)
    injected = convert.inject_cost(n, ring_bits=plan.out_bits)
    width = compare.moved(bits, _edge(f))
    return (
        compare.msb_cost(3 * n, width, _openings(n, width, openings))
        .then(convert.open_bits_cost(3 * n))
        .then(Cost(256 * n, 64 * n, 64 * n, 1, 2))
        .then(exponential.exp_cost(n, fractional_bits=INNER_BITS, softmax=True))
        .then(polynomial.evaluate_cost(n, plan))
        .then(Cost(2 * injected.dealer + 64 * n, 64 * n, 64 * n, 1, 2))
    )


# ---- softmax

# Largest number of classes: the sum of their exponentials has to fit.
MOST_CLASSES = 1 << 16
_SOFTMAX_PRECISION = 19


@functools.cache
def _denominator(classes: int) -> power.Power:
    """1 / S for 1 <= S <= classes with INNER_BITS fractional bits."""
    top = INNER_BITS + classes.bit_length()
    return reciprocal.plan_in(INNER_BITS, INNER_BITS, top, _SOFTMAX_PRECISION)


def softmax(
    party: Party,
    x: Shared,
    axis: int = -1,
    *,
    bits: int = compare.LAYER_BITS,
    openings: int | None = None,
    profile: str = "local",
) -> Shared:
    """e^x_i / sum_j e^x_j along an axis, off by less than 2 ulp.

    Stable for all logits |x| < 2^(bits-1) ring units: the largest is subtracted first, and what is
    then so low that its share of the sum is below an ulp counts as 0.

    Rounds: 12 for up to 10 classes compared all at once with openings 1; `softmax_cost`.
    Bits sent: `softmax_cost`.
    Raises:
        UsageError: a wrong axis, no or more than 65536 classes.
    """
    import tensorflow as tf

    f = _check("softmax", x)
    shape = x.shape.as_list()
    if not shape or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        raise UsageError(
            f"softmax wants an axis from {-len(shape)} to {len(shape) - 1}. Received: {axis!r}."
        )
    axis %= len(shape)
    classes = shape[axis]
    if not 1 <= classes <= MOST_CLASSES:
        raise UsageError(f"softmax wants 1 to {MOST_CLASSES} classes. Received: {classes}.")
    order = [axis, *(i for i in range(len(shape)) if i != axis)]
    back = [order.index(i) for i in range(len(shape))]
    moved = [shape[i] for i in order]
    columns = x.map(lambda a: tf.reshape(tf.transpose(a, order), [classes, -1]))
    y = _softmax(party, columns, f, classes, math.prod(moved[1:]), bits, openings, profile)
    return y.map(lambda a: tf.transpose(tf.reshape(a, moved), back))


def _softmax(
    party: Party,
    x: Shared,
    f: int,
    classes: int,
    rows: int,
    bits: int,
    openings: int | None,
    profile: str,
) -> Shared:
    import tensorflow as tf

    if classes == 1 or rows == 0:
        one = tf.constant(1 << f, tf.int64)
        return arithmetic.add_public(x.map(lambda a: 0 * a), one)
    width = compare.moved(bits + 1, _cutoff(f))
    count = _openings(rows * classes, width, openings)
    if extremes.choose("auto", rows, classes, profile, bits + 1) == "all-pairs":
        hot = extremes.one_hot(party, x, bits + 1, count)
        largest = extremes.pick(party, hot, x)
    else:
        largest = extremes.reduce_max(party, x, 0, bits=bits + 1, method="tree", openings=count)
    d = arithmetic.sub(x, largest.map(lambda a: a[None]))
    raised = arithmetic.add_public(d, tf.constant(_cutoff(f), tf.int64))
    low = convert.open_bits(party, compare.msb(party, raised, width, count))
    e = exponential.exp(party, _widened(d), softmax=True)
    e = convert.inject(party, low, e, negated=True)
    total = e.map(lambda a: tf.reduce_sum(a, axis=0))
    p = _denominator(classes)
    c, u = normalize.normalize(party, total, p.scheme, p.mantissa.center, p.factor.table)
    g = polynomial.evaluate(party, "softmax_mantissa", p.mantissa.plan, [c], p.mantissa.fractional)

    def spread(a: Shared) -> Shared:
        return a.map(lambda v: tf.tile(v[None], [classes, 1]))

    factors = [(spread(g), p.mantissa.bits), (spread(u), p.factor.table.bits + 1)]
    y = product.product(party, [*factors, (e, INNER_BITS + 3)], _drop(p, f))
    return replace(y, fractional_bits=f)


def _drop(p: power.Power, f: int) -> int:
    return p.drop + 2 * INNER_BITS - f


def softmax_cost(
    rows: int,
    classes: int,
    bits: int = compare.LAYER_BITS,
    openings: int | None = None,
    profile: str = "local",
    f: int = 16,
) -> Cost:
    """Cost of `softmax` for rows of classes."""
    if classes == 1 or rows == 0:
        return Cost(0, 0, 0, 0, 0)
    n = rows * classes
    width = compare.moved(bits + 1, _cutoff(f))
    count = _openings(n, width, openings)
    if extremes.choose("auto", rows, classes, profile, bits + 1) == "all-pairs":
        largest = extremes.one_hot_cost(rows, classes, bits + 1, count).then(
            Cost(128 * n, 64 * rows, 64 * rows, 1, 2)
        )
    else:
        largest = extremes.reduce_max_cost(rows, classes, bits + 1, "tree", openings=count)
    p = _denominator(classes)
    clamp = compare.msb_cost(n, width, count).then(convert.open_bits_cost(n))
    e = exponential.exp_cost(n, fractional_bits=INNER_BITS, softmax=True)
    both = Cost(clamp.dealer + e.dealer, clamp.e1 + e.e1, clamp.e2 + e.e2, clamp.rounds, clamp.cold)
    factors = (p.mantissa.bits, p.factor.table.bits + 1, INNER_BITS + 3)
    return (
        largest.then(both)
        .then(convert.inject_cost(n))
        .then(normalize.normalize_cost(rows, p.scheme, p.factor.table))
        .then(polynomial.evaluate_cost(rows, p.mantissa.plan))
        .then(product.product_cost(n, factors, _drop(p, f)))
    )
