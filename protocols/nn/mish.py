"""Mish, x tanh(softplus(x)), and its slope.

Source: Misra, Mish: a self regularized non-monotonic activation function, BMVC 2020; how it is
computed is this project's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from tfe_bench.protocols.functions import approximation, polynomial, small_product
from tfe_bench.protocols.nn import activations, gated, softplus
from tfe_bench.protocols.ring import arithmetic, compare
from tfe_bench.protocols.ring.checks import check_ring, check_scale
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# What is left of x is multiplied by up to 16, so it has these fractional bits more than x.
_MORE = 5
# Fractional bits of e^-|x| above 0, where it counts by its square, and below.
_ABOVE, _BELOW = 21, 24


def _left(t: Decimal) -> Decimal:
    """1 - tanh(softplus(x)) for t = e^-x."""
    return 2 * t * t / (1 + 2 * t + 2 * t * t)


def _kept(t: Decimal) -> Decimal:
    """tanh(softplus(x)) for t = e^x."""
    return (t * t + 2 * t) / (t * t + 2 * t + 2)


@dataclass(frozen=True, eq=False)
class _Half:
    """One side of 0: |x| times a polynomial of t = e^-|x|.

    Attributes:
        inner: fractional bits of t.
    """

    inner: int
    part: polynomial.Fitted


@functools.cache
def edge(f: int) -> int:
    """Where |x| e^-|x| falls below an eighth of an ulp, in ring units."""
    least, a = Decimal(2) ** -(f + 3), 1
    while a * Decimal(-a).exp() > least:
        a += 1
    return a << f


@functools.cache
def _halves(f: int) -> tuple[_Half, _Half]:
    def half(function: Callable[[Decimal], Decimal], inner: int) -> _Half:
        error = Decimal(2) ** -(f + _MORE + 2)
        found = approximation.approximate(function, Decimal(0), Decimal(1), inner, error, False)
        bits, more = found.limit.bit_length() + 2, f + _MORE
        return _Half(inner, polynomial.fitted(found, more, bits=bits, out_bits=more + 2))

    return half(_left, _ABOVE), half(_kept, _BELOW)


def mish(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """x tanh(log(1 + e^x)), off by less than 3 ulp, for every |x| < 2^(bits-1) ring units.

    With t = e^-|x| it is x less x 2t^2 / (1 + 2t + 2t^2) above 0, and x (t^2 + 2t) / (t^2 + 2t + 2)
    below: two products of |x|, one of which is 0, with polynomials of t.

    Args:
        exchanges: of the comparisons; None takes 1 for few elements, 2 for many.

    Rounds: exchanges + 5 (+ 6 with dealing).  Bits sent: those of three ReLUs, two exponentials,
        polynomials and products.
    Raises:
        UsageError: another ring, fewer than 8 or more than 16 fractional bits.
    """
    check_scale("mish", check_ring("mish", x, known=True), gated.FEWEST_BITS, gated.MOST_BITS)
    f = x.fractional_bits
    y, *both = softplus.sides(party, x, edge(f), bits, exchanges)
    width = edge(f).bit_length() + 1
    for side, own in zip(both, _halves(f), strict=True):
        t = activations.falling(party, arithmetic.neg(side), own.inner)
        part = own.part.evaluate(party, "polyval", t)
        term = small_product.product(party, [(side, width), (part, f + _MORE + 1)], f + _MORE)
        y = arithmetic.sub(y, term)
    return y


# ---- the slope, for gradients


def _slope(x: Decimal) -> Decimal:
    grown = x.exp()
    square = (1 + grown) ** 2
    kept = (square - 1) / (square + 1)
    return kept + x * (1 - kept * kept) * grown / (1 + grown)


slope = gated.Slope("mish_slope", _slope, 11)
