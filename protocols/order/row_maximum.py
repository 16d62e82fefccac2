"""Approximate maximum of each row of a ragged matrix.

Each row is cut into groups, all pairs of a group are compared at once, and the winners are
selected: a level of this tree takes four rounds for any group size. Everything runs in a small
ring, where differences are right as long as they fit, whatever the values are.

A caller that subtracts a maximum only to keep values in a window, such as softmax, does not need
the exact maximum. It first reduces values to coarse ones (`coarsen_for_maximum`), which makes
comparisons and selections cheap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import compare, small_ring
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Indices: TypeAlias = "npt.NDArray[np.int64]"

# Group sizes: two values or more.
_RADICES: Final = range(2, extremes.MAX_PAIRED + 1)


def coarsen_for_maximum(x: Shared, cut: int) -> Shared:
    """Return x / 2^cut in Z_2^(k-cut), the floor or up to 2 more, consistent per value. Local.

    Each share is cut separately, as the selected value must be the compared value.
    """
    coarse_values = x.map(
        lambda a: tensor_ops.logical_shift(tensor_ops.low_bits(a, x.ring_bits), cut)
    )
    return replace(coarse_values, bits=x.ring_bits - cut, fractional_bits=x.fractional_bits - cut)


def row_maximum(
    party: Party, x: Shared, lengths: Indices, bits: int, profile: str = "local"
) -> Shared:
    """Return the largest value of each row, [rows], in x's ring.

    Args:
        x: [sum of lengths], the rows one after the other.
        lengths: public, each 1 or more.
        bits: right while the differences within a row are below 2^(bits-1) ring units.
        profile: network profile.

    Rounds: 4 for each level, 5 where a comparison takes two exchanges; levels and bits: those of
    `plan_maximum_radices`.
    """
    for radix in plan_maximum_radices(
        int(lengths.sum()), int(lengths.max()), x.ring_bits, bits, profile
    ):
        columns, lengths = split_rows_into_groups(lengths, radix)
        x = _find_group_maximum(party, x.map(columns), bits)
    return x


def _find_group_maximum(party: Party, x: Shared, bits: int) -> Shared:
    """Return the largest value along the first axis of [values, groups]."""
    return small_ring.pick_one_hot(
        party, extremes.argmax_bits(party, x, bits, compare.min_comparison_exchanges(bits)), x
    )


def split_rows_into_groups(lengths: Indices, radix: int) -> tuple[Callable[[Any], Any], Indices]:
    """Return a function from rows to columns of groups, [radix, groups], and groups per row.

    Rows of one length share one index, which is small: it is part of the graph.
    """
    rows, width = len(lengths), int(lengths[0])
    if rows == 1 or np.any(lengths != width):
        index, group_counts = _group_indices(lengths, radix)
        return lambda a: tensor_ops.gather(a, index), group_counts
    index, group_counts = _group_indices(lengths[:1], radix)

    def gather_group_columns(a: Any) -> Any:
        a = tensor_ops.gather(tensor_ops.reshape(a, [rows, width]), index, axis=1)
        return tensor_ops.reshape(tensor_ops.transpose(a, [1, 0, 2]), [radix, -1])

    return gather_group_columns, np.repeat(group_counts, rows)


def _group_indices(lengths: Indices, radix: int) -> tuple[Indices, Indices]:
    """Return indices [radix, groups], and the number of groups per row.

    A group that is not full repeats its row's last value, which does not change the maximum.
    """
    group_counts = -(-lengths // radix)
    row = np.repeat(np.arange(len(lengths)), group_counts)
    first = (np.cumsum(lengths) - lengths)[row]
    group = np.arange(len(row)) - (np.cumsum(group_counts) - group_counts)[row]
    offset = group * radix + np.arange(radix)[:, None]
    return first + np.minimum(offset, lengths[row] - 1), group_counts


@functools.lru_cache(maxsize=256)
def plan_maximum_radices(
    values: int, longest: int, ring: int, bits: int, profile: str
) -> tuple[int, ...]:
    """Return the group size of each level, with the lowest total cost for a network profile.

    Args:
        values: number of values of all rows.
        longest: number of values of the longest row.
    """
    round_bits = extremes.ROUND_BITS[profile]

    @functools.cache
    def best_radix_plan(width: int, count: int) -> tuple[float, tuple[int, ...]]:
        if width == 1:
            return 0.0, ()
        candidates = []
        for radix in _RADICES:
            if radix > width and radix > _RADICES.start:
                break
            groups = -(-count // radix)
            cost = cost_of(_find_group_maximum, Private((radix, groups), 0, ring), bits)
            price, rest = best_radix_plan(-(-width // radix), groups)
            candidates.append((cost.total + round_bits * cost.rounds + price, (radix, *rest)))
        return min(candidates)

    return best_radix_plan(longest, values)[1]
