"""Numbers modulo 2^128 as pairs of 64-bit words [..., 2], low word first, in NumPy.

The counterpart of protocols/session/wide.py for a client: it needs no TensorFlow. Nothing here
branches on a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1


def join_128bit_words(low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]) -> Words:
    """Return the words of low + 2^64 high."""
    return np.stack([low, high], axis=-1).view(np.int64)


def split_128bit_words(
    a: npt.NDArray[Any],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return (low, high) of words."""
    both = a.astype(np.uint64)
    return both[..., 0], both[..., 1]


def add_128bit_words(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Words:
    """Return a + b mod 2^128."""
    (a0, a1), (b0, b1) = split_128bit_words(a), split_128bit_words(b)
    with np.errstate(over="ignore"):
        low = a0 + b0
        return join_128bit_words(low, a1 + b1 + (low < a0).astype(np.uint64))


def subtract_128bit_words(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Words:
    """Return a - b mod 2^128."""
    (a0, a1), (b0, b1) = split_128bit_words(a), split_128bit_words(b)
    with np.errstate(over="ignore"):
        return join_128bit_words(a0 - b0, a1 - b1 - (a0 < b0).astype(np.uint64))


def negate_128bit_words(a: npt.NDArray[Any]) -> Words:
    """Return -a mod 2^128."""
    return subtract_128bit_words(np.zeros_like(a), a)


def split_128bit_sign(a: npt.NDArray[Any]) -> tuple[npt.NDArray[np.bool_], Words]:
    """Return (a < 0, |a|) of words read as two's complement; |-2^127| is 2^127, unsigned."""
    negative = a.astype(np.int64)[..., 1] < 0
    return negative, np.where(negative[..., None], negate_128bit_words(a), a.astype(np.int64))


def integers_to_128bit_words(values: npt.ArrayLike) -> Words:
    """Return the words of Python integers of any size, mod 2^128 (slow: for few numbers)."""
    array = np.asarray(values, object)
    flat = [int(v) for v in array.reshape(-1)]
    low = np.array([v & _MASK for v in flat], np.uint64).reshape(array.shape)
    high = np.array([v >> 64 & _MASK for v in flat], np.uint64).reshape(array.shape)
    return join_128bit_words(low, high)


def integers_from_128bit_words(a: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return words read as two's complement as Python integers, of dtype object."""
    low, high = a.astype(np.uint64)[..., 0], a.astype(np.int64)[..., 1]
    return np.asarray(low.astype(object) + high.astype(object) * (1 << 64), object)
