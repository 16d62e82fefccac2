"""Public randomness: the order of samples, and the values that Dropout keeps.

All of it comes from a public seed by SHAKE-256, so that the three workers, with any version of
NumPy, and a plaintext reference run draw the same values.
"""

from __future__ import annotations

import hashlib

import numpy as np

from tfe_bench.models.layers.base.layer import Array


def _draw_training_words(about: str, count: int, kind: str) -> Array:
    size = np.dtype(kind).itemsize
    return np.frombuffer(hashlib.shake_256(about.encode()).digest(size * count), kind)


def draw_epoch_permutation(seed: int, epoch: int, count: int) -> Array:
    """Return the order in which an epoch (counted from 0) uses `count` samples, int64."""
    words = _draw_training_words(f"order {seed} {epoch} {count}", count, "<u8")
    return np.argsort(words, kind="stable").astype(np.int64)


def draw_epoch_batches(
    seed: int, epoch: int, count: int, batch: int, shuffle: bool = True
) -> Array:
    """Return the samples of each step of an epoch, [steps, batch]; the remainder is left out.

    An epoch with fewer samples than a batch has no step.

    Args:
        shuffle: False keeps the order of the samples, and leaves out the same ones every time.
    """
    steps = count // batch
    order = draw_epoch_permutation(seed, epoch, count) if shuffle else np.arange(count)
    return order[: steps * batch].reshape(steps, batch)


def draw_dropout_mask(seed: int, step: int, layer: str, count: int, rate: float) -> Array:
    """Return which of `count` values a Dropout layer keeps in a step, bool; each with 1 - rate."""
    words = _draw_training_words(f"dropout {seed} {step} {layer}", count, "<u4")
    return words >= np.uint32(round(rate * 2**32))


def draw_layer_noise(seed: int, step: int, layer: str, count: int) -> Array:
    """Return normal numbers of deviation 1 with 16 fractional bits, int64: sums of 12 uniform ones.

    Only integers are used: a logarithm or a cosine may differ from one processor to another.
    """
    words = _draw_training_words(f"normal {seed} {step} {layer}", 12 * count, "<u2")
    return np.asarray(words.reshape(count, 12).sum(-1, dtype=np.int64) - 6 * 65535)
