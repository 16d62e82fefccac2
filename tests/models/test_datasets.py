"""Training rows: reading, scaling, and refusals without a value."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.errors import DataError, RangeError, TfeBenchError, UsageError
from tfe_bench.models.datasets import readers as datasets
from tfe_bench.models.datasets import sharing


def _write_idx(path: Path, array: Any) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def _write_pictures(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir()
    for part, count in (("train", 20), ("t10k", 10)):
        _write_idx(folder / f"{part}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 28, 28)))
        _write_idx(folder / f"{part}-labels-idx1-ubyte.gz", np.arange(count) % 10)


def test_pictures_are_scaled_and_halves_are_told_apart(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    _write_pictures(tmp_path / "f", rng)
    train, test = datasets.load_digits("fashion-mnist", tmp_path / "f")
    assert (len(train), len(test), train.classes, train.source) == (20, 10, 10, "fashion-mnist")
    assert train.x is not None and train.x.shape == (20, 28, 28, 1) and train.x.max() <= 1.0
    halves, _ = datasets.load_digits("mnist", tmp_path / "f", "binary")
    assert halves.y is not None and halves.classes == 2
    np.testing.assert_array_equal(halves.y, np.arange(20) % 10 >= 5)
    assert sharing.encode_labels(halves).shape == (20, 1)
    np.testing.assert_array_equal(sharing.encode_labels(train).argmax(1), train.y)
    with raises(UsageError, "unknown-name", received="mnits"):
        datasets.load_digits("mnits")
    if not datasets.FASHION.is_dir():
        with raises(DataError, "file-not-found"):
            datasets.load_digits("fashion-mnist")


def test_tables_are_read_and_standardized(tmp_path: Path, rng: np.random.Generator) -> None:
    values = rng.normal(5, 3, (50, 3))
    lines = [f"{a},{b},{c},{int(a > 5)},7" for a, b, c in values]
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["a,b, c,label,same", *lines]) + "\n")
    rows = datasets.table(file, "label")
    assert rows.columns == ("a", "b", "c", "same") and rows.classes == 2
    assert rows.x is not None and rows.y is not None
    assert np.abs(rows.x.mean(0)).max() <= 0.25 + 1e-6
    assert ((rows.x.std(0)[:3] > 0.7) & (rows.x.std(0)[:3] < 1.42)).all()
    np.testing.assert_array_equal(rows.x[:, 3], 0)
    np.testing.assert_array_equal(rows.y, values[:, 0] > 5)
    plain = datasets.table(file, "label", standardize=False)
    assert plain.x is not None
    np.testing.assert_allclose(plain.x[:, :3], values, rtol=1e-6)
    number = datasets.table(file, "b", "number")
    assert number.y is not None and abs(number.y.mean()) <= 0.25 and number.classes == 1
    assert number.table is not None and number.table.unit is not None
    own = number.table.unit.inverse().apply(number.y[:, None])[:, 0]
    np.testing.assert_allclose(own, values[:, 1], rtol=0, atol=1e-12)
    chosen = datasets.table(file, "label", columns=["c", "a"])
    assert chosen.columns == ("c", "a") and chosen.x is not None and rows.x is not None
    np.testing.assert_array_equal(chosen.x, rows.x[:, [2, 0]])
    assert datasets.table(file, "label", drop=["same", "b"]).columns == ("a", "c")
    for wrong in (["a", "a"], ["a", "label"], ["a", "d"]):
        with pytest.raises(UsageError):
            datasets.table(file, "label", columns=wrong)
    again = datasets.table(file, "label", like=chosen.table)
    assert again.x is not None
    np.testing.assert_array_equal(again.x, chosen.x)
    labels = datasets.table(file, "label", features=False)
    assert labels.x is None and len(labels) == 50
    features = datasets.table(file, None)
    assert features.y is None and features.x is not None and features.x.shape == (50, 5)
    assert datasets.table(file, "same", "classes").classes == 8
    train, test = datasets.split_training_rows(rows, 1)
    assert (len(train), len(test)) == (40, 10)


def test_bad_tables_are_refused_by_row_and_column_alone(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    for text, code, fact in (
        ("a,b\n1,2\n3,\n", "not-a-number", "row 2, column 'b'"),
        ("a,b\n1,2\nsecret,4\n", "not-a-number", "row 2, column 'a'"),
        ("a,b\n1,nan\n3,4\n", "not-a-number", "row 1, column 'b'"),
        ("a,b\n1,inf\n3,4\n", "not-a-number", "row 1, column 'b'"),
        ("a,b\n1,2,3\n", "invalid-csv", "3 cells"),
        ("a,a\n1,2\n", "invalid-header", "'a'"),
        ("a,b\n", "empty-input", "t.csv"),
        ("", "empty-input", "t.csv"),
        ('a,b\n"1,2\n', "invalid-csv", "Line 2"),
    ):
        file.write_text(text)
        with raises(DataError, code, names=(fact,)) as refused:
            datasets.table(file, None)
        assert "secret" not in str(refused.value)
    file.write_text("a,y\n1,yes\n2,no\n3,perhaps\n")
    with raises(DataError, "class-count-mismatch", operation="y", received=3):
        datasets.table(file, "y")
    file.write_text("a,y\n1,0\n2,\n")
    with raises(DataError, "missing-label", operation="y", received=2):
        datasets.table(file, "y")
    file.write_text("a,y\n1,0\n2,3\n")
    with raises(DataError, "unknown-class", operation="y", received=2):
        datasets.table(file, "y", "classes", 3)
    with raises(UsageError, "column-not-found", received="Y"):
        datasets.table(file, "Y")
    with raises(DataError, "file-not-readable"):
        datasets.table(tmp_path / "none.csv", "y")
    file.write_bytes(b"a,b\n\xff\xfe,2\n")
    with raises(DataError, "invalid-encoding"):
        datasets.table(file, None)


def test_columns_are_read_as_tables_read_them(tmp_path: Path) -> None:
    """Check truth values, semicolons, and reports of all non-numeric columns at once."""
    file = tmp_path / "t.csv"
    for mark in ",;\t":
        rows = ["new,old,x,y", "True,false,1.5,1", "False,TRUE,2.5,0"]
        file.write_text("\n".join(row.replace(",", mark) for row in rows))
        read = datasets.table(file, "y", standardize=False)
        assert read.x is not None and read.columns == ("new", "old", "x")
        np.testing.assert_array_equal(read.x, [[1, 0, 1.5], [0, 1, 2.5]])
    file.write_text('id,clinic,visit,x\nsecret,$5,"1,5",True\n3,4,5,1\n')
    with raises(DataError, "not-a-number", received=4) as refused:
        datasets.table(file, None)
    error_text = str(refused.value)
    for name, kind in (("id", "text"), ("clinic", "currency"), ("visit", "comma"), ("x", "text")):
        assert re.search(rf"'{name}', row 1: .*{kind}", error_text)
    assert "secret" not in error_text
    file.write_text("a,y\n1,yes\n")
    with raises(DataError, "not-a-number", operation="y"):
        datasets.table(file, "y", "number")
    file.write_text("1.5,2\n3,4\n")  # the first row is not lost as names
    with raises(DataError, "missing-header"):
        datasets.table(file, None)
    file.write_text("0,1\n3,4\n")
    assert datasets.table(file, None).columns == ("0", "1")
    file.write_text("a,b\n1_000,4\n")
    with raises(DataError, "not-a-number", operation="a"):
        datasets.table(file, None)


def test_features_that_fit_no_fixed_point_are_refused_by_their_row() -> None:
    x = np.zeros((5000, 2))
    for bad in (np.nan, np.inf, 5000.0):
        x[4999, 1] = bad
        with raises(
            RangeError, "value-out-of-range", operation="features", received=4999
        ) as refused:
            sharing.share_training_features(x, 16)
        assert refused.value.operation == "features" and "5000" not in str(refused.value)
    with raises(TfeBenchError, "shape-mismatch"):
        sharing.share_training_features(np.array([["a"]]), 16)
    options = sharing.share_training_features(np.array([[0.5, -1.0]]), 16)
    assert options.ring.tolist() == [[1 << 15, -(1 << 16)]] and options.fractional_bits == 16
