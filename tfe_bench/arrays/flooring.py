"""Floor division of numbers with more bits than rounding.floordiv takes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tfe_bench.arrays.wide_range import divide_by_count
from tfe_bench.protocols.api import operands, rounding
from tfe_bench.protocols.functions import reciprocal
from tfe_bench.protocols.ring import (
    arithmetic,
    compare,
    convert,
    reductions,
    relational,
    shapes,
)
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.session.types import Operand

# Bits of a numerator and of a quotient with a private divisor.
MAX_BITS = 36
# Relative precision of the quotient's first approximation, and its fractional bits.
_PRECISION, _POINT = 22, 9
# Largest error of the approximate quotient by a public divisor.
_OFF = 2


def floordiv(
    x: Operand, y: Operand, signed: bool = True, bits: int = 31, large: int | None = None
) -> Shared:
    """Compute floor(x / y) as rounding.floordiv does.

    Args:
        large: |x| < 2^large ring units: up to 60 with a public y, else up to 36, which also bounds
            |x / y|.
    """
    if large is None:
        return rounding.floordiv(x, y, signed, bits)
    quotient, f = _divide_floor("floordiv", x, y, signed, bits, large)[0], _floor_result_scale(x, y)
    return arithmetic.mul_public(quotient, np.int64(1 << f), f)


def floormod(
    x: Operand, y: Operand, signed: bool = True, bits: int = 31, large: int | None = None
) -> Shared:
    """Compute x - y floor(x / y); as `floordiv`."""
    if large is None:
        return rounding.floormod(x, y, signed, bits)
    rest = _divide_floor("floormod", x, y, signed, bits, large)[1]
    return replace(rest, fractional_bits=_floor_result_scale(x, y))


floor_div = floordiv
mod = floormod


def _floor_result_scale(x: Operand, y: Operand) -> int:
    return max(v.fractional_bits for v in (x, y) if isinstance(v, Shared))


def _divide_floor(
    operation: str, x: Operand, y: Operand, signed: bool, bits: int, large: int
) -> tuple[Shared, Shared]:
    """Compute the quotient and the remainder in ring units."""
    party = operands.require_party_in_graph(operation)
    bits = operands.check_comparison_width(operation, bits, rounding.MAX_DIVISOR)
    large = operands.check_comparison_width(operation, large, 60)
    if not operands.is_private(y):
        known = operands.static_public_operand(operation, y)
        if known is not None and known.size == 1:
            x = replace(
                operands.check_private_operand(operation, x),
                fractional_bits=_floor_result_scale(x, y),
            )
            divisor = int(operands.encode_public(operation, known, x.fractional_bits).item())
            return _divide_by_public(party, replace(x, fractional_bits=0), divisor, large)
    x, y = (
        operands.check_private_operand(operation, v)
        for v in operands.share_operand_pair(operation, x, y)
    )
    whole = [int(n) for n in operands.broadcast_shapes(operation, x.shape, y.shape)]
    x, y = (replace(shapes.broadcast_to(v, whole), fractional_bits=0) for v in (x, y))
    return _divide_by_private(party, x, y, signed, bits)


def _divide_by_public(party: Party, x: Shared, divisor: int, large: int) -> tuple[Shared, Shared]:
    """Compute an approximate quotient, and correct it by comparing the remainder with multiples of
    the divisor.
    """
    if divisor < 0:
        x = arithmetic.neg(x)
    d = abs(divisor)
    estimate = divide_by_count(party, x, d, large)
    rest = arithmetic.sub(x, arithmetic.mul_public(estimate, np.int64(d)))
    limits = np.arange(-_OFF, _OFF + 1) * d
    tested = shapes.stack([arithmetic.add_constant(rest, np.int64(-limit)) for limit in limits])
    flat = [int(n) for n in tested.shape]
    below = convert.b2a(party, relational.is_negative(party, tested), flat)
    # floor(rest / d) = 2 - the number of multiples -2 d .. 2 d above the remainder
    steps = arithmetic.add_constant(arithmetic.neg(reductions.reduce_sum(below, 0)), np.int64(_OFF))
    floored = arithmetic.add(estimate, steps)
    remainder = arithmetic.sub(rest, arithmetic.mul_public(steps, np.int64(d)))
    return floored, arithmetic.neg(remainder) if divisor < 0 else remainder


def _divide_by_private(
    party: Party, x: Shared, y: Shared, signed: bool, bits: int
) -> tuple[Shared, Shared]:
    """Compute the quotient in two steps, as rounding.floordiv does: of x, and of the
    first remainder.
    """
    negative: MaskedBits | None = None
    if signed:
        negative = convert.mask_bits(party, compare.msb(party, y, bits + 1))
        x, y = (convert.negate_where(party, negative, v) for v in (x, y))
    under = replace(y, fractional_bits=_POINT)
    floored, rest = None, x
    for _ in range(2):
        estimate = reciprocal.divide(
            party,
            replace(rest, fractional_bits=_POINT),
            under,
            bits,
            precision=_PRECISION,
            numerator_bits=MAX_BITS + 2,
            quotient_bits=MAX_BITS + 2 + _POINT,
        )
        part = rounding.floor_divide_by_power_of_two(party, estimate, _POINT)
        rest = arithmetic.sub(rest, arithmetic.mul(party, part, y))
        floored = part if floored is None else arithmetic.add(floored, part)
    assert floored is not None
    tested = shapes.stack([rest, arithmetic.sub(rest, y)])
    size = math.prod(int(n) for n in tested.shape)
    flat = shapes.reshape(tested, [size])
    below = convert.b2a(party, relational.is_negative(party, flat), [size])
    shape = [int(n) for n in tested.shape]
    less = arithmetic.add_constant(
        reductions.reduce_sum(shapes.reshape(below, shape), 0), np.int64(-1)
    )
    floored = arithmetic.sub(floored, less)
    rest = arithmetic.add(rest, arithmetic.mul(party, less, y))
    return floored, rest if negative is None else convert.negate_where(party, negative, rest)
