"""Checks of operands, each defined once: kinds, rings, shapes, axes and scales.

Every check takes the operation's name, with which its error begins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeGuard

import numpy as np

from tfe_bench.errors import UsageError, did_you_mean
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import MaskedBits, Shared, describe_type
from tfe_bench.protocols.session.types import Axes, Shape


def check_private(operation: str, x: object) -> Shared:
    """Return x; raise UsageError unless it is a private tensor."""
    if isinstance(x, MaskedBits):
        raise UsageError(
            f"{operation} expects private numbers. Received: {x!r}. "
            "Use cast(bits) to convert bits to the numbers 0 and 1.",
            code="unexpected-bits",
            operation=operation,
            received=repr(x),
        )
    if not isinstance(x, Shared):
        raise UsageError(
            f"{operation} expects a private tensor. Received: {describe_type(x)}. "
            "Use TensorFlow's own operation for a public one, or share it first.",
            code="not-private",
            operation=operation,
            received=describe_type(x),
        )
    return x


def check_private_word_tensor(operation: str, x: object) -> Shared:
    """Return x; raise UsageError unless it is private, over Z_2^64 or a smaller ring."""
    value = check_private(operation, x)
    if value.limbs != 1:
        raise UsageError(
            f"{operation} works on 64-bit words. Received: {x!r}.",
            code="unsupported-ring",
            operation=operation,
            received=repr(x),
        )
    return value


def check_private_64bit_tensor(operation: str, x: object, known: bool = False) -> Shared:
    """Return x; raise UsageError unless it is private, over Z_2^64 and of a known shape.

    The shape is checked only if `known`.
    """
    value = check_private(operation, x)
    if value.limbs != 1 or value.ring_bits != 64:
        raise UsageError(
            f"{operation} works over Z_2^64. Received: {x!r}. "
            "Use a value of 64 bits: inputs and results of all operations except conversions.",
            code="unsupported-ring",
            operation=operation,
            received=repr(x),
        )
    if known:
        check_known_shape(operation, value)
    return value


def check_known_shape(operation: str, x: Shared) -> list[int]:
    """Return the shape, which must be known while tracing.

    Raises:
        UsageError: it is not known.
    """
    shape = x.shape if hasattr(x.shape, "as_list") else tensor_ops.Shape(x.shape)
    if shape.rank is None or None in shape.as_list():
        raise UsageError(
            f"{operation} expects a known shape. Received: {x.shape}. Reshape it first.",
            code="unknown-shape",
            operation=operation,
            received=x.shape,
        )
    return [int(n) for n in shape.as_list()]


def check_fractional_bits_range(operation: str, x: Shared, lowest: int, highest: int) -> None:
    """Raise UsageError unless the number of x's fractional bits is in a range."""
    if not lowest <= x.fractional_bits <= highest:
        raise UsageError(
            f"{operation} expects {lowest} to {highest} fractional bits. Received: {x!r}. "
            "Rescale it: cast(x, 16).",
            code="unsupported-scale",
            operation=operation,
            received=repr(x),
            expected=f"{lowest} to {highest}",
        )


def check_choice(noun: str, value: str, choices: Collection[str], operation: str = "") -> None:
    """Raise UsageError, with the closest match, unless a word is one of the choices."""
    if value not in choices:
        problem = f"{operation} does not know this {noun}." if operation else f"Unknown {noun}."
        raise UsageError(
            f"{problem} Received: {value!r}.{did_you_mean(str(value), choices)} "
            f"Known: {', '.join(choices)}.",
            code="unknown-name",
            operation=operation or noun,
            received=value,
            expected=", ".join(choices),
        )


def is_integer_between(value: object, lowest: int, highest: int) -> TypeGuard[int]:
    """Return whether a value is an integer within an interval."""
    return is_integer(value) and lowest <= value <= highest


def check_same_dealer_scale_ring(operation: str, values: Sequence[Shared]) -> list[Shared]:
    """Return the values as a list, if they are private tensors of one dealer, scale and ring.

    Raises:
        UsageError: they are not, or the list is empty.
    """
    if isinstance(values, Shared) or not isinstance(values, Sequence) or len(values) == 0:
        raise UsageError(
            f"{operation} expects a list of private tensors. Received: {type(values).__name__} of "
            f"{len(values) if isinstance(values, Sequence) else 'no length'}. Put them in a list.",
            code="not-a-list",
            operation=operation,
            received=type(values).__name__,
        )
    for value in values:
        check_private(operation, value)
    kinds = [(v.dealer, v.fractional_bits, v.limbs, v.ring_bits) for v in values]
    for value, kind in zip(values, kinds, strict=True):
        if kind != kinds[0]:
            raise UsageError(
                f"{operation} expects tensors of one dealer, scale and ring. Received: "
                f"{values[0]!r} "
                f"and {value!r}. Truncate or convert one of them.",
                code="operand-mismatch",
                operation=operation,
                received=f"{values[0]!r}, {value!r}",
            )
    return list(values)


def check_private_rank_is_known(operation: str, x: Shared) -> int:
    """Return the number of axes of elements.

    Raises:
        UsageError: it is not known where the graph is built.
    """
    check_private(operation, x)
    if x.shape.rank is None:
        raise UsageError(
            f"{operation} expects a tensor whose rank is known. Received: {x!r}. Reshape it first.",
            code="unknown-shape",
            operation=operation,
            received=repr(x),
        )
    return int(x.shape.rank)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is a Python or NumPy integer, and no Boolean."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def normalize_axis(operation: str, axis: int, rank: int) -> int:
    """Return an axis as a number from 0; a negative one counts from the end.

    Raises:
        UsageError: it is no integer in [-rank, rank).
    """
    if not is_integer(axis):
        raise UsageError(
            f"{operation} expects an integer as axis. Received: {axis!r}.",
            code="not-an-integer",
            operation=operation,
            received=axis,
        )
    if rank == 0:
        raise UsageError(
            f"{operation} expects a tensor with an axis. Received: one number.",
            code="rank-mismatch",
            operation=operation,
        )
    if not -rank <= axis < rank:
        raise UsageError(
            f"{operation} expects an axis from {-rank} to {rank - 1}. Received: {int(axis)}.",
            code="axis-out-of-range",
            operation=operation,
            received=int(axis),
            expected=f"{-rank} to {rank - 1}",
        )
    return int(axis) % rank


def normalize_axes(operation: str, axes: Axes, rank: int) -> list[int]:
    """Return one axis, several or None (all) as a sorted list of numbers from 0.

    Raises:
        UsageError: one is out of range or named twice.
    """
    if axes is None:
        return list(range(rank))
    axis_list: list[Any] = list(axes) if isinstance(axes, (list, tuple, np.ndarray)) else [axes]
    normalized = sorted(normalize_axis(operation, axis, rank) for axis in axis_list)
    if len(set(normalized)) < len(normalized):
        raise UsageError(
            f"{operation} expects each axis once. Received: {axis_list!r}.",
            code="duplicate-axis",
            operation=operation,
            received=axis_list,
        )
    return normalized


def check_private_pair(operation: str, x: Shared, y: Shared, same_scale: bool = True) -> None:
    """Check that x and y are private, of one dealer, ring and (with same_scale) scale.

    Raises:
        UsageError: they are not.
    """
    if not isinstance(x, Shared) or not isinstance(y, Shared):
        raise UsageError(
            f"{operation} expects two private tensors. Received: {type(x).__name__} and "
            f"{type(y).__name__}. Use {operation}_public for a public operand.",
            code="not-private",
            operation=operation,
            received=f"{type(x).__name__}, {type(y).__name__}",
        )
    if x.dealer != y.dealer or x.limbs != y.limbs or x.ring_bits != y.ring_bits:
        raise UsageError(
            f"{operation} expects operands with one dealer and one ring. Received: {x!r} and "
            f"{y!r}.",
            code="operand-mismatch",
            operation=operation,
            received=f"{x!r}, {y!r}",
        )
    if same_scale and x.fractional_bits != y.fractional_bits:
        raise UsageError(
            f"{operation} expects operands of one scale. Received: {x.fractional_bits} and "
            f"{y.fractional_bits} fractional bits. Rescale one of them, or truncate it.",
            code="scale-mismatch",
            operation=operation,
            received=f"{x.fractional_bits}, {y.fractional_bits}",
        )


def broadcast_shapes(operation: str, *shapes: Shape) -> tf.TensorShape:
    """Return the static shape to which shapes broadcast.

    Raises:
        UsageError: they do not broadcast.
    """
    static_shapes = [s if hasattr(s, "as_list") else tensor_ops.Shape(s) for s in shapes]
    joint = static_shapes[0]
    for shape in static_shapes[1:]:
        try:
            joint = tensor_ops.broadcast_shape(joint, shape)
        except ValueError:
            raise UsageError(
                f"{operation} expects shapes that broadcast. Received: "
                f"{' and '.join(str(list(s)) for s in static_shapes)}.",
                code="shape-mismatch",
                operation=operation,
                received=", ".join(str(list(s)) for s in static_shapes),
            ) from None
    return joint


def check_factors(name: str, x: Shared, y: Shared) -> None:
    """Raise UsageError unless x and y are private, of one dealer and over Z_2^64."""
    check_private_pair(name, x, y, same_scale=False)
    check_private_64bit_tensor(name, x)


def check_matmul_shapes(
    name: str, a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """Raise UsageError unless two shapes, as far as they are known, admit a matrix product."""
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
            f"{name} expects [..., m, k] and [..., k, n] with leading dimensions that broadcast. "
            f"Received: {a.as_list()} and {b.as_list()}"
            f"{flags if transpose_a or transpose_b else ''}. Reshape or transpose an operand.",
            code="shape-mismatch",
            operation=name,
            received=f"{a.as_list()}, {b.as_list()}",
        )


def check_public_factor(name: str, x: Shared, ring: object) -> None:
    """Raise UsageError unless x is private, of 64-bit words, and the other factor is public."""
    if isinstance(ring, Shared):
        raise UsageError(
            f"{name} expects a public second operand. Received: {ring!r}. "
            f"Use {name.removesuffix('_public')} for two private ones.",
            code="not-public",
            operation=name,
            received=repr(ring),
        )
    if not isinstance(x, Shared):
        raise UsageError(
            f"{name} expects a private and a public tensor. Received: {type(x).__name__} first.",
            code="not-private",
            operation=name,
            received=type(x).__name__,
        )
    check_private_word_tensor(name, x)
