"""Losses of a margin: a right answer that is right by 1 or more costs nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.graph import Array
from tfe_bench.models.kinds.layer import Shape
from tfe_bench.models.kinds.operations import Operations
from tfe_bench.models.kinds.passes import brought, reshaped, summed
from tfe_bench.models.training.losses.loss import (
    WHOLE_BITS,
    Loss,
    Slope,
    any_of,
    negative,
    rows_of,
    size,
    stacked,
    times,
    total,
    total_product,
)
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import convert, shapes
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# Of predictions in front of comparisons.
_BITS = 16
# All pairs of classes are compared.
MOST_CLASSES = 64


class Margins(Loss):
    """A loss of labels -1 and 1 (or 0 and 1, as Keras has it too), shared as 0 and 1."""

    counted = True
    takes = ("binary", "classes")

    def unfit(self, array: Array) -> tuple[Any, str]:
        fits = (array == 0) | (array == 1)
        if (array == -1).any():
            fits = (array == -1) | (array == 1)
        return any_of(~fits), "-1 and 1, or 0 and 1"

    def shared(self, array: Array) -> Array:
        return np.maximum(array, 0)


def _margins(ops: Operations, z: Shared) -> tuple[Shared, MaskedBits]:
    """1 - z and 1 + z, [2, n], and where they are negative."""
    z, one = brought(ops, z, _BITS), 1 << _BITS
    both = stacked(ops, [ops.add_public(ops.neg(z), one), ops.add_public(z, one)])
    return both, negative(ops, both)


def _short(ops: Operations, z: Shared) -> list[Shared]:
    """By how much a prediction falls short of 1, and of -1."""
    both, beyond = _margins(ops, z)
    return rows_of(ops, times(ops, beyond, both, negated=True))


def _chosen(ops: Operations, y: Shared, one: Shared, other: Shared) -> Shared:
    """y one + (1 - y) other at the scale of both."""
    part = ops.mul(reshaped(ops, y, ops.shape(one)), ops.sub(one, other))
    return ops.add(ops.truncate(part, y.fractional_bits), other)


class Hinge(Margins):
    """max(1 - z, 0) where y is 1, and max(1 + z, 0) where it is -1."""

    name = "hinge"
    keras = "Hinge"

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        """-1 or 1 up to the margin, and there; exactly."""
        both, beyond = _margins(ops, z)
        counts = ops.call(convert.b2a, beyond, list(ops.shape(both)))
        # 1 where they are not negative
        one, other = rows_of(ops, ops.add_public(ops.neg(counts), 1))
        flat = reshaped(ops, y, (size(ops, y),))
        g = ops.sub(ops.shifted(other, y.fractional_bits), ops.mul(flat, ops.add(one, other)))
        g = reshaped(ops, g, ops.shape(y))
        if not loss:
            return g, None
        return g, total(ops, _chosen(ops, y, *rows_of(ops, times(ops, beyond, both, negated=True))))


class SquaredHinge(Margins):
    """The square of it."""

    name = "squared_hinge"
    keras = "SquaredHinge"
    factor = 2

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        one, other = _short(ops, z)
        g = _chosen(ops, y, ops.neg(one), other)
        # (of both one alone counts, whatever its sign)
        squares = total_product(ops, g, g) if loss else None
        return reshaped(ops, ops.shifted(g, y.fractional_bits), ops.shape(y)), squares


class CategoricalHinge(Loss):
    """max(1 + (the largest z of a wrong class, and 0) - (that of the right class), 0)."""

    name = "categorical_hinge"
    keras = "CategoricalHinge"
    categorical = True
    counted = True
    takes = ("classes",)

    def unfit(self, array: Array) -> tuple[Any, str]:
        fits = ((array == 0) | (array == 1)).all(-1) & (array.sum(-1) == 1)
        return any_of(~fits), "one-hot rows"

    def shaped(self, shape: Shape, array: Array, what: str) -> Array:
        if shape[-1] > MOST_CLASSES:
            raise UsageError(
                f"{self.name} goes with up to {MOST_CLASSES} classes. Received: {shape[-1]}. Use "
                "categorical_crossentropy."
            )
        return super().shaped(shape, array, what)

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        """1 for the first largest of the wrong ones, -1 for the right one, up to the margin."""
        shape, f = ops.shape(y), y.fractional_bits
        classes, n = shape[-1], math.prod(shape[:-1])

        def columns(x: Shared) -> Shared:
            flat = reshaped(ops, x, (n, classes))
            return ops.map(lambda v: shapes.transpose(v, [1, 0]), flat, (classes, n))

        z, y = columns(brought(ops, z, _BITS)), columns(y)
        right = ops.truncate(ops.mul(y, z), f)
        wrong = ops.sub(z, right)
        bits = _BITS + WHOLE_BITS + 1
        exchanges = ops.setting.exchanges(n * classes * (classes - 1) // 2, bits)
        hot = ops.call(extremes.one_hot, wrong, bits, exchanges)
        gap = ops.sub(ops.call(extremes.pick, hot, wrong), summed(ops, right, [0]))
        gap = ops.add_public(gap, 1 << _BITS)
        past = negative(ops, gap)
        # hot (1 - y) - y: where the label's own 0 is the largest, there is no wrong class
        rest = ops.add_public(ops.neg(y), 1 << f)
        g = ops.sub(times(ops, hot, rest), y)
        ones = ops.call(convert.b2a, past, [n])
        kept = ops.add_public(ops.neg(ones), 1)
        g = ops.mul(g, reshaped(ops, kept, (1, n)))
        turned = ops.map(lambda v: shapes.transpose(v, [1, 0]), g, (n, classes))
        losses = total(ops, times(ops, past, gap, negated=True)) if loss else None
        return reshaped(ops, turned, shape), losses
