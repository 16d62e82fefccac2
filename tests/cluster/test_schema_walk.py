"""Every class that reads untrusted values, found by its base: bounds, types, names and sizes.

A new request or header is covered by itself: the walk imports each module that uses the schema.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.paths import ROOT
from tfe_bench.cluster import json_limits
from tfe_bench.cluster.schema import Header, Mismatch, Request, Rule
from tfe_bench.errors import ProtocolError, TfeBenchError

# More elements than a test creates.
_MOST_CREATED = 1 << 20


def _nest(depth: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"x": value}
    return value


HOSTILE: dict[str, Any] = {
    "null": None,
    "true": True,
    "negative": -1,
    "zero": 0,
    "2^63": 1 << 63,
    "a number of 1000 digits": 10**1000,
    "float": 1.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "empty text": "",
    "NUL": "\0",
    "surrogate": "\ud800",
    "long text": "x" * (1 << 16),
    "empty list": [],
    "list of null": [None],
    "mixed list": [1, "x", None, {}],
    "long list": [0] * (1 << 16),
    "deep list": _nest(json_limits.MOST_DEPTH, list),
    "empty object": {},
    "object": {"x": None},
    "large object": {str(i): None for i in range(1 << 16)},
    "deep object": _nest(json_limits.MOST_DEPTH, dict),
}


def _import_readers() -> None:
    for folder in ("benchmarks", "models", "cluster", "tfe_bench"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if "cluster.schema import" in text or "toml_file import" in text:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                importlib.import_module(name if folder == "tfe_bench" else f"tfe_bench.{name}")


def _list_subclasses(cls: type[Request]) -> Iterator[type[Request]]:
    for subclass in cls.__subclasses__():
        if subclass.__module__.startswith("tfe_bench."):
            yield subclass
        yield from _list_subclasses(subclass)


def _list_classes() -> list[type[Request]]:
    _import_readers()
    return sorted(set(_list_subclasses(Request)), key=lambda cls: (cls.__module__, cls.__name__))


CLASSES = _list_classes()


def _rules(cls: type[Request]) -> dict[str, Rule]:
    return {f.name: f.metadata["rule"] for f in dataclasses.fields(cls) if "rule" in f.metadata}


def _read_class(cls: type[Request], values: object) -> Any:
    """Read values as a stranger's; only errors of this project may come of it."""
    if issubclass(cls, Header):
        return cls.from_header(values)
    return cls.from_parameters(values, "request", ProtocolError)


def _is_accepted(rule: Rule, value: object) -> bool:
    try:
        rule.read(value)
    except (Mismatch, TfeBenchError):
        return False
    return True


class _Untouched:
    """An element that must not be read: its list is too long."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError("an element of a list that is too long was read")


def test_the_walk_finds_the_readers_of_each_layer() -> None:
    modules = {cls.__module__.removeprefix("tfe_bench.").split(".")[0] for cls in CLASSES}
    assert {"benchmarks", "models", "cluster", "queries", "arrays"} <= modules
    assert len(CLASSES) > 40


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__qualname__)
def test_every_field_holds_its_bounds(cls: type[Request]) -> None:
    for name, rule in _rules(cls).items():
        if rule.least is None or rule.most is None:
            continue
        least, most = rule.least, rule.most
        if _is_accepted(rule, least):
            assert _is_accepted(rule, most), name
            for value in (least - 1, most + 1, True, str(least), [least]):
                assert not _is_accepted(rule, value), (name, value)
        elif _is_accepted(rule, "x" * max(1, int(least))) or _is_accepted(rule, "x"):
            assert not _is_accepted(rule, "x" * (int(most) + 1)), name
            assert not _is_accepted(rule, 1) and not _is_accepted(rule, ["x"]), name
        elif most < _MOST_CREATED:
            # refused by its size, before an element is read
            assert not _is_accepted(rule, [_Untouched()] * (int(most) + 1)), name
            for value in (1, "x", True):
                assert not _is_accepted(rule, value), (name, value)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__qualname__)
def test_every_value_of_every_field_is_accepted_or_refused_in_words(cls: type[Request]) -> None:
    for name, rule in _rules(cls).items():
        for case, value in HOSTILE.items():
            for values in ({name: value}, dict.fromkeys(_rules(cls), value)):
                try:
                    _read_class(cls, values)
                except TfeBenchError as error:
                    assert error.code and len(str(error)) < 4000, (name, case)
            if rule.request is None:
                _is_accepted(rule, value)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__qualname__)
def test_unknown_and_missing_fields_and_other_types_are_named(cls: type[Request]) -> None:
    rules = _rules(cls)
    not_objects: tuple[Any, ...] = (None, 5, "x", [], True)
    for values in not_objects:
        with pytest.raises(TfeBenchError):
            _read_class(cls, values)
    for name in rules:
        if len(name) > 3:
            with pytest.raises(TfeBenchError) as caught:
                cls.from_parameters({f"{name}x": 1}, "request", ProtocolError)
            assert f"{name}x" in str(caught.value) and "Did you mean" in str(caught.value)
    required = [
        f.name
        for f in dataclasses.fields(cls)
        if f.name in rules
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if required:
        with pytest.raises(TfeBenchError) as caught:
            cls.from_parameters({}, "request", ProtocolError)
        assert required[0] in str(caught.value)
