"""Network profiles: what a link between the hosts is like, by name.

The delay is one way, from one host to another.  The exp study's levels were set with
`tc` on each container's sending side, which delays one way, and its own model counts one delay
per round, so theirs is read as one way too.  The rate is that of a host's sending side, over all
of its links together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfe_bench.errors import unknown_name

# Further off than this, a result does not bear the name of the profile.
TOLERANCE = 0.10


@dataclass(frozen=True, slots=True)
class Profile:
    """One network.

    Attributes:
        name: as on the command line.
        delay: one way, in seconds.
        bits_per_second: what a host sends at most, to all others together; 0: not shaped.
        plan: which network protocols plan for, "local", "lan" or "wan".
        strict: whether a result may bear the name only where the links hold the figures; else
            it is labeled as limited by the host where they do not.
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
        """Whether there is anything to impose."""
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
        """What is sent to each peer before anything is timed: a window and a half."""
        if not self.shaped:
            return 0
        under_way = int(self.bytes_per_second * 2 * self.delay)  # where the link is busy
        return min(max(3 * under_way // 2, 1 << 16), 4 << 20)

    def microseconds(self, by_party: Sequence[int], rounds: int, dealt_ahead: bool = True) -> int:
        """Until a computation is over, by what each party sends and by its rounds.

        Args:
            by_party: bits, the dealer's first.
            dealt_ahead: the dealer's material leaves while the evaluators wait for each other.
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
        Profile("local", 0.0, 0.0, "local", False, "this machine's loopback, not shaped"),
        Profile("lan", 10e-6, 40e9, "lan", False, "40 Gbit/s, 0.01 ms"),
        Profile("wan", 20e-3, 352e6, "wan", True, "352 Mbit/s per host, 20 ms"),
        Profile("net0", 0.0, 100e9, "lan", False, "100 Gbit/s, 0 ms"),
        Profile("net1", 1e-3, 1e9, "lan", False, "1 Gbit/s, 1 ms"),
        Profile("net2", 10e-3, 100e6, "wan", True, "100 Mbit/s, 10 ms"),
        Profile("net3", 100e-3, 10e6, "wan", True, "10 Mbit/s, 100 ms"),
    )
}


def get_profile(name: str) -> Profile:
    """The profile of a name.

    Raises:
        UsageError: there is none.
    """
    profile = PROFILES.get(name) if isinstance(name, str) else None
    if profile is None:
        raise unknown_name(f"Unknown network profile. Received: {name!r}.", name, PROFILES)
    return profile
