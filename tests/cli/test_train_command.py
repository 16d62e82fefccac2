"""The commands train and provide: refusals before any worker starts, and complete rounds."""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import SharedCluster
from tests.commands import check_failure
from tfe_bench.__main__ import main
from tfe_bench.benchmarks.records import Record
from tfe_bench.cli import train_options
from tfe_bench.cluster import launch

_MNIST = Path(os.environ.get("TFE_BENCH_MNIST", "../shared/data/mnist"))


def _write_table(path: Path, rows: int = 120, columns: str = "abc", seed: int = 4) -> Path:
    rng = np.random.default_rng(seed)
    x = rng.normal(3, 2, (rows, len(columns)))
    y = (x - 3) @ np.linspace(-1, 2, len(columns)) > 0
    lines = [
        ",".join([*(f"{v:.6f}" for v in row), str(int(t))]) for row, t in zip(x, y, strict=True)
    ]
    path.write_text("\n".join([",".join([*columns, "label"]), *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("rows", "given", "chosen"),
    [
        (None, (None, None), (128, 5)),
        (455, (None, None), (16, 22)),
        (455, (128, None), (128, 100)),
        (455, (None, 3), (16, 3)),
        (20, (None, None), (8, 100)),
        (100_000, (None, None), (128, 5)),
    ],
)
def test_a_small_table_takes_more_epochs_of_smaller_batches(
    rows: int | None, given: tuple[int | None, int | None], chosen: tuple[int, int]
) -> None:
    """Take 600 steps, or 5 to 100 epochs; a specified value has precedence."""
    arguments = argparse.Namespace(batch=given[0], epochs=given[1])
    train_options.choose_training_defaults(arguments, rows)
    assert (arguments.batch, arguments.epochs) == chosen


def test_bad_orders_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(_write_table(tmp_path / "t.csv"))
    (tmp_path / "bad.csv").write_text("a,label\n1,0\n,1\n2,1\n3,0\n4,1\n5,1\n")
    (tmp_path / "broken.keras").write_bytes(b"no model")
    table = ("--dataset", file, "--label", "label")
    for code, word, arguments in (
        (2, '"logistic"', ("logistics",)),
        (2, '"adam"', ("logistic", "--optimizer", "adan")),
        (2, "--epochs", ("logistic", "--epochs", "0")),
        (2, "--batch", ("logistic", "--batch", "0")),
        (2, "--steps", ("logistic", "--steps", "0")),
        (2, "--seed", ("logistic", "--seed", "-1")),
        (2, "--learning-rate", ("logistic", "--learning-rate", "-1")),
        (2, '"mnist"', ("logistic", "--dataset", "mnits")),
        (2, "--label COLUMN", ("logistic", "--dataset", file)),
        (2, '"label"', ("logistic", "--dataset", file, "--label", "labl")),
        (2, "[shape-mismatch]", ("network-a", *table)),
        (2, '"c"', ("logistic", *table, "--drop", "cc")),
        (2, '"a"', ("logistic", *table, "--features", "aa", "b")),
        (2, "[duplicate-name]", ("logistic", *table, "--features", "a", "a")),
        (2, "[duplicate-name]", ("logistic", *table, "--features", "a", "label")),
        (2, "--features and --drop name", ("logistic", "--drop", "a")),
        (2, "--target is for", ("logistic", "--target", "binary")),
        (2, '"number"', ("linear", *table, "--target", "numbers")),
        (2, "[target-mismatch]", ("logistic", *table, "--target", "number")),
        (2, "[missing-argument]", ("linear",)),
        (2, "--columns", ("logistic", "--columns", "a")),
        (2, "--columns", ("logistic", "--rows", "a", "--labels", "b")),
        (2, "--holdout requires", ("logistic", "--holdout", "5")),
        (2, "--checkpoint NAME", ("logistic", "--restart")),
        (2, "--deploy NAME", ("logistic", "--allow", "x")),
        (2, ".keras file", ("logistic", "--output", "x.h5")),
        (2, "profile", ("logistic", *table, "--profile", "moon")),
        (2, "[too-few-rows]", ("logistic", *table, "--batch", "128")),
        (2, "--client requires", ("logistic", *table, "--client", "a")),
        (
            10,
            "row 2, column 'a'",
            ("logistic", "--dataset", f"{tmp_path}/bad.csv", "--label", "label"),
        ),
        (10, "none.keras", ("none.keras", *table)),
        (10, "broken.keras", (f"{tmp_path}/broken.keras", *table)),
        (10, "[file-not-found]", ("logistic", "--data-dir", str(tmp_path))),
    ):
        check_failure(capsys, code, word, "train", *arguments, "--discard")
    for code, word, arguments in (
        (2, "[missing-argument]", ("logistic", *table)),
        (2, "--discard keeps no model", ("logistic", *table, "--discard", "--checkpoint", "a")),
        (2, "--discard keeps no model", ("logistic", *table, "--discard", "--deploy", "a")),
    ):
        check_failure(capsys, code, word, "train", *arguments)
    more: tuple[tuple[int, str, tuple[str, ...]], ...] = (
        (2, "[exactly-one-required]", ()),
        (2, "[exactly-one-required]", ("a", "--list")),
        (2, "[exactly-one-required]", ("a",)),
        (2, "[invalid-name]", ("A/b", "--csv", file)),
        (2, "--label COLUMN", ("a", "--csv", file, "--labels-only")),
        (2, "--part is I/K", ("a", "--dataset", "mnist", "--data-dir", "x", "--part", "3/2")),
        (2, "--part and", ("a", "--csv", file, "--part", "1/2")),
        (2, "--scale says which", ("a", "--csv", file, "--scale", file, "--raw")),
        (10, "[invalid-header]", ("a", "--csv", file, "--scale", file)),
        (2, "[option-requires-option]", ("a", "--dataset", "mnist", "--drop", "a")),
        (2, "cluster.toml", ("a", "--csv", file, "--for", "x y")),
        (10, "row 2, column 'a'", ("a", "--csv", f"{tmp_path}/bad.csv")),
        (10, "none.csv", ("a", "--csv", f"{tmp_path}/none.csv")),
    )
    for code, word, words in more:
        if "--data-dir" in words and not _MNIST.is_dir():
            continue
        inputs = [str(_MNIST) if a == "x" and "mnist" in words else a for a in words]
        check_failure(capsys, code, word, "provide", *inputs)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """Yield a cluster for all commands and the folder of its workers' stored data."""
    kept = tmp_path_factory.mktemp("running") / "kept"
    with launch.LocalCluster(models=kept) as cluster:
        yield kept, cluster


@pytest.fixture
def stored_folder(running: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let commands that would start their own workers use the running ones, and store models
    there.
    """
    folder, cluster = running

    def started(models: Path | str, **_: Any) -> SharedCluster:
        assert Path(models) == folder
        return SharedCluster(cluster)

    monkeypatch.setattr(launch, "LocalCluster", started)
    return folder


def test_a_table_is_learned_kept_and_gone_on_with(
    tmp_path: Path, stored_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, record = str(_write_table(tmp_path / "t.csv")), tmp_path / "r.jsonl"
    model = tmp_path / "m.keras"
    common = ["train", "logistic", "--dataset", file, "--label", "label", "--batch", "16"]
    common += ["--checkpoint", "t", "--every", "2", "--models", str(stored_folder)]
    assert main([*common, "--epochs", "2", "--record", str(record)]) == 0
    out = capsys.readouterr().out
    assert "per batch" in out and "plaintext" in out and "difference" in out
    loaded = Record.from_json(record.read_text())
    assert loaded.workload == "train" and loaded.correct is True and loaded.agreement is not None
    assert loaded.parameters["dataset"] == "t.csv" and loaded.parameters["rows"] == 96
    assert len(loaded.agreement["private"]) == len(loaded.agreement["plain"]) == 2
    assert loaded.rounds_ahead is not None and loaded.rounds_ahead <= 10
    assert loaded.prediction is not None and loaded.prediction["seconds"]["wan"] > 0.02
    assert stored_folder.stat().st_mode & 0o777 == 0o700

    more = [*common, "--epochs", "3", "--json", "--output", str(model)]
    assert main(more) == 0
    again = Record.from_json(capsys.readouterr().out)
    assert again.parameters["from_step"] == 12 and again.agreement is not None
    assert len(again.agreement["private"]) == 3
    assert model.stat().st_mode & 0o777 == 0o600
    assert main(more) == 0
    document = json.loads(capsys.readouterr().out)
    assert (
        document["complete"] is True
        and document["steps"] == 18
        and len(document["val_accuracy"]) == 3
    )
    assert main(more[:-3]) == 0
    assert "is complete: 18 steps" in capsys.readouterr().out


def _write_people(path: Path, rows: int, order: str = "") -> list[dict[str, str]]:
    """Write a typical table: numbers of all magnitudes, a text, and labels that are words."""
    rng = np.random.default_rng(11)
    age, income = rng.normal(45, 12, rows).round(), rng.lognormal(11, 0.6, rows).round(2)
    year, ratio = rng.integers(2005, 2024, rows), rng.uniform(0, 0.01, rows).round(6)
    z = (age - 45) / 12 + (np.log(income) - 11) / 0.6 - (ratio - 0.005) / 0.003
    price = income * 3 + 1000 * (age - 45) + rng.normal(0, 5000, rows)
    columns: dict[str, Any] = {"id": [f"c{i}" for i in range(rows)], "age": age, "income": income}
    columns |= {"year": year, "ratio": ratio, "note": ["hello"] * rows}
    columns |= {"granted": np.where(z > 0, "yes", "no"), "price": price.round(2)}
    names = order.split() or list(columns)
    lines = [{n: str(columns[n][i]) for n in names} for i in range(rows)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(lines)
    return lines


def test_a_model_of_a_table_is_used_on_the_tables_own_numbers(
    tmp_path: Path, stored_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train, predict in the clear, predict privately: by names, in the units of the columns."""
    import keras

    past, new = tmp_path / "past.csv", tmp_path / "new.csv"
    _write_people(past, 160)
    lines = _write_people(new, 7, "ratio note income age year")

    def run_words(*words: str | Path, code: int = 0) -> str:
        arguments = [str(w) for w in words]
        assert main([*arguments, "--models", str(stored_folder)]) == code, arguments
        out, err = capsys.readouterr()
        return err if code or words[0] == "predict" else out

    def read_rows(path: Path) -> list[dict[str, str]]:
        assert path.stat().st_mode & 0o777 == 0o600
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    def in_the_clear(model: Path, *columns: str) -> Any:
        x = np.array([[float(line[c]) for c in columns] for line in lines])
        return keras.models.load_model(model).predict(x, verbose=0)[:, 0]

    common = ("--batch", "16", "--epochs", "2", "--learning-rate", "0.1", "--no-plain")
    loans, houses, out = tmp_path / "loan.keras", tmp_path / "house.keras", tmp_path / "out.csv"
    table = ("--dataset", past, "--label", "granted")
    run_words(
        "train", "logistic", *table, "--drop", "id", "note", "price", *common, "--output", loans
    )
    want = 1 / (1 + np.exp(-in_the_clear(loans, "age", "income", "year", "ratio")))
    output = run_words("predict", loans, "--input", new, "--output", out)
    assert "does not take: note" in output
    got = read_rows(out)
    assert list(got[0]) == ["note", "granted", "probability_no", "probability_yes"]
    assert [row["note"] for row in got] == [line["note"] for line in lines]
    np.testing.assert_allclose([float(r["probability_yes"]) for r in got], want, atol=1e-3)
    assert [r["granted"] for r in got] == ["yes" if p > 0.5 else "no" for p in want]

    # deployed, with its names
    run_words("deploy", loans, "--name", "loans")
    run_words("predict", "loans", "--input", new, "--output", out)
    again = [float(r["probability_yes"]) for r in read_rows(out)]
    np.testing.assert_allclose(again, want, atol=1e-3)
    (tmp_path / "less.csv").write_text("age,year\n1,2\n")
    output = run_words("predict", "loans", "--input", tmp_path / "less.csv", code=10)
    assert "lacks columns" in output and "'income', 'ratio'" in output

    # a model without names accepts one column per input, and the error states their order
    plain = tmp_path / "plain.keras"
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    keras.Sequential([keras.Input((2,)), layer]).save(plain)
    assert "in the file's order" in run_words(
        "predict", plain, "--input", tmp_path / "less.csv", "--output", out
    )
    assert abs(float(read_rows(out)[0]["output0"]) - 3) < 1e-3
    assert "with 5 columns" in run_words("predict", plain, "--input", new, code=2)

    # a number is learned and reported in its own unit; the named columns are the features
    features = ("--features", "income", "age")
    about = ("--dataset", past, "--label", "price")
    output = run_words("train", "linear", *about, *features, *common, "--output", houses)
    assert "in its own unit" in output and "steps" in output
    want = in_the_clear(houses, "income", "age")
    assert np.abs(want).max() > 10_000
    run_words("predict", houses, "--input", new, "--output", out)
    np.testing.assert_allclose([float(r["price"]) for r in read_rows(out)], want, rtol=1e-3)

    # rows of owners, and weights that stay at the workers
    drop = ("--drop", "id", "note", "price")
    scale = tmp_path / "scale.json"
    run_words("provide", "ours", "--csv", past, *table[2:], *drop, "--save-scale", scale)
    run_words("provide", "theirs", "--csv", past, *table[2:], "--scale", scale)
    run_words("train", "logistic", "--rows", "ours", "theirs", *common, "--output", loans)
    want = 1 / (1 + np.exp(-in_the_clear(loans, "age", "income", "year", "ratio")))
    run_words("train", "logistic", "--rows", "ours", "theirs", *common, "--deploy", "stayed")
    run_words("predict", "stayed", "--input", new, "--output", out)
    got = read_rows(out)
    np.testing.assert_allclose([float(r["probability_yes"]) for r in got], want, atol=1e-2)
    # and use them for training
    run_words("train", loans, *table, *common, "--output", houses)
    assert in_the_clear(houses, "age", "income", "year", "ratio").shape == (7,)


@pytest.mark.slow
def test_owners_provide_and_somebody_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, kept = str(_write_table(tmp_path / "t.csv")), ("--models", str(tmp_path / "kept"))

    def run_json(*arguments: str) -> dict[str, object]:
        assert main([*arguments, *kept, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert isinstance(document, dict)
        return document

    rows = run_json("provide", "rows", "--csv", file, "--label", "label")
    assert rows["rows"] == 120 and rows["features"] == [3] and rows["labels"] is True
    assert main(["provide", "--list", *kept]) == 0
    assert "120" in capsys.readouterr().out
    trained = ("train", "logistic", "--rows", "rows", "--batch", "16", "--holdout", "24")
    document = run_json(*trained, "--discard")
    assert isinstance(document["agreement"], dict) and document["agreement"]["samples"] == 24
    run_json("provide", "answers", "--csv", file, "--label", "label", "--labels-only")
    options = ("--columns", "rows", "--labels", "answers", "--batch", "16", "--epochs", "1")
    run_json("train", "logistic", *options, "--deploy", "answered")
    assert main(["models", *kept]) == 0
    assert "answered" in capsys.readouterr().out
    assert run_json("provide", "--remove", "rows") == {"removed": "rows"}


@pytest.mark.slow
def test_a_keras_file_and_a_regression_are_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import keras

    file = str(_write_table(tmp_path / "t.csv"))
    layers = [keras.Input((3,)), keras.layers.Dense(4, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dense(2, activation="softmax")])
    model.save(tmp_path / "m.keras")
    common = ("--dataset", file, "--batch", "16", "--epochs", "2", "--json", "--discard")
    for words in (
        ("train", str(tmp_path / "m.keras"), "--label", "label", "--optimizer", "adam"),
        ("train", "linear", "--label", "c", "--reveal-loss", "--guard", "3"),
    ):
        assert main([*words, *common]) == 0
        document = Record.from_json(capsys.readouterr().out)
        assert document.correct is True


@pytest.mark.slow
@pytest.mark.skipif(not _MNIST.is_dir(), reason="set TFE_BENCH_MNIST to a folder of MNIST")
def test_logistic_regression_reaches_its_plaintext_accuracy(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    words = ["train", "logistic", "--discard", "--data-dir", str(_MNIST)]
    words += ["--record", str(record)]
    assert main(words) == 0
    agreement = Record.from_json(record.read_text()).agreement
    assert agreement is not None
    print(agreement)
    assert len(agreement["private"]) == 5 and agreement["samples"] == 10_000
    assert abs(agreement["private"][-1] - agreement["plain"][-1]) <= 0.003
