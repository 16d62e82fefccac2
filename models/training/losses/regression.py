"""Losses of numbers: of the difference between prediction and label, or of their quotient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.models.convert.graph import Array
from tfe_bench.models.layers.base import Operations, Shape, convert_scale, reshape_value
from tfe_bench.models.training.losses.loss import (
    LARGEST,
    NATURAL,
    WHOLE_BITS,
    Loss,
    LossGradient,
    compute_training_sign,
    count_loss_elements,
    find_negative,
    flag_bad_label_rows,
    select_loss_terms,
    split_loss_rows,
    stack_loss_rows,
    subtract_labels_from_outputs,
    sum_loss_products,
    sum_loss_terms,
)
from tfe_bench.models.training.schedules import bounded_setting
from tfe_bench.protocols.functions import logarithm, reciprocal
from tfe_bench.protocols.nn import activations, cross_entropy
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.sharing import Shared

# Lower bound on divisors; 1 / x stays below 2^8.
SMALLEST = 2.0**-8
_SMOOTH_BITS = 16


class MeanSquaredError(Loss):
    """(z - y)^2."""

    name = "mean_squared_error"
    keras_class = "MeanSquaredError"
    aliases = ("mse", "MSE")
    gradient_factor = 2

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        d = subtract_labels_from_outputs(ops, z, y)
        return d, sum_loss_products(ops, d, d) if with_loss else None


class MeanAbsoluteError(Loss):
    """|z - y|."""

    name = "mean_absolute_error"
    keras_class = "MeanAbsoluteError"
    aliases = ("mae", "MAE")

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        d = subtract_labels_from_outputs(ops, z, y)
        way = compute_training_sign(ops, d)
        return ops.add_fractional_bits(way, y.fractional_bits), sum_loss_terms(
            ops, ops.mul(d, way)
        ) if with_loss else None


@dataclass(frozen=True)
class Huber(Loss):
    """d^2 / 2 for a difference of at most delta, and delta (|d| - delta / 2) beyond.

    Attributes:
        delta: from 2^-8 to 2^13.
    """

    delta: float = bounded_setting(1.0, SMALLEST, LARGEST)

    name = "huber"
    keras_class = "Huber"

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        """Return the difference, clipped to -delta and delta."""
        d = subtract_labels_from_outputs(ops, z, y)
        edge = round(Fraction(self.delta) * (1 << d.fractional_bits))
        below = ops.add_public(d, edge)  # negative where the difference is below -delta
        above = ops.add_public(ops.neg(d), edge)
        both = stack_loss_rows(ops, [below, above])
        down, up = split_loss_rows(ops, select_loss_terms(ops, find_negative(ops, both), both))
        g = ops.add(d, reshape_value(ops, ops.sub(up, down), ops.get_shape(d)))
        if not with_loss:
            return g, None
        # g (2 d - g) / 2
        twice = sum_loss_products(ops, g, ops.sub(ops.mul_public(d, 2), g))
        return g, ops.truncate(ops.mul_public(twice, 1, 1), 1)


class LogCosh(Loss):
    """ln cosh (z - y)."""

    name = "log_cosh"
    keras_class = "LogCosh"

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        """Return tanh: the difference of two classes' probabilities with logits d and -d."""
        d = subtract_labels_from_outputs(ops, z, y, _SMOOTH_BITS)
        if not with_loss:
            return ops.add_fractional_bits(
                ops.run_protocol(activations.tanh, d), y.fractional_bits
            ), None
        n = count_loss_elements(ops, d)
        column = reshape_value(ops, d, (n, 1))
        logits = ops.concat([column, ops.neg(column)], 1)
        half = 1 << (y.fractional_bits - 1)
        labels = ops.mul_public(logits, 0, y.fractional_bits - _SMOOTH_BITS)
        labels = ops.add_public(labels, half)
        p, losses = ops.run_protocol(cross_entropy.softmax_and_loss, logits, labels)
        turned = ops.apply_local(lambda v: shapes.transpose(v, [1, 0]), p, (2, n))
        right_share, left_share = split_loss_rows(ops, turned)
        doubled = round(n * math.log(2) * 2.0**losses.fractional_bits)
        g = reshape_value(ops, ops.sub(right_share, left_share), ops.get_shape(d))
        return g, ops.add_public(losses, -doubled)


class Poisson(Loss):
    """z - y ln z, of a positive prediction z; smaller values count as SMALLEST."""

    name = "poisson"
    keras_class = "Poisson"
    label_kinds = NATURAL

    def find_unfit_rows(self, array: Array) -> tuple[Any, str]:
        return _flag_labels_outside(array, 0.0)

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        """Return 1 - y / z."""
        f = y.fractional_bits
        low = round(SMALLEST * 2**f)
        over = ops.add_public(convert_scale(ops, z, f), -low)
        mean = ops.add_public(
            select_loss_terms(ops, find_negative(ops, over), over, negated=True), low
        )
        bits, whole = f + WHOLE_BITS, round(math.log2(LARGEST)) + 1
        share = ops.run_protocol(
            reciprocal.divide,
            y,
            mean,
            bits,
            numerator_bits=f + whole,
            quotient_bits=f + whole - round(math.log2(SMALLEST)),
        )
        g = ops.add_public(ops.neg(share), 1 << f)
        if not with_loss:
            return g, None
        logs = ops.run_protocol(logarithm.log, mean, bits)
        return g, ops.sub(sum_loss_terms(ops, mean), sum_loss_products(ops, y, logs))


class MeanSquaredLogarithmicError(Loss):
    """(ln (1 + z) - ln (1 + y))^2; a prediction below 0 counts as 0."""

    name = "mean_squared_logarithmic_error"
    keras_class = "MeanSquaredLogarithmicError"
    aliases = ("msle", "MSLE")
    gradient_factor = 2
    label_kinds = NATURAL

    def find_unfit_rows(self, array: Array) -> tuple[Any, str]:
        return _flag_labels_outside(array, 0.0)

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        """Return (ln (1 + z) - ln (1 + y)) / (1 + z), where z is above 0."""
        f = y.fractional_bits
        z = convert_scale(ops, z, f)
        # (Keras' epsilon is a tenth of a unit)
        bent = find_negative(ops, ops.add_public(z, -1))
        raised = stack_loss_rows(ops, [select_loss_terms(ops, bent, z, negated=True), y])
        raised = ops.add_public(raised, 1 << f)
        of_z, of_y = split_loss_rows(ops, ops.run_protocol(logarithm.log, raised, f + WHOLE_BITS))
        one = split_loss_rows(ops, raised)[0]
        shrunk = ops.run_protocol(reciprocal.reciprocal, one, f + WHOLE_BITS)
        d = ops.sub(of_z, of_y)
        g = reshape_value(ops, ops.truncate(ops.mul(d, shrunk), f), ops.get_shape(z))
        return select_loss_terms(ops, bent, g, negated=True), sum_loss_products(
            ops, d, d
        ) if with_loss else None


class MeanAbsolutePercentageError(Loss):
    """100 |z - y| / |y|."""

    name = "mean_absolute_percentage_error"
    keras_class = "MeanAbsolutePercentageError"
    aliases = ("mape", "MAPE")
    label_kinds = ()

    def find_unfit_rows(self, array: Array) -> tuple[Any, str]:
        bad, expected = _flag_labels_outside(np.abs(array), SMALLEST)
        return bad, f"{expected} in magnitude"

    def compute_scale(self, shape: Shape, batch: int) -> int:
        return 100 * super().compute_scale(shape, batch)

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        """Return the sign of the difference, over |y|."""
        d, f = subtract_labels_from_outputs(ops, z, y), y.fractional_bits
        shrunk = ops.run_protocol(
            reciprocal.reciprocal, ops.mul(y, compute_training_sign(ops, y)), f + WHOLE_BITS
        )
        g = ops.mul(compute_training_sign(ops, d), shrunk)
        return g, sum_loss_products(ops, d, g) if with_loss else None


def _flag_labels_outside(array: Array, least: float) -> tuple[Any, str]:
    """Flag the rows with numbers outside the interval from `least` to LARGEST."""
    fits = (array >= least) & (array <= LARGEST)
    return flag_bad_label_rows(~fits), f"numbers from {least:g} to {LARGEST:g}"
