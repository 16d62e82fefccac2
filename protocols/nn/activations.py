"""Sigmoid, tanh and softmax, right over the whole range of layer values (|v| < 2^14 at f = 16).

Both rest on the one-round exponential of a non-positive argument, which is where it is
most exact, and on a one-round polynomial.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import (
    approximation,
    exponential,
    logarithm,
    normalize,
    polynomial,
    power,
    reciprocal,
    small_product,
)
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import (
    arithmetic,
    checks,
    compare,
    convert,
    logic,
    masked,
    truncation,
)
from tfe_bench.protocols.ring.checks import check_ring, check_scale
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# Exponentials carry this many fractional bits on the way, so that their rounding does not show.
INNER_BITS = 24
# Beyond it sigmoid is 0 or 1 to within half an ulp, and a class has no softmax to speak of.
_MARGIN = 1.5


def _cutoff(f: int, classes: int = 1) -> int:
    """Ring units (at f) of the argument from where so many e^-x count as 0 together."""
    return math.ceil((f + _MARGIN + (classes - 1).bit_length()) * math.log(2)) << f


def edge(f: int) -> int:
    """Ring units of where sigmoid is compared: beyond it e^-|x| counts as 0."""
    return _cutoff(f) + (1 << f)


def _check(name: str, x: Any) -> int:
    check_scale(name, check_ring(name, x, known=True), 8, 20)
    return int(x.fractional_bits)


# ---- sigmoid


def _part(t: Decimal) -> Decimal:
    return t / (1 + t)


@functools.cache
def _tail(f: int) -> polynomial.Fitted:
    """t / (1 + t) on [0, 1] for t with INNER_BITS, in a small ring."""
    found = approximation.approximate(
        _part, Decimal(0), Decimal(1), INNER_BITS, Decimal(2) ** -(f + 3), False
    )
    # the value is below 1/2 and a rounding; one bit of sign
    return polynomial.fitted(found, f, bits=found.limit.bit_length() + 2, out_bits=f + 2)


def sigmoid(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """1 / (1 + e^-x), off by less than 2 ulp, for every |x| < 2^(bits-1) ring units.

    With t = e^-|x| it is 1 - t / (1 + t) for x >= 0 and t / (1 + t) for x < 0: three comparisons
    (with 0 and with where it becomes 0 or 1) choose.

    Args:
        exchanges: of the comparisons; None takes 1 for few elements, 2 for many.

    Rounds: exchanges + 5 (+ 6 with dealing).
    """
    f = _check("sigmoid", x)
    return _logistic(party, x, f, f, bits, exchanges)


def tanh(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """tanh(x) = 2 sigmoid(2x) - 1, off by less than 2 ulp, for |x| < 2^(bits-1) ring units.

    Rounds and bits: as `sigmoid` with one fractional bit more.
    """
    f = _check("tanh", x)
    # twice the value is the same ring element with one fractional bit less
    doubled = replace(x, fractional_bits=f - 1)
    y = _logistic(party, doubled, f - 1, f + 1, bits, exchanges)
    halves = replace(y, fractional_bits=f)  # 2 sigmoid
    return arithmetic.add_public(halves, np.int64(-(1 << f)))


@dataclass(frozen=True)
class Halves:
    """What sigmoid is made of: t / (1 + t), t = e^-|x|, and where it is used.

    Attributes:
        left, right: [-T <= x < 0] and [0 <= x < T], with T where sigmoid is 0 or 1.
        negative: [x < 0].
        magnitude: |x| in (-T, T), else 0.
        tail: t / (1 + t) of the magnitude, in a ring of two bits more than its fractional ones.
    """

    left: MaskedBits
    right: MaskedBits
    negative: MaskedBits
    magnitude: Shared
    tail: Shared


def halves(party: Party, x: Shared, f_out: int, bits: int, exchanges: int | None = None) -> Halves:
    """The halves of sigmoid for |x| < 2^(bits-1) ring units.

    Args:
        x: of one axis.
        f_out: fractional bits of the tail, up to 21.

    Rounds: exchanges + 4 (+ 5 with dealing).
    """
    n, f = x.shape.num_elements(), x.fractional_bits
    knot = edge(f)
    # [x < -T], [x < 0], [x < T]
    shifts = np.array([[knot], [0], [-knot]], np.int64)
    three = replace(
        x.map(lambda a: local.tile(a[None], [3, 1])),
        m=None if x.m is None else x.m[None] + shifts,
    )
    width = compare.moved(bits, knot)
    count = compare.few_openings(n, width, exchanges)
    nested = convert.mask_bits(party, compare.msb(party, three, width, count))
    low, negative, below = (
        logic.rearrange(nested, (3, n), operator.itemgetter(i), n) for i in range(3)
    )
    left, right = logic.xor(low, negative), logic.xor(negative, below)
    # outside of (-T, T) it is 0: the exponential then never leaves its range
    magnitude = _magnitude(party, left, right, x, f)
    t = falling(party, arithmetic.neg(magnitude))
    tail = _tail(f_out).evaluate(party, "sigmoid_tail", t)
    return Halves(left, right, negative, magnitude, tail)


def _logistic(
    party: Party, x: Shared, f: int, f_out: int, bits: int, exchanges: int | None
) -> Shared:
    shape = x.shape.as_list()
    own = halves(party, x.map(lambda a: local.reshape(a, [-1])), f_out, bits, exchanges)
    result = _joined(party, own.left, own.right, own.negative, own.tail, f)
    return result.map(lambda v: local.reshape(v, shape))


def _magnitude(party: Party, left: MaskedBits, right: MaskedBits, x: Shared, f: int) -> Shared:
    """right x - left x.  Rounds: 1 (2 with dealing).  Bits sent: D 256, E1, E2 64 per element
    each.
    """
    n = x.shape.num_elements()
    if isinstance(party, Counting):
        return party.exchanged([n], 256 * n, left, right, x, scale=f)
    s = party.site("magnitude", f, dealer=x.dealer)
    a, b = convert.inject_shares(s, right, x, 0, 0), convert.inject_shares(s, left, x, 2, 1)
    share = None if s.is_dealer else a - b
    return masked.exchanged(s, share, local.shape(x.any), 4, 2, scale=f)


def _joined(
    party: Party, left: MaskedBits, right: MaskedBits, negative: MaskedBits, h: Shared, f: int
) -> Shared:
    """(1 - negative) + left h - right h over Z_2^64, for h of a small ring, exchanged as one.

    Rounds: 1 (2 with dealing).  Bits sent: D those of two injections and 64, E1, E2 64 per element
        each.
    """
    n, f_out = h.shape.num_elements(), h.fractional_bits
    if isinstance(party, Counting):
        dealt = 2 * convert.inject_dealt(n, ring_bits=h.ring_bits) + 64 * n
        return party.exchanged([n], dealt, left, right, negative, h, scale=f_out)
    s = party.site("sigmoid", f, dealer=h.dealer)
    shape = local.shape(h.any)
    a = convert.inject_shares(s, left, h, 0, 0, extend_ring=True)
    b = convert.inject_shares(s, right, h, 5, 1, extend_ring=True)
    c = convert.b2a_shares(s, logic.invert(negative), shape, 10, 2)
    share = None if s.is_dealer else a - b + c * (1 << f_out)
    return masked.exchanged(s, share, shape, 11, 3, scale=f_out)


def falling(party: Party, x: Shared, f: int = INNER_BITS) -> Shared:
    """e^x for -107 < x <= 0, with f fractional bits: no fewer than x has.

    Rounds and bits: those of exponential.exp.
    """
    return exponential.exp(party, _widened(x, f), softmax=True)


def _widened(x: Shared, f: int = INNER_BITS) -> Shared:
    """The same value with f fractional bits.  Local."""
    more = f - x.fractional_bits
    return replace(x.map(lambda a: local.left_shift(a, more)), fractional_bits=f)


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
    exchanges: int | None = None,
    profile: str = "local",
) -> Shared:
    """e^x_i / sum_j e^x_j along an axis, off by less than 2 ulp.

    Stable for all logits |x| < 2^(bits-1) ring units: the largest is subtracted first, and what is
    then so low that the share of all such in the sum is below an ulp counts as 0.

    Rounds: 12 for up to 10 classes compared all at once with exchanges 1.
    Raises:
        UsageError: a wrong axis, no or more than 65536 classes.
    """
    f = _check("softmax", x)

    def of_columns(x: Shared, classes: int) -> Shared:
        _, e, total = _shares(party, x, f, classes, bits, exchanges, profile)
        p = _denominator(classes)
        c, u = normalize.normalize(party, total, p.scheme, p.mantissa.center, p.factor.table)
        found = p.mantissa
        g = polynomial.evaluate(party, "softmax_mantissa", found.plan, [c], found.fractional)
        pair = ((g, found.bits), (u, p.factor.table.bits + 1))
        factors = [(_spread(factor, classes), width) for factor, width in pair]
        y = small_product.product(party, [*factors, (e, INNER_BITS + 3)], _drop(p, f))
        return replace(y, fractional_bits=f)

    return _along("softmax", x, axis, 1 << f, of_columns)


def log_softmax(
    party: Party,
    x: Shared,
    axis: int = -1,
    *,
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = None,
    profile: str = "local",
) -> Shared:
    """x_i - log sum_j e^x_j along an axis, off by less than 2 ulp and 2^-19.

    Arguments and errors: as `softmax`.
    Rounds: those of the maximum, exchanges + 3, and 9.
    """
    f = _check("log_softmax", x)

    def of_columns(x: Shared, classes: int) -> Shared:
        d, _, total = _shares(party, x, f, classes, bits, exchanges, profile)
        log = logarithm.log(party, total, INNER_BITS + classes.bit_length())
        log = truncation.truncate(party, log, INNER_BITS - f)
        return arithmetic.sub(d, log.map(lambda a: local.at(a, None)))

    return _along("log_softmax", x, axis, 0, of_columns)


def _along(
    name: str, x: Shared, axis: int, alone: int, function: Callable[[Shared, int], Shared]
) -> Shared:
    """A function of columns [classes, rows], along an axis.

    Args:
        alone: what it is of one class, in ring units.
    """
    shape = x.shape.as_list()
    axis = checks.axis_of(name, axis, len(shape))
    classes = shape[axis]
    if not 1 <= classes <= MOST_CLASSES:
        raise UsageError(f"{name} wants 1 to {MOST_CLASSES} classes. Received: {classes}.")
    if classes == 1 or 0 in shape:
        return arithmetic.add_public(x.map(lambda a: 0 * a), np.int64(alone))
    order = [axis, *(i for i in range(len(shape)) if i != axis)]
    back = [order.index(i) for i in range(len(shape))]
    moved = [shape[i] for i in order]
    columns = x.map(lambda a: local.reshape(local.transpose(a, order), [classes, -1]))
    y = function(columns, classes)
    return y.map(lambda a: local.transpose(local.reshape(a, moved), back))


def _shares(
    party: Party,
    x: Shared,
    f: int,
    classes: int,
    bits: int,
    exchanges: int | None,
    profile: str,
) -> tuple[Shared, Shared, Shared]:
    """x less the largest of its column, e^ of it, and the sum of these with INNER_BITS."""
    rows = int(x.shape[1])
    cut = _cutoff(f, classes)
    width = compare.moved(bits + 1, cut)
    count = compare.few_openings(rows * classes, width, exchanges)
    if extremes.choose("auto", rows, classes, profile, bits + 1) == "all-pairs":
        hot = extremes.one_hot(party, x, bits + 1, count)
        largest = extremes.pick(party, hot, x)
    else:
        largest = extremes.reduce_max(party, x, 0, bits=bits + 1, method="tree", exchanges=count)
    d = arithmetic.sub(x, largest.map(lambda a: local.at(a, None)))
    raised = arithmetic.add_public(d, np.int64(cut))
    low = convert.mask_bits(party, compare.msb(party, raised, width, count))
    e = convert.inject(party, low, falling(party, d), negated=True)
    return d, e, e.map(lambda a: local.reduce_sum(a, axis=0))


def _spread(x: Shared, classes: int) -> Shared:
    """One value for each class."""
    return x.map(lambda v: local.tile(v[None], [classes, 1]))


def _drop(p: power.Power, f: int) -> int:
    return p.drop + 2 * INNER_BITS - f
