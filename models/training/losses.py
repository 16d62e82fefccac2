"""Losses: which, how the owner of the labels writes them, and the public factor of a gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError, UsageError, check_one_of
from tfe_bench.models.graph import Array

CATEGORICAL, BINARY, SQUARED = (
    "categorical_crossentropy",
    "binary_crossentropy",
    "mean_squared_error",
)
SPARSE = "sparse_categorical_crossentropy"
NAMES = (CATEGORICAL, SPARSE, BINARY, SQUARED)
# What a loss is computed from, when the model ends in it: training begins at the logits.
FOLDED = {CATEGORICAL: "softmax", SPARSE: "softmax", BINARY: "sigmoid"}
_ALIASES = {"mse": SQUARED}
_UNUSED: Mapping[str, Any] = {
    "label_smoothing": 0.0,
    "axis": -1,
    "ignore_class": None,
    "reduction": "sum_over_batch_size",
}


@dataclass(frozen=True)
class Loss:
    """A loss, averaged over the batch as Keras does.

    Attributes:
        name: of NAMES; a sparse one takes labels as integers.

    Raises:
        UsageError: another name.
    """

    name: str

    def __post_init__(self) -> None:
        check_one_of("Losses are", self.name, NAMES)

    @property
    def categorical(self) -> bool:
        """Whether one class of several is right."""
        return self.name in (CATEGORICAL, SPARSE)

    def answers(self, shape: tuple[int, ...]) -> int:
        """How many answers a sample has, of an output of a shape: the loss is their mean."""
        return math.prod(shape[:-1] if self.categorical else shape)

    def factor(self, shape: tuple[int, ...]) -> Fraction:
        """What the gradient of one sample has before output - target: public.

        Args:
            shape: of the output.
        """
        return Fraction(2 if self.name == SQUARED else 1, self.answers(shape))


def of_keras(given: Any) -> tuple[Loss, bool]:
    """The loss, and whether it is computed from logits, of a Keras loss or of its name.

    Raises:
        UsageError: another loss, or options that are not supported, all of them named.
    """
    if isinstance(given, Loss):
        return given, True
    if isinstance(given, str):
        return Loss(_ALIASES.get(given, given)), False
    import keras

    kinds = {
        keras.losses.CategoricalCrossentropy: CATEGORICAL,
        keras.losses.SparseCategoricalCrossentropy: SPARSE,
        keras.losses.BinaryCrossentropy: BINARY,
        keras.losses.MeanSquaredError: SQUARED,
    }
    functions = {getattr(keras.losses, name): name for name in NAMES}
    if type(given) not in kinds:
        if callable(given) and given in functions:
            return Loss(functions[given]), False
        raise UsageError(
            f"Losses are {', '.join(k.__name__ for k in kinds)}, or their names. Received: "
            f"{getattr(given, '__name__', type(given).__name__)}."
        )
    config = dict(given.get_config())
    config.pop("name", None)
    config.pop("dtype", None)
    logits = bool(config.pop("from_logits", False))
    used = [k for k, v in config.items() if k not in _UNUSED or _UNUSED[k] != v]
    if used:
        raise UsageError(
            f"{type(given).__name__} has options that are not supported: {', '.join(used)}. "
            "Leave them out."
        )
    return Loss(kinds[type(given)]), logits


def targets(loss: Loss, shape: tuple[int, ...], labels: Any, what: str = "labels") -> Array:
    """Labels as the owner shares them: float64 [n, *shape], one-hot for classes.

    Args:
        shape: of the model's output, without the batch.
        labels: integers [n] or [n, 1] for a sparse loss; else as Keras takes them, [n, *shape]
            (or [n] for one output).
        what: the labels are called in errors.

    Raises:
        UsageError: another shape.
        RangeError: NaN, or classes and probabilities out of their range; the first row is named.
    """
    array = np.asarray(labels)
    if array.dtype.kind not in "fiub":
        raise UsageError(f"The {what} are numbers. Received: {array.dtype}.")
    if loss.name == SPARSE:
        return _one_hot(array, shape, what)
    wanted = list(shape)
    if array.ndim == 1 and wanted == [1]:
        array = array[:, None]
    if array.ndim != len(shape) + 1 or list(array.shape[1:]) != wanted or not len(array):
        raise UsageError(
            f"The {what} are [rows, {', '.join(map(str, wanted))}]. Received: "
            f"{list(array.shape)}. Use sparse_categorical_crossentropy for classes as integers."
        )
    array = array.astype(np.float64)
    rows = array.reshape(len(array), -1)
    bad = ~np.isfinite(rows).all(1)
    if loss.name != SQUARED:
        bad |= ((rows < 0) | (rows > 1)).any(1)
    if loss.categorical:
        bad |= np.abs(array.sum(-1) - 1).reshape(len(array), -1).max(1) > 1e-3
    _refuse(bad, what, "one-hot rows" if loss.categorical else "numbers the loss takes")
    return array


def _one_hot(array: Array, shape: tuple[int, ...], what: str) -> Array:
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
    _refuse(bad.reshape(len(array), -1).any(1), what, f"classes 0 to {classes - 1}")
    return np.eye(classes)[array.astype(np.int64)]


def _refuse(bad: Any, what: str, wanted: str) -> None:
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise RangeError(
            f"The {what} are {wanted}. Received: {int(bad.sum())} of {len(bad)} rows that are not, "
            f"the first of them row {first} (from 0)."
        )
