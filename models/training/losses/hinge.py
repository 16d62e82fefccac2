"""Margin losses: an answer that is right by at least 1 costs nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.convert.graph import Array
from tfe_bench.models.layers.base import Operations, Shape, convert_scale, reshape_value, sum_axes
from tfe_bench.models.training.losses.loss import (
    WHOLE_BITS,
    Loss,
    LossGradient,
    count_loss_elements,
    find_negative,
    flag_bad_label_rows,
    select_loss_terms,
    split_loss_rows,
    stack_loss_rows,
    sum_loss_products,
    sum_loss_terms,
)
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import convert, shapes
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# Fractional bits of predictions before comparisons.
_BITS = 16
# All pairs of classes are compared.
MOST_CLASSES = 64


class MarginLoss(Loss):
    """A loss of labels -1 and 1 (or 0 and 1, as in Keras), shared as 0 and 1."""

    counts_answers = True
    label_kinds = ("binary", "classes")

    def find_unfit_rows(self, array: Array) -> tuple[Any, str]:
        fits = (array == 0) | (array == 1)
        if (array == -1).any():
            fits = (array == -1) | (array == 1)
        return flag_bad_label_rows(~fits), "-1 and 1, or 0 and 1"

    def convert_labels(self, array: Array) -> Array:
        return np.maximum(array, 0)


def _compute_hinge_margins(ops: Operations, z: Shared) -> tuple[Shared, MaskedBits]:
    """Return 1 - z and 1 + z, [2, n], and where they are negative."""
    z, one = convert_scale(ops, z, _BITS), 1 << _BITS
    both = stack_loss_rows(ops, [ops.add_public(ops.neg(z), one), ops.add_public(z, one)])
    return both, find_negative(ops, both)


def _compute_hinge_shortfalls(ops: Operations, z: Shared) -> list[Shared]:
    """Return the shortfalls of a prediction from 1, and from -1."""
    both, beyond = _compute_hinge_margins(ops, z)
    return split_loss_rows(ops, select_loss_terms(ops, beyond, both, negated=True))


def _choose_hinge_by_label(ops: Operations, y: Shared, one: Shared, other: Shared) -> Shared:
    """Return y one + (1 - y) other at the scale of both."""
    part = ops.mul(reshape_value(ops, y, ops.get_shape(one)), ops.sub(one, other))
    return ops.add(ops.truncate(part, y.fractional_bits), other)


class Hinge(MarginLoss):
    """max(1 - z, 0) where y is 1, and max(1 + z, 0) where it is -1."""

    name = "hinge"
    keras_class = "Hinge"

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        """Return -1 or 1 up to and including the margin, exactly."""
        both, beyond = _compute_hinge_margins(ops, z)
        counts = ops.run_protocol(convert.b2a, beyond, list(ops.get_shape(both)))
        # 1 where they are non-negative
        one, other = split_loss_rows(ops, ops.add_public(ops.neg(counts), 1))
        flat = reshape_value(ops, y, (count_loss_elements(ops, y),))
        g = ops.sub(
            ops.add_fractional_bits(other, y.fractional_bits), ops.mul(flat, ops.add(one, other))
        )
        g = reshape_value(ops, g, ops.get_shape(y))
        if not with_loss:
            return g, None
        return g, sum_loss_terms(
            ops,
            _choose_hinge_by_label(
                ops, y, *split_loss_rows(ops, select_loss_terms(ops, beyond, both, negated=True))
            ),
        )


class SquaredHinge(MarginLoss):
    """The square of the hinge loss."""

    name = "squared_hinge"
    keras_class = "SquaredHinge"
    gradient_factor = 2

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        one, other = _compute_hinge_shortfalls(ops, z)
        g = _choose_hinge_by_label(ops, y, ops.neg(one), other)
        # (only one of both is non-zero, and its sign is irrelevant)
        squares = sum_loss_products(ops, g, g) if with_loss else None
        return reshape_value(
            ops, ops.add_fractional_bits(g, y.fractional_bits), ops.get_shape(y)
        ), squares


class CategoricalHinge(Loss):
    """max(1 + (the largest z of a wrong class, and 0) - (that of the right class), 0)."""

    name = "categorical_hinge"
    keras_class = "CategoricalHinge"
    is_categorical = True
    counts_answers = True
    label_kinds = ("classes",)

    def find_unfit_rows(self, array: Array) -> tuple[Any, str]:
        fits = ((array == 0) | (array == 1)).all(-1) & (array.sum(-1) == 1)
        return flag_bad_label_rows(~fits), "one-hot rows"

    def shape_labels(self, shape: Shape, array: Array, label_name: str) -> Array:
        if shape[-1] > MOST_CLASSES:
            raise UsageError(
                f"{self.name} supports at most {MOST_CLASSES} classes. Received: {shape[-1]}. Use "
                "categorical_crossentropy.",
                code="too-large",
                operation=self.name,
                received=shape[-1],
            )
        return super().shape_labels(shape, array, label_name)

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        """Return 1 for the first largest wrong class, -1 for the right one, up to the margin."""
        shape, f = ops.get_shape(y), y.fractional_bits
        classes, n = shape[-1], math.prod(shape[:-1])

        def transpose_to_class_rows(x: Shared) -> Shared:
            flat = reshape_value(ops, x, (n, classes))
            return ops.apply_local(lambda v: shapes.transpose(v, [1, 0]), flat, (classes, n))

        z, y = transpose_to_class_rows(convert_scale(ops, z, _BITS)), transpose_to_class_rows(y)
        right = ops.truncate(ops.mul(y, z), f)
        wrong = ops.sub(z, right)
        bits = _BITS + WHOLE_BITS + 1
        exchanges = ops.setting.choose_exchanges(n * classes * (classes - 1) // 2, bits)
        hot = ops.run_protocol(extremes.argmax_bits, wrong, bits, exchanges)
        gap = ops.sub(
            ops.run_protocol(extremes.sum_one_hot_selected, hot, wrong), sum_axes(ops, right, [0])
        )
        gap = ops.add_public(gap, 1 << _BITS)
        past = find_negative(ops, gap)
        # hot (1 - y) - y: if the label's own 0 is the largest, no class is wrong
        rest = ops.add_public(ops.neg(y), 1 << f)
        g = ops.sub(select_loss_terms(ops, hot, rest), y)
        ones = ops.run_protocol(convert.b2a, past, [n])
        complement = ops.add_public(ops.neg(ones), 1)
        g = ops.mul(g, reshape_value(ops, complement, (1, n)))
        turned = ops.apply_local(lambda v: shapes.transpose(v, [1, 0]), g, (n, classes))
        losses = (
            sum_loss_terms(ops, select_loss_terms(ops, past, gap, negated=True))
            if with_loss
            else None
        )
        return reshape_value(ops, turned, shape), losses
