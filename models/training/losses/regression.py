"""Losses of numbers: of the difference between prediction and label, or of their quotient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.models.graph import Array
from tfe_bench.models.kinds.layer import Shape
from tfe_bench.models.kinds.operations import Operations
from tfe_bench.models.kinds.passes import brought, reshaped
from tfe_bench.models.training.losses.loss import (
    LARGEST,
    NATURAL,
    WHOLE_BITS,
    Loss,
    Slope,
    any_of,
    check_number,
    difference,
    negative,
    rows_of,
    sign,
    size,
    stacked,
    times,
    total,
    total_product,
)
from tfe_bench.protocols.functions import logarithm, reciprocal
from tfe_bench.protocols.nn import activations, cross_entropy
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared

# What is divided by is no smaller; 1 / x stays below 2^8.
SMALLEST = 2.0**-8
_SMOOTH_BITS = 16


class Squared(Loss):
    """(z - y)^2."""

    name = "mean_squared_error"
    keras = "MeanSquaredError"
    aliases = ("mse", "MSE")
    factor = 2

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        d = difference(ops, z, y)
        return d, total_product(ops, d, d) if loss else None


class Absolute(Loss):
    """|z - y|."""

    name = "mean_absolute_error"
    keras = "MeanAbsoluteError"
    aliases = ("mae", "MAE")

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        d = difference(ops, z, y)
        way = sign(ops, d)
        return ops.shifted(way, y.fractional_bits), total(ops, ops.mul(d, way)) if loss else None


@dataclass(frozen=True)
class Huber(Loss):
    """d^2 / 2 for a difference of at most delta, and delta (|d| - delta / 2) beyond.

    Attributes:
        delta: from 2^-8 to 2^13.
    """

    delta: float = 1.0

    name = "huber"
    keras = "Huber"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("delta of a Huber loss", self.delta, SMALLEST, LARGEST)

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        """The difference, cut off at -delta and delta."""
        d = difference(ops, z, y)
        edge = round(Fraction(self.delta) * (1 << d.fractional_bits))
        below = ops.add_public(d, edge)  # below 0 where the difference is below -delta
        above = ops.add_public(ops.neg(d), edge)
        both = stacked(ops, [below, above])
        down, up = rows_of(ops, times(ops, negative(ops, both), both))
        g = ops.add(d, reshaped(ops, ops.sub(up, down), ops.shape(d)))
        if not loss:
            return g, None
        # g (2 d - g) / 2
        twice = total_product(ops, g, ops.sub(ops.times(d, 2), g))
        return g, ops.truncate(ops.times(twice, 1, 1), 1)


class LogCosh(Loss):
    """ln cosh (z - y)."""

    name = "log_cosh"
    keras = "LogCosh"

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        """tanh, which is what two classes with the logits d and -d differ by."""
        d = difference(ops, z, y, _SMOOTH_BITS)
        if not loss:
            return ops.shifted(ops.call(activations.tanh, d), y.fractional_bits), None
        n = size(ops, d)
        column = reshaped(ops, d, (n, 1))
        logits = ops.concat([column, ops.neg(column)], 1)
        half = 1 << (y.fractional_bits - 1)
        labels = ops.times(logits, 0, y.fractional_bits - _SMOOTH_BITS)
        labels = ops.add_public(labels, half)
        p, losses = ops.call(cross_entropy.softmax_and_loss, logits, labels)
        turned = ops.map(lambda v: shapes.transpose(v, [1, 0]), p, (2, n))
        right, left = rows_of(ops, turned)
        doubled = round(n * math.log(2) * 2.0**losses.fractional_bits)
        g = reshaped(ops, ops.sub(right, left), ops.shape(d))
        return g, ops.add_public(losses, -doubled)


class Poisson(Loss):
    """z - y ln z, of a prediction z above 0; less than SMALLEST counts as that."""

    name = "poisson"
    keras = "Poisson"
    takes = NATURAL

    def unfit(self, array: Array) -> tuple[Any, str]:
        return _positive(array, 0.0)

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        """1 - y / z."""
        f = y.fractional_bits
        low = round(SMALLEST * 2**f)
        over = ops.add_public(brought(ops, z, f), -low)
        mean = ops.add_public(times(ops, negative(ops, over), over, negated=True), low)
        bits, whole = f + WHOLE_BITS, round(math.log2(LARGEST)) + 1
        share = ops.call(
            reciprocal.divide,
            y,
            mean,
            bits,
            numerator_bits=f + whole,
            quotient_bits=f + whole - round(math.log2(SMALLEST)),
        )
        g = ops.add_public(ops.neg(share), 1 << f)
        if not loss:
            return g, None
        logs = ops.call(logarithm.log, mean, bits)
        return g, ops.sub(total(ops, mean), total_product(ops, y, logs))


class SquaredLogarithmic(Loss):
    """(ln (1 + z) - ln (1 + y))^2; a prediction below 0 counts as 0."""

    name = "mean_squared_logarithmic_error"
    keras = "MeanSquaredLogarithmicError"
    aliases = ("msle", "MSLE")
    factor = 2
    takes = NATURAL

    def unfit(self, array: Array) -> tuple[Any, str]:
        return _positive(array, 0.0)

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        """(ln (1 + z) - ln (1 + y)) / (1 + z), where z is above 0."""
        f = y.fractional_bits
        z = brought(ops, z, f)
        # (Keras' epsilon is a tenth of a unit)
        bent = negative(ops, ops.add_public(z, -1))
        raised = stacked(ops, [times(ops, bent, z, negated=True), y])
        raised = ops.add_public(raised, 1 << f)
        of_z, of_y = rows_of(ops, ops.call(logarithm.log, raised, f + WHOLE_BITS))
        one = rows_of(ops, raised)[0]
        shrunk = ops.call(reciprocal.reciprocal, one, f + WHOLE_BITS)
        d = ops.sub(of_z, of_y)
        g = reshaped(ops, ops.truncate(ops.mul(d, shrunk), f), ops.shape(z))
        return times(ops, bent, g, negated=True), total_product(ops, d, d) if loss else None


class AbsolutePercentage(Loss):
    """100 |z - y| / |y|."""

    name = "mean_absolute_percentage_error"
    keras = "MeanAbsolutePercentageError"
    aliases = ("mape", "MAPE")
    takes = ()

    def unfit(self, array: Array) -> tuple[Any, str]:
        bad, wanted = _positive(np.abs(array), SMALLEST)
        return bad, f"{wanted} in magnitude"

    def scale(self, shape: Shape, batch: int) -> int:
        return 100 * super().scale(shape, batch)

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        """The sign of the difference, over |y|."""
        d, f = difference(ops, z, y), y.fractional_bits
        shrunk = ops.call(reciprocal.reciprocal, ops.mul(y, sign(ops, y)), f + WHOLE_BITS)
        g = ops.mul(sign(ops, d), shrunk)
        return g, total_product(ops, d, g) if loss else None


def _positive(array: Array, least: float) -> tuple[Any, str]:
    """Which rows have numbers that are not from the least to LARGEST."""
    fits = (array >= least) & (array <= LARGEST)
    return any_of(~fits), f"numbers from {least:g} to {LARGEST:g}"
