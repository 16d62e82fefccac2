"""Cost of a plan before anything is sent: its steps are counted on symbolic tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

from tfe_bench.cluster import profiles
from tfe_bench.cluster.pricing import PlanPrice, estimate_work_seconds, predict_work_seconds
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import CostParty, Private
from tfe_bench.protocols.session.message_graph import MessageGraph
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import Relation
from tfe_bench.queries import execute, stored
from tfe_bench.queries.execution_context import QueryExecutionContext
from tfe_bench.queries.plan import QueryPlan
from tfe_bench.queries.relation_facts import Relation as Facts
from tfe_bench.queries.rights import Tables


@dataclass(frozen=True)
class Price(PlanPrice):
    """Cost of a plan under a network profile.

    Attributes:
        profile: name of the profile; sorts are planned for it.
        steps: bits by party, and rounds, of each step of the plan and last of the delivery. The
            number of comparisons of a sort depends on a secret shuffle; the average is stated.
        moved: words that local maps move, by step.
        messages: the messages of all steps.
        calls: the graph calls of each step.
    """

    profile: str
    steps: tuple[Cost, ...]
    moved: tuple[int, ...]
    messages: MessageGraph = field(repr=False, compare=False)
    calls: tuple[range, ...] = field(repr=False, compare=False)

    @property
    def least_seconds(self) -> float:
        """Estimated time of all steps without network delay."""
        return estimate_work_seconds(self.cost, sum(self.moved))

    def seconds(self, step: int | None = None) -> float:
        """Predict the time of one step, or of all."""
        if step is None:
            return predict_work_seconds(self.cost, sum(self.moved), self.profile, self.messages)
        messages = self.messages.select_steps(self.calls[step])
        return predict_work_seconds(self.steps[step], self.moved[step], self.profile, messages)


def price_query_plan(
    plan: QueryPlan, facts: Sequence[Facts], tables: Tables, profile: str = "local"
) -> Price:
    """Count the cost of a checked plan.

    Args:
        facts: derived facts of its steps.
        tables: the plan's tables, by alias.

    Raises:
        UsageError: the profile does not exist, or no operator can run a step.
    """
    network = profiles.get_profile(profile).plan
    messages = MessageGraph()
    party = CostParty(expected=True, graph=messages)
    totals: list[tuple[int, ...]] = []
    finished_calls: list[int] = []

    def load_columns(alias: str, columns: Sequence[str]) -> Relation:
        schema = tables[alias].schema
        names = stored.column_word_names(schema, columns)
        words = {name: Private((schema.rows,), 0).to_symbolic() for name in names}
        return stored.build_stored_relation(schema, columns, words)

    def load_link(alias: str, number: int) -> Shared:
        schema = tables[alias].schema
        return Private((stored.link_sizes(schema)[stored.link_name(number)],), 0).to_symbolic()

    def record_totals(fraction: float, text: str) -> None:
        totals.append((*astuple(party.total_cost), party.moved_words))
        finished_calls.append(party.finished_calls)

    units = {alias: table.schema.unit for alias, table in tables.items()}
    setting = QueryExecutionContext(
        load_columns, load_link, "", network, record_totals, units.__getitem__
    )
    with party.active():
        execute.run_query_plan(party, plan, facts, setting)
    record_totals(1.0, "")
    steps = [
        tuple(after - before for before, after in zip(a, b, strict=True))
        for a, b in itertools.pairwise(totals)
    ]
    costs = tuple(Cost(*step[:-1]) for step in steps)
    moved = tuple(step[-1] for step in steps)
    return Price(
        profile,
        costs,
        moved,
        messages,
        tuple(itertools.starmap(range, itertools.pairwise(finished_calls))),
        cost=party.total_cost,
        largest=party.largest,
        openings=party.openings.list_openings(),
    )
