"""What a plan costs, before anything is sent: its steps, counted on tables that are not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from tfe_bench.cluster import profiles
from tfe_bench.models.queries import execute, stored
from tfe_bench.models.queries.plan import Plan
from tfe_bench.models.queries.relations import Relation as Facts
from tfe_bench.models.queries.rights import Tables
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Counting, Private
from tfe_bench.protocols.session.sharing import Shared
from tfe_bench.protocols.tables.relation import Relation

# Measured with three workers on two cores: bytes of all three per second, and a round's own cost.
BYTES_PER_SECOND = 430e6
ROUND_SECONDS = 1e-3


@dataclass(frozen=True)
class Price:
    """What a plan costs under a network profile.

    Attributes:
        profile: its name; sorts are planned for it.
        steps: of each of the plan's steps, and last of the delivery: bits by party, and rounds.
            How often a sort compares follows a secret shuffle: it is as it is on average.
        cost: of all of them.
        largest: 64-bit words of the largest array that is made on the way.
    """

    profile: str
    steps: tuple[Cost, ...]
    cost: Cost
    largest: int

    @property
    def sent(self) -> int:
        """Bytes that the three workers send together."""
        return self.cost.total // 8

    def seconds(self, cost: Cost) -> float:
        """An estimate for one of the steps, or for all."""
        network = profiles.get(self.profile)
        computing = cost.total / 8 / BYTES_PER_SECOND + cost.rounds * ROUND_SECONDS
        if not network.shaped:
            return computing
        return computing + network.microseconds(cost.by_party(0), cost.rounds, False) / 1e6


def price(plan: Plan, facts: Sequence[Facts], tables: Tables, profile: str = "local") -> Price:
    """Counts a checked plan.

    Args:
        facts: as derived of it.
        tables: the plan's, by alias.

    Raises:
        UsageError: there is no such profile, or a step that no operator carries out.
    """
    network = profiles.get(profile).plan
    party = Counting(expected=True)
    totals = []

    def load(alias: str, columns: Sequence[str]) -> Relation:
        schema = tables[alias].schema
        names = stored.names_of(schema, columns)
        words = {name: Private((schema.rows,), 0).made() for name in names}
        return stored.relation(schema, columns, words)

    def link(alias: str, number: int) -> Shared:
        schema = tables[alias].schema
        return Private((stored.link_sizes(schema)[stored.link_name(number)],), 0).made()

    def heard(fraction: float, text: str) -> None:
        totals.append(party.total)

    units = {alias: table.schema.unit for alias, table in tables.items()}
    setting = execute.Setting(load, link, "", network, heard, units.__getitem__)
    with party.active():
        execute.run(party, plan, facts, setting)
    ends = [*totals[1:], party.total]
    steps = [
        Cost(*(after - before for before, after in zip(astuple(a), astuple(b), strict=True)))
        for a, b in zip(totals, ends, strict=True)
    ]
    return Price(profile, tuple(steps), party.total, party.largest)
