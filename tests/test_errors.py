"""Errors have listed codes, and a cluster preserves their code and fields."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pages import module
from tfe_bench import errors
from tfe_bench.cluster import transport, wire
from tfe_bench.error_codes import CODES, DEFAULT_CODES

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("protocols", "models", "cluster", "benchmarks", "tfe_bench")
CLASSES = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.TfeBenchError)
}


def product_trees() -> Iterator[tuple[Path, ast.Module]]:
    """Yield every file of the product with its syntax tree."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(p.is_symlink() for p in path.parents if p != ROOT):
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def codes_in(node: ast.AST) -> Iterator[str]:
    """Yield the texts of `code=...` arguments and of parameters with such a default."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            for keyword in call.keywords:
                if keyword.arg == "code":
                    for value in ast.walk(keyword.value):
                        if isinstance(value, ast.Constant) and isinstance(value.value, str):
                            yield value.value
        if isinstance(call, ast.FunctionDef):
            names = [a.arg for a in call.args.kwonlyargs]
            for name, default in zip(names, call.args.kw_defaults, strict=True):
                if name == "code" and isinstance(default, ast.Constant) and default.value:
                    yield str(default.value)


def test_every_code_is_listed_and_used() -> None:
    used = {code for _, tree in product_trees() for code in codes_in(tree)}
    assert used <= CODES.keys() | DEFAULT_CODES.keys(), sorted(used - CODES.keys())
    assert not CODES.keys() & DEFAULT_CODES.keys()
    assert {getattr(errors, name).code for name in CLASSES} == DEFAULT_CODES.keys()


def test_the_page_lists_every_code() -> None:
    page = module("error_codes")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.renew(text) == text, "run python -m docs.error_codes --write"


def example(name: str) -> errors.TfeBenchError:
    """Return an error of a class with a code and all fields."""
    kind: Any = getattr(errors, name)
    if kind is errors.PeerLost:
        error = kind(2, "its process ended")
        error.code = "number-out-of-range"
    else:
        error = kind("Expected 1 to 3.", code="number-out-of-range")
    error.operation, error.received, error.expected, error.party = "top_k", "7", "1 to 3", 2
    return error


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_keeps_code_and_fields_on_its_way_to_a_client(name: str) -> None:
    error = example(name)
    arrived = wire.decode_error(json.loads(wire.encode_failure(error)[1:]))
    assert type(arrived) is type(error) and str(arrived) == str(error)
    assert arrived.to_fields() == error.to_fields()


@pytest.mark.parametrize("name", sorted(CLASSES - {"PeerLost"}))
def test_an_error_keeps_code_and_fields_on_its_way_to_a_peer(name: str) -> None:
    error = example(name)
    notice = {**error.to_fields(), "error": name, "message": str(error)}
    arrived = transport._parse_notice(transport.NOTICE + json.dumps(notice).encode(), 1)
    assert type(arrived) is type(error) and arrived.to_fields() == error.to_fields()


@pytest.mark.parametrize(
    "fields",
    [
        {"code": "Not A Code"},
        {"code": 7},
        {"code": "a" * 61},
        {"code": ["x"]},
        {"party": 3},
        {"party": "1"},
        {"received": {"a": 1}},
        {"operation": 1.5},
    ],
    ids=str,
)
def test_malformed_fields_of_a_peer_are_ignored(fields: dict[str, Any]) -> None:
    error = errors.UsageError("text")
    error.read_fields(fields)
    assert error.to_fields() == errors.UsageError("text").to_fields()


def test_long_fields_are_cut() -> None:
    error = errors.UsageError("text", received="x" * 10_000)
    assert len(json.dumps(error.to_fields())) < 1000


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_with_another_text_keeps_code_and_fields(name: str) -> None:
    error = example(name)
    changed = error.with_text("line 3: another text")
    assert type(changed) is type(error) and str(changed) == "line 3: another text"
    assert changed.to_fields() == error.to_fields()
