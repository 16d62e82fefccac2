"""Bitwise operations on private integers, named as in tf.bitwise: two's complement, 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands
from tfe_bench.protocols.api.rounding import floor_divide_by_power_of_two
from tfe_bench.protocols.functions import bit_planes
from tfe_bench.protocols.ring import arithmetic, checks, convert, logic, shapes
from tfe_bench.protocols.session import slices, tensor_ops
from tfe_bench.protocols.session.party import Party, current_party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.session.types import Operand

WORD = 64


def _check_bitwise_operand(operation: str, x: Shared) -> Shared:
    advice = "Bits of reals are those of their ring elements: cast(floor(x)) gives integers."
    return operands.check_integer_operand(operation, x, "private integers", advice)


def _check_position(operation: str, argument: str, value: int) -> int:
    if not checks.is_integer_between(value, 0, WORD - 1):
        received = "a private one" if operands.is_private(value) else repr(value)
        raise UsageError(
            f"{operation} expects {argument} as one public integer from 0 to {WORD - 1}. "
            f"Received: {received}.",
            code="number-out-of-range",
            operation=operation,
            received=received,
            expected=f"0 to {WORD - 1}",
        )
    return int(value)


@operands.check_arguments(check=_check_bitwise_operand)
def bit_extract(x: Shared, position: int) -> MaskedBits:
    """Return bit `position` of every integer as private bits; 0 is the lowest bit and 63 the sign.

    Rounds and bits: those of a comparison of position + 1 bits.
    """
    party = current_party()
    bit_share = bit_planes.extract_bit(
        party, x, _check_position("bit_extract", "position", position)
    )
    return replace(convert.mask_bits(party, bit_share), shape=tuple(x.shape.as_list()))


@operands.check_arguments(check=_check_bitwise_operand)
def unpack_bits(x: Shared, bits: int = WORD) -> MaskedBits:
    """Return the lowest `bits` bits of every integer as private bits (A2B), lowest first.

    They are XOR shares of its two's complement, along a new last axis.

    Rounds: 4 online, 5 in total. Bits sent: those of a comparison of every width to `bits`, and 1
    for each bit.
    Source: ABY3 (Mohassel and Rindal, CCS 2018), section 5.3, for the operation; the protocol
    compares all widths in parallel instead of an adder.
    """
    operands.check_integer_range("unpack_bits", bits, 1, WORD, f"1 to {WORD} bits")
    party, shape = current_party(), operands.sizes("unpack_bits", x)
    planes = replace(bit_planes.extract_planes(party, x, bits), shape=(bits, *shape))
    return shapes.transpose(planes, [*range(1, len(shape) + 1), 0])  # type: ignore[arg-type, return-value]


def pack_bits(x: MaskedBits) -> Shared:
    """Return the integers whose lowest bits are along the last axis of x (B2A), lowest first.

    64 bits are two's complement; with fewer bits integers are not negative.

    Rounds: 1 online, 2 in total. Bits sent: D 64 per bit, E1, E2 64 per element.
    """
    if not isinstance(x, MaskedBits) or not x.shape or not 1 <= x.shape[-1] <= WORD:
        raise UsageError(
            f"pack_bits expects private bits [.., 1 to {WORD}]. Received: {x!r}.",
            code="not-private-bits" if not isinstance(x, MaskedBits) else "shape-mismatch",
            operation="pack_bits",
            received=repr(x),
            expected=f"[.., 1 to {WORD}]",
        )
    *shape, bits = x.shape
    party = operands.require_party_in_graph("pack_bits")
    planes: MaskedBits = shapes.transpose(x, [len(shape), *range(len(shape))])  # type: ignore[arg-type, assignment]
    weights = _bit_weights(WORD)[:bits]
    return bit_planes.sum_weighted_planes(party, planes, weights, shape)


@operands.check_arguments(check=_check_bitwise_operand, max_bits=WORD)
def popcount(x: Shared, bits: int = WORD) -> Shared:
    """Count the ones among the bits of every integer; exact.

    Args:
        bits: of the word: -2^(bits-1) <= x < 2^(bits-1); the lowest `bits` bits are counted.

    Rounds: 5 online, 6 in total. Bits sent: those of a comparison of every width to `bits`, and D
    64 for each bit.
    """

    def count_ones(party: Party, x: Shared) -> Shared:
        planes = bit_planes.extract_planes(party, x, bits)
        weights = np.ones(bits, np.int64)
        return bit_planes.sum_weighted_planes(party, planes, weights, x.shape.as_list())

    return slices.map_slices(current_party(), count_ones, [x])


@operands.check_arguments(check=_check_bitwise_operand, in_graph=False)
def invert(x: Shared) -> Shared:
    """Invert every bit: -1 - x. Local."""
    return arithmetic.add_constant(arithmetic.neg(x), -1)


@operands.check_arguments(check=_check_bitwise_operand, in_graph=False)
def left_shift(x: Shared, y: int) -> Shared:
    """Compute x 2^y modulo 2^64, for a public count from 0 to 63. Local."""
    y = _check_position("left_shift", "y", y)
    return x.map(lambda a: tensor_ops.left_shift(a, y))


@operands.check_arguments(check=_check_bitwise_operand)
def right_shift(x: Shared, y: int) -> Shared:
    """Compute floor(x / 2^y) for a public count from 0 to 63, exact for |x| < 2^62.

    Rounds: 3 online, 4 in total, twice for y > 48, none for 0. Bits sent: those of `cast` to the
    nearest.
    """
    y = _check_position("right_shift", "y", y)
    return floor_divide_by_power_of_two(current_party(), x, y)


# ---- two words


def bitwise_and(x: Operand, y: Operand, bits: int = WORD) -> Shared:
    """Compute x AND y of every bit, broadcast; one of them may be public.

    Args:
        bits: of the words: -2^(bits-1) <= x, y < 2^(bits-1); fewer are cheaper. With one public
            number the result is right for every x.

    Rounds: 6 online, 7 in total; with one public number 3 online, 4 in total. Bits sent: those of a
    comparison of every width to `bits`, for both words; with one public number those of a
    `right_shift` for each end of a run of ones.
    """
    return _combine_bitwise_operands("bitwise_and", x, y, bits)


def bitwise_or(x: Operand, y: Operand, bits: int = WORD) -> Shared:
    """Compute x OR y = x + y - (x AND y); as `bitwise_and`."""
    return _combine_bitwise_operands("bitwise_or", x, y, bits)


def bitwise_xor(x: Operand, y: Operand, bits: int = WORD) -> Shared:
    """Compute x XOR y, as `bitwise_and` with a round less; if one is public x + y - 2 (x AND y)."""
    return _combine_bitwise_operands("bitwise_xor", x, y, bits)


def _combine_bitwise_operands(operation: str, x: Operand, y: Operand, bits: int) -> Shared:
    bits = operands.check_comparison_width(operation, bits)
    first = _check_bitwise_operand(operation, operands.either_private(operation, x, y))
    other = y if first is x else x
    if not operands.is_private(other):
        static_value = operands.static_public_operand(operation, other)
        if static_value is not None and static_value.size == 1:
            number = int(operands.encode_public(operation, static_value, 0).item())
            conjunction = _bitwise_and_with_public(operation, first, number)
            conjunction = _derive_bitwise_result(operation, first, number, conjunction)
            rank = max(static_value.ndim, len(first.shape))
            sizes = first.shape.as_list()
            return shapes.reshape(conjunction, [1] * (rank - len(sizes)) + sizes)
    first, second = operands.share_operand_pair(operation, first, other)
    second = _check_bitwise_operand(operation, second)
    result_shape = [int(n) for n in operands.broadcast_shapes(operation, first.shape, second.shape)]
    first, second = (shapes.broadcast_to(v, result_shape) for v in (first, second))
    party = operands.require_party_in_graph(operation)
    planes = [bit_planes.extract_planes(party, v, bits) for v in (first, second)]
    if operation == "bitwise_xor":
        ones = logic.xor_bits(*planes)
    else:
        ones = convert.mask_bits(party, logic.and_bits(party, planes))
    combined = bit_planes.sum_weighted_planes(party, ones, _bit_weights(bits), result_shape)
    if operation == "bitwise_or":
        return arithmetic.sub(arithmetic.add(first, second), combined)
    return combined


def _bit_weights(bits: int) -> npt.NDArray[np.int64]:
    """Return the weights of a word's bits: the highest is its sign."""
    weights = np.left_shift(np.int64(1), np.arange(bits, dtype=np.int64))
    with np.errstate(over="ignore"):
        weights[-1] = -weights[-1]
    return weights


def _derive_bitwise_result(operation: str, x: Shared, number: int, conjunction: Shared) -> Shared:
    """Return the result of an operation, given x AND a public number."""
    if operation == "bitwise_and":
        return conjunction
    subtrahend = conjunction if operation == "bitwise_or" else arithmetic.mul_public(conjunction, 2)
    return arithmetic.add_constant(arithmetic.sub(x, subtrahend), number)


def _bitwise_and_with_public(operation: str, x: Shared, number: int) -> Shared:
    """Return x AND a public number: differences of x's low bits at the ends of each run of ones."""
    word = number % (1 << WORD)
    ends = [k for k in range(WORD + 1) if (word >> k) % 2 != ((word << 1) >> k) % 2]
    conjunction = x.map(tensor_ops.zeros_like)
    for i, end in enumerate(ends):
        below = _keep_low_bits(operation, x, end)
        merge: Callable[[Shared, Shared], Shared] = arithmetic.add if i % 2 else arithmetic.sub
        conjunction = merge(conjunction, below)
    return conjunction


def _keep_low_bits(operation: str, x: Shared, end: int) -> Shared:
    """Return x modulo 2^end, exactly, for every x."""
    if end in (0, WORD):
        return x if end else x.map(tensor_ops.zeros_like)
    high = floor_divide_by_power_of_two(operands.require_party_in_graph(operation), x, end)
    return arithmetic.sub(x, high.map(lambda a: tensor_ops.left_shift(a, end)))
