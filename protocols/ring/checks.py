"""What protocols want of their operands, each said once: kinds, rings, shapes, axes and scales.

Every check is given the operation's name, with which its error begins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import MaskedBits, Shared, describe_type
from tfe_bench.protocols.session.types import Axes, Shape

if TYPE_CHECKING:
    import tensorflow as tf


def check_private(operation: str, x: object) -> Shared:
    """x; raises UsageError unless it is a private tensor."""
    if isinstance(x, MaskedBits):
        raise UsageError(
            f"{operation} wants private numbers. Received: {x!r}. "
            "Use cast(bits) to make 0 and 1 of them."
        )
    if not isinstance(x, Shared):
        raise UsageError(
            f"{operation} wants a private tensor. Received: {describe_type(x)}. "
            "Use TensorFlow's own operation for a public one, or share it first."
        )
    return x


def check_word(operation: str, x: object) -> Shared:
    """x; raises UsageError unless it is private, over Z_2^64 or a smaller ring."""
    value = check_private(operation, x)
    if value.limbs != 1:
        raise UsageError(f"{operation} works on 64-bit words. Received: {x!r}.")
    return value


def check_ring(operation: str, x: object, known: bool = False) -> Shared:
    """x; raises UsageError unless it is private, over Z_2^64 and, if `known`, of a known shape."""
    value = check_private(operation, x)
    if value.limbs != 1 or value.ring_bits != 64:
        raise UsageError(
            f"{operation} works over Z_2^64. Received: {x!r}. "
            "Use a value of 64 bits, as inputs and all operations but conversions give them."
        )
    if known:
        check_known_shape(operation, value)
    return value


def check_known_shape(operation: str, x: Shared) -> list[int]:
    """The shape, where it must be known while tracing.

    Raises:
        UsageError: it is not.
    """
    shape = x.shape if hasattr(x.shape, "as_list") else tensor_ops.Shape(x.shape)
    if shape.rank is None or None in shape.as_list():
        raise UsageError(f"{operation} wants a known shape. Received: {x.shape}. Reshape it first.")
    return [int(n) for n in shape.as_list()]


def check_scale(operation: str, x: Shared, lowest: int, highest: int) -> None:
    """Raises UsageError unless x has so many fractional bits."""
    if not lowest <= x.fractional_bits <= highest:
        raise UsageError(
            f"{operation} wants {lowest} to {highest} fractional bits. Received: {x!r}. "
            "Rescale it: cast(x, 16)."
        )


def check_choice(noun: str, value: str, choices: Collection[str], operation: str = "") -> None:
    """Raises UsageError, with the nearest, unless a word is among those that are known."""
    if value not in choices:
        problem = f"{operation} does not know this {noun}." if operation else f"Unknown {noun}."
        raise UsageError(
            f"{problem} Received: {value!r}.{did_you_mean(str(value), choices)} "
            f"Known: {', '.join(choices)}."
        )


def is_integer_between(value: object, lowest: int, highest: int) -> TypeGuard[int]:
    """Whether a value is an integer between two."""
    return is_integer(value) and lowest <= value <= highest


def check_same_kind(operation: str, values: Sequence[Shared]) -> list[Shared]:
    """The values as a list, if they are private tensors of one dealer, scale and ring.

    Raises:
        UsageError: they are not, or there are none.
    """
    if isinstance(values, Shared) or not isinstance(values, Sequence) or len(values) == 0:
        raise UsageError(
            f"{operation} wants a list of private tensors. Received: {type(values).__name__} of "
            f"{len(values) if isinstance(values, Sequence) else 'no length'}. Put them in a list."
        )
    for value in values:
        check_private(operation, value)
    kinds = [(v.dealer, v.fractional_bits, v.limbs, v.ring_bits) for v in values]
    for value, kind in zip(values, kinds, strict=True):
        if kind != kinds[0]:
            raise UsageError(
                f"{operation} wants tensors of one dealer, scale and ring. Received: {values[0]!r} "
                f"and {value!r}. Truncate or convert one of them."
            )
    return list(values)


def check_known_rank(operation: str, x: Shared) -> int:
    """The number of axes of elements.

    Raises:
        UsageError: it is not known where the graph is built.
    """
    check_private(operation, x)
    if x.shape.rank is None:
        raise UsageError(
            f"{operation} wants a tensor whose rank is known. Received: {x!r}. Reshape it first."
        )
    return int(x.shape.rank)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is a Python or numpy integer, and no truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def normalize_axis(operation: str, axis: int, rank: int) -> int:
    """An axis as a number from 0, a negative one counted from the end.

    Raises:
        UsageError: it is no integer in [-rank, rank).
    """
    if not is_integer(axis):
        raise UsageError(f"{operation} wants an integer as axis. Received: {axis!r}.")
    if rank == 0:
        raise UsageError(f"{operation} wants a tensor with an axis. Received: one number.")
    if not -rank <= axis < rank:
        raise UsageError(
            f"{operation} wants an axis from {-rank} to {rank - 1}. Received: {int(axis)}."
        )
    return int(axis) % rank


def normalize_axes(operation: str, axes: Axes, rank: int) -> list[int]:
    """One axis, several or None (all) as a sorted list of numbers from 0.

    Raises:
        UsageError: one is out of range or comes twice.
    """
    if axes is None:
        return list(range(rank))
    axis_list: list[Any] = list(axes) if isinstance(axes, (list, tuple, np.ndarray)) else [axes]
    normalized = sorted(normalize_axis(operation, axis, rank) for axis in axis_list)
    if len(set(normalized)) < len(normalized):
        raise UsageError(f"{operation} wants each axis once. Received: {axis_list!r}.")
    return normalized


def check_pair(operation: str, x: Shared, y: Shared, same_scale: bool = True) -> None:
    """Raises UsageError unless x and y are private, of one dealer, ring and, unless told, scale."""
    if not isinstance(x, Shared) or not isinstance(y, Shared):
        raise UsageError(
            f"{operation} wants two private tensors. Received: {type(x).__name__} and "
            f"{type(y).__name__}. Use {operation}_public for a public operand."
        )
    if x.dealer != y.dealer or x.limbs != y.limbs or x.ring_bits != y.ring_bits:
        raise UsageError(
            f"{operation} wants operands with one dealer and one ring. Received: {x!r} and {y!r}."
        )
    if same_scale and x.fractional_bits != y.fractional_bits:
        raise UsageError(
            f"{operation} wants operands of one scale. Received: {x.fractional_bits} and "
            f"{y.fractional_bits} fractional bits. Rescale one of them, or truncate it."
        )


def broadcast_shapes(operation: str, *shapes: Shape) -> tf.TensorShape:
    """The static shape that shapes broadcast to.

    Raises:
        UsageError: they do not.
    """
    static_shapes = [s if hasattr(s, "as_list") else tensor_ops.Shape(s) for s in shapes]
    joint = static_shapes[0]
    for shape in static_shapes[1:]:
        try:
            joint = tensor_ops.broadcast_shape(joint, shape)
        except ValueError:
            raise UsageError(
                f"{operation} wants shapes that broadcast. Received: "
                f"{' and '.join(str(list(s)) for s in static_shapes)}."
            ) from None
    return joint


def check_factors(name: str, x: Shared, y: Shared) -> None:
    """Raises UsageError unless x and y are private, of one dealer and over Z_2^64."""
    check_pair(name, x, y, same_scale=False)
    check_ring(name, x)


def check_matmul_shapes(
    name: str, a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """Raises UsageError unless what is known of two shapes admits a matrix product."""
    if a.rank is None or b.rank is None:
        return
    fits = a.rank >= 2 and b.rank >= 2
    if fits:
        depth_a, depth_b = a[-2 if transpose_a else -1], b[-1 if transpose_b else -2]
        fits = depth_a is None or depth_b is None or depth_a == depth_b
        try:
            tensor_ops.broadcast_shape(a[:-2], b[:-2])
        except ValueError:
            fits = False
    if not fits:
        flags = f" with transpose_a={transpose_a}, transpose_b={transpose_b}"
        raise UsageError(
            f"{name} wants [..., m, k] and [..., k, n] with leading dimensions that broadcast. "
            f"Received: {a.as_list()} and {b.as_list()}"
            f"{flags if transpose_a or transpose_b else ''}. Reshape or transpose an operand."
        )


def check_public_factor(name: str, x: Shared, ring: object) -> None:
    """Raises UsageError unless x is private, of 64-bit words, and what it meets is public."""
    if isinstance(ring, Shared):
        raise UsageError(
            f"{name} wants a public second operand. Received: {ring!r}. "
            f"Use {name.removesuffix('_public')} for two private ones."
        )
    if not isinstance(x, Shared):
        raise UsageError(
            f"{name} wants a private and a public tensor. Received: {type(x).__name__} first."
        )
    check_word(name, x)
