"""GELU, x Phi(x) with Phi the normal distribution, and its slope.

Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016; how it is computed is this
project's.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np

from tfe_bench.protocols.functions import approximation, polynomial
from tfe_bench.protocols.nn import gated
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, masked
from tfe_bench.protocols.ring.checks import check_ring, check_scale
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

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
        parts: p and q.
    """

    step: int
    parts: tuple[polynomial.Fitted, polynomial.Fitted]


def fitted(function: Callable[[Decimal], Decimal], f: int) -> Bump:
    """A bump for f fractional bits, off by less than an eighth of an ulp where it is not 0."""
    half_ulp, eighths = Decimal(2) ** -(f + 1), 8
    while function(Decimal(2 * eighths) / 8) > half_ulp:
        eighths += 1
    step = Decimal(eighths) / 8
    off = function(step)

    def outer(a: Decimal) -> Decimal:
        return function(step + a) - off

    p, q = (
        polynomial.fitted(
            approximation.approximate(part, Decimal(0), step, f, half_ulp / 8, False), f
        )
        for part in (function, outer)
    )
    return Bump(eighths << (f - 3), (p, q))


@functools.cache
def bump(f: int) -> Bump:
    """GELU's."""
    return fitted(_bump, f)


def gelu(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """x Phi(x), the exact GELU, off by less than 3 ulp, for every |x| < 2^(bits-1) ring units.

    gelu(x) = max(x, 0) - h(|x|) with h(a) = a Phi(-a), which is below half an ulp from 2 S on.
    Five comparisons (with -2S, -S, 0, S, 2S) give min(|x|, S) and max(|x| - S, 0) where |x| < 2S
    and 0 elsewhere; a polynomial of each, both exchanged together with max(x, 0), make h.

    Args:
        exchanges: of the comparisons; None takes 1 for few elements, 2 for many.

    Rounds: exchanges + 3 (+ 4 with dealing).  Bits sent: those of five comparisons and of both
        steps.
    Raises:
        UsageError: another ring, fewer than 8 or more than 16 fractional bits.
    """
    return bumped(party, "gelu", x, bump, bits, exchanges)


def bumped(
    party: Party,
    name: str,
    x: Shared,
    bump: Callable[[int], Bump],
    bits: int,
    exchanges: int | None,
) -> Shared:
    """max(x, 0) less a bump of |x|, which depends on the fractional bits.

    Rounds, bits and errors: as `gelu`.
    """
    check_scale(name, check_ring(name, x, known=True), gated.FEWEST_BITS, gated.MOST_BITS)
    f = x.fractional_bits
    shape, own = x.shape.as_list(), bump(f)
    flat = x.map(lambda a: local.reshape(a, [-1]))
    n = int(flat.shape[0])
    width = compare.moved(bits, 2 * own.step)
    knots = np.array([[k * own.step] for k in (-2, -1, 0, 1, 2)], np.int64)
    five = replace(
        flat.map(lambda a: local.tile(a[None], [5, 1])),
        m=None if flat.m is None else flat.m[None] - knots,
    )
    below = convert.mask_bits(
        party, compare.msb(party, five, width, compare.few_openings(n, width, exchanges))
    )
    under = [logic.rearrange(below, (5, n), operator.itemgetter(i), n) for i in range(5)]
    first, second = _parts(party, own, under, flat)
    terms = [(part.plan, [a]) for part, a in zip(own.parts, (first, second), strict=True)]
    y = gated.positive_less(party, "gelu", under[2], flat, terms)
    return y.map(lambda a: local.reshape(a, shape))


def _parts(party: Party, own: Bump, under: list[MaskedBits], x: Shared) -> tuple[Shared, Shared]:
    """min(|x|, S) and max(|x| - S, 0) where |x| < 2S, else 0; both moved by their centers.

    Rounds: 1 (2 with dealing).  Bits sent: D 576, E1, E2 128 per element each.
    """
    # [-2S, -S), [-S, 0), [0, S), [S, 2S)
    far_left, left, right, far_right = (logic.xor(a, b) for a, b in itertools.pairwise(under))
    if isinstance(party, Counting):
        n = x.shape.num_elements()
        both = party.exchanged([2, n], 576 * n, *under, x, scale=x.fractional_bits)
        return both.map(operator.itemgetter(0)), both.map(operator.itemgetter(1))
    import tensorflow as tf

    s = party.site("gelu_parts", own.step, dealer=x.dealer)
    shape = local.shape(x.any)
    dealt = [
        convert.inject_shares(s, bits, x, 2 * i, i)
        for i, bits in enumerate((right, left, far_right, far_left))
    ]
    far = convert.b2a_shares(s, logic.xor(far_left, far_right), shape, 8, 4)
    share = None
    if not s.is_dealer:
        a, b, c, d = dealt
        edge = far * own.step
        share = tf.stack([a - b + edge, c - d - edge])
    both = masked.exchanged(s, share, tf.concat([[2], shape], 0), 9, 5, scale=x.fractional_bits)
    both = arithmetic.moved(both, np.array([[-part.center] for part in own.parts], np.int64))
    first, second = (both.map(operator.itemgetter(i)) for i in range(2))
    return first, second


# ---- the slope, for gradients


slope = gated.Slope("gelu_slope", _slope, 5)
