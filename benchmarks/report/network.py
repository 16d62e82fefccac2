"""The network's minimum share of a record's time: rounds x latency, and bytes over rate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from tfe_bench.benchmarks.fields import AMOUNT
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report.comparison_columns import plain_profile
from tfe_bench.cluster.profiles import PROFILES
from tfe_bench.cluster.schema import Mismatch


@dataclass(frozen=True)
class NetworkShare:
    """The network's share of a run.

    Attributes:
        latency: rounds x one-way delay, in seconds.
        transfer: bytes of the busiest sender over a host's rate, in seconds.
    """

    latency: float
    transfer: float

    @property
    def floor(self) -> float:
        """Least time of a run: the two overlap."""
        return max(self.latency, self.transfer)


def network_share(record: Record) -> NetworkShare | None:
    """Return the network's share, None if the network's figures or the rounds are unknown."""
    profile = PROFILES.get(plain_profile(record))
    if profile is None or not profile.shaped or record.rounds_ahead is None:
        return None
    measured = _measured_delay(record.links)
    delay = profile.delay if measured is None else measured
    sent = max(record.bytes_sent) if record.bytes_sent is not None else 0
    return NetworkShare(record.rounds_ahead * delay, 8 * sent / profile.bits_per_second)


def _measured_delay(links: Any) -> float | None:
    """Return the mean one-way delay in seconds; a record from elsewhere may hold malformed ones."""
    try:
        values = links["one_way_ms"].values()
        return statistics.fmean(map(AMOUNT.read, values)) / 1000
    except (TypeError, KeyError, AttributeError, ValueError, Mismatch):
        return None


def predicted_seconds(record: Record) -> float | None:
    """Return the predicted time in seconds, if the record has one."""
    try:
        predicted = (record.prediction or {})["seconds"][plain_profile(record)]
        return AMOUNT.read(predicted) or None
    except (TypeError, KeyError, Mismatch):
        return None
