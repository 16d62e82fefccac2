"""Losses of probabilities: cross-entropies and the Kullback-Leibler divergence.

All begin at the logits, where the gradient is the difference of predicted and right probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.models.graph import Array
from tfe_bench.models.kinds.layer import Shape
from tfe_bench.models.kinds.operations import Operations
from tfe_bench.models.kinds.passes import FACTOR_BITS, reshaped
from tfe_bench.models.training.losses.loss import (
    Loss,
    Slope,
    any_of,
    check_number,
    refuse,
    size,
    total,
)
from tfe_bench.protocols.functions import logarithm, piecewise
from tfe_bench.protocols.nn import cross_entropy
from tfe_bench.protocols.session.sharing import Shared

# A row's probabilities add up to 1 within this.
_SUM_ERROR = 1e-3


@dataclass(frozen=True)
class Smoothed(Loss):
    """A cross-entropy whose labels are moved toward equal probabilities.

    Attributes:
        label_smoothing: from 0 (none) to 1.
    """

    label_smoothing: float = 0.0
    counted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("label_smoothing of a loss", self.label_smoothing, 0.0, 1.0)

    def smoothed(self, ops: Operations, y: Shared, classes: int) -> Shared:
        """y (1 - s) + s / classes, at y's scale; ready before the model's output is."""
        if not self.label_smoothing:
            return y
        part, one = Fraction(self.label_smoothing), 1 << FACTOR_BITS
        moved = ops.times(y, round((1 - part) * one), FACTOR_BITS)
        even = round(part * (1 << moved.fractional_bits) / classes)
        return ops.truncate(ops.add_public(moved, even), FACTOR_BITS)


class _OfClasses(Loss):
    """A loss of the probabilities of classes, of which one is right."""

    folded = "softmax"
    categorical = True
    counted = True
    takes = ("classes",)

    def unfit(self, array: Array) -> tuple[Any, str]:
        bad = any_of((array < 0) | (array > 1))
        return bad | any_of(np.abs(array.sum(-1) - 1) > _SUM_ERROR), "one-hot rows"


def _softmax(ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
    """softmax(z) - y, and the sum of - y_i ln softmax(z)_i."""
    if not loss:
        profile = ops.setting.profile
        return ops.sub(ops.call(cross_entropy.softmax_for_gradient, z, profile=profile), y), None
    probabilities, losses = ops.call(cross_entropy.softmax_and_loss, z, y)
    return ops.sub(probabilities, y), losses


class Categorical(_OfClasses, Smoothed):
    """- y_i ln p_i, summed over classes."""

    name = "categorical_crossentropy"
    keras = "CategoricalCrossentropy"

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        return _softmax(ops, z, self.smoothed(ops, y, ops.shape(z)[-1]), loss)


class Sparse(_OfClasses):
    """The same, of labels that are integers; they are shared as one-hot rows."""

    name = "sparse_categorical_crossentropy"
    keras = "SparseCategoricalCrossentropy"

    def plain(self, logits: bool) -> Any:
        """Keras' loss of labels as they are shared."""
        return Categorical(self.reduction).plain(logits)

    def targets(self, shape: Shape, labels: Any, what: str = "labels") -> Array:
        array = np.asarray(labels)
        if array.dtype.kind not in "fiub":
            raise UsageError(f"The {what} are numbers. Received: {array.dtype}.")
        classes, lead = shape[-1], shape[:-1]
        if array.shape[1:] == (*lead, 1):
            array = array[..., 0]
        if array.ndim != 1 + len(lead) or array.shape[1:] != lead or not len(array):
            raise UsageError(
                f"The {what} are integers [{', '.join(['rows', *map(str, lead)])}]. Received: "
                f"{list(array.shape)}."
            )
        with np.errstate(invalid="ignore"):
            bad = ~((array >= 0) & (array < classes) & (array == np.floor(array)))
        refuse(any_of(bad), what, f"classes 0 to {classes - 1}")
        return np.eye(classes)[array.astype(np.int64)]

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        return _softmax(ops, z, y, loss)


class Binary(Smoothed):
    """- y ln p - (1 - y) ln (1 - p)."""

    name = "binary_crossentropy"
    keras = "BinaryCrossentropy"
    aliases = ("bce", "BCE")
    folded = "sigmoid"
    small = True
    takes = ("binary", "classes")

    def unfit(self, array: Array) -> tuple[Any, str]:
        return any_of((array < 0) | (array > 1)), "numbers from 0 to 1"

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        y = self.smoothed(ops, y, 2)
        d = ops.sub(ops.call(piecewise.logistic, z), y)
        return d, self._losses(ops, z, y) if loss else None

    def _losses(self, ops: Operations, z: Shared, y: Shared) -> Shared:
        """Those of two classes with logits z and 0."""
        n = size(ops, z)
        z, y = (reshaped(ops, v, (n, 1)) for v in (z, y))
        one = 1 << y.fractional_bits
        logits = ops.concat([z, ops.times(z, 0)], 1)
        labels = ops.concat([y, ops.add_public(ops.neg(y), one)], 1)
        return ops.call(cross_entropy.softmax_and_loss, logits, labels)[1]


class Divergence(_OfClasses):
    """y_i ln (y_i / p_i), summed over classes: the cross-entropy less that of the labels."""

    name = "kl_divergence"
    keras = "KLDivergence"
    aliases = ("kld", "KLD")

    @property
    def takes_logits(self) -> bool:
        return False

    def slope(self, ops: Operations, z: Shared, y: Shared, loss: bool) -> Slope:
        d, losses = _softmax(ops, z, y, loss)
        if losses is None:
            return d, None
        # (the logarithm of 0 is finite here, so that 0 ln 0 is 0)
        logs = ops.call(logarithm.log, y, y.fractional_bits + 2)
        return d, ops.add(losses, total(ops, ops.mul(y, logs)))
