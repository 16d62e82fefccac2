"""Keras operations on symbolic tensors, called in a model, and the readers that convert them.

A reader is a function (reader, operation, arguments by their Keras names) -> names of values. An
argument that its signature does not name must have Keras' default: so no argument that changes a
result is overlooked.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.models.layers.base import renamed
from tfe_bench.models.layers.base.layer import Array, Shape
from tfe_bench.models.layers.base.reading import Reader, UnsupportedLayer


@dataclass(frozen=True)
class TensorValue:
    """A tensor among the arguments of an operation.

    Attributes:
        name: name of the value in the converted model.
        shape: shape without the batch.
        dtype: dtype by its Keras name.
    """

    name: str
    shape: Shape
    dtype: str


Operand = TensorValue | Array  # a tensor of the model, or a constant


@dataclass(frozen=True, eq=False)
class KerasOperation:
    """A Keras operation, called once in a model.

    Attributes:
        keras_operation: the object of Keras.
        name: name for the converted layer.
        shapes: shapes of its outputs, without the batch.
    """

    keras_operation: Any
    name: str
    shapes: list[Shape]

    @property
    def shape(self) -> Shape:
        """Shape of the first output, without the batch."""
        return self.shapes[0]


OperationReader = Callable[..., "str | list[str]"]
READERS: dict[str, OperationReader] = {}
# Modules of the supported classes; an operation of another module may compute anything.
_MODULES = ("keras.src.ops.", "keras.src.activations.")
_PLAIN_TYPES = (bool, int, float, complex, str, type(None))


def register_reader(*names: str) -> Callable[[OperationReader], OperationReader]:
    """Register a reader for operations of these class names."""

    def register(read: OperationReader) -> OperationReader:
        READERS.update(dict.fromkeys(names, read))
        return read

    return register


def is_supported_keras_op(operation: Any) -> bool:
    """Return whether this is a Keras operation that has a reader."""
    cls = type(operation)
    return cls.__module__.startswith(_MODULES) and cls.__name__ in READERS


def convert_keras_operation(
    r: Reader, operation: KerasOperation, node: Any, find_value: Callable[[Any], TensorValue]
) -> list[str]:
    """Convert an operation with its reader; returns the names of its outputs.

    Args:
        node: Keras' record of the call.
        find_value: returns the TensorValue of a Keras tensor.

    Raises:
        UnsupportedLayer: the operation cannot be converted; the text states the reason.
    """
    keras_operation = operation.keras_operation
    reader = READERS[type(keras_operation).__name__]
    declared = list(inspect.signature(reader).parameters.values())[2:]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in declared)  # Keras' object computes with them
    accepted_names = {p.name for p in declared}
    call = inspect.signature(keras_operation.call)
    bound = call.bind(*node.arguments.args, **node.arguments.kwargs)
    defaults = {p.name: p.default for p in call.parameters.values()}
    defaults |= {
        p.name: p.default for p in inspect.signature(type(keras_operation)).parameters.values()
    }
    settings = {k: v for k, v in vars(keras_operation).items() if k in defaults and k != "name"}
    arguments: dict[str, Any] = {}
    for name, value in {**settings, **bound.arguments}.items():
        if takes_any or name in accepted_names:
            arguments[name] = _convert_keras_operands(value, find_value)
        elif not _is_keras_default(value, defaults.get(name)):
            raise UnsupportedLayer(
                f"called with {name}={_describe_keras_value(value)}, which is not supported"
            )
    names = reader(r, operation, **arguments)
    return [names] if isinstance(names, str) else names


def _convert_keras_operands(value: Any, find_value: Callable[[Any], TensorValue]) -> Any:
    """Replace Keras tensors by their TensorValue, also inside a list; numbers stay."""
    if type(value).__name__ == "KerasTensor":
        return find_value(value)
    if isinstance(value, (list, tuple)) and any(type(v).__name__ == "KerasTensor" for v in value):
        return [_convert_keras_operands(v, find_value) for v in value]
    return value


def _is_keras_default(value: Any, default: Any) -> bool:
    return (
        isinstance(value, _PLAIN_TYPES) and isinstance(default, _PLAIN_TYPES) and value == default
    )


def _describe_keras_value(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN_TYPES) else type(value).__name__


# ---- helpers for readers


def read_constant(value: Any) -> Array:
    """Convert a constant operand to float64.

    Raises:
        UnsupportedLayer: the operand is not numeric, or contains NaN or infinity.
    """
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise UnsupportedLayer(f"its operand is {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise UnsupportedLayer("an operand is NaN or infinite")
    return array


def check_same_rank(values: Sequence[TensorValue]) -> None:
    """Refuse tensors of different ranks: Keras would align the batch of one with rows of another.

    Raises:
        UnsupportedLayer: the ranks differ.
    """
    if len({len(v.shape) for v in values}) > 1:
        shapes = " and ".join(str([None, *v.shape]) for v in values)
        raise UnsupportedLayer(f"of tensors of ranks that differ, {shapes}; reshape them first")


def add_reduction_layer(
    r: Reader, name: str, kind: str, x: TensorValue, axes: list[int], shape: Shape
) -> str:
    """Add a kind that reduces all cells of an image, whose cells are the reduced elements.

    Args:
        axes: counted without the batch.
        shape: shape of the result; one number for each sample has an axis of 1 here.
    """
    if not shape and r.training:
        raise UnsupportedLayer(
            "gives one number for each sample, without an axis; use keepdims=True"
        )
    kept_axes = [a for a in range(len(x.shape)) if a not in axes]
    value, order = x.name, [*axes, *kept_axes]
    if order != sorted(order):
        turned = [a + 1 for a in order]
        value = r.add_layer(r.make_unique(f"{name}/turned"), "permute", [value], None, order=turned)
    cells = math.prod(x.shape[a] for a in axes)
    image = [cells, 1, math.prod(x.shape[a] for a in kept_axes)]
    value = r.add_layer(r.make_unique(f"{name}/image"), "reshape", [value], None, shape=image)
    value = r.add_layer(r.make_unique(f"{name}/all"), kind, [value], None, keepdims=False)
    return r.add_layer(name, "reshape", [value], None, shape=list(shape) or [1])


if not TYPE_CHECKING:  # (type checkers accept the new names alone)
    __getattr__ = renamed.find_deprecated_names(
        __name__,
        globals(),
        Value="TensorValue",
        Operation="KerasOperation",
        reads="register_reader",
        numbers="read_constant",
        one_rank="check_same_rank",
    )
