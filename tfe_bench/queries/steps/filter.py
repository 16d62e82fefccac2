"""The step `filter`: the rows for which a condition is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries.evaluate import ExpressionEvaluator
from tfe_bench.queries.expressions import infer_expression_fact
from tfe_bench.queries.plan_syntax import Expression, format_sql_expression, used_columns
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.relation_facts import add_control_sources
from tfe_bench.queries.rights import ColumnUse, Tables
from tfe_bench.queries.steps.step import NeededColumns, QueryStep, StepContext, expression_field
from tfe_bench.queries.types import BITS


@dataclass(frozen=True)
class Filter(QueryStep):
    """Keep the rows for which a condition is true.

    Attributes:
        where: the condition.
    """

    op = "filter"
    in_place = keeps_names = keeps_units = True

    where: Expression = expression_field()

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive facts: the columns of the condition become control columns."""
        [relation] = inputs
        fact = infer_expression_fact(self.where, relation.columns)
        if fact.type not in (BITS, None):
            raise UsageError(
                f"Expected a condition. Received: a {fact.type}.", code="type-mismatch"
            )
        control = add_control_sources(relation, fact.sources, ColumnUse.CONDITION)
        # (in ordered rows the gaps of dropped rows would be visible)
        return replace(relation, valid=False, control=control, ordered=False, least={})

    def run_protocol(self, context: StepContext) -> Relation:
        """Clear the validity bits of rows for which the condition is not true."""
        party, [rows], [facts] = context.party, context.inputs, context.input_facts

        def filter_rows(rows: Relation) -> Shared:
            evaluator = ExpressionEvaluator(
                party, context.input_columns(rows), facts.columns, rows.valid
            )
            return evaluator.as_shared(
                evaluator.and_bits(rows.valid, evaluator.compute_truth(self.where))
            )

        return replace(rows, valid=party.function(filter_rows)(rows))

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        return f"filter {self.input_text}: {format_sql_expression(self.where)}"

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        return [None if needed is None else needed | used_columns(self.where)]
