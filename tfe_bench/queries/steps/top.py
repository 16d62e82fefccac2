"""The step `top`: the first rows in an order, found without sorting all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfe_bench.protocols.tables import results
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries.plan_syntax import check_row_count
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.steps.limit import limit_facts
from tfe_bench.queries.steps.order import Order
from tfe_bench.queries.steps.step import StepContext, declare_field


@dataclass(frozen=True)
class Top(Order):
    """Keep the first rows in an order.

    Attributes:
        count: number of rows.
    """

    op = "top"

    count: int = declare_field(lambda value: check_row_count(value, 1))

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        return limit_facts(super().derive_facts(inputs, tables), self.count, tables)

    def is_repeatable(self, facts: Facts) -> bool:
        """Return whether the order is unique."""
        return any(name in facts.unique for name, _ in self.by)

    def run_protocol(self, context: StepContext) -> Relation:
        return results.top_rows(
            *self.sort_arguments(context), self.count, profile=context.setting.profile
        )

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        return f"first {self.count} of {self.input_text} by {self.key_text}"
