"""Arguments of operations as closed JSON data: numbers, texts, slices, arrays and
earlier values.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.cluster.jobs import MOST_AXES, MOST_WORDS, shape_extent
from tfe_bench.errors import UsageError

# Elements of one public array inside a plan, and of all; depth and number of one operation's
# arguments.
MAX_CONSTANT, MAX_CONSTANTS, MAX_NESTED, MAX_PARTS = 1 << 14, 1 << 17, 4, 4096
MAX_TEXT = 200
_INT = 1 << 63
_DTYPES = {"bool": np.bool_, "int64": np.int64, "float64": np.float64}


@dataclass(frozen=True)
class ValueReference:
    """A reference to a value of a plan: its number, and its position if a step has
    several outputs.
    """

    number: int
    place: int | None = None


def check_array_shape(shape: object) -> tuple[int, ...]:
    """Return the shape of an array if it is valid.

    Raises:
        UsageError: the shape is invalid.
    """
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not isinstance(shape, list) or not whole or len(shape) > MOST_AXES:
        raise UsageError(f"A shape is a list of at most {MOST_AXES} sizes.", code="invalid-shape")
    if shape_extent(shape) > MOST_WORDS:
        raise UsageError(
            f"An array has at most {MOST_WORDS} elements.", code="too-large", operation="array"
        )
    return tuple(shape)


def has_ref(value: object) -> bool:
    return any(True for _ in iter_refs(value))


def parse_reference(value: object, known: int) -> ValueReference:
    if isinstance(value, list) and 2 <= len(value) <= 3 and value[0] == "ref":
        number, *place = value[1:]
        fits = type(number) is int and 0 <= number < known
        if fits and all(type(p) is int and 0 <= p < MAX_PARTS for p in place):
            return ValueReference(number, place[0] if place else None)
    raise UsageError(
        "A plan refers to earlier values by number: it has no cycles.", code="invalid-reference"
    )


def check_operation_argument(
    value: object, known: int, depth: int, parts: list[int], elements_left: list[int]
) -> None:
    parts[0] -= 1
    if parts[0] < 0 or depth < 0:
        raise UsageError(
            f"An operation has at most {MAX_PARTS} arguments, nested at most {MAX_NESTED} deep.",
            code="too-large",
            operation="arguments",
        )
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        fits = len(value) <= MAX_TEXT
    elif isinstance(value, int):
        fits = -_INT <= value < _INT
    elif isinstance(value, float):
        fits = math.isfinite(value)
    elif isinstance(value, list) and value and isinstance(value[0], str):
        _check_nested(value, known, depth, parts, elements_left)
        return
    else:
        fits = False
    if not fits:
        raise UsageError(
            "A public argument is a finite number, a short text, or a list of these.",
            code="invalid-argument",
        )


def _check_nested(
    value: list[Any], known: int, depth: int, parts: list[int], elements_left: list[int]
) -> None:
    match value:
        case ["ref", *_]:
            parse_reference(value, known)
        case ["list" | "tuple", list(items)]:
            for item in items:
                check_operation_argument(item, known, depth - 1, parts, elements_left)
        case ["slice", start, stop, step]:
            for item in (start, stop, step):
                if item is not None and (type(item) is not int or not -_INT <= item < _INT):
                    raise UsageError(
                        "A slice takes public integers as bounds.",
                        code="invalid-argument",
                        operation="slice",
                    )
        case ["ellipsis"]:
            pass
        case ["array", _, _, _]:
            elements_left[0] -= _decode_array(value).size
            if elements_left[0] < 0:
                raise UsageError(
                    f"A plan holds at most {MAX_CONSTANTS} public elements. Received: more. "
                    "Share the large ones: cluster.private(array).",
                    code="too-many-constants",
                )
        case _:
            raise UsageError(
                "A public argument is a number, text, list, slice or array.",
                code="invalid-argument",
            )


def _decode_array(value: list[Any]) -> np.ndarray[Any, Any]:
    _, name, shape, text = value
    sizes = check_array_shape(shape)
    count = math.prod(sizes)
    if not isinstance(name, str) or name not in _DTYPES or count > MAX_CONSTANT:
        raise UsageError(
            f"A public array in a plan is {', '.join(_DTYPES)} with at most {MAX_CONSTANT} "
            "elements. Received: another one. Share a large array: cluster.private(array).",
            code="invalid-constant",
        )
    dtype = np.dtype(_DTYPES[name])
    try:
        blob = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        blob = b""
    if len(blob) != count * dtype.itemsize:
        raise UsageError(
            "A public array in a plan has as many elements as its shape states.",
            code="shape-mismatch",
        )
    if name == "bool" and max(blob, default=0) > 1:
        raise UsageError("Truth values are 0 or 1.", code="invalid-constant", operation="bool")
    array = np.frombuffer(blob, dtype).reshape(sizes)
    if name == "float64" and not np.isfinite(array).all():
        raise UsageError("Public numbers are finite. Received: NaN or infinity.", code="not-finite")
    return array


def iter_refs(value: object) -> Iterator[ValueReference]:
    if isinstance(value, list) and value:
        if value[0] == "ref":
            yield ValueReference(value[1], value[2] if len(value) > 2 else None)
        elif value[0] in ("list", "tuple") and len(value) == 2 and isinstance(value[1], list):
            for each in value[1]:
                yield from iter_refs(each)


def decode_operation_argument(value: Any, values: Mapping[ValueReference, Any]) -> Any:
    """Decode a checked argument; references become values."""
    if not isinstance(value, list):
        return value
    match value[0]:
        case "ref":
            return values[next(iter_refs(value))]
        case "list":
            return [decode_operation_argument(each, values) for each in value[1]]
        case "tuple":
            return tuple(decode_operation_argument(each, values) for each in value[1])
        case "slice":
            return slice(*value[1:])
        case "ellipsis":
            return Ellipsis
        case _:
            return _decode_array(value)


def encode_operation_argument(value: object) -> Any:
    """Encode a public argument, or a reference, as JSON.

    Raises:
        UsageError: plans cannot contain the value.
    """
    if isinstance(value, ValueReference):
        return ["ref", value.number, *([] if value.place is None else [value.place])]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [
            type(value).__name__,
            [encode_operation_argument(each) for each in _check_list_argument(value)],
        ]
    if isinstance(value, slice):
        return [
            "slice",
            *(_plain_slice_bound(each) for each in (value.start, value.stop, value.step)),
        ]
    if value is Ellipsis:
        return ["ellipsis"]
    return _encode_array(value)


def _check_list_argument(value: Sequence[Any]) -> Sequence[Any]:
    if len(value) > MAX_PARTS:
        raise UsageError(
            f"A list in an expression has at most {MAX_PARTS} parts. Received: {len(value)}. "
            "Use an array: np.array(values).",
            code="too-large",
            operation="list",
            received=len(value),
        )
    return value


def _plain_slice_bound(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _encode_array(value: object) -> list[Any]:
    if not isinstance(value, np.ndarray) and not hasattr(value, "__array__"):
        raise UsageError(
            "An expression takes numbers, texts, arrays and slices besides private arrays. "
            f"Received: {type(value).__name__}.",
            code="unsupported-type",
            received=type(value).__name__,
        )
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"An expression takes real numbers. Received: an array of {array.dtype.name}.",
            code="unsupported-type",
            received=array.dtype.name,
        )
    if array.size > MAX_CONSTANT:
        raise UsageError(
            f"A public array in an expression has at most {MAX_CONSTANT} elements. Received: "
            f"shape {list(array.shape)}. Share it: cluster.private(array).",
            code="constant-too-large",
            received=list(array.shape),
        )
    name = {"b": "bool", "f": "float64"}.get(array.dtype.kind, "int64")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= _INT:
        raise UsageError(
            "Public integers are below 2^63. Received: larger ones.", code="number-out-of-range"
        )
    contiguous: np.ndarray[Any, Any] = np.ascontiguousarray(array, np.dtype(_DTYPES[name]))
    if name == "float64" and not np.isfinite(contiguous).all():
        raise UsageError("Public numbers are finite. Received: NaN or infinity.", code="not-finite")
    text = base64.b64encode(contiguous.tobytes()).decode()
    return ["array", name, list(array.shape), text]
