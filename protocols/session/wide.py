"""Arithmetic modulo 2^128 on pairs of 64-bit words [..., 2], low word first.

Used where 64 bits do not hold a difference: sort keys with their index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfe_bench.protocols.session import local

if TYPE_CHECKING:
    import tensorflow as tf


def _carry(total: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf

    return tf.cast(tf.bitcast(total, tf.uint64) < tf.bitcast(part, tf.uint64), tf.int64)


def add(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """a + b."""
    if not (local.known(a) and local.known(b)):
        return a + b
    import tensorflow as tf

    low = a[..., 0] + b[..., 0]
    return tf.stack([low, a[..., 1] + b[..., 1] + _carry(low, a[..., 0])], axis=-1)


def negate(a: tf.Tensor) -> tf.Tensor:
    """-a."""
    if not local.known(a):
        return a
    import tensorflow as tf

    high = tf.bitwise.invert(a[..., 1]) + tf.cast(tf.equal(a[..., 0], 0), tf.int64)
    return tf.stack([-a[..., 0], high], axis=-1)


def sub(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """a - b."""
    if not (local.known(a) and local.known(b)):
        return a - b
    import tensorflow as tf

    low = a[..., 0] - b[..., 0]
    return tf.stack([low, a[..., 1] - b[..., 1] - _carry(a[..., 0], b[..., 0])], axis=-1)


def shift_left(a: tf.Tensor, bits: int) -> tf.Tensor:
    """A 64-bit ring element times 2^bits as a wide element; 0 <= bits < 64."""
    if bits == 0:
        return local.stack([a, local.zeros_like(a)], axis=-1)
    return local.stack([local.left_shift(a, bits), local.logical_shift(a, 64 - bits)], axis=-1)
