"""Checks of a record's fields: plain numbers, texts and JSON, with errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfe_bench.errors import DataError, UsageError, did_you_mean

PerParty = tuple[int, int, int]


def to_python_number(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, without importing NumPy."""
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def check_text(name: str, value: object) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is text. Received: {value!r}.")
    return value


def check_bool(name: str, value: object) -> bool:
    """Return True or False."""
    value = to_python_number(value)
    if not isinstance(value, bool):
        raise UsageError(f"{name} is true or false. Received: {value!r}.")
    return value


def check_count(name: str, value: object) -> int:
    """Return an integer from 0."""
    value = to_python_number(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} is an integer, 0 or more. Received: {value!r}.")
    return value


def check_number(name: str, value: object, *, finite: bool = True) -> float:
    """Return a real from 0; any real unless it must be finite."""
    value = to_python_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} is a number. Received: {value!r}.")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if finite and not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{name} is finite and 0 or more. Received: {value!r}.")
    return value


def check_per_party(
    check: Callable[[str, object], Any],
) -> Callable[[str, object], tuple[Any, ...]]:
    """Return a check of one entry per party."""

    def check_entries(name: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != 3:
            raise UsageError(f"{name} has one entry per party. Received: {value!r}.")
        return tuple(check(name, v) for v in value)

    return check_entries


def copy_json_object(name: str, value: object) -> dict[str, Any]:
    """Return a deep copy with lists for tuples, so that a record equals its stored form."""
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise UsageError(f"{name} are values by name. Received: {value!r}.")
    return {k: _copy_json_value(f"{name}.{k}", v) for k, v in value.items()}


def _copy_json_value(name: str, value: Any) -> Any:
    value = to_python_number(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_copy_json_value(name, v) for v in value]
    if isinstance(value, Mapping):
        return copy_json_object(name, value)
    raise UsageError(f"{name} is a JSON value. Received: {type(value).__name__}.")


def check_names(
    what: str, given: Mapping[str, object], known: list[str], optional: Sequence[str] = ()
) -> None:
    """Reject unknown and missing fields (DataError)."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise DataError(f"A {what} has no field {name!r}.{hint} Was it written by a newer one?")
    missing = [name for name in known if name not in given and name not in optional]
    if missing:
        raise DataError(f"A {what} lacks {', '.join(missing)}.")
