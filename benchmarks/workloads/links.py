"""Round-trip time and bandwidth between every pair of workers, for ``doctor``.

Public zeros travel through the workers' own channels, so that what is measured is what a job gets,
and no worker answers to anything that is not a job its operator allows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfe_bench.cluster.jobs import Context, InputSpec, Program
from tfe_bench.errors import UsageError
from tfe_bench.protocols.sharing import Shared

PAIRS = ((0, 1), (0, 2), (1, 2))
_LIMITS = {"rounds": 1000, "megabytes": 256}
_DEFAULTS = {"rounds": 20, "megabytes": 8}


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses unknown or unfit parameters.

    Raises:
        UsageError: naming what does not fit.
    """
    if inputs:
        raise UsageError(f"links takes no inputs. Received: {len(inputs)}.")
    for name, value in parameters.items():
        if name not in _LIMITS or type(value) is not int or not 1 <= value <= _LIMITS[name]:
            raise UsageError(
                "links takes rounds, 1 to 1000, and megabytes, 1 to 256. "
                f"Received: {name}={value!r}."
            )


def run(context: Context) -> dict[str, Shared]:
    """Measures one pair after another; each worker reports the links that it has."""
    party = context.party
    settings = {**_DEFAULTS, **context.parameters}
    block = bytes(int(settings["megabytes"]) * 1_000_000)
    measured: dict[str, dict[str, Any]] = {}
    for a, b in PAIRS:
        party.exchange(b"begin")
        # The third one counts the same steps, and neither sends nor waits.
        peers = [p for p in (a, b) if party.index in (a, b) and p != party.index]

        def exchange(payload: bytes, peers: list[int] = peers) -> float:
            started = time.perf_counter()
            party.exchange_each(dict.fromkeys(peers, payload))
            return time.perf_counter() - started

        # Both send and both wait: one way's latency each. The first ones warm the link up.
        rounds = [exchange(b"ping") for _ in range(2 + int(settings["rounds"]))][2:]
        bulk = min(exchange(block) for _ in range(2))
        if peers:
            measured[f"{a}-{b}"] = {
                "round_trip_seconds": 2 * statistics.median(rounds),
                "bytes_per_second": len(block) / bulk,
            }
    context.measurements["links"] = measured
    return {}


PROGRAM = Program("links", run, check, "measures the links between every pair of workers")
