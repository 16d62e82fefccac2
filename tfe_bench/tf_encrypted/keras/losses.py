"""Losses with their gradients."""

from __future__ import annotations

from typing import Any

import tfe_bench.tf_encrypted as tfe
from tfe_bench.tf_encrypted.keras import activations


class Loss:
    """A loss: called with what is true and what was predicted."""

    lazy_normalization = False

    def __call__(self, y_true: Any, y_pred: Any) -> Any:
        return self.call(y_true, y_pred)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss."""
        raise NotImplementedError

    def grad(self, y_true: Any, y_pred: Any) -> Any:
        """Its gradient by y_pred."""
        raise NotImplementedError

    def _normalize_gradient(self, grad: Any, y_true: Any) -> Any:
        return grad if self.lazy_normalization else grad * (1 / int(y_true.shape[0]))


class BinaryCrossentropy(Loss):
    """Cross entropy of two classes.

    Args:
        from_logits: predictions are logits.
        lazy_normalization: layers divide by the batch instead of the gradient.
    """

    def __init__(self, from_logits: bool = False, lazy_normalization: bool = False) -> None:
        self.from_logits, self.lazy_normalization = from_logits, lazy_normalization

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The mean over the batch."""
        p = activations.sigmoid(y_pred) if self.from_logits else y_pred
        log_likelihood = y_true * tfe.log(p) + (1 - y_true) * tfe.log(1 - p)
        return log_likelihood.negative().reduce_sum(axis=0) * (1 / int(y_true.shape[0]))

    def grad(self, y_true: Any, y_pred: Any) -> Any:
        """Of logits sigmoid(y_pred) - y_true; of probabilities the same without the function."""
        p = activations.sigmoid(y_pred) if self.from_logits else y_pred
        return self._normalize_gradient(p - y_true, y_true)


class MeanSquaredError(Loss):
    """The mean of squares over the batch."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The mean over the batch."""
        return (y_true - y_pred).square().reduce_sum(axis=0) * (1 / int(y_true.shape[0]))

    def grad(self, y_true: Any, y_pred: Any) -> Any:
        """2 (y_pred - y_true) over the batch."""
        return (y_pred - y_true) * (2 / int(y_true.shape[0]))


class CategoricalCrossentropy(Loss):
    """Cross entropy of several classes; arguments as BinaryCrossentropy."""

    def __init__(self, from_logits: bool = False, lazy_normalization: bool = False) -> None:
        self.from_logits, self.lazy_normalization = from_logits, lazy_normalization

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The mean over the batch."""
        p = activations.softmax(y_pred) if self.from_logits else y_pred
        return (y_true * tfe.log(p)).negative().reduce_sum() * (1 / int(y_true.shape[0]))

    def grad(self, y_true: Any, y_pred: Any) -> Any:
        """Of logits softmax(y_pred) - y_true; of probabilities the same without the function."""
        p = activations.softmax(y_pred) if self.from_logits else y_pred
        return self._normalize_gradient(p - y_true, y_true)
