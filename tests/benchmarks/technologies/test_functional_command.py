"""The command `functional`: measurements, files, output, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.benchmarks.records import append_record
from tfe_bench.benchmarks.report import drawing
from tfe_bench.benchmarks.technologies.functional import compared, jobs, measuring, page
from tfe_bench.benchmarks.technologies.functional.curve import Table
from tfe_bench.benchmarks.technologies.functional.sweep import SweepCell
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.errors import UsageError

_SMALL = ["--length", "10", "--result-bits", "16", "--batch", "2", "--repeat", "1"]
_LIGHT = [*_SMALL, "--threads", "1", "--table-bits", "12", "--outputs", "3"]


def test_a_sweep_prints_a_table_and_keeps_its_measurements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "functional.jsonl"
    assert main(["functional", *_LIGHT, "--record", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "Functional encryption" in shown and "2.2 times" in shown
    kept = [Measurement.from_json(line) for line in file.read_text().splitlines()]
    assert [m.job for m in kept] == ["sweep", "logarithms"]
    assert all(m.correct for m in kept)
    assert kept[0].figures["bytes_up"] == 2 * 11 * 32
    assert kept[0].figures["key_bytes"] == 3 * 32
    assert kept[1].modeled == ("walk_seconds", "speed_up_over_walk")


@pytest.mark.parametrize("scheme", ["selective", "adaptive"])
def test_json_is_one_measurement_a_line(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["functional", *_LIGHT, "--scheme", scheme, "--json"]) == 0
    captured = capsys.readouterr()
    first = json.loads(captured.out.splitlines()[0])
    assert first["parameters"]["scheme"] == scheme and first["correct"] is True
    assert captured.err == ""


def test_energy_is_the_published_sheet_and_follows_its_inputs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["functional", "--energy", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert round(document["figures"]["saved_dollars_year"], -2) == 40500
    assert main(["functional", "--energy", "--speed-up", "4.4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["nodes_replaced"] == 35.2


def test_the_group_modulo_a_prime_beside_the_curve(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gmpy2")
    command = ["functional", "--modulus", "1024", "--length", "3", "--outputs", "2", "--json"]
    command += ["--table-bits", "8"]
    assert main(command) == 30
    assert "80 bits of security" in capsys.readouterr().err
    assert main([*command, "--insecure-for-comparison"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["correct"] is True and document["figures"]["decrypt_ratio"] > 1


@pytest.mark.parametrize(
    ("given", "code", "text"),
    [
        (["--length", "0"], 2, "--length"),
        (["--length", "16385"], 2, "[number-out-of-range]"),
        (["--length", "1024", "--result-bits", "8"], 2, "[result-bits-too-few]"),
        (["--result-bits", "41"], 2, "[number-out-of-range]"),
        (["--result-bits", "40", "--table-bits", "8"], 2, "[too-large]"),
        (["--table-bits", "3"], 2, "[number-out-of-range]"),
        (["--table-bits", "29"], 2, "[number-out-of-range]"),
        (["--threads", "0"], 2, "--threads"),
        (["--outputs", "0"], 2, "--outputs is"),
        (["--batch", "2000"], 2, "batch"),
        (["--length", "16384", "--outputs", "4096"], 2, "--outputs is 1 to 2047"),
        (["--repeat", "0"], 2, "--repeat"),
        (["--allow-leakage"], 2, "--lenet5"),
        (["--batches", "2"], 2, "--lenet5"),
        (["--speed-up", "2"], 2, "--energy"),
        (["--energy", "--speed-up", "nan"], 2, "--speed-up"),
        (["--energy", "--lenet5"], 2, "[conflicting-options]"),
        (["--lenet5", "--length", "5"], 2, "[conflicting-options]"),
        (["--insecure-for-comparison"], 2, "--modulus"),
        (["--modulus", "512"], 2, "[size-not-supported]"),
        (["--modulus", "2048"], 30, "[insecure-parameters]"),
        (["--lenet5", "--allow-leakage", "--batches", "0"], 2, "--batches"),
        (["--lenet5", "--allow-leakage", "--data-dir", "/nowhere"], 10, "/nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    given: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["functional", *given]) == code
    assert text in capsys.readouterr().err


def test_inputs_of_a_cell_fill_its_range() -> None:
    for length in (10, 100, 784, 1024):
        for bits in (16, 20, 24, 28, 32):
            cell = SweepCell(length=length, result_bits=bits, outputs=64)
            messages, weights = measuring.draw_sweep_inputs(cell, 1)
            results = messages @ weights.T
            assert messages.min() >= 0 and messages.max() < 1 << cell.input_bits
            assert np.abs(results).max() <= cell.bound
            assert np.abs(results).max() > cell.bound / 40
    with raises(UsageError, "result-bits-too-few"):
        SweepCell(length=1024, result_bits=12)


def test_logarithms_by_other_means_agree() -> None:
    result = compared.compare_logarithms(
        SweepCell(length=10, result_bits=16, outputs=4), Table(10), 1
    )
    assert result.correct and result.figures["published_speed_up"] == 2.2


def test_jobs_say_what_they_cost_and_leak(tmp_path: Path) -> None:
    for measurement in (jobs.run_functional_product(True), jobs.run_functional_dense(2, True)):
        assert measurement.correct and measurement.figures["rounds"] == 1
        append_record(tmp_path / "jobs.jsonl", measurement)
        outputs = 1 if measurement.job == "J1" else 128
        assert measurement.figures["key_rank"] == outputs
        assert measurement.figures["key_bytes"] == 32 * outputs
        assert measurement.figures["bytes_up"] == measurement.parameters["batch"] * 785 * 32
    assert "key rank 128 of 784" in str(measurement.figures["leakage"])


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> Any:
    """Use random pictures in the place of MNIST."""
    from tfe_bench.models.datasets import mnist

    def some(n: int) -> Any:
        return rng.integers(0, 256, (n, 28, 28)).astype(np.uint8), rng.integers(0, 10, n)

    (train, train_labels), (test, test_labels) = some(128), some(64)
    dataset = mnist.Mnist(train, train_labels, test, test_labels, "noise")
    monkeypatch.setattr(mnist, "load", lambda folder: dataset)


@pytest.mark.slow
def test_lenet_is_measured_and_attacked(
    digits: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["functional", "--lenet5", "--quick", "--threads", "2", "--table-bits", "18"]
    assert main(command) == 30
    assert "[keys-reveal-inputs]" in capsys.readouterr().err
    file = tmp_path / "lenet.jsonl"
    assert main([*command, "--allow-leakage", "--record", str(file)]) == 0
    assert "100.0% of the pixels" in capsys.readouterr().out
    measurement = Measurement.from_json(file.read_text())
    assert measurement.correct and measurement.figures["pixels_recovered"] == 1
    assert measurement.figures["few_keys_pixels_recovered"] < 0.1
    assert set(measurement.modeled) >= {"epoch_hours", "plain_epoch_hours"}
    assert jobs.run_functional_network(True, tmp_path, 4).correct


def _train_lenet(**changed: Any) -> Measurement:
    """Return a measurement of LeNet-5 in the form of `training.measure`."""
    picture = bytes(range(256)) * 3 + bytes(16)
    figures = {
        **{"encrypt_all_hours": 0.05, "epoch_hours": 0.8, "plain_epoch_hours": 0.002},
        **{"leakage": "all", "pixels_recovered": 1.0, "few_keys": 128},
        **{"few_keys_pixels_recovered": 0.01, "tested": 64, "accuracy": 0.9},
        **{"accuracy_in_the_clear": 0.9, "published_hours": [["FE", "3h", "11h33m"]]},
        "pictures": {name: [picture.hex()] * 2 for name in ("original", "all keys", "128 keys")},
    }
    return Measurement(
        technology="functional",
        job="LeNet-5 training",
        parameters={"threads": 2, "batches": 4},
        seconds=None,
        figures=figures | changed,
    )


def test_a_report_has_its_section_and_pictures(tmp_path: Path, one_theme: None) -> None:
    file = tmp_path / "records.jsonl"
    cell = SweepCell(length=10, result_bits=16, outputs=4, table_bits=10)
    for measurement in (
        measuring.measure_cell(cell, Table(10), 1),
        compared.compare_logarithms(cell, Table(10), 1),
        _train_lenet(),
    ):
        append_record(file, measurement)
    assert main(["report", str(tmp_path)]) == 0
    html = (tmp_path / "report.html").read_text()
    for text in ("Functional encryption", "11h33m", "100.0% of the pixels"):
        assert text in html, text
    for name in ("logarithms", "leakage"):
        assert (tmp_path / f"report-functional_{name}.png").stat().st_size > 1000


def test_a_report_without_measurements_of_it_has_no_section() -> None:
    assert page.build_sections([], {}) == []
    assert all(make(drawing.LIGHT, False) is None for make in page.list_pictures([]).values())
