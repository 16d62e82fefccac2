"""What of a record's time the network must take: rounds x latency, and bytes over rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report.beside import profile_of

# One-way delay in seconds, and bits per second that a host sends at most.
FIGURES: Final = {
    "lan": (1e-5, 40e9),
    "wan": (20e-3, 352e6),
    "net0": (0.0, 100e9),
    "net1": (1e-3, 1e9),
    "net2": (10e-3, 100e6),
    "net3": (100e-3, 10e6),
}


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
    figures = FIGURES.get(profile_of(record))
    if figures is None or record.rounds_ahead is None:
        return None
    delay, rate = figures
    measured = _measured_delay(getattr(record, "links", None))
    sent = max(record.bytes_sent) if record.bytes_sent is not None else 0
    return Share(
        record.rounds_ahead * (delay if measured is None else measured),
        8 * sent / rate,
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
    value = getattr(record, "predicted_seconds", None)
    if isinstance(value, Mapping):
        value = value.get("total")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
