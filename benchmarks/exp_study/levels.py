"""The four network levels, and the time that a job would take at one by the model.

A time at a level is MEASURED on links that hold its figures (shaped.py), or MODELLED from what
was measured locally where nothing was measured; every file, table and picture says which.
"""

from __future__ import annotations

from tfe_bench.cluster.profiles import PROFILES, Profile

MODELLED = "modelled"
MEASURED = "measured"
CLOSED_FORM = "closed form"

LEVELS = tuple(PROFILES[name] for name in ("net0", "net1", "net2", "net3"))


def modelled_seconds(
    level: Profile, local_seconds: float, rounds: int, sent: tuple[int, ...]
) -> float:
    """What a job would take at a level: local + rounds * delay + bytes * 8 / rate.

    Args:
        local_seconds: measured on loopback, 0 for the network alone.
        rounds: messages on the critical path from a cold start (the dealer's included).
        sent: bytes sent by each party; they send at the same time, so the busiest counts.
    """
    return local_seconds + rounds * level.delay + max(sent) * 8 / level.bits_per_second
