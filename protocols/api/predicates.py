"""Comparisons of private tensors, logic on their results, and selection: x < y, a & ~b, where.

The party is that of the running program; public operands are taken as operands.py says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.api import operands as given
from tfe_bench.protocols.ring import (
    arithmetic,
    compare,
    convert,
    logic,
    range_check,
    relational,
    shapes,
    truncation,
)
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.session.types import Operand, Public

if TYPE_CHECKING:
    import tensorflow as tf

EXACT_BITS = compare.EXACT_BITS

Bits: TypeAlias = "MaskedBits | Public"  # truth values


def _compared(
    operation: relational.OfTwo[MaskedBits], x: Operand, y: Operand, bits: int
) -> MaskedBits:
    name = operation.__name__
    bits = given.bits_of(name, bits)
    x, y = given.pair(name, x, y)
    found = operation(given.in_graph(name), given.private(name, x), y, bits)
    shape = given.broadcast(name, x.shape, y.shape)
    return replace(found, shape=None if shape.rank is None else tuple(shape.as_list()))


def less(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """[x < y], broadcast; one side may be public (it is rounded to the scale of the other).

    Args:
        bits: right while |x - y| < 2^(bits-1) ring units; 64 is exact for all encoded values.

    Rounds and bits: relational.less.
    """
    return _compared(relational.less, x, y, bits)


def greater(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """[x > y]; as `less`."""
    return _compared(relational.greater, x, y, bits)


def less_equal(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """[x <= y]; as `less`."""
    return _compared(relational.less_equal, x, y, bits)


def greater_equal(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """[x >= y]; as `less`."""
    return _compared(relational.greater_equal, x, y, bits)


def equal(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """[x == y]; as `less`, for twice the bits.  Rounds and bits: relational.equal."""
    return _compared(relational.equal, x, y, bits)


def not_equal(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """[x != y]; as `equal`."""
    return _compared(relational.not_equal, x, y, bits)


def in_range(x: Shared, bits: int) -> MaskedBits:
    """[-2^(bits-1) <= x < 2^(bits-1)] in ring units, exact for every x.

    Where it is 1, an operation with the same `bits` is right; 63 is what truncations want.

    Args:
        bits: 2 to 63.

    Rounds and bits: those of range_check.in_range.
    """
    x = given.private("in_range", x)
    return range_check.in_range(given.in_graph("in_range"), x, bits)


# ---- bits


def _truth_values(operation: str, value: Public) -> tuple[tf.Tensor, bool]:
    """A public array or tensor, and whether it holds truth values."""
    tensor: tf.Tensor = value
    known = given.static(operation, value)
    if known is None:
        return tensor, tensor.dtype.is_bool
    return known, known.dtype.kind == "b"


def as_bits(operation: str, value: Operand | MaskedBits, like: MaskedBits) -> MaskedBits:
    """Private bits as they are, public truth values under a mask of zero.

    Raises:
        UsageError: numbers.
    """
    if isinstance(value, MaskedBits):
        return value
    if isinstance(value, Shared):
        raise UsageError(f"{operation} wants bits beside bits. Received: {value!r}.")
    values, are_true_or_false = _truth_values(operation, value)
    shape = given.shape_of(operation, value)
    if not are_true_or_false or not shape.is_fully_defined():
        raise UsageError(
            f"{operation} wants public truth values of a known shape beside private bits. "
            f"Received: {given.kind_of(values)} of shape {shape}. Compare to get bits."
        )
    n = shape.num_elements()
    if isinstance(like.masked, local.Abstract):
        ones = local.joined([1, n])
    else:
        import tensorflow as tf

        ones = tf.reshape(tf.cast(values, tf.int64), [1, n])
    packed = logic.packed(ones)[0]
    return MaskedBits(
        None if like.masked is None else packed,
        None if like.beta is None else local.zeros_like(packed),
        n,
        like.dealer,
        tuple(shape.as_list()),
    )


def spread(operation: str, bits: MaskedBits, shape: tuple[int, ...]) -> MaskedBits:
    """Bits in a larger shape.  Local.

    Raises:
        UsageError: their shape is not known, or does not broadcast to it.
    """
    if bits.shape == shape:
        return bits
    if bits.shape is None or None in bits.shape:
        raise UsageError(f"{operation} wants bits of a known shape. Received: {bits!r}.")
    if given.broadcast(operation, bits.shape, shape).as_list() != list(shape):
        raise UsageError(
            f"{operation} wants bits that broadcast to {list(shape)}. Received: {bits!r}."
        )
    n = given.elements(shape)
    moved = logic.rearrange(bits, bits.shape, lambda a: local.broadcast_to(a, shape), n)
    return replace(moved, shape=shape)


def _both(operation: str, a: Bits, b: Bits) -> tuple[MaskedBits, MaskedBits]:
    private = [v for v in (a, b) if isinstance(v, MaskedBits)]
    if not private or isinstance(a, Shared) or isinstance(b, Shared):
        raise UsageError(
            f"{operation} wants private bits (the results of comparisons). Received: "
            f"{given.kind_of(a)} and {given.kind_of(b)}."
        )
    a, b = (as_bits(operation, v, private[0]) for v in (a, b))
    if a.dealer != b.dealer:
        raise UsageError(f"{operation} wants bits of one dealer. Received: {a!r} and {b!r}.")
    if a.shape != b.shape:
        if a.shape is None or b.shape is None or None in (*a.shape, *b.shape):
            raise UsageError(f"{operation} wants bits of known shapes. Received: {a!r} and {b!r}.")
        whole = tuple(given.broadcast(operation, a.shape, b.shape).as_list())
        a, b = spread(operation, a, whole), spread(operation, b, whole)
    return a, b


def _and(operation: str, a: MaskedBits, b: MaskedBits) -> MaskedBits:
    party = given.in_graph(operation)
    masked_bits = convert.mask_bits(party, logic.all_of(party, [a, b]))
    return replace(masked_bits, shape=a.shape)


def logical_and(a: Bits, b: Bits) -> MaskedBits:
    """a AND b, broadcast; one side may be public.

    Rounds: 1 (2 with dealing).  Bits sent: D 3, E1, E2 1 per bit.
    """
    return _and("logical_and", *_both("logical_and", a, b))


def logical_or(a: Bits, b: Bits) -> MaskedBits:
    """a OR b; as `logical_and`."""
    a, b = _both("logical_or", a, b)
    return logic.invert(_and("logical_or", logic.invert(a), logic.invert(b)))


def logical_xor(a: Bits, b: Bits) -> MaskedBits:
    """a XOR b, broadcast; one side may be public.  Local."""
    return logic.xor(*_both("logical_xor", a, b))


def logical_not(a: MaskedBits) -> MaskedBits:
    """NOT a.  Local."""
    if not isinstance(a, MaskedBits):
        raise UsageError(
            "logical_not wants private bits (the result of a comparison). "
            f"Received: {given.kind_of(a)}."
        )
    return logic.invert(a)


def cast(x: Shared | MaskedBits, fractional_bits: int = 0, method: str = "safe") -> Shared:
    """Bits as the numbers 0 and 1, or a private tensor at another scale.

    Args:
        fractional_bits: of the result, 0 to 61.  A tensor that has more is rounded
            stochastically (error below 1 ulp of the result), one that has fewer stays as it is.
        method: "exact" rounds to the nearest instead, as what goes to `reveal` should be: see
            truncation.truncate.

    Rounds: of bits 1 (2 with dealing); to a lower scale 1 (2) or with "exact" 3 (4), to a higher
        one none.
    Bits sent: of bits 64 per bit by each party; else those of truncation.truncate.
    """
    if isinstance(fractional_bits, bool) or not isinstance(fractional_bits, (int, np.integer)):
        raise UsageError(
            "cast wants a number of fractional bits (0 for integers) instead of a type. "
            f"Received: {fractional_bits!r}."
        )
    if not 0 <= fractional_bits <= 61:
        raise UsageError(f"cast wants 0 to 61 fractional bits. Received: {fractional_bits}.")
    if isinstance(x, MaskedBits):
        sizes = None
        if x.shape is not None:
            known = given.elements([d for d in x.shape if d is not None])
            free = x.n // max(known, 1)
            if None not in x.shape:
                sizes = list(x.shape)
            elif x.shape.count(None) < 2:
                import tensorflow as tf

                sizes = tf.stack([free if d is None else tf.constant(d, tf.int64) for d in x.shape])
                sizes = tf.reshape(sizes, [len(x.shape)])
        x = convert.b2a(given.in_graph("cast"), x, sizes)
    x = given.private("cast", x)
    if method not in truncation.METHODS:
        raise UsageError(f"cast knows {', '.join(truncation.METHODS)}. Received: {method!r}.")
    more = int(fractional_bits) - x.fractional_bits
    if more >= 0:
        return arithmetic.mul_public(x, np.int64(1 << more), more) if more else x
    if more < -truncation.MOST_DROPPED:
        raise UsageError(
            f"cast drops {truncation.MOST_DROPPED} bits at most. Received: {x!r} for "
            f"{fractional_bits} fractional bits. Cast twice."
        )
    return truncation.truncate(given.in_graph("cast"), x, -more, method)


def where(condition: Bits, x: Operand, y: Operand) -> Shared:
    """x where the bit is 1, else y; all three broadcast where their shapes are known.

    Args:
        condition: private bits, or public truth values (then nothing is sent).
        x, y: one of them may be public.

    Rounds: 1 (2 with dealing).  Bits sent: D 128, E1, E2 64 per element.
    """

    x, y = given.pair("where", x, y)
    d = arithmetic.sub(x, y)
    if not isinstance(condition, MaskedBits):
        return arithmetic.add(y, _chosen(condition, d))
    if condition.dealer != d.dealer:
        raise UsageError(f"where wants one dealer. Received: {condition!r} and {d!r}.")
    shape = condition.shape
    if shape is not None and None not in shape and d.shape.is_fully_defined():
        whole = tuple(given.broadcast("where", shape, x.shape, y.shape).as_list())
        condition = spread("where", condition, whole)
        d = shapes.broadcast_to(d, whole)
    # (Of sizes that only the graph knows, the kernels refuse another number of bits.)
    return arithmetic.add(y, convert.inject(given.in_graph("where"), condition, d))


def _chosen(condition: Bits, d: Shared) -> Shared:
    """d where a public condition is true, else 0."""
    if given.is_private(condition):
        raise UsageError(
            "where wants private bits as its condition (the result of a private comparison). "
            f"Received: {condition!r}. Compare it: x != 0."
        )
    values, are_true_or_false = _truth_values("where", condition)
    if not are_true_or_false:
        raise UsageError(
            "where wants truth values as its condition. Received: "
            f"{given.kind_of(values)}. Compare to get them."
        )
    given.private("where", d)
    given.broadcast("where", given.shape_of("where", condition), d.shape)
    if isinstance(values, np.ndarray):
        return arithmetic.mul_public(d, values.astype(np.int64))
    import tensorflow as tf

    return arithmetic.mul_public(d, tf.cast(values, tf.int64))
