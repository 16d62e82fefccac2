"""The commands train and provide: what they refuse before any worker starts, and whole rounds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tfe_bench.__main__ import main
from tfe_bench.benchmarks.records import Record

_MNIST = Path(os.environ.get("TFE_BENCH_MNIST", "../shared/data/mnist"))


def _table(path: Path, rows: int = 120, columns: str = "abc", seed: int = 4) -> Path:
    rng = np.random.default_rng(seed)
    x = rng.normal(3, 2, (rows, len(columns)))
    y = (x - 3) @ np.linspace(-1, 2, len(columns)) > 0
    lines = [
        ",".join([*(f"{v:.6f}" for v in row), str(int(t))]) for row, t in zip(x, y, strict=True)
    ]
    path.write_text("\n".join([",".join([*columns, "label"]), *lines]) + "\n")
    return path


def _fails(capsys: pytest.CaptureFixture[str], code: int, word: str, *arguments: str) -> None:
    assert main(list(arguments)) == code, arguments
    out, err = capsys.readouterr()
    assert out == "" and word in err and "Traceback" not in err, err


def test_bad_orders_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(_table(tmp_path / "t.csv"))
    (tmp_path / "bad.csv").write_text("a,label\n1,0\n,1\n2,1\n3,0\n4,1\n5,1\n")
    (tmp_path / "broken.keras").write_bytes(b"no model")
    csv = ("--dataset", file, "--label", "label")
    for code, word, arguments in (
        (2, 'Did you mean "logistic"', ("logistics",)),
        (2, 'Did you mean "adam"', ("logistic", "--optimizer", "adan")),
        (2, "--epochs", ("logistic", "--epochs", "0")),
        (2, "--batch", ("logistic", "--batch", "0")),
        (2, "--steps", ("logistic", "--steps", "0")),
        (2, "--seed", ("logistic", "--seed", "-1")),
        (2, "--learning-rate", ("logistic", "--learning-rate", "-1")),
        (2, 'Did you mean "mnist"', ("logistic", "--dataset", "mnits")),
        (2, "--label COLUMN", ("logistic", "--dataset", file)),
        (2, 'Did you mean "label"', ("logistic", "--dataset", file, "--label", "labl")),
        (2, "28 x 28", ("network-a", *csv)),
        (2, "a column of numbers", ("linear",)),
        (2, "--columns", ("logistic", "--columns", "a")),
        (2, "--columns", ("logistic", "--rows", "a", "--labels", "b")),
        (2, "--holdout goes", ("logistic", "--holdout", "5")),
        (2, "--checkpoint NAME", ("logistic", "--restart")),
        (2, "--deploy NAME", ("logistic", "--allow", "x")),
        (2, ".keras file", ("logistic", "--output", "x.h5")),
        (2, "profile", ("logistic", *csv, "--profile", "moon")),
        (2, "fewer rows than one batch", ("logistic", *csv, "--batch", "128")),
        (2, "--client goes with", ("logistic", *csv, "--client", "a")),
        (
            10,
            "row 2, column 'a'",
            ("logistic", "--dataset", f"{tmp_path}/bad.csv", "--label", "label"),
        ),
        (10, "none.keras", ("none.keras", *csv)),
        (10, "broken.keras", (f"{tmp_path}/broken.keras", *csv)),
        (10, "has neither", ("logistic", "--data-dir", str(tmp_path))),
    ):
        _fails(capsys, code, word, "train", *arguments)
    more: tuple[tuple[int, str, tuple[str, ...]], ...] = (
        (2, "NAME, or --list", ()),
        (2, "NAME, or --list", ("a", "--list")),
        (2, "both or none", ("a",)),
        (2, "1 to 63", ("A/b", "--csv", file)),
        (2, "--label COLUMN", ("a", "--csv", file, "--labels-only")),
        (2, "--part is I/K", ("a", "--dataset", "mnist", "--data-dir", "x", "--part", "3/2")),
        (2, "--part and", ("a", "--csv", file, "--part", "1/2")),
        (2, "cluster.toml", ("a", "--csv", file, "--for", "x y")),
        (10, "row 2, column 'a'", ("a", "--csv", f"{tmp_path}/bad.csv")),
        (10, "none.csv", ("a", "--csv", f"{tmp_path}/none.csv")),
    )
    for code, word, words in more:
        if "--data-dir" in words and not _MNIST.is_dir():
            continue
        given = [str(_MNIST) if a == "x" and "mnist" in words else a for a in words]
        _fails(capsys, code, word, "provide", *given)


def test_a_table_is_learnt_kept_and_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, record = str(_table(tmp_path / "t.csv")), tmp_path / "r.jsonl"
    model, kept = tmp_path / "m.keras", tmp_path / "kept"
    common = ["train", "logistic", "--dataset", file, "--label", "label", "--batch", "16"]
    common += ["--checkpoint", "t", "--every", "2", "--models", str(kept)]
    assert main([*common, "--epochs", "2", "--record", str(record)]) == 0
    out = capsys.readouterr().out
    assert "per batch" in out and "plaintext" in out and "difference" in out
    found = Record.from_json(record.read_text())
    assert found.workload == "train" and found.correct is True and found.agreement is not None
    assert found.parameters["dataset"] == "t.csv" and found.parameters["rows"] == 96
    assert len(found.agreement["private"]) == len(found.agreement["plain"]) == 2
    assert found.rounds_ahead is not None and found.rounds_ahead <= 10
    assert kept.stat().st_mode & 0o777 == 0o700

    more = [*common, "--epochs", "3", "--json", "--output", str(model)]
    assert main(more) == 0
    again = Record.from_json(capsys.readouterr().out)
    assert again.parameters["from_step"] == 12 and again.agreement is not None
    assert len(again.agreement["private"]) == 3
    assert model.stat().st_mode & 0o777 == 0o600
    assert main(more) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["complete"] is True and told["steps"] == 18 and len(told["val_accuracy"]) == 3
    assert main(more[:-3]) == 0
    assert "is complete: 18 steps" in capsys.readouterr().out


@pytest.mark.slow
def test_owners_provide_and_somebody_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, kept = str(_table(tmp_path / "t.csv")), ("--models", str(tmp_path / "kept"))

    def told(*arguments: str) -> dict[str, object]:
        assert main([*arguments, *kept, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    rows = told("provide", "rows", "--csv", file, "--label", "label")
    assert rows["rows"] == 120 and rows["features"] == [3] and rows["labels"] is True
    assert main(["provide", "--list", *kept]) == 0
    assert "120" in capsys.readouterr().out
    found = told("train", "logistic", "--rows", "rows", "--batch", "16", "--holdout", "24")
    assert isinstance(found["agreement"], dict) and found["agreement"]["samples"] == 24
    told("provide", "answers", "--csv", file, "--label", "label", "--labels-only")
    asked = ("--columns", "rows", "--labels", "answers", "--batch", "16", "--epochs", "1")
    told("train", "logistic", *asked, "--deploy", "answered")
    assert main(["models", *kept]) == 0
    assert "answered" in capsys.readouterr().out
    assert told("provide", "--remove", "rows") == {"removed": "rows"}


@pytest.mark.slow
def test_a_keras_file_and_a_regression_are_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import keras

    file = str(_table(tmp_path / "t.csv"))
    layers = [keras.Input((3,)), keras.layers.Dense(4, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(2, activation="softmax")])
    model.save(tmp_path / "m.keras")
    common = ("--dataset", file, "--batch", "16", "--epochs", "2", "--json")
    for words in (
        ("train", str(tmp_path / "m.keras"), "--label", "label", "--optimizer", "adam"),
        ("train", "linear", "--label", "c", "--reveal-loss", "--guard", "3"),
    ):
        assert main([*words, *common]) == 0
        found = Record.from_json(capsys.readouterr().out)
        assert found.correct is True


@pytest.mark.slow
@pytest.mark.skipif(not _MNIST.is_dir(), reason="set TFE_BENCH_MNIST to a folder of MNIST")
def test_logistic_regression_reaches_its_plaintext_accuracy(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    words = ("train", "logistic", "--data-dir", str(_MNIST), "--record", str(record))
    assert main(list(words)) == 0
    found = Record.from_json(record.read_text()).agreement
    assert found is not None
    print(found)
    assert len(found["private"]) == 5 and found["samples"] == 10_000
    assert abs(found["private"][-1] - found["plain"][-1]) <= 0.003
