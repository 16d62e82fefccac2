"""Arguments of Keras that `fit` and `compile` of a private training do not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.errors import UsageError, did_you_mean

# Keras' arguments that are not taken: what says nothing, and what to use instead.
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
    """Refuses arguments that are unknown, or Keras' and not taken.

    Raises:
        UsageError: naming the first one, and what to use.
    """
    for name, value in arguments.items():
        if name not in unsupported:
            raise UsageError(
                f"{method} takes no argument {name!r}.{did_you_mean(name, known_names)}"
            )
        neutral, reason = unsupported[name]
        if value is not None and value != neutral:
            raise UsageError(f"{method} takes no {name}: {reason}.")
