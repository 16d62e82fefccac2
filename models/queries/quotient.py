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
_MOST = 61
# Bits of 1 / y that are right.
_PRECISION = 20
# A quotient is near enough once what is left of x is below 2^_SPARE * y.
_SPARE = 4
# Of decimals with up to 44 bits: the lower half, and the bits of what it is multiplied by.
_HALF, _PART = 22, 36


def shortened(party: Party, x: Shared, drop: int) -> Shared:
    """x / 2^drop, off by 1 at most; x itself for 0."""
    if drop <= 0:
        return x
    short = truncation.truncate(party, replace(x, fractional_bits=drop), drop)
    return replace(short, fractional_bits=0)


def _times(x: Shared, factor: int) -> Shared:
    return arithmetic.mul_public(x, np.int64(factor))


def times_ratio(party: Party, x: Shared, kind: Type, ratio: Fraction) -> Shared:
    """x * ratio as elements of fixed(16), off by 2 of these and by 2^-17 of the result at most.

    Args:
        kind: of x; its elements have at most 44 bits unless the factor is whole, which
            `expressions.ratio_type` sees to.
    """
    by = ratio * (1 << FRACTION) / kind.denominator
    whole, rest = divmod(abs(by), 1)
    found = _times(x, int(whole))
    shift = min(truncation.MOST_DROPPED, _MOST - max(1, kind.magnitude).bit_length())
    if rest and shift > 0:
        part = shortened(party, _times(x, round(rest * (1 << shift))), shift)
        found = arithmetic.add(found, part)
    return arithmetic.neg(found) if by < 0 else found


def as_fixed(party: Party, x: Shared, digits: int) -> Shared:
    """Decimals as fixed point of 16 fractional bits, off by 2 of its units at most.

    Args:
        x: elements, which are values times 10^digits, below 2^MOST_INEXACT.

    Rounds: 2 (3 with dealing).
    """
    ratio = Fraction(1 << FRACTION, 10**digits)
    # The upper half by itself, so that each is multiplied by a number that is long enough.
    upper = shortened(party, x, _HALF)
    lower = arithmetic.sub(x, _times(upper, 1 << _HALF))
    wholes, parts = [], []
    for half, by in ((upper, ratio * (1 << _HALF)), (lower, ratio)):
        whole, rest = divmod(by, 1)
        wholes.append(_times(half, int(whole)))
        parts.append(_times(half, round(rest * (1 << _PART))))
    part = shortened(party, arithmetic.add(*parts), _PART)
    return replace(arithmetic.add(arithmetic.add(*wholes), part), fractional_bits=FRACTION)


def quotient(party: Party, x: Shared, y: Shared, largest: int, most: int) -> Shared:
    """x / y, off by 3 at most; where y is 0 it is some number.

    1 / y is right to 20 bits.  What the first bits of the quotient leave of x is divided again,
    until what is left is a few y.

    Args:
        x: from -largest to largest, below 2^61.
        y: from 0 to most, below 2^24.
    """
    p = max(1, most).bit_length()
    if p == 1:
        return x
    f = (p + _PRECISION + 3) // 2
    scale = 2 * f
    # 2^f / y as a number with f fractional bits is 2^(2 f) / y
    inverse = replace(
        reciprocal.reciprocal(party, replace(y, fractional_bits=f), bits=p), fractional_bits=0
    )
    found: Shared | None = None
    left, bits = x, max(1, largest).bit_length()
    while bits > p + _SPARE:
        cut = max(0, bits + scale + 1 - _MOST)
        product = arithmetic.mul(party, shortened(party, left, cut), inverse)
        part = shortened(party, product, scale - cut)
        if cut > scale:
            part = _times(part, 1 << (cut - scale))
        found = part if found is None else arithmetic.add(found, part)
        left = arithmetic.sub(left, arithmetic.mul(party, part, y))
        rest = max(bits - _PRECISION + 2, cut + 2, p + 2)
        if rest >= bits:
            break
        bits = rest
    # here a shorter 1 / y does, and nothing of what is left may be cut
    cut = max(0, bits + scale + 1 - _MOST)
    product = arithmetic.mul(party, left, shortened(party, inverse, cut))
    part = shortened(party, product, scale - cut)
    return part if found is None else arithmetic.add(found, part)


def mean(party: Party, total: Shared, count: Shared, kind: Type, rows: int) -> Shared:
    """total / count as fixed(16): whole units of the column first, then what is behind the point.

    Args:
        kind: of the column whose sum it is.
        rows: count is at most so many.
    """
    whole = quotient(party, total, count, kind.magnitude * rows, rows)
    # (off by 3 at most, so that 4 counts are left of the sum)
    left = arithmetic.sub(total, arithmetic.mul(party, whole, count))
    behind = quotient(party, _times(left, 1 << FRACTION), count, 4 * rows << FRACTION, rows)
    small = Type(NUMBER, -4 << FRACTION, 4 << FRACTION, kind.digits, kind.fraction + FRACTION)
    return arithmetic.add(
        times_ratio(party, whole, kind, Fraction(1)),
        times_ratio(party, behind, small, Fraction(1)),
    )
