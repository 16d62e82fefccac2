"""Reciprocal and division over the whole positive range of the ring.

1 / x = 2^-e g(c) for x = c 2^e (protocols/functions/normalize.py), g a polynomial.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import (
    approximation,
    normalize,
    normalize_plan,
    polynomial,
    power,
    small_product,
)
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session import slices
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

PRECISION = 20
# A range [low, high] with high <= MAX_NARROW_RATIO * low is one polynomial.
MAX_NARROW_RATIO = 2.2
# Bits of the numerator's and the quotient's ring elements: |v| < 2^14 at 16 fractional bits.
QUOTIENT_BITS = 31
# Most bits of a division's scale and numerator together: its powers of two fit a word.
MAX_DIVISION_BITS = 54


def check_reciprocal_scale(name: str, f: int) -> None:
    """Reject scales that the constants of these functions do not support."""
    if not 1 <= f <= 24:
        raise UsageError(
            f"{name} expects 1 to 24 fractional bits. Received: {f}.",
            code="unsupported-scale",
            operation=name,
            received=f,
            expected="1 to 24",
        )


@functools.cache
def _plan_reciprocal_power(
    f: int, bits: int, precision: int, signed: bool, lowest: int
) -> power.PowerPlan:
    check_reciprocal_scale("reciprocal", f)
    scheme = normalize_plan.plan_normalization(bits, precision, signed, lowest)
    offset = Fraction(2 * f - scheme.top)
    # constants below 2^-11 ulp vanish: 2^-12 * 2^7 * 2.1 ulp
    coarse, fine = (11, 0) if len(scheme.stages) == 2 else (0, 5)
    factor = power.tabulate_powers(scheme, Fraction(1), offset, coarse, fine, keep=5)
    mantissa = power.fit_mantissa(approximation.decimal_reciprocal, scheme, precision)
    return power.PowerPlan(scheme, mantissa, factor)


def reciprocal(
    party: Party, x: Shared, bits: int = 62, precision: int = PRECISION, signed: bool = False
) -> Shared:
    """Compute 1 / x for x > 0, at x's scale; 0 for x = 0, and for x < 0 unless signed.

    Args:
        x: ring element 0 < X < 2^bits (|X| < 2^bits with signed); zero and negative values above
            -2^bits give 0; others give arbitrary results.
        bits: a known bound saves comparisons.
        precision: 6 to 22; a lower one takes fewer dealt bits.
        signed: x of either sign, for about twice the comparisons.

    Off by 2^-precision of the result and 1.2 ulp at most.
    Rounds: 9 online (5 for bits <= 12), one more in total.
    """
    p = _plan_reciprocal_power(x.fractional_bits, bits, precision, signed, 0)
    return power.compute_power(party, x, p, x.fractional_bits)


# ---- a range that is known


@functools.cache
def _fit_reciprocal(f: int, low: float, high: float, precision: int) -> polynomial.FittedPolynomial:
    """Return one polynomial of x in ring units."""
    fitted = approximation.fit_approximation(
        approximation.decimal_reciprocal,
        Decimal(low),
        Decimal(high),
        f,
        approximation.polynomial_tolerance(precision),
    )
    # the scale may be too small to leave f fractional bits
    return polynomial.fit_polynomial(fitted, f, bits=max(2, fitted.limit.bit_length() + 1), spare=3)


def _default_reciprocal_precision(f: int, low: float, precision: int | None) -> int:
    """Return the given precision, or a quarter of an ulp of the largest result up to PRECISION."""
    if precision is not None:
        return precision
    return min(PRECISION, max(normalize_plan.PRECISIONS.start, f + 3 - math.frexp(low)[1]))


def plan_reciprocal(f: int, lowest: int, bits: int, precision: int) -> power.PowerPlan:
    """Return the plan of 1 / x for 2^lowest <= X < 2^bits; its last step is g(c) U."""
    return _plan_reciprocal_power(f, bits, precision, False, lowest)


def _plan_reciprocal_in_range(f: int, low: float, high: float, precision: int) -> power.PowerPlan:
    lowest = int(low * 2**f).bit_length() - 1
    bits = int(high * 2**f).bit_length()
    return _plan_reciprocal_power(f, bits, precision, False, lowest)


def _check_range(f: int, low: float, high: float) -> None:
    check_reciprocal_scale("reciprocal_in", f)
    if not 0 < low < high or low * 2**f < 2 or high * 2**f >= 2.0**62:
        raise UsageError(
            "reciprocal_in expects 0 < low < high, with low at two ulp or more and high below "
            f"2^{62 - f}. Received: {low}, {high}.",
            code="invalid-range",
            operation="reciprocal_in",
            received=f"{low}, {high}",
        )


def reciprocal_in(
    party: Party, x: Shared, low: float, high: float, precision: int | None = None
) -> Shared:
    """Compute 1 / x for a publicly known range low <= x <= high (reals), at x's scale.

    For [1, 2] (sigmoid) it is one polynomial; for [1, C] (softmax denominators) x is compared with
    the powers of two in between. Values outside the range give arbitrary results.

    Args:
        precision: 6 to 22. Default: 20, or less where that is a quarter of an ulp.

    Off by 2^-precision of the result and 1.2 ulp at most.
    Rounds: 1 online for high <= 2.2 low; 5 for up to 12 binades; else 9 (one more in total each).
    """
    f = x.fractional_bits
    _check_range(f, low, high)
    precision = _default_reciprocal_precision(f, low, precision)
    if high > MAX_NARROW_RATIO * low:
        return power.compute_power(party, x, _plan_reciprocal_in_range(f, low, high, precision), f)
    return _fit_reciprocal(f, low, high, precision).evaluate(party, "reciprocal_in", x)


# ---- division


@dataclass(frozen=True)
class _DivisionPlan:
    power: power.PowerPlan
    numerator_bits: int
    quotient_bits: int

    @property
    def factor_bits(self) -> tuple[int, int]:
        """Bits of x and of U."""
        return self.numerator_bits, self.power.factor.table.bits + 1

    @property
    def fractional_bits(self) -> int:
        """Fractional bits of x U in ulp, enough to make its rounding negligible."""
        return min(5, self.power.factor.bits)

    @property
    def scaled_drop(self) -> int:
        """Bits dropped from x U."""
        return self.power.factor.bits - self.fractional_bits

    @property
    def scaled_bits(self) -> int:
        """|x U| < 2^(scaled_bits - 1); g(c) may be slightly less than 1."""
        return self.quotient_bits + self.fractional_bits + 1

    @property
    def last_factor_bits(self) -> tuple[int, int]:
        """Bits of g(c) and of x U."""
        return self.power.mantissa.bits, self.scaled_bits

    @property
    def quotient_drop(self) -> int:
        """Bits dropped from g(c) x U."""
        return self.power.mantissa.fractional + self.fractional_bits


@functools.cache
def _plan_division(
    f: int, bits: int, signed: bool, precision: int, numerator_bits: int | None, quotient_bits: int
) -> _DivisionPlan:
    check_reciprocal_scale("divide", f)
    if numerator_bits is None:
        numerator_bits = min(QUOTIENT_BITS, MAX_DIVISION_BITS - f)
    scheme = normalize_plan.plan_normalization(bits, precision, signed)
    offset = Fraction(f - scheme.top)
    factor = None
    for spare in (4, 3, 2, 1):
        # U is off by 2^-(numerator_bits + spare) at most, times x and g(c): 1.1 * 2^-spare ulp
        keep = numerator_bits + spare
        coarse, fine = (keep + 6, 0) if len(scheme.stages) == 2 else (0, keep)
        try:
            factor = power.tabulate_powers(scheme, Fraction(1), offset, coarse, fine, keep)
            break
        except UsageError:
            if spare == 1:
                raise
    assert factor is not None
    mantissa = power.fit_mantissa(approximation.decimal_reciprocal, scheme, precision)
    power_plan = power.PowerPlan(scheme, mantissa, factor)
    return _DivisionPlan(power_plan, numerator_bits, quotient_bits)


@slices.slice_elementwise
def divide(
    party: Party,
    x: Shared | npt.ArrayLike,
    y: Shared,
    bits: int = 62,
    signed: bool = False,
    precision: int = PRECISION,
    numerator_bits: int | None = None,
    quotient_bits: int = QUOTIENT_BITS,
) -> Shared:
    """Compute x / y for y > 0, at their common scale; 0 for y = 0, and for y < 0 unless signed.

    x is multiplied by the power of two in 1 / y before the polynomial's factor, so that the error
    is relative to the quotient even where 1 / y is a few ulp.

    Args:
        x: private, of y's shape, or public reals that broadcast to it; its ring elements are below
            2^(numerator_bits - 1); by default 2^30 (|x| < 2^14 at 16 fractional bits), and 2^29
            (|x| < 32) at 24.
        y: as x of `reciprocal`.
        quotient_bits: the quotient's ring elements are below 2^(quotient_bits - 1), else the
            result
            is arbitrary.

    Off by 2^-precision of the quotient and 1.25 ulp at most (1.7 ulp if f + numerator_bits > 51).
    Rounds: 9 online (5 for bits <= 12), one more in total.
    Raises:
        UsageError: f + numerator_bits > 54: the powers of two do not fit a word.
    """
    f = y.fractional_bits
    p = _plan_division(f, bits, signed, precision, numerator_bits, quotient_bits)
    x = _share_numerator(x, y)
    power_plan = p.power
    c, u = normalize.normalize_to_mantissa(
        party, y, power_plan.scheme, power_plan.mantissa.center, power_plan.factor.table
    )
    g = polynomial.evaluate_polynomial(
        party, "mantissa", power_plan.mantissa.plan, [c], power_plan.mantissa.fractional
    )
    first, second = p.factor_bits
    scaled = small_product.multiply_small(
        party, [(x, first), (u, second)], p.scaled_drop, p.scaled_bits + 1
    )
    pair = list(zip((g, scaled), p.last_factor_bits, strict=True))
    return replace(small_product.multiply_small(party, pair, p.quotient_drop), fractional_bits=f)


def _share_numerator(x: Shared | npt.ArrayLike, y: Shared) -> Shared:
    """Return x as shares of y's shape; a public x has masks of zero."""
    if isinstance(x, Shared):
        if x.fractional_bits != y.fractional_bits or x.dealer != y.dealer:
            raise UsageError(
                f"divide expects operands of one scale and one dealer. Received: {x!r} and {y!r}.",
                code="operand-mismatch",
                operation="divide",
                received=f"{x!r}, {y!r}",
            )
        return x
    ring = FixedPoint(y.fractional_bits).encode(x)
    return arithmetic.add_constant(y.map(lambda a: 0 * a), ring)
