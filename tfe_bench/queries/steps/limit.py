"""The step `limit`: a public number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.tables.relation import Relation, limit_rows
from tfe_bench.queries import rights
from tfe_bench.queries.dense_groups import gather_valid_rows
from tfe_bench.queries.evaluate import constant_truth_column
from tfe_bench.queries.plan_syntax import check_row_count
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.steps.step import NeededColumns, QueryStep, StepContext, declare_field


def limit_facts(relation: Facts, count: int, tables: Tables) -> Facts:
    """Return the facts of the first rows of a relation, and check the right to leave others out.

    Raises:
        PolicyError: naming column, right and owner.
    """
    if count < relation.rows:
        rights.check_rows_may_be_drawn(tables, relation.records)
    rows = max(1, min(count, relation.rows))
    return replace(relation, rows=rows, valid=relation.valid and count > 0, least={})


def take_first_rows(party: Party, rows: Relation, count: int) -> Relation:
    """Keep the first rows; of 0 rows one invalid row. Local."""
    limited = limit_rows(rows, max(1, count))
    if count:
        return limited
    cleared = party.function(lambda valid: constant_truth_column(valid, False))(limited.valid)
    return replace(limited, valid=cleared)


@dataclass(frozen=True)
class Limit(QueryStep):
    """Keep the first rows; of unordered rows, random ones.

    Attributes:
        count: number of rows.
    """

    op = "limit"
    keeps_names = True

    count: int = declare_field(check_row_count)

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        return limit_facts(inputs[0], self.count, tables)

    def is_repeatable(self, facts: Facts) -> bool:
        """Return False: the choice of rows is free."""
        return False

    def keeps_single_row(self) -> bool:
        return self.count > 0

    def run_protocol(self, context: StepContext) -> Relation:
        """Keep the first rows, of unordered rows after a shuffle."""
        party, [rows] = context.party, context.inputs
        if (
            not context.output_facts.ordered
        ):  # the choice of rows is arbitrary, and the shuffle makes it independent of the data
            rows = gather_valid_rows(party, rows)
        return take_first_rows(party, rows, min(self.count, rows.rows))

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        return f"limit {self.input_text} to {self.count}"

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        return [needed]
