"""Sine, cosine and the angle of a point.

x / 2 pi is one product with a public number, and the ring is scaled to one full turn: 2^64 stands
for 2 pi. Whole turns thus vanish exactly, for every x.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

from tfe_bench.protocols.functions import approximation, normalize, polynomial, reciprocal
from tfe_bench.protocols.ring import (
    arithmetic,
    compare,
    convert,
    logic,
    relational,
    shapes,
    small_ring,
)
from tfe_bench.protocols.session import slices, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

RING = 64
MAX_FRACTIONAL_BITS = 16  # fractional bits of values
MAX_COMPARED_BITS = 31  # bits of a point's coordinates, limited by the division
# Bits of an angle beyond those of the result.
_SPARE = 7
_ATAN_SPARE = 3


def _sine_of_turns(x: Decimal) -> Decimal:
    """Return sin(2 pi x)."""
    return approximation.decimal_cosine(2 * approximation.decimal_pi() * (x - Decimal(1) / 4))


@functools.cache
def _turns_per_ulp(f: int) -> int:
    """Return 2^64 / 2 pi of an ulp, rounded."""
    with localcontext(approximation.DIGITS):
        turn = Decimal(2) ** (RING - f) / (2 * approximation.decimal_pi())
        return int(turn.to_integral_value())


@functools.cache
def _fit_quarter_sine(f: int) -> polynomial.FittedPolynomial:
    """Return sin(2 pi x) for |x| <= 1/4, x in units of 2^-(f + _SPARE + 1)."""
    quarter = Decimal(1) / 4
    fitted = approximation.fit_approximation(
        _sine_of_turns, -quarter, quarter, f + _SPARE + 1, Decimal(2) ** -(f + 3), False
    )
    return polynomial.fit_polynomial(fitted, f, bits=f + _SPARE)


@slices.slice_elementwise
def sine(party: Party, x: Shared, quarter_turns: int = 0) -> Shared:
    """Compute sin(x + quarter_turns pi / 2), at x's scale of 1 to 16 fractional bits.

    An angle between 1/4 and 3/4 of a turn is subtracted from 1/2. The result lies within
    a quarter of a turn, where the sine is one polynomial.

    Off by less than 2 ulp and, as 1 / 2 pi is rounded, by |x| 2^(f-62).
    Rounds: 5 online (6 total). Bits sent: those of a comparison of f + 8 bits, of a selection in
    that ring and of a polynomial of it.
    """
    f = x.fractional_bits
    k = f + _SPARE  # bits of an angle, and one more for its half unit
    scaled_angle = arithmetic.mul_public(replace(x, fractional_bits=0), _turns_per_ulp(f))
    scaled_angle = arithmetic.add_constant(scaled_angle, quarter_turns << (RING - 2))
    angle = normalize.shift_for_normalization(scaled_angle, k - RING)
    # 2 a + 1 is in the middle of its unit, so that no quarter lies at an end of its range
    angle = replace(angle.map(lambda a: tensor_ops.left_shift(a, 1)), bits=k + 1)
    angle = arithmetic.add_constant(angle, 1)
    far = arithmetic.add_constant(angle, 1 << (k - 1))
    bits = convert.mask_bits(party, compare.msb(party, far, k + 1))
    other = arithmetic.add_constant(arithmetic.neg(angle), 1 << k)
    near = small_ring.select(party, bits, other, angle)
    return replace(_fit_quarter_sine(f).evaluate(party, "sine", near), fractional_bits=f)


# ---- the angle of a point


def _exact_arctangent(x: Decimal) -> Decimal:
    """Compute atan by two halvings of the angle, then by its series."""
    for _ in range(2):
        x = x / (1 + (1 + x * x).sqrt())
    total, power, k = Decimal(0), x, 1
    while abs(power) > Decimal(10) ** -105:
        total += power / k
        power, k = -power * x * x, k + 2
    return 4 * total


@functools.cache
def _fit_arctangent(f: int) -> polynomial.FittedPolynomial:
    """Return atan(x) for 0 <= x <= 1."""
    error = Decimal(2) ** -(f + _ATAN_SPARE)
    fitted = approximation.fit_approximation(
        _exact_arctangent, Decimal(0), Decimal(1), f, error, False
    )
    # (a quotient may exceed 1 by a few ulp)
    return polynomial.fit_polynomial(fitted, f, bits=f + 1)


def _encode_pi_fraction(f: int, part: Fraction) -> int:
    with localcontext(approximation.DIGITS):
        exact = approximation.decimal_pi() * part.numerator / part.denominator * 2**f
        return int(exact.to_integral_value())


@slices.slice_elementwise
def atan2(party: Party, y: Shared, x: Shared, bits: int) -> Shared:
    """Compute the angle of (x, y), from -pi to pi, at their scale of 1 to 16 fractional bits.

    0 for (0, 0). With a = atan(min / max) of both magnitudes: pi / 2 - a where |y| is larger,
    subtracted from pi where x is negative, and with the sign of y.

    Args:
        y, x: of one shape, |x|, |y| < 2^(bits-1) ring units; bits 2 to 31.

    Off by less than 4 ulp.
    Rounds: those of two comparisons, a division, a polynomial and 3. Bits sent: those of the same.
    """
    f = x.fractional_bits
    stacked = shapes.stack([y, x])
    signs = convert.mask_bits(party, compare.msb(party, stacked, bits))
    high, wide = shapes.unstack(convert.negate_where(party, signs, stacked))
    steep = relational.less(party, wide, high, bits)
    swapped = convert.inject(party, steep, arithmetic.sub(high, wide))
    longest, other = arithmetic.add(wide, swapped), arithmetic.sub(high, swapped)
    slope = reciprocal.divide(party, other, longest, max(2, bits - 1))
    a = _fit_arctangent(f).evaluate(party, "atan", slope)
    n = x.shape.num_elements()
    negative_y = logic.rearrange_private_bits(signs, (2, n), operator.itemgetter(0), n)
    negative_x = logic.rearrange_private_bits(signs, (2, n), operator.itemgetter(1), n)
    for bit, pi_part in (
        (steep, Fraction(1, 2)),
        (negative_x, Fraction(1)),
        (negative_y, Fraction(0)),
    ):
        mirrored = arithmetic.add_constant(
            arithmetic.mul_public(a, -2), _encode_pi_fraction(f, pi_part)
        )
        a = arithmetic.add(a, convert.inject(party, bit, mirrored))
    return a
