"""Estimators with hidden layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.errors import UsageError, check_one_of, check_range
from tfe_bench.models.convert.graph import Array
from tfe_bench.models.estimators.estimator import (
    WORKERS,
    Classifier,
    PrivateEstimator,
    Regressor,
    check_positive_hyperparameter,
)

_MAX_WIDTH = 1 << 16
_ACTIVATIONS = {"identity": None, "logistic": "sigmoid", "tanh": "tanh", "relu": "relu"}


class _LayeredEstimator(PrivateEstimator):
    """Hidden layers with one activation."""

    hidden_layer_sizes: Any
    activation: str
    solver: str
    alpha: float

    def __init__(
        self,
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
        solver: str = "adam",
        alpha: float = 0.0,
        max_iter: int = 200,
        batch_size: int | str = "auto",
        learning_rate_init: float = 0.001,
        momentum: float = 0.9,
        random_state: Any = None,
        predict_on: str = WORKERS,
        cluster: Any = None,
        verbose: Any = 0,
    ) -> None:
        self._store_hyperparameters(locals())

    def _hidden_widths(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        widths = tuple(sizes) if isinstance(sizes, (tuple, list, np.ndarray)) else (sizes,)
        for width in widths:
            if isinstance(width, bool) or not isinstance(width, (int, np.integer)):
                raise UsageError(
                    f"Expected integers as hidden_layer_sizes. Received: {width!r}.",
                    code="wrong-type",
                    operation="hidden_layer_sizes",
                    received=width,
                )
            check_range("Each of hidden_layer_sizes", int(width), 1, _MAX_WIDTH)
        return tuple(int(width) for width in widths)

    def _penalty_factor(self, total: float) -> float:
        return (
            0.0
            if self.alpha == 0
            else check_positive_hyperparameter("alpha", self.alpha, 1e6) / (2.0 * total)
        )

    def _hidden_activation(self) -> str | None:
        check_one_of("activation is", self.activation, tuple(_ACTIVATIONS), operation="activation")
        return _ACTIVATIONS[self.activation]

    def _build_optimizer(self, steps: int, max_curvature: float) -> Any:
        import keras

        check_one_of("solver is", self.solver, ("adam", "sgd"), operation="solver")
        if self.solver == "adam":
            return keras.optimizers.Adam(self.learning_rate_init)
        return keras.optimizers.SGD(self.learning_rate_init, momentum=self.momentum)

    @property
    def coefs_(self) -> list[Array]:
        """Kernel of each layer, [inputs, outputs]; the first for unscaled columns."""
        return [kernel for kernel, _ in self._unscaled_layers()]

    @property
    def intercepts_(self) -> list[Array]:
        """Bias of each layer, [outputs]."""
        return [bias for _, bias in self._unscaled_layers()]


class PrivateMLPClassifier(Classifier, _LayeredEstimator):
    """Classifier with hidden layers; names and defaults follow scikit-learn's networks.

    Args:
        hidden_layer_sizes: outputs of each hidden layer.
        activation: "relu", "logistic", "tanh" or "identity".
        solver: "adam" or "sgd".
        alpha: penalty of squared weights, as in scikit-learn.
        momentum: momentum of "sgd".
        max_iter, batch_size, learning_rate_init, random_state, predict_on, cluster, verbose: as for
            PrivateLogisticRegression; the learning rate is constant.
    """


class PrivateMLPRegressor(Regressor, _LayeredEstimator):
    """Regressor with hidden layers.

    Args: as for PrivateMLPClassifier.
    """
