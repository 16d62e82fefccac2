"""Mish, x tanh(softplus(x)), and its slope.

Source: Misra, Mish: a self regularized non-monotonic activation function, BMVC 2020; the protocol
is this project's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from tfe_bench.protocols.functions import approximation, polynomial, small_product
from tfe_bench.protocols.nn import activations, gated, softplus
from tfe_bench.protocols.ring import arithmetic, compare
from tfe_bench.protocols.ring.checks import check_fractional_bits_range, check_private_64bit_tensor
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# The factor of x is multiplied by up to 16, so it has this many fractional bits more than x.
_EXTRA_BITS = 5
# Fractional bits of e^-|x| for x above 0, where the result depends on its square, and below.
_ABOVE, _BELOW = 21, 24


def _mish_upper_factor(t: Decimal) -> Decimal:
    """Compute 1 - tanh(softplus(x)) for t = e^-x."""
    return 2 * t * t / (1 + 2 * t + 2 * t * t)


def _mish_lower_factor(t: Decimal) -> Decimal:
    """Compute tanh(softplus(x)) for t = e^x."""
    return (t * t + 2 * t) / (t * t + 2 * t + 2)


@dataclass(frozen=True, eq=False)
class _MishHalf:
    """One side of 0: |x| times a polynomial of t = e^-|x|.

    Attributes:
        inner: fractional bits of t.
    """

    inner: int
    part: polynomial.FittedPolynomial


@functools.cache
def mish_cutoff_units(f: int) -> int:
    """Return the ring units from which |x| e^-|x| is below an eighth of an ulp."""
    tolerance, a = Decimal(2) ** -(f + 3), 1
    while a * Decimal(-a).exp() > tolerance:
        a += 1
    return a << f


@functools.cache
def _fit_halves(f: int) -> tuple[_MishHalf, _MishHalf]:
    def fit_mish_half(function: Callable[[Decimal], Decimal], inner: int) -> _MishHalf:
        error = Decimal(2) ** -(f + _EXTRA_BITS + 2)
        polynomial_fit = approximation.fit_approximation(
            function, Decimal(0), Decimal(1), inner, error, False
        )
        bits, result_bits = polynomial_fit.limit.bit_length() + 2, f + _EXTRA_BITS
        return _MishHalf(
            inner,
            polynomial.fit_polynomial(
                polynomial_fit, result_bits, bits=bits, out_bits=result_bits + 2
            ),
        )

    return fit_mish_half(_mish_upper_factor, _ABOVE), fit_mish_half(_mish_lower_factor, _BELOW)


def mish(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """Compute x tanh(log(1 + e^x)), error below 3 ulp, for every |x| < 2^(bits-1) ring units.

    With t = e^-|x| it is x - x 2t^2 / (1 + 2t + 2t^2) above 0, and x (t^2 + 2t) / (t^2 + 2t + 2)
    below: two products of |x|, one of which is 0, with polynomials of t.

    Args:
        exchanges: of the comparisons; None: 1 for few elements, 2 for many.

    Rounds: exchanges + 5 online, exchanges + 6 in total. Bits sent: those of three ReLUs, two
    exponentials, polynomials and products.
    Raises:
        UsageError: another ring, fewer than 8 or more than 16 fractional bits.
    """
    check_fractional_bits_range(
        "mish", check_private_64bit_tensor("mish", x, known=True), gated.MIN_BITS, gated.MAX_BITS
    )
    f = x.fractional_bits
    y, *distances = softplus.split_sides(party, x, mish_cutoff_units(f), bits, exchanges)
    width = mish_cutoff_units(f).bit_length() + 1
    for distance, half in zip(distances, _fit_halves(f), strict=True):
        t = activations.exp_nonpositive(party, arithmetic.neg(distance), half.inner)
        part = half.part.evaluate(party, "polyval", t)
        term = small_product.multiply_small(
            party, [(distance, width), (part, f + _EXTRA_BITS + 1)], f + _EXTRA_BITS
        )
        y = arithmetic.sub(y, term)
    return y


# ---- the slope, for gradients


def _mish_slope(x: Decimal) -> Decimal:
    grown = x.exp()
    square = (1 + grown) ** 2
    tanh_softplus = (square - 1) / (square + 1)
    return tanh_softplus + x * (1 - tanh_softplus * tanh_softplus) * grown / (1 + grown)


slope = gated.Slope("mish_slope", _mish_slope, 11)
