"""Arrays of words that TensorFlow uses without a copy, to save memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.lazy_tensorflow import tf

# Bytes; TensorFlow copies arrays of a smaller alignment.
ALIGNMENT = 64

Words = npt.NDArray[np.int64]


def allocate_words(shape: Sequence[int]) -> Words:
    """Return uninitialized words that `as_tensor` does not copy."""
    count = 8 * math.prod(shape)
    raw = np.empty(count + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + count].view(np.int64).reshape(shape)


def view_words_as_tensor(words: Words) -> Any:
    """Return the words as an int64 tensor that uses their memory: never write to them later.

    Words from `allocate_words` are not copied; others are.
    """
    if not words.size or words.ctypes.data % ALIGNMENT or not words.flags.c_contiguous:
        return tf.constant(words, tf.int64)
    return tf.experimental.dlpack.from_dlpack(words.__dlpack__())
