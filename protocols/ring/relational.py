"""Comparisons of private tensors, and selection by their result.

[x < y] is the sign of x - y: exact for 64-bit values whose difference fits 64 bits,
which holds for all encoded reals (|v| 2^f < 2^62). Results are bits exchanged under a
mask (`MaskedBits`), in the row-major order of the broadcast shape.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Protocol, TypeVar

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, checks, compare, convert, logic
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

Result = TypeVar("Result", covariant=True)


class Comparison(Protocol[Result]):
    """An operation on two private tensors, with broadcasting, that compares them.

    Args:
        bits: right while the difference, in ring units, fits that many bits; signed.
        exchanges: exchanges of the comparison, 1 to 3; None takes the fewest bits.

    Raises:
        UsageError: a public operand, or rings, dealers, scales or shapes that do not fit.
    """

    __name__: str

    def __call__(
        self, party: Party, x: Shared, y: Shared, bits: int = ..., exchanges: int | None = None
    ) -> Result: ...


def is_negative(
    party: Party, x: Shared, bits: int = compare.EXACT_BITS, exchanges: int | None = None
) -> MaskedBits:
    """Return [x < 0] as private bits; as `less`."""
    checks.check_private("negative", x)
    return convert.mask_bits(party, compare.msb(party, x, bits, exchanges))


def is_zero(
    party: Party, d: Shared, bits: int = compare.EXACT_BITS, exchanges: int | None = None
) -> MaskedBits:
    """Return [d == 0] for |d| < 2^(bits-1): neither d nor -d is negative.

    At most one of them is negative: a local XOR joins two comparisons made at once.
    """
    n = d.shape.num_elements()
    if d.limbs != 1 or n is None:
        raise UsageError(
            f"equal expects values of 64 bits or less, of a known shape. Received: {d!r}.",
            code="unsupported-ring" if d.limbs != 1 else "unknown-shape",
            operation="equal",
            received=repr(d),
        )
    both = d.map(
        lambda a: tensor_ops.concat(
            [tensor_ops.reshape(a, [n]), tensor_ops.reshape(-a, [n])], axis=0
        )
    )
    signs = is_negative(party, both, bits, exchanges)
    first, second = (
        logic.rearrange_private_bits(signs, (2, n), operator.itemgetter(i), n) for i in range(2)
    )
    return logic.invert_bits(logic.xor_bits(first, second))


def _compare_by_difference(
    name: str, of_difference: Callable[..., Result], swapped: bool = False
) -> Comparison[Result]:
    """Return of_difference(party, x, d, bits, exchanges) with d = x - y, or y - x if swapped."""

    def operation(
        party: Party,
        x: Shared,
        y: Shared,
        bits: int = compare.EXACT_BITS,
        exchanges: int | None = None,
    ) -> Result:
        checks.check_private_pair(name, x, y)
        checks.broadcast_shapes(name, x.shape, y.shape)
        d = arithmetic.sub(y, x) if swapped else arithmetic.sub(x, y)
        return of_difference(party, x, d, bits, exchanges)

    operation.__name__ = operation.__qualname__ = name
    return operation


def _is_difference_negative(
    party: Party, x: Shared, d: Shared, bits: int, exchanges: int | None
) -> MaskedBits:
    return is_negative(party, d, bits, exchanges)


def _is_difference_zero(
    party: Party, x: Shared, d: Shared, bits: int, exchanges: int | None
) -> MaskedBits:
    return is_zero(party, d, bits, exchanges)


def _invert_comparison_bits(of_difference: Callable[..., MaskedBits]) -> Callable[..., MaskedBits]:
    return lambda *operands: logic.invert_bits(of_difference(*operands))


# Rounds: exchanges + 1 online (exchanges + 2 total). Bits sent: those of compare.msb and
# convert.mask_bits.
less = _compare_by_difference("less", _is_difference_negative)
greater = _compare_by_difference("greater", _is_difference_negative, swapped=True)
less_equal = _compare_by_difference(
    "less_equal", _invert_comparison_bits(_is_difference_negative), swapped=True
)
greater_equal = _compare_by_difference(
    "greater_equal", _invert_comparison_bits(_is_difference_negative)
)
# For differences of less than 2^(bits-1), of one word and a known shape. Rounds: as `less`. Bits
# sent: those of `less` for twice the elements.
equal = _compare_by_difference("equal", _is_difference_zero)
not_equal = _compare_by_difference("not_equal", _invert_comparison_bits(_is_difference_zero))


def _select_larger(party: Party, x: Shared, d: Shared, bits: int, exchanges: int | None) -> Shared:
    """Return x + [x < y] (y - x)."""
    below = is_negative(party, arithmetic.neg(d), bits, exchanges)
    return arithmetic.add(x, convert.inject(party, below, d))


def _select_smaller(party: Party, x: Shared, d: Shared, bits: int, exchanges: int | None) -> Shared:
    """Return x + [y < x] (y - x)."""
    return arithmetic.add(x, convert.inject(party, is_negative(party, d, bits, exchanges), d))


# Rounds: exchanges + 2 online (exchanges + 3 total). Bits sent: those of `less` and of
# convert.inject.
maximum = _compare_by_difference("maximum", _select_larger, swapped=True)
minimum = _compare_by_difference("minimum", _select_smaller, swapped=True)


def where(party: Party, condition: MaskedBits, x: Shared, y: Shared) -> Shared:
    """Return x where the bit is 1, else y; x and y broadcast to the shape of the bits.

    Rounds: 1 online (2 total). Bits sent: D 128, E1, E2 64 per element each.
    Raises:
        UsageError: a public argument, or shapes, dealers, rings or scales that do not fit.
    """
    if not isinstance(condition, MaskedBits):
        raise UsageError(
            "where expects private bits as its condition (the result of a private comparison). "
            f"Received: {type(condition).__name__}.",
            code="not-private",
            operation="where",
            received=type(condition).__name__,
        )
    checks.check_private_pair("where", x, y)
    checks.broadcast_shapes("where", x.shape, y.shape)
    return arithmetic.add(y, convert.inject(party, condition, arithmetic.sub(x, y)))
