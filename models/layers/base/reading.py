"""Helpers with which kinds convert Keras layers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.layers.base import renamed
from tfe_bench.models.layers.base.layer import Array, LayerSpec, Shape


class UnsupportedLayer(Exception):
    """A layer that cannot be converted; the text states the reason."""


@dataclass(frozen=True)
class CallValue:
    """A value that a layer is called with.

    Attributes:
        shape: shape without the batch.
        mask: the name of its mask in Keras, or "".
    """

    name: str
    shape: Shape
    mask: str = ""


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A Keras layer, called once in a model.

    Attributes:
        layer: the object of Keras.
        name: name for the converted layer.
        inputs: names of the input values.
        shapes: their shapes, without the batch.
        shape: shape of its output, without the batch.
        arguments: for kinds with named arguments, the call's arguments: `CallValue` objects, lists
            of them, and public values.
        other_outputs: collects names of the outputs after the first one, in order.
        masks: names of the masks of the inputs in Keras, "" for an input without a mask.
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
        """Mask of the first input, or ""."""
        return self.masks[0] if self.masks else ""

    @property
    def class_name(self) -> str:
        """Name of the Keras class."""
        return type(self.layer).__name__


class Reader:
    """Collects the layers of a converted model.

    Args:
        kinds, functions: the kinds for Keras layers and activations (registry).

    Attributes:
        layers: the layers added so far.
        unfit: descriptions of the parts that cannot be converted.
        rank: rank with the batch of the output of the current layer.
        training: whether layers are converted in training form, not for predictions.
        private: names of layers whose options are statistics of rows.
        inputs: names of the model's inputs.
        tokens: the number of table rows for inputs that are looked up in tables.
        masks: inputs that hold 0 and 1.
        mask: mask of the current layer's output, set by kinds that handle masks
            (Kind.handles_masks).
        unmasked: names of values that lose their masks, as in Keras' MultiHeadAttention.
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
        """Return the name, with a number if it is in use."""
        candidate, number = name, 2
        while candidate in self.used_names:
            candidate, number = f"{name}#{number}", number + 1
        self.used_names.add(candidate)
        return candidate

    def add_layer(
        self, name: str, op: str, inputs: list[str], weights: dict[str, Any] | None = None, **o: Any
    ) -> str:
        """Add a layer; returns its name."""
        arrays = {}
        for weight_name, variable in (weights or {}).items():
            # (a layer that is called twice shares one array, stored and sent once)
            if id(variable) not in self.arrays:
                self.arrays[id(variable)] = variable, read_weights(name, weight_name, variable)
            arrays[weight_name] = self.arrays[id(variable)][1]
        self.layers.append(LayerSpec(name, op, tuple(inputs), o, arrays))
        return name

    def add_lookup(self, name: str, input_name: str, table: Any) -> str:
        """Add a layer that looks up rows of a table; the client of the prediction chooses the rows.

        Raises:
            UnsupportedLayer: the model computes the row numbers, or another table for the same
                input has another number of rows.
        """
        count = int(table.shape[0])
        if input_name not in self.inputs:
            raise UnsupportedLayer(
                "of numbers that the model computes; numbers of an input are supported"
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
        """Add the test whether the numbers of an input equal a number.

        For an input of tokens this selects a column of its one-hot rows.

        Args:
            inverted: whether to test for inequality.
        """
        self.token_tests[name] = input_name, number, inverted
        return self.add_layer(name, "reshape", [input_name], None, shape=list(shape))

    def _resolve_token_tests(self) -> None:
        """Resolve token tests once all table look-ups are known."""
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
        if number >= count:  # (never equal, as the client's numbers are below count)
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
        """Record layers other than tables that use token numbers."""
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
        """Convert a layer that a wrapper layer calls, in place of the wrapper's call.

        Raises:
            UnsupportedLayer: it cannot be converted; the text states the reason.
        """
        raise NotImplementedError

    def add_layer_activation(self, layer: Any, name: str) -> str:
        """Add the activation that a layer has as an argument."""
        function = getattr(layer, "activation", None)
        return self.add_activation(function, name, name)

    def add_activation(self, function: Any, input_name: str, name: str) -> str:
        """Add an activation function after a value."""
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
        arguments = _bind_activation_arguments(function)
        output: str = kind.convert_activation(
            self, input_name, self.make_unique(f"{name}/{kind.op}"), text, arguments
        )
        return output


def _bind_activation_arguments(function: Any) -> dict[str, Any]:
    """Return the arguments of an activation or functools.partial, besides its value."""
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
    return {name: _layer_argument_to_json(name, value) for name, value in others}


def _layer_argument_to_json(name: str, value: Any) -> Any:
    """Convert a public argument to a JSON value."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "fiub":
        return array.item()
    raise UnsupportedLayer(f"its activation has {name}={value!r}; a number is supported")


def read_weights(layer: str, name: str, value: Any) -> Array:
    """Convert weights of a Keras layer to floating-point numbers.

    Raises:
        UnsupportedLayer: the weights are not floating-point numbers.
        RangeError: they contain NaN or infinity.
    """
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise UnsupportedLayer(f"its weights are {array.dtype}")
    array = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
    if not np.isfinite(array).all():
        raise RangeError(
            f"Expected finite weights {name!r} of layer {layer!r}. Received: "
            f"{int((~np.isfinite(array)).sum())} of {array.size} that are NaN or infinite. Train "
            "the "
            "layer again, or load other weights.",
            code="not-finite",
            operation=layer,
        )
    return array


def canonicalize_axis(axis: Any, rank: int) -> int:
    """Count an axis from the front, with the batch as axis 0."""
    if not isinstance(axis, int):
        raise UnsupportedLayer(f"axis {axis}; one axis is supported")
    positive_axis = axis + rank if axis < 0 else axis
    if positive_axis < 1:
        raise UnsupportedLayer("axis 0 is the batch")
    return positive_axis


renamed.accept_deprecated_attributes(Reader, renamed.READER)
renamed.accept_deprecated_attributes(LayerCall, renamed.CALL)

if not TYPE_CHECKING:  # (type checkers accept the new names alone)
    __getattr__ = renamed.find_deprecated_names(
        __name__,
        globals(),
        Unfit="UnsupportedLayer",
        Given="CallValue",
        Call="LayerCall",
        array_of="read_weights",
        axis_of="canonicalize_axis",
    )
