"""What of a record's time the network must take: rounds x latency, and bytes over rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report.beside import profile_of
from tfe_bench.cluster.profiles import PROFILES


@dataclass(frozen=True)
class Share:
    """The network's share of a run.

    Attributes:
        latency: rounds x one-way delay, in seconds.
        transfer: the most that a party sends over what a host may send, in seconds.
        realised: the delay is what was measured on the links, not the profile's.
    """

    latency: float
    transfer: float
    realised: bool

    @property
    def floor(self) -> float:
        """What a run takes at least: the two overlap."""
        return max(self.latency, self.transfer)


def share(record: Record) -> Share | None:
    """The network's share, None where the network's figures or the rounds are not known."""
    profile = PROFILES.get(profile_of(record))
    if profile is None or not profile.shaped or record.rounds_ahead is None:
        return None
    measured = _measured_delay(record.links)
    sent = max(record.bytes_sent) if record.bytes_sent is not None else 0
    return Share(
        record.rounds_ahead * (profile.delay if measured is None else measured),
        8 * sent / profile.bits_per_second,
        measured is not None,
    )


def _measured_delay(links: Any) -> float | None:
    """The mean of the links' one-way delays as the record has them, in seconds."""
    if not isinstance(links, Mapping) or not isinstance(links.get("one_way_ms"), Mapping):
        return None
    values = list(links["one_way_ms"].values())
    if not values or not all(
        isinstance(v, int | float) and math.isfinite(v) and v >= 0 for v in values
    ):
        return None
    return float(sum(values)) / len(values) / 1000


def predicted(record: Record) -> float | None:
    """The predicted time in seconds, where the record has one."""
    found = (record.prediction or {}).get("seconds")
    value = found.get(profile_of(record)) if isinstance(found, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value > 0 else None
