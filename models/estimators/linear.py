"""Estimators of one layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfe_bench.models.convert.graph import Array
from tfe_bench.models.estimators import convergence
from tfe_bench.models.estimators.estimator import (
    WORKERS,
    Classifier,
    PrivateEstimator,
    Regressor,
    check_positive_hyperparameter,
)


class _LinearEstimator(PrivateEstimator):
    """One layer, trained by gradient descent with momentum and a learning rate that falls to 0.

    The rate of "auto" follows from the number of columns alone: deviations are 1, so that this
    number bounds the curvature in any direction.
    """

    def __init__(
        self,
        *,
        max_iter: int = 100,
        batch_size: int | str = "auto",
        learning_rate_init: float | str = "auto",
        momentum: float = 0.9,
        random_state: Any = None,
        predict_on: str = WORKERS,
        cluster: Any = None,
        verbose: Any = 0,
    ) -> None:
        self._store_hyperparameters(locals())

    def _check_converged(self, x: Array, y: Array, weights: Array | None, penalty: float) -> None:
        [(kernel, bias)] = self._layers
        change = convergence.estimate_prediction_change(x, y, weights, kernel, bias, penalty)
        quantity = "probabilities of training rows"
        if np.issubdtype(y.dtype, np.floating):
            quantity = "predictions of training rows, in deviations of the target,"
        convergence.warn_unconverged_estimator(change, quantity, int(self.max_iter))

    def _build_optimizer(self, steps: int, max_curvature: float) -> Any:
        import keras

        rate = self.learning_rate_init
        if rate == "auto":
            rate = 1.0 / max_curvature
        schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
        return keras.optimizers.SGD(schedule, momentum=self.momentum)


class PrivateLogisticRegression(Classifier, _LinearEstimator):
    """Logistic regression, trained by three workers; softmax for more than two classes.

    It learns the model of scikit-learn's estimator behind a StandardScaler.

    Args:
        C: inverse of the penalty on squared weights of the scaled columns, as in scikit-learn;
            infinity for no penalty.
        max_iter: number of epochs, each through all rows.
        batch_size: rows of a step; "auto": all up to 256 rows, otherwise equal batches of at most
            256.
        learning_rate_init: initial learning rate; it falls to 0 by half a cosine.
        momentum: momentum of gradient descent.
        class_weight: {label: weight} or "balanced", as in scikit-learn.
        random_state: seed of the order of rows, which is public. Two fits with one seed differ by
            the rounding of fixed point alone, which is random.
        predict_on: "workers": predictions also run on shares; "owner": locally in plaintext, as the
            client has the weights anyway.
        cluster: a LocalCluster, a Cluster, a Client, or the path of a cluster.toml; None starts
            three local workers for the call.
        verbose: as for Trainable.fit.

    Attributes `classes_`, `n_features_in_`, `feature_names_in_` and `n_iter_` as in scikit-learn.
    """

    C: float
    class_weight: Mapping[Any, float] | str | None

    def __init__(
        self,
        *,
        C: float = 1.0,
        max_iter: int = 100,
        batch_size: int | str = "auto",
        learning_rate_init: float | str = "auto",
        momentum: float = 0.9,
        class_weight: Mapping[Any, float] | str | None = None,
        random_state: Any = None,
        predict_on: str = WORKERS,
        cluster: Any = None,
        verbose: Any = 0,
    ) -> None:
        self._store_hyperparameters(locals())

    def _penalty_factor(self, total: float) -> float:
        return 1.0 / (2.0 * check_positive_hyperparameter("C", self.C, math.inf) * total)

    @property
    def coef_(self) -> Array:
        """Coefficients of the logits for unscaled columns, [1 or classes, columns]."""
        return self._unscaled_layers()[0][0].T

    @property
    def intercept_(self) -> Array:
        """Logits where all columns are 0, [1 or classes]."""
        return self._unscaled_layers()[0][1]


class PrivateLinearRegression(Regressor, _LinearEstimator):
    """Least-squares regression, trained by three workers.

    Args: as for PrivateLogisticRegression, without class_weight.

    Attributes `n_features_in_`, `feature_names_in_` and `n_iter_` as in scikit-learn.
    """

    @property
    def coef_(self) -> Array:
        """Coefficients of the unscaled number for unscaled columns, [columns]."""
        return np.asarray(self._unscaled_layers()[0][0][:, 0] * self.target_scale_)

    @property
    def intercept_(self) -> float:
        """The number where all columns are 0."""
        return float(self._unscaled_layers()[0][1][0] * self.target_scale_ + self.target_mean_)
