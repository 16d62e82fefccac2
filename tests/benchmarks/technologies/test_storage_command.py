"""`python -m tfe_bench storage`: output, files, refusals, and the section of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfe_bench.__main__ import main
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.benchmarks.technologies.storage import page


def read_measurements(file: Path) -> list[Measurement]:
    return [Measurement.from_json(line) for line in file.read_text().splitlines()]


def test_the_published_tables_come_without_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.jsonl"
    assert main(["storage", "--record", str(file)]) == 0
    output = capsys.readouterr().out
    assert "The largest difference is 0.18 %" in output and "empty" in output
    assert len(read_measurements(file)) == 23
    assert {m.technology for m in read_measurements(file)} == {"storage"}


def test_a_projection_says_what_clients_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\nweights_on = "device"\nstorage_gigabytes_per_second = 4\n'
        "write_gigabytes_per_second = 2\nmemory_gigabytes = 8\ndisk_gigabytes = 100\n"
        "key_cache_gigabytes = 2\nwatts = 50\nprice = 1000\n"
    )
    words = ["storage", "--device", str(file), "--devices", "2", "--clients", "4"]
    assert main([*words, "--arrivals", "0.5", "--bandwidth", "2,8", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [m["parameters"]["gigabytes_per_second"] for m in lines] == [2.0, 8.0]
    slow, fast = (m["figures"] for m in lines)
    assert slow["median_seconds"] > fast["median_seconds"]
    assert fast["p95_seconds"] >= fast["median_seconds"]
    assert {"joules_per_inference", "price_per_inference_per_second"} <= set(fast)
    assert set(lines[0]["figures"]) - set(lines[0]["modeled"]) == {"processor_seconds"}
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "modeled" in output and "as fast as the processor" in output and "J for one" in output


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--bandwidth", "nan"], 2, "--bandwidth is"),
        (["--bandwidth", "0"], 2, "--bandwidth is"),
        (["--bandwidth", "fast"], 2, "[malformed-option]"),
        (["--bandwidth", ",".join("1" * 100)], 2, "[wrong-number-of-values]"),
        (["--arrivals", "nan"], 2, "--arrivals is"),
        (["--devices", "0"], 2, "--devices is"),
        (["--devices", "1e9"], 2, "--devices is"),
        (["--clients", "-1"], 2, "--clients is"),
        (["--requests", "1e9"], 2, "--requests is"),
        (["--seed", "-1", "--devices", "1"], 2, "--seed is"),
        (["--device", "cdsd"], 10, '"csd"'),
        (["--device", "absent.toml"], 10, "[file-not-readable]"),
        (["--model", "absent.toml"], 10, "[file-not-readable]"),
        (["--model", "cnn"], 10, "published"),
        (["--clients", "2000"], 10, "[disk-too-small]"),
        (["--record", "/absent/folder/x.jsonl"], 10, "--record"),
        (["--validate", "--devices", "2"], 2, "--devices"),
        (["--validate", "--no-affinity"], 2, "--no-affinity"),
        (["--validate", "--bandwidth", "nan"], 2, "--bandwidth is"),
        (["--validate", "--degree", "4096"], 2, "--degree is"),
        (["--validate", "--repeat", "0"], 2, "--repeat is"),
    ],
)
def test_what_does_not_fit_is_refused(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["storage", *words]) == code
    caught = capsys.readouterr()
    assert said in caught.err and "Received" in caught.err and not caught.out


def test_the_report_has_both_tables_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_theme: None
) -> None:
    file = tmp_path / "all.jsonl"
    for words in ([], ["--devices", "3"], ["--devices", "3"]):
        assert main(["storage", *words, "--record", str(file)]) == 0
    assert main(["report", str(tmp_path)]) == 0
    assert "report-storage.png" in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text()
    assert "Homomorphic inference on storage devices" in text
    assert text.count("empty in the source") == 1
    assert text.count("published CNN") == 1  # the newest of two equal ones


def test_a_page_takes_figures_of_other_people() -> None:
    odd: dict[str, Any] = {"latency_seconds": "fast", "published_seconds": True}
    measurements = [
        Measurement(technology="storage", job=job, parameters={}, seconds=None, figures=odd)
        for job in ("published tables", "projection", "validation", "another")
    ]
    pictures = page.list_pictures(measurements)
    assert set(pictures) == {"storage"}
    [section] = page.build_sections(measurements, {})
    assert section.parts and page.build_sections([], {}) == []
