"""Arguments of operations as closed JSON data: numbers, texts, slices, arrays, earlier values."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.cluster.jobs import MOST_AXES, MOST_WORDS, extent
from tfe_bench.errors import UsageError

# Of one public array inside of a plan, and of all; of one operation's arguments, nested.
MOST_CONSTANT, MOST_CONSTANTS, MOST_NESTED, MOST_PARTS = 1 << 14, 1 << 17, 4, 4096
MOST_TEXT = 200
_INT = 1 << 63
_DTYPES = {"bool": np.bool_, "int64": np.int64, "float64": np.float64}


@dataclass(frozen=True)
class Ref:
    """A value of a plan: by its number, and by its place where a step makes several."""

    number: int
    place: int | None = None


def check_shape(shape: object) -> tuple[int, ...]:
    """A shape that an array may have.

    Raises:
        UsageError: it may not.
    """
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not isinstance(shape, list) or not whole or len(shape) > MOST_AXES:
        raise UsageError(f"A shape is a list of at most {MOST_AXES} sizes.")
    if extent(shape) > MOST_WORDS:
        raise UsageError(f"An array has at most {MOST_WORDS} elements.")
    return tuple(shape)


def holds_ref(value: object) -> bool:
    return any(True for _ in refs(value))


def reference(given: object, known: int) -> Ref:
    if isinstance(given, list) and 2 <= len(given) <= 3 and given[0] == "ref":
        number, *place = given[1:]
        fits = type(number) is int and 0 <= number < known
        if fits and all(type(p) is int and 0 <= p < MOST_PARTS for p in place):
            return Ref(number, place[0] if place else None)
    raise UsageError("A plan takes earlier values by their numbers: it has no cycles.")


def check_argument(
    given: object, known: int, depth: int, parts: list[int], left: list[int]
) -> None:
    parts[0] -= 1
    if parts[0] < 0 or depth < 0:
        raise UsageError(
            f"An operation has at most {MOST_PARTS} arguments, {MOST_NESTED} within one another."
        )
    if given is None or isinstance(given, bool):
        return
    if isinstance(given, str):
        fits = len(given) <= MOST_TEXT
    elif isinstance(given, int):
        fits = -_INT <= given < _INT
    elif isinstance(given, float):
        fits = math.isfinite(given)
    elif isinstance(given, list) and given and isinstance(given[0], str):
        _check_nested(given, known, depth, parts, left)
        return
    else:
        fits = False
    if not fits:
        raise UsageError("A public argument is a finite number, a short text, or a list of these.")


def _check_nested(
    given: list[Any], known: int, depth: int, parts: list[int], left: list[int]
) -> None:
    match given:
        case ["ref", *_]:
            reference(given, known)
        case ["list" | "tuple", list(items)]:
            for each in items:
                check_argument(each, known, depth - 1, parts, left)
        case ["slice", start, stop, step]:
            for each in (start, stop, step):
                if each is not None and (type(each) is not int or not -_INT <= each < _INT):
                    raise UsageError("A slice has whole public bounds.")
        case ["ellipsis"]:
            pass
        case ["array", _, _, _]:
            left[0] -= _array(given).size
            if left[0] < 0:
                raise UsageError(
                    f"A plan holds at most {MOST_CONSTANTS} public elements. Received: more. Make "
                    "the large ones private: cluster.private(array)."
                )
        case _:
            raise UsageError("A public argument is a number, text, list, slice or array.")


def _array(given: list[Any]) -> np.ndarray[Any, Any]:
    _, name, shape, text = given
    sizes = check_shape(shape)
    count = math.prod(sizes)
    if not isinstance(name, str) or name not in _DTYPES or count > MOST_CONSTANT:
        raise UsageError(
            f"A public array in a plan is {', '.join(_DTYPES)} with {MOST_CONSTANT} elements at "
            "most. Received: another. Make a large one private: cluster.private(array)."
        )
    dtype = np.dtype(_DTYPES[name])
    try:
        blob = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        blob = b""
    if len(blob) != count * dtype.itemsize:
        raise UsageError("A public array in a plan has as many elements as its shape says.")
    if name == "bool" and max(blob, default=0) > 1:
        raise UsageError("Truth values are 0 or 1.")
    found = np.frombuffer(blob, dtype).reshape(sizes)
    if name == "float64" and not np.isfinite(found).all():
        raise UsageError("Public numbers are finite. Received: NaN or infinity.")
    return found


def refs(given: object) -> Iterator[Ref]:
    if isinstance(given, list) and given:
        if given[0] == "ref":
            yield Ref(given[1], given[2] if len(given) > 2 else None)
        elif given[0] in ("list", "tuple") and len(given) == 2 and isinstance(given[1], list):
            for each in given[1]:
                yield from refs(each)


def decoded(given: Any, values: Mapping[Ref, Any]) -> Any:
    """A checked argument, with values in place."""
    if not isinstance(given, list):
        return given
    match given[0]:
        case "ref":
            return values[next(refs(given))]
        case "list":
            return [decoded(each, values) for each in given[1]]
        case "tuple":
            return tuple(decoded(each, values) for each in given[1])
        case "slice":
            return slice(*given[1:])
        case "ellipsis":
            return Ellipsis
        case _:
            return _array(given)


def encoded(value: object) -> Any:
    """A public argument, or a reference, as JSON.

    Raises:
        UsageError: it is nothing that a plan holds.
    """
    if isinstance(value, Ref):
        return ["ref", value.number, *([] if value.place is None else [value.place])]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [encoded(each) for each in _items(value)]]
    if isinstance(value, slice):
        return ["slice", *(_bound(each) for each in (value.start, value.stop, value.step))]
    if value is Ellipsis:
        return ["ellipsis"]
    return _encoded_array(value)


def _items(value: Sequence[Any]) -> Sequence[Any]:
    if len(value) > MOST_PARTS:
        raise UsageError(
            f"A list in an expression has at most {MOST_PARTS} parts. Received: {len(value)}. Give "
            "an array: np.array(values)."
        )
    return value


def _bound(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _encoded_array(value: object) -> list[Any]:
    if not isinstance(value, np.ndarray) and not hasattr(value, "__array__"):
        raise UsageError(
            "An expression holds numbers, texts, arrays and slices beside private arrays. "
            f"Received: {type(value).__name__}."
        )
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"An expression holds real numbers. Received: an array of {array.dtype.name}."
        )
    if array.size > MOST_CONSTANT:
        raise UsageError(
            f"A public array in an expression has at most {MOST_CONSTANT} elements. Received: "
            f"shape {list(array.shape)}. Make it private: cluster.private(array)."
        )
    name = {"b": "bool", "f": "float64"}.get(array.dtype.kind, "int64")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= _INT:
        raise UsageError("Public integers are below 2^63. Received: larger ones.")
    own: np.ndarray[Any, Any] = np.ascontiguousarray(array, np.dtype(_DTYPES[name]))
    if name == "float64" and not np.isfinite(own).all():
        raise UsageError("Public numbers are finite. Received: NaN or infinity.")
    text = base64.b64encode(own.tobytes()).decode()
    return ["array", name, list(array.shape), text]
