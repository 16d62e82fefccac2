"""Pooling of images, as in TensorFlow: means at an edge do not count padding."""

from __future__ import annotations

from typing import Any

import numpy as np

import tfe_bench.tf_encrypted as tfe
from tfe_bench.tf_encrypted.keras.layers.convolutional import Images, to_pair
from tfe_bench.tf_encrypted.protocol.aby3.arithmetic import tfb
from tfe_bench.tf_encrypted.protocol.aby3.shape_operations import compute_window


class _WindowPooling(Images):
    _input_sizes: list[int]

    def __init__(
        self,
        pool_size: Any = (2, 2),
        strides: Any = None,
        padding: str = "valid",
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_format(data_format)
        self.pool_size, self.padding = to_pair(pool_size), padding.upper()
        self.strides = self.pool_size if strides is None else to_pair(strides)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the output images."""
        n, channels, *sizes = self._image_sizes(input_shape)
        out, _ = compute_window(sizes, self.pool_size, self.strides, self.padding)
        return self._format_shape(n, channels, out[0], out[1])

    def _scatter_gradient(self, shares: Any) -> Any:
        """Add gradients [batch x channels, window, rows, columns] to their places in the images."""
        n, channels, *sizes = self._input_sizes
        d_x = tfe.patches2im(shares, self.pool_size, self.strides, self.padding, img_size=sizes)
        return [], self._from_channels_first(d_x.reshape([n, channels, *sizes]))

    def _repeat_gradient(self, d_y: Any) -> Any:
        n, channels, *out = self._to_channels_first(d_y).shape.as_list()
        span = int(np.prod(self.pool_size))
        flat = self._to_channels_first(d_y).reshape([n * channels, 1, *out])
        return tfe.tile(flat, [1, span, 1, 1])


class MaxPooling2D(_WindowPooling):
    """The largest element of each window."""

    def call(self, inputs: Any) -> Any:
        """Return the largest element of each window."""
        self._x = self._to_channels_first(inputs)
        self._input_sizes = self._x.shape.as_list()
        return self._from_channels_first(
            tfe.maxpool2d(self._x, self.pool_size, self.strides, self.padding)
        )

    def backward(self, d_y: Any) -> Any:
        """Return the gradient at the first largest element of each window."""
        n, channels, *sizes = self._input_sizes
        planes = self._x.reshape([n * channels, 1, *sizes])
        _, edges = compute_window(sizes, self.pool_size, self.strides, self.padding)
        lower_bound = -(2.0**20) if np.any(edges) else 0.0  # (padding is never the largest)
        planes = planes - lower_bound
        patches = tfe.im2patches(planes, self.pool_size, self.strides, self.padding)
        is_largest = tfe.argmax(patches, axis=1)
        return self._scatter_gradient(tfe.mul_ab(self._repeat_gradient(d_y), is_largest))


class AveragePooling2D(_WindowPooling):
    """The mean of each window."""

    def call(self, inputs: Any) -> Any:
        """Return the mean of each window."""
        x = self._to_channels_first(inputs)
        self._input_sizes = x.shape.as_list()
        images = x.transpose([0, 2, 3, 1])
        means = tfb.avg_pool2d(images.array, list(self.pool_size), list(self.strides), self.padding)
        return self._from_channels_first(x.like(means).transpose([0, 3, 1, 2]))

    def backward(self, d_y: Any) -> Any:
        """Distribute the gradient over the elements of each window."""
        ones = tfe.define_constant(np.ones([1, 1, *self._input_sizes[2:]]), apply_scaling=False)
        counts = tfe.im2patches(ones, self.pool_size, self.strides, self.padding).value.sum(1)
        return self._scatter_gradient(self._repeat_gradient(d_y) * (1 / counts[:, None]))


class _GlobalPooling(Images):
    def __init__(
        self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._set_format(data_format)
        self.keepdims = keepdims

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return [batch, channels], or with axes of 1."""
        n, channels, *_ = self._image_sizes(input_shape)
        return self._format_shape(n, channels, 1, 1) if self.keepdims else [n, channels]

    def _flatten_channels(self, inputs: Any) -> Any:
        x = self._to_channels_first(inputs)
        self._input_sizes = x.shape.as_list()
        return x.reshape([*self._input_sizes[:2], -1])

    def _restore_axes(self, y: Any) -> Any:
        return (
            self._from_channels_first(y.reshape([*self._input_sizes[:2], 1, 1]))
            if self.keepdims
            else y
        )

    def _repeat_gradient(self, d_y: Any) -> Any:
        n, channels, height, width = self._input_sizes
        return tfe.tile(d_y.reshape([n, channels, 1]), [1, 1, height * width])


class GlobalAveragePooling2D(_GlobalPooling):
    """The mean of each channel."""

    def call(self, inputs: Any) -> Any:
        """Return the mean of each channel."""
        flat = self._flatten_channels(inputs)
        return self._restore_axes(flat.reduce_sum(axis=2) * (1 / int(flat.shape[2])))

    def backward(self, d_y: Any) -> Any:
        """Distribute the gradient over all elements of a channel."""
        spread = self._repeat_gradient(d_y)
        return [], self._from_channels_first(
            (spread * (1 / int(spread.shape[2]))).reshape(self._input_sizes)
        )


class GlobalMaxPooling2D(_GlobalPooling):
    """The largest element of each channel."""

    def call(self, inputs: Any) -> Any:
        """Return the largest element of each channel."""
        self._x = self._flatten_channels(inputs)
        return self._restore_axes(tfe.reduce_max(self._x, axis=2))

    def backward(self, d_y: Any) -> Any:
        """Return the gradient at the first largest element of each channel."""
        is_largest = tfe.argmax(self._x, axis=2)
        return [], self._from_channels_first(
            tfe.mul_ab(self._repeat_gradient(d_y), is_largest).reshape(self._input_sizes)
        )
