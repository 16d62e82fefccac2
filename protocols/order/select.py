"""Elements of public ranks, without sorting the others: quickselect on shuffled distinct keys.

A sorted sample gives two splitters around each rank, with which all elements are compared; what
lies between them goes on, a few per cent.  As of a sort (sort.py), all that is revealed is answers
about one uniformly random order, and what is asked depends on nothing else: the sample is what
stands first, which a secret shuffle has chosen.

The ranks must be public: that of the median of a private number of rows is not.

The first k of all, in their order, take one splitter a little above them: what is below it is
sorted.

Source: Floyd and Rivest, CACM 18(3), 1975 (algorithm 489).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.order.sort_costs import expected_levels
from tfe_bench.protocols.order.sort_plan import SortPlan
from tfe_bench.protocols.ring.checks import is_from
from tfe_bench.protocols.session.counting import Counting
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Positions = np.ndarray[Any, np.dtype[np.int32]]
# Of a sample, which finishes segments of so many elements by all pairs.
_ALL_PAIRS_AT = 10
# Places of a sample behind that of the last of the first ones, and three deviations of it.
_MORE = 6


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


def first_of(party: Party, keys: Shared, count: int, profile: str = "local") -> Positions:
    """The positions of the first elements in their order, made public.  Between graph calls.

    Args:
        keys: [1, n] of sort.wide_keys, shuffled.
        count: k, from 1 to n.

    Rounds and bits: where `saves`, a comparison of each element and two sorts, of a sample and of
    k and some more; else a sort of all.
    Raises:
        UsageError: another count; or it is to be counted how often other than expected.
        RangeError: as positions_of.
    """
    n = int(keys.shape[1])
    if not is_from(count, 1, n):
        raise UsageError(f"first_of takes 1 to {n} elements. Received: {count!r}.")
    compared = sort.comparer(party, keys, profile)
    cut = _cut(n, count, profile)
    if isinstance(party, Counting):
        if not party.expected:
            raise UsageError("What a selection compares follows the shuffled order.")
        for pairs in _levels(n, profile) if cut is None else _levels_of_cut(n, *cut, profile):
            positions = np.broadcast_to(np.int32(0), [pairs])
            compared(positions, positions)
        return np.zeros(count, np.int32)
    every = np.arange(n, dtype=np.int32)
    if cut is not None:
        size, place = cut
        splitter = _ordered(compared, every[:size], profile)[place]
        packed = compared(every, np.full(n, splitter, np.int32))
        below = every[np.unpackbits(packed.view(np.uint8), bitorder="little")[:n] == 1]
        # (hardly ever are there too few)
        every = below if len(below) >= count else every
    return _ordered(compared, every, profile)[:count]


def saves(n: int, count: int, profile: str = "local") -> bool:
    """Whether `first_of` is expected to compare less than a sort of n elements."""
    return _cut(n, count, profile) is not None


@functools.lru_cache(maxsize=256)
def _cut(n: int, count: int, profile: str) -> tuple[int, int] | None:
    """The size of a sample and the place in it below which the first ones are; None: sort all."""
    best, least = None, _cost(_levels(n, profile), profile)
    size = 16
    while size <= n // 2:
        share = count / n
        place = int(size * share + 3 * math.sqrt(size * share * (1 - share))) + _MORE
        if place < size:
            cost = _cost(_levels_of_cut(n, size, place, profile), profile)
            if cost < least:
                best, least = (size, place), cost
        size *= 2
    return best


def _cost(levels: Sequence[int], profile: str) -> float:
    return sum(levels) + len(levels) * sort.round_cost(profile)


def _levels(count: int, profile: str) -> list[int]:
    """Comparisons of each level of a sort, as they are on average."""
    if sort.choose("auto", count, profile) == "all-pairs":
        return [count * (count - 1) // 2]
    return expected_levels(count, profile)


def _levels_of_cut(n: int, size: int, place: int, profile: str) -> list[int]:
    """Of a sample's sort, of all with its element at a place, and of those below."""
    below = min(n - 1, (place + 1) * (n + 1) // (size + 1) - 1)
    last = _levels(below, profile)
    if len(last) == 1:  # all pairs: on average of the square
        last = [round(last[0] * (1 + 1 / (place + 1)))]
    return [*_levels(size, profile), n, *last]


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
    return _planned(compared, sample, _ALL_PAIRS_AT, profile)


def _ordered(
    compared: Callable[[Positions, Positions], Any], segment: Positions, profile: str
) -> Positions:
    count = len(segment)
    chosen = sort.choose("auto", count, profile)
    return _planned(compared, segment, count if chosen == "all-pairs" else _ALL_PAIRS_AT, profile)


def _planned(
    compared: Callable[[Positions, Positions], Any],
    segment: Positions,
    all_pairs_at: int,
    profile: str,
) -> Positions:
    with SortPlan(1, len(segment), all_pairs_at, sort.round_cost(profile)) as plan:
        for left, right in plan.levels():
            plan.answer(compared(segment[left], segment[right]))
        ordered: Positions = segment[plan.order()]
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
