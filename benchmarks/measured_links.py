"""Measured figures of links, and their comparison with a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfe_bench.benchmarks.workloads.links import PAIRS
from tfe_bench.cluster.profiles import TOLERANCE, NetworkProfile
from tfe_bench.errors import ProfileError

# The short test, and how often it is made until the figures hold.
_ATTEMPTS = 3
_SHORT_TURNS = 2
_SHORT_PINGS = 2
_SHORT_PING_TURNS = 4
_SHORT_SECONDS = 0.15
_SHORT_MOST_KILOBYTES = 40_000
HOST_LIMITED = "host-limited"


@dataclass(frozen=True, slots=True)
class MeasuredLinks:
    """Figures measured between three workers.

    Attributes:
        delays: one way (half of the shortest round trip), in seconds, of 0-1, 0-2 and 1-2.
        rates: best rate at which each worker sends to both others together, in bits per second.
        megabytes: total that each worker sent.
        lost_bytes: bytes that did not arrive as sent.
    """

    delays: tuple[float, float, float]
    rates: tuple[float, float, float]
    megabytes: float
    lost_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return the figures for a record."""
        return {
            "one_way_ms": {
                f"{a}-{b}": round(1e3 * d, 4) for (a, b), d in zip(PAIRS, self.delays, strict=True)
            },
            "egress_mbit": [round(r / 1e6, 3) for r in self.rates],
            "megabytes": self.megabytes,
            "lost_bytes": self.lost_bytes,
        }

    def best_of(self, other: MeasuredLinks) -> MeasuredLinks:
        """Combine the better of each figure: a busy moment of this machine does not count."""
        a, b, c = map(min, zip(self.delays, other.delays, strict=True))
        r, s, t = map(max, zip(self.rates, other.rates, strict=True))
        return MeasuredLinks(
            (a, b, c),
            (r, s, t),
            self.megabytes + other.megabytes,
            self.lost_bytes + other.lost_bytes,
        )

    def describe_deviations(
        self, profile: NetworkProfile, tolerance: float = TOLERANCE
    ) -> list[str]:
        """Describe every figure that deviates from the profile's by more than the tolerance."""
        if not profile.shaped:
            return []
        words = []
        for (a, b), delay in zip(PAIRS, self.delays, strict=True):
            if abs(delay - profile.delay) > tolerance * profile.delay:
                expected = f"{1e3 * profile.delay:.3g} ms"
                words.append(f"one-way delay {a}-{b} {1e3 * delay:.3g} ms instead of {expected}")
        rate = profile.bits_per_second
        for party, measured_rate in enumerate(self.rates):
            if abs(measured_rate - rate) > tolerance * rate:
                expected = f"{rate / 1e6:.4g} Mbit/s"
                words.append(
                    f"egress of worker {party} {measured_rate / 1e6:.4g} Mbit/s "
                    f"instead of {expected}"
                )
        if self.lost_bytes:
            words.append(f"{self.lost_bytes} bytes lost")
        return words


def measure_links(
    cluster: Any,
    kilobytes: int,
    pings: int = 4,
    turns: int = 1,
    ping_turns: int = 4,
    progress: Any = None,
) -> MeasuredLinks:
    """Measure a cluster's links.

    Args:
        kilobytes: sent by each worker in each turn, half to each of the others.
        pings: sequential pings of each pair in each of the ping turns.
    """
    parameters = {
        "kilobytes": kilobytes,
        "pings": pings,
        "turns": turns,
        "ping_turns": ping_turns,
    }
    measured = cluster.run("links", parameters, {}, progress).measured
    # The best of the turns, see `best_of`.
    trips = [min(measured[a]["trip_seconds"][i]) for i, (a, _) in enumerate(PAIRS)]
    rates = []
    for p, figures in enumerate(measured):
        # The receipts take a round trip, to the slower of the two.
        trip = max(t for t, pair in zip(trips, PAIRS, strict=True) if p in pair)
        seconds = min(figures["send_seconds"])
        rates.append(8 * figures["sent_bytes"] / max(seconds - trip, 0.05 * seconds))
    return MeasuredLinks(
        (trips[0] / 2, trips[1] / 2, trips[2] / 2),
        (rates[0], rates[1], rates[2]),
        turns * measured[0]["sent_bytes"] / 1e6,
        sum(m["lost_bytes"] for m in measured),
    )


def short_test_kilobytes(profile: NetworkProfile) -> int:
    """Return the size of a turn of the short test: 0.15 seconds' worth."""
    return min(int(profile.bytes_per_second * _SHORT_SECONDS / 1000), _SHORT_MOST_KILOBYTES)


def verify_links(
    cluster: Any, tolerance: float = TOLERANCE
) -> tuple[MeasuredLinks | None, str | None]:
    """Test the links before a benchmark; return the measured figures and the emulation's name.

    Returns:
        (None, None) if nothing is shaped; else the name has ", host-limited" if a profile is missed
        that one machine may miss.

    Raises:
        ProfileError: the links miss the figures of a named profile.
    """
    profile: NetworkProfile = cluster.profile
    if not profile.shaped:
        return None, None
    realized, off = None, list[str]()
    for _ in range(_ATTEMPTS):
        again = measure_links(
            cluster, short_test_kilobytes(profile), _SHORT_PINGS, _SHORT_TURNS, _SHORT_PING_TURNS
        )
        realized = realized.best_of(again) if realized else again
        off = realized.describe_deviations(profile, tolerance)
        if not off or not profile.strict:
            break
    else:
        raise ProfileError(
            f"The measured links do not meet the profile {profile.name} ({profile.text}). "
            f"Received: {'; '.join(off)}. A result is labeled {profile.name} only if they "
            f"deviate by at most {tolerance:.0%}: end other work on this machine, or see "
            f"`python -m tfe_bench links --profile {profile.name}`.",
            code="profile-not-met",
            operation=profile.name,
        )
    return realized, f"{cluster.emulation}, {HOST_LIMITED}" if off else cluster.emulation
