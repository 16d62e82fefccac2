"""The command `homomorphic`, its advice, and its section of the report."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import raises
from tfe_bench.__main__ import main
from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.report import reading
from tfe_bench.benchmarks.technologies.homomorphic import accuracy, advice, model, page, published
from tfe_bench.benchmarks.technologies.homomorphic.operations import DEPTH, OPERATIONS
from tfe_bench.benchmarks.technologies.homomorphic.parameters import (
    SCHEMES,
    choose_scheme_parameters,
)
from tfe_bench.benchmarks.technologies.measurement import Measurement, select_measurements
from tfe_bench.errors import UsageError

pytest.importorskip("seal")

_MNIST = Path(os.environ.get("TFE_BENCH_MNIST", "../shared/data/mnist"))


@pytest.mark.parametrize(
    ("code", "word", "words"),
    [
        (2, '"CKKS"', ["--scheme", "CKSS"]),
        (2, "[degree-not-supported]", ["--degree", "5000"]),
        (2, "[degree-not-supported]", ["--degree", "4096,4097"]),
        (2, "[not-whole]", ["--degree", "big"]),
        (2, "[not-whole]", ["--degree", "4096,"]),
        (30, "[insecure-parameters]", ["--degree", "4096", "--primes", "40,40,60"]),
        (30, "--insecure-for-comparison", ["--degree", "2048", "--primes", "30,30,30"]),
        (2, "[number-out-of-range]", ["--degree", "8192", "--primes", "10,10"]),
        (2, "[number-out-of-range]", ["--degree", "8192", "--primes", "30"]),
        (2, "[unknown-name]", ["--advise", "ad=3"]),
        (2, "[invalid-work]", ["--advise", "something"]),
        (2, "[invalid-work]", ["--advise", ""]),
        (2, "[empty-work]", ["--advise", "exact"]),
        (2, "[number-out-of-range]", ["--advise", "multiply=1,depth=0"]),
        (2, "--images goes with --network", ["--images", "3"]),
        (2, "--data-dir goes with --network", ["--dense", "--data-dir", "."]),
        (2, "--scheme goes with the table", ["--dense", "--scheme", "BFV"]),
        (2, "--dense runs at N = 8192", ["--dense", "--degree", "4096"]),
        (2, "[degree-not-supported]", ["--network", "--degree", "4096"]),
        (2, "[number-out-of-range]", ["--network", "--images", "0", "--data-dir", str(_MNIST)]),
        (10, "[file-not-found]", ["--network", "--data-dir", "no-such-folder"]),
        (2, "--repeat", ["--repeat", "0"]),
        (2, "--seed", ["--seed", "-1"]),
        (10, "record", ["--record", "/no/such/folder/r.jsonl"]),
    ],
)
def test_bad_orders_are_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], code: int, word: str, words: list[str]
) -> None:
    if "--images" in words and "--network" in words and not _MNIST.is_dir():
        pytest.skip("MNIST is not here")
    assert main(["homomorphic", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and word in err and "Traceback" not in err, err


def test_two_jobs_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["homomorphic", "--dense", "--network"])
    assert ended.value.code == 2 and "not allowed with" in capsys.readouterr().err


def test_without_the_library_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "seal", None)
    for words in ([], ["--dense"]):
        assert main(["homomorphic", *words]) == 10
        assert "pip install '.[technologies]'" in capsys.readouterr().err


def test_the_table_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    words = ["--degree", "4096", "--scheme", "BFV", "--repeat", "2", "--record", str(file)]
    assert main(["homomorphic", *words, "--advise", "products"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "BFV, N = 4096: 128 bits of security; primes of 36, 36, 37 bits" in out
    assert "debug build" in out and "error of copying" not in out
    assert "a rotation by 11 takes" in out and "Take BFV at N = 4,096" in out
    kept = select_measurements(reading.read_report_input([file]).others)
    assert {m.job for m in kept} == {*OPERATIONS, "rotate_rows_11", DEPTH} - {"rescale"}
    capsys.readouterr()
    assert main(["homomorphic", *words[:-2], "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["job"] for line in lines] == [m.job for m in kept]


def test_insecure_parameters_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    words = ["--degree", "2048", "--primes", "30,25,35", "--scheme", "CKKS", "--repeat", "1"]
    words += ["--insecure-for-comparison", "--record", str(file)]
    assert main(["homomorphic", *words]) == 0
    assert "LESS THAN 128 BITS OF SECURITY" in capsys.readouterr().out
    sections = page.build_sections(
        select_measurements(reading.read_report_input([file]).others), {}
    )
    assert "below 128" in repr(sections)


@pytest.mark.skipif(not _MNIST.is_dir(), reason="MNIST is not here")
def test_pictures_are_spread_over_processes_in_order() -> None:
    trained, fractions = model.made_up_mnist_model(4), []
    measured = accuracy.measure_encrypted_accuracy(
        9, lambda part, _: fractions.append(part), folder=_MNIST, trained=trained, degree=8192
    )
    figures = measured.figures
    assert measured.correct and figures["agreement"] == 1.0
    assert figures["accuracy"] == figures["accuracy_plaintext"]
    assert (
        figures["bytes_down"] == 3 * 131185
        and fractions == sorted(fractions)
        and fractions[-1] == 1.0
    )
    with raises(UsageError, "number-out-of-range", operation="The number of pictures"):
        accuracy.measure_encrypted_accuracy(10_001, lambda *_: None, folder=_MNIST, trained=trained)


@pytest.mark.slow
@pytest.mark.skipif(not _MNIST.is_dir(), reason="MNIST is not here")
def test_the_trained_network_is_right_and_training_repeats_itself() -> None:
    first = model.train_model(_MNIST, seed=5, epochs=1)
    again = model.train_model(_MNIST, seed=5, epochs=1)
    assert (first.output == again.output).all()
    measured = accuracy.measure_encrypted_accuracy(
        16, lambda *_: None, folder=_MNIST, trained=first
    )
    assert measured.correct and measured.figures["accuracy_plaintext"] > 0.8


# ---- advice and report


def make_measurement(
    scheme: str, degree: int, job: str, seconds: float = 0.01, **more: Any
) -> Measurement:
    sizes = ("fresh_ciphertext", "relinearization_key", "rotation_keys", "peak_memory")
    figures = {f"{name}_bytes": 10**6 for name in sizes} | {"per_slot_seconds": 1e-6} | more
    theirs = published.read_published_operations().get((scheme, job, degree))
    if theirs is not None:
        figures |= {"published_seconds": theirs.seconds, "published_ratio": 10.0}
        figures |= {"published_suspect": theirs.suspect} if theirs.suspect else {}
    return Measurement(
        technology="homomorphic",
        job=job,
        parameters=choose_scheme_parameters(scheme, degree).as_json(),
        seconds=None if job == DEPTH else Seconds.from_times([seconds]),
        figures=figures,
        correct=True,
    )


def measure_all(**slow: float) -> list[Measurement]:
    """Return all schemes at two degrees; every operation takes 10 ms, except the named ones."""
    measurements = []
    for scheme in SCHEMES:
        for degree, depth in ((8192, 3), (16384, 7)):
            names = [
                n for n in OPERATIONS if n != ("rescale" if scheme != "CKKS" else "rotate_columns")
            ]
            measurements += [
                make_measurement(scheme, degree, n, slow.get(scheme, 0.01) * degree / 8192)
                for n in names
            ]
            measurements.append(make_measurement(scheme, degree, DEPTH, depth=depth))
    return measurements


def test_advice_follows_the_measurements() -> None:
    work = advice.CiphertextWork.parse_work("exact,multiply=10,depth=1")
    assert advice.list_scheme_choices(work, measure_all(BFV=0.001))[0].scheme == "BFV"
    best = advice.list_scheme_choices(work, measure_all(BGV=0.001))
    assert (best[0].scheme, best[0].degree) == ("BGV", 8192)
    assert best[0].seconds == pytest.approx(10 * 0.002)
    assert [c.scheme for c in best if c.seconds is None] == ["CKKS", "CKKS"]


def test_advice_says_why_not() -> None:
    deep = advice.list_scheme_choices(
        advice.CiphertextWork.parse_work("multiply=4,depth=5"), measure_all()
    )
    assert [(c.scheme, c.degree) for c in deep if c.seconds is not None] == [("CKKS", 16384)]
    assert any("a depth of 3 came out right" in c.reason for c in deep)
    assert any("-bit values before such products" in c.reason for c in deep)
    advice_text = advice.write_advice(
        advice.CiphertextWork.parse_work("multiply=4,depth=9"), measure_all()
    )
    assert advice_text[0] == "None of what was measured can do it." and len(advice_text) == 7
    assert advice.list_scheme_choices(advice.CiphertextWork.parse_work("sums"), []) == []


def test_the_report_has_the_table_the_advice_and_a_picture(tmp_path: Path, one_theme: None) -> None:
    measured = measure_all()
    assert page.build_sections([], {}) == []
    wrong = dataclasses.replace(measured[0], correct=False)
    foreign = dataclasses.replace(measured[0], parameters={"scheme": "CKKS", "degree": "x"})
    empty = dataclasses.replace(make_measurement("BFV", 8192, DEPTH), figures={})
    text = dataclasses.replace(measured[0], figures={"per_slot_seconds": "fast"})
    assert page.build_sections([wrong, foreign, empty, text], {}) == []
    file = tmp_path / "r.jsonl"
    file.write_text("".join(m.to_json() + "\n" for m in measured))
    assert main(["report", str(tmp_path)]) == 0
    shown = (tmp_path / "report.html").read_text()
    for word in ("Homomorphic encryption", "debug build", "error of copying", "rotate_columns"):
        assert word in shown
    assert (tmp_path / "report-homomorphic.png").stat().st_size > 10_000
