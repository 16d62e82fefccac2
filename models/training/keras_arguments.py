"""Checks of the arguments of `compile` and `fit`: supported ones, and those that go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfe_bench.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from tfe_bench.models.training.callbacks import TrainingCallbacks
    from tfe_bench.models.training.losses.loss import Loss

# Unsupported arguments of Keras: the neutral value, and what to use instead.
UNSUPPORTED_FIT: Mapping[str, tuple[Any, str]] = {
    "steps_per_epoch": (None, "an epoch goes through all rows; steps=N ends the training earlier"),
    "validation_steps": (None, "all of validation_data is evaluated on"),
    "validation_batch_size": (None, "the workers cut validation_data as they have room"),
    "validation_freq": (1, "validation_data is evaluated on after every epoch"),
}
UNSUPPORTED_COMPILE: Mapping[str, tuple[Any, str]] = {
    "loss_weights": (None, "a model that is trained has one output"),
    "weighted_metrics": (None, "an evaluation has no weights"),
    "run_eagerly": (False, "the workers run graphs"),
    "steps_per_execution": (1, "the workers take one step after the other"),
    "jit_compile": ("auto", "the workers run graphs"),
    "auto_scale_loss": (True, "gradients are of one fixed point"),
}

# Metrics that an evaluation provides: for classes, and for numbers.
_METRICS = (
    (
        "accuracy",
        "acc",
        "binary_accuracy",
        "categorical_accuracy",
        "sparse_categorical_accuracy",
    ),
    ("mse", "MSE", "mean_squared_error"),
)
_ROWS = "Expected x and y, or rows_of, or columns_of with labels_of in fit."


def reject_keras_arguments(
    method: str,
    arguments: Mapping[str, Any],
    unsupported: Mapping[str, tuple[Any, str]],
    known_names: Sequence[str],
) -> None:
    """Reject arguments that are unknown, or that Keras has and private training does not support.

    Raises:
        UsageError: names the first such argument, and what to use instead.
    """
    for name, value in arguments.items():
        if name not in unsupported:
            raise UsageError(
                f"Unknown argument {name!r} of {method}.{did_you_mean(name, known_names)}",
                code="unknown-option",
                operation=method,
                received=name,
            )
        neutral, reason = unsupported[name]
        if value is not None and value != neutral:
            raise UsageError(
                f"The argument {name} of {method} is not supported: {reason}.",
                code="unsupported-argument",
                operation=method,
                received=name,
            )


def parse_keras_metrics(metrics: Any, loss: Loss) -> list[Any]:
    """Return the metrics of compile as a list.

    Raises:
        UsageError: an evaluation does not provide one of them for this loss.
    """
    requested = [metrics] if isinstance(metrics, str) else list(metrics or ())
    names = _METRICS[not loss.counts_answers]
    if any(not isinstance(m, str) or m not in names for m in requested):
        raise UsageError(
            f"Expected the metric {names[0]} for {loss.name}. Received: {str(requested)[:80]}.",
            code="unsupported-metric",
            operation=loss.name,
            received=str(requested)[:80],
        )
    return requested


def check_fit_rows(
    x: Any, y: Any, rows_of: Any, columns_of: Any, labels_of: Any, has_client_options: bool
) -> None:
    """Check that fit gets the rows of this client or those of owners, and not both.

    Args:
        has_client_options: whether an option is set that requires this client's rows.

    Raises:
        UsageError: the arguments exclude each other, or one is missing.
    """
    if rows_of is None and columns_of is None:
        if x is None or y is None:
            raise UsageError(_ROWS, code="missing-argument", operation="fit")
        return
    if x is not None or y is not None or (rows_of is not None) == (columns_of is not None):
        raise UsageError(_ROWS, code="conflicting-options", operation="fit")
    if columns_of is not None and labels_of is None:
        raise UsageError(
            "columns_of requires labels_of: the data set with the labels.",
            code="missing-argument",
            operation="labels_of",
        )
    if has_client_options:
        raise UsageError(
            "class_weight, sample_weight and validation_split require x and y. For owners' rows, "
            "holdout=N keeps N rows for evaluation.",
            code="conflicting-options",
            operation="rows_of",
        )


def check_validation_data(validation_data: Any) -> None:
    """Check that validation data are a pair.

    Raises:
        UsageError: they are not (x, y).
    """
    if not isinstance(validation_data, (tuple, list)) or len(validation_data) != 2:
        raise UsageError(
            "Expected (x, y) without weights as validation_data.",
            code="wrong-type",
            operation="validation_data",
        )


def check_callbacks(
    callbacks: TrainingCallbacks, checkpoint: str | None, deploy: str | None
) -> None:
    """Check that callbacks go with a checkpoint and with deployment.

    Raises:
        UsageError: they do not.
    """
    if callbacks.deferred and checkpoint is not None:
        raise UsageError(
            "Expected a checkpoint or callbacks: a training with a checkpoint may take several "
            "jobs, and callbacks serve one job. Received: both. Only LearningRateScheduler "
            "supports a checkpoint.",
            code="conflicting-options",
            operation="callbacks",
        )
    if callbacks.snapshots and deploy is not None:
        raise UsageError(
            "Callbacks that use weights require weights that leave the workers. Omit deploy.",
            code="conflicting-options",
            operation="deploy",
        )
