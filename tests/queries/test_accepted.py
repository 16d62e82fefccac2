"""Every argument of every node of a query is read or refused."""

from __future__ import annotations

import collections
import copy
import datetime
import functools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from sqlglot import exp

from tests.queries.asked import StoredTable
from tests.refusals import raises
from tfe_bench.errors import UsageError
from tfe_bench.queries import accepted, sql

DAY = datetime.date(2020, 5, 1)
TABLES = {
    "t": StoredTable(
        {
            **{"k": "int[0,9]", "z": "int[-9,9]?", "p": "decimal(2)[-9,9]", "r": "fixed(16)[-9,9]"},
            **{"seg": "category(a,b)", "flag": "bool?", "day": "date[2020-01-01,2020-12-31]"},
            **{"ts": "timestamp(s)[2020-01-01,2020-12-31]", "id": "int[0,9]"},
        },
        [(1, None, 1.5, 0.5, "a", None, DAY, datetime.datetime(2020, 5, 1), 1)],
        unique=("id",),
    ),
    "u": StoredTable(
        {"k": "int[0,9]", "w": "int[0,9]?", "q": "int[0,9]"}, [(1, 2, 3)], unique=("k",)
    ),
    "v": StoredTable({"k": "int[0,9]?", "q": "int[0,9]"}, [(1, 2)]),
}
# All allowed nodes, each with all of its arguments.
TEXTS = [
    "select * exclude (flag, ts, r, p) replace (k + 1 as k) rename (z as y) from t",
    "with a(x) as (select k from t), b as materialized (select k as w from u) select x from a, b "
    "where x = w",
    "select distinct k as j, t.z from t order by j desc, z limit 4",
    "select id from t where (z in (1, 2) or not flag) and k in (select q from v)",
    "select id from t where k in (select q from v order by q limit 3) fetch first 2 rows only",
    "select s.x from t as s(x, y) left join u on s.x = u.k and u.w > 2 and y < 3",
    "select id from t semi join v using (k) where z between symmetric 1 and -1",
    "select id from t natural join u where w is not null",
    "select id, w from t, u where t.k = u.k and flag is true",
    "select k, z from t union all by name select q, q as z, k from u order by k limit 3",
    "with a as (select k from t) select k from a union select q from v",
    "(select id from t order by id limit 4) order by id desc limit 2",
    "with c as (select id, k from t) (select id from c order by k, id limit 4) limit 2",
    "select y from (select id as y, k from t) s where k >= 2 or k <> y and k <= 4",
    "select k, sum(z) s, avg(p) filter (where flag), min(r), max(day), count(*), median(z), "
    "quantile_cont(z, 0.3), quantile_disc(z, 0.2), quantile(z, 0.1) from t group by k "
    "having count(z) > 2 order by s * -1",
    "select count(distinct k) from t where ts >= timestamp '2020-02-01 00:00:00'",
    "select case k when 1 then 2 else z end a, case when z > 3 then k end b, if(flag, k, z) c, "
    "coalesce(z, k) d, least(k, 3, id) e, greatest(k, id, 4) f, abs(z) g, -z h, (k + 1) * 2 - p i, "
    "k / 4 j, p / (k + 1) l, cast(z as double) m from t",
    "select year(day) a, extract(year from day) b, month(day) c, date(day) d, "
    "date '2020-03-01' + interval 1 day e, day - interval 2 day f from t where seg = 'a'",
    "select id, row_number() over (partition by k order by id desc) a, rank() over (order by z) b, "
    "dense_rank() over (order by z) c, lag(z, 2) over (order by id) d, lead(z, 3) over (order by "
    "id) e, sum(z) over (order by id rows between 2 preceding and current row) f, "
    "count(z respect nulls) over (order by z rows unbounded preceding) g, "
    "max(z) over (order by z rows between unbounded preceding and unbounded following) h from t "
    "qualify a < 3",
    "select id from t where exists (with x as (select k, q from v) select 1 from x where x.k = t.k "
    "and q > 2 group by q having sum(q) > 3)",
    "select id from t where not exists (select 1 from v where v.k = t.k and t.z > 2 having "
    "count(*) > 1)",
    "select null is null a, true b from t",
    "select id from t tablesample reservoir(12.5 percent)",
    "select y from (select id as y from t) s tablesample reservoir(3 rows)",
]
# Arguments that the compiler rejects.
REFUSED = {
    ("Ordered", "nulls_first"): "select id from t order by k nulls first",
    ("Lag", "default"): "select lag(z, 1, 0) over (order by id) from t",
    ("Lead", "default"): "select lead(z, 1, 0) over (order by id) from t",
}
# Parts of a SELECT without effect in EXISTS.
SILENT = ("expressions", "distinct", "order")


def _table_sources() -> dict[str, Any]:
    return {name: table.client_view(name) for name, table in TABLES.items()}


def _try_compile(tree: Any) -> Any:
    try:
        return sql.compile_tree(tree, _table_sources())
    except Exception as error:  # (a changed tree may be invalid)
        return type(error).__name__


@functools.cache
def _compile_text(text: str) -> Any:
    return _try_compile(sql.parse_sql(text))


def _says_nothing(node: Any) -> bool:
    """Return whether a node is in a part of EXISTS that has no effect."""
    while node.parent is not None:
        at, node = node.arg_key, node.parent
        if at in SILENT and isinstance(node, exp.Select) and isinstance(node.parent, exp.Exists):
            return True
    return False


def _change_value(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case list():
            return value[:-1]
        case exp.Literal():
            return exp.Literal.number(int(str(value.this) == "5") + 5)
        case exp.Identifier():
            return exp.to_identifier("other")
        case exp.Star():
            return exp.Null()
    return "7" if isinstance(value, str) else None


def _yield_mutations() -> Iterator[tuple[str, int, str]]:
    """Yield the query, the place of a node in it, and the changed argument."""
    for text in TEXTS:
        for place, node in enumerate(sql.parse_sql(text).walk()):
            silent = _says_nothing(node) or (
                isinstance(node, exp.Select) and isinstance(node.parent, exp.Exists)
            )
            for argument in accepted.READ_ARGUMENTS[type(node).__name__]:
                if node.args.get(argument) in (None, [], False):
                    continue
                if argument == "is_string" and isinstance(node.parent, exp.Interval):
                    continue  # (INTERVAL '1' DAY equals INTERVAL 1 DAY)
                if not silent or (argument not in SILENT and not _says_nothing(node)):
                    yield text, place, argument


def _is_read(text: str, place: int, argument: str) -> bool:
    tree = sql.parse_sql(text)
    node = next(each for i, each in enumerate(tree.walk()) if i == place)
    node.set(argument, _change_value(copy.deepcopy(node.args[argument])))
    return bool(_try_compile(tree) != _compile_text(text))


def _list_classes() -> list[Any]:
    classes, pending = set[Any](), [vars(exp)["Expression"]]
    while pending:
        for each in pending.pop().__subclasses__():
            if each not in classes:
                classes.add(each)
                pending.append(each)
    return [each for each in classes if isinstance(getattr(each, "arg_types", None), dict)]


def test_every_other_node_and_argument_is_refused() -> None:
    classes = _list_classes()
    assert len(classes) > 900
    passed: set[tuple[str, str]] = set()
    for kind in classes:
        for argument in (*kind.arg_types, "one_that_is_new"):
            node = kind(**{argument: exp.Literal.number(1)})
            try:
                accepted.check_sql_nodes(node)
            except UsageError as error:
                assert error.code == "unsupported-sql" and len(str(error)) < 300
            else:
                passed.add((kind.__name__, argument))
    listed = {
        (kind, argument)
        for table in (accepted.READ_ARGUMENTS, accepted.NOTATION)
        for kind, arguments in table.items()
        for argument in arguments
    }
    assert passed == listed
    assert not any(
        accepted.NOTATION.get(kind, frozenset()) & arguments
        for kind, arguments in accepted.READ_ARGUMENTS.items()
    )


@pytest.mark.parametrize(
    "value",
    [True, "text", 0, [exp.Literal.number(1)], {"a": 1}],
    ids=["bool", "text", "zero", "list", "dict"],
)
def test_arguments_of_accepted_nodes_are_refused_by_any_value(value: Any) -> None:
    names = collections.Counter(kind.__name__ for kind in _list_classes())
    for kind in _list_classes():
        if kind.__name__ not in accepted.READ_ARGUMENTS:
            continue
        assert names[kind.__name__] == 1  # (the list names classes without their modules)
        known = accepted.READ_ARGUMENTS[kind.__name__]
        known |= accepted.NOTATION.get(kind.__name__, frozenset())
        for argument in {*kind.arg_types, "one_that_is_new"} - known:
            with raises(UsageError, "unsupported-sql"):
                accepted.check_sql_nodes(kind(**{argument: value}))


def test_the_queries_have_every_node_and_argument_that_is_read() -> None:
    for text in TEXTS:
        accepted.check_sql_nodes(sql.parse_sql(text))
    used_arguments = {
        (type(node).__name__, argument)
        for text in TEXTS
        for node in sql.parse_sql(text).walk()
        for argument, value in node.args.items()
        if value is not None and value is not False and value != []
    }
    used_arguments |= set(REFUSED)
    for kind, arguments in accepted.READ_ARGUMENTS.items():
        assert arguments <= {argument for name, argument in used_arguments if name == kind}, kind


@pytest.mark.parametrize("share", [150, pytest.param(None, marks=pytest.mark.slow)])
def test_every_argument_that_is_accepted_is_read(share: int | None, seed: int) -> None:
    every = list(_yield_mutations())
    some = every if share is None else random.Random(seed).sample(every, share)
    assert not [text for text in TEXTS if isinstance(_compile_text(text), str)]
    assert [each for each in some if not _is_read(*each)] == []
    for text in REFUSED.values():
        with raises(UsageError, "unsupported-sql"):
            sql.compile_sql(text, _table_sources())
