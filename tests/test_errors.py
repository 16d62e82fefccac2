"""Errors have listed codes, and a cluster preserves their code and fields."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pages import import_page
from tests.paths import ROOT
from tfe_bench import errors
from tfe_bench.cluster import faults, wire
from tfe_bench.error_codes import CODES, DEFAULT_CODES

FOLDERS = ("protocols", "models", "cluster", "benchmarks", "tfe_bench")
CLASSES = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.TfeBenchError)
}
# Classes without the argument `code`: their own code names their only condition.
ONE_CONDITION = {"PeerLost"}


def product_trees() -> Iterator[tuple[Path, ast.Module]]:
    """Yield every file of the product with its syntax tree."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(p.is_symlink() for p in path.parents if p != ROOT):
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def codes_in(node: ast.AST) -> Iterator[str]:
    """Yield the texts of `code=...` arguments, also of classes, and of such defaults."""
    for call in ast.walk(node):
        if isinstance(call, (ast.Call, ast.ClassDef)):
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


def name_of(node: ast.AST | None) -> str:
    """Return the last part of a name such as `errors.UsageError`, or ''."""
    return getattr(node, "id", "") or getattr(node, "attr", "")


def classes_in(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of the error classes and of all their subclasses."""
    bases = {
        node.name: {name_of(base) for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    classes = set(CLASSES)
    while more := {name for name in bases.keys() - classes if bases[name] & classes}:
        classes |= more
    return classes


def errors_without_code(tree: ast.Module, classes: set[str]) -> Iterator[int]:
    """Yield the lines that create or raise an error of a class without a code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in classes:
            if all(keyword.arg != "code" for keyword in node.keywords):
                yield node.lineno
        elif isinstance(node, ast.Raise) and name_of(node.exc) in classes:
            yield node.lineno


def test_every_code_is_listed_and_used() -> None:
    used = {code for _, tree in product_trees() for code in codes_in(tree)}
    listed = CODES.keys() | DEFAULT_CODES.keys()
    assert used <= listed, f"not in tfe_bench/error_codes.py: {sorted(used - listed)}"
    assert CODES.keys() <= used, f"no error has these codes: {sorted(CODES.keys() - used)}"
    assert not CODES.keys() & DEFAULT_CODES.keys()
    assert {getattr(errors, name).code for name in CLASSES} == DEFAULT_CODES.keys()


def test_codes_are_sorted_sentences() -> None:
    for codes in (CODES, DEFAULT_CODES):
        assert list(codes) == sorted(codes)
        assert all(text.endswith(".") and text[:1].isupper() for text in codes.values())
        assert all(errors._CODE.fullmatch(code) for code in codes)


def test_every_error_has_a_code() -> None:
    files = list(product_trees())
    classes = classes_in(tree for _, tree in files) - ONE_CONDITION
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, tree in files
        for line in errors_without_code(tree, classes)
    ]
    assert not places, "give these errors a code of tfe_bench/error_codes.py"


@pytest.mark.parametrize(
    "text",
    [
        "raise UsageError('text')",
        "raise errors.UsageError('text', received=1) from None",
        "raise UsageError",
        "raise Own('text')",
        "raise Nested('text')",
        "error = DataError('text')",
        "job.fail(failure or ProtocolError(text))",
    ],
)
def test_an_error_without_a_code_is_found(text: str) -> None:
    source = f"class Nested(Own): pass\nclass Own(errors.DataError, ValueError): pass\n{text}"
    tree = ast.parse(source)
    assert list(errors_without_code(tree, classes_in([tree]))) == [3]


@pytest.mark.parametrize(
    "text",
    ["raise UsageError('text', code='not-static')", "raise ValueError('text')", "raise"],
)
def test_other_statements_are_accepted(text: str) -> None:
    assert not list(errors_without_code(ast.parse(text), classes_in([])))


def test_the_page_lists_every_code() -> None:
    page = import_page("error_codes")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.renew(text) == text, "run python -m docs.error_codes --write"


def example_error(name: str) -> errors.TfeBenchError:
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
    error = example_error(name)
    arrived = wire.decode_error_event(json.loads(wire.encode_failure_event(error)[1:]))
    assert type(arrived) is type(error) and str(arrived) == str(error)
    assert arrived.to_fields() == error.to_fields()


@pytest.mark.parametrize("name", sorted(CLASSES - {"PeerLost"}))
def test_an_error_keeps_code_and_fields_on_its_way_to_a_peer(name: str) -> None:
    error = example_error(name)
    arrived = faults.decode_notice(faults.encode_notice(error), 1)
    if name in faults._REPORTED_KINDS:
        assert str(arrived) == f"Party 1 reported: {error}"
        assert type(arrived) is type(error)
        assert arrived.to_fields() == {**error.to_fields(), "reporter": 1}
    else:  # (no worker raises it during a job)
        assert name in {"OpsMissing", "ProfileError", "TfeBenchError", "VersionMismatch"}
        assert type(arrived) is errors.ProtocolError and arrived.code == "session-ended"


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
    error = example_error(name)
    changed = error.with_text("line 3: another text")
    assert type(changed) is type(error) and str(changed) == "line 3: another text"
    assert changed.to_fields() == error.to_fields()
