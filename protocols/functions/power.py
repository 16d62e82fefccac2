"""x^a for a = -1, -1/2, 1/2: a power of two (or of sqrt 2) times a polynomial of c.

With x = c 2^e in ring units, f(x) = g(c) * 2^(a e + b): `normalize` gives c and, as a table over
its segments, U = 2^(a e + b); g(c) is one round and the product another.
"""

from __future__ import annotations

import decimal
import functools
import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import (
    approximation,
    normalize,
    normalize_plan,
    polynomial,
    small_product,
)
from tfe_bench.protocols.functions.polynomial import Plan
from tfe_bench.protocols.session import slices
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Least fractional bits of the powers of sqrt(2).
MIN_FINE_BITS = 12
_ONE = Fraction(1)


@dataclass(frozen=True)
class MantissaPolynomial:
    """g(c) as one round.

    Attributes:
        center: subtracted from c, in its units.
        bits: |g(c)| < 2^(bits - 1) in units of 2^-fractional.
    """

    plan: Plan
    center: int
    fractional: int
    bits: int


@functools.cache
def fit_mantissa(
    function: approximation.Function,
    scheme: normalize_plan.NormalizationPlan,
    precision: int,
    sqrt2: bool = False,
    times: Fraction = _ONE,
) -> MantissaPolynomial:
    """Return the polynomial of c; with sqrt2 it is sqrt(2) g(c), and `times` of that, in (1/2, 1].

    Off by a factor of 1 +- 0.65 * 2^-precision at most.
    """
    fitted = approximation.fit_approximation(
        function,
        scheme.low,
        scheme.high,
        scheme.units,
        approximation.polynomial_tolerance(precision),
    )
    fractional = precision + 4
    coefficients = fitted.coefficients
    if sqrt2 or times != 1:
        with decimal.localcontext(approximation.DIGITS):
            multiplier = (
                Decimal(times.numerator) / times.denominator * (Decimal(2).sqrt() if sqrt2 else 1)
            )
            coefficients = tuple(int((a * multiplier).to_integral_value()) for a in coefficients)
    bits = fractional + 3  # below 2.1
    plan = polynomial.plan_polynomial(
        (fitted.limit.bit_length() + 1,),
        {(i,): a for i, a in enumerate(coefficients)},
        fitted.scale - fractional,
        bits + 1,
    )
    return MantissaPolynomial(plan, fitted.center, fractional, bits)


@dataclass(frozen=True)
class PowerPlan:
    """Public parameters of one power."""

    scheme: normalize_plan.NormalizationPlan
    mantissa: MantissaPolynomial
    factor: PowerTable

    @property
    def dropped_mantissa_bits(self) -> int:
        """Fractional bits of g(c) U beyond the result's."""
        return self.mantissa.fractional + self.factor.bits


def exact_power_of_two(exponent: Fraction) -> Fraction:
    """Return 2^exponent for a multiple of 1/2, to 60 digits: alike on every host."""
    whole, half = divmod(exponent * 2, 2)
    root = Fraction(1)
    if half:
        with decimal.localcontext(approximation.DIGITS):
            root = Fraction(Decimal(2).sqrt())
    return root * Fraction(2) ** int(whole)


@dataclass(frozen=True)
class PowerTable:
    """U as a table.

    Attributes:
        bits: its fractional bits.
        sqrt2: the polynomial contains a factor sqrt(2).
    """

    table: normalize_plan.Table
    bits: int
    sqrt2: bool


def tabulate_powers(
    scheme: normalize_plan.NormalizationPlan,
    slope: Fraction,
    offset: Fraction,
    coarse: int,
    fine: int,
    keep: int,
) -> PowerTable:
    """Return 2^(slope * shift + offset) with the shift of x's segments; 0 for x = 0.

    Args:
        coarse: most fractional bits of the first of two stages' constants.
        fine: fractional bits of the last stage's constants, or fewer to fit 63 bits in all.
        keep: most fractional bits of the product.
    """
    first = scheme.stages[0].segments
    stages = [[(s.sign, slope * s.shift + offset) for s in first]]
    sqrt2, bits = False, 0
    if len(scheme.stages) == 2:
        # The fine constants are 1 or more, the coarse ones whole powers of two.
        second = [slope * s.shift for s in scheme.stages[1].segments]
        exponent_shift = min(second)
        sqrt2 = (slope * first[-1].shift + offset + exponent_shift).denominator == 2
        exponent_shift -= Fraction(1, 2) if sqrt2 else 0
        stages = [[(sign, e + exponent_shift) for sign, e in stages[0]]]
        stages.append([(1, e - min(second)) for e in second])
        bits = min(coarse, max(0, -math.floor(min(e for _, e in stages[0]))))
    while True:
        fractional = [bits, fine] if len(stages) == 2 else [fine]
        values = [
            [_power_to_fixed_point(sign, e, b) for sign, e in stage]
            for stage, b in zip(stages, fractional, strict=True)
        ]
        kept_bits = min(keep, sum(fractional))
        largest = None
        if slope > 0:
            exponent = slope * scheme.max_shift + offset - (Fraction(1, 2) if sqrt2 else 0)
            largest = _power_to_fixed_point(1, exponent, sum(fractional)) + 1
            if len(stages) == 2 and fine:  # the amount that the fine constants' rounding adds
                largest += max(abs(v) for v in values[0])
        try:
            table = normalize_plan.build_segment_table(
                values, sum(fractional) - kept_bits, largest=largest
            )
            return PowerTable(table, kept_bits, sqrt2)
        except UsageError:
            if fine <= MIN_FINE_BITS:
                raise
            fine -= 1


def _power_to_fixed_point(sign: int, exponent: Fraction, fractional: int) -> int:
    return sign * int(exact_power_of_two(exponent + fractional) + Fraction(1, 2)) if sign else 0


@slices.slice_elementwise
def compute_power(party: Party, x: Shared, p: PowerPlan, fractional_bits: int) -> Shared:
    """Compute g(c) U. Rounds: p.scheme.rounds + 2 online (one more in total)."""
    u_bits = p.factor.table.bits + 1
    c, u = normalize.normalize_to_mantissa(party, x, p.scheme, p.mantissa.center, p.factor.table)
    g = polynomial.evaluate_polynomial(
        party, "mantissa", p.mantissa.plan, [c], p.mantissa.fractional
    )
    y = small_product.multiply_small(
        party, [(g, p.mantissa.bits), (u, u_bits)], p.dropped_mantissa_bits
    )
    return replace(y, fractional_bits=fractional_bits)
