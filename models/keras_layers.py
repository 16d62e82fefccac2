"""Each layer of Keras that is supported, as layers of a Graph.

A layer counts by its exact class: one that inherits from Dense may compute something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models import scales
from tfe_bench.models.graph import Array

SUPPORTED = (
    "Activation (linear, relu, relu6, leaky_relu, sigmoid, softmax, tanh)",
    "Add",
    "AveragePooling2D",
    "BatchNormalization",
    "Concatenate",
    "Conv2D",
    "Dense",
    "DepthwiseConv2D",
    "Dropout",
    "Flatten",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling2D",
    "InputLayer",
    "LeakyReLU",
    "MaxPooling2D",
    "Multiply",
    "Normalization",
    "ReLU",
    "Rescaling",
    "Reshape",
    "SeparableConv2D",
    "Softmax",
    "Subtract",
    "ZeroPadding2D",
    "models of these",
)


class Unfit(Exception):
    """Why a layer cannot be converted."""


class Reader(Protocol):
    """What a layer is written to."""

    rank: int  # with the batch, of the value of the layer that is read

    def unique(self, name: str) -> str:
        """The name, with a number where it is taken."""

    def emit(
        self, name: str, op: str, given: list[str], weights: dict[str, Any] | None = None, **o: Any
    ) -> str:
        """Adds a layer; returns its name."""

    def activate(self, function: Any, given: str, name: str) -> str:
        """Adds an activation function behind a value."""

    def activated(self, layer: Any, name: str) -> str:
        """Adds the activation that a layer has as an argument."""


def array_of(layer: str, name: str, value: Any) -> Array:
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise Unfit(f"its weights are {array.dtype}")
    array = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
    if not np.isfinite(array).all():
        raise RangeError(
            f"Layer {layer!r} has weights {name!r} that are NaN or infinite. Received: "
            f"{int((~np.isfinite(array)).sum())} of {array.size}. Train it again, or load others."
        )
    return array


def _channels_last(layer: Any) -> None:
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        raise Unfit(f"data_format {layer.data_format!r}; only channels_last is supported")


def _windows(layer: Any) -> dict[str, Any]:
    _channels_last(layer)
    if getattr(layer, "groups", 1) != 1:
        raise Unfit(f"groups={layer.groups}; only 1 is supported")
    if layer.padding not in ("same", "valid"):
        raise Unfit(f"padding {layer.padding!r}")
    return {
        "strides": [int(n) for n in layer.strides],
        "padding": layer.padding.upper(),
        "dilations": [int(n) for n in layer.dilation_rate],
    }


def _with_bias(layer: Any, kernel: Any) -> dict[str, Any]:
    return {"kernel": kernel, "bias": layer.bias} if layer.use_bias else {"kernel": kernel}


def _dense(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    r.emit(name, "dense", x, _with_bias(layer, layer.kernel))
    return r.activated(layer, name)


def _conv(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    r.emit(name, "conv2d", x, _with_bias(layer, layer.kernel), **_windows(layer))
    return r.activated(layer, name)


def _depthwise(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    r.emit(name, "depthwise_conv2d", x, _with_bias(layer, layer.kernel), **_windows(layer))
    return r.activated(layer, name)


def _separable(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    options = _windows(layer)
    first = r.unique(f"{name}/depthwise")
    r.emit(first, "depthwise_conv2d", x, {"kernel": layer.depthwise_kernel}, **options)
    ones = {"strides": [1, 1], "padding": "VALID", "dilations": [1, 1]}
    r.emit(name, "conv2d", [first], _with_bias(layer, layer.pointwise_kernel), **ones)
    return r.activated(layer, name)


def _normalization(
    r: Reader, layer: Any, name: str, x: list[str], shapes: list[Any], _: Any
) -> str:
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    if len(axes) != 1 or axes[0] not in (-1, len(shapes[0])):
        raise Unfit(f"axis {layer.axis}; only the last is supported")
    mean, variance = (
        array_of(name, k, w).astype(np.float64)
        for k, w in (("moving_mean", layer.moving_mean), ("moving_variance", layer.moving_variance))
    )
    if (variance + layer.epsilon <= 0).any():
        raise RangeError(f"Layer {name!r} has a variance that is not positive.")
    factor = 1 / np.sqrt(variance + layer.epsilon)
    if layer.scale:
        factor = factor * array_of(name, "gamma", layer.gamma)
    shift = -mean * factor
    if layer.center:
        shift = shift + array_of(name, "beta", layer.beta)
    return r.emit(name, "affine", x, {"kernel": factor, "bias": shift})


def _relu(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    slope = float(layer.negative_slope or 0)
    most = None if layer.max_value is None else float(layer.max_value)
    if layer.threshold:
        raise Unfit(f"threshold={layer.threshold}; only 0 is supported")
    if slope and most is not None:
        raise Unfit("negative_slope together with max_value")
    if slope:
        return r.emit(name, "leaky_relu", x, None, alpha=slope)
    if most == 0:
        raise Unfit("max_value=0")
    return r.emit(name, "relu", x, None, max_value=most)


def _leaky(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    return r.emit(name, "leaky_relu", x, None, alpha=float(layer.negative_slope))


def _softmax(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    if not isinstance(layer.axis, int):
        raise Unfit(f"axis {layer.axis}; one axis is supported")
    axis = layer.axis + r.rank if layer.axis < 0 else layer.axis
    if axis < 1:
        raise Unfit("axis 0 is the batch")
    return r.emit(name, "softmax", x, None, axis=axis)


def _activation(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    return r.activate(layer.activation, x[0], name)


def _pool(op: str) -> Callable[..., str]:
    def convert(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
        _channels_last(layer)
        options = {
            "ksize": [int(n) for n in layer.pool_size],
            "strides": [int(n) for n in layer.strides],
            "padding": layer.padding.upper(),
        }
        return r.emit(name, op, x, None, **options)

    return convert


def _global(op: str) -> Callable[..., str]:
    def convert(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
        _channels_last(layer)
        return r.emit(name, op, x, None, keepdims=bool(layer.keepdims))

    return convert


def _zero_pad(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    _channels_last(layer)
    pads = [[int(n) for n in side] for side in layer.padding]
    return r.emit(name, "zero_pad2d", x, None, pads=pads)


def _flatten(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    _channels_last(layer)
    return r.emit(name, "flatten", x)


def _reshape(r: Reader, layer: Any, name: str, x: list[str], shapes: list[Any], result: Any) -> str:
    return r.emit(name, "reshape", x, None, shape=[int(n) for n in result])


def _merge(op: str) -> Callable[..., str]:
    def convert(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
        return r.emit(name, op, x)

    return convert


def _concat(r: Reader, layer: Any, name: str, x: list[str], shapes: list[Any], result: Any) -> str:
    axis = layer.axis + len(result) + 1 if layer.axis < 0 else layer.axis
    if axis < 1:
        raise Unfit("axis 0 is the batch")
    return r.emit(name, "concat", x, None, axis=int(axis))


def _numbers(value: Any) -> Any:
    array = np.asarray(value, np.float64)
    if array.ndim > 1:
        raise Unfit("a number, or one for each channel, is supported")
    return float(array) if array.ndim == 0 else [float(v) for v in array]


def _rescaling(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    scale, offset = _numbers(layer.scale), _numbers(layer.offset)
    return r.emit(name, "rescale", x, None, scale=scale, offset=offset)


def statistics(layer: Any, name: str) -> tuple[Array, Array]:
    """(factor, offset) of a Normalization, float64, one of each or one for each channel.

    Raises:
        Unfit: another axis than the last.
        RangeError: statistics that are NaN, or a negative variance.
    """
    mean, variance = (
        array_of(name, k, w).astype(np.float64)
        for k, w in (("mean", layer.mean), ("variance", layer.variance))
    )
    if any(n != 1 for n in mean.shape[:-1]):
        raise Unfit(f"axis {layer.axis}; only the last is supported, or none")
    if (variance < 0).any():
        raise RangeError(f"Layer {name!r} has a variance that is negative.")
    mean = mean.reshape(-1)
    deviation = np.maximum(np.sqrt(variance.reshape(-1)), 1e-7)  # as Keras has it
    return (deviation, mean) if layer.invert else (1 / deviation, -mean / deviation)


def _standardised(r: Reader, layer: Any, name: str, x: list[str], shapes: list[Any], _: Any) -> str:
    """Its statistics are weights; before anything else a coarse scale of them, which is public."""
    factor, offset = statistics(layer, name)
    if layer.invert:  # a Rescaling at the end is parted where it is known to be the end
        return r.emit(name, "rescale", x, None, **scales.as_options((factor, offset)))
    first, then = scales.parted(factor, offset)
    found = r.emit(name, "rescale", x, None, **scales.as_options(first))
    if scales.nothing(then):
        return found
    channels = [np.broadcast_to(v, shapes[0][-1:]).copy() for v in then]
    weights = dict(zip(("kernel", "bias"), channels, strict=True))
    return r.emit(r.unique(f"{name}/rest"), "affine", [found], weights)


def _nothing(r: Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    return x[0]


def table(keras: Any) -> dict[Any, Callable[..., str]]:
    layers = keras.layers
    return {
        layers.Dense: _dense,
        layers.Conv2D: _conv,
        layers.DepthwiseConv2D: _depthwise,
        layers.SeparableConv2D: _separable,
        layers.BatchNormalization: _normalization,
        layers.ReLU: _relu,
        layers.LeakyReLU: _leaky,
        layers.Softmax: _softmax,
        layers.Activation: _activation,
        layers.MaxPooling2D: _pool("max_pool2d"),
        layers.AveragePooling2D: _pool("avg_pool2d"),
        layers.GlobalAveragePooling2D: _global("global_avg_pool2d"),
        layers.GlobalMaxPooling2D: _global("global_max_pool2d"),
        layers.ZeroPadding2D: _zero_pad,
        layers.Flatten: _flatten,
        layers.Reshape: _reshape,
        layers.Add: _merge("add"),
        layers.Subtract: _merge("subtract"),
        layers.Multiply: _merge("multiply"),
        layers.Concatenate: _concat,
        layers.Dropout: _nothing,
        layers.Rescaling: _rescaling,
        layers.Normalization: _standardised,
    }


def activations(keras: Any) -> dict[Any, tuple[str, dict[str, Any]]]:
    found = keras.activations
    return {
        found.linear: ("identity", {}),
        found.relu: ("relu", {"max_value": None}),
        found.relu6: ("relu", {"max_value": 6.0}),
        found.leaky_relu: ("leaky_relu", {"alpha": 0.2}),
        found.sigmoid: ("sigmoid", {}),
        found.tanh: ("tanh", {}),
        found.softmax: ("softmax", {}),
    }
