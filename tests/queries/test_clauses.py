"""Clauses of queries agree with DuckDB on rows with NULLs and on groups without rows."""

from __future__ import annotations

import datetime
import re

import pytest

from tests.queries.asked import (
    StoredTable,
    check_all,
    check_same,
    compile_plan,
    derive_plan,
    duckdb_answers,
    run_queries,
)
from tests.refusals import raises
from tfe_bench.errors import UsageError
from tfe_bench.queries.relation_facts import visible_columns

DAYS = [datetime.date(2024, 1, 31), datetime.date(2024, 2, 29), datetime.date(2023, 12, 31)]
TIMES = [
    datetime.datetime(2024, 1, 31),
    datetime.datetime(2024, 2, 29, 12, 30),
    datetime.datetime(2023, 12, 31, 23, 59, 59),
]
TABLES = {
    "t": StoredTable(
        {
            **{"k": "int[0,7]", "z": "int[-10,10]?", "p": "decimal(2)[-100,100]"},
            **{"seg": "category(a,b,c)", "flag": "bool?", "id": "int[0,9]"},
            **{"day": "date[2023-01-01,2024-12-31]", "ts": "timestamp(s)[2023-01-01,2024-12-31]"},
            "r": "fixed(16)[-99,99]?",
        },
        [
            (0, 3, 1.25, "a", True, 1, DAYS[0], TIMES[0], 19.99),
            (1, None, -2.5, "b", None, 2, DAYS[1], TIMES[1], 0.1),
            (1, -3, 0, "a", False, 3, DAYS[2], TIMES[2], None),
            (2, 0, 99.99, "c", True, 4, DAYS[0], TIMES[1], -0.001),
            (2, 7, -99.99, "b", False, 5, DAYS[1], TIMES[0], 0.3),
            (2, 7, 10.1, "b", None, 6, DAYS[2], TIMES[2], 2.675),
            (5, -10, -0.01, "c", True, 7, DAYS[2], TIMES[0], 19.99),
        ],
        unique=("id",),
        pad=1,
    ),
    "u": StoredTable(
        {"k": "int[0,7]", "w": "int[0,99]?", "name": "category(x,y)"},
        [(0, 10, "x"), (1, None, "y"), (3, 30, "x"), (5, 0, "y")],
        unique=("k",),
    ),
    "v": StoredTable(
        {"k": "int[0,7]?", "q": "int[0,9]"}, [(1, 1), (1, 2), (None, 3), (5, 4), (7, 5)]
    ),
}
EXISTS = [
    "select id from t where exists (select count(*) from v where v.k = t.k) order by id",
    "select id from t where not exists (select max(q) from v where v.k = t.k) order by id",
    "select id from t where exists (select 1 from v where v.k = t.k having count(*) > 1)",
    "select id from t where not exists (select 1 from v where v.k = t.k having sum(q) > 1)",
    "select id from t where exists (select 1 from v where v.k = t.k and z > 0 having sum(q) is "
    "null or count(*) > 1)",
    "select id from t where exists (select q from v where v.k = t.k and q > 1 group by k, q "
    "having sum(q) > 2)",
    "select id from t where not exists (select 1 from v where v.k = t.k limit 0)",
    "select id from t where not exists (with x as (select k from v) select 1 from x where x.k = "
    "t.k and t.z is null)",
    "select id from t where exists (select 1 from v where v.k = t.k and exists (select 1 from u "
    "where u.k = v.k and w is null))",
]
JOINS = [
    "select t.id, w, q from v, u, t where t.k = u.k and v.q = t.id and (w < 9 or w is null)",
    "select t.id, w from t left join u on t.k = u.k and w > 5 and z > 0",
    "with x as (select id, k from t where flag) select a.id, b.k from x a join x b on a.id = b.id",
    "with x as (select k, count(*) n from t group by k) select a.k, b.n from x a, x b where a.k = "
    "b.k",
    "select s.x, y from u as s(x, y) where exists (select 1 from v s where s.k = 5 and s.k = q + 1 "
    "and s.q = t.k) or y > 0",
]
ROWS = [
    "select id, k from t union all by name select q as k, k as id from v order by id, k",
    "select k from t union by name select q, k from v",
    "select k, count(*) n, sum(id) s from t group by k order by n * -1, s / n, k",
    "select -k as k, id from t order by k * 2, id",
    "select distinct k + 1 from t order by k + 1",
    "(select id from t order by id limit 4) order by id desc fetch first 2 rows only",
    "select count(*) from (select k from t) s",
    "with s as (select k from t) select count(1), sum(1) from s",
]
LITERALS = [
    *(f"select id from t where r {op} 19.99" for op in ("=", "<>", "<", "<=", ">", ">=")),
    "select id from t where r in (0.1, 2.675) or r between 0.3 and 0.3 or -r = 0.001",
    "select id from t where not (r > 0.1) and not r = -0.001 or 0.3 in (r, 5)",
    "select id, case r when 0.1 then 1 when 19.99 then 2 end x, coalesce(r, 0.1) = 0.1 y from t",
    "select id from t where r < 1e17 and r > -1e17",
    "select id from t where p = 10.104 or p < -99.994 or p > 99.985",
    "select id from t where id = '5' or k in ('0', 7) or p = '10.1' and flag is null",
]
TIMED = [
    "select id, ts > day, ts = day, ts::date as d, ts::date - day, year(ts), month(ts) from t",
    "select id from t where ts >= timestamp '2024-01-31 00:00:00' - interval 1 month",
    "select id from t where ts between date '2024-01-31' and '2024-02-29 12:30:00'::timestamp",
    "select id from t where day in (timestamp '2024-01-31 00:00:00', date '2023-12-31') or "
    "day::timestamp > timestamp '2024-02-28 23:00:00' + interval 3 hours",
    "select ts::date as d, count(*) from t group by d order by d",
]
WORDS = [
    "select id, case when k > 1 then 'hi' else 'lo' end c from t order by c, id",
    "select case when k > 1 then 'hi' when k = 1 then seg else 'lo' end c, count(*) n from t "
    "group by c order by c",
    "select coalesce(case when k > 1 then seg end, 'none') c, count(*) n from t group by c",
    "select if(flag, seg, 'unknown') c, id from t where if(flag, seg, 'unknown') > 'b'",
    "select max(case when k > 1 then 'hi' else 'lo' end) from t",
]
FEW = [
    EXISTS[4],
    "select id, ts::date as d, case when k > 1 then 'hi' else seg end c from t where r > 0.1",
]


@pytest.mark.parametrize(
    "texts",
    [
        FEW,
        *(
            pytest.param(texts, marks=pytest.mark.slow)
            for texts in (EXISTS, JOINS[:4], ROWS, LITERALS, TIMED, WORDS)
        ),
    ],
)
def test_clauses_are_those_of_duckdb(texts: list[str]) -> None:
    check_all(texts, TABLES)


@pytest.mark.slow
def test_between_symmetric_takes_its_ends_in_any_order() -> None:
    text = "select id from t where z between symmetric {} and {} order by id"
    [rows] = run_queries([text.format(5, -5)], TABLES)
    plain = text.replace(" symmetric", "").format(-5, 5)
    check_same(plain, rows, duckdb_answers([plain], TABLES)[0])


# Codes of refusals by the second parameter below; other parameters name an SQL feature.
CODES = {
    "the query around": "missing-join-equality",
    "has 3 columns. Received: 4 names": "column-count-mismatch",
    "one side": "unsupported-join-condition",
    "an equality": "missing-join-equality",
    "random": "unrepeatable-query",
    "HAVING takes": "misplaced-having",
    "Expected a number. Received: 'abc'": "not-a-number",
    "type int. Received: '5.5'": "value-of-other-type",
    "type date. Received: 'x'": "value-of-other-type",
    "cannot be compared": "type-mismatch",
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("select id from t limit 50%", "LIMIT with a percentage"),
        ("select id from t fetch first 2 rows with ties", "WITH TIES"),
        ("select count(*) from t tablesample bernoulli(20 percent)", "TABLESAMPLE"),
        ("select count(*) from t using sample 2 rows", "USING SAMPLE"),
        ("select 1 from t where exists (select 1 from v where v.k = t.k offset 2)", "OFFSET"),
        (
            "select 1 from t where exists (select 1 from v where v.k = t.k qualify rank() over "
            "(order by q) = 1)",
            "QUALIFY in EXISTS",
        ),
        ("select id from t where exists (select 1 from v t where t.k = t.q)", "the query around"),
        ("select id from t where exists (select 1 from v where v.k = t.k) or flag", "below OR"),
        ("select k // 2 from t", "//"),
        ("select k is distinct from z from t", "IS DISTINCT FROM"),
        ("select seg || 'x' from t", r"\|\|"),
        ("select var_pop(k) from t", "VAR_POP"),
        ("select x from u as s(x, y, a, b)", "has 3 columns. Received: 4 names"),
        ("select sum(k order by id) from t", "ORDER BY inside of an aggregate"),
        ("select sum(k) over w from t window w as (order by id)", "named window"),
        ("select id from main.t", "schema"),
        ("select id from t join u on t.k = u.k left join v on v.k = t.k and v.q > w", "one side"),
        ("select t.id from t, u where w > 3", "an equality"),
        ("with x as (select * from t limit 2) select a.id from x a join x b using (id)", "random"),
        ("select id from t having id > 2", "HAVING takes"),
        ("select first(k) from t", "FIRST"),
        ("select foo(k) from t", "FOO"),
        ("select k::varchar from t", "CAST to TEXT"),
        ("select id from t where id = 'abc'", "Expected a number. Received: 'abc'"),
        ("select id from t where k = '5.5'", "type int. Received: '5.5'"),
        ("select id from t where day = 'x'", "type date. Received: 'x'"),
        ("select id from t where seg = 5", "cannot be compared"),
        ("select k * interval 1 day from t", "INTERVAL"),
        ("select ts + interval 1 day from t", "INTERVAL in DAYS"),
        ("select id from t where day > date '2024-01-01' + interval '5'", "whole number|SQL"),
        ("select k::decimal(9,2) from t", r"DECIMAL\(9, 2\)"),
    ],
)
def test_clauses_that_are_not_offered_are_named_in_words_of_sql(text: str, said: str) -> None:
    with raises(UsageError, CODES.get(said, "unsupported-sql")) as caught:
        compile_plan(text, TABLES)
    if said not in CODES:
        assert re.search(said, str(caught.value))


def test_columns_without_a_name_are_named_as_by_duckdb() -> None:
    import duckdb

    text = (
        "select avg(k), count(*), COUNT(z), sum(z) + 1, -k, k * z - 1, 3, count(distinct z), "
        "coalesce(z, k), case when k > 2 then 1 else z end, cast(k as double), z is not null, "
        "not (k > 1), k between 1 and 2, seg in ('a', 'b'), sum(z) filter (where k > 1), "
        "quantile_disc(z, 0.9), (k), k <> 1 and flag from t group by all"
    )
    base = duckdb.connect()
    base.execute("create table t (k int, z int, flag bool, seg varchar)")
    due = [column[0] for column in base.execute(text).description]
    for name, item in zip(due, _split_items(text), strict=True):
        [shown] = _output_names(f"select {item} from t")
        assert shown == name
    assert _output_names("select count(*), count(*) from t") == ["count_star()", "count_star()_1"]


def _split_items(text: str) -> list[str]:
    from tfe_bench.queries import sql

    return [each.sql(dialect="duckdb") for each in sql.parse_sql(text).expressions]


def _output_names(text: str) -> list[str]:
    plan = compile_plan(text, TABLES)
    return visible_columns(derive_plan(plan, TABLES)[plan.output].columns)
