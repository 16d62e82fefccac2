"""Losses with their gradients."""

from __future__ import annotations

from typing import Any

import tfe_bench.tf_encrypted as tfe
from tfe_bench.tf_encrypted.keras import activations


class Loss:
    """A loss: called with labels and predictions."""

    lazy_normalization = False

    def __call__(self, y_true: Any, y_pred: Any) -> Any:
        return self.call(y_true, y_pred)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss."""
        raise NotImplementedError

    def grad(self, y_true: Any, y_pred: Any) -> Any:
        """Return the gradient of y_pred."""
        raise NotImplementedError

    def _normalize_gradient(self, grad: Any, y_true: Any) -> Any:
        return grad if self.lazy_normalization else grad * (1 / int(y_true.shape[0]))


class BinaryCrossentropy(Loss):
    """Cross entropy of two classes.

    Args:
        from_logits: predictions are logits.
        lazy_normalization: layers divide by the batch size instead of the gradient.
    """

    def __init__(self, from_logits: bool = False, lazy_normalization: bool = False) -> None:
        self.from_logits, self.lazy_normalization = from_logits, lazy_normalization

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the mean over the batch."""
        p = activations.sigmoid(y_pred) if self.from_logits else y_pred
        log_likelihood = y_true * tfe.log(p) + (1 - y_true) * tfe.log(1 - p)
        return log_likelihood.negative().reduce_sum(axis=0) * (1 / int(y_true.shape[0]))

    def grad(self, y_true: Any, y_pred: Any) -> Any:
        """Return sigmoid(y_pred) - y_true for logits; y_pred - y_true for probabilities."""
        p = activations.sigmoid(y_pred) if self.from_logits else y_pred
        return self._normalize_gradient(p - y_true, y_true)


class MeanSquaredError(Loss):
    """The mean of squares over the batch."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the mean over the batch."""
        return (y_true - y_pred).square().reduce_sum(axis=0) * (1 / int(y_true.shape[0]))

    def grad(self, y_true: Any, y_pred: Any) -> Any:
        """Return 2 (y_pred - y_true) divided by the batch size."""
        return (y_pred - y_true) * (2 / int(y_true.shape[0]))


class CategoricalCrossentropy(Loss):
    """Cross entropy of several classes; arguments as for BinaryCrossentropy."""

    def __init__(self, from_logits: bool = False, lazy_normalization: bool = False) -> None:
        self.from_logits, self.lazy_normalization = from_logits, lazy_normalization

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the mean over the batch."""
        p = activations.softmax(y_pred) if self.from_logits else y_pred
        return (y_true * tfe.log(p)).negative().reduce_sum() * (1 / int(y_true.shape[0]))

    def grad(self, y_true: Any, y_pred: Any) -> Any:
        """Return softmax(y_pred) - y_true for logits; y_pred - y_true for probabilities."""
        p = activations.softmax(y_pred) if self.from_logits else y_pred
        return self._normalize_gradient(p - y_true, y_true)
