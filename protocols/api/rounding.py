"""Rounding and integer division with remainder, by TensorFlow's names; all of it exact."""

from __future__ import annotations

import builtins
from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands
from tfe_bench.protocols.functions import reciprocal
from tfe_bench.protocols.ring import (
    arithmetic,
    compare,
    convert,
    reductions,
    shapes,
    truncation,
)
from tfe_bench.protocols.session import slices, tensor_ops
from tfe_bench.protocols.session.party import Party, current_party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.session.types import Operand

# Most bits of x for a public divisor: the product with a reciprocal of as many bits is below 2^62.
MAX_DIVIDED = 31
# Most bits of a private divisor: a remainder with an error of one divisor stays below 2^62.
MAX_DIVISOR = 60
# Significant and fractional bits of a quotient: below 2^(30 - 9) its error is 2^(21 - 22) and a few
# units, less than one.
_PRECISION, _POINT = 22, 9


def _check_rounding_operand(operation: str, x: Shared) -> Shared:
    x = operands.check_private_operand(operation, x)
    if x.fractional_bits > truncation.MAX_DROPPED_BITS:
        raise UsageError(
            f"{operation} expects at most {truncation.MAX_DROPPED_BITS} fractional bits. "
            f"Received: {x!r}. Rescale it: cast(x, 16).",
            code="unsupported-scale",
            operation=operation,
            received=repr(x),
            expected=f"at most {truncation.MAX_DROPPED_BITS}",
        )
    return x


def floor_divide_by_power_of_two(party: Party, x: Shared, dropped_bits: int) -> Shared:
    """Compute floor(x / 2^dropped_bits) of ring elements, as an integer modulo 2^(64-dropped_bits).

    It is right for every x.

    Rounds: 3 online, 4 in total, twice for more than 48 bits. Bits sent: truncation.truncate's.
    """
    while dropped_bits:
        drop = min(dropped_bits, truncation.MAX_DROPPED_BITS)
        lower = arithmetic.add_constant(replace(x, fractional_bits=drop), -(1 << (drop - 1)))
        x = truncation.truncate(party, lower, drop, "exact")
        dropped_bits -= drop
    return replace(x, fractional_bits=0)


def _floor_at_scale(x: Shared) -> Shared:
    """Compute floor(x) at x's scale. (The bits that floor_divide_by_power_of_two loses are
    shifted out again.)
    """
    f = x.fractional_bits
    whole = floor_divide_by_power_of_two(current_party(), x, f)
    return replace(whole.map(lambda a: tensor_ops.left_shift(a, f)), fractional_bits=f)


@operands.check_arguments(check=_check_rounding_operand)
def floor(x: Shared) -> Shared:
    """Return the largest whole number that is not above x, at x's scale: exact for every x.

    Integers stay as they are. Rounds: 3 online, 4 in total; of integers none. Bits sent: those of
    `cast` to the nearest.
    Raises:
        UsageError: x has more than 48 fractional bits.
    """
    return _floor_at_scale(x)


@operands.check_arguments(check=_check_rounding_operand)
def ceil(x: Shared) -> Shared:
    """Return the smallest whole number that is not below x; as `floor`."""
    return arithmetic.neg(_floor_at_scale(arithmetic.neg(x)))


@operands.check_arguments(check=_check_rounding_operand)
def round(x: Shared) -> Shared:
    """Return the nearest whole number, of two the even one as in TensorFlow, at x's scale: exact.

    floor(x + 1/2 - ulp + ulp [floor(x) is odd]).
    Rounds: 7 online, 8 in total; of integers none. Bits sent: those of `floor`, of a comparison of
    f + 1 bits and of `cast` of bits.
    Raises:
        UsageError: x has more than 48 fractional bits.
    """
    f = x.fractional_bits
    if f == 0:
        return x

    def round_to_even(party: Party, x: Shared) -> Shared:
        odd = convert.b2a(party, convert.mask_bits(party, compare.msb(party, x, f + 1)), x.shape)
        even_down = arithmetic.add(x, replace(odd, fractional_bits=f))
        return _floor_at_scale(arithmetic.add_constant(even_down, (1 << (f - 1)) - 1))

    return slices.map_slices(current_party(), round_to_even, [x])


# ---- division with a remainder


def floordiv(x: Operand, y: Operand, signed: bool = True, bits: int = MAX_DIVIDED) -> Shared:
    """Compute floor(x / y) at their common scale, exact; one of them may be public.

    Args:
        x: |x| < 2^(bits-1) ring units with a public y (2^14 at 16 fractional bits); any |x| < 2^62
            if y is a power of two; |x| < 2^30 with a private y, and |x / y| < 2^21.
        y: a public number is rounded to x's scale first, as everywhere. A private one is below
            2^bits ring units; for y = 0 the result is arbitrary.
        signed: a private y of either sign; False requires y > 0 (else the result is arbitrary) and
            saves rounds.
        bits: 2 to 31; up to 60 with a private y.

    Rounds: 3 online, 4 in total; with a private y 21 or 23. Bits sent: those of `cast` to the
    nearest; with a private y those of `divide`, `floor` and two comparisons.
    Raises:
        UsageError: a public divisor is 0 or rounds to it.
    """
    return _floor_divide_operands("floordiv", x, y, signed, bits, remainder=False)


def floormod(x: Operand, y: Operand, signed: bool = True, bits: int = MAX_DIVIDED) -> Shared:
    """Compute x - y floor(x / y) at their common scale, exact: of the sign of y; as `floordiv`."""
    return _floor_divide_operands("floormod", x, y, signed, bits, remainder=True)


floor_div = floordiv
mod = floormod


def _floor_divide_operands(
    operation: str, x: Operand, y: Operand, signed: bool, bits: int, remainder: bool
) -> Shared:
    operands.either_private(operation, x, y)
    array = None if operands.is_private(y) else operands.static_public_operand(operation, y)
    if array is None or array.size != 1:
        return _divide_by_private(operation, x, y, signed, bits, remainder)
    x = operands.check_private_operand(operation, x)
    f = x.fractional_bits
    sizes = operands.sizes(operation, x)
    if array.ndim > len(sizes):
        x = shapes.reshape(x, [1] * (array.ndim - len(sizes)) + sizes)
    divisor = int(operands.encode_public(operation, array, f).item())
    quotient = _divide_by_public(operation, x, divisor, bits)
    if not remainder:
        return arithmetic.mul_public(quotient, 1 << f, f)
    product = arithmetic.mul_public(quotient, divisor)
    return arithmetic.sub(x, replace(product, fractional_bits=f))


def _divide_by_public(operation: str, x: Shared, divisor: int, bits: int) -> Shared:
    """Compute floor(X / divisor) of ring elements, as an integer.

    With M = round(2^e / divisor) and 2^e > divisor (2^(bits-1) + 1), (M X + M / 2) / 2^e is closer
    to (X + 1/2) / divisor than that is to an integer.
    Source: Granlund and Montgomery, Division by invariant integers, PLDI 1994.
    """
    if divisor == 0:
        raise UsageError(
            f"{operation} expects a public divisor other than 0. Received: a divisor "
            f"that is 0 with {x.fractional_bits} fractional bits. Replace it.",
            code="division-by-zero",
            operation=operation,
            received=0,
        )
    x = replace(x if divisor > 0 else arithmetic.neg(x), fractional_bits=0)
    divisor = builtins.abs(divisor)
    party = operands.require_party_in_graph(operation)
    if divisor & (divisor - 1) == 0:
        operands.check_comparison_width(operation, bits)
        return floor_divide_by_power_of_two(party, x, divisor.bit_length() - 1)
    bits = operands.check_comparison_width(operation, bits, MAX_DIVIDED)
    e = (divisor * ((1 << (bits - 1)) + 1)).bit_length()
    factor = ((2 << e) + divisor) // (2 * divisor)
    return floor_divide_by_power_of_two(
        party, arithmetic.add_constant(arithmetic.mul_public(x, factor), factor // 2), e
    )


def _divide_by_private(
    operation: str, x: Operand, y: Operand, signed: bool, bits: int, remainder: bool
) -> Shared:
    """Correct a quotient, whose error is at most one, by the sign of its remainder."""
    bits = operands.check_comparison_width(operation, bits, MAX_DIVISOR)
    x, y = (
        operands.check_private_operand(operation, v)
        for v in operands.share_operand_pair(operation, x, y)
    )
    party, f = operands.require_party_in_graph(operation), x.fractional_bits
    result_shape = [int(n) for n in operands.broadcast_shapes(operation, x.shape, y.shape)]
    x, y = (replace(shapes.broadcast_to(v, result_shape), fractional_bits=0) for v in (x, y))
    negative: MaskedBits | None = None
    if signed:
        negative = convert.mask_bits(party, compare.msb(party, y, bits + 1))
        x, y = (convert.negate_where(party, negative, v) for v in (x, y))
    numerator, denominator = (replace(v, fractional_bits=_POINT) for v in (x, y))
    approximate_quotient = reciprocal.divide(
        party, numerator, denominator, bits, precision=_PRECISION
    )
    quotient = floor_divide_by_power_of_two(party, approximate_quotient, _POINT)
    remainder_value = arithmetic.sub(x, arithmetic.mul(party, quotient, y))
    tested = shapes.stack([remainder_value, arithmetic.sub(remainder_value, y)])
    below = convert.mask_bits(party, compare.msb(party, tested, bits + 2))
    ones = convert.b2a(party, below, tested.shape)
    correction = arithmetic.add_constant(reductions.reduce_sum(ones, 0), -1)  # -1, 0 or 1
    if not remainder:
        return arithmetic.mul_public(arithmetic.sub(quotient, correction), 1 << f, f)
    remainder_value = arithmetic.add(remainder_value, arithmetic.mul(party, correction, y))
    remainder_value = (
        remainder_value
        if negative is None
        else convert.negate_where(party, negative, remainder_value)
    )
    return replace(remainder_value, fractional_bits=f)
