"""What kinds read layers of Keras with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.kinds.layer import Array, Shape


class Unfit(Exception):
    """Why a layer cannot be converted."""


@dataclass(frozen=True, eq=False)
class Call:
    """A layer of Keras, called once in a model.

    Attributes:
        layer: Keras' own.
        name: for the layer that it becomes.
        inputs: names of the values that it takes.
        shapes: of these, without the batch.
        shape: of its value, without the batch.
    """

    layer: Any
    name: str
    inputs: list[str]
    shapes: list[Shape]
    shape: Shape

    @property
    def kind(self) -> str:
        """The name of its class."""
        return type(self.layer).__name__


class Reader(Protocol):
    """What a layer is written to.

    Attributes:
        rank: with the batch, of the value of the layer that is read.
        training: whether layers are read as they are in training, not in predictions.
        private: names of layers whose options are statistics of rows.
    """

    rank: int
    training: bool
    private: set[str]

    def unique(self, name: str) -> str:
        """The name, with a number where it is taken."""

    def emit(
        self, name: str, op: str, given: list[str], weights: dict[str, Any] | None = None, **o: Any
    ) -> str:
        """Adds a layer; returns its name."""

    def activate(self, function: Any, given: str, name: str) -> str:
        """Adds an activation function behind a value."""

    def activated(self, layer: Any, name: str) -> str:
        """Adds the activation that a layer has as an argument."""


def array_of(layer: str, name: str, value: Any) -> Array:
    """Weights of a layer of Keras as floating-point numbers.

    Raises:
        Unfit: they are no such numbers.
        RangeError: NaN or infinity among them.
    """
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise Unfit(f"its weights are {array.dtype}")
    array = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
    if not np.isfinite(array).all():
        raise RangeError(
            f"Layer {layer!r} has weights {name!r} that are NaN or infinite. Received: "
            f"{int((~np.isfinite(array)).sum())} of {array.size}. Train it again, or load others."
        )
    return array


def channels_last(layer: Any) -> None:
    """Refuses images with the channels first."""
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        raise Unfit(f"data_format {layer.data_format!r}; only channels_last is supported")


def last_axis(call: Call) -> None:
    """Refuses a normalization along another axis than the last."""
    axis = call.layer.axis
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    if len(axes) != 1 or axes[0] not in (-1, len(call.shapes[0])):
        raise Unfit(f"axis {axis}; only the last is supported")


def axis_of(axis: Any, rank: int) -> int:
    """An axis counted from the front, the batch being 0."""
    if not isinstance(axis, int):
        raise Unfit(f"axis {axis}; one axis is supported")
    found = axis + rank if axis < 0 else axis
    if found < 1:
        raise Unfit("axis 0 is the batch")
    return found
