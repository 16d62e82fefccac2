"""TABLESAMPLE: rows that are drawn at random, in the numbers that DuckDB draws."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from tests.queries.asked import (
    ANALYST,
    StoredTable,
    check_all,
    compile_plan,
    derive_plan,
    duckdb_answers,
    run_queries,
)
from tests.refusals import raises
from tfe_bench.errors import PolicyError, UsageError
from tfe_bench.queries.io import Result
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.steps.sample import Sample

TYPES = {"id": "int[0,99]", "z": "int[0,9]?", "seg": "category(a,b)"}
ROWS: list[tuple[Any, ...]] = [(i, i % 3 if i % 4 else None, "ab"[i % 2]) for i in range(25)]
TABLES = {
    "t": StoredTable(TYPES, ROWS, unique=("id",)),
    "padded": StoredTable(TYPES, ROWS[:9], unique=("id",), pad=7),
    "same": StoredTable(TYPES, [(i, 5, "a") for i in range(11)], unique=("id",)),
}
PERCENT = "select count(*) n from t tablesample reservoir({} percent)"


def test_numbers_of_rows_are_those_of_duckdb() -> None:
    texts = [f"select count(*) n from t tablesample {n} rows" for n in (0, 1, 7, 25, 1000)]
    texts += [PERCENT.format(p) for p in (0, 1, 2, 10, 12.5, 33.3, 50, 99.9999, 100)]
    texts += [
        "select count(*) n from padded tablesample 4 rows",
        "select count(*) n, count(id) m from padded tablesample 12 rows",
        "select sum(z) s, min(seg) g from same tablesample 6",
        "select z, count(*) n from same tablesample reservoir(25 percent) group by z",
        "select count(*) n from (select id from t order by id limit 8) q tablesample 3 rows",
        "with w as (select id from t where id < 5) select count(*) n from w tablesample 9 rows",
        "select count(*) n from t x tablesample 4 rows join t y on x.id = y.id",
    ]
    check_all(texts, TABLES)


def test_a_sample_of_all_rows_is_the_table() -> None:
    texts = [
        "select * from t tablesample reservoir(100 percent)",
        "select id, z from padded tablesample 9 rows",
        "select id, seg from padded tablesample reservoir(100 percent)",
        "select id from t tablesample 0 rows",
        "select seg, sum(z) s from t tablesample 25 rows group by seg order by seg",
    ]
    check_all(texts, TABLES)


def _run_in_sessions(text: str, sessions: int, times: int) -> list[Result]:
    """Run a query several times in each of some sessions, which keep its graphs."""
    return [
        result
        for _ in range(sessions)
        for result in run_queries([text] * times, TABLES, graphs="sample " + text)
    ]


def test_rows_are_drawn_anew_and_not_by_their_places() -> None:
    due = {row[0]: row[1] for row in duckdb_answers(["select id, z from t"], TABLES)[0]}
    for source, sizes in {
        "t tablesample 5 rows": {5},
        "padded tablesample reservoir(50 percent)": set(range(1, 9)),
        "(select * from t order by id) q tablesample 4 rows": {4},
    }.items():
        results = _run_in_sessions(f"select id, z from {source}", 3, 2)
        drawn = [dict(result.rows) for result in results]
        assert {len(result.rows) for result in results} <= sizes
        assert [len(rows) for rows in drawn] == [len(result.rows) for result in results]
        assert all(rows.items() <= due.items() for rows in drawn)
        assert len({tuple(sorted(rows)) for rows in drawn}) > 1


def test_every_row_is_drawn_as_often_as_others() -> None:
    # 60 samples of 5 of 25 rows: each row is in 12 on average, with a deviation of 3.1
    results = _run_in_sessions("select id from t tablesample 5 rows", 12, 5)
    counts = collections.Counter(i for result in results for i in result.columns["id"])
    assert set(counts) == set(range(25)) and max(counts.values()) < 12 + 7 * 3.1


@pytest.mark.parametrize(
    ("sample", "code"),
    [
        ("10%", "unsupported-sql"),
        ("bernoulli(10 percent)", "unsupported-sql"),
        ("system(10 percent)", "unsupported-sql"),
        ("reservoir(5 rows) repeatable (3)", "unsupported-sql"),
        ("()", "unsupported-sql"),
        ("reservoir(2.5 rows)", "number-out-of-range"),
        ("reservoir(3000000000 rows)", "number-out-of-range"),
        ("reservoir(100.5 percent)", "number-out-of-range"),
        ("reservoir(1.00001 percent)", "number-out-of-range"),
        ("reservoir('10' percent)", "number-out-of-range"),
        ("reservoir(1e999999999999 rows)", "number-out-of-range"),
        ("reservoir(x rows)", "sql-syntax"),
        ("reservoir(-1 rows)", "sql-syntax"),
    ],
)
def test_other_samples_are_refused(sample: str, code: str) -> None:
    with raises(UsageError, code):
        compile_plan(f"select id from t tablesample {sample}", TABLES)


def test_a_sample_after_joins_is_refused() -> None:
    with raises(UsageError, "unsupported-sql", operation="USING SAMPLE"):
        compile_plan("select id from t using sample 5 rows", TABLES)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "invalid-plan"),
        ({"count": 3, "parts": 3}, "invalid-plan"),
        ({"count": None}, "number-out-of-range"),
        ({"count": -1}, "number-out-of-range"),
        ({"count": True}, "number-out-of-range"),
        ({"count": 2**31 + 1}, "number-out-of-range"),
        ({"parts": 1_000_001}, "number-out-of-range"),
        ({"parts": 0.5}, "number-out-of-range"),
        ({"count": 3, "seed": 1}, "invalid-plan"),
        ({"count": 3, "in": [0, 0]}, "invalid-plan"),
    ],
)
def test_invalid_steps_are_refused(fields: dict[str, Any], code: str) -> None:
    plan = compile_plan("select id from t tablesample 3 rows", TABLES).to_header()
    assert plan["steps"][1] == {"op": "sample", "in": [0], "count": 3}
    plan["steps"][1] = {"op": "sample", "in": [0], **fields}
    with raises(UsageError, code):
        QueryPlan.from_header(plan)


def test_facts_of_a_sample_are_public() -> None:
    plan = compile_plan("select id from padded tablesample reservoir(25 percent)", TABLES)
    facts = derive_plan(plan, TABLES)[1]
    assert (facts.rows, facts.valid, facts.ordered, facts.home) == (4, False, False, "")
    assert plan.steps[1].explain_step([], facts) == "sample 0: 25 %"


def test_a_sample_that_is_used_twice_is_drawn_once() -> None:
    common = "with w as (select id from t tablesample 4 rows)"
    plan = compile_plan(f"{common} select id from w union select id from w", TABLES)
    assert sum(isinstance(step, Sample) for step in plan.steps) == 1
    with raises(UsageError, "unrepeatable-query"):
        compile_plan(f"{common} select a.id from w a join w b on a.id = b.id", TABLES)


def test_a_sample_takes_the_rights_of_its_rows_and_groups_are_counted_after_it() -> None:
    about: dict[str, Any] = {"client": ANALYST, "min_group": 10}
    rights = {ANALYST: {"id": ("aggregate", "filter")}}
    table = StoredTable(TYPES, ROWS, rights=rights, **about)
    unfiltered = StoredTable(TYPES, ROWS, rights={ANALYST: {"id": ("aggregate",)}}, **about)
    for text, one in {
        "select id from t tablesample 12 rows": table,
        "select sum(id) s from t tablesample 24 rows": unfiltered,
    }.items():
        with raises(PolicyError, "missing-right", operation="id"):
            compile_plan(text, {"t": one})
    texts = [f"select count(id) n from t tablesample {n} rows" for n in (9, 12)]
    few, enough = run_queries(texts, {"t": table})
    assert few.rows == [(None,)] and enough.rows == [(12,)]
    grants = {ANALYST: {"*": ("aggregate", "group", "filter")}}
    budget = StoredTable({"g": "bool"}, [(True,)], rights=grants, client=ANALYST, budget=10**9)
    with raises(PolicyError, "budget-restriction"):
        compile_plan("select count(*) n from t tablesample 1 rows", {"t": budget}, rho="0.1")
