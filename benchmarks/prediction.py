"""What a run took, and would take on a network: computing, rounds x delay, bytes / bandwidth.

The three are added up, though sending overlaps with computing where the dealer runs ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster import profiles
from tfe_bench.cluster.profiles import Profile

_ALWAYS = ("lan", "wan")


def modeled_seconds(
    link: Profile, compute_seconds: float, rounds: int, bytes_by_party: Sequence[int]
) -> float:
    """What a run would take at a network: compute + rounds * delay + bytes * 8 / rate.

    Args:
        compute_seconds: without waiting for the network; 0 for the network alone.
        rounds: messages on the critical path.
        bytes_by_party: that each sends; they send at the same time, so the busiest counts.
    """
    return compute_seconds + rounds * link.delay + max(bytes_by_party) * 8 / link.bits_per_second


def total_rounds(measured: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """(with dealing, online) rounds of a run: each graph call lasts as long as at its slowest
    party.
    """
    steps = list(zip(*(m["rounds"] for m in measured), strict=True))
    with_dealing, online = (
        sum(max(party[i] for party in step) for step in steps) for i in range(2)
    )
    return with_dealing, online


def run_seconds(measured: Sequence[Mapping[str, Any]]) -> list[float]:
    """The time of each run: it is over when the last of the three is."""
    return [max(turn) for turn in zip(*(m["seconds"] for m in measured), strict=True)]


def critical_rounds(steps: Sequence[Sequence[Sequence[int]]]) -> int:
    """Rounds of a run of several graph calls.

    The first counts with dealing; while it runs, the dealer makes the material of the others.

    Args:
        steps: of each graph call, of each party: (with dealing, online) rounds.
    """
    total = 0
    for number, step in enumerate(steps):
        total += max(party[0 if number == 0 else 1] for party in step)
    return total


def compute_seconds(seconds: Sequence[float], waited: Sequence[Sequence[float]]) -> float:
    """The time of the party that was busy longest: what is left of its run without its waits."""
    return max(max(0.0, run - sum(w)) for run, w in zip(seconds, waited, strict=True))


def predict_times(
    measured: Sequence[Mapping[str, Any]], profile: str, median: float
) -> dict[str, Any]:
    """What a record says of prediction, from what the three workers measured.

    Args:
        profile: of the run.
        median: its measured time in seconds.

    Returns:
        rounds, bytes of the busiest party, compute_seconds; seconds by profile; and ratio, measured
        over predicted, None for a network that was not shaped.
    """
    steps = list(zip(*(m["rounds"] for m in measured), strict=True))
    rounds = critical_rounds(steps)
    sent = [sum(m["frames"]) for m in measured]
    busy = compute_seconds(
        [m["breakdown"]["run"] for m in measured], [m["breakdown"]["waiting"] for m in measured]
    )
    seconds: dict[str, float] = {}
    for name in dict.fromkeys((*_ALWAYS, profile)):
        link = profiles.get_profile(name)
        if link.shaped:
            seconds[name] = modeled_seconds(link, busy, rounds, sent)
    ratio = median / seconds[profile] if seconds.get(profile) else None
    return {
        "rounds": rounds,
        "bytes": max(sent),
        "compute_seconds": busy,
        "seconds": seconds,
        "ratio": ratio,
    }
