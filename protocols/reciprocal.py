"""Reciprocal and division over the whole positive range of the ring.

1 / x = 2^-e g(c) for x = c 2^e (protocols/normalize.py), g a polynomial.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from tfe_bench.errors import UsageError
from tfe_bench.protocols import approximation, normalize, polynomial, power, product
from tfe_bench.protocols.cost import Cost
from tfe_bench.protocols.party import Party
from tfe_bench.protocols.sharing import Shared

PRECISION = 20
# A range [low, high] with high <= NARROW * low is one polynomial.
NARROW = 2.2
# Bits of the numerator's and the quotient's ring elements: |v| < 2^14 at 16 fractional bits.
QUOTIENT_BITS = 31


def check_fractional(name: str, f: int) -> None:
    """Refuses scales that the constants of these functions were not made for."""
    if not 1 <= f <= 24:
        raise UsageError(f"{name} wants 1 to 24 fractional bits. Received: {f}.")


@functools.cache
def _power(f: int, bits: int, precision: int, signed: bool, lowest: int) -> power.Power:
    check_fractional("reciprocal", f)
    scheme = normalize.scheme(bits, precision, signed, lowest)
    offset = Fraction(2 * f - scheme.top)
    keep = 5
    # constants below 2^-11 ulp vanish: 2^-12 * 2^7 * 2.1 ulp
    coarse, fine = (11, 0) if len(scheme.stages) == 2 else (0, keep)
    factor, _ = power.factors(scheme, Fraction(1), offset, coarse, fine, keep)
    mantissa = power.mantissa(approximation.reciprocal, scheme, precision)
    return power.Power(scheme, mantissa, factor, keep)


def reciprocal(
    party: Party, x: Shared, bits: int = 62, precision: int = PRECISION, signed: bool = False
) -> Shared:
    """1 / x for x > 0, at x's scale; 0 for x = 0, and for x < 0 unless signed.

    Args:
        x: ring element 0 < X < 2^bits (|X| < 2^bits with signed); zero and negative values above
            -0.98 * 2^bits give 0; others are garbage.
        bits: a bound that is known saves comparisons.
        precision: 6 to 22; less of it takes fewer dealt bits.
        signed: x of either sign, for about twice the comparisons.

    Off by 2^-precision of the result and 1.2 ulp at most.
    Rounds: 9 (6 for bits <= 12), cold one more.  Bits sent: `reciprocal_cost`.
    """
    p = _power(x.fractional_bits, bits, precision, signed, 0)
    return power.power(party, x, p, x.fractional_bits)


def reciprocal_cost(
    n: int, f: int, bits: int = 62, precision: int = PRECISION, signed: bool = False
) -> Cost:
    """Cost of `reciprocal` for n elements with f fractional bits."""
    return power.power_cost(n, _power(f, bits, precision, signed, 0))


# ---- a range that is known


@functools.cache
def _direct(f: int, low: float, high: float, precision: int) -> tuple[polynomial.Plan, int]:
    """One polynomial of x in ring units: the plan and the center."""
    found = approximation.approximate(
        approximation.reciprocal, Decimal(low), Decimal(high), f, precision
    )
    whole = {(i,): a for i, a in enumerate(found.coefficients)}
    # the scale may be too small for f fractional bits to be left
    more = max(0, f + 3 - found.scale)
    whole = {i: a << more for i, a in whole.items()}
    bits = max(2, found.limit.bit_length() + 1)
    return polynomial.plan((bits,), whole, found.scale + more - f), found.center


def _ranged(f: int, low: float, high: float, precision: int) -> power.Power:
    lowest = int(low * 2**f).bit_length() - 1
    bits = int(high * 2**f).bit_length()
    return _power(f, bits, precision, False, lowest)


def _check_range(f: int, low: float, high: float) -> None:
    check_fractional("reciprocal_in", f)
    if not 0 < low < high or low * 2**f < 2 or high * 2**f >= 2.0**62:
        raise UsageError(
            "reciprocal_in wants 0 < low < high, with low at two ulp or more and high below "
            f"2^{62 - f}. Received: {low}, {high}."
        )


def reciprocal_in(
    party: Party, x: Shared, low: float, high: float, precision: int = PRECISION
) -> Shared:
    """1 / x for a publicly known range low <= x <= high (reals), at x's scale.

    For [1, 2] (sigmoid) it is one polynomial; for [1, C] (softmax denominators) x is compared with
    the powers of two in between.  Values outside the range give garbage.

    Off by 2^-precision of the result and 1.2 ulp at most.
    Rounds: 1 for high <= 2.2 low; 5 for up to 12 octaves; else 8 (cold one more each).
    Bits sent: `reciprocal_in_cost`.
    """
    f = x.fractional_bits
    _check_range(f, low, high)
    if high > NARROW * low:
        return power.power(party, x, _ranged(f, low, high, precision), f)
    plan, center = _direct(f, low, high, precision)
    centered = replace(x, m=None if x.m is None else x.m - center)
    return polynomial.evaluate(party, "reciprocal_in", plan, [centered], f)


def reciprocal_in_cost(
    n: int, f: int, low: float, high: float, precision: int = PRECISION
) -> Cost:
    """Cost of `reciprocal_in` for n elements with f fractional bits."""
    _check_range(f, low, high)
    if high > NARROW * low:
        return power.power_cost(n, _ranged(f, low, high, precision))
    return polynomial.evaluate_cost(n, _direct(f, low, high, precision)[0])
