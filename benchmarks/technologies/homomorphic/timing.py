"""Timing of an operation: a warm-up, then runs up to a number or a time budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from tfe_bench.benchmarks.records import Seconds

_LEAST: Final = 3
_LEAST_OF_SLOW: Final = 2
_SLOW: Final = 1.0  # seconds


def time_ciphertext_operation(
    operation: Callable[[], object], repeat: int, budget: float = math.inf
) -> Seconds:
    """Measure wall-clock times of an operation after one warm-up.

    Args:
        operation: the operation.
        repeat: most runs.
        budget: seconds after which no further run begins, once there are three runs (two if a run
            takes more than a second).
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
    """Return the time that 95 % of the runs do not exceed, by nearest rank."""
    return sorted(times)[math.ceil(0.95 * len(times)) - 1]
