"""Dense layers and convolutions, with what follows from them at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tfe_bench.models.kinds import windows_of
from tfe_bench.models.training.losses import BINARY
from tfe_bench.models.training.nodes import Node
from tfe_bench.models.training.operations import Bilinear, Shape, Value
from tfe_bench.models.training.passes import Pass, reshaped, summed
from tfe_bench.protocols.ring import conv, conv_gradients, products


@dataclass(frozen=True, eq=False)
class Maps:
    """A layer's product and its two gradients.

    Attributes:
        forward: (x, w) -> y.
        kernel: (x, g) -> dw.
        image: (g, w) -> dx.
    """

    forward: Bilinear
    kernel: Bilinear
    image: Bilinear


def _turned(a: list[Any]) -> list[Any]:
    import tensorflow as tf

    # (one row or column lies in memory as it does the other way round)
    return [
        tf.reshape(v, v.shape[::-1]) if 1 in v.shape else tf.linalg.matrix_transpose(v) for v in a
    ]


def _kernel_gradient(x: list[Any], g: list[Any]) -> Any:
    """The sum of x^T g over the pairs, or of (g^T x)^T where that turns fewer elements over."""
    rows, inputs = x[0].shape
    outputs = g[0].shape[1]
    if outputs * (rows + inputs) >= rows * inputs:
        return products.matrix_product(_turned(x), g)
    return _turned([products.matrix_product(_turned(g), x)])[0]


_DENSE = Maps(
    Bilinear(products.matrix_product, lambda x, w: (x[0], w[1])),
    Bilinear(_kernel_gradient, lambda x, g: (x[1], g[1])),
    Bilinear(lambda g, w: products.matrix_product(g, _turned(w)), lambda g, w: (g[0], w[0])),
)


def maps_of(p: Pass, node: Node, x: Shape) -> Maps:
    """The maps of a node for an input of a shape (of rank 2 for a dense layer)."""
    layer = node.layer
    if layer.op == "dense":
        return _DENSE
    windows, depthwise = windows_of(layer.options), layer.op == "depthwise_conv2d"
    kernel = tuple(int(n) for n in layer.weights["kernel"].shape)
    y = p.recipe.graph.shapes[layer.name]
    return Maps(
        Bilinear(lambda a, b: conv.convolve(a, b, windows, depthwise), lambda x, w: (x[0], *y)),
        Bilinear(conv_gradients.kernel_gradient(windows, kernel, depthwise), lambda x, g: kernel),
        Bilinear(
            conv_gradients.input_gradient(windows, x[1:], depthwise), lambda g, w: (g[0], *x[1:])
        ),
    )


def forward(p: Pass, node: Node, x: Value) -> Value:
    """x . w + bias, and a max pooling and a ReLU behind it."""
    ops, numbers = p.ops, p.recipe.numbers
    w, bias = p.weight(node, "kernel"), p.weight(node, "bias")
    shape = ops.shape(x)
    flat = x
    if node.layer.op == "dense" and len(shape) > 2:  # matrix products are of rank 2
        flat = reshaped(ops, x, (math.prod(shape[:-1]), shape[-1]))
    maps = maps_of(p, node, ops.shape(flat))
    if bias is not None:
        bias = ops.shifted(bias, numbers.product)
    chosen = None
    # the logistic function, as comparisons, works on what is in a small ring
    binary = node.last and p.small and p.recipe.loss.name == BINARY
    if node.activation is not None or node.pool is not None or binary:
        y = ops.truncated_product(flat, w, maps.forward, bias, numbers.weight, numbers.ring)
        if node.activation is not None or node.pool is not None:
            y, chosen = bent(p, node, y)
    else:
        y = ops.product(flat, w, maps.forward)
        y = y if bias is None else ops.add(y, bias)
        # (the loss takes the model's output as it is)
        y = y if node.last else ops.truncate(y, numbers.weight)
    p.kept[node.output] = (flat, chosen, maps)
    return y if flat is x else reshaped(ops, y, (*shape[:-1], ops.shape(y)[-1]))


def bent(p: Pass, node: Node, small: Value) -> tuple[Value, Any]:
    """A small ring's value behind the node's max pooling and ReLU, and which way it went."""
    if node.pool is not None:
        found: tuple[Value, Any] = p.ops.max_pool(
            small, node.pool.options, node.activation is not None
        )
        return found
    return p.ops.relu(small)


def unbent(p: Pass, node: Node, g: Value, chosen: Any) -> Value:
    """The gradient before them, at the gradients' scale."""
    f = p.recipe.numbers.gradient
    if node.pool is not None:
        return p.ops.route(chosen, p.ops.shifted(g, max(g.fractional_bits, f + 1)), f)
    if node.activation is not None:
        return p.ops.inject_truncated(chosen, g, max(0, g.fractional_bits - f), negated=True)
    return p.settled(g)


def backward(p: Pass, node: Node, g: Value, wanted: bool) -> list[Value | None]:
    """Gradients of the kernel, of the bias and, where wanted, of the input."""
    ops, name = p.ops, node.layer.name
    x, chosen, maps = p.kept[node.output]
    shape = ops.shape(g)
    flat = node.layer.op == "dense" and len(shape) > 2
    if flat:
        g = reshaped(ops, g, (math.prod(shape[:-1]), shape[-1]))
    g = unbent(p, node, g, chosen)
    if p.learns(node, "kernel"):
        p.found[f"{name}/kernel"] = ops.product(x, g, maps.kernel)
    if p.learns(node, "bias"):
        p.found[f"{name}/bias"] = summed(ops, g, list(range(len(ops.shape(g)) - 1)))
    if not wanted:
        return [None]
    dx = ops.product(g, p.weights[f"{name}/kernel"], maps.image)
    return [reshaped(ops, dx, (*shape[:-1], ops.shape(dx)[-1])) if flat else dx]
