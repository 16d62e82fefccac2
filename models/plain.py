"""A model on public numbers, in float64: what calibration sees, and what passes are tested with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models import kinds
from tfe_bench.models.graph import Array, Graph, Layer
from tfe_bench.models.kinds import windows_of


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
    return finished(graph, [values[o] for o in graph.outputs])


def finished(graph: Graph, outputs: Sequence[Array]) -> list[Array]:
    """The outputs as whoever gets them reads them."""
    if not graph.results:
        return list(outputs)
    pairs = zip(outputs, graph.results, strict=True)
    return [np.asarray(y * np.asarray(factor) + np.asarray(more)) for y, (factor, more) in pairs]


def _cells(
    x: Array, kernel: Sequence[int], options: Mapping[str, Any], outside: float = 0.0
) -> Iterator[tuple[int, int, Array]]:
    """For each cell of a window, its values under all windows, [batch, height, width, channels].

    (In NumPy, one shift after the other: TensorFlow's convolutions of float64 differ by host.)
    """
    windows = windows_of(options)
    pads, sizes = [], []
    for axis in (0, 1):
        image, size = x.shape[1 + axis], kernel[axis]
        count = int(windows.size(axis, image, size))
        before = int(windows.before(axis, image, size))
        reach = (count - 1) * windows.strides[axis] + (size - 1) * windows.dilations[axis] + 1
        pads.append((before, max(0, reach - before - image)))
        sizes.append(count)
    padded = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=outside)
    (high, wide), (down, right) = windows.strides, windows.dilations
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * down, j * right
            rows = slice(top, top + (sizes[0] - 1) * high + 1, high)
            yield i, j, padded[:, rows, left : left + (sizes[1] - 1) * wide + 1 : wide]


def linear(op: str, x: Any, kernel: Array, options: Mapping[str, Any]) -> Array:
    """One product of a sum."""
    w = np.asarray(kernel, np.float64)
    if op == "dense":
        return np.asarray(x @ w)
    if op == "affine":
        return np.asarray(x * w)
    total: Any = 0.0
    for i, j, cell in _cells(x, w.shape[:2], options):
        if op == "conv2d":
            total = total + cell @ w[i, j]
        else:
            each = cell[..., None] * w[i, j]
            total = total + each.reshape(*each.shape[:3], -1)
    return np.asarray(total)


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


def _max_pool(o: Mapping[str, Any], x: Array) -> Any:
    cells = (cell for _, _, cell in _cells(x, o["ksize"], o, -np.inf))
    return functools.reduce(np.maximum, cells)


def _sum_pool(o: Mapping[str, Any], x: Array) -> Any:
    return sum(cell for _, _, cell in _cells(x, o["ksize"], o))


def _average_pool(o: Mapping[str, Any], x: Array) -> Any:
    return _sum_pool(o, x) / _sum_pool(o, np.ones_like(x[:1, ..., :1]))


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
    "max_pool2d": _max_pool,
    "avg_pool2d": _average_pool,
    "sum_pool2d": _sum_pool,
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
