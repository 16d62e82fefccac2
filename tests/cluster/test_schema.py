"""Requests: every rule at its edges, unknown and missing fields, and the way back to JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from tests.refusals import raises
from tfe_bench.cluster import schema
from tfe_bench.cluster.schema import Request
from tfe_bench.errors import ConfigError, DataError


@dataclass(frozen=True)
class Inner(Request):
    names: tuple[str, ...] = schema.list_field(schema.text_rule(5), 1, 2)


@dataclass(frozen=True)
class Outer(Request):
    count: int = schema.integer_field(1, 1 << 16)
    share: float = schema.number_field(0, 1, default=0.5)
    descending: bool = schema.flag_field(default=False)
    algorithm: str = schema.choice_field(lambda: ("radix", "network"), default="radix")
    title: str = schema.text_field(8, default="none")
    inner: Inner | None = schema.nested_field(Inner, default=None)


ACCEPTED: list[tuple[dict[str, Any], Outer]] = [
    ({"count": 1}, Outer(1)),
    ({"count": 1 << 16, "share": 0}, Outer(1 << 16, 0.0)),
    ({"count": 2, "share": 1.0, "descending": True}, Outer(2, 1.0, True)),
    (
        {"count": 2, "algorithm": "network", "title": "8 signs."},
        Outer(2, 0.5, False, "network", "8 signs."),
    ),
    ({"count": 2, "inner": {"names": ["a", "five5"]}}, Outer(2, inner=Inner(("a", "five5")))),
]


@pytest.mark.parametrize(("values", "request_"), ACCEPTED)
def test_a_request_is_read_and_written(values: dict[str, Any], request_: Outer) -> None:
    parsed = Outer.from_parameters(values, "outer")
    assert parsed == request_
    assert Outer.from_parameters(parsed.to_parameters(), "outer") == parsed


_NO_COUNT: list[Any] = [True, 1.0, "1", None, [1], {}]
_NO_SHARE: list[Any] = [-1e-9, 1.001, math.nan, math.inf, 10**400, 10**5000]
REFUSED: list[tuple[Any, str, str | None]] = [
    ([], "wrong-type", "outer"),
    ({}, "missing-argument", "count"),
    ({"count": 1, "cuont": 2}, "unknown-option", "outer"),
    *(({"count": v}, "wrong-type", "count") for v in _NO_COUNT),
    *(({"count": v}, "number-out-of-range", "count") for v in (0, -1, 65537, 10**400, 10**5000)),
    *(({"count": 1, "share": v}, "wrong-type", "share") for v in (True, "0.5", None)),
    *(({"count": 1, "share": v}, "number-out-of-range", "share") for v in _NO_SHARE),
    *(({"count": 1, "descending": v}, "wrong-type", "descending") for v in (0, "true", None)),
    ({"count": 1, "algorithm": "radx"}, "unknown-name", "algorithm"),
    *(({"count": 1, "algorithm": v}, "wrong-type", "algorithm") for v in (1, None, ["radix"])),
    *(({"count": 1, "title": v}, "invalid-name", "title") for v in ("", "9 letters", "a\n")),
    ({"count": 1, "title": 1}, "wrong-type", "title"),
    ({"count": 1, "inner": {"names": []}}, "wrong-type", "names"),
    ({"count": 1, "inner": {"names": ["a"] * 3}}, "too-large", "names"),
    ({"count": 1, "inner": {"names": ("a",)}}, "wrong-type", "names"),
    ({"count": 1, "inner": {"names": ["six666"]}}, "invalid-name", "names"),
    ({"count": 1, "inner": {"name": ["a"]}}, "unknown-option", "outer.inner"),
    ({"count": 1, "inner": None}, "wrong-type", "outer.inner"),
]


@pytest.mark.parametrize(("values", "code", "operation"), REFUSED)
def test_other_values_are_refused(values: Any, code: str, operation: str) -> None:
    with raises(ConfigError, code, operation=operation):
        Outer.from_parameters(values, "outer", ConfigError)


def test_a_near_name_is_suggested() -> None:
    with raises(ConfigError, "unknown-option", names='Did you mean "count"?'):
        Outer.from_parameters({"cuont": 1}, "outer", ConfigError)
    with raises(ConfigError, "unknown-name", names='Did you mean "radix"?'):
        Outer.from_parameters({"count": 1, "algorithm": "radx"}, "outer", ConfigError)


def test_an_error_of_a_field_s_own_reader_is_kept() -> None:
    def read(value: object) -> object:
        raise DataError("Invalid plan.", code="invalid-plan")

    @dataclass(frozen=True)
    class Planned(Request):
        plan: object = schema.parsed_field(read, lambda plan: plan)

    with raises(DataError, "invalid-plan"):
        Planned.from_parameters({"plan": {}}, "planned")


def test_a_long_value_is_shown_in_part() -> None:
    with raises(ConfigError, "wrong-type") as caught:
        Outer.from_parameters({"count": "x" * 10_000}, "outer", ConfigError)
    assert len(str(caught.value)) < 250
