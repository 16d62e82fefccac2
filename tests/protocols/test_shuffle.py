"""A shuffle only permutes: each row separately, all columns alike, at the declared cost."""

from __future__ import annotations

import itertools
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.order.shuffle import MAX_COLUMNS, shuffle
from tfe_bench.protocols.ring import convert
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
SIZES = (1, 63, 64, 65, 1000)


def shuffle_columns(p: Party, *columns: Shared) -> Any:
    return p.function(lambda *c: shuffle(p, c))(*columns)


@pytest.mark.parametrize("dealer", range(3))
@pytest.mark.parametrize("shape", [(1, 0), (0, 4), (3, 1), (4, 2), (2, 1000)], ids=str)
def test_the_output_of_each_row_is_a_permutation_of_its_input(
    shape: tuple[int, int], dealer: int, rng: np.random.Generator
) -> None:
    x = rng.integers(INT64.min, INT64.max, shape, endpoint=True)
    got = simulate(shuffle_columns, x, dealer=dealer).value(itemgetter(0))
    assert got.shape == shape
    assert np.array_equal(np.sort(got, axis=1), np.sort(x, axis=1))


@pytest.mark.parametrize("dealer", range(3))
def test_columns_move_alike_also_wide_ones(dealer: int, rng: np.random.Generator) -> None:
    x = np.tile(np.arange(50), (3, 1))
    other = rng.integers(INT64.min, INT64.max, x.shape, endpoint=True)

    def program(p: Party, x: Shared, y: Shared) -> Any:
        return p.function(lambda x, y: shuffle(p, [x, convert.extend_to_wide(p, y, 9), y]))(x, y)

    sim = simulate(program, x, other, dealer=dealer, fractional_bits=3)
    order, wide, plain = (sim.value(itemgetter(i)) for i in range(3))
    permuted = np.take_along_axis(other, order, axis=1)
    assert np.array_equal(plain, permuted)
    assert [int(v) for v in wide.reshape(-1)] == [
        (int(v) % 2**64) << 9 for v in permuted.reshape(-1)
    ]
    for out in sim.outputs:
        assert [c.ring_bits for c in out] == [64, 74, 64]
        assert [c.fractional_bits for c in out] == [3, 3, 3]


def test_rows_and_calls_and_sessions_are_permuted_independently() -> None:
    x = np.tile(np.arange(64), (4, 1))

    def program(p: Party, x: Shared) -> Any:
        graph = p.function(lambda x: [*shuffle(p, [x]), *shuffle(p, [x])])
        return [*graph(x), *graph(x)]

    rows = []
    for _ in range(2):
        sim = simulate(program, x)
        rows += [r.tobytes() for i in range(4) for r in sim.value(itemgetter(i))]
    assert len(set(rows)) == 2 * 4 * 4


def test_all_orders_are_equally_likely() -> None:
    x = np.tile(np.arange(3), (12_000, 1))
    got = simulate(shuffle_columns, x).value(itemgetter(0))
    codes = got @ [9, 3, 1]
    for order in itertools.permutations(range(3)):
        # 2,000 expected, with a standard deviation of 41: six of them
        assert abs(np.sum(codes == np.dot(order, [9, 3, 1])) - 2000) < 6 * 41


def test_shuffle_takes_as_many_columns_as_it_says_and_refuses_none_or_more() -> None:
    x = np.arange(4)[None]

    def program(count: int) -> Any:
        return lambda p, x: p.function(lambda x: shuffle(p, [x] * count))(x)

    assert len(simulate(program(MAX_COLUMNS), x).outputs[0]) == MAX_COLUMNS
    for count in (0, MAX_COLUMNS + 1):
        with raises(UsageError, "number-out-of-range", operation="shuffle", received=count):
            simulate(program(count), x)


def test_shuffle_refuses_columns_of_two_dealers() -> None:
    def program(p: Party, x: Shared) -> Any:
        return shuffle_columns(
            p, x, share_for_party(np.arange(4)[None], p.index, b"other", dealer=1)
        )

    with raises(UsageError, "dealer-mismatch", operation="shuffle"):
        simulate(program, np.arange(4)[None])


@pytest.mark.parametrize("dealer", range(3))
def test_shuffle_costs_what_it_says_whatever_the_values(
    dealer: int, rng: np.random.Generator
) -> None:
    inputs = [x for n in SIZES for x in (np.zeros(n, np.int64), rng.integers(-9, 9, n))]

    def program(p: Party) -> list[Any]:
        lift = p.function(lambda x: convert.extend_to_wide(p, x, 9), dynamic=True)
        graph = p.function(lambda x: shuffle(p, [x]), dynamic=True)
        # [n, 1] and [1, n] cost the same; only the first size is unknown to the graph
        shares = [share_for_party(x[:, None], p.index, b"value", dealer=dealer) for x in inputs]
        return [measure_graph_call(p, graph, y) for x in shares for y in (x, lift(x))]

    calls = zip(*simulate(program).outputs, strict=True)
    expected = [
        cost_of(shuffle, (Private((len(x), 1), limbs=limbs),)) for x in inputs for limbs in (1, 2)
    ]
    for cost, call in zip(expected, calls, strict=True):
        assert_costs(call, cost, dealer)
