"""Operations on Keras' tensors, as a model holds them, and what reads each.

A reader is a function (reader, operation, arguments by their names in Keras) -> names of values.
What it does not name in its signature has to be as Keras has it by default: so no argument that
changes a result is overlooked.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.models.kinds import discovery
from tfe_bench.models.kinds.layer import Array, Shape
from tfe_bench.models.kinds.reading import Reader, UnsupportedLayer


@dataclass(frozen=True)
class TensorValue:
    """A tensor among an operation's arguments.

    Attributes:
        name: of the value in the model that is written.
        shape: without the batch.
        dtype: as Keras names it.
    """

    name: str
    shape: Shape
    dtype: str


Operand = TensorValue | Array  # a tensor of the model, or numbers


@dataclass(frozen=True, eq=False)
class KerasOperation:
    """An operation of Keras, called once in a model.

    Attributes:
        own: Keras' own.
        name: for the layer that it becomes.
        shapes: of its values, without the batch.
    """

    keras_operation: Any
    name: str
    shapes: list[Shape]

    @property
    def shape(self) -> Shape:
        """Of its first value."""
        return self.shapes[0]


OperationReader = Callable[..., "str | list[str]"]
READERS: dict[str, OperationReader] = {}
# Whose classes these are; an operation of another module computes we do not know what.
_MODULES = ("keras.src.ops.", "keras.src.activations.")
_PLAIN_TYPES = (bool, int, float, complex, str, type(None))


def register_reader(*names: str) -> Callable[[OperationReader], OperationReader]:
    """Registers what reads the operations of some class names."""

    def register(read: OperationReader) -> OperationReader:
        READERS.update(dict.fromkeys(names, read))
        return read

    return register


@functools.cache
def load_readers(package: str, *path: str) -> None:
    """Import the modules of a package once: each registers its readers."""
    for _ in discovery.import_modules(package, path):
        pass


def is_supported(operation: Any) -> bool:
    """Whether an operation is of Keras, and there is a reader for it."""
    cls = type(operation)
    return cls.__module__.startswith(_MODULES) and cls.__name__ in READERS


def convert_operation(
    r: Reader, operation: KerasOperation, node: Any, find_value: Callable[[Any], TensorValue]
) -> list[str]:
    """Writes an operation to the reader; returns the names of its values.

    Args:
        node: Keras' record of the call.
        named: the value that a tensor of Keras is.

    Raises:
        Unfit: why it cannot be converted.
    """
    keras_operation = operation.keras_operation
    reader = READERS[type(keras_operation).__name__]
    declared = list(inspect.signature(reader).parameters.values())[2:]
    takes_any = any(
        p.kind is p.VAR_KEYWORD for p in declared
    )  # Keras' own object computes with them
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
            arguments[name] = _convert_operands(value, find_value)
        elif not _is_default(value, defaults.get(name)):
            raise UnsupportedLayer(
                f"called with {name}={_describe_value(value)}, which is not supported"
            )
    names = reader(r, operation, **arguments)
    return [names] if isinstance(names, str) else names


def _convert_operands(value: Any, find_value: Callable[[Any], TensorValue]) -> Any:
    """Keras' tensors as values, in a list too; numbers as they are."""
    if type(value).__name__ == "KerasTensor":
        return find_value(value)
    if isinstance(value, (list, tuple)) and any(type(v).__name__ == "KerasTensor" for v in value):
        return [_convert_operands(v, find_value) for v in value]
    return value


def _is_default(value: Any, default: Any) -> bool:
    return (
        isinstance(value, _PLAIN_TYPES) and isinstance(default, _PLAIN_TYPES) and value == default
    )


def _describe_value(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN_TYPES) else type(value).__name__


# ---- what readers are written with


def read_constant(value: Any) -> Array:
    """A constant among the operands, float64.

    Raises:
        Unfit: no numbers, or NaN or infinity among them.
    """
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise UnsupportedLayer(f"its operand is {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise UnsupportedLayer("an operand is NaN or infinite")
    return array


def check_same_rank(values: Sequence[TensorValue]) -> None:
    """Refuses tensors of different ranks: Keras would put the batch of one along rows of another.

    Raises:
        Unfit: these.
    """
    if len({len(v.shape) for v in values}) > 1:
        shapes = " and ".join(str([None, *v.shape]) for v in values)
        raise UnsupportedLayer(f"of tensors of ranks that differ, {shapes}; reshape them first")
