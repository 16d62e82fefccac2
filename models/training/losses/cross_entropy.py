"""Losses of probabilities: cross-entropies and the Kullback-Leibler divergence.

All start from the logits, where the gradient is the predicted minus the right probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.convert.graph import Array
from tfe_bench.models.layers.base import FACTOR_BITS, Operations, Shape, reshape_value
from tfe_bench.models.training.losses.loss import (
    Loss,
    LossGradient,
    check_label_rows,
    count_loss_elements,
    flag_bad_label_rows,
    read_label_array,
    sum_loss_terms,
)
from tfe_bench.models.training.schedules import bounded_setting
from tfe_bench.protocols.functions import logarithm, piecewise
from tfe_bench.protocols.nn import cross_entropy
from tfe_bench.protocols.session.sharing import Shared

# Tolerance for the sum of a row's probabilities.
_SUM_ERROR = 1e-3


@dataclass(frozen=True)
class SmoothedLoss(Loss):
    """A cross-entropy with labels smoothed toward equal probabilities.

    Attributes:
        label_smoothing: from 0 (none) to 1.
    """

    label_smoothing: float = bounded_setting(0.0, 0.0, 1.0)
    counts_answers: ClassVar[bool] = True

    def smooth_labels(self, ops: Operations, y: Shared, classes: int) -> Shared:
        """Return y (1 - s) + s / classes, at y's scale; independent of the model's output."""
        if not self.label_smoothing:
            return y
        part, one = Fraction(self.label_smoothing), 1 << FACTOR_BITS
        scaled_labels = ops.mul_public(y, round((1 - part) * one), FACTOR_BITS)
        even = round(part * (1 << scaled_labels.fractional_bits) / classes)
        return ops.truncate(ops.add_public(scaled_labels, even), FACTOR_BITS)


class _ClassLoss(Loss):
    """A loss of the probabilities of exclusive classes."""

    folded_activation = "softmax"
    is_categorical = True
    counts_answers = True
    label_kinds = ("classes",)

    def find_unfit_rows(self, array: Array) -> tuple[Any, str]:
        bad = flag_bad_label_rows((array < 0) | (array > 1))
        return bad | flag_bad_label_rows(np.abs(array.sum(-1) - 1) > _SUM_ERROR), "one-hot rows"


def _softmax_loss_gradient(ops: Operations, z: Shared, y: Shared, with_loss: bool) -> LossGradient:
    """Return softmax(z) - y, and the sum of - y_i ln softmax(z)_i."""
    if not with_loss:
        profile = ops.setting.profile
        return ops.sub(
            ops.run_protocol(cross_entropy.softmax_for_gradient, z, profile=profile), y
        ), None
    probabilities, losses = ops.run_protocol(cross_entropy.softmax_and_loss, z, y)
    return ops.sub(probabilities, y), losses


class CategoricalCrossentropy(_ClassLoss, SmoothedLoss):
    """- y_i ln p_i, summed over classes."""

    name = "categorical_crossentropy"
    keras_class = "CategoricalCrossentropy"

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        return _softmax_loss_gradient(
            ops, z, self.smooth_labels(ops, y, ops.get_shape(z)[-1]), with_loss
        )


class SparseCategoricalCrossentropy(_ClassLoss):
    """The categorical cross-entropy of integer labels, which are shared as one-hot rows."""

    name = "sparse_categorical_crossentropy"
    keras_class = "SparseCategoricalCrossentropy"

    def build_keras_loss(self, logits: bool) -> Any:
        """Return Keras' loss for the labels as they are shared."""
        return CategoricalCrossentropy(self.reduction).build_keras_loss(logits)

    def encode_labels(self, shape: Shape, labels: Any, label_name: str = "labels") -> Array:
        array = read_label_array(labels, label_name)
        classes, lead = shape[-1], shape[:-1]
        if array.shape[1:] == (*lead, 1):
            array = array[..., 0]
        if array.ndim != 1 + len(lead) or array.shape[1:] != lead or not len(array):
            raise UsageError(
                f"Expected integers [{', '.join(['rows', *map(str, lead)])}] as {label_name}. "
                "Received: "
                f"{list(array.shape)}.",
                code="shape-mismatch",
                operation=label_name,
                received=list(array.shape),
            )
        with np.errstate(invalid="ignore"):
            bad = ~((array >= 0) & (array < classes) & (array == np.floor(array)))
        check_label_rows(flag_bad_label_rows(bad), label_name, f"classes 0 to {classes - 1}")
        return np.eye(classes)[array.astype(np.int64)]

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        return _softmax_loss_gradient(ops, z, y, with_loss)


class BinaryCrossentropy(SmoothedLoss):
    """- y ln p - (1 - y) ln (1 - p)."""

    name = "binary_crossentropy"
    keras_class = "BinaryCrossentropy"
    aliases = ("bce", "BCE")
    folded_activation = "sigmoid"
    accepts_small_ring = True
    label_kinds = ("binary", "classes")

    def find_unfit_rows(self, array: Array) -> tuple[Any, str]:
        return flag_bad_label_rows((array < 0) | (array > 1)), "numbers from 0 to 1"

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        y = self.smooth_labels(ops, y, 2)
        d = ops.sub(ops.run_protocol(piecewise.logistic, z), y)
        return d, self._sum_losses(ops, z, y) if with_loss else None

    def _sum_losses(self, ops: Operations, z: Shared, y: Shared) -> Shared:
        """Sum the losses of two classes with logits z and 0."""
        n = count_loss_elements(ops, z)
        z, y = (reshape_value(ops, v, (n, 1)) for v in (z, y))
        one = 1 << y.fractional_bits
        logits = ops.concat([z, ops.mul_public(z, 0)], 1)
        labels = ops.concat([y, ops.add_public(ops.neg(y), one)], 1)
        return ops.run_protocol(cross_entropy.softmax_and_loss, logits, labels)[1]


class KLDivergence(_ClassLoss):
    """y_i ln (y_i / p_i), summed over classes: the cross-entropy less that of the labels."""

    name = "kl_divergence"
    keras_class = "KLDivergence"
    aliases = ("kld", "KLD")

    @property
    def takes_logits(self) -> bool:
        return False

    def compute_gradient(
        self, ops: Operations, z: Shared, y: Shared, with_loss: bool
    ) -> LossGradient:
        d, losses = _softmax_loss_gradient(ops, z, y, with_loss)
        if losses is None:
            return d, None
        # (the logarithm of 0 is finite here, so 0 ln 0 is 0)
        logs = ops.run_protocol(logarithm.log, y, y.fractional_bits + 2)
        return d, ops.add(losses, sum_loss_terms(ops, ops.mul(y, logs)))
