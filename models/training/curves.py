"""Activations and max pooling on their own."""

from __future__ import annotations

from fractions import Fraction

from tfe_bench.models.training.nodes import Node
from tfe_bench.models.training.operations import Value
from tfe_bench.models.training.passes import Pass, joined

Gradients = list[Value | None]
# Fractional bits of a LeakyReLU's slope.
SLOPE_BITS = 12


def relu(p: Pass, node: Node, x: Value) -> Value:
    """ReLU."""
    y, p.kept[node.output] = p.ops.relu(x)
    return y


def relu_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """g where x is not negative."""
    drop = max(0, g.fractional_bits - p.recipe.numbers.gradient)
    return [p.ops.inject_truncated(p.kept[node.output], g, drop, negated=True)]


def _bent(p: Pass, node: Node, whole: Value, positive: Value) -> Value:
    """slope whole + (1 - slope) positive, SLOPE_BITS bits more."""
    slope = round(Fraction(node.layer.options["alpha"]) * (1 << SLOPE_BITS))
    low = p.ops.times(whole, slope, SLOPE_BITS)
    return joined(p.ops, low, p.ops.times(positive, (1 << SLOPE_BITS) - slope, SLOPE_BITS))


def max_pool(p: Pass, node: Node, x: Value) -> Value:
    """MaxPooling2D, and a ReLU behind it."""
    y, p.kept[node.output] = p.ops.max_pool(x, node.layer.options, node.activation is not None)
    return y


def max_pool_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """Each window's gradient at the cell that won."""
    f = p.recipe.numbers.gradient
    g = p.ops.shifted(g, max(g.fractional_bits, f + 1))
    return [p.ops.route(p.kept[node.output], g, f)]


def leaky(p: Pass, node: Node, x: Value) -> Value:
    """LeakyReLU."""
    positive, p.kept[node.output] = p.ops.relu(x)
    return p.ops.truncate(_bent(p, node, x, positive), SLOPE_BITS)


def leaky_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """g, times the slope where x is negative."""
    drop = max(0, g.fractional_bits - p.recipe.numbers.gradient)
    positive = p.ops.inject_truncated(p.kept[node.output], g, drop, negated=True)
    return [_bent(p, node, p.settled(g), positive)]


def sigmoid(p: Pass, node: Node, x: Value) -> Value:
    """Sigmoid; its slope y - y^2 is ready when the backward pass asks for it."""
    ops, f = p.ops, p.recipe.numbers.activation
    y = ops.sigmoid(x)
    if p.learning:
        slope = ops.sub(ops.shifted(y, 2 * f), ops.mul(y, y))
        p.kept[node.output] = ops.truncate(slope, f)
    return y


def tanh(p: Pass, node: Node, x: Value) -> Value:
    """Tanh; its slope is 1 - y^2."""
    ops, f = p.ops, p.recipe.numbers.activation
    y = ops.tanh(x)
    if p.learning:
        p.kept[node.output] = ops.add_public(ops.neg(ops.truncate(ops.mul(y, y), f)), 1 << f)
    return y


def smooth_back(p: Pass, node: Node, g: Value, wanted: bool) -> Gradients:
    """g times the slope."""
    return [p.ops.mul(p.settled(g), p.kept[node.output])]
