"""Convolutions of images."""

from __future__ import annotations

from typing import Any

import numpy as np

import tfe_bench.tf_encrypted as tfe
from tfe_bench.tf_encrypted.keras import activations
from tfe_bench.tf_encrypted.keras.engine.base_layer import Layer, NotOffered, check_default
from tfe_bench.tf_encrypted.keras.layers.core import Weighted
from tfe_bench.tf_encrypted.protocol.aby3.shape_operations import compute_window


def to_pair(value: Any) -> tuple[int, int]:
    """Return a size of both axes as a pair."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


class Images(Layer):
    """Layers of images: channels first inside, in the configured format outside."""

    data_format: str

    def _set_format(self, data_format: str | None) -> None:
        self.data_format = data_format or "channels_last"
        if self.data_format not in ("channels_last", "channels_first"):
            raise NotOffered(
                f"data_format is channels_last or channels_first: {data_format!r}.",
                code="unsupported-argument",
                operation="data_format",
                received=data_format,
            )

    def _to_channels_first(self, x: Any) -> Any:
        return x.transpose([0, 3, 1, 2]) if self.data_format == "channels_last" else x

    def _from_channels_first(self, x: Any) -> Any:
        return x.transpose([0, 2, 3, 1]) if self.data_format == "channels_last" else x

    def _image_sizes(self, input_shape: Any) -> tuple[int, int, int, int]:
        """Return batch, channels, height, width."""
        n, *rest = (int(v) for v in input_shape)
        if len(rest) != 3:
            raise NotOffered(
                f"{self.name} takes images. Received: {list(input_shape)}.",
                code="shape-mismatch",
                operation="input_shape",
                received=list(input_shape),
            )
        a, b, c = rest
        return (n, c, a, b) if self.data_format == "channels_last" else (n, a, b, c)

    def _format_shape(self, n: int, channels: int, height: int, width: int) -> list[int]:
        if self.data_format == "channels_last":
            return [n, height, width, channels]
        return [n, channels, height, width]


class Conv2D(Images, Weighted):
    """A convolution and an activation; arguments after the groups are those of Weighted."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = (1, 1),
        groups: int = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_default(
            type(self).__name__,
            dilation_rate=to_pair(dilation_rate) != (1, 1),
            groups=groups != 1,
        )
        self._set_format(data_format)
        self.filters = filters
        self.kernel_size, self.strides = to_pair(kernel_size), to_pair(strides)
        self.padding = padding.upper()

    def _kernel_shape(self, channels: int) -> list[int]:
        return [*self.kernel_size, channels, self.filters]

    def _output_channels(self, channels: int) -> int:
        return self.filters

    def build(self, input_shape: Any) -> None:
        """Create a kernel and a bias."""
        channels = self._image_sizes(input_shape)[1]
        self._add_weights(self._kernel_shape(channels), self._output_channels(channels))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the output images."""
        n, channels, *sizes = self._image_sizes(input_shape)
        out, _ = compute_window(sizes, self.kernel_size, self.strides, self.padding)
        return self._format_shape(n, self._output_channels(channels), out[0], out[1])

    def _apply_convolution(self, x: Any) -> Any:
        return tfe.conv2d(x, self.kernel.read_value(), self.strides, self.padding)

    def call(self, inputs: Any) -> Any:
        """Return the activated convolution."""
        self._x = self._to_channels_first(inputs)
        y = self._apply_convolution(self._x)
        if self.use_bias:
            y = y + self.bias.read_value().reshape([1, -1, 1, 1])
        self._y = self.activation(y)
        return self._from_channels_first(self._y)

    def backward(self, d_y: Any) -> Any:
        """Return the gradients of kernel and bias, and of the images."""
        d_y = activations.get_deriv(self.activation_identifier)(
            self._y, self._to_channels_first(d_y)
        )
        n, channels, *sizes = self._x.shape.as_list()
        count = n * d_y.shape[2] * d_y.shape[3]
        behind = d_y.transpose([1, 0, 2, 3]).reshape([self.filters, count])
        patches = tfe.im2patches(self._x, self.kernel_size, self.strides, self.padding)
        depth = patches.shape[1]  # (height, width, channel of the window)
        columns = patches.transpose([1, 0, 2, 3]).reshape([depth, count])
        d_kernel = tfe.matmul(columns, behind.transpose())
        gradients = [d_kernel.reshape(self._kernel_shape(channels))]
        if self.use_bias:
            gradients.append(behind.reduce_sum(axis=1))
        if self.lazy_normalization:
            gradients = [g * (1 / n) for g in gradients]
        kernel = self.kernel.read_value().reshape([depth, self.filters])
        spread = tfe.matmul(kernel, behind)  # [window x channels, batch x rows x columns]
        span, out = int(np.prod(self.kernel_size)), d_y.shape.as_list()[2:]
        spread = spread.reshape([span, channels, n, *out]).transpose([2, 1, 0, 3, 4])
        d_x = tfe.patches2im(
            spread.reshape([n * channels, span, *out]),
            self.kernel_size,
            self.strides,
            self.padding,
            img_size=sizes,
        )
        return gradients, self._from_channels_first(d_x.reshape([n, channels, *sizes]))


class DepthwiseConv2D(Conv2D):
    """A separate convolution of each channel."""

    def __init__(
        self,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        depth_multiplier: int = 1,
        depthwise_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        self.depth_multiplier = depth_multiplier
        kwargs.pop("filters", None)
        for name in ("kernel_initializer", "kernel_regularizer", "kernel_constraint"):
            kwargs.pop(name, None)  # (a configuration of Keras has them, unused)
        super().__init__(
            0, kernel_size, strides, padding, kernel_initializer=depthwise_initializer, **kwargs
        )

    def _kernel_shape(self, channels: int) -> list[int]:
        return [*self.kernel_size, channels, self.depth_multiplier]

    def _output_channels(self, channels: int) -> int:
        return channels * self.depth_multiplier

    def _apply_convolution(self, x: Any) -> Any:
        from tfe_bench.tf_encrypted.protocol.aby3.arithmetic import tfb

        images, kernel = x.transpose([0, 2, 3, 1]), self.kernel.read_value()
        outputs = tfb.depthwise_conv2d(images.array, kernel.array, self.strides, self.padding)
        return x.like(outputs).transpose([0, 3, 1, 2])

    def backward(self, d_y: Any) -> Any:
        """Refuse, as in tf-encrypted."""
        raise NotOffered(
            "DepthwiseConv2D has no gradient here. tfe_bench.fit has one.",
            code="unsupported-operation",
            operation="backward",
        )
