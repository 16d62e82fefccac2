"""Times an operation: a warm-up, then runs until there are enough or their time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from tfe_bench.benchmarks.records import Seconds

_LEAST: Final = 3
_LEAST_OF_SLOW: Final = 2
_SLOW: Final = 1.0  # seconds


def time_operation(
    operation: Callable[[], object], repeat: int, budget: float = math.inf
) -> Seconds:
    """Wall-clock times of an operation after one warm-up.

    Args:
        repeat: runs.
        budget: seconds after which no more begin, once there are three (two of a second or more).
    """

    def once() -> float:
        started = time.perf_counter()
        operation()
        return time.perf_counter() - started

    least = _LEAST_OF_SLOW if once() > _SLOW else _LEAST
    times: list[float] = []
    while len(times) < repeat and (len(times) < least or sum(times) < budget):
        times.append(once())
    return Seconds.from_times(times)


def percentile_95(times: Sequence[float]) -> float:
    """The time that 95 % of the runs do not exceed: the nearest rank."""
    return sorted(times)[math.ceil(0.95 * len(times)) - 1]
