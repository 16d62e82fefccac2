"""Quotients of private numbers, of public bounds; called inside of graphs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from tfe_bench.models.queries.types import FRACTION, NUMBER, Type
from tfe_bench.protocols.functions import reciprocal
from tfe_bench.protocols.ring import arithmetic, truncation
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Bits of a value that a truncation takes.
_MAX_BITS = 61
# Bits of 1 / y that are right.
_PRECISION = 20
# A quotient is near enough once what is left of x is below 2^_SPARE * y.
_SPARE = 4
# Of decimals with up to 44 bits: the lower half, and the bits of what it is multiplied by.
_HALF, _PART = 22, 36


def drop_bits(party: Party, x: Shared, drop: int) -> Shared:
    """x / 2^drop, off by 1 at most; x itself for 0."""
    if drop <= 0:
        return x
    short = truncation.truncate(party, replace(x, fractional_bits=drop), drop)
    return replace(short, fractional_bits=0)


def _mul_int(x: Shared, factor: int) -> Shared:
    return arithmetic.mul_public(x, np.int64(factor))


def mul_ratio(party: Party, x: Shared, kind: Type, ratio: Fraction) -> Shared:
    """x * ratio as elements of fixed(16), off by 2 of these and by 2^-17 of the result at most.

    Args:
        kind: of x; its elements have at most 44 bits unless the factor is whole, which
            `expressions.ratio_type` sees to.
    """
    by = ratio * (1 << FRACTION) / kind.denominator
    whole, rest = divmod(abs(by), 1)
    product = _mul_int(x, int(whole))
    shift = min(truncation.MAX_DROPPED_BITS, _MAX_BITS - max(1, kind.magnitude).bit_length())
    if rest and shift > 0:
        part = drop_bits(party, _mul_int(x, round(rest * (1 << shift))), shift)
        product = arithmetic.add(product, part)
    return arithmetic.neg(product) if by < 0 else product


def decimals_to_fixed(party: Party, x: Shared, digits: int) -> Shared:
    """Decimals as fixed point of 16 fractional bits, off by 2 of its units at most.

    Args:
        x: elements, which are values times 10^digits, below 2^MOST_INEXACT.

    Rounds: 2 (3 with dealing).
    """
    ratio = Fraction(1 << FRACTION, 10**digits)
    # The upper half by itself, so that each is multiplied by a number that is long enough.
    upper = drop_bits(party, x, _HALF)
    lower = arithmetic.sub(x, _mul_int(upper, 1 << _HALF))
    wholes, parts = [], []
    for half, by in ((upper, ratio * (1 << _HALF)), (lower, ratio)):
        whole, rest = divmod(by, 1)
        wholes.append(_mul_int(half, int(whole)))
        parts.append(_mul_int(half, round(rest * (1 << _PART))))
    part = drop_bits(party, arithmetic.add(*parts), _PART)
    return replace(arithmetic.add(arithmetic.add(*wholes), part), fractional_bits=FRACTION)


def divide_bounded(party: Party, x: Shared, y: Shared, largest: int, max_divisor: int) -> Shared:
    """x / y, off by 3 at most; where y is 0 it is some number.

    1 / y is right to 20 bits.  What the first bits of the quotient leave of x is divided again,
    until what is left is a few y.

    Args:
        x: from -largest to largest, below 2^61.
        y: from 0 to most, below 2^24.
    """
    p = max(1, max_divisor).bit_length()
    if p == 1:
        return x
    f = (p + _PRECISION + 3) // 2
    scale = 2 * f
    # 2^f / y as a number with f fractional bits is 2^(2 f) / y
    inverse = replace(
        reciprocal.reciprocal(party, replace(y, fractional_bits=f), bits=p), fractional_bits=0
    )
    result: Shared | None = None
    remainder, bits = x, max(1, largest).bit_length()
    while bits > p + _SPARE:
        cut = max(0, bits + scale + 1 - _MAX_BITS)
        product = arithmetic.mul(party, drop_bits(party, remainder, cut), inverse)
        part = drop_bits(party, product, scale - cut)
        if cut > scale:
            part = _mul_int(part, 1 << (cut - scale))
        result = part if result is None else arithmetic.add(result, part)
        remainder = arithmetic.sub(remainder, arithmetic.mul(party, part, y))
        next_bits = max(bits - _PRECISION + 2, cut + 2, p + 2)
        if next_bits >= bits:
            break
        bits = next_bits
    # here a shorter 1 / y does, and nothing of what is left may be cut
    cut = max(0, bits + scale + 1 - _MAX_BITS)
    product = arithmetic.mul(party, remainder, drop_bits(party, inverse, cut))
    part = drop_bits(party, product, scale - cut)
    return part if result is None else arithmetic.add(result, part)


def compute_mean(party: Party, total: Shared, count: Shared, kind: Type, rows: int) -> Shared:
    """total / count as fixed(16): whole units of the column first, then what is behind the point.

    Args:
        kind: of the column whose sum it is.
        rows: count is at most so many.
    """
    whole = divide_bounded(party, total, count, kind.magnitude * rows, rows)
    # (off by 3 at most, so that 4 counts are left of the sum)
    remainder = arithmetic.sub(total, arithmetic.mul(party, whole, count))
    behind = divide_bounded(
        party, _mul_int(remainder, 1 << FRACTION), count, 4 * rows << FRACTION, rows
    )
    small = Type(NUMBER, -4 << FRACTION, 4 << FRACTION, kind.digits, kind.fraction + FRACTION)
    return arithmetic.add(
        mul_ratio(party, whole, kind, Fraction(1)),
        mul_ratio(party, behind, small, Fraction(1)),
    )
