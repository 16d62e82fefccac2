"""Sorting of private keys, with payload columns.

`quick` and `all-pairs` secretly shuffle (key, index) and then reveal comparisons: the index makes
keys distinct, so the revealed order is a uniformly random permutation, independent of the data
(Hamada et al., ICISC 2012). `network` reveals nothing.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.order.shuffle import shuffle
from tfe_bench.protocols.order.sort_costs import expected_quicksort_levels
from tfe_bench.protocols.order.sort_plan import SortPlan, odd_even_merge
from tfe_bench.protocols.ring import arithmetic, compare, convert, rotation, shapes
from tfe_bench.protocols.ring.checks import (
    check_choice,
    check_private_64bit_tensor,
    is_integer_between,
)
from tfe_bench.protocols.session import openings, ops, sizes, tensor_ops, wide
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.io import reveal_bits
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

ALGORITHMS = ("auto", "quick", "all-pairs", "network")

# Cost of one more level, counted in comparisons: measured on one host; for wan 4 rounds of 20 ms
# against 35 to 50 bytes sent by the dealer per comparison at 44 MB/s. A slightly larger value
# finishes sooner there, as an even number of levels is not available.
ROUND_COST = {"local": 20_000.0, "lan": 20_000.0, "wan": 100_000.0}
_ALL_PAIRS_AT = 10
# From this number of comparisons on, a third exchange saves 17 bytes each, in total the time of a
# round of 20 ms at 44 MB/s.
_THREE_EXCHANGES_AT = 50_000
# Comparisons per graph call, and per pipelined slice of a call: they bound memory and keep both
# links busy.
_CALL_PAIRS = 1 << 20
_SLICE_PAIRS = 1 << 17
_SLICES = 2  # slices for each dealer
# If bandwidth is the bottleneck, the parties alternate as dealer of slices. From this number of
# comparisons on, that saves more than a slice costs.
_ROTATED_AT = 5_000
# Most bits of a key that fits a word together with its sign.
MAX_KEY_BITS = 62


@dataclass(frozen=True)
class SortResult:
    """The result of `sort`; all fields are private.

    Attributes:
        keys: sorted along the last axis.
        payload: columns in the order of their keys.
        indices: original positions (the argsort), ring elements without fractional bits.
    """

    keys: Shared
    payload: tuple[Shared, ...]
    indices: Shared


def sort_round_cost(profile: str) -> float:
    """Return the cost of one level under a network profile, in comparisons.

    Raises:
        UsageError: the profile is unknown.
    """
    check_choice("network profile", profile, ROUND_COST)
    return ROUND_COST[profile]


def choose_algorithm(algorithm: str, n: int, profile: str, rows: int = 1) -> str:
    """Resolve "auto": quick, or all-pairs where it saves rounds at little cost.

    Raises:
        UsageError: the algorithm is unknown.
    """
    check_choice("sort algorithm", algorithm, ALGORITHMS)
    if algorithm != "auto":
        return algorithm
    return "all-pairs" if rows * n * (n - 1) // 2 <= 2 * sort_round_cost(profile) else "quick"


def max_sort_array_words(
    rows: int, n: int, columns: int, algorithm: str = "auto", profile: str = "local"
) -> int:
    """Return an upper bound on the words of the largest array that `sort` allocates.

    Args:
        columns: number of key and payload columns.

    Raises:
        UsageError: as `choose_algorithm`.
    """

    def dealt_comparison_words(count: int, bits: int) -> int:
        return compare.msb_cost(count, bits).dealer // 64

    rows, n = max(1, rows), max(1, n)  # The bound also holds for empty input.
    elements = rows * n
    # Wide keys, the index and the columns are shuffled together; each key is extended by a
    # comparison.
    shuffled_words = max(
        elements * (columns + 4), dealt_comparison_words(elements, compare.EXACT_BITS)
    )
    bits = 65 + sort_index_bits(n)
    chosen_algorithm = choose_algorithm(algorithm, n, profile, rows)
    if chosen_algorithm == "network":
        # All comparators of a row together, with two positions in a word; and those of one layer
        # for all rows.
        depth = n.bit_length()
        return max(
            shuffled_words,
            n * depth * (depth + 1) // 4,
            dealt_comparison_words(elements // 2, bits),
        )
    pairs = rows * n * (n - 1) // 2
    if chosen_algorithm == "quick":
        # Small segments compare all pairs, others compare with one pivot; more comparisons only
        # where they cost less than additional levels.
        pairs = min(pairs, 5 * elements + 6 * int(sort_round_cost(profile)))
    call = min(pairs, _CALL_PAIRS)
    return max(
        shuffled_words,
        pairs,
        dealt_comparison_words(call if call < 2 * _SLICE_PAIRS else call // _SLICES + 512, bits),
    )


def sort_index_bits(n: int) -> int:
    """Return the number of bits that make n keys distinct when appended to them."""
    return max(1, (n - 1).bit_length())


def make_distinct_keys(
    party: Party, keys: Shared, descending: bool, full_range: bool, key_bits: int | None = None
) -> Shared:
    """Return (key, index) as one element per key, key * 2^p + index, in a ring with a sign bit.

    Args:
        keys: [rows, n]; read as signed 64-bit values if full_range. Otherwise |key| < 2^62 is
            assumed, and no comparison extends the ring.
        key_bits: k: 0 <= key < 2^k is assumed; the ring is Z_2^(k+p+1), of one word if it fits.
    """
    p = sort_index_bits(int(keys.shape[1]))
    # Descending: ~key reverses the order without overflow; ties keep their order.
    x = keys
    if descending:
        largest_key = -1 if key_bits is None else (1 << key_bits) - 1
        x = arithmetic.add_public(arithmetic.neg(x), np.int64(largest_key))
    bits = 64 + p if key_bits is None else key_bits + p + 1
    if bits <= 64:
        wide_key = replace(x.map(lambda a: tensor_ops.left_shift(a, p)), bits=bits % 64)
    elif full_range and key_bits is None:
        # Map the signed order to the unsigned order.
        x = arithmetic.add_public(x, np.int64(-(2**63)))
        wide_key = convert.extend_to_wide(party, x, p)
    else:
        wide_key = replace(x.map(lambda a: wide.shift_left(a, p)), limbs=2, bits=bits)
    if wide_key.m is None or not tensor_ops.is_concrete(wide_key.m):
        return wide_key
    index = tf.range(tf.shape(wide_key.m)[1], dtype=tf.int64)
    if wide_key.limbs == 1:
        return replace(wide_key, m=wide_key.m + index)
    index = tf.broadcast_to(index, tf.shape(wide_key.m)[:2])
    indexed_key = wide.add(wide_key.m, tf.stack([index, tf.zeros_like(index)], axis=-1))
    return replace(wide_key, m=indexed_key)


def _flatten_keys(x: Shared) -> Shared:
    shape = [-1] if x.limbs == 1 else [-1, 2]
    return x.map(lambda a: tensor_ops.reshape(a, shape))


def compare_pairs(
    party: Party,
    parts: Sequence[tf.Tensor],
    left: Any,
    right: Any,
    recipe: compare.ComparisonPlan,
    dealers: Sequence[int],
    slices: int,
) -> tf.Tensor:
    """Reveal [keys[left] < keys[right]] for pairs of positions, packed.

    Slices are compared independently, so that one computes while another is transferred, and
    alternate between the dealers.

    Args:
        parts: this party's `compare.masked_value_or_mask_words` of the keys, one for each of the
        dealers.
    """
    n = sizes.tensor_size(left)
    # Slices begin at whole words, so that their packed results can be concatenated.
    step = ((n + slices - 1) // slices + 511) // 512 * 512
    bits = []
    for i in range(slices):
        begin, end = (tensor_ops.minimum(k * step, n) for k in (i, i + 1))
        part, a, b = parts[i % len(parts)], left[begin:end], right[begin:end]
        planes = part
        if tensor_ops.is_concrete(part):
            planes = ops.module().tfe_bench_difference_planes(
                x=part, left=a, right=b, bits=recipe.bits
            )
        dealer = dealers[i % len(dealers)]
        less = compare.msb_of_planes(party, planes, end - begin, recipe, dealer)
        bits.append(reveal_bits(party, less, openings.SHUFFLED_COMPARISONS))
    return bits[0] if slices == 1 else tensor_ops.concat(bits, axis=0)


def make_comparer(party: Party, keys: Shared, profile: str = "local") -> Callable[[Any, Any], Any]:
    """Return a function that reveals [keys[left] < keys[right]] for positions, packed.

    Args:
        keys: [rows, n] of `make_distinct_keys`, shuffled; positions count through all rows.
    """
    keys = _flatten_keys(keys)
    first = keys.dealer
    dealer_count = 3 if profile == "wan" else 1
    dealers = tuple((first + offset) % 3 for offset in range(dealer_count))

    def build_comparison_graph(
        recipe: compare.ComparisonPlan, dealers: Sequence[int], slices: int
    ) -> Callable[..., Any]:
        return lambda a, b, *k: compare_pairs(party, k, a, b, recipe, dealers, slices)

    parts = [
        compare.masked_value_or_mask_words(party, rotation.relabel_dealer(party, keys, d))
        for d in dealers
    ]

    def compare_pairs_in_call(a: Any, b: Any) -> Any:
        used_dealers = dealer_count if len(a) >= _ROTATED_AT else 1
        slices = used_dealers * (_SLICES if len(a) >= 2 * _SLICE_PAIRS else 1)
        recipe = compare.plan_comparison(keys.ring_bits, 3 if len(a) > _THREE_EXCHANGES_AT else 2)
        graph = party.cached_function(
            ("sort.compare_pairs", recipe, slices, dealers[:used_dealers]),
            functools.partial(build_comparison_graph, recipe, dealers[:used_dealers], slices),
            True,
        )
        return graph(a, b, *parts[:used_dealers])

    def compare_all_sort_pairs(left: Any, right: Any) -> Any:
        starts = range(0, len(left), _CALL_PAIRS)
        calls = [slice(start, start + _CALL_PAIRS) for start in starts]
        answers = [compare_pairs_in_call(left[cut], right[cut]) for cut in calls]
        if isinstance(party, CostParty):
            return None
        words = [a.numpy() for a in answers]
        return np.concatenate(words) if len(words) > 1 else words[0]

    return compare_all_sort_pairs


def reveal_order(
    party: Party,
    keys: Shared,
    algorithm: str,
    profile: str = "local",
    progress: Callable[[float], None] | None = None,
) -> Any:
    """Reveal the order of shuffled distinct keys: the position of rank i in row r is at [r, i].

    Args:
        keys: [rows, n] of `make_distinct_keys`, shuffled.
        algorithm: "quick" or "all-pairs".
    """
    rows, n = (int(d) for d in keys.shape)
    all_pairs_at = n if algorithm == "all-pairs" else _ALL_PAIRS_AT
    compare_positions = make_comparer(party, keys, profile)
    if isinstance(party, CostParty):
        return _count_comparisons(party, compare_positions, rows, n, all_pairs_at, profile)
    expected_pairs = max(1.0, rows * n * math.log2(max(2, n)) * 1.25)
    compared_pairs = 0
    with SortPlan(rows, n, all_pairs_at, sort_round_cost(profile)) as plan:
        for left, right in plan.next_levels():
            plan.add_answers(compare_positions(left, right))
            compared_pairs += len(left)
            if progress:
                progress(min(0.99, compared_pairs / expected_pairs))
        return plan.final_order().reshape(rows, n)


def _count_comparisons(
    party: CostParty,
    compare_positions: Callable[[Any, Any], Any],
    rows: int,
    n: int,
    all_pairs_at: int,
    profile: str,
) -> Any:
    """Count the comparisons of all pairs, or those expected of a quicksort; return an order."""
    levels = [rows * n * (n - 1) // 2]
    if all_pairs_at < n:
        if not party.expected:
            raise UsageError(
                "The comparisons of a quicksort depend on the shuffled order and are not "
                'known in advance. Count algorithm="all-pairs" or "network", or expected '
                "costs.",
                code="cost-not-countable",
                operation="sort",
            )
        levels = expected_quicksort_levels(rows * n, profile)
    # All levels cost the same.
    cost_before, positions = party.take_snapshot(), np.broadcast_to(np.int32(0), levels[:1])
    compare_positions(positions, positions)
    party.repeat(cost_before, len(levels) - 1)
    return np.broadcast_to(np.int32(0), [rows, n])


def sort(
    party: Party,
    keys: Shared,
    payload: Sequence[Shared] = (),
    *,
    descending: bool = False,
    algorithm: str = "auto",
    full_range: bool = True,
    key_bits: int | None = None,
    profile: str = "local",
    progress: Callable[[float], None] | None = None,
) -> SortResult:
    """Sort each row along the last axis; equal keys keep their order.

    Call it between graph calls (not inside party.function): its control flow follows revealed
    comparisons of shuffled keys.

    Args:
        keys: [n] or [rows, n], 64-bit.
        payload: columns of the keys' shape that are reordered with them.
        algorithm: "quick", "all-pairs", "network" (reveals nothing, many more rounds) or "auto".
        full_range: keys may be any 64-bit value. False saves a comparison per key where the program
            itself guarantees |key| < 2^62. Other keys would sort wrongly and reveal that they are
            out of range, so never pass False for keys that a client chose.
        key_bits: k from 1 to 62: the program itself guarantees 0 <= key < 2^k. It saves the
            extension and compares fewer bits; the warning of full_range=False holds here too.
        profile: network profile that "auto" plans for.
        progress: called with a fraction in [0, 1).

    Rounds and bits: those of `quick` and `all-pairs` depend on the shuffled order alone, and
    therefore not on the data; those of "all-pairs" and "network" can be counted
    (session/counting.py).
    Raises:
        UsageError: the payload has another shape, or the algorithm is unknown.
    """
    shape = keys.shape.as_list()
    if len(shape) not in (1, 2):
        raise UsageError(
            f"sort expects keys [n] or [rows, n]. Received: shape {shape}.",
            code="rank-mismatch",
            operation="sort",
            received=shape,
            expected="[n] or [rows, n]",
        )
    check_private_64bit_tensor("sort", keys)
    for column in payload:
        if column.shape.as_list() != shape or column.limbs != 1:
            raise UsageError(
                f"sort expects payload of the keys' shape {shape}. Received: {column!r}.",
                code="shape-mismatch",
                operation="sort",
                received=repr(column),
                expected=shape,
            )
    if key_bits is not None and not is_integer_between(key_bits, 1, MAX_KEY_BITS):
        raise UsageError(
            f"sort expects key_bits from 1 to {MAX_KEY_BITS}, or None. Received: {key_bits!r}.",
            code="number-out-of-range",
            operation="sort",
            received=key_bits,
            expected=f"1 to {MAX_KEY_BITS}",
        )
    rows, n = (1, shape[0]) if len(shape) == 1 else shape
    chosen_algorithm = choose_algorithm(algorithm, n, profile, rows)

    columns = (keys, *payload)
    dealer = keys.dealer
    if rows * n == 0 or n == 1:
        return SortResult(keys, tuple(payload), _sort_position_column(keys, rows, n, shape))

    # Graphs are cached for later sorts: they depend on shapes, which their cache keys contain, and
    # hold no share.
    def prepare_sort_columns(k: Shared, *payload_columns: Shared) -> list[Shared]:
        parts = [c.map(lambda a: tensor_ops.reshape(a, [rows, n])) for c in (k, *payload_columns)]
        wide_key = make_distinct_keys(party, parts[0], descending, full_range, key_bits)
        all_columns = [wide_key, *parts, _sort_position_column(k, rows, n, [rows, n])]
        return all_columns if chosen_algorithm == "network" else shuffle(party, all_columns)

    prepare_graph = party.cached_function(
        (
            "sort.prepare",
            chosen_algorithm == "network",
            descending,
            full_range,
            key_bits,
            rows,
            n,
            dealer,
        ),
        lambda: prepare_sort_columns,
    )
    wide_key, *shuffled = prepare_graph(*columns)
    if chosen_algorithm == "network":
        shuffled = _run_sorting_network(party, wide_key, shuffled, rows, n, progress)
    else:
        order = reveal_order(party, wide_key, chosen_algorithm, profile, progress)

        def finish_sorted_columns(positions: Any, *parts: Shared) -> list[Shared]:
            return [_reorder_column(c, positions, shape) for c in parts]

        finish_graph = party.cached_function(
            ("sort.finish", tuple(shape), dealer), lambda: finish_sorted_columns
        )
        if not isinstance(party, CostParty):  # The cost party's order takes no memory.
            order = order - (np.arange(rows, dtype=np.int32) * n)[:, None]
        shuffled = finish_graph(order, *shuffled)
    if progress:
        progress(1.0)
    result = [c.map(lambda a: tensor_ops.reshape(a, shape)) for c in shuffled]
    return SortResult(result[0], tuple(result[1:-1]), result[-1])


def _sort_position_column(like: Shared, rows: int, n: int, shape: Sequence[int]) -> Shared:
    """Return the public column 0..n-1 of each row, as a share with masks of zero."""
    if rows * n == 0 or n == 1:
        return arithmetic.share_public(like, np.zeros(shape, np.int64))
    index = shapes.broadcast_to(arithmetic.share_public_range(like, n), [rows, n])
    return index.map(lambda a: tensor_ops.reshape(a, shape))


def _reorder_column(x: Shared, positions: Any, shape: Any) -> Shared:
    def permute_column_part(a: tensor_ops.Tensor) -> tensor_ops.Tensor:
        if tensor_ops.is_concrete(a):
            a = ops.module().tfe_bench_permute(
                x=tensor_ops.expand_dims(a, -1), permutation=positions
            )
        return tensor_ops.reshape(a, shape)

    return x.map(permute_column_part)


def _run_sorting_network(
    party: Party,
    keys: Shared,
    columns: Sequence[Shared],
    rows: int,
    n: int,
    progress: Callable[[float], None] | None,
) -> list[Shared]:
    def exchange_network_pairs(a: Any, b: Any, *parts: Shared) -> list[Shared]:
        return _compare_exchange(party, a, b, parts)

    graph = party.cached_function(
        ("sort.exchange", keys.dealer), lambda: exchange_network_pairs, True
    )
    state = [_flatten_keys(keys), *(_flatten_keys(c) for c in columns)]
    layers = odd_even_merge(n)
    offsets = (np.arange(rows, dtype=np.int32) * n)[:, None]
    for i, (low, high) in enumerate(layers):
        a, b = (offsets + low).reshape(-1), (offsets + high).reshape(-1)
        state = graph(a.astype(np.int32), b.astype(np.int32), *state)
        if progress:
            progress((i + 1) / (len(layers) + 1))
    return list(state[1:])


def _compare_exchange(party: Party, a: Any, b: Any, parts: Sequence[Shared]) -> list[Shared]:
    """Order positions a and b of every pair by the first column (wide keys)."""
    keys = parts[0]
    low, high = (keys.map(lambda t, i=i: tensor_ops.gather(t, i)) for i in (a, b))
    is_less = compare.less_than(party, low, high, keys.ring_bits)
    keep = convert.mask_bits(party, is_less)
    result = []
    for x in parts:
        add, sub = (operator.add, operator.sub) if x.limbs == 1 else (wide.add, wide.sub)
        p, q = (x.map(lambda t, i=i: tensor_ops.gather(t, i)) for i in (a, b))
        selected = convert.inject(party, keep, arithmetic.sub(p, q))

        def place_sorted_pairs(
            whole: Any, pa: Any, qa: Any, delta: Any, add: Any = add, sub: Any = sub
        ) -> Any:
            if whole is None:
                return None
            if not tensor_ops.is_concrete(whole):
                return tensor_ops.symbolic_result(whole.shape, whole, pa, qa, delta)
            first = add(qa, delta)
            second = sub(pa, delta)
            whole = tf.tensor_scatter_nd_update(whole, a[:, None], first)
            return tf.tensor_scatter_nd_update(whole, b[:, None], second)

        m, l1, l2 = (
            place_sorted_pairs(getattr(x, k), getattr(p, k), getattr(q, k), getattr(selected, k))
            for k in ("m", "l1", "l2")
        )
        result.append(replace(x, m=m, l1=l1, l2=l2))
    return result
