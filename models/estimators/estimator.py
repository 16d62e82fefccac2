"""Estimators of scikit-learn that three workers train without seeing a row, a label or a weight.

The client that calls `fit` shares its rows and receives the trained weights.  It first scales
columns to mean 0 and deviation 1, exactly and locally, so that columns of any unit can be used.
`coef_` and `intercept_` refer to the unscaled columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.launch import Cluster, LocalCluster
from tfe_bench.errors import UsageError, check_one_of, check_range
from tfe_bench.models.convert.graph import Array
from tfe_bench.models.estimators import convergence
from tfe_bench.models.inference import service
from tfe_bench.models.inference.private import convert
from tfe_bench.models.training.penalties import LARGEST
from tfe_bench.models.training.trainable import trainable

WORKERS, OWNER = "workers", "owner"
# Default rows of a batch: adjusted so that all batches have one size.
_DEFAULT_BATCH = 256
# A deviation below this fraction of the largest value is the rounding of a constant.
_CONSTANT_TOLERANCE = 1e-9


class Unlearnable(UsageError, ValueError):
    """Rows, labels or weights that cannot be used for training; a ValueError for scikit-learn."""


class _DetachedCluster:
    """Placeholder for the open cluster of an estimator that was pickled."""

    def __repr__(self) -> str:
        return "<left behind by pickle>"


class PrivateEstimator(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Common part of all estimators: scaling, training, and outputs of the last layer.

    Attributes:
        mean_: mean of each column, float64.
        scale_: deviation of each column, float64.
        n_iter_: epochs of the training.
    """

    max_iter: int
    batch_size: int | str
    learning_rate_init: float | str
    momentum: float
    random_state: Any
    predict_on: str
    cluster: Any
    verbose: Any

    _layers: list[tuple[Array, Array]]

    def _store_hyperparameters(self, arguments: Mapping[str, Any]) -> None:
        """Set the arguments of the constructor, unchanged, as scikit-learn requires it."""
        for name in self._get_param_names():
            setattr(self, name, arguments[name])

    # ---- properties of a type of model

    def _hidden_widths(self) -> tuple[int, ...]:
        """Return the outputs of each hidden layer."""
        return ()

    def _hidden_activation(self) -> str | None:
        """Return Keras' name of the activation between layers."""
        return None

    def _penalty_factor(self, total: float) -> float:
        """Return the factor of squared weights in the mean loss, for samples of a total weight."""
        return 0.0

    def _build_optimizer(self, steps: int, max_curvature: float) -> Any:
        """Return Keras' optimizer for a number of steps.

        Args:
            max_curvature: upper bound of the loss's second derivative in any direction, for one
                layer.
        """
        raise NotImplementedError

    # ---- training

    def _train_model(
        self, x: Array, y: Array, weights: Array | None, loss: Any, outputs: int, curvature: float
    ) -> None:
        """Train from scratch, and set the attributes.

        Args:
            x, y: unscaled columns [n, columns], and targets in the form of `loss`.
            weights: weights of samples, [n], at any scale.
            curvature: largest second derivative of a row's loss by an output.
        """
        check_one_of("predict_on is", self.predict_on, (WORKERS, OWNER), operation="predict_on")
        if isinstance(self.max_iter, bool) or not isinstance(self.max_iter, (int, np.integer)):
            raise UsageError(
                f"Expected a number of epochs as max_iter. Received: {self.max_iter!r}.",
                code="wrong-type",
                operation="max_iter",
                received=self.max_iter,
            )
        check_range("max_iter", int(self.max_iter), 1)
        batch = self.batch_size
        if batch == "auto":
            batch = len(x) // math.ceil(len(x) / _DEFAULT_BATCH)
        if isinstance(batch, np.integer):
            batch = int(batch)
        if type(batch) is not int or not 1 <= batch <= len(x):
            raise Unlearnable(
                f"Expected 'auto' or 1 to the number of rows, {len(x)}, as batch_size. Received: "
                f"{self.batch_size!r}.",
                code="number-out-of-range",
                operation="batch_size",
                received=self.batch_size,
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        scales = _feature_column_scales(x)
        penalty = self._penalty_factor(float(len(x) if weights is None else weights.sum()))
        if not 0 <= penalty <= LARGEST:
            raise Unlearnable(
                f"Expected a penalty of at most {LARGEST:g} of the mean loss. Received: "
                f"{penalty:g}, from {len(x)} rows. Use a larger C, or a smaller alpha.",
                code="number-out-of-range",
                operation="penalty",
                received=penalty,
                expected=LARGEST,
            )
        model = self._build_network([x.shape[1], *self._hidden_widths(), outputs], seed, penalty)
        private = trainable(model)
        steps = int(self.max_iter) * (len(x) // batch)
        # Deviations are 1, so that the number of columns bounds the curvature in any direction.
        max_curvature = curvature * max(2.0, x.shape[1]) + 2 * penalty
        private.compile(self._build_optimizer(steps, max_curvature), loss)
        with _open_estimator_cluster(self.cluster) as cluster:
            private.fit(
                cluster,
                (x - scales[0]) / scales[1],
                y,
                batch_size=batch,
                epochs=int(self.max_iter),
                verbose=self.verbose,
                sample_weight=None if weights is None else weights / weights.mean(),
                seed=seed,
            )
        weight_arrays = model.get_weights()
        self.mean_, self.scale_ = scales
        self._layers = list(zip(weight_arrays[::2], weight_arrays[1::2], strict=True))
        self.n_iter_ = int(self.max_iter)
        self._check_converged((x - scales[0]) / scales[1], y, weights, penalty)

    def _check_converged(self, x: Array, y: Array, weights: Array | None, penalty: float) -> None:
        """Warn if the training stopped early, as far as the client can tell.

        Args:
            x, y, weights: scaled columns, targets and weights of samples, as used for training.
        """

    def _build_network(self, widths: list[int], seed: int, penalty: float = 0.0) -> Any:
        """Return the Keras model of layers of these widths, which ends in logits or numbers."""
        import keras

        l2 = keras.regularizers.L2(penalty) if penalty else None
        layers: list[Any] = [keras.Input((widths[0],))]
        last = len(widths) - 1
        for i, width in enumerate(widths[1:], 1):
            start = "zeros" if last == 1 else keras.initializers.GlorotUniform(seed=seed + i)
            hidden = None if i == last else self._hidden_activation()
            layers.append(
                keras.layers.Dense(width, hidden, kernel_initializer=start, kernel_regularizer=l2)
            )
        return keras.Sequential(layers)

    # ---- predictions

    def _predict_outputs(self, x: Any) -> Array:
        """Return logits or numbers of rows, float64 [n, outputs]."""
        check_is_fitted(self, "_layers")
        x = validate_data(self, x, dtype=np.float64, reset=False)
        check_one_of("predict_on is", self.predict_on, (WORKERS, OWNER), operation="predict_on")
        model = self._build_network([x.shape[1], *(len(b) for _, b in self._layers)], 0)
        model.set_weights([w for layer in self._layers for w in layer])
        private, scaled = convert(model), (x - self.mean_) / self.scale_
        if self.predict_on == OWNER:
            return np.asarray(private.plain(scaled))
        with _open_estimator_cluster(self.cluster) as cluster:
            outputs, _ = service.predict(cluster, private, scaled)
            return np.asarray(outputs)

    def _unscaled_layers(self) -> list[tuple[Array, Array]]:
        """Return kernel and bias of each layer, float64, the first for unscaled columns."""
        if not hasattr(self, "_layers"):
            raise AttributeError(f"This {type(self).__name__} is not fitted yet.")
        layers = [(w.astype(np.float64), b.astype(np.float64)) for w, b in self._layers]
        kernel = layers[0][0] / self.scale_[:, None]
        return [(kernel, layers[0][1] - self.mean_ @ kernel), *layers[1:]]

    # ---- interface of scikit-learn

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # the rounding of fixed point is random
        return tags

    def __getstate__(self) -> Any:
        """Return the state without an open cluster, which holds this client's key."""
        base_state: Any = super().__getstate__()
        state: dict[str, Any] = dict(base_state)
        if isinstance(state.get("cluster"), Client):
            state["cluster"] = _DetachedCluster()
        return state


class Classifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """Common part of classifiers: classes with any names.

    Attributes:
        classes_: the labels, in order.
    """

    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on private rows.

        Args:
            X: numbers [rows, columns], an array or a DataFrame.
            y: labels [rows], of any sortable type.
            sample_weight: weights of samples, [rows], at any scale; as private as labels.

        Raises:
            ValueError: NaN, sparse matrices, other shapes, a single class, or weights that are all
                0.
            UsageError, RangeError, ClusterError: as Trainable.fit.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        classes, numbers = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise Unlearnable(
                f"{type(self).__name__} requires 2 or more classes. Received: rows of one class.",
                code="class-count-mismatch",
                received=1,
            )
        weights = _validate_sample_weights(sample_weight, X)
        if self.class_weight is not None:
            base_weights = np.ones(len(X)) if weights is None else weights
            if isinstance(self.class_weight, str) and self.class_weight == "balanced":
                counts = np.bincount(numbers, base_weights)
                class_factors = (counts.sum() / len(counts) / np.where(counts > 0, counts, 1.0))[
                    numbers
                ]
            else:
                class_factors = compute_sample_weight(self.class_weight, y)
            weights = _validate_sample_weights(base_weights * class_factors, X)
        import keras

        if len(classes) == 2:
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
            self._train_model(X, numbers, weights, loss, 1, 0.25)
        else:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self._train_model(X, numbers, weights, loss, len(classes), 0.5)
        self.classes_ = classes
        return self

    def decision_function(self, X: Any) -> Array:
        """Return logits: [rows] of the second of two classes, otherwise [rows, classes]."""
        outputs = self._predict_outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, [rows, classes], in the order of `classes_`."""
        return convergence.class_probabilities(self._predict_outputs(X))

    def predict(self, X: Any) -> Array:
        """Return the likeliest label of each row, [rows]."""
        return self._name_classes(self._predict_outputs(X))

    def predict_frame(self, X: Any) -> Any:
        """Return a DataFrame with X's index: the label and the class probabilities of each row."""
        import pandas

        outputs = self._predict_outputs(X)
        columns = [str(c) for c in self.classes_]
        frame = pandas.DataFrame(
            convergence.class_probabilities(outputs), getattr(X, "index", None), columns
        )
        frame.insert(0, "prediction", self._name_classes(outputs), allow_duplicates=True)
        return frame

    def _name_classes(self, outputs: Array) -> Array:
        second = outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(1)
        return np.asarray(self.classes_[np.asarray(second, np.intp)])


class Regressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Common part of regressors: a number of any unit.

    Attributes:
        target_mean_: mean of the number to be learned.
        target_scale_: its deviation.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on private rows.

        Args:
            X: numbers [rows, columns], an array or a DataFrame.
            y: numbers [rows].
            sample_weight: weights of samples, [rows], at any scale; as private as labels.

        Raises:
            ValueError: NaN, sparse matrices, other shapes, or weights that are all 0.
            UsageError, RangeError, ClusterError: as Trainable.fit.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = np.asarray(y, np.float64)
        weights = _validate_sample_weights(sample_weight, X)
        [mean], [scale] = _feature_column_scales(y[:, None])
        self._train_model(X, (y - mean) / scale, weights, "mean_squared_error", 1, 2.0)
        self.target_mean_, self.target_scale_ = mean, scale
        return self

    def predict(self, X: Any) -> Array:
        """Return the number of each row, [rows]."""
        return np.asarray(self._predict_outputs(X)[:, 0] * self.target_scale_ + self.target_mean_)

    def predict_frame(self, X: Any) -> Any:
        """Return a DataFrame with X's index and the column "prediction"."""
        import pandas

        return pandas.DataFrame({"prediction": self.predict(X)}, getattr(X, "index", None))


def check_positive_hyperparameter(name: str, value: Any, maximum: float) -> float:
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= maximum:
        raise Unlearnable(
            f"Expected a number above 0, at most {maximum:g}, as {name}. Received: {value!r}.",
            code="number-out-of-range",
            operation=name,
            received=value,
            expected=maximum,
        )
    return float(value)


@contextmanager
def _open_estimator_cluster(source: Any) -> Iterator[Any]:
    """Provide a cluster for one call: an open one, one of a file, or three local workers."""
    if isinstance(source, Client):
        yield source
    elif source is None or isinstance(source, (str, Path)):
        with LocalCluster() if source is None else Cluster(source) as cluster:
            yield cluster
    elif isinstance(source, _DetachedCluster):
        raise UsageError(
            "This estimator was pickled without its open cluster. Set one: "
            "set_params(cluster=...), or predict_on='owner' for predictions.",
            code="cluster-detached",
            operation="cluster",
        )
    else:
        raise UsageError(
            "Expected None, a LocalCluster, a Cluster, a Client or the path of a cluster.toml "
            f"as cluster. Received: {type(source).__name__}.",
            code="wrong-type",
            operation="cluster",
            received=type(source).__name__,
        )


def _feature_column_scales(x: Array) -> tuple[Array, Array]:
    """Return mean and deviation of each column; the deviation of a constant column is 1."""
    size = np.abs(x).max(0)
    size[size == 0] = 1.0  # squares of very large or very small numbers overflow or underflow
    mean, spread = (x / size).mean(0), (x / size).std(0)
    spread[spread < _CONSTANT_TOLERANCE] = 1.0
    return mean * size, spread * size


def _validate_sample_weights(sample_weight: Any, x: Array) -> Array | None:
    """Return weights of samples, [n].

    Raises:
        ValueError: the shape differs, weights are negative, or all are 0.
    """
    if sample_weight is None:
        return None
    weights: Array = _check_sample_weight(
        sample_weight, x, dtype=np.float64, ensure_non_negative=True
    )
    if not 0 < weights.sum() < math.inf:
        raise Unlearnable(
            "Expected sample weights with a positive, finite sum. Received: weights that are "
            "all 0, or too large to be added.",
            code="number-out-of-range",
            operation="sample_weight",
        )
    return weights
