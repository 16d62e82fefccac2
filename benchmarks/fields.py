"""Base classes of records, which are lines of JSON, and the rules of their fields."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tfe_bench.cluster.schema import Header, Mismatch, Rule, integer_rule, label_rule, list_rule
from tfe_bench.errors import DataError, UsageError

PerParty = tuple[int, int, int]


def to_plain_json(value: Any) -> Any:
    """Convert NumPy scalars, tuples and mappings to JSON values; others stay.

    Containers are copied, and NumPy is not imported.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    if isinstance(value, list | tuple):
        return [to_plain_json(v) for v in value]
    if isinstance(value, Mapping):
        return {key: to_plain_json(v) for key, v in value.items()}
    return value


def _read_amount(value: object) -> float:
    if type(value) not in (int, float):
        raise Mismatch("a finite number of at least 0")
    assert isinstance(value, int | float)
    if not 0 <= value <= sys.float_info.max:  # (NaN is neither)
        raise Mismatch("a finite number of at least 0", "number-out-of-range")
    return float(value)


def _read_json_object(value: object) -> dict[str, Any]:
    try:
        stored = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict) or stored != value:  # (JSON turns other keys into texts)
        raise Mismatch("an object of finite JSON values by name")
    return stored


TEXT, COUNT = label_rule(1 << 20, 1, "wrong-type"), integer_rule(0, (1 << 64) - 1)
AMOUNT, JSON_OBJECT = Rule(_read_amount), Rule(_read_json_object)
PER_PARTY = list_rule(COUNT, 3, 3)


@dataclass(frozen=True, eq=False)
class RecordPart(Header, is_complete=True):
    """Base of parts of records: their values are checked when an object is created.

    Raises:
        UsageError: a field's rule does not accept its value.
    """

    def __post_init__(self) -> None:
        for name in self.field_names():
            object.__setattr__(self, name, to_plain_json(getattr(self, name)))
        self.check_fields()


@dataclass(frozen=True, eq=False)
class RecordLine(RecordPart):
    """Base of records.

    Attributes:
        schema: the field "schema" of its JSON object.
        later_fields: fields that lines of earlier versions lack; they are read as None.
    """

    schema: ClassVar[Any]
    later_fields: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> str:
        """Return the record as one line of ASCII JSON, with the field "schema"."""
        return json.dumps({"schema": self.schema, **self.to_header()}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the record that `to_json` wrote.

        Raises:
            DataError: not JSON, another schema, unknown or missing fields, or wrong values.
        """
        try:
            flat = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"Expected one JSON object as {cls._subject}. Received: {error}.",
                code="invalid-json",
                operation=cls._subject,
            ) from error
        if not isinstance(flat, dict):
            raise DataError(
                f"Expected one JSON object as {cls._subject}. Received: {type(flat).__name__}.",
                code="not-an-object",
                operation=cls._subject,
                received=type(flat).__name__,
            )
        schema = flat.pop("schema", None)
        if type(schema) is not type(cls.schema) or schema != cls.schema:
            raise DataError(
                f"Expected schema {cls.schema!r} in {cls._subject}. Received: {schema!r}. "
                "Read the file with the version that wrote it.",
                code="unsupported-format",
                operation="schema",
                received=schema,
                expected=cls.schema,
            )
        try:
            return cls.from_header({**dict.fromkeys(cls.later_fields), **flat})
        except UsageError as error:
            raise DataError(
                str(error),
                code=error.code,
                operation=error.operation,
                received=error.received,
                expected=error.expected,
            ) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
