"""Layers that move values, add them up or multiply them by what is public."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.models.kinds import windows_of
from tfe_bench.models.training.nodes import Node
from tfe_bench.models.training.operations import Value
from tfe_bench.models.training.passes import (
    FACTOR_BITS,
    Pass,
    factored,
    log2,
    reshaped,
    summed,
)
from tfe_bench.protocols.ring import conv_gradients, reductions

Gradients = list[Value | None]


def reshape(p: Pass, node: Node, x: Value) -> Value:
    """Flatten and Reshape."""
    return reshaped(p.ops, x, p.shape(node.output, x))


def reshape_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """The other way."""
    return [reshaped(p.ops, g, p.shape(node.inputs[0], g))]


def identity(p: Pass, node: Node, x: Value) -> Value:
    """x."""
    return x


def identity_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """g."""
    return [g]


def pad(p: Pass, node: Node, x: Value) -> Value:
    """ZeroPadding2D."""
    import tensorflow as tf

    pads = [(0, 0), *node.layer.options["pads"], (0, 0)]
    return p.ops.local(x, lambda a: tf.pad(a, pads), p.shape(node.output, x))


def pad_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """The part that is not padding."""
    import tensorflow as tf

    begin = [0, *(before for before, _ in node.layer.options["pads"]), 0]
    shape = p.shape(node.inputs[0], g)
    return [p.ops.local(g, lambda a: tf.slice(a, begin, shape), shape)]


# ---- several inputs


def add(p: Pass, node: Node, *xs: Value) -> Value:
    """Add."""
    total = xs[0]
    for x in xs[1:]:
        total = p.ops.add(total, x)
    return total


def _spread(p: Pass, name: str, g: Value) -> Value:
    """g, summed over the axes along which the value of that name was broadcast."""
    wanted, given = p.shape(name, g), p.ops.shape(g)
    axes = [i for i, (a, b) in enumerate(zip(wanted, given, strict=True)) if a != b]
    return summed(p.ops, g, axes, keepdims=True) if axes else g


def add_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """g for each."""
    return [_spread(p, name, g) for name in node.inputs]


def subtract(p: Pass, node: Node, x: Value, y: Value) -> Value:
    """Subtract."""
    return p.ops.sub(x, y)


def subtract_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """g, and -g."""
    left, right = node.inputs
    return [_spread(p, left, g), _spread(p, right, p.ops.neg(g))]


def concat(p: Pass, node: Node, *xs: Value) -> Value:
    """Concatenate."""
    return p.ops.concat(xs, node.layer.options["axis"])


def concat_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """Each input's part of g."""
    import tensorflow as tf

    axis, start, found = node.layer.options["axis"], 0, []
    for name in node.inputs:
        shape = p.shape(name, g)
        begin = [start if i == axis else 0 for i in range(len(shape))]

        def part(a: Any, begin: list[int] = begin, shape: tuple[int, ...] = shape) -> Any:
            return tf.slice(a, begin, shape)

        found.append(p.ops.local(g, part, shape))
        start += shape[axis]
    return found


# ---- public factors


def _dropped(p: Pass, x: Value) -> Value:
    """x at the scale of values again."""
    drop = x.fractional_bits - p.recipe.numbers.activation
    return p.ops.truncate(x, drop) if drop else x


def rescale(p: Pass, node: Node, x: Value) -> Value:
    """Rescaling that is not the first layer: scale x + offset."""
    o, f = node.layer.options, p.recipe.numbers.activation
    offset = np.rint(np.asarray(o["offset"], np.float64) * 2.0**f).astype(np.int64)
    return p.ops.add_public(_dropped(p, factored(p.ops, x, o["scale"])), offset)


def rescale_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """g scale."""
    return [factored(p.ops, p.settled(g, FACTOR_BITS), node.layer.options["scale"])]


def _counts(p: Pass, node: Node) -> Any:
    """1 / the number of cells of each window, exactly, [height, width, 1]."""
    o = node.layer.options
    height, width, _ = p.recipe.graph.shapes[node.inputs[0]]
    counts = reductions.window_counts(windows_of(o), (height, width), tuple(o["ksize"]))
    found = np.empty(counts.shape, object)
    for place, n in np.ndenumerate(counts):
        found[place] = Fraction(1, int(n))
    return found.reshape(*counts.shape[:2], 1)


def average(p: Pass, node: Node, x: Value) -> Value:
    """AveragePooling2D."""
    o = node.layer.options

    def sums(a: Any) -> Any:
        from tfe_bench.protocols.session.sharing import Shared

        held = Shared(a, None, None)
        return reductions.sum_pool(held, o["ksize"], o["strides"], o["padding"]).m

    total = p.ops.local(x, sums, p.shape(node.output, x))
    return _dropped(p, factored(p.ops, total, _counts(p, node)))


def average_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """Each window's gradient over its count, for each of its cells."""
    import tensorflow as tf

    o = node.layer.options
    shape = p.shape(node.inputs[0], g)
    back = conv_gradients.input_gradient(windows_of(o), shape[1:], depthwise=True)
    g = factored(p.ops, p.settled(g, FACTOR_BITS), _counts(p, node))

    def cells(a: Any) -> Any:
        return back([a], [tf.ones([*o["ksize"], shape[3], 1], tf.int64)])

    return [p.ops.local(g, cells, shape)]


def global_average(p: Pass, node: Node, x: Value) -> Value:
    """GlobalAveragePooling2D."""
    _, height, width, _ = p.ops.shape(x)
    total = summed(p.ops, x, [1, 2], node.layer.options["keepdims"])
    return _dropped(p, factored(p.ops, total, Fraction(1, height * width)))


def global_average_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """The gradient over the count, for each cell."""
    import tensorflow as tf

    shape = p.shape(node.inputs[0], g)
    batch, height, width, channels = shape
    g = reshaped(p.ops, g, (batch, 1, 1, channels))
    factor = Fraction(1, height * width)
    g = factored(p.ops, g if log2(factor) is not None else p.settled(g, FACTOR_BITS), factor)
    return [p.ops.local(g, lambda a: tf.broadcast_to(a, shape), shape)]


# ---- dropout


def dropout_name(layer: str) -> str:
    """Of a layer's mask among a step's public values."""
    return f"kept:{layer}"


def _kept(p: Pass, node: Node, x: Value) -> Value:
    """What is kept of x, times 1 / (1 - rate)."""
    factor = 1 / (1 - Fraction(node.layer.options["rate"]))
    return factored(p.ops, p.ops.times(x, p.public[dropout_name(node.layer.name)]), factor)


def dropout(p: Pass, node: Node, x: Value) -> Value:
    """Dropout: in training, values that a public mask keeps."""
    return _dropped(p, _kept(p, node, x)) if p.learning else x


def dropout_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """The same of g."""
    return [_kept(p, node, p.settled(g, FACTOR_BITS))]
