"""Shares for another dealer are the same values, and thirds cost as declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.protocols.shares import draw_words, output_at
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.order import extremes, sort
from tfe_bench.protocols.ring import refresh, rotation, small_ring
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@by_a_dealer
@pytest.mark.parametrize("limbs", (1, 2))
def test_another_name_is_the_same_value_in_that_dealers_view(
    dealer: int, limbs: int, rng: np.random.Generator
) -> None:
    values = whole = draw_words(rng, 501, limbs)
    if limbs == 2:
        low, high = values.view(np.uint64).astype(object).T
        whole = low + (high << 64)

    def program(p: Party, x: Shared) -> Any:
        out = []
        for new in range(3):
            y = rotation.relabel_dealer(p, x, new)
            assert (y.dealer, y.limbs, y.bits) == (new, limbs, x.bits)
            absent = [p.index == new, p.index == (new + 2) % 3, p.index == (new + 1) % 3]
            assert [t is None for t in (y.m, y.l1, y.l2)] == absent
            out += [y, rotation.relabel_dealer(p, y, dealer)]
        return out

    sim = simulate(program, values, dealer=dealer, limbs=limbs)
    for i in range(6):
        assert np.array_equal(sim.value(output_at(i)), whole), i


def test_a_party_that_does_not_exist_deals_nothing() -> None:
    with raises(UsageError, "unknown-party"):
        simulate(lambda p, x: rotation.relabel_dealer(p, x, 3), np.arange(3))


@by_a_dealer
@pytest.mark.parametrize("turn", (0, 1, 2))
def test_what_is_handed_over_is_the_same_value_and_its_rounds_are_those_of_the_chain(
    dealer: int, turn: int, rng: np.random.Generator
) -> None:
    """Check any number of exchanges before and after, also in a small ring."""
    values = rng.integers(-(2**20), 2**20, 77)

    def path(p: Party, x: Shared, before: int, behind: int) -> Shared:
        for times in (before, behind, before):
            for _ in range(times):
                x = refresh.refresh(p, x)
            x = rotation.refresh_for_dealer(p, x, (x.dealer + turn) % 3)
        return x

    ways = [(a, b) for a in range(3) for b in range(3)]

    def program(p: Party, x: Shared) -> Any:
        results = []
        for before, behind in ways:
            graph = p.function(lambda x, a=before, b=behind: path(p, x, a, b))
            results.append((graph(x), measure_graph_call(p, graph, x)))
        return results

    for bits in (64, 30):
        sim = simulate(
            lambda p, x, bits=bits: program(p, small_ring.reduce_ring(x, bits)),
            values,
            dealer=dealer,
        )
        for i, way in enumerate(ways):
            operand = Private(values.shape, bits=bits % 64)
            revealed = sim.value(output_at(i, 0))
            assert np.array_equal(revealed % (1 << 30), values % (1 << 30)), way
            assert_costs([out[i][1] for out in sim.outputs], cost_of(path, operand, *way), dealer)


def relu_by_thirds(p: Party, x: Shared) -> Shared:
    return rotation.compute_by_thirds(p, lambda part: [relu.relu(p, part)], [x])[0]


@by_a_dealer
def test_thirds_of_any_batch_cost_what_they_say(dealer: int, rng: np.random.Generator) -> None:
    sizes = (3, 4, 5, 1000, 1024)
    data = [rng.integers(-(2**30), 2**30, n) for n in sizes]

    def program(p: Party, *shares: Shared) -> Any:
        graph = p.function(lambda x: relu_by_thirds(p, x))
        return [(graph(x), measure_graph_call(p, graph, x)) for x in shares]

    sim = simulate(program, *data, dealer=dealer, fractional_bits=16)
    for i, x in enumerate(data):
        assert np.array_equal(sim.value(output_at(i, 0)), np.maximum(x, 0))
        assert all(out[i][0].dealer == dealer for out in sim.outputs)
        cost = cost_of(relu_by_thirds, Private((len(x),)))
        assert_costs([out[i][1] for out in sim.outputs], cost, dealer)
    # with whole blocks of bits, the three send the same
    even = cost_of(relu_by_thirds, Private((3 * 512,)))
    assert even.dealer == even.e1 == even.e2 == cost_of(relu.relu, Private((512,))).total


def test_fewer_than_three_rows_are_not_cut(rng: np.random.Generator) -> None:
    with raises(UsageError, "number-out-of-range"):
        simulate(lambda p, x: rotation.compute_by_thirds(p, lambda y: [y], [x]), np.arange(2))


def test_large_extremes_on_slow_lines_are_dealt_by_all_three(rng: np.random.Generator) -> None:
    rows = 30_000
    x = rng.integers(-(2**62), 2**62, (rows, 4))

    def program(p: Party, x: Shared) -> Any:
        options: dict[str, Any] = {"method": "tree", "profile": "wan"}
        values = p.function(lambda x: extremes.reduce_max(p, x, 1, **options))
        places = p.function(lambda x: extremes.argmin(p, x, 1, **options))
        return (
            values(x),
            places(x),
            measure_graph_call(p, values, x),
            measure_graph_call(p, places, x),
        )

    sim = simulate(program, x, dealer=1)
    assert np.array_equal(sim.value(lambda out: out[0]), x.max(axis=1))
    assert np.array_equal(sim.value(lambda out: out[1]), x.argmin(axis=1))
    for i, index in ((2, False), (3, True)):
        protocol = extremes.argmax if index else extremes.reduce_max
        cost = cost_of(protocol, Private((rows, 4)), 1, method="tree", profile="wan")
        assert_costs([out[i] for out in sim.outputs], cost, 1)
        assert 3 * max(cost.dealer, cost.e1, cost.e2) < 1.01 * cost.total
        one = cost_of(protocol, Private((rows, 4)), 1, method="tree")
        # (blocks of 512 bits are filled up)
        assert one.total <= cost.total <= 1.01 * one.total and cost.rounds == one.rounds


def test_small_extremes_are_dealt_by_one() -> None:
    cost = cost_of(extremes.reduce_max, Private((1024, 4)), 1, profile="wan")
    assert cost.dealer > cost.e1


@by_a_dealer
def test_a_sort_on_slow_lines_is_the_same_sort(dealer: int, rng: np.random.Generator) -> None:
    keys = rng.integers(-(2**63), 2**63, 3000)
    keys[:500] = rng.integers(-3, 3, 500)
    spent: list[Any] = []

    def program(p: Party, keys: Shared) -> Any:
        p.reset_counters()
        result = sort.sort(p, keys, profile="wan")
        spent.append(sum(p.counters()["payload"]))
        return result.keys, result.indices

    sim = simulate(program, keys, dealer=dealer)
    assert np.array_equal(sim.value(lambda out: out[0]), np.sort(keys))
    assert np.array_equal(sim.value(lambda out: out[1]), np.argsort(keys, kind="stable"))
    assert max(spent) < 1.2 * min(spent)
