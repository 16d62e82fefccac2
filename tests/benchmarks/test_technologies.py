"""Measurements of other technologies: written, read, refused, and shown by the report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.benchmarks import records
from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.report import reading
from tfe_bench.benchmarks.technologies import libraries
from tfe_bench.benchmarks.technologies.measurement import Measurement, select_measurements
from tfe_bench.errors import ConfigError, DataError, UsageError


def make_measurement(**changed: Any) -> Measurement:
    fields: dict[str, Any] = {
        "technology": "functional",
        "job": "decrypt",
        "parameters": {"length": 784, "shape": (1, 2)},
        "seconds": Seconds.from_times([0.25, 0.5]),
        "figures": {"ciphertext_bytes": 25120, "leakage": "the result"},
        "modeled": ("ciphertext_bytes",),
        "correct": True,
    }
    return Measurement(**fields | changed)


@pytest.mark.parametrize("changed", [{}, {"seconds": None, "correct": None, "modeled": ()}])
def test_it_is_read_back_as_written(changed: dict[str, Any]) -> None:
    written = make_measurement(**changed)
    assert Measurement.from_json(written.to_json()) == written


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("wrong-type", {"technology": ""}),
        ("wrong-type", {"job": 3}),
        ("wrong-type", {"figures": {"error": float("nan")}}),
        ("wrong-type", {"figures": {"error": float("inf")}}),
        ("unknown-name", {"modeled": ("absent",)}),
        ("wrong-type", {"seconds": 0.5}),
        ("wrong-type", {"correct": "yes"}),
        ("wrong-type", {"machine": None}),
        ("invalid-time", {"time": "yesterday"}),
    ],
)
def test_what_cannot_be_is_refused(code: str, changed: dict[str, Any]) -> None:
    with raises(UsageError, code):
        make_measurement(**changed)


@pytest.mark.parametrize(
    "broken",
    [
        lambda flat: flat | {"schema": 1},
        lambda flat: flat | {"more": 1},
        lambda flat: {k: v for k, v in flat.items() if k != "job"},
        lambda flat: flat | {"modeled": "ciphertext_bytes"},
        lambda flat: flat | {"seconds": [1.0]},
        lambda flat: flat | {"machine": {"cpu": "x"}},
        lambda flat: flat | {"seconds": flat["seconds"] | {"all": 3}},
    ],
)
def test_broken_lines_are_refused(broken: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    flat = broken(json.loads(make_measurement().to_json()))
    with pytest.raises(DataError):
        Measurement.from_json(json.dumps(flat))
    with pytest.raises(DataError):
        Measurement.from_json("no JSON")


def test_a_folder_holds_them_beside_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.jsonl"
    for each in (
        make_measurement(),
        make_measurement(),
        make_measurement(job="encrypt", correct=False),
    ):
        records.append_record(file, each)
    report_input = reading.read_report_input([tmp_path])
    assert not report_input.records
    assert [m.job for m in select_measurements(report_input.others)] == ["decrypt", "encrypt"]
    assert main(["report", str(tmp_path)]) == 0
    assert "2 records" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "Wrong results" in page and "functional encrypt" in page


def test_a_missing_library_is_told_with_its_extra() -> None:
    with raises(ConfigError, "library-not-installed", operation="a_library_that_is_not_there"):
        libraries.import_library("a_library_that_is_not_there", "This")
