"""About the largest of each row of a matrix whose rows have lengths of their own.

A row is cut into groups, all pairs of a group are compared at once, and the winners are picked: a
level of a tree takes four rounds, whatever its groups' size.  All of it happens in a small ring, in
which differences are right as long as they fit, whatever the values are.

What subtracts a largest only to stay in a window, as softmax does, need not have it exactly: values
are cut to `coarse` ones first, which makes comparisons and picks cheap.
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

# Groups are of two values or more.
_RADICES: Final = range(2, extremes.MAX_PAIRED + 1)


def coarsen_values(x: Shared, cut: int) -> Shared:
    """x / 2^cut in Z_2^(k-cut), floor or one or two more, of one value with itself.  Local.

    All parts are cut one by one, as what is picked must be what was compared.
    """
    coarse_values = x.map(
        lambda a: tensor_ops.logical_shift(tensor_ops.low_bits(a, x.ring_bits), cut)
    )
    return replace(coarse_values, bits=x.ring_bits - cut, fractional_bits=x.fractional_bits - cut)


def row_maximum(
    party: Party, x: Shared, lengths: Indices, bits: int, profile: str = "local"
) -> Shared:
    """The largest of each row, [rows], in x's ring.

    Args:
        x: [sum of lengths], the rows one after the other.
        lengths: public, 1 or more each.
        bits: right while the differences within a row are below 2^(bits-1) ring units.
        profile: of the network.

    Rounds: 4 for each level, 5 where a comparison takes two exchanges; levels and bits: those of
        `radices`.
    """
    for radix in plan_radices(int(lengths.sum()), int(lengths.max()), x.ring_bits, bits, profile):
        columns, lengths = split_groups(lengths, radix)
        x = _reduce_level(party, x.map(columns), bits)
    return x


def _reduce_level(party: Party, x: Shared, bits: int) -> Shared:
    """The largest along the first axis of [values, groups]."""
    return small_ring.pick_one_hot(
        party, extremes.argmax_bits(party, x, bits, compare.min_exchanges(bits)), x
    )


def split_groups(lengths: Indices, radix: int) -> tuple[Callable[[Any], Any], Indices]:
    """Rows as the columns of their groups, [radix, groups], and the lengths that are left.

    Rows of one length have one index, which is small: it is part of the graph.
    """
    rows, width = len(lengths), int(lengths[0])
    if rows == 1 or np.any(lengths != width):
        index, group_counts = _group_indices(lengths, radix)
        return lambda a: tensor_ops.gather(a, index), group_counts
    index, group_counts = _group_indices(lengths[:1], radix)

    def gather_columns(a: Any) -> Any:
        a = tensor_ops.gather(tensor_ops.reshape(a, [rows, width]), index, axis=1)
        return tensor_ops.reshape(tensor_ops.transpose(a, [1, 0, 2]), [radix, -1])

    return gather_columns, np.repeat(group_counts, rows)


def _group_indices(lengths: Indices, radix: int) -> tuple[Indices, Indices]:
    """([radix, groups], the lengths that are left): a group that is not full asks its row's last
    value several times, which changes nothing.
    """
    group_counts = -(-lengths // radix)
    row = np.repeat(np.arange(len(lengths)), group_counts)
    first = (np.cumsum(lengths) - lengths)[row]
    group = np.arange(len(row)) - (np.cumsum(group_counts) - group_counts)[row]
    offset = group * radix + np.arange(radix)[:, None]
    return first + np.minimum(offset, lengths[row] - 1), group_counts


@functools.lru_cache(maxsize=256)
def plan_radices(values: int, longest: int, ring: int, bits: int, profile: str) -> tuple[int, ...]:
    """The sizes of the groups of each level, in all the cheapest for a network.

    Args:
        values: of all rows.
        longest: of a row.
    """
    round_bits = extremes.ROUND_BITS[profile]

    @functools.cache
    def best_plan(width: int, count: int) -> tuple[float, tuple[int, ...]]:
        if width == 1:
            return 0.0, ()
        candidates = []
        for radix in _RADICES:
            if radix > width and radix > _RADICES.start:
                break
            groups = -(-count // radix)
            cost = cost_of(_reduce_level, Private((radix, groups), 0, ring), bits)
            price, rest = best_plan(-(-width // radix), groups)
            candidates.append((cost.total + round_bits * cost.rounds + price, (radix, *rest)))
        return min(candidates)

    return best_plan(longest, values)[1]
