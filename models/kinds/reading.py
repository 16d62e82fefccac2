"""What kinds read layers of Keras with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.kinds.layer import Array, LayerSpec, Shape


class UnsupportedLayer(Exception):
    """Why a layer cannot be converted."""


@dataclass(frozen=True)
class CallValue:
    """A value that a layer is called with.

    Attributes:
        shape: without the batch.
        mask: the name of the mask that comes with it in Keras, or "".
    """

    name: str
    shape: Shape
    mask: str = ""


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A layer of Keras, called once in a model.

    Attributes:
        layer: Keras' own.
        name: for the layer that it becomes.
        inputs: names of the values that it takes.
        shapes: of these, without the batch.
        shape: of its value, without the batch.
        arguments: of kinds that take them by name, what it is called with: `Given` values, lists
            of them, and public ones.
        others: for names of what the layer gives besides its first value, in order.
        masks: names of the masks that come with the inputs in Keras, "" where none does.
    """

    layer: Any
    name: str
    inputs: list[str]
    shapes: list[Shape]
    shape: Shape
    arguments: Mapping[str, Any] = field(default_factory=dict)
    other_outputs: list[str] = field(default_factory=list)
    masks: tuple[str, ...] = ()

    @property
    def mask(self) -> str:
        """That of the first input, or ""."""
        return self.masks[0] if self.masks else ""

    @property
    def class_name(self) -> str:
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
        inputs: names of the model's inputs.
        tokens: of those that tables are looked up by, how many rows these have.
        masks: of those that hold 0 and 1.
        mask: that of the value of the layer that is read, where its kind says so (Kind.masks).
        unmasked: names of values that lose their masks, as Keras' MultiHeadAttention has it.
    """

    training = False

    def __init__(
        self, keras: Any, kinds: Mapping[type, Any], functions: Mapping[Any, tuple[str, Any]]
    ) -> None:
        self.keras, self.kinds, self.functions = keras, kinds, functions
        self.layers: list[LayerSpec] = []
        self.unfit: list[str] = []
        self.used_names: set[str] = set()
        self.rank = 0
        self.private: set[str] = set()
        self.arrays: dict[int, tuple[Any, Array]] = {}
        self.inputs: frozenset[str] = frozenset()
        self.tokens: dict[str, int] = {}
        self.masks: dict[str, None] = {}
        self.mask = ""
        self.unmasked: set[str] = set()
        self.token_tests: dict[str, tuple[str, int, bool]] = {}
        self._tables: set[str] = set()

    def make_unique(self, name: str) -> str:
        """The name, with a number where a layer is called again."""
        candidate, number = name, 2
        while candidate in self.used_names:
            candidate, number = f"{name}#{number}", number + 1
        self.used_names.add(candidate)
        return candidate

    def add_layer(
        self, name: str, op: str, inputs: list[str], weights: dict[str, Any] | None = None, **o: Any
    ) -> str:
        """Adds a layer; returns its name."""
        arrays = {}
        for weight_name, variable in (weights or {}).items():
            # (a layer that is called twice has one array: it is stored and sent once)
            if id(variable) not in self.arrays:
                self.arrays[id(variable)] = variable, read_weights(name, weight_name, variable)
            arrays[weight_name] = self.arrays[id(variable)][1]
        self.layers.append(LayerSpec(name, op, tuple(inputs), o, arrays))
        return name

    def add_lookup(self, name: str, input_name: str, table: Any) -> str:
        """Adds a layer of the rows of a table at numbers that whoever predicts gives.

        Raises:
            Unfit: the numbers are computed, or another table has another number of rows.
        """
        count = int(table.shape[0])
        if input_name not in self.inputs:
            raise UnsupportedLayer(
                "of numbers that the model computes; those of an input are supported"
            )
        if self.tokens.setdefault(input_name, count) != count:
            raise UnsupportedLayer(
                f"of {count} rows, where another table has {self.tokens[input_name]}"
            )
        self._tables.add(name)
        return self.add_layer(name, "dense", [input_name], {"kernel": table})

    def add_token_test(
        self, name: str, input_name: str, shape: Shape, number: int, inverted: bool
    ) -> str:
        """Adds whether numbers of an input are this one; if it is of tokens, a column of its rows.

        Args:
            inverted: whether they are not.
        """
        self.token_tests[name] = input_name, number, inverted
        return self.add_layer(name, "reshape", [input_name], None, shape=list(shape))

    def _resolve_token_tests(self) -> None:
        """Now that it is known which inputs tables are looked up by."""
        layers: list[LayerSpec] = []
        for x in self.layers:
            input_name, number, inverted = self.token_tests.get(x.name, ("", 0, False))
            if not input_name:
                layers.append(x)
                continue
            if input_name in self.tokens:
                layers += self._select_column(x, number, inverted)
                continue
            difference = self.make_unique(f"{x.name}/apart")
            layers.append(
                LayerSpec(difference, "rescale", (input_name,), {"scale": 1.0, "offset": -number})
            )
            layers.append(LayerSpec(x.name, "zero", (difference,), {"inverted": inverted}))
        self.layers = layers

    def _select_column(self, x: LayerSpec, number: int, inverted: bool) -> list[LayerSpec]:
        (input_name,), shape, count = x.inputs, x.options["shape"], self.tokens[x.inputs[0]]
        if number >= count:  # (nor is it, as the client's numbers are below)
            raise UnsupportedLayer(f"compares tokens from 0 to {count - 1} with {number}")
        sides = [*([0, 0] for _ in shape), [number, count - 1 - number]]
        column, flat = (self.make_unique(f"{x.name}/{part}") for part in ("column", "flat"))
        self._tables.add(column)
        column_layer = LayerSpec(column, "crop", (input_name,), {"sides": sides})
        if not inverted:
            return [column_layer, LayerSpec(x.name, "reshape", (column,), {"shape": shape})]
        inverted_column = LayerSpec(x.name, "rescale", (flat,), {"scale": -1.0, "offset": 1.0})
        return [
            column_layer,
            LayerSpec(flat, "reshape", (column,), {"shape": shape}),
            inverted_column,
        ]

    def check_tokens(self) -> None:
        """Says what else takes numbers that tables are looked up by."""
        try:
            self._resolve_token_tests()
        except UnsupportedLayer as error:
            self.unfit.append(str(error))
        self.unfit += [
            f"{layer.op} {layer.name!r} (takes numbers of tokens, which tables alone do)"
            for layer in self.layers
            if layer.name not in self._tables and not self.tokens.keys().isdisjoint(layer.inputs)
        ]

    def convert_inner_layer(self, layer: Any, call: LayerCall) -> str:
        """Writes a layer that another one calls, in place of the call of that one.

        Raises:
            Unfit: why it cannot be converted.
        """
        raise NotImplementedError

    def add_layer_activation(self, layer: Any, name: str) -> str:
        """Adds the activation that a layer has as an argument."""
        function = getattr(layer, "activation", None)
        return self.add_activation(function, name, name)

    def add_activation(self, function: Any, input_name: str, name: str) -> str:
        """Adds an activation function behind a value."""
        if function is None:
            return input_name
        if isinstance(function, self.keras.layers.Layer):
            kind_of_layer = self.kinds.get(type(function))
            if kind_of_layer is None:
                raise UnsupportedLayer(f"its activation is a {type(function).__name__}")
            inner_name = self.make_unique(f"{name}/act")
            value: str = kind_of_layer.convert_layer(
                self, LayerCall(function, inner_name, [input_name], [()], ())
            )
            return value
        plain_function = function.func if isinstance(function, functools.partial) else function
        entry = self.functions.get(plain_function)
        if entry is None:
            text = getattr(plain_function, "__name__", type(plain_function).__name__)
            raise UnsupportedLayer(f"its activation is {text!r}")
        text, kind = entry
        if kind.is_identity:
            return input_name
        arguments = _bind_arguments(function)
        output: str = kind.convert_activation(
            self, input_name, self.make_unique(f"{name}/{kind.op}"), text, arguments
        )
        return output


def _bind_arguments(function: Any) -> dict[str, Any]:
    """What a function of keras.activations, or a functools.partial of one, adds to its value."""
    positional, named, plain_function = (), {}, function
    if isinstance(function, functools.partial):
        positional, named, plain_function = function.args, function.keywords, function.func
    if positional:
        raise UnsupportedLayer(f"its activation has {len(positional)} arguments without a name")
    try:
        bound = inspect.signature(plain_function).bind(None, **named)
    except TypeError as error:
        raise UnsupportedLayer(f"its activation does not fit: {error}") from None
    bound.apply_defaults()
    _, *others = bound.arguments.items()
    return {name: _to_json_value(name, value) for name, value in others}


def _to_json_value(name: str, value: Any) -> Any:
    """A public argument as JSON holds it."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "fiub":
        return array.item()
    raise UnsupportedLayer(f"its activation has {name}={value!r}; a number is supported")


def read_weights(layer: str, name: str, value: Any) -> Array:
    """Weights of a layer of Keras as floating-point numbers.

    Raises:
        Unfit: they are no such numbers.
        RangeError: NaN or infinity among them.
    """
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise UnsupportedLayer(f"its weights are {array.dtype}")
    array = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
    if not np.isfinite(array).all():
        raise RangeError(
            f"Layer {layer!r} has weights {name!r} that are NaN or infinite. Received: "
            f"{int((~np.isfinite(array)).sum())} of {array.size}. Train it again, or load others."
        )
    return array


def canonicalize_axis(axis: Any, rank: int) -> int:
    """An axis counted from the front, the batch being 0."""
    if not isinstance(axis, int):
        raise UnsupportedLayer(f"axis {axis}; one axis is supported")
    positive_axis = axis + rank if axis < 0 else axis
    if positive_axis < 1:
        raise UnsupportedLayer("axis 0 is the batch")
    return positive_axis
