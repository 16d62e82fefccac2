"""The step `sample`: random rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfe_bench.errors import UsageError
from tfe_bench.protocols.tables import results
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries.dense_groups import gather_valid_rows
from tfe_bench.queries.plan_syntax import check_row_count
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.steps.limit import limit_facts, take_first_rows
from tfe_bench.queries.steps.step import NeededColumns, QueryStep, StepContext, declare_field

# Parts of the whole in which a share of the rows is stated.
PARTS = 1_000_000


def _read_parts(value: object) -> int:
    if type(value) is not int or not 0 <= value <= PARTS:
        raise UsageError(
            "A share of rows is 0 to 10^6 millionths.",
            code="number-out-of-range",
            operation="parts",
        )
    return value


@dataclass(frozen=True)
class Sample(QueryStep):
    """Draw rows without replacement, each set of them with the same probability.

    Attributes:
        count: number of rows, or
        parts: millionths of the relation's places. Where some hold no row, the number of drawn rows
            is random and private: each row is drawn with the same probability.
    """

    op = "sample"
    keeps_names = True

    count: int | None = declare_field(check_row_count, default=None)
    parts: int | None = declare_field(_read_parts, default=None)

    def check_fields(self) -> None:
        if (self.count is None) == (self.parts is None):
            raise UsageError(
                "A sample has either count or parts.", code="invalid-plan", operation="sample"
            )

    def count_rows(self, rows: int) -> int:
        """Return the number of places to draw of a relation with `rows` places."""
        if self.parts is None:
            return min(self.count or 0, rows)
        # (a half is rounded up, as in DuckDB)
        return (2 * self.parts * rows + PARTS) // (2 * PARTS)

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        [relation] = inputs
        facts = limit_facts(relation, self.count_rows(relation.rows), tables)
        return replace(facts, ordered=False)

    def is_repeatable(self, facts: Facts) -> bool:
        return False

    def keeps_single_row(self) -> bool:
        return self.count_rows(1) > 0

    def run_protocol(self, context: StepContext) -> Relation:
        """Shuffle the rows by a permutation that no party knows, and keep the first ones."""
        party, [rows], [facts] = context.party, context.inputs, context.input_facts
        if self.parts is None and not facts.valid:
            rows = gather_valid_rows(party, rows)
        else:
            rows = results.deliver_rows(party, rows)
        return take_first_rows(party, rows, self.count_rows(facts.rows))

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        size = f"{self.count} rows" if self.parts is None else f"{self.parts / 1e4:g} %"
        return f"sample {self.input_text}: {size}"

    def list_needs(self, needed: NeededColumns) -> list[NeededColumns]:
        return [needed]
