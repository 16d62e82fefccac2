"""Quotients of private numbers with public bounds, for use inside graphs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from tfe_bench.protocols.functions import reciprocal
from tfe_bench.protocols.ring import arithmetic, truncation
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.queries.types import FRACTION, NUMBER, ColumnType

# Bits of a value that a truncation takes.
_MAX_BITS = 61
# Correct bits of 1 / y.
_PRECISION = 20
# The iteration ends once the remainder of x is below 2^_SPARE * y.
_SPARE = 4
# Decimals with up to 44 bits: bits of the lower half, and fractional bits of its factor.
_HALF, _PART = 22, 36


def drop_column_element_bits(party: Party, x: Shared, drop: int) -> Shared:
    """Compute x / 2^drop with an error of at most 1; return x itself for 0."""
    if drop <= 0:
        return x
    short = truncation.truncate(party, replace(x, fractional_bits=drop), drop)
    return replace(short, fractional_bits=0)


def _multiply_column_elements(x: Shared, factor: int) -> Shared:
    return arithmetic.mul_public(x, np.int64(factor))


def multiply_by_public_ratio(party: Party, x: Shared, kind: ColumnType, ratio: Fraction) -> Shared:
    """Compute x * ratio as elements of fixed(16), with an error of at most 2 ulp and 2^-17 of the
    result.

    Args:
        kind: type of x; its elements have at most 44 bits unless the factor is whole, which
            `expressions.ratio_type` ensures.
    """
    by = ratio * (1 << FRACTION) / kind.denominator
    whole, rest = divmod(abs(by), 1)
    product = _multiply_column_elements(x, int(whole))
    shift = min(truncation.MAX_DROPPED_BITS, _MAX_BITS - max(1, kind.magnitude).bit_length())
    if rest and shift > 0:
        part = drop_column_element_bits(
            party, _multiply_column_elements(x, round(rest * (1 << shift))), shift
        )
        product = arithmetic.add(product, part)
    return arithmetic.neg(product) if by < 0 else product


def decimals_to_fixed(party: Party, x: Shared, digits: int) -> Shared:
    """Convert decimals to fixed point with 16 fractional bits, with an error of at most 2 ulp.

    Args:
        x: elements, values times 10^digits, below 2^MAX_INEXACT.

    Online rounds: 2 (offline + online: 3).
    """
    ratio = Fraction(1 << FRACTION, 10**digits)
    # The halves are multiplied separately, so that each factor has enough bits.
    upper = drop_column_element_bits(party, x, _HALF)
    lower = arithmetic.sub(x, _multiply_column_elements(upper, 1 << _HALF))
    wholes, parts = [], []
    for half, by in ((upper, ratio * (1 << _HALF)), (lower, ratio)):
        whole, rest = divmod(by, 1)
        wholes.append(_multiply_column_elements(half, int(whole)))
        parts.append(_multiply_column_elements(half, round(rest * (1 << _PART))))
    part = drop_column_element_bits(party, arithmetic.add(*parts), _PART)
    return replace(arithmetic.add(arithmetic.add(*wholes), part), fractional_bits=FRACTION)


def divide_bounded_columns(
    party: Party, x: Shared, y: Shared, largest: int, max_divisor: int
) -> Shared:
    """Compute x / y with an error of at most 3; arbitrary if y is 0.

    1 / y is correct to 20 bits. Each step divides the remainder that the leading bits of the
    quotient leave, until it is a few y.

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
        product = arithmetic.mul(party, drop_column_element_bits(party, remainder, cut), inverse)
        part = drop_column_element_bits(party, product, scale - cut)
        if cut > scale:
            part = _multiply_column_elements(part, 1 << (cut - scale))
        result = part if result is None else arithmetic.add(result, part)
        remainder = arithmetic.sub(remainder, arithmetic.mul(party, part, y))
        next_bits = max(bits - _PRECISION + 2, cut + 2, p + 2)
        if next_bits >= bits:
            break
        bits = next_bits
    # a shorter 1 / y suffices here, and the remainder must not be truncated
    cut = max(0, bits + scale + 1 - _MAX_BITS)
    product = arithmetic.mul(party, remainder, drop_column_element_bits(party, inverse, cut))
    part = drop_column_element_bits(party, product, scale - cut)
    return part if result is None else arithmetic.add(result, part)


def compute_group_mean(
    party: Party, total: Shared, count: Shared, kind: ColumnType, rows: int
) -> Shared:
    """Compute total / count as fixed(16): whole units of the column first, then the fraction.

    Args:
        kind: type of the summed column.
        rows: upper bound of count.
    """
    whole = divide_bounded_columns(party, total, count, kind.magnitude * rows, rows)
    # (the error is at most 3, so that the remainder is at most 4 counts)
    remainder = arithmetic.sub(total, arithmetic.mul(party, whole, count))
    behind = divide_bounded_columns(
        party,
        _multiply_column_elements(remainder, 1 << FRACTION),
        count,
        4 * rows << FRACTION,
        rows,
    )
    small = ColumnType(NUMBER, -4 << FRACTION, 4 << FRACTION, kind.digits, kind.fraction + FRACTION)
    return arithmetic.add(
        multiply_by_public_ratio(party, whole, kind, Fraction(1)),
        multiply_by_public_ratio(party, behind, small, Fraction(1)),
    )
