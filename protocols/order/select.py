"""Elements of public ranks, without sorting the others: quickselect on shuffled distinct keys.

A sorted sample gives two splitters around each rank, with which all elements are compared; what
lies between them goes on, a few per cent.  As of a sort (sort.py), all that is revealed is answers
about one uniformly random order, and what is asked depends on nothing else: the sample is what
stands first, which a secret shuffle has chosen.

The ranks must be public: that of the median of a private number of rows is not.

Source: Floyd and Rivest, CACM 18(3), 1975 (algorithm 489).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.order.sort_costs import expected_levels
from tfe_bench.protocols.order.sort_plan import SortPlan
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Positions = np.ndarray[Any, np.dtype[np.int32]]
# Of a sample, which finishes segments of so many elements by all pairs.
_ALL_PAIRS_AT = 10


def positions_of(
    party: Party, keys: Shared, ranks: Sequence[int], profile: str = "local"
) -> Positions:
    """The positions of the elements of some ranks, made public.  Between graph calls.

    Args:
        keys: [1, n] of sort.wide_keys, shuffled.
        ranks: each from 0 to n - 1.

    Rounds and bits: about 2.3 comparisons of each element for one rank, in 10 to 25 levels.
    Raises:
        RangeError: the answers contradict each other, as those of keys out of range do.
    """
    n = int(keys.shape[1])
    compared = sort.comparer(party, keys, profile)
    if isinstance(party, Counting):
        for count in _expected(n, len(ranks), profile):
            positions = np.broadcast_to(np.int32(0), [count])
            compared(positions, positions)
        return np.zeros(len(ranks), np.int32)

    def less(left: Positions, right: Positions) -> np.ndarray[Any, np.dtype[np.bool_]]:
        packed = compared(left, right)
        bits = np.unpackbits(packed.view(np.uint8), bitorder="little")[: len(left)]
        return bits.astype(np.bool_)

    found: dict[int, int] = {}
    todo = [(np.arange(n, dtype=np.int32), sorted(set(ranks)), 0)]
    while todo:
        segment, wanted, base = todo.pop()
        if _few(len(segment), profile):
            ordered = _sorted(less, segment)
            found.update((w, int(ordered[w - base])) for w in wanted)
            continue
        sample = _sorted_sample(compared, segment, profile)
        cuts = _splitters(sample, [w - base for w in wanted], len(segment))
        every = np.tile(segment, len(cuts))
        below = less(every, np.repeat(cuts, len(segment))).reshape(len(cuts), -1)
        part = np.sum(~below, axis=0)
        edges = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=len(cuts) + 1))])
        for i in range(len(cuts) + 1):
            inside = [w for w in wanted if edges[i] <= w - base < edges[i + 1]]
            rest = segment[part == i]
            if len(rest) == len(segment):
                raise _contradiction()
            if inside:
                todo.append((rest, inside, base + int(edges[i])))
    return np.array([found[rank] for rank in ranks], np.int32)


def _contradiction() -> RangeError:
    return RangeError(
        "The comparisons contradict each other: keys lie outside of the range that was promised "
        "for them. Sort them with full_range=True and no key_bits."
    )


def _few(count: int, profile: str) -> bool:
    """Whether comparing all pairs is worth no other level."""
    return count * (count - 1) // 2 <= 2 * sort.round_cost(profile)


def _sorted(less: Callable[[Positions, Positions], Any], segment: Positions) -> Positions:
    """By all pairs."""
    count = len(segment)
    if count < 2:
        return segment
    a, b = np.triu_indices(count, 1)
    below = less(segment[a], segment[b])
    rank = np.bincount(np.where(below, b, a), minlength=count)
    ordered = np.full(count, -1, np.int32)
    ordered[rank] = segment
    if ordered.min() < 0:
        raise _contradiction()
    return ordered


def _sample_size(count: int) -> int:
    return min(count // 2, max(32, round(math.pow(count, 2 / 3))))


def _gap(size: int) -> int:
    """How far from its place in the sample an element is rarely found."""
    return int(1.5 * math.sqrt(size)) + 1


def _sorted_sample(
    compared: Callable[[Positions, Positions], Any], segment: Positions, profile: str
) -> Positions:
    sample = segment[: _sample_size(len(segment))]
    with SortPlan(1, len(sample), _ALL_PAIRS_AT, sort.round_cost(profile)) as plan:
        for left, right in plan.levels():
            plan.answer(compared(sample[left], sample[right]))
        ordered: Positions = sample[plan.order()]
    return ordered


def _splitters(sample: Positions, wanted: Sequence[int], count: int) -> Positions:
    """The elements of a sorted sample that enclose what has some ranks among count."""
    size = len(sample)
    gap = _gap(size)
    places = {w * size // count + side for w in wanted for side in (-gap, gap)}
    return sample[sorted(p for p in places if 0 <= p < size)]


def _expected(n: int, ranks: int, profile: str) -> list[int]:
    """Comparisons of each level, as they are on average for ranks far from each other."""
    found, count = [], n
    while not _few(count, profile):
        size = _sample_size(count)
        found += expected_levels(size, profile)
        found.append(2 * ranks * count)
        count = min(count - 1, 2 * _gap(size) * count // size)
    return [*found, ranks * count * (count - 1) // 2]
