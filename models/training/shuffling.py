"""Public randomness: the order of samples, and which values Dropout keeps.

From a public seed by SHAKE-256, so that the three workers, whatever their NumPy, and a plaintext
run that they are compared with draw alike.
"""

from __future__ import annotations

import hashlib

import numpy as np

from tfe_bench.models.kinds.layer import Array


def _draw_words(about: str, count: int, kind: str) -> Array:
    size = np.dtype(kind).itemsize
    return np.frombuffer(hashlib.shake_256(about.encode()).digest(size * count), kind)


def draw_permutation(seed: int, epoch: int, count: int) -> Array:
    """The order in which an epoch (counted from 0) takes `count` samples, int64."""
    words = _draw_words(f"order {seed} {epoch} {count}", count, "<u8")
    return np.argsort(words, kind="stable").astype(np.int64)


def draw_batches(seed: int, epoch: int, count: int, batch: int, shuffle: bool = True) -> Array:
    """Samples of each step of an epoch, [steps, batch]; what is left over waits for another epoch.

    An epoch with fewer samples than a batch has no step.

    Args:
        shuffle: False takes the samples as they come, and leaves out the same ones every time.
    """
    steps = count // batch
    order = draw_permutation(seed, epoch, count) if shuffle else np.arange(count)
    return order[: steps * batch].reshape(steps, batch)


def draw_dropout_mask(seed: int, step: int, layer: str, count: int, rate: float) -> Array:
    """Which of `count` values a Dropout layer keeps in a step, bool; each with 1 - rate."""
    words = _draw_words(f"dropout {seed} {step} {layer}", count, "<u4")
    return words >= np.uint32(round(rate * 2**32))


def draw_normal(seed: int, step: int, layer: str, count: int) -> Array:
    """Normal numbers of deviation 1 with 16 fractional bits, int64: sums of 12 uniform ones each.

    In integers alone: a logarithm or a cosine may differ from one processor to another.
    """
    words = _draw_words(f"normal {seed} {step} {layer}", 12 * count, "<u2")
    return np.asarray(words.reshape(count, 12).sum(-1, dtype=np.int64) - 6 * 65535)
