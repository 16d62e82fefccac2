"""The step `order`: all rows in an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfe_bench.cluster.stored import Source
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.tables import results
from tfe_bench.protocols.tables.keys import OrderKey
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries.plan_syntax import (
    check_choice,
    check_column_name,
    check_column_names,
    check_part_lists,
)
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.relation_facts import add_control_sources
from tfe_bench.queries.rights import ColumnUse, Tables
from tfe_bench.queries.steps.step import NeededColumns, QueryStep, StepContext, declare_field


def read_sort_keys(value: object) -> list[list[str]]:
    """Return valid sort keys: columns and directions.

    Raises:
        UsageError: the keys are invalid.
    """
    for name, direction in (pairs := check_part_lists(value, 2)):
        check_column_name(name)
        check_choice(direction, ("asc", "desc"), "A direction")
    check_column_names([name for name, _ in pairs])
    return pairs


@dataclass(frozen=True)
class Order(QueryStep):
    """Sort the rows.

    Attributes:
        by: columns and directions.
    """

    op = "order"
    keeps_names = True

    by: list[list[str]] = declare_field(read_sort_keys)

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive facts: the sort keys become control columns."""
        [relation] = inputs
        sources = frozenset[Source]()
        for name, _direction in self.by:
            fact = relation.column_fact(name)
            if not fact.value_type.ordered:
                raise UsageError(
                    f"ORDER BY {name[:80]!r}: texts have no order.", code="unordered-type"
                )
            sources |= fact.sources
        control = add_control_sources(relation, sources, ColumnUse.CONDITION)
        return replace(relation, control=control, ordered=True, least={})

    def keeps_single_row(self) -> bool:
        return True

    def run_protocol(self, context: StepContext) -> Relation:
        return results.order_by(*self.sort_arguments(context), profile=context.setting.profile)

    def sort_arguments(self, context: StepContext) -> tuple[Party, Relation, list[OrderKey]]:
        """Return the party, the rows to sort and the keys of the sort."""
        names = list(context.output_facts.columns)
        by = [OrderKey(names.index(name), way == "desc") for name, way in self.by]
        # equal rows keep their order, so a shuffle first hides their places in the table
        return context.party, results.deliver_rows(context.party, context.inputs[0]), by

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        return f"order {self.input_text} by {self.key_text}"

    @property
    def key_text(self) -> str:
        """Sort keys, for descriptions."""
        return ", ".join(f"{name} {way}" for name, way in self.by)

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        return [None if needed is None else needed | {name for name, _ in self.by}]
