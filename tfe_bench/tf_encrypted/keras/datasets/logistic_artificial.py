"""Points in a cube, labeled by their side of a plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tfe_bench.lazy_tensorflow import tf


class LogisticArtificialDataset:
    """Uniform points, of class 1 if the mean of their features is positive.

    Args:
        batch_size: points in a batch.
        train: 2000 points that repeat endlessly, else 100 points once.
    """

    def __init__(self, batch_size: int = 32, train: bool = True) -> None:
        self.batch_size, self.train = batch_size, train
        self.num_samples = 2000 if train else 100
        self.num_features, self.num_classes = 10, 2
        self.file_name = None

    @property
    def iterations(self) -> int:
        """Complete batches in an epoch."""
        return self.num_samples // self.batch_size

    def reset_batch_size(self, batch_size: int) -> None:
        """Set the size of batches."""
        self.batch_size = batch_size

    @property
    def batch_shape(self) -> list[int]:
        """The shape of a batch of points."""
        return [self.batch_size, self.num_features]

    def _data_generator(self) -> Iterator[Any]:
        x = tf.random.uniform([self.num_samples, self.num_features], -0.5, 0.5)
        y = tf.cast(tf.reduce_mean(x, axis=1, keepdims=True) > 0, tf.float32)
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(self.num_samples)
        data = data.batch(self.batch_size, drop_remainder=True)
        return iter(data.repeat() if self.train else data)

    def generator_builder(self) -> Callable[[], Iterator[Any]]:
        """Return a function that creates an iterator of batches."""
        return self._data_generator
