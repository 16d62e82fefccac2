"""What a run would take on a network: computing, rounds times delay, bytes over bandwidth.

The three are added up, though sending overlaps with computing where the dealer runs ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster import profiles

_ALWAYS = ("lan", "wan")


def predict(
    rounds: int, bytes_by_party: Sequence[int], compute_seconds: float, profile: str
) -> float | None:
    """compute + rounds * delay + bytes / bandwidth, in seconds; None for `local`.

    Args:
        rounds: messages on the critical path.
        bytes_by_party: that each sends; they send at the same time, so the busiest counts.
        compute_seconds: without waiting for the network.

    Raises:
        UsageError: there is no such profile.
    """
    link = profiles.get(profile)
    if not link.shaped:
        return None
    return compute_seconds + rounds * link.delay + max(bytes_by_party) * 8 / link.bits_per_second


def critical_rounds(steps: Sequence[Sequence[Sequence[int]]]) -> int:
    """Rounds of a run of several graph calls.

    The first counts from a cold start; while it runs, the dealer makes the material of the others.

    Args:
        steps: of each graph call, of each party: (cold, run-ahead) rounds.
    """
    total = 0
    for number, step in enumerate(steps):
        total += max(party[0 if number == 0 else 1] for party in step)
    return total


def compute_seconds(seconds: Sequence[float], waited: Sequence[Sequence[float]]) -> float:
    """The time of the party that was busy longest: what is left of its run without its waits."""
    return max(max(0.0, run - sum(w)) for run, w in zip(seconds, waited, strict=True))


def forecast(measured: Sequence[Mapping[str, Any]], profile: str, median: float) -> dict[str, Any]:
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
        predicted = predict(rounds, sent, busy, name)
        if predicted is not None:
            seconds[name] = predicted
    ratio = median / seconds[profile] if seconds.get(profile) else None
    return {
        "rounds": rounds,
        "bytes": max(sent),
        "compute_seconds": busy,
        "seconds": seconds,
        "ratio": ratio,
    }
