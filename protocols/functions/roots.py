"""Square root and its reciprocal over the whole positive range of the ring."""

from __future__ import annotations

import functools
from decimal import Decimal
from fractions import Fraction

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import approximation, normalize_plan, power
from tfe_bench.protocols.functions.reciprocal import PRECISION, check_reciprocal_scale
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

_ONE = Fraction(1)


@functools.cache
def _plan_rsqrt(
    twice: int, bits: int, precision: int, lowest: int = 0, times: Fraction = _ONE
) -> power.PowerPlan:
    scheme = normalize_plan.plan_normalization(bits, precision, lowest=lowest)
    # 2^(twice/2) / sqrt(X) with X = c 2^(top - shift)
    factor = power.tabulate_powers(
        scheme, Fraction(1, 2), Fraction(twice - scheme.top, 2), 8, precision + 2, keep=5
    )
    mantissa = power.fit_mantissa(
        approximation.decimal_rsqrt, scheme, precision, factor.sqrt2, times
    )
    return power.PowerPlan(scheme, mantissa, factor)


@functools.cache
def _plan_sqrt(f: int, bits: int, precision: int) -> power.PowerPlan:
    check_reciprocal_scale("sqrt", f)
    scheme = normalize_plan.plan_normalization(bits, precision)
    # 2^(f/2) sqrt(X)
    factor = power.tabulate_powers(
        scheme, Fraction(-1, 2), Fraction(f + scheme.top, 2), 8, precision + 2, keep=4
    )
    mantissa = power.fit_mantissa(Decimal.sqrt, scheme, precision, factor.sqrt2)
    return power.PowerPlan(scheme, mantissa, factor)


def rsqrt(party: Party, x: Shared, bits: int = 62, precision: int = PRECISION) -> Shared:
    """Compute 1 / sqrt(x) for x > 0, at x's scale; 0 for x <= 0.

    Args:
        x: ring element 0 < X < 2^bits; zero and negative values above -2^bits give 0;
            others give arbitrary results.
        bits: a known bound saves comparisons.
        precision: 6 to 22; a lower one takes fewer dealt bits.

    Off by 2^-precision of the result and 1.2 ulp at most.
    Rounds: 9 online (5 for bits <= 12), one more in total.
    """
    f = x.fractional_bits
    check_reciprocal_scale("rsqrt", f)
    return power.compute_power(party, x, _plan_rsqrt(3 * f, bits, precision), f)


def reciprocal_root(
    party: Party,
    x: Shared,
    scale: int,
    bits: int,
    lowest: int,
    precision: int = PRECISION,
    times: Fraction = _ONE,
) -> Shared:
    """Compute times 2^scale / sqrt(X) of ring elements X as an integer of more bits than x.

    Args:
        scale: no value may exceed 63 bits with it, minus about 12 to 22 bits of precision.
        bits, lowest: 2^lowest <= X < 2^bits; with lowest 0 an X of 0 gives 0.
        precision: as in `rsqrt`.
        times: a public factor, above 1/2 and 1 at most.

    Off by 2^-precision of the result and 1.2 at most, or by 2^-p of it where p bits are the
    difference of 61 and the bits of the largest result.
    Reads bits + 2 of X.
    Rounds: as `rsqrt`.
    Raises:
        UsageError: more bits than fit, or another factor.
    """
    if not (isinstance(times, Fraction) and _ONE / 2 < times <= 1):
        raise UsageError(
            f"reciprocal_root expects a factor in (1/2, 1]. Received: {times!r}.",
            code="number-out-of-range",
            operation="reciprocal_root",
            received=repr(times),
            expected="(1/2, 1]",
        )
    power_plan = _plan_rsqrt(2 * scale, bits, precision, lowest, times)
    return power.compute_power(party, x, power_plan, 0)


def sqrt(party: Party, x: Shared, bits: int = 62, precision: int = PRECISION) -> Shared:
    """Compute sqrt(x) for x > 0, at x's scale; 0 for x <= 0.

    Not x * rsqrt(x): for large x the reciprocal root has few bits, or none.

    Arguments, error, rounds: as `rsqrt`. The powers of sqrt(2) take the remaining ones of 63 bits:
    with more than 20 fractional bits, or a precision above 20, the error can be 2^-19 of the
    result.
    """
    return power.compute_power(
        party, x, _plan_sqrt(x.fractional_bits, bits, precision), x.fractional_bits
    )
