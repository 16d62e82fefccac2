"""Rights of queries: each right separately, at every step that could bypass it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.queries.asked import (
    ANALYST,
    StoredTable,
    check_same,
    compile_plan,
    derive_plan,
    duckdb_answers,
    run_queries,
)
from tests.refusals import raises
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.queries import plan_syntax, sql
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.programs import query
from tfe_bench.queries.rights import ColumnUse, TableRecords, check_row_bound_disclosure

# (a right to each column; each case is about c)
ROWS = [(i, i % 3, i, "ab"[i % 2]) for i in range(24)]
GUESSES = [(i, i % 2) for i in range(8)]


def _make_tables(c: str, seg: str = "group", k: str = "", **more: object) -> dict[str, StoredTable]:
    rights = {"c": tuple(c.split()), "seg": tuple(seg.split()), "k": tuple(k.split())}
    table = {"k": "int[0,99]", "n": "int[0,9]", "c": "int[0,99]", "seg": "category(a,b)"}
    bank = StoredTable(
        table,
        ROWS,
        unique=("k",),
        rights={ANALYST: {**rights, "n": ("open",)}},
        client=ANALYST,
        **more,
    )
    own = StoredTable(
        {"id": "int[0,99]", "g": "int[0,9]"}, GUESSES, unique=("id",), owner=ANALYST, client=ANALYST
    )
    other = StoredTable(
        {"id": "int[0,99]", "v": "int[0,9]"},
        GUESSES,
        unique=("id",),
        owner="telco",
        rights={ANALYST: {"*": ("open",)}},
        client=ANALYST,
    )
    dim = StoredTable({"g": "int[0,99]"}, [(1,), (1,)], owner=ANALYST, client=ANALYST)
    return {"t": bank, "own": own, "other": other, "dim": dim}


# A query, sufficient rights to c, and insufficient ones.
CASES = [
    ("select c from t", ["open"], ["aggregate filter group quantile match train", ""]),
    ("select c + n from t", ["open"], ["aggregate"]),
    ("select n from t where c > 5", ["open"], ["filter", "aggregate"]),
    ("select n from t order by c limit 1", ["open"], ["filter"]),
    ("select n from t where c < 1 union all select n from t where c = 1", ["open"], ["filter"]),
    ("select n, 1 as x from t where c < 1", ["open"], ["filter"]),
    ("select sum(c) from t", ["aggregate", "open"], ["filter", "group", ""]),
    ("select avg(c * 2 + 1) from t group by seg", ["aggregate"], ["filter group"]),
    ("select sum(c * n) from t", ["open"], ["aggregate filter"]),
    ("select sum(case when c = 93 then n end) from t", ["open"], ["aggregate filter"]),
    ("select max(c) from t", ["open"], ["aggregate quantile"]),
    ("select seg, median(c) from t group by seg", ["quantile"], ["aggregate filter group"]),
    ("select quantile_disc(c, 0.9) from t", ["quantile"], ["aggregate filter"]),
    ("select quantile_disc(c, 1) from t", ["open"], ["quantile aggregate"]),
    ("select median(c * n) from t", ["open"], ["quantile aggregate"]),
    ("select count(*) from t where c > 5", ["filter", "open"], ["aggregate", "group"]),
    ("select count(c) from t", ["filter", "aggregate"], ["group", ""]),
    ("select count(2 * c - 1) from t", ["filter", "aggregate"], ["group", ""]),
    ("select count(case when c > 5 then 1 end) from t", ["filter", "open"], ["aggregate group"]),
    ("select count(n / c) from t", ["filter", "open"], ["aggregate"]),
    ("select count(case when c < n then c end) from t", ["filter"], ["aggregate quantile"]),
    ("select sum(c / 4), avg(c * 1.5), sum(-c / 2 + 1) from t", ["aggregate"], ["filter"]),
    ("select sum(c / 3) from t", ["open"], ["aggregate filter quantile"]),
    ("select sum(c * 0.25 / 3 + 1) from t", ["open"], ["aggregate filter"]),
    ("select median(c / 7) from t", ["open"], ["quantile aggregate"]),
    ("select c, count(*) from t group by c", ["group"], ["filter aggregate"]),
    ("select distinct c from t", ["group"], ["filter aggregate"]),
    ("select n, rank() over (order by c) from t", ["open"], ["filter aggregate quantile"]),
    ("select n, sum(c) over (partition by n) from t", ["open"], ["aggregate filter quantile"]),
    ("select n from t qualify rank() over (order by c) = 1", ["open"], ["filter", "group"]),
    (
        "select max(x) from (select n, rank() over (order by n) x from t where c > 5) q",
        ["open"],
        ["filter aggregate"],
    ),
    (
        "select sum(x), count(*) from (select lag(c) over (order by n) x from t) q",
        ["open"],
        ["aggregate filter"],
    ),
    (
        "select sum(n) from (select n from t qualify row_number() over (order by c) < 9) q",
        ["filter"],
        ["aggregate", "group"],
    ),
    ("select x from (select seg, sum(c) x from t group by seg) q where x > 5", ["aggregate"], [""]),
    ("select n from t join other on c = id", ["match"], ["filter", "group"]),
    ("select n from t semi join other on c = id", ["match"], ["filter"]),
    ("select n from t join own on c = id", ["open"], ["match filter"]),
    ("select n from t anti join other on c = id", ["open"], ["match filter"]),
    ("select n from t left join other on c = id", ["open"], ["match filter"]),
    ("select count(*) from t join own on c = id", ["match", "filter"], ["aggregate"]),
    ("select count(*) from t anti join other on c = id", ["open"], ["match filter"]),
]


@pytest.mark.parametrize(("text", "enough", "lacking"), CASES)
def test_each_right_is_needed_and_enough(text: str, enough: list[str], lacking: list[str]) -> None:
    for rights in enough:
        compile_plan(text, _make_tables(rights))
    for rights in lacking:
        with raises(PolicyError, "missing-right", operation="c"):
            compile_plan(text, _make_tables(rights))


@pytest.mark.parametrize(
    "text",
    [
        "select n, sum(c) from (select n, c from t union all select n, k from t) q group by n",
        "select g, sum(c) from dim join t on dim.g = t.k group by g",
    ],
)
def test_groups_whose_records_may_repeat_are_refused(text: str) -> None:
    with raises(PolicyError, "repeated-records", "missing-right"):
        compile_plan(text, _make_tables("aggregate filter", k="match"))


def test_a_left_join_with_a_bound_takes_the_right_to_see_what_matched() -> None:
    text = "select g, n from dim left join t on g = c"
    compile_plan(text, _make_tables("open"), max_rows=60)
    for rights in ("match", "match filter"):
        with raises(PolicyError, "missing-right", operation="c"):
            compile_plan(text, _make_tables(rights), max_rows=60)
    with raises(UsageError, "key-not-unique"):
        compile_plan(text, _make_tables("open"))


def test_a_bound_tells_of_no_fewer_records_than_a_group() -> None:
    def checked(bound: int, match: str = "match", single: bool = True) -> None:
        tables = {name: t.client_view(name) for name, t in _make_tables(match, min_group=8).items()}
        records = {"t": (TableRecords(single), 3), "own": (TableRecords(True), 24)}
        check_row_bound_disclosure(
            tables, bound, frozenset({(tables["t"].source("c", "t"), ColumnUse.GUESSED)}), records
        )

    checked(24)
    for bound, match, single in ((23, "match", True), (24, "group", True), (10**6, "match", False)):
        with raises(PolicyError, "bound-too-small", "missing-right", "repeated-records"):
            checked(bound, match, single)


# Uses of a hidden column that a patched client could send.
_HIDDEN: dict[str, list[dict[str, Any]]] = {
    "shown": [{"op": "project", "in": [0], "columns": [["x", "HIDDEN"]]}],
    "told": [
        {"op": "project", "in": [0], "columns": [["x", "HIDDEN"]]},
        {"op": "group", "in": [1], "keys": [], "aggregates": [["m", "max", "x"]]},
    ],
    "summed": [
        {"op": "project", "in": [0], "columns": [["x", "HIDDEN"]]},
        {"op": "group", "in": [1], "keys": [], "aggregates": [["m", "sum", "x"]]},
    ],
    "filtered": [
        {"op": "filter", "in": [0], "where": ["is_null", "HIDDEN"]},
        {"op": "group", "in": [1], "keys": [], "aggregates": [["m", "count", None]]},
    ],
    "grouped": [
        {"op": "project", "in": [0], "columns": [["x", "HIDDEN"]]},
        {"op": "group", "in": [1], "keys": ["x"], "aggregates": [["m", "count", None]]},
    ],
    "ordered": [
        {"op": "project", "in": [0], "columns": [["x", "HIDDEN"], ["v", ["col", "t.v"]]]},
        {"op": "top", "in": [1], "by": [["x", "asc"]], "count": 1},
    ],
    "matched": [
        {"op": "project", "in": [0], "columns": [["x", "HIDDEN"]]},
        {"op": "scan", "in": [], "table": "o", "columns": ["id"]},
        {"op": "join", "in": [1, 2], "kind": "inner", "on": [["x", "o.id"]]},
        {"op": "group", "in": [3], "keys": [], "aggregates": [["m", "count", None]]},
    ],
}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", _HIDDEN)
def test_hidden_columns_have_no_name_and_take_rights(
    name: str, opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(i, i % 5) for i in range(24)]
    v = ("open",) if opened else ("aggregate", "group", "filter")
    more = {"rights": {ANALYST: {"v": v}}, "unit": "who", "client": ANALYST, "min_group": 2}
    t = StoredTable({"who": "int[0,99]", "v": "int[0,9]"}, rows, **more)
    o = StoredTable({"id": "int[0,99]"}, [(1,)], unique=("id",), owner=ANALYST, client=ANALYST)
    scan = {"op": "scan", "in": [], "table": "t", "columns": ["v"]}
    steps = json.loads(
        json.dumps([scan, *_HIDDEN[name]]).replace('"HIDDEN"', json.dumps(["col", "t?unit"]))
    )
    listed = {a: {"name": a, "deployment": "0" * 32} for a in ("t", "o")}
    header = {"tables": listed, "steps": steps, "output": len(steps) - 1}
    with raises(UsageError, "invalid-name", received="?"):
        QueryPlan.from_header(header)
    # even if the name passed the check, its rights would be required
    monkeypatch.setattr(plan_syntax, "check_column_name", lambda value: value)
    with raises(PolicyError, "missing-right", operation="who"):
        derive_plan(QueryPlan.from_header(header), {"t": t, "o": o})


def test_whether_a_partner_was_found_takes_the_rights_of_a_match() -> None:
    tables = _make_tables("open")
    derived = derive_plan(
        compile_plan("select n, v from t left join other on c = id", tables), tables
    )
    joined = next(m for m in derived if "other?" in m.columns)
    assert joined.columns["other?"].sources == {
        tables[name].client_view(name).source(column, name)
        for name, column in (("t", "c"), ("other", "id"))
    }


def test_an_owner_may_do_everything_and_a_stranger_nothing() -> None:
    tables = _make_tables("")
    for who, fits in (("bank", True), ("thief", False)):
        for table in tables.values():
            table.client = who
        if fits:
            compile_plan("select c, seg from t where c > 3 order by c", tables)
            continue
        with pytest.raises(PolicyError):
            compile_plan("select count(*) from t", tables)


def test_small_groups_are_left_out() -> None:
    tables = _make_tables("aggregate filter quantile", min_group=8)
    results = run_queries(
        [
            "select n, sum(c) s from t where c < 23 group by n order by n",
            "select sum(c) s, count(*) from t where c > 20",
            "select median(c), quantile_disc(c, 0.5) from t",
            "select quantile_disc(c, 0.25) from t",
            "select n, median(c) from t group by n",
            "select 5 as five, sum(c) / count(*) as mean from t where c > 20 order by mean limit 3",
            "select sum(c) s from t where c > 20 having count(*) > 0",
        ],
        tables,
    )
    # 8, 8 and 7 rows of n = 0, 1, 2; then 3 in total
    assert [row[0] for row in results[0].rows] == [0, 1]
    # one row, as in SQL, and a note with the reason for NULL
    assert results[1].rows == [(None, None)] and results[5].rows == [(5, None)]
    assert results[1].types.keys() == {"s", "count_star()"}
    rule = "fewer than 8 records of 't' {} (a rule of 'bank')."
    assert results[0].notes == ("Groups with " + rule.format("are left out"),)
    assert results[1].notes == ("A total of " + rule.format("is withheld and shown as NULL"),)
    assert results[6].rows == []
    # minimum on each side of a quantile: 16 and 32 in total
    assert [list(map(float, row)) for row in results[2].rows] == [[11.5, 11]]
    assert results[3].rows == [(None,)] and results[4].rows == []


def test_quantiles_of_one_query_are_few() -> None:
    tables = _make_tables("quantile")
    listed = ", ".join(f"quantile_disc(c, 0.{i})" for i in range(10, 21))
    with raises(UsageError, "too-many-quantiles"):
        compile_plan(f"select {listed} from t", tables)
    compile_plan(f"select {listed} from t", _make_tables("open"))


@pytest.mark.parametrize(
    "some", [slice(2, 3), pytest.param(slice(0, 4, 1), marks=pytest.mark.slow)]
)
def test_units_that_repeat_are_counted_once(some: slice, rng: np.random.Generator) -> None:
    def maybe(value: int) -> int | None:
        return None if rng.random() < 0.4 else value

    rows = [(maybe(int(rng.integers(9))), maybe(i), i % 5, "ab"[i % 2]) for i in range(30)]
    types = {"who": "int[0,9]?", "v": "int[0,99]?", "k": "int[0,9]", "seg": "category(a,b)"}
    rights = {ANALYST: {"*": ("aggregate", "group", "filter", "match", "quantile")}}
    bank = StoredTable(types, rows, rights=rights, client=ANALYST, min_group=3, unit="who")
    people = [(i, i % 3) for i in range(9)]
    more = {"client": ANALYST, "min_group": 2, "unit": "n", "unique": ("n",)}
    telco = StoredTable(
        {"n": "int[0,9]", "g": "int[0,9]"}, people, owner="telco", rights=rights, **more
    )
    tables = {"t": bank, "people": telco}
    joined = "from t join people on who = n group by seg, k"
    texts = [
        "select k, sum(v) s, count(*) c from t where k > 0 group by k",
        "select seg, count(*) c from t group by seg",
        f"select seg, k, sum(v) s, sum(g) h {joined}",
        "select k, sum(g) s, count(*) c from t left join people on who = n where v > 4 group by k",
    ]
    units = ["count(distinct who) >= 3"] * 4
    # (an aggregate counts units with a value)
    for i in (0, 2):
        units[i] = "count(distinct case when v is not null then who end) >= 3"
    units[3] += " and count(distinct n) >= 2"
    due = [f"{text} having {u}" for text, u in zip(texts, units, strict=True)]
    texts, due = texts[some], due[some]
    for text, result, expected in zip(
        texts, run_queries(texts, tables), duckdb_answers(due, tables), strict=True
    ):
        check_same(text, result, expected)
    for text in (
        "select median(v) from t",
        "select k, sum(v) from (select k, v from t union all select k, v from t) q group by k",
    ):
        with raises(PolicyError, "repeated-units", "repeated-records", "missing-right"):
            compile_plan(text, tables)


def test_rights_are_given_by_column_and_client() -> None:
    schema = _make_tables("open")["t"].schema
    both = replace(schema, rights={"*": {"*": ("filter",)}, ANALYST: {"c": ("aggregate",)}})
    assert both.allows(ANALYST, "bank", "c") == {"aggregate", "filter"}
    assert both.allows("other", "bank", "c") == {"filter"}
    with raises(UsageError, "unknown-right", received="opne"):
        replace(schema, rights={ANALYST: {"c": ("opne",)}})


def test_graphs_are_named_by_the_headers_that_they_are_derived_from() -> None:
    tables = _make_tables("aggregate")
    inputs = sql.compile_sql(
        "select sum(c) s from t", {n: t.client_view(n) for n, t in tables.items()}
    )
    known = {"t": tables["t"].client_view("t")}
    name = query.query_graph_key(inputs, known)
    assert name == query.query_graph_key(inputs, {"t": replace(known["t"], spent=5)})
    schema = known["t"].schema
    for changed in (
        {"owner": "thief"},
        {"schema": replace(schema, min_group=3)},
        {"schema": replace(schema, rights={ANALYST: {"*": ("open",)}})},
        {"schema": replace(schema, rows=schema.rows + 1)},
    ):
        assert query.query_graph_key(inputs, {"t": replace(known["t"], **changed)}) != name


LEFT_OUT = (
    "(select c, seg from t limit 23) q",
    "(select c, seg from t limit 0) q",
    "(select c, seg from t fetch first 5 rows only) q",
    "(select c, seg from (select c, seg, 1 as one from t) p order by one limit 23) q",
    "(select c, seg from t limit 12 union all select c, seg from t) q",
    "t tablesample 23 rows",
    "t tablesample reservoir(95 percent)",
    "(select x.c, x.seg from t x semi join (select c from t limit 23) y on x.c = y.c) q",
)


@pytest.mark.parametrize("source", LEFT_OUT)
@pytest.mark.parametrize("chosen", ["sum(c)", "count(*)", "avg(c)"])
def test_leaving_out_rows_takes_the_right_to_filter(source: str, chosen: str) -> None:
    """The sum of all rows and that of all but one differ by one record's value."""
    columns = {"c": "int[0,99]", "seg": "category(a,b)"}
    rows = [(i, "ab"[i % 2]) for i in range(24)]

    def make_table(right: str) -> dict[str, StoredTable]:
        rights = {ANALYST: {"c": (*right.split(), "match"), "seg": ("group",)}}
        table = StoredTable(columns, rows, unique=("c",), rights=rights, client=ANALYST)
        return {"t": table}

    with raises(PolicyError, "missing-right"):
        compile_plan(f"select {chosen} from {source}", make_table("aggregate"))
    if "union" not in source and "semi" not in source:
        compile_plan(f"select {chosen} from {source}", make_table("aggregate filter"))


def test_a_limit_that_leaves_out_no_row_takes_no_right() -> None:
    tables = _make_tables("aggregate")
    for text in (
        "select sum(c) from (select c from t limit 24) q",
        "select sum(c) from (select c from t limit 1000) q",
        "select seg, sum(c) s from t group by seg order by s limit 1",
    ):
        compile_plan(text, tables)
