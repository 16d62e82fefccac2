"""The natural logarithm over the whole positive range of the ring.

ln(c 2^e) = ln(c) + e ln(2): a polynomial of c and, linear in the same evaluation, of e.
"""

from __future__ import annotations

import decimal
import functools
from dataclasses import dataclass
from decimal import Decimal

from tfe_bench.protocols.functions import approximation, normalize, normalize_plan, polynomial
from tfe_bench.protocols.functions.reciprocal import PRECISION, check_reciprocal_scale
from tfe_bench.protocols.session import slices
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class _LogPlan:
    scheme: normalize_plan.NormalizationPlan
    exponent: normalize_plan.Table
    plan: polynomial.Plan
    center: int


@functools.cache
def _plan_logarithm(f: int, bits: int, precision: int | None) -> _LogPlan:
    check_reciprocal_scale("log", f)
    if precision is None:
        precision = min(PRECISION, max(f + 2, normalize_plan.PRECISIONS.start))
    scheme = normalize_plan.plan_normalization(bits, precision)
    fitted = approximation.fit_approximation(
        Decimal.ln,
        scheme.low,
        scheme.high,
        scheme.units,
        approximation.polynomial_tolerance(precision),
        relative=False,
    )
    extra_bits = max(0, f + 3 - fitted.scale)
    scale = fitted.scale + extra_bits
    with decimal.localcontext(approximation.DIGITS):
        ln2 = int((Decimal(2).ln() * Decimal(2) ** scale).to_integral_value())
    exponents = [[-s.shift for s in stage.segments] for stage in scheme.stages]
    exponents[0] = [e + scheme.top - f for e in exponents[0]]
    table = normalize_plan.build_segment_table(exponents, additive=True)
    coefficients = {(i, 0): a << extra_bits for i, a in enumerate(fitted.coefficients)}
    coefficients[0, 1] = ln2
    plan = polynomial.plan_polynomial(
        (fitted.limit.bit_length() + 1, table.bits + 1), coefficients, scale - f
    )
    return _LogPlan(scheme, table, plan, fitted.center)


@slices.slice_elementwise
def log(party: Party, x: Shared, bits: int = 62, precision: int | None = None) -> Shared:
    """Compute ln(x) for x > 0, at x's scale; -f ln(2), the logarithm of one ulp, for x <= 0.

    Args:
        x: ring element 0 < X < 2^bits; zero and negative values above -2^bits count as one
            ulp; other values give arbitrary results.
        bits: a known bound saves comparisons.
        precision: 6 to 20 (more where it fits 256 bits). Default: f + 2, and 20 at most.

    Off by 2^-precision (absolute) and 1.1 ulp at most.
    Rounds: 8 online (4 for bits <= 12), one more in total.
    """
    p = _plan_logarithm(x.fractional_bits, bits, precision)
    c, exponent = normalize.normalize_to_mantissa(party, x, p.scheme, p.center, p.exponent)
    return polynomial.evaluate_polynomial(party, "log", p.plan, [c, exponent], x.fractional_bits)
