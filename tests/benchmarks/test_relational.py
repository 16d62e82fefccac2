"""Queries on generated tables: they are valid, and their answers are compared with DuckDB's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfe_bench.__main__ import main
from tfe_bench.benchmarks import suite
from tfe_bench.benchmarks.relational import WORKLOADS, truth, workload
from tfe_bench.errors import UsageError
from tfe_bench.queries import io, relations, sql
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.price import price_query_plan
from tfe_bench.queries.rights import TableAccess
from tfe_bench.queries.schema import TableColumn, TableSchema
from tfe_bench.queries.types import parse_type


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_question_can_be_asked_at_both_sizes(name: str) -> None:
    question = WORKLOADS[name]
    for size in question.sizes:
        generated = question.make_tables(
            size if size < 1 << 20 and size != 0.1 else question.sizes[1], 1
        )
        arrow_tables = {k: workload.to_arrow(m) for k, m in generated.items()}
        tables = {}
        for k, m in generated.items():
            columns = {c: TableColumn(parse_type(kind), False) for c, kind in m.types.items()}
            for c, kind in m.types.items():
                held = io.encode_column(c, arrow_tables[k].column(c), parse_type(kind))
                assert held.null is None and arrow_tables[k].num_rows == m.rows
                if c in m.unique:
                    io.check_unique_column(c, held)
            schema = TableSchema(m.rows, columns, unique=m.unique)
            tables[k] = TableAccess(k, "me", "0" * 32, schema, "me")
        plan = QueryPlan.from_header(sql.compile_sql(question.sql, tables))
        own = {alias: tables[k] for alias, (k, _) in plan.tables.items()}
        price = price_query_plan(plan, relations.derive_relations(plan, own), own, "wan")
        assert price.sent_bytes > 0 and price.seconds() > price.least_seconds > 0
        assert 8 * sum(price.messages.sent_by_party) == price.cost.total
        for step, (cost, calls) in enumerate(zip(price.steps, price.calls, strict=True)):
            assert 8 * sum(price.messages.select_steps(calls).sent_by_party) == cost.total
            assert cost.rounds == 0 or price.seconds(step) > 0.02
        rows, _ = truth.query_plaintext(question.sql, arrow_tables)
        assert len(rows) <= 1 << 20


ANY = "select k, sum(x) over (order by k) from t"


def test_answers_are_compared_as_they_were_asked_for() -> None:
    types = {"k": parse_type("int"), "x": parse_type("fixed")}
    result = io.Result(types, {"k": [2, 1, 1], "x": [0.5, None, 1e6]})
    same = [(1, 1e6 + 1), (2, 0.5), (1, None)]
    assert truth.results_agree(ANY, result, same)
    assert not truth.results_agree("select k, x from t order by k", result, same)
    for wrong in (same[:2], [*same, (1, 1)], [(1, 1e6 + 100), *same[1:]], [(3, 1e6), *same[1:]]):
        assert not truth.results_agree(ANY, result, wrong)
    assert not truth.results_agree(ANY, result, [(1, 1e6), (2, None), (1, 0.5)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["joni"], '"join"'),
        (["join", "--scale", "1"], "[option-not-applicable]"),
        (["q1", "--rows", "10"], "[option-not-applicable]"),
        (["join", "--rows", "0"], "[number-out-of-range]"),
        (["q6", "--scale", "1000"], "[number-out-of-range]"),
        (["q6", "--scale", "nan"], "[number-out-of-range]"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["relational", *words]) == UsageError.exit_code
    assert said in capsys.readouterr().err


def test_a_question_is_measured_and_costs_what_was_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["relational", "join", "--rows", "40", "--repeat", "2", "--json"]
    assert main(words) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    about = record["parameters"]
    assert record["correct"] is True and about["answer"] == 20
    assert sum(record["bytes_sent"]) == about["predicted_bytes"]
    assert len(record["seconds"]["all"]) == 2


@pytest.mark.slow
def test_a_whole_suite_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["suite", "tables", "--quick", "--repeat", "1", "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(records) == len(suite.table_suite_rows()) and all(r["correct"] for r in records)
