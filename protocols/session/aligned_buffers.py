"""Arrays of words that TensorFlow takes where they lie: what is large need not be there twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Bytes; of less TensorFlow makes copies.
ALIGNMENT = 64

Words = npt.NDArray[np.int64]


def allocate_words(shape: Sequence[int]) -> Words:
    """Words, not set yet, that `tensor` does not copy."""
    count = 8 * math.prod(shape)
    raw = np.empty(count + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + count].view(np.int64).reshape(shape)


def as_tensor(words: Words) -> Any:
    """The words as an int64 tensor, which holds them from now on: nobody writes to them any more.

    Those of `empty` stay where they are; others are copied.
    """
    import tensorflow as tf

    if not words.size or words.ctypes.data % ALIGNMENT or not words.flags.c_contiguous:
        return tf.constant(words, tf.int64)
    return tf.experimental.dlpack.from_dlpack(words.__dlpack__())
