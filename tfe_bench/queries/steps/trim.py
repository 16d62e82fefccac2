"""The step `trim`: all rows in a public number of places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfe_bench.protocols.tables import many_to_many
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries import rights
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.steps.step import NeededColumns, QueryStep, StepContext, bound_field


@dataclass(frozen=True)
class Trim(QueryStep):
    """Move the valid rows into a bounded number of places; disclose whether there are more.

    Attributes:
        bound: number of places.
    """

    op = "trim"
    keeps_names = True

    bound: int = bound_field()

    @property
    def row_bound(self) -> int:
        return self.bound

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive facts, and check the right to the disclosure."""
        [relation] = inputs
        copies = {alias: (alias_records, 1) for alias, alias_records in relation.records.items()}
        rights.check_row_bound_disclosure(tables, self.bound, relation.control, copies)
        rows = min(self.bound, relation.rows)
        return replace(relation, rows=rows, valid=False, ordered=False, least={})

    def is_repeatable(self, facts: Facts) -> bool:
        """Return False: the choice of places is free."""
        return False

    def run_protocol(self, context: StepContext) -> Relation:
        """Move the rows; append the bit whether there are more."""
        trimmed, over = many_to_many.trim_rows(context.party, context.inputs[0], self.bound)
        context.over.append(over)
        return trimmed

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        return f"rows {self.input_text}, {self.bound} at most"

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        return [needed]
