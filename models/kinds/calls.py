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
from tfe_bench.models.kinds.reading import Reader, Unfit


@dataclass(frozen=True)
class Value:
    """A tensor among an operation's arguments.

    Attributes:
        name: of the value in the model that is written.
        shape: without the batch.
        dtype: as Keras names it.
    """

    name: str
    shape: Shape
    dtype: str


Operand = Value | Array  # a tensor of the model, or numbers


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation of Keras, called once in a model.

    Attributes:
        own: Keras' own.
        name: for the layer that it becomes.
        shapes: of its values, without the batch.
    """

    own: Any
    name: str
    shapes: list[Shape]

    @property
    def shape(self) -> Shape:
        """Of its first value."""
        return self.shapes[0]


Read = Callable[..., "str | list[str]"]
READERS: dict[str, Read] = {}
# Whose classes these are; an operation of another module computes we do not know what.
_MODULES = ("keras.src.ops.", "keras.src.activations.")
_SIZES = (bool, int, float, complex, str, type(None))


def reads(*names: str) -> Callable[[Read], Read]:
    """Registers what reads the operations of some class names."""

    def register(read: Read) -> Read:
        READERS.update(dict.fromkeys(names, read))
        return read

    return register


@functools.cache
def load(package: str, *path: str) -> None:
    """Import the modules of a package once: each registers its readers."""
    for _ in discovery.modules(package, path):
        pass


def known(operation: Any) -> bool:
    """Whether an operation is of Keras, and there is a reader for it."""
    cls = type(operation)
    return cls.__module__.startswith(_MODULES) and cls.__name__ in READERS


def read(r: Reader, operation: Operation, node: Any, named: Callable[[Any], Value]) -> list[str]:
    """Writes an operation to the reader; returns the names of its values.

    Args:
        node: Keras' record of the call.
        named: the value that a tensor of Keras is.

    Raises:
        Unfit: why it cannot be converted.
    """
    own = operation.own
    reader = READERS[type(own).__name__]
    declared = list(inspect.signature(reader).parameters.values())[2:]
    whole = any(p.kind is p.VAR_KEYWORD for p in declared)  # Keras' own object computes with them
    taken = {p.name for p in declared}
    call = inspect.signature(own.call)
    bound = call.bind(*node.arguments.args, **node.arguments.kwargs)
    defaults = {p.name: p.default for p in call.parameters.values()}
    defaults |= {p.name: p.default for p in inspect.signature(type(own)).parameters.values()}
    settings = {k: v for k, v in vars(own).items() if k in defaults and k != "name"}
    found: dict[str, Any] = {}
    for name, value in {**settings, **bound.arguments}.items():
        if whole or name in taken:
            found[name] = _operands(value, named)
        elif not _same(value, defaults.get(name)):
            raise Unfit(f"called with {name}={_short(value)}, which is not supported")
    names = reader(r, operation, **found)
    return [names] if isinstance(names, str) else names


def _operands(value: Any, named: Callable[[Any], Value]) -> Any:
    """Keras' tensors as values, in a list too; numbers as they are."""
    if type(value).__name__ == "KerasTensor":
        return named(value)
    if isinstance(value, (list, tuple)) and any(type(v).__name__ == "KerasTensor" for v in value):
        return [_operands(v, named) for v in value]
    return value


def _same(value: Any, default: Any) -> bool:
    return isinstance(value, _SIZES) and isinstance(default, _SIZES) and value == default


def _short(value: Any) -> str:
    return repr(value) if isinstance(value, _SIZES) else type(value).__name__


# ---- what readers are written with


def numbers(value: Any) -> Array:
    """A constant among the operands, float64.

    Raises:
        Unfit: no numbers, or NaN or infinity among them.
    """
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise Unfit(f"its operand is {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise Unfit("an operand is NaN or infinite")
    return array


def one_rank(values: Sequence[Value]) -> None:
    """Refuses tensors of different ranks: Keras would put the batch of one along rows of another.

    Raises:
        Unfit: these.
    """
    if len({len(v.shape) for v in values}) > 1:
        shapes = " and ".join(str([None, *v.shape]) for v in values)
        raise Unfit(f"of tensors of ranks that differ, {shapes}; reshape them first")
