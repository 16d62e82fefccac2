"""Selection of elements at public ranks without a full sort: quickselect on shuffled distinct keys.

A sorted sample gives two splitters around each rank. All elements are compared with the splitters;
those between them, a few per cent, remain for the next level. As in a sort (sort.py), only
comparisons of one uniformly random order are revealed. The pairs to compare depend on nothing else:
the sample consists of the first elements, which a secret shuffle has chosen.

The ranks must be public: the rank of the median of a private number of rows is not.

The first k elements in order need one splitter slightly above them: the elements below it are
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
from tfe_bench.protocols.order.sort_costs import expected_quicksort_levels
from tfe_bench.protocols.order.sort_plan import SortPlan
from tfe_bench.protocols.ring.checks import is_integer_between
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Positions = np.ndarray[Any, np.dtype[np.int32]]
# In the sort of a sample, segments of at most this size are finished by all pairs.
_ALL_PAIRS_AT = 10
# Distance of the splitter from the expected place of rank k in the sample, beyond three standard
# deviations of that place.
_EXTRA_PLACES = 6


def select_ranks(
    party: Party, keys: Shared, ranks: Sequence[int], profile: str = "local"
) -> Positions:
    """Reveal the positions of the elements of some ranks. Call it between graph calls.

    Args:
        keys: [1, n] of sort.make_distinct_keys, shuffled.
        ranks: each from 0 to n - 1.

    Rounds and bits: about 2.3 comparisons of each element for one rank, in 10 to 25 levels.
    Raises:
        RangeError: the comparisons contradict each other, because keys are out of range.
    """
    n = int(keys.shape[1])
    compare_positions = sort.make_comparer(party, keys, profile)
    if isinstance(party, CostParty):
        for count in _average_levels(n, len(ranks), profile):
            positions = np.broadcast_to(np.int32(0), [count])
            compare_positions(positions, positions)
        return np.zeros(len(ranks), np.int32)

    def is_shuffled_key_less(
        left: Positions, right: Positions
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        packed = compare_positions(left, right)
        bits = np.unpackbits(packed.view(np.uint8), bitorder="little")[: len(left)]
        return bits.astype(np.bool_)

    rank_positions: dict[int, int] = {}
    pending = [(np.arange(n, dtype=np.int32), sorted(set(ranks)), 0)]
    while pending:
        segment, segment_ranks, base = pending.pop()
        if _is_small_sort_segment(len(segment), profile):
            ordered = _sort_all_pairs(is_shuffled_key_less, segment)
            rank_positions.update((w, int(ordered[w - base])) for w in segment_ranks)
            continue
        sample = _sort_sample(compare_positions, segment, profile)
        cuts = _choose_splitters(sample, [w - base for w in segment_ranks], len(segment))
        repeated_segment = np.tile(segment, len(cuts))
        below = is_shuffled_key_less(repeated_segment, np.repeat(cuts, len(segment))).reshape(
            len(cuts), -1
        )
        part_numbers = np.sum(~below, axis=0)
        edges = np.concatenate([[0], np.cumsum(np.bincount(part_numbers, minlength=len(cuts) + 1))])
        for i in range(len(cuts) + 1):
            inner_ranks = [w for w in segment_ranks if edges[i] <= w - base < edges[i + 1]]
            inner_segment = segment[part_numbers == i]
            if len(inner_segment) == len(segment):
                raise _contradictory_order_error()
            if inner_ranks:
                pending.append((inner_segment, inner_ranks, base + int(edges[i])))
    return np.array([rank_positions[rank] for rank in ranks], np.int32)


def select_first(party: Party, keys: Shared, count: int, profile: str = "local") -> Positions:
    """Reveal the positions of the first elements in their order. Call it between graph calls.

    Args:
        keys: [1, n] of sort.make_distinct_keys, shuffled.
        count: k, from 1 to n.

    Rounds and bits: if `is_selection_cheaper`, a comparison of each element and two sorts, of a
    sample and of slightly more than k elements; otherwise a sort of all.
    Raises:
        UsageError: count is out of range, or the cost is counted for exact rather than expected
            values.
        RangeError: as select_ranks.
    """
    n = int(keys.shape[1])
    if not is_integer_between(count, 1, n):
        raise UsageError(
            f"Expected a count from 1 to {n}. Received: {count!r}.",
            code="number-out-of-range",
            operation="select_first",
            received=count,
            expected=f"1 to {n}",
        )
    compare_positions = sort.make_comparer(party, keys, profile)
    cut = _plan_quickselect_cut(n, count, profile)
    if isinstance(party, CostParty):
        if not party.expected:
            raise UsageError(
                "The comparisons of a selection depend on the shuffled order. Count "
                "expected costs.",
                code="cost-not-countable",
                operation="select_first",
            )
        for pairs in (
            _average_sort_levels(n, profile)
            if cut is None
            else _average_quickselect_cut_levels(n, *cut, profile)
        ):
            positions = np.broadcast_to(np.int32(0), [pairs])
            compare_positions(positions, positions)
        return np.zeros(count, np.int32)
    candidates = np.arange(n, dtype=np.int32)
    if cut is not None:
        size, place = cut
        splitter = _quicksort_segment(compare_positions, candidates[:size], profile)[place]
        packed = compare_positions(candidates, np.full(n, splitter, np.int32))
        below = candidates[np.unpackbits(packed.view(np.uint8), bitorder="little")[:n] == 1]
        # The splitter is very rarely too low: then all elements are sorted.
        candidates = below if len(below) >= count else candidates
    return _quicksort_segment(compare_positions, candidates, profile)[:count]


def is_selection_cheaper(n: int, count: int, profile: str = "local") -> bool:
    """Return whether `select_first` is expected to compare less than a sort of n elements."""
    return _plan_quickselect_cut(n, count, profile) is not None


@functools.lru_cache(maxsize=256)
def _plan_quickselect_cut(n: int, count: int, profile: str) -> tuple[int, int] | None:
    """Return a sample's size, and the place in it above the first elements; None: sort all."""
    best_cut, lowest_cost = (
        None,
        _sum_comparison_level_costs(_average_sort_levels(n, profile), profile),
    )
    size = 16
    while size <= n // 2:
        share = count / n
        place = int(size * share + 3 * math.sqrt(size * share * (1 - share))) + _EXTRA_PLACES
        if place < size:
            cost = _sum_comparison_level_costs(
                _average_quickselect_cut_levels(n, size, place, profile), profile
            )
            if cost < lowest_cost:
                best_cut, lowest_cost = (size, place), cost
        size *= 2
    return best_cut


def _sum_comparison_level_costs(levels: Sequence[int], profile: str) -> float:
    return sum(levels) + len(levels) * sort.sort_round_cost(profile)


def _average_sort_levels(count: int, profile: str) -> list[int]:
    """Return the average number of comparisons of each level of a sort."""
    if sort.choose_algorithm("auto", count, profile) == "all-pairs":
        return [count * (count - 1) // 2]
    return expected_quicksort_levels(count, profile)


def _average_quickselect_cut_levels(n: int, size: int, place: int, profile: str) -> list[int]:
    """Return comparisons per level: the sample's sort, all with one splitter, those below it."""
    remaining = min(n - 1, (place + 1) * (n + 1) // (size + 1) - 1)
    last_levels = _average_sort_levels(remaining, profile)
    if len(last_levels) == 1:  # All pairs: the mean of the square.
        last_levels = [round(last_levels[0] * (1 + 1 / (place + 1)))]
    return [*_average_sort_levels(size, profile), n, *last_levels]


def _contradictory_order_error() -> RangeError:
    return RangeError(
        "The comparisons contradict each other: keys lie outside the promised "
        "range. Sort them with full_range=True and no key_bits.",
        code="contradictory-comparisons",
        operation="sort",
    )


def _is_small_sort_segment(count: int, profile: str) -> bool:
    """Return whether comparing all pairs costs less than another level."""
    return count * (count - 1) // 2 <= 2 * sort.sort_round_cost(profile)


def _sort_all_pairs(
    is_less: Callable[[Positions, Positions], Any], segment: Positions
) -> Positions:
    """Sort a segment by comparing all pairs."""
    count = len(segment)
    if count < 2:
        return segment
    a, b = np.triu_indices(count, 1)
    below = is_less(segment[a], segment[b])
    rank = np.bincount(np.where(below, b, a), minlength=count)
    ordered = np.full(count, -1, np.int32)
    ordered[rank] = segment
    if ordered.min() < 0:
        raise _contradictory_order_error()
    return ordered


def _splitter_sample_size(count: int) -> int:
    return min(count // 2, max(32, round(math.pow(count, 2 / 3))))


def _splitter_gap(size: int) -> int:
    """Return the distance from its sample place within which an element almost always lies."""
    return int(1.5 * math.sqrt(size)) + 1


def _sort_sample(
    compare_positions: Callable[[Positions, Positions], Any], segment: Positions, profile: str
) -> Positions:
    sample = segment[: _splitter_sample_size(len(segment))]
    return _run_quicksort_plan(compare_positions, sample, _ALL_PAIRS_AT, profile)


def _quicksort_segment(
    compare_positions: Callable[[Positions, Positions], Any], segment: Positions, profile: str
) -> Positions:
    count = len(segment)
    algorithm = sort.choose_algorithm("auto", count, profile)
    return _run_quicksort_plan(
        compare_positions, segment, count if algorithm == "all-pairs" else _ALL_PAIRS_AT, profile
    )


def _run_quicksort_plan(
    compare_positions: Callable[[Positions, Positions], Any],
    segment: Positions,
    all_pairs_at: int,
    profile: str,
) -> Positions:
    with SortPlan(1, len(segment), all_pairs_at, sort.sort_round_cost(profile)) as plan:
        for left, right in plan.next_levels():
            plan.add_answers(compare_positions(segment[left], segment[right]))
        ordered: Positions = segment[plan.final_order()]
    return ordered


def _choose_splitters(sample: Positions, ranks: Sequence[int], count: int) -> Positions:
    """Return the elements of a sorted sample that enclose some ranks among count elements."""
    size = len(sample)
    gap = _splitter_gap(size)
    places = {w * size // count + side for w in ranks for side in (-gap, gap)}
    return sample[sorted(p for p in places if 0 <= p < size)]


def _average_levels(n: int, ranks: int, profile: str) -> list[int]:
    """Return the average number of comparisons of each level, for ranks far from each other."""
    level_counts, count = [], n
    while not _is_small_sort_segment(count, profile):
        size = _splitter_sample_size(count)
        level_counts += expected_quicksort_levels(size, profile)
        level_counts.append(2 * ranks * count)
        count = min(count - 1, 2 * _splitter_gap(size) * count // size)
    return [*level_counts, ranks * count * (count - 1) // 2]
