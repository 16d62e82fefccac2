"""Prices of plans: counted work, and its estimated time under a network profile."""

from __future__ import annotations

from dataclasses import dataclass

from tfe_bench.cluster import profiles
from tfe_bench.cluster.network_timeline import simulate_network
from tfe_bench.protocols.session import slices
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.message_graph import MessageGraph
from tfe_bench.protocols.session.openings import Opening

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
        openings: what becomes public to workers, on average.
    """

    cost: Cost
    largest: int
    openings: tuple[Opening, ...] = ()

    @property
    def sent_bytes(self) -> int:
        """Bytes that the three workers send in total."""
        return self.cost.total // 8

    @property
    def memory_bytes(self) -> int:
        """Approximate bytes at a worker in addition to its inputs."""
        return slices.estimate_memory(self.largest)


def estimate_work_seconds(cost: Cost, moved_words: int) -> float:
    """Estimate the seconds of counted work on one machine."""
    return (
        cost.total / 8 / _BYTES_PER_SECOND
        + cost.rounds * _ROUND_SECONDS
        + moved_words / _WORDS_PER_SECOND
    )


def predict_work_seconds(
    cost: Cost, moved_words: int, profile: str, messages: MessageGraph
) -> float:
    """Predict the seconds of counted work under a network profile.

    Args:
        messages: its messages. Those of a loop that exceeds message_graph.MAX_EXCHANGES are not
            listed: bytes and rounds then follow one after the other.

    Raises:
        UsageError: the profile does not exist.
    """
    network = profiles.get_profile(profile)
    computing = estimate_work_seconds(cost, moved_words)
    if not network.shaped:
        return computing
    if not messages.is_complete:
        return computing + network.microseconds(cost.by_party(0), cost.rounds, False) / 1e6
    return simulate_network(messages, network, [computing] * 3).seconds
