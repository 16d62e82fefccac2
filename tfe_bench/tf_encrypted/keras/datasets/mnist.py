"""MNIST in batches, with all images or a part of them or of their rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.tf_encrypted.keras.datasets import convert


def _load_mnist_digits(train: bool) -> tuple[Any, Any]:
    """Load images and labels from the folder in the environment variable TFE_BENCH_MNIST."""
    from tfe_bench.models.datasets import mnist

    digits = mnist.load(os.environ.get("TFE_BENCH_MNIST"))
    if train:
        return digits.train_images, digits.train_labels
    return digits.test_images, digits.test_labels


class MnistDataset:
    """Handwritten digits.

    Args:
        batch_size: images in a batch.
        train: the 60,000 images for training, else the 10,000 for tests.
    """

    def __init__(self, batch_size: int = 32, train: bool = True) -> None:
        self.batch_size, self.train = batch_size, train
        self.num_samples = 60000 if train else 10000
        self.row = self.column = 28
        self.channel, self.num_classes = 1, 10
        self.file_name: str | None = None
        self._rows: Any = slice(None)

    @property
    def iterations(self) -> int:
        """Complete batches in an epoch."""
        return self.num_samples // self.batch_size

    def reset_batch_size(self, batch_size: int) -> None:
        """Set the size of batches."""
        self.batch_size = batch_size

    def __getitem__(self, slc: Any) -> MnistDataset:
        if isinstance(slc, slice):
            return HMnistDataset(slc, self.batch_size, self.train)
        if isinstance(slc, tuple) and slc[0] == slice(None):
            return VMnistDataset(slc, self.batch_size, self.train)
        raise UsageError(
            "MNIST is cut by images, [a:b], or by their rows, [:, a:b].",
            code="unsupported-argument",
            operation="slice",
        )

    @property
    def batch_shape(self) -> list[int]:
        """The shape of a batch of images."""
        return [self.batch_size, self.row, self.column, self.channel]

    def _read_batches(self, decoded: Any, shaped: Any) -> Iterator[Any]:
        data = tf.data.TFRecordDataset([self.file_name]).map(decoded).cache()
        data = data.shuffle(self.num_samples, seed=11111)
        data = data.batch(self.batch_size, drop_remainder=True).map(shaped)
        batches: Iterator[Any] = iter(data.repeat() if self.train else data)
        return batches

    def _scale_images(self, image: Any) -> Any:
        return tf.reshape(tf.cast(image, tf.float32) / 255.0, self.batch_shape)

    def _one_hot_labels(self, label: Any) -> Any:
        return tf.reshape(tf.one_hot(label, 10), [self.batch_size, self.num_classes])

    def _image_generator(self) -> Iterator[Any]:
        return self._read_batches(convert.decode_image, self._scale_images)

    def _label_generator(self) -> Iterator[Any]:
        return self._read_batches(convert.decode_label, self._one_hot_labels)

    def _data_generator(self) -> Iterator[Any]:
        return self._read_batches(
            convert.decode_data, lambda x, y: (self._scale_images(x), self._one_hot_labels(y))
        )

    def _select_part(self, images: Any, labels: Any) -> tuple[Any, Any]:
        return images[self._rows], labels[self._rows]

    def generator_builder(self, image: bool = True, label: bool = True) -> Callable[[], Any] | None:
        """Return a function that creates an iterator of batches of images, labels, or both."""
        if not image and not label:
            return None
        kind = "_".join(["train" if self.train else "test", *["image"] * image, *["label"] * label])
        cut = "" if self._rows == slice(None) else f"_{self._rows.start}_{self._rows.stop}"
        folder = Path("data")
        folder.mkdir(exist_ok=True)
        self.file_name = str(folder / f"mnist_{kind}{cut}{self._file_suffix()}.tfrecord")
        if not Path(self.file_name).exists():
            x, y = self._select_part(*_load_mnist_digits(self.train))
            if image and label:
                convert.save_data(x, y, self.file_name)
            elif image:
                convert.save_image(x, self.file_name)
            else:
                convert.save_label(y, self.file_name)
        if image:
            return self._data_generator if label else self._image_generator
        return self._label_generator

    def _file_suffix(self) -> str:
        return ""


class HMnistDataset(MnistDataset):
    """A part of the images."""

    def __init__(self, slc: slice, batch_size: int = 32, train: bool = True) -> None:
        super().__init__(batch_size, train)
        self._rows, self.slc = slc, slc
        self.num_samples = len(range(*slc.indices(self.num_samples)))


class VMnistDataset(MnistDataset):
    """A part of the rows of every image."""

    def __init__(self, slc: tuple[slice, slice], batch_size: int = 32, train: bool = True) -> None:
        super().__init__(batch_size, train)
        self.slc = slc
        self._first, self._last, _ = slc[1].indices(28)
        self.row = self._last - self._first

    def _select_part(self, images: Any, labels: Any) -> tuple[Any, Any]:
        return images[:, self._first : self._last], labels

    def _file_suffix(self) -> str:
        return f"_rows_{self._first}_{self._last}"
