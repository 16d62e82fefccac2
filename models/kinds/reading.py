"""What kinds read layers of Keras with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.kinds.layer import Array, Layer, Shape


class Unfit(Exception):
    """Why a layer cannot be converted."""


@dataclass(frozen=True)
class Given:
    """A value that a layer is called with.

    Attributes:
        shape: without the batch.
        mask: the name of the mask that comes with it in Keras, or "".
    """

    name: str
    shape: Shape
    mask: str = ""


@dataclass(frozen=True, eq=False)
class Call:
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
    others: list[str] = field(default_factory=list)
    masks: tuple[str, ...] = ()

    @property
    def mask(self) -> str:
        """That of the first input, or ""."""
        return self.masks[0] if self.masks else ""

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
        self.layers: list[Layer] = []
        self.unfit: list[str] = []
        self.taken: set[str] = set()
        self.rank = 0
        self.private: set[str] = set()
        self.arrays: dict[int, tuple[Any, Array]] = {}
        self.inputs: frozenset[str] = frozenset()
        self.tokens: dict[str, int] = {}
        self.masks: dict[str, None] = {}
        self.mask = ""
        self.unmasked: set[str] = set()
        self.compared: dict[str, tuple[str, int, bool]] = {}
        self._tables: set[str] = set()

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

    def looked_up(self, name: str, given: str, table: Any) -> str:
        """Adds a layer of the rows of a table at numbers that whoever predicts gives.

        Raises:
            Unfit: the numbers are computed, or another table has another number of rows.
        """
        count = int(table.shape[0])
        if given not in self.inputs:
            raise Unfit("of numbers that the model computes; those of an input are supported")
        if self.tokens.setdefault(given, count) != count:
            raise Unfit(f"of {count} rows, where another table has {self.tokens[given]}")
        self._tables.add(name)
        return self.emit(name, "dense", [given], {"kernel": table})

    def is_token(self, name: str, given: str, shape: Shape, number: int, inverted: bool) -> str:
        """Adds whether numbers of an input are this one; if it is of tokens, a column of its rows.

        Args:
            inverted: whether they are not.
        """
        self.compared[name] = given, number, inverted
        return self.emit(name, "reshape", [given], None, shape=list(shape))

    def _settle_compared(self) -> None:
        """Now that it is known which inputs tables are looked up by."""
        found: list[Layer] = []
        for x in self.layers:
            given, number, inverted = self.compared.get(x.name, ("", 0, False))
            if not given:
                found.append(x)
                continue
            if given in self.tokens:
                found += self._column(x, number, inverted)
                continue
            apart = self.unique(f"{x.name}/apart")
            found.append(Layer(apart, "rescale", (given,), {"scale": 1.0, "offset": -number}))
            found.append(Layer(x.name, "zero", (apart,), {"inverted": inverted}))
        self.layers = found

    def _column(self, x: Layer, number: int, inverted: bool) -> list[Layer]:
        (given,), shape, count = x.inputs, x.options["shape"], self.tokens[x.inputs[0]]
        if number >= count:  # (nor is it, as the client's numbers are below)
            raise Unfit(f"compares tokens from 0 to {count - 1} with {number}")
        sides = [*([0, 0] for _ in shape), [number, count - 1 - number]]
        column, flat = (self.unique(f"{x.name}/{part}") for part in ("column", "flat"))
        self._tables.add(column)
        cut = Layer(column, "crop", (given,), {"sides": sides})
        if not inverted:
            return [cut, Layer(x.name, "reshape", (column,), {"shape": shape})]
        turned = Layer(x.name, "rescale", (flat,), {"scale": -1.0, "offset": 1.0})
        return [cut, Layer(flat, "reshape", (column,), {"shape": shape}), turned]

    def check_tokens(self) -> None:
        """Says what else takes numbers that tables are looked up by."""
        try:
            self._settle_compared()
        except Unfit as error:
            self.unfit.append(str(error))
        self.unfit += [
            f"{layer.op} {layer.name!r} (takes numbers of tokens, which tables alone do)"
            for layer in self.layers
            if layer.name not in self._tables and not self.tokens.keys().isdisjoint(layer.inputs)
        ]

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
