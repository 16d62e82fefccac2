"""Comparisons of private tensors, logic on their results, and selection: x < y, a & ~b, where.

The party is that of the running program; operands.py converts public operands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.api import operands
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
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import current_party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared
from tfe_bench.protocols.session.types import Operand, Public

EXACT_BITS = compare.EXACT_BITS

Bits: TypeAlias = "MaskedBits | Public"  # truth values


def _compare_private_operands(
    operation: relational.Comparison[MaskedBits], x: Operand, y: Operand, bits: int
) -> MaskedBits:
    name = operation.__name__
    bits = operands.check_comparison_width(name, bits)
    x, y = operands.share_operand_pair(name, x, y)
    result_bits = operation(
        operands.require_party_in_graph(name), operands.check_private_operand(name, x), y, bits
    )
    shape = operands.broadcast_shapes(name, x.shape, y.shape)
    return replace(result_bits, shape=None if shape.rank is None else tuple(shape.as_list()))


def less(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """Return [x < y], broadcast; one side may be public (it is rounded to the scale of the other).

    Args:
        bits: right while |x - y| < 2^(bits-1) ring units; 64 is exact for all encoded values.

    Rounds and bits: relational.less.
    """
    return _compare_private_operands(relational.less, x, y, bits)


def greater(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """Return [x > y]; as `less`."""
    return _compare_private_operands(relational.greater, x, y, bits)


def less_equal(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """Return [x <= y]; as `less`."""
    return _compare_private_operands(relational.less_equal, x, y, bits)


def greater_equal(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """Return [x >= y]; as `less`."""
    return _compare_private_operands(relational.greater_equal, x, y, bits)


def equal(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """Return [x == y]; as `less`, with twice the bits. Rounds and bits: relational.equal."""
    return _compare_private_operands(relational.equal, x, y, bits)


def not_equal(x: Operand, y: Operand, bits: int = EXACT_BITS) -> MaskedBits:
    """Return [x != y]; as `equal`."""
    return _compare_private_operands(relational.not_equal, x, y, bits)


@operands.check_arguments()
def in_range(x: Shared, bits: int) -> MaskedBits:
    """Return [-2^(bits-1) <= x < 2^(bits-1)] in ring units, exact for every x.

    Where it is 1, an operation with the same `bits` is right; truncations require 63.

    Args:
        bits: 2 to 63.

    Rounds and bits: those of range_check.in_range.
    """
    return range_check.in_range(current_party(), x, bits)


# ---- bits


def _public_truth_values(operation: str, value: Public) -> tuple[tf.Tensor, bool]:
    """Return a public array or tensor, and True if it holds truth values."""
    tensor: tf.Tensor = value
    array = operands.static_public_operand(operation, value)
    if array is None:
        return tensor, tensor.dtype.is_bool
    return array, array.dtype.kind == "b"


def as_private_bits(
    operation: str, value: Operand | MaskedBits, template: MaskedBits
) -> MaskedBits:
    """Return private bits as they are, public truth values under a mask of zero.

    Raises:
        UsageError: the value holds numbers.
    """
    if isinstance(value, MaskedBits):
        return value
    if isinstance(value, Shared):
        raise UsageError(
            f"{operation} expects bits with bits. Received: {value!r}.",
            code="not-private-bits",
            operation=operation,
            received=repr(value),
        )
    values, are_true_or_false = _public_truth_values(operation, value)
    shape = operands.public_shape(operation, value)
    if not are_true_or_false or not shape.is_fully_defined():
        raise UsageError(
            f"{operation} expects public truth values of a known shape with private "
            f"bits. Received: {operands.describe_type(values)} of shape {shape}. Compare "
            "to get bits.",
            code="not-truth-values" if not are_true_or_false else "unknown-shape",
            operation=operation,
            received=operands.describe_type(values),
        )
    n = shape.num_elements()
    if isinstance(template.masked, tensor_ops.SymbolicTensor):
        ones = tensor_ops.symbolic_result([1, n])
    else:
        ones = tf.reshape(tf.cast(values, tf.int64), [1, n])
    packed = logic.pack_bits(ones)[0]
    return MaskedBits(
        None if template.masked is None else packed,
        None if template.beta is None else tensor_ops.zeros_like(packed),
        n,
        template.dealer,
        tuple(shape.as_list()),
    )


def broadcast_bits(operation: str, bits: MaskedBits, shape: tuple[int, ...]) -> MaskedBits:
    """Broadcast bits to a larger shape. Local.

    Raises:
        UsageError: their shape is not known, or does not broadcast to it.
    """
    if bits.shape == shape:
        return bits
    if bits.shape is None or None in bits.shape:
        raise UsageError(
            f"{operation} expects bits of a known shape. Received: {bits!r}.",
            code="unknown-shape",
            operation=operation,
            received=repr(bits),
        )
    if operands.broadcast_shapes(operation, bits.shape, shape).as_list() != list(shape):
        raise UsageError(
            f"{operation} expects bits that broadcast to {list(shape)}. Received: {bits!r}.",
            code="shape-mismatch",
            operation=operation,
            received=repr(bits),
            expected=list(shape),
        )
    n = operands.count_elements(shape)
    broadcast = logic.rearrange_private_bits(
        bits, bits.shape, lambda a: tensor_ops.broadcast_to(a, shape), n
    )
    return replace(broadcast, shape=shape)


def _share_logical_operands(operation: str, a: Bits, b: Bits) -> tuple[MaskedBits, MaskedBits]:
    private_bits = [v for v in (a, b) if isinstance(v, MaskedBits)]
    if not private_bits or isinstance(a, Shared) or isinstance(b, Shared):
        raise UsageError(
            f"{operation} expects private bits (the results of comparisons). Received: "
            f"{operands.describe_type(a)} and {operands.describe_type(b)}.",
            code="not-private-bits",
            operation=operation,
            received=f"{operands.describe_type(a)} and {operands.describe_type(b)}",
        )
    a, b = (as_private_bits(operation, v, private_bits[0]) for v in (a, b))
    operands.check_same_dealer(operation, a, b, "bits of one dealer")
    if a.shape != b.shape:
        if a.shape is None or b.shape is None or None in (*a.shape, *b.shape):
            raise UsageError(
                f"{operation} expects bits of known shapes. Received: {a!r} and {b!r}.",
                code="unknown-shape",
                operation=operation,
                received=f"{a!r} and {b!r}",
            )
        result_shape = tuple(operands.broadcast_shapes(operation, a.shape, b.shape).as_list())
        a, b = (
            broadcast_bits(operation, a, result_shape),
            broadcast_bits(operation, b, result_shape),
        )
    return a, b


def _logical_and_of_operands(operation: str, a: MaskedBits, b: MaskedBits) -> MaskedBits:
    party = operands.require_party_in_graph(operation)
    masked_bits = convert.mask_bits(party, logic.and_bits(party, [a, b]))
    return replace(masked_bits, shape=a.shape)


def logical_and(a: Bits, b: Bits) -> MaskedBits:
    """Compute a AND b, broadcast; one side may be public.

    Rounds: 1 online, 2 in total. Bits sent: D 3, E1, E2 1 per bit.
    """
    return _logical_and_of_operands("logical_and", *_share_logical_operands("logical_and", a, b))


def logical_or(a: Bits, b: Bits) -> MaskedBits:
    """Compute a OR b; as `logical_and`."""
    a, b = _share_logical_operands("logical_or", a, b)
    return logic.invert_bits(
        _logical_and_of_operands("logical_or", logic.invert_bits(a), logic.invert_bits(b))
    )


def logical_xor(a: Bits, b: Bits) -> MaskedBits:
    """Compute a XOR b, broadcast; one side may be public. Local."""
    return logic.xor_bits(*_share_logical_operands("logical_xor", a, b))


def logical_not(a: MaskedBits) -> MaskedBits:
    """Compute NOT a. Local."""
    if not isinstance(a, MaskedBits):
        raise UsageError(
            "logical_not expects private bits (the result of a comparison). Received: "
            f"{operands.describe_type(a)}.",
            code="not-private-bits",
            operation="logical_not",
            received=operands.describe_type(a),
        )
    return logic.invert_bits(a)


def cast(x: Shared | MaskedBits, fractional_bits: int = 0, method: str = "safe") -> Shared:
    """Convert bits to the numbers 0 and 1, or a private tensor to another scale.

    Args:
        fractional_bits: of the result, 0 to 61. A tensor that has more is rounded stochastically
            (error below 1 ulp of the result), one that has fewer keeps its value.
        method: "exact" rounds to the nearest instead, as suits values to `reveal`: see
            truncation.truncate.

    Rounds: of bits 1 online, 2 in total; to a lower scale 1 online, 2 in total, or with "exact" 3
    online, 4 in total; to a higher one none.
    Bits sent: of bits 64 per bit by each party; else those of truncation.truncate.
    """
    if isinstance(fractional_bits, bool) or not isinstance(fractional_bits, (int, np.integer)):
        raise UsageError(
            "cast expects a number of fractional bits (0 for integers) instead of a "
            f"type. Received: {fractional_bits!r}.",
            code="wrong-type",
            operation="cast",
            received=fractional_bits,
        )
    operands.check_integer_range("cast", int(fractional_bits), 0, 61, "0 to 61 fractional bits")
    if isinstance(x, MaskedBits):
        sizes = None
        if x.shape is not None:
            known_elements = operands.count_elements([d for d in x.shape if d is not None])
            free_size = x.n // max(known_elements, 1)
            if None not in x.shape:
                sizes = list(x.shape)
            elif x.shape.count(None) < 2:
                sizes = tf.stack(
                    [free_size if d is None else tf.constant(d, tf.int64) for d in x.shape]
                )
                sizes = tf.reshape(sizes, [len(x.shape)])
        x = convert.b2a(operands.require_party_in_graph("cast"), x, sizes)
    x = operands.check_private_operand("cast", x)
    if method not in truncation.METHODS:
        raise UsageError(
            f"cast supports the methods {', '.join(truncation.METHODS)}. Received: {method!r}.",
            code="unknown-name",
            operation="cast",
            received=method,
            expected=", ".join(truncation.METHODS),
        )
    added_bits = int(fractional_bits) - x.fractional_bits
    if added_bits >= 0:
        return arithmetic.mul_public(x, np.int64(1 << added_bits), added_bits) if added_bits else x
    if added_bits < -truncation.MAX_DROPPED_BITS:
        raise UsageError(
            f"cast drops at most {truncation.MAX_DROPPED_BITS} bits. Received: {x!r} for "
            f"{fractional_bits} fractional bits. Cast twice.",
            code="too-large",
            operation="cast",
            received=repr(x),
            expected=truncation.MAX_DROPPED_BITS,
        )
    return truncation.truncate(operands.require_party_in_graph("cast"), x, -added_bits, method)


def where(condition: Bits, x: Operand, y: Operand) -> Shared:
    """Return x where the bit is 1, else y; all three broadcast where their shapes are known.

    Args:
        condition: private bits, or public truth values (then nothing is sent).
        x, y: one of them may be public.

    Rounds: 1 online, 2 in total. Bits sent: D 128, E1, E2 64 per element.
    """

    x, y = operands.share_operand_pair("where", x, y)
    difference = arithmetic.sub(x, y)
    if not isinstance(condition, MaskedBits):
        return arithmetic.add(y, _select_public(condition, difference))
    operands.check_same_dealer("where", condition, difference)
    shape = condition.shape
    if shape is not None and None not in shape and difference.shape.is_fully_defined():
        result_shape = tuple(operands.broadcast_shapes("where", shape, x.shape, y.shape).as_list())
        condition = broadcast_bits("where", condition, result_shape)
        difference = shapes.broadcast_to(difference, result_shape)
    # If sizes are known only when the graph runs, the kernels reject another number of bits.
    return arithmetic.add(
        y, convert.inject(operands.require_party_in_graph("where"), condition, difference)
    )


def _select_public(condition: Bits, difference: Shared) -> Shared:
    """Return d where a public condition is true, else 0."""
    if operands.is_private(condition):
        raise UsageError(
            "where expects private bits as its condition (the result of a private "
            f"comparison). Received: {condition!r}. Compare it: x != 0.",
            code="not-private-bits",
            operation="where",
            received=repr(condition),
        )
    values, are_true_or_false = _public_truth_values("where", condition)
    if not are_true_or_false:
        raise UsageError(
            "where expects truth values as its condition. Received: "
            f"{operands.describe_type(values)}. Compare to get them.",
            code="not-truth-values",
            operation="where",
            received=operands.describe_type(values),
        )
    operands.check_private_operand("where", difference)
    operands.broadcast_shapes("where", operands.public_shape("where", condition), difference.shape)
    if isinstance(values, np.ndarray):
        return arithmetic.mul_public(difference, values.astype(np.int64))
    return arithmetic.mul_public(difference, tf.cast(values, tf.int64))
