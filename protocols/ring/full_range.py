"""Comparisons of any two 64-bit integers, whose difference may take 65 bits.

relational.py compares by the sign of x - y in 64 bits, which is right for all encoded reals but
not for, say, -2^63 and 2^63 - 1. Here differences are taken modulo 2^65, and each operand's wrap
is one more comparison: its bit joins the result by a local XOR of shares.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, checks, compare, convert, logic
from tfe_bench.protocols.session import tensor_ops, wide
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared

BITS = 65


def less(party: Party, x: Shared, y: Shared, exchanges: int | None = None) -> MaskedBits:
    """Return [x < y] for all signed 64-bit integers.

    With u = x + 2^63 the parts m - l1 - l2 of u, read modulo 2^65, are X = u + 2^64 t_x where
    t_x = msb(X). u_x - u_y = X - Y + 2^64 (t_x ^ t_y) fits 65 bits, so that
    [x < y] = msb(X - Y) ^ t_x ^ t_y: three comparisons at once, and one exchange.

    Args:
        exchanges: exchanges of the comparisons, 1 to 3; None takes the fewest bits.

    Rounds: exchanges + 1 online (exchanges + 2 total). Bits sent: those of three comparisons of 65
    bits.
    Raises:
        UsageError: a public operand, or rings, dealers, scales or shapes that differ.
    """
    _check_operands("less", x, y)
    wide_x, wide_y = (_extend_share_with_zero_word(_offset_share_to_unsigned(v)) for v in (x, y))
    signs = [
        compare.msb(party, v, BITS, exchanges)
        for v in (arithmetic.sub(wide_x, wide_y), wide_x, wide_y)
    ]
    return convert.mask_bits(party, _xor_bits(signs))


def equal(party: Party, x: Shared, y: Shared, exchanges: int | None = None) -> MaskedBits:
    """Return [x == y] for all 64-bit integers.

    x - y = m - lam modulo 2^64 is not 0 where m < lam or lam < m as unsigned words; at most one of
    these holds. Hence two comparisons at once, and one exchange.

    Rounds, arguments, errors: as `less`. Bits sent: those of two comparisons.
    """
    _check_operands("equal", x, y)
    d = arithmetic.sub(x, y)
    if d.m is None:  # the wrap of l1 + l2 is irrelevant here: lam is one word
        d = replace(d, l1=d.l1 + d.l2, l2=d.l2 - d.l2)
    above = _extend_share_with_zero_word(d)
    below = above.map(wide.negate)
    signs = [compare.msb(party, v, BITS, exchanges) for v in (above, below)]
    return logic.invert_bits(convert.mask_bits(party, _xor_bits(signs)))


def maximum(party: Party, x: Shared, y: Shared) -> Shared:
    """Return the larger value of each pair of 64-bit integers.

    Rounds: those of `less` and 1. Bits sent: those of `less`; D 192, E1, E2 64 per element.
    """
    return _select_second(party, less(party, x, y), x, y)


def minimum(party: Party, x: Shared, y: Shared) -> Shared:
    """Return the smaller value of each pair; rounds and bits as `maximum`."""
    return _select_second(party, less(party, y, x), x, y)


def _select_second(party: Party, second: MaskedBits, x: Shared, y: Shared) -> Shared:
    """Return y where the bit is 1, else x; their difference wraps, and so does the sum."""
    return arithmetic.add(x, convert.inject(party, second, arithmetic.sub(y, x)))


def _offset_share_to_unsigned(x: Shared) -> Shared:
    """Add 2^63. Local."""
    return arithmetic.add_constant(x, -(2**63))


def _extend_share_with_zero_word(x: Shared) -> Shared:
    """Add a high word of 0 to every part, as a value of Z_2^65. Local."""
    return replace(x.map(lambda a: wide.shift_left(a, 0)), limbs=2, bits=BITS)


def _xor_bits(bits: list[EvaluatorBits]) -> EvaluatorBits:
    """Return the XOR of bits. Local."""
    first, *rest = bits
    if first.share is None:
        return first
    share: Any = first.share
    for other in rest:
        share = tensor_ops.xor(share, other.share)
    return replace(first, share=share)


def _check_operands(name: str, x: Any, y: Any) -> None:
    checks.check_private_pair(name, x, y)
    checks.check_private_64bit_tensor(name, x)
    if x.shape != y.shape:
        raise UsageError(
            f"{name} expects two tensors of one shape. Received: {x.shape.as_list()} and "
            f"{y.shape.as_list()}. Use broadcast_to.",
            code="shape-mismatch",
            operation=name,
            received=f"{x.shape.as_list()}, {y.shape.as_list()}",
        )
