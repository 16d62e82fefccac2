"""How long a program takes that reads its data in the order of use: a closed form.

    T = max(C, max_k (D_k / bw + C_after_k))

D_k: bytes of the layers up to k, C_after_k: computing of the layers after k, C: all computing.  A
layer ends no earlier than its last byte comes, and the layers after it compute for C_after_k.
Prefetch hides everything else: memory holds what is read ahead (simulation.py has it limited).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tfe_bench.errors import check_range


def inference_seconds(sizes: Sequence[float], compute: Sequence[float], rate: float) -> float:
    """The time of one inference.

    Args:
        sizes: bytes of each layer.
        compute: seconds of each layer.
        rate: bytes per second.
    """
    return max(
        sum(compute),
        *(read / rate + after for read, after in _list_constraints(sizes, compute)),
    )


def without_prefetch(sizes: Sequence[float], compute: Sequence[float], rate: float) -> float:
    """The same where nothing is read while something is computed."""
    return sum(sizes) / rate + sum(compute)


def least_rate(sizes: Sequence[float], compute: Sequence[float], target: float) -> float | None:
    """The bandwidth at which an inference takes no longer than a target: where it breaks even.

    With the sum of `compute` as target it is the bandwidth from which storage costs nothing.

    Args:
        target: seconds.

    Returns:
        Bytes per second; None where no bandwidth suffices.

    Raises:
        UsageError: the target is negative or NaN.
    """
    check_range("target", target, 0.0)
    if target < sum(compute) * (1 - 1e-12):
        return None
    least = 0.0
    for read, after in _list_constraints(sizes, compute):
        if read == 0:
            continue
        if target <= after:
            return None
        least = max(least, read / (target - after))
    return least


def _list_constraints(
    sizes: Sequence[float], compute: Sequence[float]
) -> list[tuple[float, float]]:
    """(bytes until the end of a layer, seconds after it), layer by layer."""
    whole = sum(compute)
    ends = zip(accumulate(sizes), accumulate(compute), strict=True)
    return [(read, max(0.0, whole - done)) for read, done in ends]
