"""Measured and predicted times of a run.

A run is predicted from its messages and their dependencies (cluster/network_timeline.py), with the
computing time that was measured. `modeled_seconds` models published figures and other technologies,
whose messages are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster import profiles
from tfe_bench.cluster.network_timeline import simulate_network
from tfe_bench.cluster.profiles import NetworkProfile
from tfe_bench.protocols.session.message_graph import MessageGraph

_ALWAYS = ("lan", "wan")


def modeled_seconds(
    link: NetworkProfile, compute_seconds: float, rounds: int, bytes_by_party: Sequence[int]
) -> float:
    """Return the modeled time on a network: compute + rounds * delay + bytes * 8 / rate.

    The three are added up, though sending overlaps with computing while the dealer runs ahead.

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


def busy_party_seconds(
    seconds: Sequence[float], waited: Sequence[Sequence[float]]
) -> tuple[float, ...]:
    """Return the busy time of each party: its run without its waits."""
    return tuple(max(0.0, run - sum(w)) for run, w in zip(seconds, waited, strict=True))


def predict_run_times(
    measured: Sequence[Mapping[str, Any]],
    profile: str,
    median: float,
    messages: MessageGraph | None = None,
) -> dict[str, Any]:
    """Return a record's prediction, from the measurements of the three workers.

    Args:
        profile: profile of the run.
        median: its measured time in seconds.
        messages: the counted messages of the run; None if they are not known.

    Returns:
        rounds, bytes of the busiest party, compute_seconds of the busiest party; seconds by
        profile, empty without messages; and ratio, measured over predicted, None for a network that
        was not shaped. With messages also, by profile: line_seconds, the time that each host's line
        is busy; party_seconds until each party ends; and path, the seconds of the critical path by
        what takes them: line, delay (of rounds) or computing.
    """
    steps = list(zip(*(m["rounds"] for m in measured), strict=True))
    sent = [sum(m["frames"]) for m in measured]
    busy = busy_party_seconds(
        [m["breakdown"]["run"] for m in measured], [m["breakdown"]["waiting"] for m in measured]
    )
    networks = [profiles.get_profile(name) for name in dict.fromkeys((*_ALWAYS, profile))]
    timelines = {}
    if messages is not None and messages.is_complete and messages.exchanges:
        # Headers, and for a quicksort the difference from the average number of comparisons.
        overhead = sum(sent) / max(sum(messages.sent_by_party), 1)
        timelines = {
            network.name: simulate_network(messages, network, busy, overhead)
            for network in networks
            if network.shaped
        }
    seconds = {name: timeline.seconds for name, timeline in timelines.items()}
    return {
        "rounds": critical_path_rounds(steps),
        "bytes": max(sent),
        "compute_seconds": max(busy),
        "seconds": seconds,
        "ratio": median / seconds[profile] if seconds.get(profile) else None,
        **(
            {
                "line_seconds": {name: list(t.lines) for name, t in timelines.items()},
                "party_seconds": {name: list(t.parties) for name, t in timelines.items()},
                "path": {name: t.path for name, t in timelines.items()},
            }
            if timelines
            else {}
        ),
    }
