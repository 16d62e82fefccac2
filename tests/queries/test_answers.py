"""Answers of three simulated workers equal DuckDB's."""

from __future__ import annotations

import datetime
import re

import numpy as np
import pytest

from tests.queries import drawn, plain
from tests.queries.asked import (
    TYPES,
    StoredTable,
    check_all,
    check_same,
    compile_plan,
    derive_plan,
    duckdb_answers,
    random_rows,
    run_queries,
)
from tests.refusals import raises
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.order import select
from tfe_bench.queries import io
from tfe_bench.queries.steps.top import Top

# One query for several kinds of steps: a session is traced once for all of them.
TEXTS = [
    "select p, z, seg, flag, day, word from t where not (z > 2) or seg in ('a') and p < 10.5",
    "select count(*), count(z), sum(z), avg(p), min(z), max(k) from t where k between 2 and 4",
    "select seg, count(*) n, sum(p) from t group by seg having count(*) > 1 order by seg desc",
    "select z, sum(k) s from t group by z order by z limit 4",
    "select seg, median(z), quantile_disc(p, 0.3), quantile_disc(p, 0.9) from t group by seg",
    "select id, row_number() over (partition by k order by id desc) r, count(*) over () n, "
    "sum(z) over (order by k), lag(p) over (partition by k order by id desc) from t qualify r < 4",
    "select flag, k, count(*) n, max(p) from t group by flag, k",
    "select distinct seg from t",
    "select least(k, 2) + greatest(id, k, 3) * least(id - 4, k, 100) v, greatest(p, 1) from t",
]
MORE = [
    "select sum(z) from t where k > 6",
    "select k, z, count(*) c, sum(p), max(r) m, min(z), max(day), min(flag) from t group by k, z",
    "select distinct k, flag from t where id > 3",
    "select k, p from t order by p desc, k limit 5",
    "select k from t where k = 1 union all select z from t where seg = 'b'",
    "select flag from t union select k > 2 from t",
    "select id, case when z is null then -1 when z > 0 then z else 0 end, coalesce(z, k), p / 7, "
    "p / (k + 1), abs(z), p * k, year(day), month(day), p + k * 2 - z, r * r, r * p, -z, "
    "case when k > 0 then z / k end, greatest(k, id, 3), least(p, r) from t order by id",
    "select k, count(distinct z) from t group by k",
    "select count(*) filter (where flag), sum(case when flag then 0 else p end), avg(r) from t",
    "select z > 3 and flag, flag is null, z <> 4 or not flag, not (flag and z = 2), word <> 'x', "
    "day >= date '2020-02-29' - interval 1 month from t",
    "select id from t where extract(month from day) = 12 and flag is not true or word = 'ä'",
    "select count(*) from t limit 0",
    "select max(flag), min(seg), max(word is null) from t where z < -20",
    "select t.id, w, name from t join u on t.id = u.uid where w > 3",
    "select id, w, name from t left join u on id = uid",
    "select k, count(*), sum(w) from t left join u on id = uid group by k",
    "select distinct k from t left join u on id = uid",
    "select id from t left join u on id = uid union all select k from t where k > 2",
    "select id from t where id in (select uid from u where w is not null)",
    "select id from t where not exists (select 1 from u where u.uid = t.id and w > 2)",
    "select name, sum(p), count(*) from u join t on uid = id group by name",
    "select k, median(z), quantile_disc(p, 0.9), quantile_cont(p::double, 0.25), count(*), sum(z), "
    "max(p), median(r), quantile_disc(day, 0.3), quantile_disc(seg, 0.7) from t group by k",
    "select median(z), quantile_disc(z, 1), quantile_disc(p, 0), count(z) from t where k > 2",
    "select seg, flag, quantile_disc(id, 0.333) from t group by seg, flag",
    "select median(p), quantile_cont(z, 0.999) from t where k > 6",
    "select id, rank() over (partition by seg order by z), dense_rank() over (order by z desc), "
    "avg(z) over (partition by k order by id rows 2 preceding), count(z) over (partition by z), "
    "lead(flag, 2) over (partition by flag order by day, id), sum(p + k) over (order by id rows "
    "unbounded preceding), lag(word) over (order by id), sum(r) over (partition by seg), "
    "min(z) over (partition by k order by id), max(p) over (order by z), min(day) over (partition "
    "by seg), max(z) over (partition by seg order by day, id rows unbounded preceding), max(r) "
    "over (), min(seg) over (order by k, id) from t",
    "select k, sum(p), rank() over (order by count(*), k), sum(sum(p)) over (order by k) c from t "
    "group by k qualify c > -20 or k < 3 order by k",
    "select id from t qualify row_number() over (partition by flag, z order by day, id) = 1",
    "with s as (select k, count(*) n from t group by k) select t.id, n from t join s using (k)",
]


def _make_other(rng: np.random.Generator, n: int) -> StoredTable:
    return StoredTable(
        {"uid": "int[0,500]", "w": "int[0,9]?", "name": "category(a,b,c)"},
        [
            (i, None if i % 3 == 0 else i % 10, "abc"[i % 3])
            for i in rng.permutation(2 * n)[:n].tolist()
        ],
        unique=("uid",),
    )


def test_answers_are_those_of_duckdb(rng: np.random.Generator) -> None:
    table = StoredTable(TYPES, random_rows(rng, 20), pad=3, unique=("id",))
    check_all(TEXTS, {"t": table}, checked=True)


LEAST, MOST = -(1 << 63), (1 << 63) - 1
# The widest columns, and narrow ones at the ends of a 64-bit word.
WIDEST = {
    "int64": [LEAST, MOST, 0, -1, LEAST + 1, MOST - 1],
    f"int[{LEAST},{LEAST + 3}]": [LEAST, LEAST + 3, LEAST + 1, LEAST + 2, LEAST, LEAST],
    f"int[{MOST - 3},{MOST}]": [MOST - 3, MOST, MOST - 1, MOST - 2, MOST, MOST],
    f"int[{LEAST},-1]": [LEAST, -1, -(1 << 62), -5, LEAST + 1, -1],
    f"int[0,{MOST}]": [0, MOST, 1 << 62, 5, MOST - 1, 0],
    f"int[{-(1 << 62)},{1 << 62}]": [-(1 << 62), 1 << 62, 0, 1, -1, 1 << 62],
}


@pytest.mark.parametrize(
    "kind",
    [
        kind if i < 2 else pytest.param(kind, marks=pytest.mark.slow)
        for i, kind in enumerate(WIDEST)
    ],
)
def test_columns_of_any_range_are_right_at_its_ends(kind: str) -> None:
    rows = [(x, i % 2, i) for i, x in enumerate(WIDEST[kind])]
    table = StoredTable({"x": kind, "k": "int[0,1]", "id": "int[0,9]"}, rows, pad=2)
    texts = [
        "select min(x), max(x), count(x), max(x) filter (where k > 0) from t",
        "select k, min(x), max(x) from t group by k",
        "select min(x), max(x) from t where id = 0",
        "select greatest(x, k), least(x, k), greatest(x, k, 3), x > k, x = k from t",
        "select id, x from t order by x desc, id limit 4",
        "select x, count(*) from t group by x",
        "select id, lag(x) over (order by id), rank() over (order by x) from t",
        "select case when k > 0 then x else 0 end from t",
    ]
    check_all(texts, {"t": table})


def _draw_queries(count: int, known: dict[str, StoredTable], seed: int) -> list[str]:
    """Draw queries that both support."""
    import duckdb

    reals = sorted({str(row[3]) for row in known["t"].rows})
    queries, texts = drawn.RandomQueries(seed, reals[:20]), list[str]()
    while len(texts) < count:
        text = queries.draw_query()
        try:
            compile_plan(text, known)
            duckdb_answers([text], known)
        except (UsageError, duckdb.Error):
            continue
        texts.append(text)
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 7, 33])
def test_what_is_drawn_is_answered_as_by_duckdb_or_refused(
    n: int, seed: int, rng: np.random.Generator
) -> None:
    known = drawn.random_tables(n, rng)
    check_all(_draw_queries(12, known, seed), known)


@pytest.mark.parametrize("count", [12, pytest.param(600, marks=pytest.mark.slow)])
def test_what_is_drawn_is_compiled_to_what_duckdb_answers(
    count: int, seed: int, rng: np.random.Generator
) -> None:
    known = drawn.random_tables(9, rng)
    for text in _draw_queries(count, known, seed):
        plan = compile_plan(text, known)
        if not any(step.op == "window" for step in plan.steps):
            facts = derive_plan(plan, known)[plan.output]
            rows = plain.run_plan(plan, known)
            types = {
                name: fact.value_type for name, fact in facts.columns.items() if "?" not in name
            }
            columns = {name: [row[i] for row in rows] for i, name in enumerate(types)}
            check_same(text, io.Result(types, columns), duckdb_answers([text], known)[0])


def test_columns_of_one_value_are_compared() -> None:
    types = {"x": "int[5,5]?", "word": "category(only)", "day": "date[2020-01-01,2020-01-01]"}
    table = StoredTable(types, [(x, "only", datetime.date(2020, 1, 1)) for x in (5, None)])
    texts = [
        f"select x {op} 5, word {op} 'only', day {op} date '2020-01-01', x {op} x from t"
        for op in ("=", "<>", "<", ">=")
    ]
    check_all(texts, {"t": table})


def test_the_first_of_many_rows_are_those_of_duckdb(rng: np.random.Generator) -> None:
    table = StoredTable(TYPES, random_rows(rng, 460), pad=40, unique=("id",))
    texts = [
        "select id, z from t where k > 1 order by z desc, id limit 7",
        "select p, seg from t order by p desc, seg limit 12",
        "select id, day from t order by day, id desc limit 499",
        "select id from t where k > 6 order by id limit 20",
        "select id from (select id, p from t order by id limit 9) q where p > 0",
        "select id from t where k < 2 union all select k from t order by id desc limit 4",
        "select id from t order by id limit 0",
    ]
    check_all(texts, {"t": table})
    plan = compile_plan(texts[0], {"t": table})
    [first] = [step for step in plan.steps if isinstance(step, Top)]
    assert (
        first.count == 7
        and select.is_selection_cheaper(500, 7)
        and not select.is_selection_cheaper(500, 499)
    )


@pytest.mark.parametrize("some", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.slow)])
def test_as_many_rows_as_are_asked_for_or_an_error(some: slice, rng: np.random.Generator) -> None:
    keys = [[0, 0, 1, None, 1, 2, 0], [1, 0, None, 0, 5, 1]]
    sides = [
        [(k, i, "xyz"[i % 3]) for i, k in enumerate(rng.permutation(np.array(own, object)))]
        for own in keys
    ]
    types = {"k": "int[0,7]?", "v": "int[0,99]", "word": "category(x,y,z)"}
    tables = {"a": StoredTable(types, sides[0], pad=2), "b": StoredTable(types, sides[1])}
    pairs = sum(x == y for x in keys[0] for y in keys[1] if x is not None)
    texts = [
        "select a.v, b.v as w, b.word from a join b using (k) where a.v < 9",
        "select a.k, count(*), sum(b.v) from a join b on a.k = b.k and b.v > 1 group by a.k",
        "select v from a where k = 0 union select v from b",
    ]
    check_all(texts[some], tables, max_rows=pairs)
    # rows without a partner stay: rows without a key, and rows whose key no other row has
    alone = sum(x is None or x not in keys[1] for x in keys[0])
    assert alone == sum(x is None or x not in keys[0] for x in keys[1])
    lefts = [
        "select a.v, b.v as w, b.word from a left join b using (k)",
        "select a.k, count(*), count(b.v), sum(b.v) from a left join b on a.k = b.k group by a.k",
        "select b.v, a.v as w, a.word, b.k from b left join a on a.k = b.k where b.v > 1",
        "select a.v from a left join b using (k) where b.v is null",
    ]
    check_all(lefts[some], tables, max_rows=pairs + alone)
    with raises(RangeError, "row-bound-exceeded", expected=pairs + alone - 1):
        run_queries(lefts[:1], tables, max_rows=pairs + alone - 1)
    few = ["select a.v from a join b using (k) where a.v < 0", "select v from a order by v"]
    for text, bound in zip(few, (pairs - 1, 6), strict=True):
        with raises(RangeError, "row-bound-exceeded", expected=bound):
            run_queries([text], tables, max_rows=bound)


@pytest.mark.parametrize("one", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_joins_by_links_are_those_of_duckdb(one: int, rng: np.random.Generator) -> None:
    ids = rng.permutation(40)
    types = {"id": "int[-20,60]", "w": "int[0,99]?", "flag": "bool"}
    rows = [(int(i), None if i % 3 else int(i), bool(i % 2)) for i in ids[:20]]
    u = StoredTable(types, rows, hashed_by="id", unique=("id",), pad=5)
    asks = [(None if i % 5 == 0 else int(rng.integers(40)), i) for i in range(25)]
    t = StoredTable(
        {"key": "int[-20,60]?", "v": "int[0,99]"}, asks, links=["key=u.id"], known={"u": u}
    )
    texts = [
        "select v, w, flag from u join t on id = key where v > 3",
        "select v, w, id, flag from t left join u on key = id",
        "select v from t where not exists (select 1 from u where id = key)",
        "select flag, count(*), sum(v) from t join u on id = key group by flag",
    ]
    for text in texts:
        assert any(
            fact.link
            for fact in derive_plan(compile_plan(text, {"t": t, "u": u}), {"t": t, "u": u})
        )
    check_all([texts[one]], {"t": t, "u": u}, checked=True)
    check_all([texts[2 + one]], {"t": t, "u": u})
    # another table of the same name: its bins differ
    again = StoredTable(types, rows[:9], hashed_by="id", unique=("id",), deployment="1" * 32)
    steps = compile_plan(texts[0], {"t": t, "u": again})
    assert not any(fact.link for fact in derive_plan(steps, {"t": t, "u": again}))
    for wrong in (t.links["link0"][4], 0, -1):
        t.links["link0"][3] = wrong
        with raises(RangeError, "invalid-link", operation="key"):
            run_queries([], {"t": t}, checked=True)


def test_rows_leave_in_no_order_but_the_one_that_was_asked_for() -> None:
    rows = [(0, i) for i in range(30)]
    table = StoredTable({"k": "int[0,1]", "i": "int[0,99]"}, rows)
    texts = ["select i from t", "select i from t order by k", "select i from t limit 20"]
    texts.append("select i from (select i, k from t order by i) q where k < 1")
    for text, result in zip(texts, run_queries(texts, {"t": table}), strict=True):
        kept = [row[0] for row in result.rows]
        assert kept != sorted(kept) and len(set(kept)) == len(kept), text


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 40])
def test_more_answers_are_those_of_duckdb(rng: np.random.Generator, n: int) -> None:
    table = StoredTable(TYPES, random_rows(rng, n), pad=n % 2, unique=("id",))
    check_all([*TEXTS, *MORE], {"t": table, "u": _make_other(rng, n)})


@pytest.mark.parametrize(
    ("column", "row", "word", "said"),
    [("k", 0, 9, "column 'k'"), ("flag", 6, 2, "NULL bits|flag"), ("id", -1, 5, "unique")],
)
def test_workers_keep_no_table_that_is_not_as_its_owner_says(
    column: str, row: int, word: int, said: str
) -> None:
    table = StoredTable(
        {"k": "int[0,7]", "flag": "bool", "id": "int[0,9]"},
        [(1, True, 3), (2, False, 5)],
        unique=("id",),
    )
    at = list(table.types).index(column)
    # words that an honest client never sends
    table.words[at, 0 if row < 0 else row % 2] = word
    if row < 0:
        table.words[at, :] = word
    code = "duplicate-key" if row < 0 else "outside-declared-range"
    with raises(RangeError, code) as caught:
        run_queries([], {"t": table}, checked=True)
    assert row < 0 or re.search(said, str(caught.value.operation))
