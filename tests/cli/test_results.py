"""Writing results: complete or not at all, private, and equal when read back."""

from __future__ import annotations

import csv
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.refusals import raises
from tfe_bench.benchmarks import keys
from tfe_bench.benchmarks.keys import generate_sort_keys
from tfe_bench.cli.data.columns import Cells, load_data_column, load_data_table
from tfe_bench.cli.data.results import check_result_path, write_result_file, write_result_table
from tfe_bench.errors import DataError, UsageError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@pytest.mark.parametrize("suffix", [".csv", ".npy"])
@pytest.mark.parametrize("kind", keys.KINDS)
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_a_result_reads_back_equal(tmp_path: Path, suffix: str, kind: str, n: int) -> None:
    values = generate_sort_keys(n, seed=3, kind=kind)
    path = tmp_path / f"out{suffix}"
    write_result_file(path, values, "salary")
    read = load_data_column(path)
    assert np.array_equal(read.values, values)
    assert read.values.dtype == values.dtype
    assert read.name == ("salary" if suffix == ".csv" else "out")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [path.name]


@settings(
    deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(values=[0.0, -0.0, 1.0, -1.0, 5e-324, 1.7976931348623157e308, 0.1, 2.0**53 + 2])
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_survive_text_bit_for_bit(tmp_path: Path, values: list[float]) -> None:
    write_result_file(tmp_path / "f.csv", np.array(values), "x")
    assert load_data_column(tmp_path / "f.csv").values.tobytes() == np.array(values).tobytes()


@settings(
    deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(name="")
@example(name="0")
@example(name="nan")
@example(name="2019")
@example(name="a;b\tc,d")
@example(name='say "x"')
@example(name="$5")
@example(name="1-2")
@example(name="größe")
@given(name=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])))
def test_no_column_name_is_ever_read_back_as_a_value(tmp_path: Path, name: str) -> None:
    write_result_file(tmp_path / "n.csv", np.array([3, 1]), name)
    assert load_data_column(tmp_path / "n.csv").values.tolist() == [3, 1]


def test_a_matrix_is_written_with_a_heading_per_column(tmp_path: Path) -> None:
    write_result_file(tmp_path / "m.csv", np.arange(4).reshape(2, 2), "x")
    assert (tmp_path / "m.csv").read_bytes() == b"x_0,x_1\n0,1\n2,3\n"
    write_result_file(tmp_path / "m.npy", np.arange(4).reshape(2, 2), "x")
    assert load_data_column(tmp_path / "m.npy").values.tolist() == [[0, 1], [2, 3]]


def test_a_table_reads_back_equal(tmp_path: Path) -> None:
    table = {"id": np.array([INT64_MIN, INT64_MAX]), "pay": np.array([0.1, -2.0])}
    write_result_table(tmp_path / "t.csv", table)
    read = load_data_table(tmp_path / "t.csv")
    assert {n: v.tolist() for n, v in read.items()} == {n: v.tolist() for n, v in table.items()}
    with raises(UsageError, "mixed-types", received="float64, int64"):
        write_result_table(tmp_path / "t.npy", table)
    write_result_table(tmp_path / "t.npy", {"a": table["id"], "b": table["id"]})
    assert load_data_column(tmp_path / "t.npy", 1).values.tolist() == [INT64_MIN, INT64_MAX]
    for bad in ({}, {"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.zeros((2, 2))}):
        with raises(UsageError, "length-mismatch"):
            write_result_table(tmp_path / "u.csv", bad)


@settings(
    deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(cells=["a\rb", "a;b", " x ", '"', ",", "", "=1+1", "1\t2", "x\ny"])
@given(cells=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1))
def test_texts_are_written_as_they_are(tmp_path: Path, cells: list[str]) -> None:
    table: dict[str, Cells] = {"id": np.arange(len(cells)), "note": cells}
    write_result_table(tmp_path / "t.csv", table)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as stream:
        assert [row[1] for row in csv.reader(stream, strict=True)] == ["note", *cells]
    with raises(UsageError, "unsupported-type"):
        write_result_table(tmp_path / "t.npy", table)


@pytest.mark.parametrize("name", ["out.csv", "out.npy"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises(DataError, "file-not-writable"):
        write_result_file(path, np.arange(3), "x")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_result_file(path, np.arange(3), "x")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [name]


def test_a_result_path_is_refused_before_the_computation(tmp_path: Path) -> None:
    (tmp_path / "d.csv").mkdir()
    for bad in (tmp_path / "a.txt", tmp_path / "no" / "a.csv", tmp_path / "d.csv"):
        with pytest.raises(DataError):
            check_result_path(bad)
        with pytest.raises(DataError):
            write_result_file(bad, np.arange(3), "x")
    assert check_result_path(str(tmp_path / "a.csv")) == tmp_path / "a.csv"
    assert os.listdir(tmp_path) == ["d.csv"]


def test_a_replaced_file_is_private_again(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    path.chmod(0o644)
    write_result_file(path, np.arange(3), "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "values", [np.array(["a"]), np.array([1j]), np.array([None]), [1, 2], np.zeros((1, 1, 1))]
)
def test_results_of_other_types_are_usage_errors(tmp_path: Path, values: Any) -> None:
    for name in ("a.csv", "a.npy"):
        with pytest.raises(UsageError):
            write_result_file(tmp_path / name, values, "x")
    assert os.listdir(tmp_path) == []
