"""The step `distinct`: the different rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.relation_facts import visible_columns
from tfe_bench.queries.rights import Tables
from tfe_bench.queries.steps.group import Group
from tfe_bench.queries.steps.step import QueryStep, StepContext


@dataclass(frozen=True)
class Distinct(QueryStep):
    """Keep one of several equal rows: a group by all columns."""

    op = "distinct"
    keeps_names = True

    def _as_group(self, relation: Facts) -> Group:
        return Group(visible_columns(relation.columns), [], inputs=self.inputs)

    def derive_facts(self, inputs: Sequence[Facts], tables: Tables) -> Facts:
        return self._as_group(inputs[0]).derive_facts(inputs, tables)

    def run_protocol(self, context: StepContext) -> Relation:
        return self._as_group(context.input_facts[0]).run_protocol(context)
