"""Keras 3 models (Sequential, functional, nested, or a .keras file) as a Graph.

The layer graph is read as Keras holds it, layer by layer; nothing is traced or exported.  A layer
counts by its exact class: one that inherits from Dense may compute something else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench.errors import DataError, OpsMissing, RangeError, UsageError
from tfe_bench.models.graph import Array, Graph, Layer

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
    "ReLU",
    "Rescaling",
    "Reshape",
    "SeparableConv2D",
    "Softmax",
    "Subtract",
    "ZeroPadding2D",
    "models of these",
)


class _Unfit(Exception):
    """Why a layer cannot be converted."""


def _keras() -> Any:
    try:
        return importlib.import_module("keras")
    except ImportError as error:
        raise OpsMissing(f"Models are converted with Keras 3, which is missing: {error}.") from None


def load(path: str | Path) -> Any:
    """The Keras model of a .keras file; code in it (Lambda layers, own classes) is refused.

    Raises:
        DataError: there is no such file, it is damaged, or it holds code.
    """
    keras = _keras()
    path = Path(path)
    if path.suffix != ".keras":
        raise DataError(
            f"A model's file ends in .keras. Received: {str(path)!r}. "
            'Save it with model.save("model.keras").'
        )
    if not path.is_file():
        raise DataError(f"There is no such file. Received: {str(path)!r}.")
    try:
        return keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # whatever a damaged or hostile file makes Keras raise
        raise DataError(
            f"The model in {str(path)!r} cannot be loaded. Received: {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        ) from None


def from_keras(model: Any) -> Graph:
    """The graph of a Keras model or of a .keras file.

    Raises:
        UsageError: no such model, or layers that are not supported, all of them listed.
        DataError: the file cannot be read.
        RangeError: weights that are NaN or infinite; the layer is named.
    """
    keras = _keras()
    if isinstance(model, (str, Path)):
        model = load(model)
    if not isinstance(model, keras.Model):
        raise UsageError(
            f"convert wants a Keras 3 model or a .keras file. Received: {type(model).__name__}."
        )
    reader = _Reader(keras)
    function = reader.function_of(model)
    inputs: dict[str, tuple[int, ...]] = {}
    values: list[str] = []
    for tensor in function.inputs:
        shape = tuple(tensor.shape[1:])
        if None in shape or not shape:
            raise UsageError(
                f"The model's input {tensor.name!r} wants known sizes. Received: "
                f"{list(tensor.shape)}. Build the model with keras.Input(shape)."
            )
        layer = tensor._keras_history.operation
        name = reader.unique(tensor.name if layer is None else layer.name)
        inputs[name] = tuple(int(n) for n in shape)
        values.append(name)
    outputs = reader.read(function, values, "")
    if reader.unfit:
        raise UsageError(
            f"Unsupported layers in {model.name!r}: {'; '.join(reader.unfit)}. "
            f"Supported: {', '.join(SUPPORTED)}."
        )
    layers = reader.layers
    if not layers:  # every one was dropped
        layers = [Layer("identity", "identity", (outputs[0],))]
        outputs = ["identity"]
    return Graph(model.name, inputs, tuple(layers), tuple(outputs))


class _Reader:
    """Walks a model and the models in it."""

    def __init__(self, keras: Any) -> None:
        self.keras = keras
        self.layers: list[Layer] = []
        self.unfit: list[str] = []
        self.taken: set[str] = set()
        self.rank = 0  # with the batch, of the value of the layer that is read
        self.table = _table(keras)
        self.activations = _activations(keras)

    def function_of(self, model: Any) -> Any:
        """The functional graph behind a model.

        Raises:
            UsageError: it has none (a subclass with its own `call`), or was not built.
        """
        models = self.keras.models
        if type(model) is models.Sequential:
            if getattr(model, "_functional", None) is None:
                raise UsageError(
                    f"The model {model.name!r} is not built. Begin it with keras.Input(shape)."
                )
            return model._functional
        kind: Any = type(model)
        functional = next((c for c in kind.__mro__ if c.__name__ == "Functional"), None)
        if functional is not None and kind.call is functional.call:
            return model
        raise UsageError(
            "convert wants a Sequential or functional model; one with its own call() is code. "
            f"Received: {type(model).__name__} {model.name!r}."
        )

    def read(self, function: Any, inputs: list[str], prefix: str) -> list[str]:
        """Reads a functional graph; returns the names of its outputs."""
        values = {id(t): name for t, name in zip(function.inputs, inputs, strict=True)}
        for depth in sorted(function._nodes_by_depth, reverse=True):
            for node in function._nodes_by_depth[depth]:
                if node.is_input or any(id(t) not in values for t in node.input_tensors):
                    continue
                given = [values[id(t)] for t in node.input_tensors]
                found = self._call(node, given, prefix)
                for tensor, name in zip(node.outputs, found, strict=False):
                    values[id(tensor)] = name
        return [values[id(t)] for t in function.outputs]

    def _call(self, node: Any, given: list[str], prefix: str) -> list[str]:
        layer = node.operation
        if isinstance(layer, self.keras.Model):
            try:
                return self.read(self.function_of(layer), given, f"{prefix}{layer.name}/")
            except UsageError as error:
                self._refuse(layer, prefix, str(error))
                return [given[0]] * len(node.outputs)
        name = self.unique(prefix + layer.name)
        convert = self.table.get(type(layer))
        if convert is None:
            self._refuse(layer, prefix)
            return [given[0]] * len(node.outputs)
        try:
            shapes = [tuple(t.shape[1:]) for t in node.input_tensors]
            self.rank = len(node.outputs[0].shape)
            return [convert(self, layer, name, given, shapes, tuple(node.outputs[0].shape[1:]))]
        except _Unfit as error:
            self._refuse(layer, prefix, str(error))
            return [given[0]]

    def _refuse(self, layer: Any, prefix: str, why: str = "") -> None:
        if not isinstance(layer, self.keras.layers.Layer):  # x + y, keras.ops.relu(x), ...
            why = "an operation; use the layer for it"
        what = f"{type(layer).__name__} {prefix + layer.name!r}{f' ({why})' if why else ''}"
        if what not in self.unfit:
            self.unfit.append(what)

    def unique(self, name: str) -> str:
        """The name, with a number where a layer is called again."""
        found, number = name, 2
        while found in self.taken:
            found, number = f"{name}#{number}", number + 1
        self.taken.add(found)
        return found

    def emit(
        self, name: str, op: str, given: list[str], weights: dict[str, Any] | None = None, **o: Any
    ) -> str:
        """Adds a layer; returns its name."""
        arrays = {k: _array(name, k, w) for k, w in (weights or {}).items()}
        self.layers.append(Layer(name, op, tuple(given), o, arrays))
        return name

    def activated(self, layer: Any, name: str) -> str:
        """Adds the activation that a layer has as an argument."""
        function = getattr(layer, "activation", None)
        return self.activate(function, name, name)

    def activate(self, function: Any, given: str, name: str) -> str:
        """Adds an activation function behind a value."""
        if function is None:
            return given
        if isinstance(function, self.keras.layers.Layer):
            convert = self.table.get(type(function))
            if convert is None:
                raise _Unfit(f"its activation is a {type(function).__name__}")
            found: str = convert(self, function, self.unique(f"{name}/act"), [given], [()], ())
            return found
        known = self.activations.get(function)
        if known is None:
            text = getattr(function, "__name__", type(function).__name__)
            raise _Unfit(f"its activation is {text!r}")
        op, options = known
        if op == "identity":
            return given
        if op == "softmax":
            options = {"axis": self.rank - 1}
        return self.emit(self.unique(f"{name}/{op}"), op, [given], None, **options)


def _array(layer: str, name: str, value: Any) -> Array:
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise _Unfit(f"its weights are {array.dtype}")
    array = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
    if not np.isfinite(array).all():
        raise RangeError(
            f"Layer {layer!r} has weights {name!r} that are NaN or infinite. Received: "
            f"{int((~np.isfinite(array)).sum())} of {array.size}. Train it again, or load others."
        )
    return array


def _channels_last(layer: Any) -> None:
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        raise _Unfit(f"data_format {layer.data_format!r}; only channels_last is supported")


def _windows(layer: Any) -> dict[str, Any]:
    _channels_last(layer)
    if getattr(layer, "groups", 1) != 1:
        raise _Unfit(f"groups={layer.groups}; only 1 is supported")
    if layer.padding not in ("same", "valid"):
        raise _Unfit(f"padding {layer.padding!r}")
    return {
        "strides": [int(n) for n in layer.strides],
        "padding": layer.padding.upper(),
        "dilations": [int(n) for n in layer.dilation_rate],
    }


def _with_bias(layer: Any, kernel: Any) -> dict[str, Any]:
    return {"kernel": kernel, "bias": layer.bias} if layer.use_bias else {"kernel": kernel}


def _dense(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    r.emit(name, "dense", x, _with_bias(layer, layer.kernel))
    return r.activated(layer, name)


def _conv(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    r.emit(name, "conv2d", x, _with_bias(layer, layer.kernel), **_windows(layer))
    return r.activated(layer, name)


def _depthwise(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    r.emit(name, "depthwise_conv2d", x, _with_bias(layer, layer.kernel), **_windows(layer))
    return r.activated(layer, name)


def _separable(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    options = _windows(layer)
    first = r.unique(f"{name}/depthwise")
    r.emit(first, "depthwise_conv2d", x, {"kernel": layer.depthwise_kernel}, **options)
    ones = {"strides": [1, 1], "padding": "VALID", "dilations": [1, 1]}
    r.emit(name, "conv2d", [first], _with_bias(layer, layer.pointwise_kernel), **ones)
    return r.activated(layer, name)


def _normalization(
    r: _Reader, layer: Any, name: str, x: list[str], shapes: list[Any], _: Any
) -> str:
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    if len(axes) != 1 or axes[0] not in (-1, len(shapes[0])):
        raise _Unfit(f"axis {layer.axis}; only the last is supported")
    mean, variance = (
        _array(name, k, w).astype(np.float64)
        for k, w in (("moving_mean", layer.moving_mean), ("moving_variance", layer.moving_variance))
    )
    if (variance + layer.epsilon <= 0).any():
        raise RangeError(f"Layer {name!r} has a variance that is not positive.")
    factor = 1 / np.sqrt(variance + layer.epsilon)
    if layer.scale:
        factor = factor * _array(name, "gamma", layer.gamma)
    shift = -mean * factor
    if layer.center:
        shift = shift + _array(name, "beta", layer.beta)
    return r.emit(name, "affine", x, {"kernel": factor, "bias": shift})


def _relu(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    slope = float(layer.negative_slope or 0)
    most = None if layer.max_value is None else float(layer.max_value)
    if layer.threshold:
        raise _Unfit(f"threshold={layer.threshold}; only 0 is supported")
    if slope and most is not None:
        raise _Unfit("negative_slope together with max_value")
    if slope:
        return r.emit(name, "leaky_relu", x, None, alpha=slope)
    if most == 0:
        raise _Unfit("max_value=0")
    return r.emit(name, "relu", x, None, max_value=most)


def _leaky(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    return r.emit(name, "leaky_relu", x, None, alpha=float(layer.negative_slope))


def _softmax(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    if not isinstance(layer.axis, int):
        raise _Unfit(f"axis {layer.axis}; one axis is supported")
    axis = layer.axis + r.rank if layer.axis < 0 else layer.axis
    if axis < 1:
        raise _Unfit("axis 0 is the batch")
    return r.emit(name, "softmax", x, None, axis=axis)


def _activation(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    return r.activate(layer.activation, x[0], name)


def _pool(op: str) -> Callable[..., str]:
    def convert(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
        _channels_last(layer)
        options = {
            "ksize": [int(n) for n in layer.pool_size],
            "strides": [int(n) for n in layer.strides],
            "padding": layer.padding.upper(),
        }
        return r.emit(name, op, x, None, **options)

    return convert


def _global(op: str) -> Callable[..., str]:
    def convert(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
        _channels_last(layer)
        return r.emit(name, op, x, None, keepdims=bool(layer.keepdims))

    return convert


def _zero_pad(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    _channels_last(layer)
    pads = [[int(n) for n in side] for side in layer.padding]
    return r.emit(name, "zero_pad2d", x, None, pads=pads)


def _flatten(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    _channels_last(layer)
    return r.emit(name, "flatten", x)


def _reshape(
    r: _Reader, layer: Any, name: str, x: list[str], shapes: list[Any], result: Any
) -> str:
    return r.emit(name, "reshape", x, None, shape=[int(n) for n in result])


def _merge(op: str) -> Callable[..., str]:
    def convert(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
        return r.emit(name, op, x)

    return convert


def _concat(r: _Reader, layer: Any, name: str, x: list[str], shapes: list[Any], result: Any) -> str:
    axis = layer.axis + len(result) + 1 if layer.axis < 0 else layer.axis
    if axis < 1:
        raise _Unfit("axis 0 is the batch")
    return r.emit(name, "concat", x, None, axis=int(axis))


def _numbers(value: Any) -> Any:
    array = np.asarray(value, np.float64)
    if array.ndim > 1:
        raise _Unfit("a number, or one for each channel, is supported")
    return float(array) if array.ndim == 0 else [float(v) for v in array]


def _rescaling(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    scale, offset = _numbers(layer.scale), _numbers(layer.offset)
    return r.emit(name, "rescale", x, None, scale=scale, offset=offset)


def _nothing(r: _Reader, layer: Any, name: str, x: list[str], *_: Any) -> str:
    return x[0]


def _table(keras: Any) -> dict[Any, Callable[..., str]]:
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
    }


def _activations(keras: Any) -> dict[Any, tuple[str, dict[str, Any]]]:
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
