"""Prices of plans: counted work, and its estimated time under a network profile."""

from __future__ import annotations

from dataclasses import dataclass

from tfe_bench.cluster import profiles
from tfe_bench.protocols.session.cost import Cost

# Measured with three workers on two cores over all of `suite tables`: bytes of all three per
# second, the overhead of a round, and words per second that local maps move
# (CostReport.moved_words).
_BYTES_PER_SECOND = 730e6
_ROUND_SECONDS = 1.1e-3
_WORDS_PER_SECOND = 350e6


@dataclass(frozen=True, kw_only=True)
class PlanPrice:
    """Cost of a plan.

    Attributes:
        cost: bits by party, and rounds, of all steps.
        largest: 64-bit words of the largest intermediate array.
    """

    cost: Cost
    largest: int

    @property
    def sent_bytes(self) -> int:
        """Bytes that the three workers send in total."""
        return self.cost.total // 8


def estimate_work_seconds(cost: Cost, moved_words: int, profile: str) -> float:
    """Estimate the seconds of counted work under a network profile.

    Raises:
        UsageError: the profile does not exist.
    """
    network = profiles.get_profile(profile)
    computing = cost.total / 8 / _BYTES_PER_SECOND + cost.rounds * _ROUND_SECONDS
    computing += moved_words / _WORDS_PER_SECOND
    if not network.shaped:
        return computing
    return computing + network.microseconds(cost.by_party(0), cost.rounds, False) / 1e6
