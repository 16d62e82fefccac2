"""One pass through a model, and the small moves that its layers share.

Gradients of values travel at any scale: at `gradient` bits behind a truncation, with those of a
weight more behind a product.  Who multiplies one by something brings it back first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.models.training.nodes import Node
from tfe_bench.models.training.operations import Operations, Value
from tfe_bench.models.training.recipe import Recipe

# Of a public factor that is no power of two.
FACTOR_BITS = 16
# A gradient below 2^12 in magnitude stays below 2^62 with so many fractional bits.
MOST_BITS = 50


@dataclass(eq=False)
class Pass:
    """One pass through a model.

    Attributes:
        ops: that run or price it.
        recipe: public.
        weights: by key.
        public: the step's public values, by name.
        learning: whether this is a training step, not an evaluation.
        small: whether the logistic function's argument may be of a small ring.
        kept: by a node's output, what its backward pass wants.
        found: gradients of weights by key.
        renewed: new values by key of what is not trained but changes (running statistics).
    """

    ops: Operations
    recipe: Recipe
    weights: Mapping[str, Value]
    public: Mapping[str, Any] = field(default_factory=dict)
    learning: bool = True
    small: bool = True
    kept: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Value] = field(default_factory=dict)
    renewed: dict[str, Value] = field(default_factory=dict)

    def weight(self, node: Node, name: str) -> Value | None:
        """A node's weights, None if it has none of the name."""
        if name not in node.layer.weights:
            return None
        return self.weights[f"{node.layer.name}/{name}"]

    def learns(self, node: Node, name: str) -> bool:
        """Whether a node has weights of the name, and they are trained."""
        key = f"{node.layer.name}/{name}"
        return self.learning and name in node.layer.weights and key not in self.recipe.frozen

    def settled(self, g: Value, room: int = 0) -> Value:
        """A gradient at the gradients' scale, if it leaves no room for so many bits more."""
        f = self.recipe.numbers.gradient
        if g.fractional_bits <= f or (room and g.fractional_bits + room <= MOST_BITS):
            return g
        return self.ops.truncate(g, g.fractional_bits - f)

    def shape(self, name: str, x: Value) -> tuple[int, ...]:
        """Of the value of that name, with x's batch."""
        return (self.ops.shape(x)[0], *self.recipe.graph.shapes[name])


def reshaped(ops: Operations, x: Value, shape: tuple[int, ...]) -> Value:
    """The elements of x in another shape."""
    import tensorflow as tf

    return ops.local(x, lambda a: tf.reshape(a, shape), shape)


def summed(ops: Operations, x: Value, axes: list[int], keepdims: bool = False) -> Value:
    """The sum over some axes."""
    import tensorflow as tf

    old = ops.shape(x)
    kept = [1 if i in axes else n for i, n in enumerate(old)]
    shape = tuple(kept) if keepdims else tuple(n for i, n in enumerate(old) if i not in axes)
    return ops.local(x, lambda a: tf.reduce_sum(a, axis=axes, keepdims=keepdims), shape)


def joined(ops: Operations, a: Value, b: Value) -> Value:
    """a + b at the larger of their scales."""
    fraction = max(a.fractional_bits, b.fractional_bits)
    return ops.add(ops.shifted(a, fraction), ops.shifted(b, fraction))


def log2(factor: Fraction) -> int | None:
    """k with factor = 2^-k, None if there is none of at least 0."""
    one = factor.numerator == 1 and factor.denominator.bit_count() == 1
    return factor.denominator.bit_length() - 1 if one else None


def factored(ops: Operations, x: Value, factors: Any) -> Value:
    """x times public reals, with more fractional bits.  Local.

    Args:
        factors: a Fraction, or an array of reals that broadcasts to x.
    """
    several = np.asarray(factors, object).reshape(-1)
    first = Fraction(several[0])
    if all(f == first for f in several):
        k = log2(first)
        if k is not None:
            return ops.times(x, 1, k)
        if first.denominator == 1:
            return ops.times(x, first.numerator)
        return ops.times(x, round(first * (1 << FACTOR_BITS)), FACTOR_BITS)
    rounded = [round(Fraction(f) * (1 << FACTOR_BITS)) for f in several]
    ring = np.asarray(rounded, np.int64).reshape(np.shape(factors))
    return ops.times(x, ring, FACTOR_BITS)
