"""The step `many_join`: all pairs of rows with equal keys, up to a public bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfe_bench.protocols.tables import many_to_many
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries import rights
from tfe_bench.queries.plan_syntax import check_choice
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.steps.join import JOINS, Join
from tfe_bench.queries.steps.step import QueryStep, StepContext, bound_field, declare_field


@dataclass(frozen=True)
class ManyJoin(Join):
    """Join rows whose keys are unique on neither side; disclose whether the bound is exceeded.

    Attributes:
        kind: "inner" or "left".
        bound: number of places for the pairs.
    """

    op = "many_join"
    in_place = False
    over_subject = "The join"

    kind: str = declare_field(lambda value: check_choice(value, JOINS[:2], "A join with a bound"))
    bound: int = bound_field()

    @property
    def row_bound(self) -> int:
        return self.bound

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        """Derive facts, and check the right to the disclosure."""
        left, right = inputs
        self.check_sides(left, right)
        joined = self.join_facts(left, right, False, tables)
        # (a record may be in as many rows as the other side has, at least in one on the left)
        copies = {alias: (r, max(1, right.rows)) for alias, r in left.records.items()}
        copies |= {alias: (r, left.rows) for alias, r in right.records.items()}
        rights.check_row_bound_disclosure(tables, self.bound, joined.control, copies)
        records = {alias: replace(r, single=False) for alias, r in joined.records.items()}
        return replace(joined, rows=self.bound, valid=False, records=records, unique=frozenset())

    def check_units(self, tables: Tables, first: Sequence[str], others: Sequence[str]) -> None:
        QueryStep.check_units(self, tables, first, others)  # (a row may be in several pairs)

    def run_protocol(self, context: StepContext) -> Relation:
        """Form the pairs; append the bit whether there are more."""
        names, on = self.find_keys(context)
        joined, over = many_to_many.many_to_many_join(
            *(context.party, context.inputs[0], self.extend_right_side(context), on),
            *(self.bound, self.kind),
            profile=context.setting.profile,
        )
        context.over.append(over)
        return self.arrange_columns(context, names, joined)

    def explain_step(self, inputs: Sequence[Facts], output: Facts) -> str:
        rows = "pairs" if self.kind == "inner" else "rows"
        return f"{self.key_text}, {self.bound} {rows} at most"
