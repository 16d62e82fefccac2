"""What kinds read layers of Keras with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.kinds.layer import Array, Layer, Shape


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


class Reader:
    """What a layer is written to.

    Args:
        kinds, functions: what reads Keras' layers and activations (registry).

    Attributes:
        layers: that were written.
        unfit: what cannot be converted, in words.
        rank: with the batch, of the value of the layer that is read.
        training: whether layers are read as they are in training, not in predictions.
        private: names of layers whose options are statistics of rows.
    """

    training = False

    def __init__(
        self, keras: Any, kinds: Mapping[type, Any], functions: Mapping[Any, tuple[str, Any]]
    ) -> None:
        self.keras, self.kinds, self.functions = keras, kinds, functions
        self.layers: list[Layer] = []
        self.unfit: list[str] = []
        self.taken: set[str] = set()
        self.rank = 0
        self.private: set[str] = set()
        self.arrays: dict[int, tuple[Any, Array]] = {}

    def unique(self, name: str) -> str:
        """The name, with a number where a layer is called again."""
        found, number = name, 2
        while found in self.taken:
            found, number = f"{name}#{number}", number + 1
        self.taken.add(found)
        return found

    def emit(
        self, name: str, op: str, given: list[str], weights: dict[str, Any] | None = None, **o: Any
    ) -> str:
        """Adds a layer; returns its name."""
        arrays = {}
        for own, variable in (weights or {}).items():
            # (a layer that is called twice has one array: it is stored and sent once)
            if id(variable) not in self.arrays:
                self.arrays[id(variable)] = variable, array_of(name, own, variable)
            arrays[own] = self.arrays[id(variable)][1]
        self.layers.append(Layer(name, op, tuple(given), o, arrays))
        return name

    def within(self, layer: Any, call: Call) -> str:
        """Writes a layer that another one calls, in place of the call of that one.

        Raises:
            Unfit: why it cannot be converted.
        """
        raise NotImplementedError

    def activated(self, layer: Any, name: str) -> str:
        """Adds the activation that a layer has as an argument."""
        function = getattr(layer, "activation", None)
        return self.activate(function, name, name)

    def activate(self, function: Any, given: str, name: str) -> str:
        """Adds an activation function behind a value."""
        if function is None:
            return given
        if isinstance(function, self.keras.layers.Layer):
            read = self.kinds.get(type(function))
            if read is None:
                raise Unfit(f"its activation is a {type(function).__name__}")
            own = self.unique(f"{name}/act")
            value: str = read.read(self, Call(function, own, [given], [()], ()))
            return value
        bare = function.func if isinstance(function, functools.partial) else function
        known = self.functions.get(bare)
        if known is None:
            text = getattr(bare, "__name__", type(bare).__name__)
            raise Unfit(f"its activation is {text!r}")
        text, kind = known
        if kind.nothing:
            return given
        arguments = _arguments(function)
        found: str = kind.activate(self, given, self.unique(f"{name}/{kind.op}"), text, arguments)
        return found


def _arguments(function: Any) -> dict[str, Any]:
    """What a function of keras.activations, or a functools.partial of one, adds to its value."""
    positional, named, bare = (), {}, function
    if isinstance(function, functools.partial):
        positional, named, bare = function.args, function.keywords, function.func
    if positional:
        raise Unfit(f"its activation has {len(positional)} arguments without a name")
    try:
        bound = inspect.signature(bare).bind(None, **named)
    except TypeError as error:
        raise Unfit(f"its activation does not fit: {error}") from None
    bound.apply_defaults()
    _, *others = bound.arguments.items()
    return {name: _plain(name, value) for name, value in others}


def _plain(name: str, value: Any) -> Any:
    """A public argument as JSON holds it."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "fiub":
        return array.item()
    raise Unfit(f"its activation has {name}={value!r}; a number is supported")


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


def axis_of(axis: Any, rank: int) -> int:
    """An axis counted from the front, the batch being 0."""
    if not isinstance(axis, int):
        raise Unfit(f"axis {axis}; one axis is supported")
    found = axis + rank if axis < 0 else axis
    if found < 1:
        raise Unfit("axis 0 is the batch")
    return found
