"""The step `project`: columns computed by expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.tables.relation import Column, Relation
from tfe_bench.queries.evaluate import ExpressionEvaluator, value_to_column
from tfe_bench.queries.expressions import infer_expression_fact
from tfe_bench.queries.plan_syntax import (
    check_column_name,
    check_column_names,
    check_part_lists,
    check_sql_expression,
    format_sql_expression,
    used_columns,
)
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.steps.step import NeededColumns, QueryStep, StepContext, declare_field


def _read_columns(value: object) -> list[list[Any]]:
    for name, expression in (pairs := check_part_lists(value, 2)):
        check_column_name(name)
        check_sql_expression(expression)
    return pairs


@dataclass(frozen=True)
class Project(QueryStep):
    """Compute columns from the columns of the same row.

    Attributes:
        columns: names and expressions.
    """

    op = "project"
    keeps_units = True

    columns: list[list[Any]] = declare_field(_read_columns)

    def check_fields(self) -> None:
        check_column_names([name for name, _ in self.columns])

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive the facts of the expressions; columns that identify units stay."""
        [relation] = inputs
        columns, unique = {}, set()
        for name, expression in self.columns:
            columns[name] = fact = infer_expression_fact(expression, relation.columns)
            if fact.type is None:
                raise UsageError(
                    "A column that contains only NULL has no type.", code="untyped-null"
                )
            if expression[0] == "col" and expression[1] in relation.unique:
                unique.add(name)
        carried = {name for r in relation.records.values() for name in (r.present, r.unit) if name}
        columns.update({name: relation.columns[name] for name in sorted(carried)})
        return replace(relation, columns=columns, unique=frozenset(unique), least={})

    def keeps_single_row(self) -> bool:
        return True

    def unchanged_columns(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """Return the columns that are only renamed."""
        return {e[1]: names[n] for n, e in self.columns if e[0] == "col" and n in names}

    def run_protocol(self, context: StepContext) -> Relation:
        party, [rows], [facts] = context.party, context.inputs, context.input_facts

        def compute_columns(rows: Relation) -> list[Column]:
            named = context.input_columns(rows)
            evaluator = ExpressionEvaluator(party, named, facts.columns, rows.valid)
            computed = {
                name: value_to_column(evaluator.compute_value(e)) for name, e in self.columns
            }
            # (columns that identify units stay)
            return [
                computed[name] if "?" not in name else named[name]
                for name in context.output_facts.columns
            ]

        return Relation(tuple(party.function(compute_columns)(rows)), rows.valid)

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        columns = ", ".join(f"{n} = {format_sql_expression(e)}" for n, e in self.columns)
        return f"project {self.input_text}: {columns}"

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        return [set[str]().union(*(used_columns(e) for _, e in self.columns))]

    def drop_columns(self, needed: set[str]) -> Project:
        columns = [pair for pair in self.columns if pair[0] in needed]
        # (a relation without columns still has rows, and no table's column is read for them)
        return replace(self, columns=columns or [[self.columns[0][0], ["int", 1]]])
