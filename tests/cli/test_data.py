"""Reading users' files: exact, with an error for each doubtful value, and without cell values in
output.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.refusals import raises
from tfe_bench.benchmarks.keys import to_sortable_integers
from tfe_bench.cli.data.columns import (
    Column,
    load_column_with_others,
    load_data_column,
    load_data_table,
    name_csv_positions,
)
from tfe_bench.errors import DataError, RangeError, UsageError
from tfe_bench.protocols.session.fixedpoint import FixedPoint

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
SECRET = "48151623"


@pytest.fixture
def csv_file(tmp_path: Path) -> Any:
    def write(content: str | bytes, name: str = "people.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# --- reading .csv -----------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_delimiters_newlines_and_bom_make_no_difference(
    csv_file: Any, delimiter: str, newline: str, bom: bytes
) -> None:
    rows = [["name", "salary"], ["Ann", "85000"], ["Bob", "-7"]]
    path = csv_file(bom + newline.join(delimiter.join(r) for r in rows).encode())
    for column in (None, "salary", 1, "1", " salary "):
        read = load_data_column(path, column)
        assert (read.values.tolist(), read.name, read.source) == ([85000, -7], "salary", str(path))
        assert read.values.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "values", "name"),
    [
        ("5\n", [5], "0"),
        ("5", [5], "0"),
        ("3\n1\n2\n\n\n", [3, 1, 2], "0"),
        ("x\n3\n1", [3, 1], "x"),
        ("x\r3\r1", [3, 1], "x"),
        ('"a;b"\n3\n1', [3, 1], "a;b"),
        ("a;b\n3\n1", [3, 1], "a;b"),
        ('x\n" 3 "\n+1', [3, 1], "x"),
        ("größe\n007\n-0", [7, 0], "größe"),
        (f"x\n{INT64_MIN}\n{INT64_MAX}", [INT64_MIN, INT64_MAX], "x"),
        ("x\n" + "0" * 5000 + "12", [12], "x"),
        ('"x\ny",n\n"1\n2",3', [3], "n"),
    ],
)
def test_integers_are_read_exactly(
    csv_file: Any, content: str, values: list[int], name: str
) -> None:
    column = None if "n" not in name else "n"
    read = load_data_column(csv_file(content), column)
    assert read.values.dtype == np.int64
    assert (read.values.tolist(), read.name) == (values, name)


@pytest.mark.parametrize("cell", ["1.0", "1.", "1e0", "10E-1", "+1.0", "01.00"])
def test_a_point_or_exponent_makes_the_column_real(csv_file: Any, cell: str) -> None:
    read = load_data_column(csv_file(f"x\n2\n{cell}"))
    assert read.values.dtype == np.float64
    assert read.values.tolist() == [2.0, 1.0]


def test_a_header_is_told_from_data(csv_file: Any) -> None:
    assert load_data_column(csv_file("1,2\n3,4"), 1).values.tolist() == [2, 4]
    assert load_data_column(csv_file("id,2019\n3,4"), "2019").values.tolist() == [4]
    assert load_data_column(csv_file("id,2019\n3,4"), "1").values.tolist() == [4]
    assert load_data_column(csv_file(",a\n0,4\n1,5"), "a").values.tolist() == [4, 5]
    with raises(DataError, "ambiguous-header"):
        load_data_column(csv_file("Ann,2019\nBob,2020"))


def test_a_file_without_names_says_so(csv_file: Any) -> None:
    assert not load_data_column(csv_file("2019,5\n2021,3\n"), 0).named
    assert load_data_column(csv_file("year,n\n2019,5\n"), 0).named


@pytest.mark.parametrize("first", ["1,5", "1 000", "$5", "5%", "12.3.4", "1_000", "0-1"])
def test_a_mistyped_first_number_is_not_taken_for_a_header(csv_file: Any, first: str) -> None:
    with raises(DataError, "invalid-cell") as error:
        load_data_column(csv_file(f'"{first}"\n2\n3'))
    error.match(r"Line 1 of .*people.csv")


def test_the_only_numeric_column_is_taken_and_several_are_listed(csv_file: Any) -> None:
    content = "name,salary,age\nAnn,1,30\nBob,2,40\n"
    with raises(DataError, "numeric-column-count", received=2) as error:
        load_data_column(csv_file(content))
    error.match(r'2 numeric .* 0 "name" \(no numbers\), 1 "salary" \(numbers\)')
    with raises(DataError, "numeric-column-count", received="no"):
        load_data_column(csv_file("name,town\nAnn,Rome\n"))


def test_many_columns_are_not_all_listed(csv_file: Any) -> None:
    content = ",".join(f"c{j}" for j in range(500)) + "\n" + ",".join("1" * 500)
    with raises(DataError, "numeric-column-count", received=500) as error:
        load_data_column(csv_file(content))
    assert "and 480 more" in str(error.value) and len(str(error.value)) < 1000


def test_an_unknown_column_gets_a_suggestion(csv_file: Any) -> None:
    path = csv_file("name,salary\nAnn,1\n")
    with raises(DataError, "column-not-found", received="salery") as error:
        load_data_column(path, "salery")
    error.match(r'Did you mean "salary"')
    for column in (2, -1, "2", "-1", "٣", "9" * 400):
        with raises(DataError, "column-not-found"):
            load_data_column(path, column)


def test_equal_names_need_a_position(csv_file: Any) -> None:
    path = csv_file("a,a\n1,2\n")
    with raises(DataError, "duplicate-name", operation="a", received=2) as error:
        load_data_column(path, "a")
    error.match("positions 0, 1")
    assert load_data_column(path, 1).values.tolist() == [2]
    with raises(DataError, "duplicate-name"):
        load_data_table(path)


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        (f"{SECRET}x", "text"),
        ("", "blank"),
        ("  ", "blank"),
        ("nan", "NaN"),
        ("NaN", "NaN"),
        ("-inf", "infinite"),
        ("Infinity", "infinite"),
        ("NA", "text"),
        (f'"{SECRET},5"', "comma"),
        ("1_000", "text"),
        ("١٢", "text"),
        ("0x10", "text"),
        ("1 000", "text"),
        ("1e999", r"outside -1\.8e308 \.\. 1\.8e308"),
        (str(2**63), r"outside -2\^63 \.\. 2\^63-1"),
        (str(-(2**63) - 1), r"outside -2\^63 \.\. 2\^63-1"),
        ("9" * 5000, r"outside -2\^63 \.\. 2\^63-1"),
        ("--1", "text"),
        ("1e", "text"),
        (".", "text"),
    ],
)
def test_a_bad_cell_is_told_by_line_column_and_kind_and_never_quoted(
    csv_file: Any, cell: str, fault: str
) -> None:
    path = csv_file(f"name,salary\nAnn,1\nBob,{cell}\nAda,3\nEve,4\n")
    with raises(DataError, "invalid-cell", operation="salary") as error:
        load_data_column(path)
    error.match(rf"Line 3 .*'salary' \(position 1\).*{fault}")
    number = "not a number" in str(error.value)
    assert number == (fault in ("text", "blank", "comma"))  # NaN is NaN, and 2^63 is a number
    for private in (SECRET, "Bob", "99999", "922337"):
        assert private not in str(error.value)


def test_lines_are_counted_as_an_editor_counts_them(csv_file: Any) -> None:
    with raises(DataError, "invalid-cell") as error:
        load_data_column(csv_file('name,n\n"a\nb",1\nc,2\nd,x\ne,3'), "n")
    error.match("Line 5 ")


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        ("", "empty-input", "is empty"),
        ("\n\n", "empty-input", "is empty"),
        (b"\xef\xbb\xbf", "empty-input", "is empty"),
        ("salary\n", "empty-input", "no rows"),
        ("a,b\n1,2\n3\n", "invalid-csv", "Line 3 .* 1 cells, but line 1 has 2"),
        ("a,b\n1,2\n3,4,5\n", "invalid-csv", "Line 3 .* 3 cells, but line 1 has 2"),
        ("a\n1\n\n2\n", "blank-line", "Line 3 .* blank"),
        ('a\n1\n""\n', "invalid-cell", "Line 3 .* a blank cell"),
        ("a,b\n1,2\n,\n", "invalid-cell", "Line 3 .* a blank cell"),
        ('a\n1\n"2\n', "invalid-csv", "Line 3"),
        ("a\n\x00\n", "invalid-cell", "Line"),
        ("x" * 200_000 + "\n1", "invalid-csv", "field limit"),
        (b"\xff\xfea\x00\n\x001\x00", "invalid-encoding", "UTF-8"),
        ("a\n1\n2\n".encode("utf-16"), "invalid-encoding", "UTF-8"),
        (b"PK\x03\x04\x80\x81", "invalid-encoding", "UTF-8"),
    ],
)
def test_a_malformed_file_is_a_data_error(
    csv_file: Any, content: str | bytes, code: str, text: str
) -> None:
    with raises(DataError, code) as error:
        load_data_column(csv_file(content), 0)
    error.match(text)
    assert error.value.exit_code == 10


def test_a_missing_file_gets_a_suggestion_from_its_folder(csv_file: Any, tmp_path: Path) -> None:
    csv_file("1", "salaries.csv")
    with raises(DataError, "file-not-found") as error:
        load_data_column(tmp_path / "salarys.csv")
    error.match(r'Did you mean "salaries.csv"')
    with raises(DataError, "file-not-found") as error:
        load_data_column(tmp_path / "nowhere" / "a.csv")
    error.match(r"folder .* is missing too")


@pytest.mark.parametrize("name", ["a.xlsx", "a", "a.csv.gz", ".csv"])
def test_other_suffixes_are_refused(csv_file: Any, name: str) -> None:
    with raises(DataError, "unsupported-file-type"):
        load_data_column(csv_file("1", name))


def test_folders_pipes_and_impossible_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d.csv").mkdir()
    os.mkfifo(tmp_path / "p.csv")
    for path in (tmp_path, tmp_path / "d.csv", tmp_path / "p.csv", "", "a\0.csv", "a" * 9999):
        with pytest.raises(DataError):
            load_data_column(path)


def test_an_upper_case_suffix_is_read(csv_file: Any) -> None:
    assert load_data_column(csv_file("1", "A.CSV")).values.tolist() == [1]


@pytest.mark.parametrize("name", ["a.csv", "a.npy"])
def test_a_file_without_permission_is_a_data_error(
    csv_file: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = csv_file("1", name)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root can read every file, so chmod has no effect
    with raises(DataError, "file-not-readable", received="no permission"):
        load_data_column(path)


def test_a_column_shows_its_shape_and_never_its_values(csv_file: Any) -> None:
    read = load_data_column(csv_file(f"{SECRET}\n"))
    assert isinstance(read, Column)
    assert SECRET not in repr(read) + str(read)
    assert "shape=(1,)" in repr(read)


def test_an_integer_that_float64_would_round_is_refused_among_reals(csv_file: Any) -> None:
    assert load_data_column(csv_file(f"x\n{2**53 + 1}")).values.tolist() == [2**53 + 1]
    assert load_data_column(csv_file(f"x\n{2**53}\n0.5")).values.tolist() == [2.0**53, 0.5]
    received = "an integer that float64 cannot represent"
    with raises(DataError, "invalid-cell", received=received) as error:
        load_data_column(csv_file(f"x\n1.5\n{2**53 + 1}"))
    error.match("Line 3 ")


# --- files that stay with their owner -----------------------------------------------------------


def test_columns_are_kept_as_they_stand_in_the_file(csv_file: Any) -> None:
    path = csv_file('id,pay,note\n 007 ,244.59," a, ""b"""\n+2,1e0,\n3,2.50,"x\ny"\n')
    column, others = load_column_with_others(path, "pay", ["note", "0"])
    assert column.values.tolist() == [244.59, 1.0, 2.5]
    assert column.cells == ["244.59", "1e0", "2.50"]
    assert others == {"note": [' a, "b"', "", "x\ny"], "id": [" 007 ", "+2", "3"]}
    with raises(DataError, "invalid-cell", operation="note", received="text") as error:
        load_column_with_others(path, "pay", ["note"], numbers=True)
    error.match("Line 2 ")
    column, others = load_column_with_others(path, "pay", ["id"], numbers=True)
    assert column.cells is column.values
    assert np.asarray(others["id"]).tolist() == [7, 2, 3]


def test_a_column_that_is_asked_for_twice_or_shares_its_name_is_refused(csv_file: Any) -> None:
    path = csv_file("a,b,a\n1,2,3\n")
    for others in (["b", "b"], ["1", "b"], ["0"]):
        with raises(UsageError, "duplicate-column"):
            load_column_with_others(path, 0, others)
    with raises(DataError, "duplicate-name", operation="a", received=2):
        load_column_with_others(path, 0, [2])  # two files side by side: one would replace the other


@pytest.mark.parametrize("dtype", ["f4", ">f8", "u1", "<i8", "u8"])
def test_an_arrays_columns_keep_their_type(tmp_path: Path, dtype: str) -> None:
    matrix = np.array([[1, 2, 3], [4, 5, 6]], dtype)
    np.save(tmp_path / "m.npy", matrix)
    column, others = load_column_with_others(tmp_path / "m.npy", 1, ["2"])
    assert column.cells.dtype == others["2"].dtype == np.dtype(dtype)  # type: ignore[union-attr]
    assert np.array_equal(column.cells, matrix[:, 1])
    with raises(UsageError, "missing-argument", operation="--column"):
        load_column_with_others(tmp_path / "m.npy", None, [2])
    np.save(tmp_path / "v.npy", matrix[0])
    with raises(DataError, "column-not-found", received="an array of one axis"):
        load_column_with_others(tmp_path / "v.npy", None, [1])


@settings(deadline=None, print_blob=True)
@example(values=[0.0, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, -1.7976931348623157e308])
@example(values=[1.0, 1.0 + 2**-52, -1.0, -1.0 - 2**-52, 0.1, 0.1])
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_reals_are_ordered_as_integers_with_their_ties(values: list[float]) -> None:
    given_values = np.array(values)
    keys = to_sortable_integers(given_values)
    assert keys.dtype == np.int64
    assert np.array_equal(keys[:, None] < keys, given_values[:, None] < given_values)
    assert np.array_equal(keys[:, None] == keys, given_values[:, None] == given_values)


def test_integers_are_their_own_order() -> None:
    keys = np.array([INT64_MAX, INT64_MIN, 0, -1])
    assert np.array_equal(to_sortable_integers(keys), keys)


def test_a_value_out_of_range_is_told_by_line_in_a_file_and_by_index_in_an_array(
    csv_file: Any,
) -> None:
    encode = FixedPoint(16).encode
    path = csv_file(f'a,b,c\n"x\ny",1,2\nz,3,{SECRET}e20\n')
    for columns in (["c"], ["b", "c"]):
        numbers = np.stack([*load_data_table(path, columns).values()], -1).squeeze()
        refusal = raises(RangeError, "value-out-of-range", names=("line 4 of", "people.csv", "'c'"))
        with refusal as error, name_csv_positions(path, columns):
            encode(numbers)
        assert "index" not in str(error.value) and SECRET not in str(error.value)
    with (
        raises(RangeError, "value-out-of-range", names=("at index 1",)),
        name_csv_positions(path.with_suffix(".npy"), []),
    ):
        encode(np.array([1.0, 1e30]))


# --- tables -----------------------------------------------------------------------------------


def test_a_table_keeps_the_order_asked_for_and_each_columns_type(csv_file: Any) -> None:
    path = csv_file("id,name,pay\n1,Ann,2.5\n2,Bob,3\n")
    table = load_data_table(path, ["pay", "0"])
    assert [(n, v.tolist(), v.dtype.name) for n, v in table.items()] == [
        ("pay", [2.5, 3.0], "float64"),
        ("id", [1, 2], "int64"),
    ]
    with raises(DataError, "not-a-number"):
        load_data_table(path)
    assert list(load_data_table(csv_file("a,b\n1,2\n"))) == ["a", "b"]


@pytest.mark.parametrize("columns", [[], "id", ["id", "id"], ["id", 0]])
def test_a_column_list_that_is_empty_or_repeats_is_a_usage_error(
    csv_file: Any, columns: Any
) -> None:
    with pytest.raises(UsageError):
        load_data_table(csv_file("id,pay\n1,2\n"), columns)


def test_a_table_of_an_array_is_named_by_position(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.arange(6).reshape(2, 3))
    table = load_data_table(tmp_path / "m.npy", [2, "0"])
    assert {n: v.tolist() for n, v in table.items()} == {"2": [2, 5], "0": [0, 3]}
    np.save(tmp_path / "v.npy", np.arange(2))
    assert list(load_data_table(tmp_path / "v.npy")) == ["0"]


# --- .npy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", ">i4", "u8", "<i8"])
def test_integer_arrays_become_int64(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 0, 1], dtype))
    read = load_data_column(tmp_path / "a.npy")
    assert (read.values.tolist(), read.name) == ([1, 0, 1], "a")
    assert read.values.dtype == np.int64


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "g"])
def test_real_arrays_become_float64(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "a.npy", np.array([1.5, -0.5], dtype))
    assert load_data_column(tmp_path / "a.npy").values.tolist() == [1.5, -0.5]
    assert load_data_column(tmp_path / "a.npy").values.dtype == np.float64


def test_a_matrix_is_whole_without_a_column_and_contiguous(tmp_path: Path) -> None:
    matrix = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.save(tmp_path / "m.npy", matrix)
    whole = load_data_column(tmp_path / "m.npy")
    assert np.array_equal(whole.values, matrix)
    assert whole.values.flags.c_contiguous
    one = load_data_column(tmp_path / "m.npy", "1")
    assert (one.values.tolist(), one.name) == ([1, 4], "1")
    assert one.values.flags.c_contiguous
    for column in (3, -1, "pay"):
        with raises(DataError, "column-not-found", received=column, expected="0 to 2"):
            load_data_column(tmp_path / "m.npy", column)


@pytest.mark.parametrize(
    ("array", "code", "text"),
    [
        (np.array(1), "rank-mismatch", "one or two axes"),
        (np.zeros((1, 1, 1)), "rank-mismatch", "one or two axes"),
        (np.zeros(0), "empty-input", "empty"),
        (np.zeros((3, 0)), "empty-input", "empty"),
        (
            np.array([0, 2**63], np.uint64),
            "integer-too-large",
            r"outside -2\^63 \.\. 2\^63-1, at index 1",
        ),
        (np.array([[0.0, 1], [2, np.nan]]), "not-finite", "a value is NaN, at row 1, column 1"),
        (np.array([np.inf]), "not-finite", "a value is infinite, at index 0"),
        (np.array([1j]), "unsupported-type", "complex128"),
        (np.array(["1"]), "unsupported-type", "<U1"),
        (np.zeros(2, [("a", "f8")]), "unsupported-type", "integers or floats"),
        (np.zeros(2, "M8[s]"), "unsupported-type", "datetime64"),
    ],
)
def test_other_arrays_are_data_errors(tmp_path: Path, array: Any, code: str, text: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with raises(DataError, code) as error:
        load_data_column(tmp_path / "a.npy")
    error.match(text)


def test_pickled_objects_are_refused_unopened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    np.save(tmp_path / "a.npy", np.array([Bomb()], object), allow_pickle=True)
    with raises(DataError, "unsupported-type") as error:
        load_data_column(tmp_path / "a.npy")
    assert "object" in str(error.value)
    assert not (tmp_path / "exploded").exists()


def test_an_archive_or_text_named_npy_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "z.npz", np.zeros(3))
    os.rename(tmp_path / "z.npz", tmp_path / "z.npy")
    (tmp_path / "t.npy").write_text("1\n2\n")
    (tmp_path / "e.npy").write_bytes(b"")
    for name in "zte":
        with pytest.raises(DataError):
            load_data_column(tmp_path / f"{name}.npy")


def test_a_header_that_claims_more_than_the_file_holds_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(8))
    path.write_bytes(path.read_bytes().replace(b"(8,)", b"(888888888888,)".ljust(4)))
    with pytest.raises(DataError):
        load_data_column(path)
    np.save(path, np.zeros(8))
    path.write_bytes(path.read_bytes() + b"more")
    with raises(DataError, "file-damaged", received=68, expected=64):
        load_data_column(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from Python, for a damaged header
def test_every_damaged_array_file_is_a_data_error_or_still_numbers(tmp_path: Path) -> None:
    seed = 7
    print("seed", seed)
    draw = np.random.default_rng(seed)
    path = tmp_path / "a.npy"
    np.save(path, np.arange(4.0))
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in range(len(whole))]
    for _ in range(1000):
        mutant = bytearray(whole)
        for place in draw.integers(0, 80, 2):
            mutant[place] = draw.integers(0, 256)
        damaged.append(bytes(mutant))
    for content in damaged:
        path.write_bytes(content)
        with contextlib.suppress(DataError):
            assert np.all(np.isfinite(load_data_column(path).values))
