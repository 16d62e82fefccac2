"""Each kind of node, forward and backward.

Gradients of values travel at any scale: at `gradient` bits behind a truncation, with those of a
weight more behind a product.  Who multiplies one by something private brings it back first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfe_bench.models.training.nodes import Node
from tfe_bench.models.training.operations import MATRICES, Operations, Value
from tfe_bench.models.training.recipe import Recipe


@dataclass(eq=False)
class Pass:
    """One pass through a model.

    Attributes:
        ops: that run or price it.
        recipe: public.
        weights: by key.
        public: the step's public values, by name.
        learning: whether this is a training step, not an evaluation.
        kept: by a node's output, what its backward pass wants.
        found: gradients of weights by key.
    """

    ops: Operations
    recipe: Recipe
    weights: Mapping[str, Value]
    public: Mapping[str, Any] = field(default_factory=dict)
    learning: bool = True
    kept: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Value] = field(default_factory=dict)

    def weight(self, node: Node, name: str) -> Value | None:
        """A node's weights, None if it has none of the name."""
        if name not in node.layer.weights:
            return None
        return self.weights[f"{node.layer.name}/{name}"]

    def learns(self, node: Node, name: str) -> bool:
        """Whether a node has weights of the name, and they are trained."""
        key = f"{node.layer.name}/{name}"
        return self.learning and name in node.layer.weights and key not in self.recipe.frozen

    def settled(self, g: Value) -> Value:
        """A gradient at the gradients' scale."""
        drop = g.fractional_bits - self.recipe.numbers.gradient
        return self.ops.truncate(g, drop) if drop > 0 else g


def reshaped(ops: Operations, x: Value, shape: tuple[int, ...]) -> Value:
    """The elements of x in another shape."""
    import tensorflow as tf

    return ops.local(x, lambda a: tf.reshape(a, shape), shape)


def transposed(ops: Operations, x: Value) -> Value:
    """The last two axes swapped."""
    import tensorflow as tf

    shape = ops.shape(x)
    return ops.local(x, tf.linalg.matrix_transpose, (*shape[:-2], shape[-1], shape[-2]))


def summed(ops: Operations, x: Value, count: int) -> Value:
    """The sum over the first `count` axes."""
    import tensorflow as tf

    axes = list(range(count))
    return ops.local(x, lambda a: tf.reduce_sum(a, axis=axes), ops.shape(x)[count:])


# ---- dense and what follows from it


def _linear(p: Pass, node: Node, x: Value) -> Value:
    ops, numbers = p.ops, p.recipe.numbers
    w, bias = p.weight(node, "kernel"), p.weight(node, "bias")
    shape = ops.shape(x)
    flat = reshaped(ops, x, (math.prod(shape[:-1]), shape[-1])) if len(shape) > 2 else x
    if bias is not None:
        bias = ops.shifted(bias, numbers.product)
    if node.activation is not None:
        small = ops.truncated_product(flat, w, MATRICES, bias, numbers.weight, numbers.ring)
        y, negative = ops.relu(small)
        p.kept[node.output] = (flat, negative)
    else:
        y = ops.product(flat, w, MATRICES)
        y = y if bias is None else ops.add(y, bias)
        # (the loss takes the model's output as it is)
        y = y if node.last else ops.truncate(y, numbers.weight)
        p.kept[node.output] = (flat, None)
    return y if flat is x else reshaped(ops, y, (*shape[:-1], ops.shape(y)[-1]))


def _linear_back(p: Pass, node: Node, g: Value, wanted: bool) -> list[Value | None]:
    ops, numbers = p.ops, p.recipe.numbers
    x, negative = p.kept[node.output]
    shape = ops.shape(g)
    g = reshaped(ops, g, (math.prod(shape[:-1]), shape[-1])) if len(shape) > 2 else g
    if negative is None:
        g = p.settled(g)
    else:
        g = ops.inject_truncated(
            negative, g, max(0, g.fractional_bits - numbers.gradient), negated=True
        )
    if p.learns(node, "kernel"):
        p.found[f"{node.layer.name}/kernel"] = ops.product(transposed(ops, x), g, MATRICES)
    if p.learns(node, "bias"):
        p.found[f"{node.layer.name}/bias"] = summed(ops, g, 1)
    if not wanted:
        return [None]
    dx = ops.product(g, transposed(ops, p.weights[f"{node.layer.name}/kernel"]), MATRICES)
    if len(shape) > 2:
        dx = reshaped(ops, dx, (*shape[:-1], ops.shape(dx)[-1]))
    return [dx]


def _relu(p: Pass, node: Node, x: Value) -> Value:
    y, p.kept[node.output] = p.ops.relu(x)
    return y


def _relu_back(p: Pass, node: Node, g: Value, wanted: bool) -> list[Value | None]:
    drop = max(0, g.fractional_bits - p.recipe.numbers.gradient)
    return [p.ops.inject_truncated(p.kept[node.output], g, drop, negated=True)]


# ---- what only moves values


def _reshape(p: Pass, node: Node, x: Value) -> Value:
    shape = p.ops.shape(x)
    p.kept[node.output] = shape
    return reshaped(p.ops, x, (shape[0], *p.recipe.graph.shapes[node.output]))


def _reshape_back(p: Pass, node: Node, g: Value, wanted: bool) -> list[Value | None]:
    return [reshaped(p.ops, g, p.kept[node.output])]


def _identity(p: Pass, node: Node, x: Value) -> Value:
    return x


def _identity_back(p: Pass, node: Node, g: Value, wanted: bool) -> list[Value | None]:
    return [g]


Forward = Callable[..., Value]
Backward = Callable[[Pass, Node, Value, bool], list[Value | None]]
KINDS: Mapping[str, tuple[Forward, Backward]] = {
    "linear": (_linear, _linear_back),
    "relu": (_relu, _relu_back),
    "flatten": (_reshape, _reshape_back),
    "reshape": (_reshape, _reshape_back),
    "identity": (_identity, _identity_back),
}


def forward(p: Pass, x: Value) -> Value:
    """The model's output for a batch."""
    (name,) = p.recipe.graph.inputs
    values = {name: x}
    for node in p.recipe.nodes:
        given = [values[i] for i in node.inputs]
        values[node.output] = KINDS[node.op][0](p, node, *given)
    return values[p.recipe.graph.outputs[0]]


def backward(p: Pass, g: Value, differentiated: set[str]) -> dict[str, Value]:
    """Gradients of the weights, as sums over the batch, from that of the output.

    Args:
        differentiated: names of the values whose gradients are wanted.
    """
    waiting = {p.recipe.graph.outputs[0]: g}
    for node in reversed(p.recipe.nodes):
        given = waiting.pop(node.output, None)
        if given is None or node.output not in differentiated:
            continue
        wanted = any(i in differentiated for i in node.inputs)
        parts = KINDS[node.op][1](p, node, given, wanted)
        for name, part in zip(node.inputs, parts, strict=True):
            if part is None or name not in differentiated:
                continue
            waiting[name] = joined(p.ops, waiting[name], part) if name in waiting else part
    return p.found


def joined(ops: Operations, a: Value, b: Value) -> Value:
    """a + b at the larger of their scales."""
    fraction = max(a.fractional_bits, b.fractional_bits)
    return ops.add(ops.shifted(a, fraction), ops.shifted(b, fraction))
