"""Measured and predicted times of a run: compute, rounds x delay, bytes / bandwidth.

The three are added up, though sending overlaps with computing while the dealer runs ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster import profiles
from tfe_bench.cluster.profiles import NetworkProfile

_ALWAYS = ("lan", "wan")


def modeled_seconds(
    link: NetworkProfile, compute_seconds: float, rounds: int, bytes_by_party: Sequence[int]
) -> float:
    """Return the modeled time on a network: compute + rounds * delay + bytes * 8 / rate.

    Args:
        compute_seconds: without waiting for the network; 0 for the network alone.
        rounds: messages on the critical path.
        bytes_by_party: that each sends; they send at the same time, so the busiest counts.
    """
    return compute_seconds + rounds * link.delay + max(bytes_by_party) * 8 / link.bits_per_second


def measured_run_rounds(measured: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return (offline + online, online) rounds of a run; each call counts its slowest party."""
    steps = list(zip(*(m["rounds"] for m in measured), strict=True))
    with_dealing, online = (
        sum(max(party[i] for party in step) for step in steps) for i in range(2)
    )
    return with_dealing, online


def measured_run_seconds(measured: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the time of each run: it ends when the last of the three parties ends."""
    return [max(turn) for turn in zip(*(m["seconds"] for m in measured), strict=True)]


def critical_path_rounds(steps: Sequence[Sequence[Sequence[int]]]) -> int:
    """Return the rounds of a run of several graph calls.

    The first counts offline + online; while it runs, the dealer prepares the others.

    Args:
        steps: (offline + online, online) rounds by graph call and party.
    """
    total = 0
    for number, step in enumerate(steps):
        total += max(party[0 if number == 0 else 1] for party in step)
    return total


def busiest_party_seconds(seconds: Sequence[float], waited: Sequence[Sequence[float]]) -> float:
    """Return the longest busy time of a party: its run without its waits."""
    return max(max(0.0, run - sum(w)) for run, w in zip(seconds, waited, strict=True))


def predict_run_times(
    measured: Sequence[Mapping[str, Any]], profile: str, median: float
) -> dict[str, Any]:
    """Return a record's prediction, from the measurements of the three workers.

    Args:
        profile: profile of the run.
        median: its measured time in seconds.

    Returns:
        rounds, bytes of the busiest party, compute_seconds; seconds by profile; and ratio, measured
        over predicted, None for a network that was not shaped.
    """
    steps = list(zip(*(m["rounds"] for m in measured), strict=True))
    rounds = critical_path_rounds(steps)
    sent = [sum(m["frames"]) for m in measured]
    busy = busiest_party_seconds(
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
