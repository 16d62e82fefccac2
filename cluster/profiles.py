"""Network profiles: the delay and rate of the links between hosts, by name.

The delay is one way, from one host to another.  The exp study's levels were set with
`tc` on each container's sending side, which delays one way, and its own model counts one delay
per round, so its delays are also interpreted as one way.  The rate is that of a host's sending
side, over all of its links together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfe_bench.errors import unknown_name_error

# A result with a larger relative deviation is not labeled with the profile's name.
TOLERANCE = 0.10


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """One network.

    Attributes:
        name: as on the command line.
        delay: one way, in seconds.
        bits_per_second: the rate of a host to all others together; 0: not shaped.
        plan: the network for which protocols are planned, "local", "lan" or "wan".
        strict: whether a result may be labeled with the name only if the links meet the figures;
            otherwise it is labeled as limited by the host if they do not.
        text: for people.
    """

    name: str
    delay: float
    bits_per_second: float
    plan: str
    strict: bool
    text: str

    @property
    def shaped(self) -> bool:
        """True if the profile imposes a rate."""
        return self.bits_per_second > 0

    @property
    def delay_us(self) -> int:
        """The delay in microseconds."""
        return round(self.delay * 1e6)

    @property
    def bytes_per_second(self) -> int:
        """The rate in bytes."""
        return int(self.bits_per_second / 8)

    @property
    def warm_up_bytes(self) -> int:
        """Bytes that are sent to each peer before any measurement: one and a half windows."""
        if not self.shaped:
            return 0
        under_way = int(self.bytes_per_second * 2 * self.delay)  # in flight on a busy link
        return min(max(3 * under_way // 2, 1 << 16), 4 << 20)

    def microseconds(self, by_party: Sequence[int], rounds: int, dealt_ahead: bool = True) -> int:
        """Estimate the time of a computation from each party's traffic and the rounds.

        Args:
            by_party: bits, the dealer's first.
            dealt_ahead: whether the dealer sends correlated randomness while the evaluators wait
                for each other.
        """
        send_times = [bits // 8 * 1_000_000 // self.bytes_per_second for bits in by_party]
        waits = rounds * self.delay_us
        return (
            max(send_times[0], max(send_times[1:]) + waits)
            if dealt_ahead
            else max(send_times) + waits
        )


PROFILES = {
    profile.name: profile
    for profile in (
        NetworkProfile("local", 0.0, 0.0, "local", False, "this machine's loopback, not shaped"),
        NetworkProfile("lan", 10e-6, 40e9, "lan", False, "40 Gbit/s, 0.01 ms"),
        NetworkProfile("wan", 20e-3, 352e6, "wan", True, "352 Mbit/s per host, 20 ms"),
        NetworkProfile("net0", 0.0, 100e9, "lan", False, "100 Gbit/s, 0 ms"),
        NetworkProfile("net1", 1e-3, 1e9, "lan", False, "1 Gbit/s, 1 ms"),
        NetworkProfile("net2", 10e-3, 100e6, "wan", True, "100 Mbit/s, 10 ms"),
        NetworkProfile("net3", 100e-3, 10e6, "wan", True, "10 Mbit/s, 100 ms"),
        # ORQ (SOSP 2025) and CryptDough (SOSP 2026): `tc` with 6 Gbit/s, 20 ms round trip.
        NetworkProfile("orq-wan", 10e-3, 6e9, "wan", False, "6 Gbit/s per host, 10 ms"),
        # PUMA (arXiv 2307.12533): about 5 Gbit/s and 1 ms round trip between three hosts.
        NetworkProfile("puma-lan", 0.5e-3, 5e9, "lan", False, "5 Gbit/s per host, 0.5 ms"),
    )
}


def get_profile(name: str) -> NetworkProfile:
    """Return the profile of a name.

    Raises:
        UsageError: the name is unknown.
    """
    profile = PROFILES.get(name) if isinstance(name, str) else None
    if profile is None:
        text = f"Unknown network profile. Received: {name!r}."
        raise unknown_name_error(text, name, PROFILES, operation="profile")
    return profile
