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


def check_record_text(name: str, value: object) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise UsageError(
            f"Expected a text that is not empty as {name}. Received: {value!r}.",
            code="wrong-type",
            operation=name,
            received=value,
        )
    return value


def check_record_bool(name: str, value: object) -> bool:
    """Return True or False."""
    value = to_python_number(value)
    if not isinstance(value, bool):
        raise UsageError(
            f"Expected true or false as {name}. Received: {value!r}.",
            code="wrong-type",
            operation=name,
            received=value,
        )
    return value


def check_record_count(name: str, value: object) -> int:
    """Return an integer from 0."""
    value = to_python_number(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(
            f"Expected an integer of at least 0 as {name}. Received: {value!r}.",
            code="not-a-count",
            operation=name,
            received=value,
        )
    return value


def check_record_number(name: str, value: object, *, finite: bool = True) -> float:
    """Return a real from 0; any real unless it must be finite."""
    value = to_python_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(
            f"Expected a number as {name}. Received: {value!r}.",
            code="not-a-number",
            operation=name,
            received=value,
        )
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if finite and not (math.isfinite(value) and value >= 0):
        raise UsageError(
            f"Expected a finite number of at least 0 as {name}. Received: {value!r}.",
            code="number-out-of-range",
            operation=name,
            received=value,
        )
    return value


def check_per_party(
    check: Callable[[str, object], Any],
) -> Callable[[str, object], tuple[Any, ...]]:
    """Return a check of one entry per party."""

    def check_entries(name: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != 3:
            raise UsageError(
                f"Expected one entry per party as {name}. Received: {value!r}.",
                code="wrong-number-of-values",
                operation=name,
                received=value,
            )
        return tuple(check(name, v) for v in value)

    return check_entries


def copy_json_object(name: str, value: object) -> dict[str, Any]:
    """Return a deep copy with lists for tuples, so that a record equals its stored form."""
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise UsageError(
            f"Expected an object of values by name as {name}. Received: {value!r}.",
            code="not-an-object",
            operation=name,
            received=value,
        )
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
    raise UsageError(
        f"Expected a JSON value as {name}. Received: {type(value).__name__}.",
        code="wrong-type",
        operation=name,
        received=type(value).__name__,
    )


def check_record_field_names(
    subject: str, names: Mapping[str, object], known: list[str], optional: Sequence[str] = ()
) -> None:
    """Reject unknown and missing fields (DataError)."""
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise DataError(
                f"Unknown field {name!r} of the {subject}.{hint} A newer version may have "
                "written it.",
                code="unknown-field",
                operation=subject,
                received=name,
            )
    missing = [name for name in known if name not in names and name not in optional]
    if missing:
        raise DataError(
            f"The {subject} lacks {', '.join(missing)}.",
            code="missing-field",
            operation=subject,
            expected=", ".join(missing),
        )
