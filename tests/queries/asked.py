"""Queries of tables in one process: three simulated workers, and DuckDB on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster import ledger
from tfe_bench.cluster.requests import JobResult
from tfe_bench.cluster.simulate import simulate
from tfe_bench.protocols.order import select
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries import checks, execute, hash_bins, io, price, relations, sql, stored, upload
from tfe_bench.queries.client import decode_query_result
from tfe_bench.queries.execution_context import QueryExecutionContext
from tfe_bench.queries.io import decode_column_element
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.privacy import NoisyRelease
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import TableColumn, TableSchema
from tfe_bench.queries.steps.top import Top
from tfe_bench.queries.types import HASHES, TEXT, hash_column_text, parse_type

OWNER, ANALYST = "bank", "analyst"


class StoredTable:
    """A table at its owner, and its words at the workers.

    Args:
        types: types of its columns as texts; a final "?" makes a column nullable.
        rows: tuples.
        more: fields of the Schema, and further arguments of `upload.prepare_table`.
    """

    def __init__(self, types: Mapping[str, str], rows: Sequence[Sequence[Any]], **more: Any):
        links, known = more.pop("links", ()), more.pop("known", {})
        pad, hashed = more.pop("pad", 0), "hashed_by" in more
        self.deployment = more.pop("deployment", "0" * 32)
        self.client = more.pop("client", OWNER)
        self.owner = more.pop("owner", OWNER)
        self.rows = list(rows)
        self.types = {name: parse_type(text.removesuffix("?")) for name, text in types.items()}
        self.held = {
            name: io.encode_column(name, [row[i] for row in rows], kind)
            for i, (name, kind) in enumerate(self.types.items())
        }
        columns = {
            name: TableColumn(self.types[name], text[-1] == "?") for name, text in types.items()
        }
        size = hash_bins.cuckoo_bin_count(len(rows) + pad) if hashed else len(rows) + pad
        schema = TableSchema(size, columns, padded=pad > 0 or hashed, **more)
        others = {name: values.client_view(name) for name, values in known.items()}
        self.schema, self.links = upload.prepare_table(schema, self.held, len(rows), links, others)
        self.words = self.links.pop(upload.WORDS)

    def client_view(self, name: str) -> TableAccess:
        """Return the table as its client sees it."""
        return TableAccess(name, self.owner, self.deployment, self.schema, self.client)


def compile_plan(
    text: str, tables: Mapping[str, StoredTable], max_rows: int | None = None, rho: str = ""
) -> QueryPlan:
    """Compile a query to a plan, through the checks of workers."""
    loss = ledger.parse_privacy_loss(rho) if rho else 0
    known = {n: t.client_view(n) for n, t in tables.items()}
    plan = QueryPlan.from_header(sql.compile_sql(text, known, max_rows, loss))
    derive_plan(plan, tables)
    return plan


def derive_plan(plan: QueryPlan, tables: Mapping[str, StoredTable]) -> list[Facts]:
    """Derive the relations of a plan as a worker does."""
    return relations.derive_relations(
        plan, {a: tables[n].client_view(n) for a, (n, _) in plan.tables.items()}
    )


def run_queries(
    texts: Sequence[str],
    tables: Mapping[str, StoredTable],
    checked: bool = False,
    max_rows: int | None = None,
    rho: str = "",
    draw: Callable[[int, NoisyRelease, int], Any] = lambda party, release, rows: None,
    graphs: str | None = None,
) -> list[io.Result]:
    """Run queries in one session and return their results; they cost what their price states.

    Args:
        checked: whether the tables pass the workers' checks first.
        rho: privacy loss of each query.
        draw: a party's noise for a release of a number of rows.
        graphs: key under which graphs are cached.
    """
    by_text = {text: compile_plan(text, tables, max_rows, rho) for text in dict.fromkeys(texts)}
    facts_by_text = {text: derive_plan(plan, tables) for text, plan in by_text.items()}
    plans, facts = [by_text[text] for text in texts], [facts_by_text[text] for text in texts]

    def run_workers(party: Party, *shares: Shared) -> list[dict[str, Shared]]:
        kept: dict[str, dict[str, Shared]] = {}
        left = iter(shares)
        for name, table in tables.items():
            words = next(left)
            names = stored.stored_row_word_names(table.schema)
            kept[name] = {n: words.map(lambda a, i=i: a[i]) for i, n in enumerate(names)}
            kept[name].update({load_link: next(left) for load_link in table.links})
            if checked:
                checks.check_table(party, table.schema, kept[name])
        values: list[dict[str, Shared]] = []
        for plan, fact in zip(plans, facts, strict=True):

            def load_columns(
                alias: str, columns: Sequence[str], plan: QueryPlan = plan
            ) -> Relation:
                name = plan.tables[alias][0]
                return stored.build_stored_relation(tables[name].schema, columns, kept[name])

            def load_link(alias: str, number: int, plan: QueryPlan = plan) -> Shared:
                return kept[plan.tables[alias][0]][stored.link_name(number)]

            units = {a: tables[n].schema.unit for a, (n, _) in plan.tables.items()}
            drawn = {
                i: draw(party.index, f.release, f.rows) for i, f in enumerate(fact) if f.release
            }
            scope = None if graphs is None else (graphs, len(values))
            setting = QueryExecutionContext(
                load_columns, load_link, scope, unit_of=units.__getitem__, noise_draws=drawn
            )
            values.append(execute.run_query_plan(party, plan, fact, setting))
        return values

    shared = [words for t in tables.values() for words in (t.words, *t.links.values())]
    done = simulate(run_workers, *shared)
    if not checked:  # the priced bytes are the sent bytes: few rows compare all pairs
        price_by_text = {
            text: price.price_query_plan(
                plan,
                facts_by_text[text],
                {a: tables[n].client_view(n) for a, (n, _) in plan.tables.items()},
            )
            for text, plan in by_text.items()
        }
        prices = [price_by_text[text] for text in texts]
        declared = tuple(sum(p.cost.by_party(0)[i] for p in prices) for i in range(3))
        # (the number of comparisons of a selection depends on its shuffle)
        off = 0.1 if any("quantile" in str(plan) for plan in plans) else 0
        selected = any(
            isinstance(step, Top)
            and select.is_selection_cheaper(facts[i][step.inputs[0]].rows, step.count)
            for i, plan in enumerate(plans)
            for step in plan.steps
        )
        off = 0.4 if selected else off
        assert done.sent == pytest.approx(declared, rel=off)
        assert done.rounds == pytest.approx(sum(p.cost.rounds for p in prices), rel=off)
    results = []
    for i, (plan, fact) in enumerate(zip(plans, facts, strict=True)):
        words = {
            name: done.value(lambda out, i=i, name=name: out[i][name])  # type: ignore[misc]
            for name in done.outputs[0][i]
        }
        own = {a: tables[n].client_view(n) for a, (n, _) in plan.tables.items()}
        results.append(decode_query_result(JobResult(words), plan, fact, own))
    return results


def _duckdb_type(kind: Any) -> str:
    match kind.kind:
        case "number" if kind.fraction:
            return "DOUBLE"
        case "number" if kind.digits:
            return f"DECIMAL(18, {kind.digits})"
        case "number":
            return "BIGINT"
        case "category":
            return f"ENUM ({', '.join(repr(w) for w in kind.words)})"
        case "text":
            return "VARCHAR"
    return {"bool": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMP"}[kind.kind]


def duckdb_answers(
    texts: Sequence[str], tables: Mapping[str, StoredTable]
) -> list[list[tuple[Any, ...]]]:
    """Return DuckDB's answers."""
    import duckdb

    base = duckdb.connect()
    for name, table in tables.items():
        columns = ", ".join(f"{c} {_duckdb_type(k)}" for c, k in table.types.items())
        base.execute(f"CREATE TABLE {name} ({columns})")
        marks = ", ".join("?" for _ in table.types)
        for row in table.rows:
            base.execute(f"INSERT INTO {name} VALUES ({marks})", list(row))
    return [base.execute(text).fetchall() for text in texts]


def _sort_key(row: Sequence[Any]) -> Any:
    return [(v is None, _as_number(round(v, 2)) if _as_real(v) else str(v)) for v in row]


def _as_number(value: Any) -> str:
    return str(int(value)) if value == value // 1 else str(float(value))


def _as_real(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, str)


def _same_value(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, float) or isinstance(b, float):
        return abs(float(a) - float(b)) <= 1e-3 + 2e-5 * abs(float(b))
    if _as_real(a) and _as_real(b):
        return bool(a == b)
    return str(a) == str(b)


def check_same(text: str, result: io.Result, expected: Sequence[Sequence[Any]]) -> None:
    """Check a result against DuckDB's: as a sequence if it is ordered, else as a multiset."""
    kinds = [kind.kind for kind in result.types.values()]
    rows = result.rows
    due = [
        tuple(
            decode_column_element(hash_column_text(v), HASHES)
            if kind == TEXT and v is not None
            else v
            for v, kind in zip(row, kinds, strict=True)
        )
        for row in expected
    ]
    if (
        "order by" not in text.lower().rpartition(")")[2]
    ):  # (the order of a window does not order the result)
        rows, due = sorted(rows, key=_sort_key), sorted(due, key=_sort_key)
    same = len(rows) == len(due) and all(
        all(_same_value(a, b) for a, b in zip(x, y, strict=True))
        for x, y in zip(rows, due, strict=True)
    )
    assert same, f"{text}\nprivate {rows[:8]} ({len(rows)})\nDuckDB  {due[:8]} ({len(due)})"


def check_all(
    texts: Sequence[str],
    tables: Mapping[str, StoredTable],
    checked: bool = False,
    max_rows: int | None = None,
) -> None:
    """Check all queries against DuckDB."""
    results = run_queries(texts, tables, checked, max_rows)
    for text, one, due in zip(texts, results, duckdb_answers(texts, tables), strict=True):
        check_same(text, one, due)


def random_rows(rng: np.random.Generator, n: int) -> list[tuple[Any, ...]]:
    """Draw rows of `TYPES`."""
    import datetime

    def or_null(value: Any) -> Any:
        return None if rng.random() < 0.25 else value

    return [
        (
            int(rng.integers(0, 5)),
            or_null(int(rng.integers(-9, 10))),
            round(float(rng.integers(-5000, 5000))) / 100,
            float(np.round(rng.normal(0, 3), 3)),
            str(rng.choice(["a", "b", "c"])),
            or_null(bool(rng.integers(0, 2))),
            datetime.date(2019, 11, 1) + datetime.timedelta(days=int(rng.integers(0, 200))),
            or_null(str(rng.choice(["x", "ä", "yy", ""]))),
            i,
        )
        for i in rng.permutation(n).tolist()
    ]


TYPES = {
    "k": "int[0,7]",
    "z": "int[-10,10]?",
    "p": "decimal(2)[-100,100]",
    "r": "fixed(16)[-30,30]",
    "seg": "category(a,b,c)",
    "flag": "bool?",
    "day": "date[2019-01-01,2020-12-31]",
    "word": "text?",
    "id": "int[0,500]",
}
