"""x^a for a = -1, -1/2, 1/2: a power of two (or of sqrt 2) times a polynomial of c.

With x = c 2^e in ring units, f(x) = g(c) * 2^(a e + b): `normalize` gives c and, as a table over its
segments, U = 2^(a e + b); g(c) is one round and the product another.
"""

from __future__ import annotations

import decimal
import functools
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from tfe_bench.protocols import approximation, normalize, polynomial, product
from tfe_bench.protocols.cost import Cost
from tfe_bench.protocols.party import Party
from tfe_bench.protocols.polynomial import Plan
from tfe_bench.protocols.sharing import Shared


@dataclass(frozen=True)
class Mantissa:
    """g(c) as one round.

    Attributes:
        center: of c's units.
        bits: |g(c)| < 2^(bits - 1) in units of 2^-fractional.
    """

    plan: Plan
    center: int
    fractional: int
    bits: int


@functools.cache
def mantissa(
    function: approximation.Function, scheme: normalize.Scheme, precision: int, sqrt2: bool = False
) -> Mantissa:
    """The polynomial of c; with sqrt2 it is sqrt(2) g(c).

    Off by a factor of 1 +- 0.58 * 2^-precision at most.
    """
    found = approximation.approximate(
        function, scheme.low, scheme.high, scheme.units, precision + 1
    )
    fractional = precision + 4
    coefficients = found.coefficients
    if sqrt2:
        with decimal.localcontext(approximation.DIGITS):
            root = Decimal(2).sqrt()
            coefficients = tuple(int((a * root).to_integral_value()) for a in coefficients)
    bits = fractional + 3  # below 2.1
    plan = polynomial.plan(
        (found.limit.bit_length() + 1,),
        {(i,): a for i, a in enumerate(coefficients)},
        found.scale - fractional,
        bits + 1,
    )
    return Mantissa(plan, found.center, fractional, bits)


@dataclass(frozen=True)
class Power:
    """All that is public about one power.

    Attributes:
        factor_bits: fractional bits of the factor U in units of the result.
    """

    scheme: normalize.Scheme
    mantissa: Mantissa
    factor: normalize.Table
    factor_bits: int


def power_of_two(exponent: Fraction) -> Fraction:
    """2^exponent for a multiple of 1/2, to 60 digits: alike on every host."""
    whole, half = divmod(exponent * 2, 2)
    root = Fraction(1)
    if half:
        with decimal.localcontext(approximation.DIGITS):
            root = Fraction(Decimal(2).sqrt())
    return root * Fraction(2) ** int(whole)


def factors(
    scheme: normalize.Scheme, slope: Fraction, offset: Fraction, coarse: int, fine: int, keep: int
) -> tuple[normalize.Table, bool]:
    """The table of 2^(slope * shift + offset), shift that of x's segments; 0 for x = 0.

    Args:
        coarse, fine: fractional bits of the first and of the second stage's constants.
        keep: fractional bits of the product.

    Returns the table, and whether a factor sqrt(2) is left to the polynomial.
    """
    first = scheme.stages[0].segments
    whole = slope * first[-1].shift + offset
    if len(scheme.stages) == 1:
        values = [_fixed(s.sign, slope * s.shift + offset, fine) for s in first]
        return normalize.table([values], fine - keep), False
    odd = whole.denominator == 2
    offset -= Fraction(1, 2) if odd else 0
    second = scheme.stages[1].segments
    return (
        normalize.table(
            [
                [_fixed(s.sign, slope * s.shift + offset, coarse) for s in first],
                [_fixed(1, slope * s.shift, fine) for s in second],
            ],
            coarse + fine - keep,
        ),
        odd,
    )


def _fixed(sign: int, exponent: Fraction, fractional: int) -> int:
    return sign * int(power_of_two(exponent + fractional) + Fraction(1, 2)) if sign else 0


def power(party: Party, x: Shared, p: Power, fractional_bits: int) -> Shared:
    """g(c) U. Rounds: p.scheme.rounds + 2 (cold one more)."""
    c, u = normalize.normalize(party, x, p.scheme, p.mantissa.center, p.factor)
    g = polynomial.evaluate(party, "mantissa", p.mantissa.plan, [c], p.mantissa.fractional)
    drop = p.mantissa.fractional + p.factor_bits
    y = product.product(party, [(g, p.mantissa.bits), (u, p.factor.bits + 1)], drop)
    return replace(y, fractional_bits=fractional_bits)


def power_cost(n: int, p: Power) -> Cost:
    """Cost of `power` for n elements."""
    drop = p.mantissa.fractional + p.factor_bits
    return (
        normalize.normalize_cost(n, p.scheme, p.factor)
        .then(polynomial.evaluate_cost(n, p.mantissa.plan))
        .then(product.product_cost(n, (p.mantissa.bits, p.factor.bits + 1), drop))
    )
