"""GELU, x Phi(x) with Phi the normal distribution, and its slope.

Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016; how it is computed is this
project's.
"""

from __future__ import annotations

import functools
import itertools
import operator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import approximation, piecewise, polynomial
from tfe_bench.protocols.ring import compare, convert, logic
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

FEWEST_BITS, MOST_BITS = 8, 16
# 1 / sqrt(2 pi)
_PEAK = Decimal("0.39894228040143267793994605993438186847585863116493465766592582967065792589930")
_LEAST = Decimal(10) ** -70


def _density(a: Decimal) -> Decimal:
    return _PEAK * (-a * a / 2).exp()


def _below(a: Decimal) -> Decimal:
    """Phi(-a) for a >= 0: 1/2 - phi(a) (a + a^3/3 + a^5/(3 5) + ...)."""
    total, term, n = Decimal(0), a, 1
    while term > _LEAST:
        total += term
        n += 2
        term = term * a * a / n
    return Decimal(1) / 2 - _density(a) * total


def _bump(a: Decimal) -> Decimal:
    """max(x, 0) - gelu(x) for |x| = a."""
    return a * _below(a)


def _slope(x: Decimal) -> Decimal:
    rising = _below(-x) if x < 0 else 1 - _below(x)
    return rising + x * _density(x)


@dataclass(frozen=True, eq=False)
class Bump:
    """a Phi(-a) for a < 2 step as p(min(a, step)) + q(max(a - step, 0)); 0 from there on.

    Attributes:
        step: in ring units.
        centers: what the arguments are moved by, so that they are small.
        plans: of p and q.
    """

    step: int
    centers: tuple[int, int]
    plans: tuple[polynomial.Plan, polynomial.Plan]


@functools.cache
def bump(f: int) -> Bump:
    """The bump for f fractional bits, off by less than an eighth of an ulp where it is not 0."""
    half_ulp, eighths = Decimal(2) ** -(f + 1), 8
    while _bump(Decimal(2 * eighths) / 8) > half_ulp:
        eighths += 1
    step = Decimal(eighths) / 8
    off = _bump(step)

    def outer(a: Decimal) -> Decimal:
        return _bump(step + a) - off

    def planned(part: approximation.Function) -> tuple[int, polynomial.Plan]:
        found = approximation.approximate(part, Decimal(0), step, f, half_ulp / 8, False)
        more = max(0, f + 2 - found.scale)
        whole = {(i,): a << more for i, a in enumerate(found.coefficients)}
        plan = polynomial.plan((found.limit.bit_length() + 1,), whole, found.scale + more - f)
        return found.center, plan

    (first, p), (second, q) = planned(_bump), planned(outer)
    return Bump(eighths << (f - 3), (first, second), (p, q))


def _check(x: Any) -> int:
    if not isinstance(x, Shared):
        raise UsageError(f"gelu wants a private tensor. Received: {type(x).__name__}.")
    fits = x.limbs == 1 and x.ring_bits == 64 and FEWEST_BITS <= x.fractional_bits <= MOST_BITS
    if not fits:
        raise UsageError(
            f"gelu wants a value of Z_2^64 with {FEWEST_BITS} to {MOST_BITS} fractional bits. "
            f"Received: {x!r}. Rescale it: cast(x, {MOST_BITS})."
        )
    if x.shape.rank is None or None in x.shape.as_list():
        raise UsageError(f"gelu wants a known shape. Received: {x.shape}.")
    return int(x.fractional_bits)


def _count(n: int, width: int, openings: int | None) -> int:
    """Of 5 n comparisons."""
    if openings is not None:
        return openings
    return 1 if n <= 4096 and width <= compare.MOST_AT_ONCE else 2


def gelu(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, openings: int | None = None
) -> Shared:
    """x Phi(x), off by less than 3 ulp, for every |x| < 2^(bits-1) ring units.

    gelu(x) = max(x, 0) - h(|x|) with h(a) = a Phi(-a), which is below half an ulp from 2 S on.
    Five comparisons (with -2S, -S, 0, S, 2S) give min(|x|, S) and max(|x| - S, 0) where |x| < 2S
    and 0 elsewhere; a polynomial of each, both opened together with max(x, 0), make h.

    Args:
        openings: of the comparisons; None takes 1 for few elements, 2 for many.

    Rounds: openings + 3 (cold + 4).  Bits sent: those of five comparisons and of both steps.
    Raises:
        UsageError: another ring, fewer than 8 or more than 16 fractional bits.
    """
    f = _check(x)
    shape, own = x.shape.as_list(), bump(f)
    flat = x.map(lambda a: local.reshape(a, [-1]))
    n = int(flat.shape[0])
    width = compare.moved(bits, 2 * own.step)
    knots = np.array([[k * own.step] for k in (-2, -1, 0, 1, 2)], np.int64)
    five = replace(
        flat.map(lambda a: local.tile(a[None], [5, 1])),
        m=None if flat.m is None else flat.m[None] - knots,
    )
    below = convert.open_bits(party, compare.msb(party, five, width, _count(n, width, openings)))
    under = [logic.rearrange(below, (5, n), operator.itemgetter(i), n) for i in range(5)]
    first, second = _parts(party, own, under, flat)
    y = _joined(party, own, under[2], flat, first, second)
    return y.map(lambda a: local.reshape(a, shape))


def _parts(party: Party, own: Bump, under: list[MaskedBits], x: Shared) -> tuple[Shared, Shared]:
    """min(|x|, S) and max(|x| - S, 0) where |x| < 2S, else 0; both moved by their centers.

    Rounds: 1 (cold 2).  Bits sent: D 576, E1, E2 128 per element each.
    """
    # [-2S, -S), [-S, 0), [0, S), [S, 2S)
    far_left, left, right, far_right = (logic.xor(a, b) for a, b in itertools.pairwise(under))
    if isinstance(party, Counting):
        n = x.shape.num_elements()
        cost = Cost(576 * n, 128 * n, 128 * n, rounds=1, cold=2)
        both = replace(x, m=party.sent(cost, [2, n], *under, x))
        return both.map(operator.itemgetter(0)), both.map(operator.itemgetter(1))
    import tensorflow as tf

    s = party.site("gelu_parts", own.step, dealer=x.dealer)
    shape = tf.shape(x.any, out_type=tf.int64)
    dealt = [
        convert.inject_shares(s, bits, x, 2 * i, i)
        for i, bits in enumerate((right, left, far_right, far_left))
    ]
    far = convert.b2a_shares(s, logic.xor(far_left, far_right), shape, 8, 4)
    both = tf.concat([[2], shape], 0)
    m = None
    if not s.is_dealer:
        a, b, c, d = dealt
        edge = far * own.step
        m = s.open_mask(tf.stack([a - b + edge, c - d - edge]), 9, 5)
        m -= tf.constant([[center] for center in own.centers], tf.int64)
    l1, l2 = s.new_mask(both, 9)
    found = Shared(m, l1, l2, x.dealer, x.fractional_bits)
    first, second = (found.map(operator.itemgetter(i)) for i in range(2))
    return first, second


def _joined(
    party: Party, own: Bump, negative: MaskedBits, x: Shared, first: Shared, second: Shared
) -> Shared:
    """max(x, 0) - h.

    Rounds: 1 (cold 2).  Bits sent: D 128 and those of the plans, E1, E2 64 per element each.
    """
    if isinstance(party, Counting):
        n, words = x.shape.num_elements(), sum(plan.words for plan in own.plans)
        cost = Cost((128 + 64 * words) * n, 64 * n, 64 * n, rounds=1, cold=2)
        return replace(x, m=party.sent(cost, [n], negative, x, first, second))
    import tensorflow as tf

    s = party.site("gelu", own.plans, x.fractional_bits, dealer=x.dealer)
    positive = convert.inject_shares(s, negative, x, 0, 0, negated=True)
    p, q = (
        polynomial.shares(s, plan, [part], 2 + i, 1 + i)
        for i, (plan, part) in enumerate(zip(own.plans, (first, second), strict=True))
    )
    m = None if s.is_dealer else s.open_mask(positive - p - q, 4, 3)
    l1, l2 = s.new_mask(tf.shape(x.any, out_type=tf.int64), 4)
    return Shared(m, l1, l2, x.dealer, x.fractional_bits)


# ---- the slope, for gradients

_EDGE = 5
_TOLERANCE = Decimal(2) ** -11


@functools.cache
def _slope_pieces() -> piecewise.Pieces:
    return piecewise.fit(_slope, -_EDGE, _EDGE, 0, 1, _TOLERANCE)


def slope(party: Party, x: Shared, bits: int = compare.LAYER_BITS) -> Shared:
    """Phi(x) + x phi(x) with piecewise.RESULT_BITS fractional bits, off by less than 2^-9.5.

    Args:
        bits: |x| < 2^(bits-1) ring units, of 16 fractional bits.

    Rounds: 3 (cold 4).  Bits sent: those of piecewise.evaluate.
    Raises:
        UsageError: as piecewise.evaluate.
    """
    # (one bit more: x is compared with knots other than 0)
    return piecewise.evaluate(party, "gelu_slope", x, _slope_pieces(), bits + 1)
