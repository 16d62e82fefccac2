"""Comparisons of private tensors, and selection by their result.

[x < y] is the sign of x - y: exact for 64-bit values whose difference fits 64 bits,
which holds for all encoded reals (|v| 2^f < 2^62).  Results are bits opened under a
mask (`MaskedBits`), in the row-major order of the broadcast shape.
"""

from __future__ import annotations

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared


def less(
    party: Party,
    x: Shared,
    y: Shared,
    bits: int = compare.EXACT_BITS,
    openings: int | None = None,
) -> MaskedBits:
    """[x < y], with broadcasting.

    Args:
        bits: right while the difference, in ring units, fits that many bits; signed.
        openings: of the comparison, 1 to 3; None takes the fewest bits.

    Rounds: openings + 1 (cold + 2).  Bits sent: those of compare.msb and convert.open_bits.
    Raises:
        UsageError: a public operand, or rings, dealers, scales or shapes that do not fit.
    """
    return _less("less", party, x, y, bits, openings)


def _less(
    name: str, party: Party, x: Shared, y: Shared, bits: int, openings: int | None
) -> MaskedBits:
    return negative(party, _difference(name, x, y), bits, openings)


def _difference(name: str, x: Shared, y: Shared) -> Shared:
    """x - y of operands that fit together."""
    for operand in (x, y):
        if not isinstance(operand, Shared):
            raise UsageError(
                f"{name} wants two private tensors. Received: {type(operand).__name__}. "
                "For a public bound, compare x - bound with 0 (add_public, then negative)."
            )
    arithmetic.check_pair(name, x, y)
    arithmetic._broadcastable(name, x, y)
    return arithmetic.sub(x, y)


def greater(
    party: Party,
    x: Shared,
    y: Shared,
    bits: int = compare.EXACT_BITS,
    openings: int | None = None,
) -> MaskedBits:
    """[x > y]; as `less`."""
    return _less("greater", party, y, x, bits, openings)


def less_equal(
    party: Party,
    x: Shared,
    y: Shared,
    bits: int = compare.EXACT_BITS,
    openings: int | None = None,
) -> MaskedBits:
    """[x <= y]; as `less`."""
    return logic.invert(_less("less_equal", party, y, x, bits, openings))


def greater_equal(
    party: Party,
    x: Shared,
    y: Shared,
    bits: int = compare.EXACT_BITS,
    openings: int | None = None,
) -> MaskedBits:
    """[x >= y]; as `less`."""
    return logic.invert(_less("greater_equal", party, x, y, bits, openings))


def negative(
    party: Party, x: Shared, bits: int = compare.EXACT_BITS, openings: int | None = None
) -> MaskedBits:
    """[x < 0]; as `less`."""
    if not isinstance(x, Shared):
        raise UsageError(f"negative wants a private tensor. Received: {type(x).__name__}.")
    return convert.open_bits(party, compare.msb(party, x, bits, openings))


def equal(
    party: Party,
    x: Shared,
    y: Shared,
    bits: int = compare.EXACT_BITS,
    openings: int | None = None,
) -> MaskedBits:
    """[x == y], with broadcasting, for differences of less than 2^(bits-1).

    d = x - y is not 0 exactly where d or -d is negative, and they never both are: one XOR, which is
    free, joins two comparisons made at once.  (Values of one word; shapes known.)

    Rounds: openings + 1 (cold + 2).  Bits sent: those of `less` for twice the elements.
    """
    d = _difference("equal", x, y)
    return _zero("equal", party, d, bits, openings)


def zero(
    party: Party, d: Shared, bits: int = compare.EXACT_BITS, openings: int | None = None
) -> MaskedBits:
    """[d == 0] for |d| < 2^(bits-1); as `equal`."""
    return _zero("zero", party, d, bits, openings)


def _zero(name: str, party: Party, d: Shared, bits: int, openings: int | None) -> MaskedBits:
    n = d.shape.num_elements()
    if d.limbs != 1 or n is None:
        raise UsageError(
            f"{name} wants values of 64 bits or less, of a known shape. Received: {d!r}."
        )
    both = d.map(lambda a: local.concat([local.reshape(a, [n]), local.reshape(-a, [n])], axis=0))
    signs = negative(party, both, bits, openings)
    first = logic.rearrange(signs, (2, n), lambda a: a[0], n)
    second = logic.rearrange(signs, (2, n), lambda a: a[1], n)
    return logic.invert(logic.xor(first, second))


def not_equal(
    party: Party,
    x: Shared,
    y: Shared,
    bits: int = compare.EXACT_BITS,
    openings: int | None = None,
) -> MaskedBits:
    """[x != y]; as `equal`."""
    d = _difference("not_equal", x, y)
    return logic.invert(_zero("not_equal", party, d, bits, openings))


def where(party: Party, condition: MaskedBits, x: Shared, y: Shared) -> Shared:
    """x where the bit is 1, else y; x and y broadcast to the shape that the bits were made for.

    Rounds: 1 (cold 2).  Bits sent: D 128, E1, E2 64 per element each.
    Raises:
        UsageError: a public argument, or shapes, dealers, rings or scales that do not fit.
    """
    if not isinstance(condition, MaskedBits):
        raise UsageError(
            "where wants private bits as its condition (the result of a private comparison). "
            f"Received: {type(condition).__name__}."
        )
    d = _difference("where", x, y)
    return arithmetic.add(y, convert.inject(party, condition, d))


def maximum(
    party: Party,
    x: Shared,
    y: Shared,
    bits: int = compare.EXACT_BITS,
    openings: int | None = None,
) -> Shared:
    """max(x, y), with broadcasting: x + [x < y] (y - x).

    Rounds: openings + 2 (cold + 3).  Bits sent: those of `less` and of convert.inject.
    """
    d = _difference("maximum", y, x)
    below = convert.open_bits(party, compare.msb(party, arithmetic.neg(d), bits, openings))
    return arithmetic.add(x, convert.inject(party, below, d))


def minimum(
    party: Party,
    x: Shared,
    y: Shared,
    bits: int = compare.EXACT_BITS,
    openings: int | None = None,
) -> Shared:
    """min(x, y), with broadcasting: x + [y < x] (y - x); as `maximum`."""
    d = _difference("minimum", y, x)
    below = convert.open_bits(party, compare.msb(party, d, bits, openings))
    return arithmetic.add(x, convert.inject(party, below, d))
