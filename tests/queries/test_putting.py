"""Columns by every way of upload: values return unchanged, or an error names the column."""

from __future__ import annotations

import csv
import datetime
import json
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest

from tests.queries.asked import StoredTable, check_same, compile_plan, run_queries
from tests.refusals import raises
from tfe_bench.cli import table as command
from tfe_bench.cluster.client import Client
from tfe_bench.cluster.stored_shares import StoredEntry
from tfe_bench.errors import DataError, RangeError, TfeBenchError, UsageError
from tfe_bench.private_tables import Tables
from tfe_bench.queries import io, reading, sql, upload
from tfe_bench.queries.client import Query
from tfe_bench.queries.report import TableReport
from tfe_bench.queries.schema import TableColumn, TableSchema, check_table_column_name, parse_rights
from tfe_bench.queries.types import HASHES, hash_column_text, parse_type

DAY, TIME = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 30, 0, 250_000)
ZONE = datetime.timezone(datetime.timedelta(hours=2))
IN_ZONE = datetime.datetime(2024, 2, 29, 14, 30, 0, 250_000, tzinfo=ZONE)
SECRET = "s3cr3t-9"
# Uploaded values, their inferred type, and the error of each real.
COLUMNS: dict[str, tuple[list[Any], str]] = {
    "whole": ([1, -3, 0, 1 << 40, -(1 << 40)], "int"),
    "gaps": ([1, None, 3], "int"),
    "cents": ([19.99, 0.1, 5.0, -0.01], "decimal(2)"),
    "cents and gaps": ([19.99, None, 5.0], "decimal(2)"),
    "whole reals": ([1.0, -2.0, 1e12], "int"),
    "tiny": ([1e-7, 4e-7, 2e-6], "decimal(7)"),
    "place": ([52.5200066, 13.404954, -0.1275862], "decimal(7)"),
    "tiniest": ([1e-12, 3e-11], "decimal(12)"),
    "largest decimal": ([10995116277.76, -0.01], "decimal(2)"),
    "thirds": ([1 / 3, 2 / 3, -1 / 7], "fixed(16)"),
    "small thirds": ([1 / 300, 2 / 3e3, 0.0], "fixed(20)"),
    "large": ([1e9 / 3, 2e9 / 7], "fixed(11)"),
    "bools": ([True, False, None], "bool"),
    "days": ([DAY, None, datetime.date(1900, 1, 1), datetime.date(2079, 6, 5)], "date"),
    "times": ([TIME, None, datetime.datetime(1970, 1, 1)], "timestamp"),
    "zones": ([IN_ZONE, None], "timestamp"),
    "texts": (["a", "ä", None, "no 7"], "text"),
    "exact": ([Decimal("1.25"), None, Decimal("-7.1")], "decimal(2)"),
    "nothing": ([None, None], "int"),
    # refused
    "infinite": ([1.5, float("inf")], "Error row 2"),
    "too large": ([1e300, 1.0], "RangeError row 1"),
    "too many": ([1 << 41, 1], "RangeError row 1"),
    "vanishing": ([1 / 3e12, 1.0 / 3], "DataError row 1"),
    "mixed": ([1, 2, SECRET], "DataError row 3"),
    "mixed dates": ([DAY, DAY, SECRET], "DataError row 3"),
}


def _format_cell(value: Any) -> str:
    return "" if value is None else str(value)


def _make_sources(values: Sequence[Any], folder: Path) -> dict[str, Any]:
    """Return one column, "c", in every form of a table."""
    forms: dict[str, Any] = {"list": {"c": values}, "tuple": {"c": tuple(values)}}
    objects = np.empty(len(values), object)
    objects[:] = values
    forms["objects"] = {"c": objects}
    plain = [v for v in values if v is not None]
    if all(type(v) is float for v in plain) and plain:
        gaps = np.array([np.nan if v is None else v for v in values])
        forms["numpy"] = {"c": gaps}
    elif len(plain) == len(values) and len({type(v) for v in values}) == 1:
        if type(values[0]) in (int, bool, str):
            forms["numpy"] = {"c": np.array(values)}
        zones = any(getattr(value, "tzinfo", None) for value in values)
        if isinstance(values[0], datetime.date) and not zones:
            forms["numpy"] = {"c": np.array(values, "datetime64")}
    forms["pandas"] = pd.DataFrame({"c": values})
    forms["series"] = {"c": pd.Series(values)}
    try:
        table = pa.table({"c": pa.array(values)})
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    else:
        forms["arrow"] = table
        parquet.write_table(table, folder / "t.parquet")
        feather.write_feather(table, folder / "t.feather")
        forms["parquet"], forms["feather"] = folder / "t.parquet", folder / "t.feather"
    for name, mark in (("csv", ","), ("semicolons", ";")):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, delimiter=mark)
            writer.writerow(["c", "id"])
            writer.writerows([_format_cell(value), i] for i, value in enumerate(values))
        forms[name] = folder / f"{name}.csv"
    return forms


def _expected_value(value: Any) -> Any:
    if isinstance(value, str):
        return f"{hash_column_text(value) % (1 << 64):016x}"
    if isinstance(value, datetime.datetime) and value.tzinfo:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value


def _convert_like(expected: Any, value: Any) -> Any:
    """Convert a decimal back to a float if the original was one."""
    return float(value) if type(expected) is float else value


def _decode_column(own: io.EncodedColumn) -> list[Any]:
    """Decode the values as in a result."""
    elements = own.distances + np.int64(own.type.offset)
    null = np.zeros(len(elements)) if own.null is None else own.null
    return [
        None if gone else io.decode_column_element(int(e), own.type)
        for e, gone in zip(elements, null, strict=True)
    ]


def _encode_column(source: Any, declared: Mapping[str, str] | None = None) -> io.EncodedColumn:
    columns = reading.read_columns(source)
    return upload.encode_columns({"c": columns["c"]}, declared or {})["c"]


_COLUMN_CODES = ("mixed-types", "value-outside-range", "value-vanishes")


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_comes_back_by_every_way_or_is_refused(name: str, tmp_path: Path) -> None:
    values, expected = COLUMNS[name]
    for way, source in _make_sources(values, tmp_path).items():
        if "Error" in expected:
            error, _, row = expected.partition(" ")
            with raises(TfeBenchError, *_COLUMN_CODES, operation="c", names=(row,)) as refused:
                _encode_column(source)
            known = {"RangeError": RangeError, "DataError": DataError, "Error": TfeBenchError}
            assert isinstance(refused.value, known[error]), way
            assert SECRET not in str(refused.value) and "--type" in str(refused.value), way
            continue
        own = _encode_column(source)
        assert str(own.type) == expected, way
        decoded, due = _decode_column(own), [_expected_value(value) for value in values]
        if own.rounding is None:
            assert [
                v if v is None or d is None else _convert_like(d, v)
                for v, d in zip(decoded, due, strict=True)
            ] == (due), way
            continue
        off = max(abs(v - d) for v, d in zip(decoded, due, strict=True))
        assert off == own.rounding.error <= 0.5 / own.type.denominator, way
        assert not own.rounding.coarse, way


# Declared types: values at the ends of their range and between, and values beyond each end.
DECLARED: dict[str, tuple[list[Any], list[Any]]] = {
    "int[0,120]": ([0, 120, 7, None], [-1, 121]),
    "int": ([-(1 << 40), 1 << 40], [(1 << 40) + 1]),
    "int64": ([-(1 << 63), (1 << 63) - 1, 0], [1 << 63]),
    "decimal(2)[0,9999.99]": ([0.0, 9999.99, 0.01, None], [-0.01, 10000.0, 0.001]),
    "decimal(18)[-1e-9,1e-9]": ([1e-9, -1e-9, 1e-18], [2e-9]),
    "fixed(16)[-5,5]": ([-5.0, 5.0, 0.5, None], [5.1, float("inf")]),
    "fixed(24)": ([-65536.0, 65536.0, 2.0**-24], [65537.0]),
    "bool": ([True, False, None], [2]),
    "date": ([datetime.date(1900, 1, 1), datetime.date(2079, 6, 6)], [datetime.date(1899, 1, 1)]),
    "timestamp(s)": ([datetime.datetime(1970, 1, 1), datetime.datetime(2099, 12, 31)], [TIME]),
    "timestamp(ms)": ([TIME, IN_ZONE], [datetime.datetime(1969, 1, 1)]),
    "category(a,b)": (["b", "a", None], ["c"]),
    "text": (["b", "a,b;", None], []),
}


@pytest.mark.parametrize("kind", DECLARED)
def test_a_declared_type_holds_its_range_by_every_way(kind: str, tmp_path: Path) -> None:
    values, beyond = DECLARED[kind]
    due = values if kind.startswith("category") else [_expected_value(value) for value in values]
    for way, source in _make_sources(values, tmp_path).items():
        decoded = _decode_column(_encode_column(source, {"c": kind}))
        assert [_convert_like(d, v) for v, d in zip(decoded, due, strict=True)] == due, way
    within = [value for value in values if value is not None][-1]
    for value in beyond:
        for way, source in _make_sources([within, value], tmp_path).items():
            with raises(
                TfeBenchError,
                "value-outside-range",
                "value-of-other-type",
                operation="c",
                names=("row 2",),
            ) as refused:
                _encode_column(source, {"c": kind})
            assert "--type" in str(refused.value), way


FRAMES: dict[str, tuple[Any, str, list[Any]]] = {
    "nullable ints": (pd.Series([1, None], dtype="Int64"), "int", [1, None]),
    "ints with gaps": (pd.Series([1, None]), "int", [1, None]),
    "nullable reals": (pd.Series([1.5, None], dtype="Float64"), "decimal(1)", [1.5, None]),
    "nullable bools": (pd.Series([True, None], dtype="boolean"), "bool", [True, None]),
    "categories": (pd.Series(["a", "b", None], dtype="category"), "text", ["a", "b", None]),
    "strings": (pd.Series(["a", None], dtype="string"), "text", ["a", None]),
    "zones": (pd.Series(pd.to_datetime([IN_ZONE], utc=True)), "timestamp", [IN_ZONE]),
    "days": (
        pd.Series(pd.to_datetime(["2024-02-29"])),
        "timestamp",
        [datetime.datetime(2024, 2, 29)],
    ),
    "objects of pandas": ([pd.NA, pd.Timestamp(TIME), pd.NaT], "timestamp", [None, TIME, None]),
    "short reals": (np.array([0.1, -2.5], np.float16), "decimal(1)", [0.1, -2.5]),
    "short ints": (np.array([1, 255], np.uint8), "int", [1, 255]),
    "big-endian": (np.array([0.5, 7], ">f8"), "decimal(1)", [0.5, 7.0]),
    "texts": (np.array(["a", "bc"]), "text", ["a", "bc"]),
    "nanoseconds": (np.array([TIME], "datetime64[ns]"), "timestamp", [TIME]),
    "long decimals": (pa.array([Decimal("0.5")], pa.decimal128(38, 25)), "decimal(1)", [0.5]),
    "dictionary": (pa.array(["x", None]).dictionary_encode(), "text", ["x", None]),
    "chunks": (pa.chunked_array([[1.5], [2.25, None]]), "decimal(2)", [1.5, 2.25, None]),
    "decimals": ([Decimal("1.10"), Decimal(3)], "decimal(1)", [1.1, 3.0]),
    "scalars": ([np.float32(0.1), np.int64(3), 2], "decimal(1)", [0.1, 3.0, 2.0]),
    "whole decimals": ([Decimal("1E+3")], "int", [1000]),
}


@pytest.mark.parametrize("name", FRAMES)
def test_types_of_pandas_numpy_and_arrow_are_known(name: str) -> None:
    values, kind, expected = FRAMES[name]
    own = _encode_column({"c": values})
    due = [_expected_value(value) for value in expected]
    assert str(own.type) == kind
    assert [_convert_like(d, v) for v, d in zip(_decode_column(own), due, strict=True)] == due


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ("unsupported-precision", np.array([TIME], "datetime64[ns]") + np.timedelta64(1, "ns")),
        ("value-of-other-type", pd.Series(pd.to_datetime(["2024-01-01T00:00:00.000000001"]))),
        ("unsupported-type", pd.Series([pd.Timedelta("1D")])),
        ("value-outside-range", np.array([2**64 - 1], np.uint64)),
        ("mixed-types", [1, b"x"]),
        ("unsupported-type", [[1], [2]]),
        ("mixed-types", pd.Series([1, SECRET], dtype=object)),
        ("mixed-types", pd.Series([DAY, 5], dtype=object)),
        ("mixed-types", pd.Series([DAY, TIME], dtype=object)),
        ("mixed-types", pd.Series([1.5, True], dtype=object)),
        ("unsupported-type", pa.array([datetime.time(1)])),
    ],
    ids=str,
)
def test_what_would_be_cut_or_has_no_type_is_refused(code: str, values: Any) -> None:
    with raises(TfeBenchError, code, operation="c") as refused:
        print(_encode_column({"c": values}).type)
    assert SECRET not in str(refused.value)
    if isinstance(values, pd.Series):
        with raises(TfeBenchError, code, operation="c"):
            _encode_column(pd.DataFrame({"c": values}))


def test_what_rounding_changes_is_said() -> None:
    """Check the report of rounding for columns of large and small values with many digits."""
    inputs = {
        "a": np.array([1 / 3e5, 1e5 / 3]),
        "b": [0.25, 0.5],
        "d": ["x", "y"],
        "zip": ["01234", "90210"],
    }
    read = reading.read_columns(inputs)
    held = upload.encode_columns(read, {"b": "fixed(1)"})
    columns = {name: TableColumn(own.type) for name, own in held.items()}
    report = TableReport.from_columns("t", TableSchema(2, columns), held, read)
    zeros, coarse, half = report.warnings
    assert "'zip'" in zeros and "leading zeros" in zeros and '"zip:text"' in zeros
    assert "'a'" in coarse and "1 values" in coarse and "row 1" in coarse and "to 0" not in coarse
    assert "'b'" in half and "1 to 0" in half
    (advice,) = report.advice
    assert '--type "d:category"' in advice and "2 different" in advice
    report_text = str(report)
    assert "b: fixed(1)" in report_text and "largest rounding error 0.25" in report_text
    header = report.columns["b"].to_header()
    assert header["largest_error"] == 0.25 and header["nullable"] is False


def test_float32_is_read_by_its_shortest_notation(tmp_path: Path) -> None:
    values = np.array([0.1, 19.99, np.nan], np.float32)
    for source in (
        {"c": values},
        {"c": list(values)},
        pd.DataFrame({"c": values}),
        pa.table({"c": pa.array(values, from_pandas=True)}),
    ):
        own = _encode_column(source)
        assert str(own.type) == "decimal(2)" and _decode_column(own) == [
            Decimal("0.1"),
            Decimal("19.99"),
            None,
        ]


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("n/a", "a mark for a missing value"),
        ("NaN", "NaN or infinity"),
        ("1,234", "a number with a comma"),
        ("$5", "a currency or unit"),
        ("5 %", "a currency or unit"),
        ("five", "a text"),
        ("-", "a mark for a missing value"),
    ],
)
def test_a_cell_that_spoils_a_column_is_named_with_its_kind(
    cell: str, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f'price;x\n1;2\n2.5;3\n"{cell}";4\n')
    with raises(DataError, "mixed-types", operation="price") as refused:
        upload.encode_columns(reading.read_columns(file), {})
    assert re.search(f"row 3.*{kind}", str(refused.value))
    assert cell == "NaN" or f"{cell}'" not in str(refused.value)


@pytest.mark.parametrize("cells", [["1,5", "2,25"], ["$5", "$7", "n/a"], ["n/a", "2,5", "1"]])
def test_numbers_in_another_notation_are_no_texts(cells: list[str]) -> None:
    with raises(DataError, "mixed-types", operation="c"):
        _encode_column({"c": cells})
    assert str(_encode_column({"c": cells}, {"c": "text"}).type) == "text"
    assert str(_encode_column({"c": ["n/a", "-", "none"]}).type) == "text"


def test_all_columns_that_do_not_fit_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b.c,d,e\n1,1,1,1\n1,1,1,300\nx,1,y,1\n")
    with pytest.raises(DataError) as refused:
        upload.encode_columns(reading.read_columns(file), {"e": "int[0,9]"})
    error_text = str(refused.value)
    assert "4 columns" in error_text
    for word in ("'a'", "'b.c'", "'d'", "'e'", "--rename"):
        assert word in error_text


def test_columns_are_renamed() -> None:
    read = reading.read_columns({"b.c": [1], "d": [2]}, {"b.c": "bc"})
    assert list(read) == ["bc", "d"]
    with raises(UsageError, "duplicate-name", operation="rename"):
        reading.read_columns({"a": [1], "b": [2]}, {"a": "b"})
    with raises(UsageError, "column-not-found", operation="rename", received="aa"):
        reading.read_columns({"ab": [1]}, {"aa": "b"})


@pytest.mark.parametrize(
    "source",
    [
        {"c": "abc"},
        {"c": 5},
        {"c": np.zeros((2, 2))},
        {"c": np.array([1 + 2j])},
        {"c": [1], "d": [1, 2]},
        pa.table({"c": pa.array([b"x"])}),
        pa.table({"c": pa.array([[1]])}),
        pa.table([pa.array([1]), pa.array([1])], names=["c", "c"]),
        pd.DataFrame([[1, 2]], columns=["c", "c"]),
        {"c": [object()]},
        5,
    ],
)
def test_what_is_no_table_is_refused_in_words(source: Any) -> None:
    with pytest.raises(TfeBenchError):
        _encode_column(source)


def test_a_category_takes_the_words_of_its_column() -> None:
    own = _encode_column({"c": ["b", None, "a", "b"]}, {"c": "category"})
    assert own.type.words == ("a", "b") and _decode_column(own) == ["b", None, "a", "b"]
    with raises(DataError, "no-words", operation="c"):
        _encode_column({"c": [1]}, {"c": "category"})


def test_reals_with_few_decimals_are_compared_and_summed_exactly() -> None:
    """Compare with DuckDB, by SQL."""
    columns = {"item": [1, 2, 3], "price": [19.99, 0.1, 5.0], "p": [1e-7, 4e-7, 2e-6]}
    held = upload.encode_columns(reading.read_columns(columns), {})
    types = {name: str(own.type) for name, own in held.items()}
    table = StoredTable(types, list(zip(*columns.values(), strict=True)))
    texts = [
        *(f"select item from t where price {c} order by item" for c in ("= 19.99", "> 19.99")),
        *(f"select item from t where price {c} order by item" for c in ("<= 0.1", "<> 19.99")),
        "select item from t where p in (4e-7, 0.000002) order by item",
        "select sum(p) s, max(p) m, sum(price) from t",
    ]
    expected: list[list[tuple[Any, ...]]] = [[(1,)], [], [(2,)], [(2,), (3,)], [(2,), (3,)]]
    expected.append([(Decimal("0.0000025"), Decimal("0.000002"), Decimal("25.09"))])
    for text, result, due in zip(texts, run_queries(texts, {"t": table}), expected, strict=True):
        check_same(text, result, due)


def test_columns_of_any_names_are_asked_in_sql() -> None:
    types = {"Customer ID": "int[0,9]", "größe": "decimal(1)[0,9]", "mean radius (mm)": "fixed"}
    table = StoredTable(
        types, [(1, 1.5, 0.5)], unique=("Customer ID",), rights={"*": {"größe": ("open",)}}
    )
    for text in (
        'select "Customer ID", größe from t where "mean radius (mm)" > 1.5 order by größe',
        'select t."Customer ID" from t join t u on t."Customer ID" = u."Customer ID"',
        'select "größe", sum("mean radius (mm)") "the sum" from t group by größe',
    ):
        compile_plan(text, {"t": table})
    for name in ("a.b", 'a"b', "a:b", "a=b", "a@b", "a,b", " a", "a ", "1a", "a\nb", "a" * 64, "*"):
        with raises(UsageError, "invalid-name", received=name):
            check_table_column_name(name)


def test_rights_and_clients_that_name_nobody_are_refused() -> None:
    with raises(UsageError, "right-without-client", received="clinic:open"):
        parse_rights(["clinic:open"], [])
    with raises(UsageError, "unknown-client", received="income@bnak:open"):
        parse_rights(["income@bnak:open"], ["bank"])
    assert parse_rights(["income@bank:open"], ["*"]) == {"bank": {"income": ("open",)}}
    members = [SimpleNamespace(name=name) for name in ("bank", "hospital", "analyst")]
    cluster: Any = SimpleNamespace(config=SimpleNamespace(clients=members), identity="bank")
    Client.check_members(cluster, ["hospital", "bank", "*"])
    with raises(UsageError, "unknown-client", received="hopsital"):
        Client.check_members(cluster, ["bank", "hopsital"])
    alone = SimpleNamespace(config=SimpleNamespace(clients=members[:1]), identity="bank")
    Client.check_members(cast("Any", alone), ["hospital"])  # (a local cluster, for evaluation)


def test_a_client_sees_its_own_rights(capsys: pytest.CaptureFixture[str]) -> None:
    rights: dict[str, Any] = {
        "analyst": {"v": ("aggregate", "filter")},
        "*": {"w": ("open",)},
        "other": {"*": ("open",)},
    }
    columns = {name: TableColumn(parse_type("int[0,9]")) for name in "vwx"}
    schema = TableSchema(30, columns, rights=rights, min_group=12)
    kept = StoredEntry(
        name="t",
        owner="bank",
        clients=None,
        deployment="0" * 32,
        about=schema.to_header(),
        complete=True,
    )
    visible = {"t": kept}
    command._print_tables(Namespace(json=True), visible, "analyst")
    (row,) = json.loads(capsys.readouterr().out)
    assert row["rights"]["v"] == ["aggregate", "filter"] and row["rights"]["x"] == []
    assert "open" in row["rights"]["w"] and row["min_group"] == 12
    command._print_tables(Namespace(json=False), visible, "analyst")
    shown = capsys.readouterr().out
    assert "12" in shown and "(its" in shown
    assert command._describe_table_columns(
        {**row, "columns": {"v": "int", "w": "int", "x": "int"}}, False
    ) == [
        *("v int: aggregate, filter", "w int: open", "x int: none"),
    ]
    assert command._describe_table_columns(row, True) == ["v int", "w int", "x int"]


def test_results_have_the_names_and_texts_that_their_reader_knows() -> None:
    table = StoredTable(
        {"Customer ID": "int[0,9]", "City": "text", "n": "int[0,9]"}, [(1, "Rome", 2)]
    )
    known = {"t": table.client_view("t")}
    db = Tables(cast("Any", SimpleNamespace(stored=lambda infix: [])))
    db.show_texts({"city": ["Oslo", "Rome", None], "n": [1, 2, 3]})
    result = io.Result(
        {"customer id": parse_type("int"), "city": HASHES, "n": parse_type("int")},
        {"customer id": [1], "city": [_expected_value("Rome")], "n": [2]},
    )
    for text, names in (
        ("select * from t", ["Customer ID", "City", "n"]),
        ('select "Customer ID", City, n from t', ["Customer ID", "City", "n"]),
        ('select "customer id", city, n from t', ["customer id", "city", "n"]),
        (
            'select max("Customer ID") "customer id", City, n from t group by City, n',
            ["customer id", "City", "n"],
        ),
    ):
        query = Query(cast("Any", None), sql.compile_sql(text, known), known, text, db._texts)
        assert list(query._owner_spelling(result).get(name, name) for name in result.types) == names
    named = result.named({"city": "City"}, db._texts)
    assert named.rows == [(1, "Rome", 2)] and list(named.types) == ["customer id", "City", "n"]
