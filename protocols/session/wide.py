"""Arithmetic modulo 2^128 on pairs of 64-bit words [..., 2], low word first.

Used where 64 bits do not hold a difference: sort keys with their index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfe_bench.protocols.session import local

if TYPE_CHECKING:
    import tensorflow as tf


def _words(a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The low ones and the high ones."""
    return local.at(a, np.s_[..., 0]), local.at(a, np.s_[..., 1])


def _carry(total: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf

    return tf.cast(tf.bitcast(total, tf.uint64) < tf.bitcast(part, tf.uint64), tf.int64)


def add(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """a + b."""
    if not (local.known(a) and local.known(b)):
        return a + b
    (a0, a1), (b0, b1) = _words(a), _words(b)
    low = local.add(a0, b0)
    return local.stack([low, local.add(local.add(a1, b1), _carry(low, a0))], axis=-1)


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
    (a0, a1), (b0, b1) = _words(a), _words(b)
    high = local.sub(local.sub(a1, b1), _carry(a0, b0))
    return local.stack([local.sub(a0, b0), high], axis=-1)


def shift_left(a: tf.Tensor, bits: int) -> tf.Tensor:
    """A 64-bit ring element times 2^bits as a wide element; 0 <= bits < 64."""
    if bits == 0:
        return local.stack([a, local.zeros_like(a)], axis=-1)
    return local.stack([local.left_shift(a, bits), local.logical_shift(a, 64 - bits)], axis=-1)
