"""The time of a program that reads its data in the order of use: a closed form.

    T = max(C, max_k (D_k / bw + C_after_k))

D_k: bytes of the layers up to k.  C_after_k: computing time of the layers after k.  C: the whole
computing time.  A layer ends no earlier than its last byte arrives, and the later layers compute
for C_after_k.  Prefetch hides everything else, if memory holds all data that are read ahead
(simulation.py limits the memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tfe_bench.errors import check_range


def inference_seconds(sizes: Sequence[float], compute: Sequence[float], rate: float) -> float:
    """Compute the time of one inference, in seconds.

    Args:
        sizes: bytes of each layer.
        compute: seconds of each layer.
        rate: bytes per second.
    """
    return max(
        sum(compute),
        *(read / rate + after for read, after in _list_read_constraints(sizes, compute)),
    )


def without_prefetch(sizes: Sequence[float], compute: Sequence[float], rate: float) -> float:
    """Compute the time of one inference without overlap of reading and computing, in seconds."""
    return sum(sizes) / rate + sum(compute)


def least_storage_rate(
    sizes: Sequence[float], compute: Sequence[float], target: float
) -> float | None:
    """Compute the least bandwidth at which an inference takes no longer than a target.

    With the sum of `compute` as target, reading takes no extra time from this bandwidth on.

    Args:
        sizes: bytes of each layer.
        compute: seconds of each layer.
        target: seconds.

    Returns:
        Bytes per second; None if no bandwidth suffices.

    Raises:
        UsageError: the target is negative or NaN.
    """
    check_range("target", target, 0.0)
    if target < sum(compute) * (1 - 1e-12):
        return None
    least = 0.0
    for read, after in _list_read_constraints(sizes, compute):
        if read == 0:
            continue
        if target <= after:
            return None
        least = max(least, read / (target - after))
    return least


def _list_read_constraints(
    sizes: Sequence[float], compute: Sequence[float]
) -> list[tuple[float, float]]:
    """List (bytes until the end of a layer, seconds after it) for each layer."""
    whole = sum(compute)
    ends = zip(accumulate(sizes), accumulate(compute), strict=True)
    return [(read, max(0.0, whole - done)) for read, done in ends]
