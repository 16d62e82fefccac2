"""Arithmetic modulo 2^128 on pairs of 64-bit words [..., 2], low word first.

Used where 64 bits do not hold a difference: sort keys with their index.
"""

from __future__ import annotations

import numpy as np

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import tensor_ops


def _split_128bit_words(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the low words and the high words."""
    return tensor_ops.strided_slice(a, np.s_[..., 0]), tensor_ops.strided_slice(a, np.s_[..., 1])


def _carry_of_word_addition(total: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.bitcast(total, tf.uint64) < tf.bitcast(part, tf.uint64), tf.int64)


def add(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Add two elements."""
    if not (tensor_ops.is_concrete(a) and tensor_ops.is_concrete(b)):
        return a + b
    (a0, a1), (b0, b1) = _split_128bit_words(a), _split_128bit_words(b)
    low = tensor_ops.add(a0, b0)
    return tensor_ops.stack(
        [low, tensor_ops.add(tensor_ops.add(a1, b1), _carry_of_word_addition(low, a0))], axis=-1
    )


def negate(a: tf.Tensor) -> tf.Tensor:
    """Negate an element."""
    if not tensor_ops.is_concrete(a):
        return a
    high = tf.bitwise.invert(a[..., 1]) + tf.cast(tf.equal(a[..., 0], 0), tf.int64)
    return tf.stack([-a[..., 0], high], axis=-1)


def sub(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Subtract two elements."""
    if not (tensor_ops.is_concrete(a) and tensor_ops.is_concrete(b)):
        return a - b
    (a0, a1), (b0, b1) = _split_128bit_words(a), _split_128bit_words(b)
    high = tensor_ops.sub(tensor_ops.sub(a1, b1), _carry_of_word_addition(a0, b0))
    return tensor_ops.stack([tensor_ops.sub(a0, b0), high], axis=-1)


def shift_left(a: tf.Tensor, bits: int) -> tf.Tensor:
    """Multiply a 64-bit ring element by 2^bits, as a wide element; 0 <= bits < 64."""
    if bits == 0:
        return tensor_ops.stack([a, tensor_ops.zeros_like(a)], axis=-1)
    return tensor_ops.stack(
        [tensor_ops.left_shift(a, bits), tensor_ops.logical_shift(a, 64 - bits)], axis=-1
    )
