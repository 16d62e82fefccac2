"""A model on public numbers, in float64: what calibration sees, and what passes are tested with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models import kinds
from tfe_bench.models.graph import Array, Graph, Layer


def check_images(graph: Graph, images: Any) -> dict[str, Array]:
    """The inputs by name, float64 with a batch.

    Args:
        images: one array for a model of one input, else by name or in order.

    Raises:
        UsageError: other names or shapes than the model's; the likely cause is named.
    """
    names = list(graph.inputs)
    if isinstance(images, Mapping):
        given = dict(images)
    elif len(names) == 1:
        given = {names[0]: images}
    elif isinstance(images, (list, tuple)) and len(images) == len(names):
        given = dict(zip(names, images, strict=True))
    else:
        raise UsageError(f"The model wants inputs {names}, by name or in order.")
    if set(given) != set(names):
        raise UsageError(f"The model wants inputs {names}. Received: {sorted(given)}.")
    found = {}
    for name in names:
        array = np.asarray(given[name])
        if array.dtype.kind not in "fiub":
            raise UsageError(f"The input {name!r} wants numbers. Received: {array.dtype}.")
        wanted = graph.inputs[name]
        if array.shape[1:] != wanted or array.ndim != len(wanted) + 1 or len(array) == 0:
            hint = ""
            if array.shape == wanted:
                hint = " Add the batch: images[None]."
            elif array.ndim == 4 and array.shape[1:] == (wanted[-1], *wanted[:-1]):
                hint = " These are channels first; transpose to [batch, height, width, channels]."
            raise UsageError(
                f"The input {name!r} wants [batch, {', '.join(map(str, wanted))}]. Received: "
                f"{list(array.shape)}.{hint}"
            )
        found[name] = array.astype(np.float64)
    if len({len(a) for a in found.values()}) != 1:
        raise UsageError(
            f"All inputs have one batch. Received: {[list(a.shape) for a in found.values()]}."
        )
    return found


def scaled(graph: Graph, images: Any) -> dict[str, Array]:
    """The inputs as the owner of the data shares them."""
    found = check_images(graph, images)
    for name, (factor, offset) in graph.scaling.items():
        found[name] = found[name] * np.asarray(factor, np.float64) + np.asarray(offset, np.float64)
    return found


def evaluate(
    graph: Graph, images: Any, watch: Callable[[str, Array], None] | None = None
) -> list[Array]:
    """The model's outputs.

    Args:
        watch: hears of every value by name, and of what goes into a fused activation as "name:sum".
    """
    values: dict[str, Any] = dict(scaled(graph, images))
    last = {name: use[-1] for name, use in graph.uses().items() if use}
    seen = watch or (lambda name, value: None)
    for name, value in values.items():
        seen(name, value)
    for layer in graph.layers:
        values[layer.name] = _layer(layer, [values[i] for i in layer.inputs], seen)
        seen(layer.name, values[layer.name])
        for i in set(layer.inputs):
            if last[i] == layer.name:
                del values[i]
    return [values[o] for o in graph.outputs]


def _window(options: Mapping[str, Any]) -> Any:
    padding = options["padding"]
    return padding if isinstance(padding, str) else [[0, 0], *padding, [0, 0]]


def linear(op: str, x: Any, kernel: Array, options: Mapping[str, Any]) -> Array:
    """One product of a sum."""
    import tensorflow as tf

    w = np.asarray(kernel, np.float64)
    if op == "dense":
        return np.asarray(x @ w)
    if op == "affine":
        return np.asarray(x * w)
    step = [1, *options["strides"], 1]
    if op == "conv2d":
        y = tf.nn.conv2d(x, w, step, _window(options), dilations=options["dilations"])
    else:
        y = _depthwise(x, w, options)
    return np.asarray(y)


def _depthwise(x: Any, w: Array, options: Mapping[str, Any]) -> Any:
    import tensorflow as tf

    padding, strides, dilations = (options[n] for n in ("padding", "strides", "dilations"))
    if not isinstance(padding, str):
        x, padding = np.pad(x, [(0, 0), *padding, (0, 0)]), "VALID"
    step = [1, *strides, 1]
    if strides[0] == strides[1] and 1 in (strides[0], max(dilations)):
        return tf.nn.depthwise_conv2d(x, w, step, padding, dilations=dilations)
    # TensorFlow has no other strides for all channels at once
    channels = [
        tf.nn.conv2d(x[..., i : i + 1], w[:, :, i : i + 1], step, padding, dilations=dilations)
        for i in range(w.shape[2])
    ]
    return tf.concat(channels, -1)


def _biased(y: Array, weights: Mapping[str, Array]) -> Array:
    return y + np.asarray(weights["bias"], np.float64) if "bias" in weights else y


def _relu(x: Array, most: float | None) -> Array:
    return np.maximum(x, 0) if most is None else np.clip(x, 0, most)


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def _layer(layer: Layer, xs: list[Any], seen: Callable[[str, Array], None]) -> Array:
    op, o = layer.op, layer.options
    if op == "sum":
        total: Any = 0.0
        for i, (x, term) in enumerate(zip(xs, o["terms"], strict=True)):
            y = (
                x
                if term["op"] == "skip"
                else linear(term["op"], x, layer.weights[f"kernel{i}"], term)
            )
            total = total + term["sign"] * y
        total = _biased(total, layer.weights)
        seen(f"{layer.name}:sum", total)
        return total if o["activation"] == "none" else _relu(total, o["max_value"])
    if op in kinds.LINEAR:
        return _biased(linear(op, xs[0], layer.weights["kernel"], o), layer.weights)
    return np.asarray(_FUNCTIONS[op](o, *xs))


def _pooled(kind: str) -> Callable[..., Any]:
    def pool(o: Mapping[str, Any], x: Array) -> Any:
        import tensorflow as tf

        if kind == "SUM":
            kernel = np.ones((*o["ksize"], 1, 1))
            return linear_channels(x, kernel, o)
        return tf.nn.pool(x, o["ksize"], kind, o["strides"], o["padding"])

    return pool


def linear_channels(x: Array, kernel: Array, o: Mapping[str, Any]) -> Array:
    """Every channel with one kernel."""
    same = np.repeat(kernel, x.shape[-1], 2)
    return linear("depthwise_conv2d", x, same, {**o, "dilations": [1, 1]})


def _multiply(o: Mapping[str, Any], *xs: Array) -> Any:
    result = xs[0]
    for x in xs[1:]:
        result = result * x
    return result


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rescale": lambda o, x: x * np.asarray(o["scale"]) + np.asarray(o["offset"]),
    "relu": lambda o, x: _relu(x, o["max_value"]),
    "leaky_relu": lambda o, x: np.where(x >= 0, x, o["alpha"] * x),
    "sigmoid": lambda o, x: np.exp(-np.logaddexp(0, -x)),
    "tanh": lambda o, x: np.tanh(x),
    "softmax": lambda o, x: _softmax(x, o["axis"]),
    "max_pool2d": _pooled("MAX"),
    "avg_pool2d": _pooled("AVG"),
    "sum_pool2d": _pooled("SUM"),
    "global_max_pool2d": lambda o, x: x.max((1, 2), keepdims=o["keepdims"]),
    "global_avg_pool2d": lambda o, x: x.mean((1, 2), keepdims=o["keepdims"]),
    "global_sum_pool2d": lambda o, x: x.sum((1, 2), keepdims=o["keepdims"]),
    "zero_pad2d": lambda o, x: np.pad(x, [(0, 0), *o["pads"], (0, 0)]),
    "flatten": lambda o, x: x.reshape(len(x), -1),
    "reshape": lambda o, x: x.reshape(len(x), *o["shape"]),
    "identity": lambda o, x: x,
    "add": lambda o, *xs: sum(xs),
    "subtract": lambda o, x, y: x - y,
    "multiply": _multiply,
    "concat": lambda o, *xs: np.concatenate(xs, o["axis"]),
}
