"""Local maps of what a party holds, by TensorFlow's names: of tensors, or of none.

Protocols that are made of others move elements with these functions.  On tensors they are
TensorFlow's; on `Abstract` ones, which have a shape and no elements, they follow the shapes alone,
so that a protocol can be counted (counting.py) where there is no TensorFlow.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

# One of TensorFlow's, which publishes no types, or an Abstract one.
Tensor = Any

_ZERO = np.zeros((), np.int8)


class Shape(tuple[int, ...]):
    """A known shape, with what protocols ask a tf.TensorShape for."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)

    def as_list(self) -> list[int]:
        """The sizes."""
        return list(self)

    def num_elements(self) -> int:
        """Their product."""
        return math.prod(self)

    def is_fully_defined(self) -> bool:
        """Yes."""
        return True

    def is_compatible_with(self, other: Sequence[int | None]) -> bool:
        """Whether another shape may be the same."""
        return len(self) == len(other) and all(
            b is None or a == b for a, b in zip(self, other, strict=True)
        )

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Shape(found) if isinstance(key, builtins.slice) else found


@dataclass(frozen=True, eq=False)
class Abstract:
    """A tensor that is not there: its shape, and when it would be known.

    Attributes:
        rounds, cold: messages on the longest chain that leads to it, as cost.Cost counts them.
        masks: those that the dealer waited for who knows its masks (cold; 0: it made them).
    """

    shape: Shape
    rounds: int = 0
    cold: int = 0
    masks: int = 0

    # numpy leaves `array + abstract` to the abstract side
    __array_ufunc__ = None

    def like(self, shape: Sequence[int]) -> Abstract:
        """Another shape, known at the same time."""
        return replace(self, shape=Shape(int(n) for n in shape))

    def _with(self, other: Any) -> Abstract:
        return joined(np.broadcast_shapes(self.shape, np.shape(_stand_in(other))), self, other)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _with

    def __neg__(self) -> Abstract:
        return self

    def __getitem__(self, key: Any) -> Abstract:
        return self.like(_stand_in(self)[key].shape)


def _stand_in(value: Any) -> Any:
    """An array of that shape that takes no memory; what is no Abstract as it is."""
    return np.broadcast_to(_ZERO, value.shape) if isinstance(value, Abstract) else value


def joined(shape: Sequence[int], *given: Any) -> Abstract:
    """What is known as soon as all that is given: Abstract tensors, and others that always are."""
    waits = [v for v in given if isinstance(v, Abstract)]
    return Abstract(
        Shape(int(n) for n in shape),
        *(max((getattr(v, k) for v in waits), default=0) for k in ("rounds", "cold", "masks")),
    )


def known(value: Any) -> bool:
    """Whether there are elements: False for an Abstract."""
    return not isinstance(value, Abstract)


def static_shape(value: Any) -> Any:
    """The shape of a tensor or an array, as far as it is known."""
    return value.shape if hasattr(value.shape, "as_list") else Shape(value.shape)


def broadcast_shape(a: Any, b: Any) -> Any:
    """The static shape that two broadcast to.

    Raises:
        ValueError: they do not.
    """
    if isinstance(a, Shape) and isinstance(b, Shape):
        return Shape(np.broadcast_shapes(a, b))
    import tensorflow as tf

    return tf.broadcast_static_shape(tf.TensorShape(a), tf.TensorShape(b))


def shape(a: Tensor) -> Any:
    """The shape when the graph runs, an int64 tensor."""
    if isinstance(a, Abstract):
        return a.shape
    import tensorflow as tf

    return tf.shape(a, out_type=tf.int64)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of TensorFlow's."""
    if isinstance(value, (bool, int, float, np.ndarray, np.generic, list, tuple, Abstract)):
        return False
    import tensorflow as tf

    return bool(tf.is_tensor(value))


# ---- shapes


def reshape(a: Tensor, shape: Any) -> Tensor:
    """tf.reshape."""
    if isinstance(a, Abstract):
        return a.like(_stand_in(a).reshape([int(n) for n in shape]).shape)
    import tensorflow as tf

    return tf.reshape(a, shape)


def ensure_shape(a: Tensor, shape: Sequence[int]) -> Tensor:
    """tf.ensure_shape.

    Raises:
        ValueError: it has another one.
    """
    if isinstance(a, Abstract):
        if a.shape != tuple(shape):
            raise ValueError(f"A tensor has the shape {a.shape}, not {tuple(shape)}.")
        return a
    import tensorflow as tf

    return tf.ensure_shape(a, shape)


def transpose(a: Tensor, perm: Sequence[int] | None = None) -> Tensor:
    """tf.transpose."""
    if isinstance(a, Abstract):
        return a.like(_stand_in(a).transpose(perm).shape)
    import tensorflow as tf

    return tf.transpose(a, perm)


def expand_dims(a: Tensor, axis: int) -> Tensor:
    """tf.expand_dims."""
    if isinstance(a, Abstract):
        return a.like(np.expand_dims(_stand_in(a), axis).shape)
    import tensorflow as tf

    return tf.expand_dims(a, axis)


def squeeze(a: Tensor, axis: Sequence[int]) -> Tensor:
    """tf.squeeze."""
    if isinstance(a, Abstract):
        return a.like(np.squeeze(_stand_in(a), tuple(axis)).shape)
    import tensorflow as tf

    return tf.squeeze(a, axis)


def broadcast_to(a: Tensor, shape: Any) -> Tensor:
    """tf.broadcast_to."""
    if isinstance(a, Abstract):
        return a.like(np.broadcast_to(_stand_in(a), [int(n) for n in shape]).shape)
    import tensorflow as tf

    return tf.broadcast_to(a, shape)


def tile(a: Tensor, multiples: Sequence[int]) -> Tensor:
    """tf.tile."""
    if isinstance(a, Abstract):
        return a.like([n * m for n, m in zip(a.shape, multiples, strict=True)])
    import tensorflow as tf

    return tf.tile(a, multiples)


def pad(a: Tensor, paddings: Sequence[Sequence[int]]) -> Tensor:
    """tf.pad with zeros."""
    if isinstance(a, Abstract):
        return a.like([b + n + e for n, (b, e) in zip(a.shape, paddings, strict=True)])
    import tensorflow as tf

    return tf.pad(a, paddings)


def slice(a: Tensor, begin: Sequence[int], size: Sequence[int]) -> Tensor:
    """tf.slice."""
    if isinstance(a, Abstract):
        every = zip(a.shape, begin, size, strict=True)
        return a.like([whole - b if n == -1 else n for whole, b, n in every])
    import tensorflow as tf

    return tf.slice(a, begin, size)


def gather(a: Tensor, indices: Any, axis: int = 0) -> Tensor:
    """tf.gather."""
    if isinstance(a, Abstract):
        return a.like([*a.shape[:axis], *np.shape(indices), *a.shape[axis + 1 :]])
    import tensorflow as tf

    return tf.gather(a, indices, axis=axis)


def reverse(a: Tensor, axes: Sequence[int]) -> Tensor:
    """tf.reverse."""
    if isinstance(a, Abstract):
        return a
    import tensorflow as tf

    return tf.reverse(a, axes)


def concat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """tf.concat."""
    if any(isinstance(a, Abstract) for a in parts):
        first = list(parts[0].shape)
        first[axis] = sum(a.shape[axis] for a in parts)
        return joined(first, *parts)
    import tensorflow as tf

    return tf.concat(parts, axis)


def stack(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """tf.stack."""
    if any(isinstance(a, Abstract) for a in parts):
        first = list(parts[0].shape)
        first.insert(axis % (len(first) + 1), len(parts))
        return joined(first, *parts)
    import tensorflow as tf

    return tf.stack(parts, axis)


# ---- sums


def reduce_sum(
    a: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> Tensor:
    """tf.reduce_sum."""
    if isinstance(a, Abstract):
        axes = axis if axis is None or isinstance(axis, int) else tuple(axis)
        return a.like(_shape_of_sum(a.shape, axes, keepdims))
    import tensorflow as tf

    return tf.reduce_sum(a, axis, keepdims)


def _shape_of_sum(shape: Shape, axis: int | tuple[int, ...] | None, keepdims: bool) -> list[int]:
    axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    over = {i % len(shape) for i in axes} if shape else set()
    kept = [(1 if i in over else n, i in over) for i, n in enumerate(shape)]
    return [n for n, summed in kept if keepdims or not summed]


def cumsum(a: Tensor, axis: int, exclusive: bool, reverse: bool) -> Tensor:
    """tf.cumsum."""
    if isinstance(a, Abstract):
        return a
    import tensorflow as tf

    return tf.cumsum(a, axis, exclusive, reverse)


# ---- words


def zeros_like(a: Tensor) -> Tensor:
    """tf.zeros_like: known at once."""
    if isinstance(a, Abstract):
        return Abstract(a.shape)
    import tensorflow as tf

    return tf.zeros_like(a)


def left_shift(a: Tensor, bits: int) -> Tensor:
    """Words times 2^bits."""
    if isinstance(a, Abstract):
        return a
    import tensorflow as tf

    return tf.bitwise.left_shift(a, tf.constant(bits, tf.int64))


def logical_shift(a: Tensor, bits: int) -> Tensor:
    """Words, read without a sign, divided by 2^bits."""
    if bits == 0 or isinstance(a, Abstract):
        return a
    import tensorflow as tf

    return tf.bitcast(tf.bitwise.right_shift(tf.bitcast(a, tf.uint64), bits), tf.int64)


def arithmetic_shift(a: Tensor, bits: int) -> Tensor:
    """Signed words divided by 2^bits, rounded down."""
    if isinstance(a, Abstract):
        return a
    import tensorflow as tf

    return tf.bitwise.right_shift(a, tf.constant(bits, tf.int64))


def low_bits(a: Tensor, width: int) -> Tensor:
    """Words mod 2^width."""
    if width == 64 or isinstance(a, Abstract):
        return a
    import tensorflow as tf

    return tf.bitwise.bitwise_and(a, tf.constant((1 << width) - 1, tf.int64))


def invert(a: Tensor) -> Tensor:
    """tf.bitwise.invert."""
    if isinstance(a, Abstract):
        return a
    import tensorflow as tf

    return tf.bitwise.invert(a)


def minimum(a: Any, b: Any) -> Any:
    """tf.minimum of sizes, integers where both are."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    import tensorflow as tf

    return tf.minimum(a, b)


def xor(a: Tensor, b: Any) -> Tensor:
    """tf.bitwise.bitwise_xor, broadcast."""
    if isinstance(a, Abstract):
        return a + b
    import tensorflow as tf

    return tf.bitwise.bitwise_xor(a, b)
