"""Every sort is stable and exact for any 64-bit keys, rejects unsuitable arguments, never hangs."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.refusals import raises
from tfe_bench.cluster.simulate import Simulation, share_for_party, simulate, total_rounds
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.order.sort import choose_algorithm, sort, sort_round_cost
from tfe_bench.protocols.order.sort_costs import expected_quicksort_levels
from tfe_bench.protocols.order.sort_plan import SortPlan
from tfe_bench.protocols.ring import arithmetic, convert
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
PATIENCE = 20.0  # seconds; the tested sort takes less than one


def kinds_of_rows(n: int, rng: np.random.Generator, bound: int = 2**63) -> Array:
    """Return rows of n keys in [-bound, bound): any, few distinct, equal, extreme, in order.

    Neighboring keys include pairs whose differences need a 65th bit.
    """
    ends = [-bound, bound - 1, 0, -1, 1, 1 - bound, bound - 2]
    anything = rng.integers(-bound, bound - 1, n, np.int64, endpoint=True)
    rows = [
        anything,
        rng.integers(-1, 2, n),
        np.full(n, -bound),
        rng.choice(np.array(ends, np.int64), n),
        np.sort(anything),
        np.sort(anything)[::-1],
    ]
    return np.stack(rows).astype(np.int64)


def stable_order(keys: Array, descending: bool) -> Array:
    return np.argsort(~keys if descending else keys, axis=-1, kind="stable")


def assert_sorted(sim: Simulation, keys: Array, descending: bool, pick: Any = lambda o: o) -> None:
    """Check that keys, their complements (payload) and indices follow a stable argsort."""
    order = stable_order(keys, descending)
    want = np.take_along_axis(keys, order, axis=-1)
    assert np.array_equal(sim.value(lambda out: pick(out).indices), order)
    assert np.array_equal(sim.value(lambda out: pick(out).keys), want)
    if pick(sim.outputs[0]).payload:
        assert np.array_equal(sim.value(lambda out: pick(out).payload[-1]), ~want)


CASES = [
    *((algorithm, n) for algorithm in ("quick", "all-pairs") for n in (2, 3, 5, 64, 100)),
    *(("network", n) for n in (2, 3, 5, 64)),
    *(("auto", n) for n in (5, 1000)),
    ("quick", 1000),
]


@pytest.mark.parametrize(("algorithm", "n"), CASES)
def test_rows_of_any_keys_are_sorted_stably_each_by_itself(
    algorithm: str, n: int, rng: np.random.Generator
) -> None:
    keys = kinds_of_rows(n, rng)
    directions = (False, True) if n in (3, 64) else (bool(rng.integers(2)),)

    def program(p: Party, x: Shared, y: Shared) -> Any:
        return [sort(p, x, [y], descending=d, algorithm=algorithm) for d in directions]

    sim = simulate(program, keys, ~keys, dealer=n % 3, fractional_bits=16)
    for i, descending in enumerate(directions):
        assert_sorted(sim, keys, descending, itemgetter(i))
        for out in sim.outputs:
            scales = [x.fractional_bits for x in (out[i].keys, out[i].payload[0], out[i].indices)]
            assert scales == [16, 16, 0]


@pytest.mark.parametrize("algorithm", ["quick", "all-pairs", "network", "auto"])
def test_empty_and_single_rows_are_sorted_already(algorithm: str) -> None:
    inputs = [np.full(shape, 7) for shape in ((0,), (1,), (0, 5), (3, 0), (3, 1))]

    def program(p: Party, *x: Shared) -> Any:
        results = [sort(p, v, [v.map(lambda a: -a)], algorithm=algorithm) for v in x]
        return [y for s in results for y in (s.keys, *s.payload, s.indices)]

    sim = simulate(program, *inputs)
    expected = [y for keys in inputs for y in (keys, -keys, np.zeros_like(keys))]
    for i, want in enumerate(expected):
        assert np.array_equal(sim.value(itemgetter(i)), want)
    assert sim.sent == (0, 0, 0)


def test_a_vector_of_keys_gives_vectors() -> None:
    keys = np.array([3, -1, 2, -1])
    sim = simulate(lambda p, x, y: sort(p, x, [y, y]), keys, ~keys)
    assert_sorted(sim, keys, False)
    assert sim.value(lambda out: out.keys).shape == (4,)


@pytest.mark.parametrize("algorithm", ["quick", "all-pairs", "network"])
def test_keys_below_2_61_are_sorted_without_the_extension_to_full_range(
    algorithm: str, rng: np.random.Generator
) -> None:
    keys = kinds_of_rows(32, rng, 2**61)

    def program(p: Party, x: Shared) -> Any:
        return [
            sort(p, x, descending=d, algorithm=algorithm, full_range=False) for d in (False, True)
        ]

    sim = simulate(program, keys, dealer=1)
    for i, descending in enumerate((False, True)):
        assert_sorted(sim, keys, descending, itemgetter(i))


@pytest.mark.parametrize("algorithm", ["quick", "all-pairs", "network"])
@pytest.mark.parametrize("bits", [1, 40, 58, 59, 62])
def test_keys_of_declared_bits_are_sorted_in_one_word_or_two(
    bits: int, algorithm: str, rng: np.random.Generator
) -> None:
    # 32 keys have 5 more bits: 58 bits of a key are the most for one word with its sign
    edges = [0, 1, 2**bits - 1, 2 ** (bits - 1)]
    keys = np.stack([rng.integers(0, 2**bits, 32), rng.choice(edges, 32), np.full(32, edges[2])])

    def program(p: Party, x: Shared) -> Any:
        return [
            sort(
                p,
                x,
                [arithmetic.add_constant(arithmetic.neg(x), np.int64(-1))],
                descending=d,
                algorithm=algorithm,
                key_bits=bits,
            )
            for d in (False, True)
        ]

    sim = simulate(program, keys, dealer=bits % 3)
    for i, descending in enumerate((False, True)):
        assert_sorted(sim, keys, descending, itemgetter(i))


@pytest.mark.parametrize("bits", [0, 63, True, 1.0])
def test_key_bits_that_are_none_are_refused(bits: Any) -> None:
    with raises(UsageError, "number-out-of-range", operation="sort", received=bits):
        simulate(lambda p, x: sort(p, x, key_bits=bits), np.arange(3))


@pytest.mark.parametrize(("n", "profile"), [(6500, "local"), (1 << 15, "local"), (6500, "wan")])
def test_expected_comparisons_are_those_of_a_random_order(
    n: int, profile: str, rng: np.random.Generator
) -> None:
    """Use the mean of 8 orders: one deviates by 3.6 % (one standard deviation), the mean by 5 %."""
    orders, comparisons = 8, 0
    for rank in (rng.permutation(n) for _ in range(orders)):
        with SortPlan(1, n, 10, sort_round_cost(profile)) as plan:
            for left, right in plan.next_levels():
                comparisons += len(left)
                packed = np.packbits(rank[left] < rank[right], bitorder="little")
                plan.add_answers(np.resize(packed, -(-len(packed) // 8) * 8).view(np.int64))
    assert sum(expected_quicksort_levels(n, profile)) == pytest.approx(
        comparisons / orders, rel=0.1
    )


def test_keys_outside_the_range_promised_end_in_a_range_error_or_a_result(
    rng: np.random.Generator,
) -> None:
    keys = kinds_of_rows(300, rng)

    def program(p: Party, x: Shared) -> Any:
        return sort(p, x, algorithm="quick", full_range=False)

    try:
        result = simulate(program, keys, timeout=PATIENCE)
    except RangeError:
        return
    assert np.array_equal(np.sort(result.value(lambda out: out.keys)), np.sort(keys))


def test_an_unknown_algorithm_is_refused_with_the_nearest_known_one() -> None:
    with raises(UsageError, "unknown-name") as caught:
        simulate(lambda p, x: sort(p, x, algorithm="quik"), np.arange(3))
    assert 'Did you mean "quick"' in str(caught.value)


def test_auto_takes_all_pairs_where_that_is_little_and_quick_elsewhere() -> None:
    assert choose_algorithm("auto", 100, "local") == "all-pairs"
    assert choose_algorithm("auto", 1000, "local") == "quick"
    assert choose_algorithm("auto", 100, "local", rows=100) == "quick"
    assert choose_algorithm("auto", 400, "wan") == "all-pairs"
    assert {choose_algorithm(name, 1000, "wan") for name in ("quick", "network")} == {
        "quick",
        "network",
    }


@pytest.mark.parametrize("shape", [(3,), (5,), (4, 1), (1, 4), ()], ids=str)
def test_payload_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with raises(UsageError, "shape-mismatch", operation="sort"):
        simulate(lambda p, x, y: sort(p, x, [y]), np.arange(4), np.zeros(shape, np.int64))


def test_wide_payload_is_refused() -> None:
    def program(p: Party, x: Shared) -> Any:
        return sort(p, x, [p.function(lambda x: convert.extend_to_wide(p, x, 1))(x)])

    with raises(UsageError, "shape-mismatch", operation="sort"):
        simulate(program, np.arange(4))


def test_wide_keys_are_refused() -> None:
    def program(p: Party, x: Shared) -> Any:
        return sort(p, p.function(lambda x: convert.extend_to_wide(p, x, 1))(x))

    with raises(UsageError, "unsupported-ring", operation="sort"):
        simulate(program, np.arange(4))


@pytest.mark.parametrize("shape", [(), (2, 3, 4)], ids=str)
def test_keys_that_are_neither_a_row_nor_a_matrix_are_refused(shape: tuple[int, ...]) -> None:
    with raises(UsageError, "rank-mismatch", operation="sort"):
        simulate(lambda p, x: sort(p, x), np.zeros(shape, np.int64))


@pytest.mark.parametrize("algorithm", ["quick", "network"])
def test_payload_of_another_dealer_is_refused(algorithm: str) -> None:
    def program(p: Party, x: Shared) -> Any:
        return sort(
            p, x, [share_for_party(np.arange(4), p.index, b"y", dealer=1)], algorithm=algorithm
        )

    with raises(UsageError, "dealer-mismatch"):
        simulate(program, np.arange(4))


@by_a_dealer
@pytest.mark.parametrize(("n", "payload"), [(0, 0), (1, 1), (2, 1), (9, 0)])
def test_network_costs_what_it_says_whatever_the_keys(
    n: int, payload: int, dealer: int, rng: np.random.Generator
) -> None:
    def program(p: Party, *secrets: Shared) -> list[Any]:
        result = []
        for x in secrets:
            p.reset_counters()
            sort(p, x, [x] * payload, algorithm="network")
            result.append((8 * sum(p.counters()["payload"]), p.rounds()))
        return result

    secrets = (np.zeros(n, np.int64), rng.integers(INT64.min, INT64.max, n))
    operand = Private((n,))
    cost = cost_of(sort, operand, (operand,) * payload, graphs=True, algorithm="network")
    for call in zip(*simulate(program, *secrets, dealer=dealer).outputs, strict=True):
        sent, rounds = zip(*call, strict=True)
        results = (sent, total_rounds(rounds, "ahead"), total_rounds(rounds, "with_dealing"))
        assert results == (cost.by_party(dealer), cost.rounds, cost.with_dealing)


@pytest.mark.parametrize("full_range", [True, False], ids=["full_range", "promised_range"])
def test_all_pairs_costs_its_parts_whatever_the_keys(
    full_range: bool, rng: np.random.Generator
) -> None:
    n = 100
    options = {"algorithm": "all-pairs", "full_range": full_range}
    cost = cost_of(sort, Private((n,)), graphs=True, **options)

    def program(p: Party, *secrets: Shared) -> list[Any]:
        result = []
        for x in secrets:
            p.reset_counters()
            sort(p, x, algorithm="all-pairs", full_range=full_range)
            result.append((8 * sum(p.counters()["payload"]), p.rounds()))
        return result

    secrets = (np.zeros(n, np.int64), rng.integers(-(2**61), 2**61, n))
    for call in zip(*simulate(program, *secrets, dealer=1).outputs, strict=True):
        sent, steps = zip(*call, strict=True)
        results = (sent, total_rounds(steps, "ahead"), total_rounds(steps, "with_dealing"))
        assert results == (cost.by_party(1), cost.rounds, cost.with_dealing)


def test_a_quicksort_is_not_known_before() -> None:
    with raises(UsageError, "cost-not-countable", operation="sort"):
        cost_of(sort, Private((11,)), graphs=True, algorithm="quick")


def test_progress_grows_and_ends_at_one() -> None:
    progress: list[list[float]] = [[] for _ in range(6)]

    def program(p: Party, x: Shared) -> None:
        sort(p, x, algorithm="quick", progress=progress[p.index].append)
        sort(p, x, algorithm="network", progress=progress[3 + p.index].append)

    simulate(program, np.arange(16)[::-1])
    for fractions in progress:
        assert fractions == sorted(fractions) and fractions[-1] == 1.0
