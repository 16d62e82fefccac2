"""Sums of products, exchanged exactly or truncated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.ring.products import (
    BilinearShareProduct,
    exchange_sum,
    exchange_truncated_sum,
    sum_elementwise_products,
)
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@pytest.mark.parametrize("dealer", range(3))
def test_sums_of_products_are_right_at_the_edges_and_cost_what_is_declared(
    dealer: int, rng: np.random.Generator
) -> None:
    """`exchanged` is exact; `truncated` is off by less than 1 unit for |sum| <= 2^39 - 2^16."""
    n, top = 10_000, 1 << 18
    edges = np.array([0, 1, -1, top, -top, top - 1, 1 - top])
    x = np.stack([np.concatenate([edges, rng.integers(-top, top, n - 7)]) for _ in range(2)])
    w = np.stack([np.concatenate([edges[::-1], rng.integers(-top, top, n - 7)]) for _ in range(2)])
    bound = (1 << 39) - (1 << 16)
    exact = (x * w).sum(0)
    targets = np.concatenate([[bound, -bound, 0, 1, -1], rng.integers(-bound, bound, n - 5)])
    addend = targets - exact
    drop, bits = 16, 24

    def program(party: Party, x: Shared, w: Shared, addend: Shared) -> Any:
        addend = replace(addend, fractional_bits=2 * x.fractional_bits)

        def terms(x: Shared, w: Shared) -> list[BilinearShareProduct]:
            cut = [(x.map(lambda a, i=i: a[i]), w.map(lambda a, i=i: a[i])) for i in (0, 1)]
            return [BilinearShareProduct(a, b, sum_elementwise_products) for a, b in cut]

        def exact(x: Shared, w: Shared, c: Shared) -> Any:
            return arithmetic.add(exchange_sum(party, "product_sum", terms(x, w)), c)

        def short(x: Shared, w: Shared, c: Shared) -> Any:
            return exchange_truncated_sum(party, "truncated_sum", terms(x, w), c, drop, bits)[0]

        functions = [party.function(f) for f in (exact, short)]
        values = [f(x, w, addend) for f in functions]
        with raises(UsageError, "scale-mismatch"):
            functions[0](x, w, replace(addend, fractional_bits=3))
        return values, [measure_graph_call(party, f, x, w, addend) for f in functions]

    sim = simulate(program, x, w, addend, dealer=dealer, fractional_bits=8)
    assert (sim.value(lambda out: out[0][0]) == targets).all()
    small = sim.value(lambda out: out[0][1])
    signed = np.array([int(v) - (int(v) >> (bits - 1) << bits) for v in small])
    assert (np.abs(signed * 2.0**drop - targets) < 2**drop).all()
    costs = (Cost(64 * n, 64 * n, 64 * n, 1, 2), Cost(41 * n, 24 * n, 24 * n, 1, 2))
    for i, cost in enumerate(costs):
        assert_costs([out[1][i] for out in sim.outputs], cost, dealer)
