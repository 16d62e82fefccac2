"""The four network levels, and the time that a job would take at one by the model.

A time at a level is MEASURED on links that hold its figures (shaped.py), or MODELLED from what
was measured locally where nothing was measured; every file, table and picture says which.
"""

from __future__ import annotations

from dataclasses import dataclass

MODELLED = "modelled"
MEASURED = "measured"
CLOSED_FORM = "closed form"


@dataclass(frozen=True)
class NetLevel:
    """A link between each two parties.

    Attributes:
        name: net0 to net3, a profile of cluster/profiles.py.
        bits_per_second: of each party's sending side.
        latency: one way, in seconds.
        text: for people.
    """

    name: str
    bits_per_second: float
    latency: float
    text: str


LEVELS = (
    NetLevel("net0", 100e9, 0.0, "100 Gbit/s, 0 ms"),
    NetLevel("net1", 1e9, 1e-3, "1 Gbit/s, 1 ms"),
    NetLevel("net2", 100e6, 10e-3, "100 Mbit/s, 10 ms"),
    NetLevel("net3", 10e6, 100e-3, "10 Mbit/s, 100 ms"),
)


def modelled_seconds(
    level: NetLevel, local_seconds: float, rounds: int, sent: tuple[int, ...]
) -> float:
    """What a job would take at a level: local + rounds * latency + bytes * 8 / rate.

    Args:
        local_seconds: measured on loopback, 0 for the network alone.
        rounds: messages on the critical path from a cold start (the dealer's included).
        sent: bytes sent by each party; they send at the same time, so the busiest counts.
    """
    return local_seconds + rounds * level.latency + max(sent) * 8 / level.bits_per_second
