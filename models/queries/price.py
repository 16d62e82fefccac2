"""What a plan costs, before anything is sent: its steps, counted on tables that are not there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from tfe_bench.cluster import profiles
from tfe_bench.models.queries import execute, stored
from tfe_bench.models.queries.plan import Plan
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.models.queries.rights import Tables
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import CostParty, Private
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import Relation

# Measured with three workers on two cores, all of `suite tables`: bytes of all three per second, a
# round's own cost, and words per second that local maps move (Tally.moved).
_BYTES_PER_SECOND = 730e6
_ROUND_SECONDS = 1.1e-3
_WORDS_PER_SECOND = 350e6


@dataclass(frozen=True)
class Price:
    """What a plan costs under a network profile.

    Attributes:
        profile: its name; sorts are planned for it.
        steps: of each of the plan's steps, and last of the delivery: bits by party, and rounds.
            How often a sort compares follows a secret shuffle: it is as it is on average.
        moved: by each of them, words that local maps move.
        cost: of all of them.
        largest: 64-bit words of the largest array that is made on the way.
    """

    profile: str
    steps: tuple[Cost, ...]
    moved: tuple[int, ...]
    cost: Cost
    largest: int

    @property
    def sent(self) -> int:
        """Bytes that the three workers send together."""
        return self.cost.total // 8

    @property
    def least_seconds(self) -> float:
        """An estimate for all steps where no network is waited for."""
        return estimate_seconds(self.cost, sum(self.moved), "local")

    def seconds(self, step: int | None = None) -> float:
        """An estimate for one of the steps, or for all."""
        if step is None:
            return estimate_seconds(self.cost, sum(self.moved), self.profile)
        return estimate_seconds(self.steps[step], self.moved[step], self.profile)


def estimate_seconds(cost: Cost, moved_words: int, profile: str) -> float:
    """Seconds that what is counted takes under a network profile.

    Raises:
        UsageError: there is no such profile.
    """
    network = profiles.get_profile(profile)
    computing = cost.total / 8 / _BYTES_PER_SECOND + cost.rounds * _ROUND_SECONDS
    computing += moved_words / _WORDS_PER_SECOND
    if not network.shaped:
        return computing
    return computing + network.microseconds(cost.by_party(0), cost.rounds, False) / 1e6


def price_plan(plan: Plan, facts: Sequence[Facts], tables: Tables, profile: str = "local") -> Price:
    """Counts a checked plan.

    Args:
        facts: as derived of it.
        tables: the plan's, by alias.

    Raises:
        UsageError: there is no such profile, or a step that no operator carries out.
    """
    network = profiles.get_profile(profile).plan
    party = CostParty(expected=True)
    totals: list[tuple[int, ...]] = []

    def load_columns(alias: str, columns: Sequence[str]) -> Relation:
        schema = tables[alias].schema
        names = stored.column_word_names(schema, columns)
        words = {name: Private((schema.rows,), 0).to_symbolic() for name in names}
        return stored.build_relation(schema, columns, words)

    def load_link(alias: str, number: int) -> Shared:
        schema = tables[alias].schema
        return Private((stored.link_sizes(schema)[stored.link_name(number)],), 0).to_symbolic()

    def record_totals(fraction: float, text: str) -> None:
        totals.append((*astuple(party.total_cost), party.moved_words))

    units = {alias: table.schema.unit for alias, table in tables.items()}
    setting = execute.ExecutionContext(
        load_columns, load_link, "", network, record_totals, units.__getitem__
    )
    with party.active():
        execute.run_plan(party, plan, facts, setting)
    record_totals(1.0, "")
    steps = [
        tuple(after - before for before, after in zip(a, b, strict=True))
        for a, b in itertools.pairwise(totals)
    ]
    costs = tuple(Cost(*step[:-1]) for step in steps)
    return Price(profile, costs, tuple(s[-1] for s in steps), party.total_cost, party.largest)
