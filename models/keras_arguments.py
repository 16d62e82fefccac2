"""Arguments of Keras that `fit` and `compile` of a private training do not support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.errors import UsageError, did_you_mean

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


def reject_arguments(
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
