"""Integers of the whole 64-bit range compare exactly, at the declared cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.refusals import raises
from tfe_bench.cluster.simulate import (
    assert_costs,
    measure_graph_call,
    reconstruct,
    simulate,
    total_rounds,
)
from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import convert, full_range
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

INT64 = np.iinfo(np.int64)
EDGES = np.array(
    [INT64.min, INT64.min + 1, -(2**62), -1, 0, 1, 2**62, INT64.max - 1, INT64.max], np.int64
)


@by_a_dealer
def test_all_pairs_of_edges_and_random_integers_are_told_apart(
    dealer: int, rng: np.random.Generator
) -> None:
    x, y = (a.reshape(-1) for a in np.meshgrid(EDGES, EDGES))
    more = rng.integers(INT64.min, INT64.max, (2, 10_000), endpoint=True)
    more[1, :1000] = more[0, :1000]
    x, y = np.concatenate([x, more[0]]), np.concatenate([y, more[1]])

    def program(p: Party, x: Shared, y: Shared) -> Any:
        def bits(x: Shared, y: Shared) -> list[Shared]:
            results = (full_range.less(p, x, y), full_range.equal(p, x, y))
            return [convert.b2a(p, b) for b in results]

        return p.function(bits)(x, y)

    done = simulate(program, x, y, dealer=dealer)
    assert np.array_equal(done.value(lambda out: out[0]), x < y)
    assert np.array_equal(done.value(lambda out: out[1]), x == y)


@pytest.mark.parametrize("exchanges", [None, 2])
@pytest.mark.parametrize("name", ["less", "equal"])
def test_the_wire_carries_what_is_declared(name: str, exchanges: int | None) -> None:
    n = 130

    def program(p: Party, x: Shared, y: Shared) -> Any:
        def bits(x: Shared, y: Shared) -> MaskedBits:
            result: MaskedBits = getattr(full_range, name)(p, x, y, exchanges)
            return result

        return measure_graph_call(p, p.function(bits), x, y)

    done = simulate(program, np.arange(n), np.zeros(n, np.int64), dealer=1)
    operand = Private((n,))
    cost = cost_of(getattr(full_range, name), operand, operand, exchanges)
    assert_costs(done.outputs, cost, dealer=1)


@pytest.mark.parametrize("n", [1, 2, 7, 9])
def test_extremes_of_any_integers_are_exact_and_cost_what_is_counted(
    n: int, rng: np.random.Generator
) -> None:
    x = np.concatenate([rng.permutation(EDGES), rng.permutation(EDGES)])[: 2 * n].reshape(2, n)

    def program(p: Party, x: Shared, y: Shared) -> Any:
        def compute(x: Shared, y: Shared) -> list[Shared]:
            pairs = [of(p, x, y) for of in (full_range.maximum, full_range.minimum)]
            return pairs + [
                extremes.find_full_range_extreme(p, x, largest) for largest in (True, False)
            ]

        function = p.function(compute)
        return function(x, y), measure_graph_call(p, function, x, y)

    done = simulate(program, *x)
    expected = [x.max(0), x.min(0), x[:1].max(1), x[:1].min(1)]
    for i, due in enumerate(expected):
        revealed = reconstruct([out[0][i] for out in done.outputs])
        np.testing.assert_array_equal(revealed, due)
    operand = Private((n,))
    costs = [cost_of(of, operand, operand) for of in (full_range.maximum, full_range.minimum)]
    costs += [
        cost_of(extremes.find_full_range_extreme, operand, largest) for largest in (True, False)
    ]
    sent = tuple(sum(cost.by_party(0)[i] for cost in costs) for i in range(3))
    assert tuple(call[0] for _, call in done.outputs) == sent
    assert total_rounds([call[1] for _, call in done.outputs], "ahead") == max(
        cost.rounds for cost in costs
    )


def test_other_shapes_and_public_operands_are_refused() -> None:
    def program(p: Party, x: Shared, y: Shared) -> None:
        for second, code in ((y, "shape-mismatch"), (np.zeros(3, np.int64), "not-private")):
            for compare in (full_range.less, full_range.equal):
                with raises(UsageError, code):
                    compare(p, x, second)  # type: ignore[arg-type]

    simulate(program, np.zeros(3, np.int64), np.zeros(4, np.int64))
