"""The logarithm: absolute error over the whole range, x <= 0 as one ulp, costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.protocols.functions.logarithm import log
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

CASES: list[tuple[int, int, int | None]] = [
    # fractional bits, bits, precision
    (16, 62, None),
    (8, 62, None),
    (24, 62, None),
    (20, 31, 12),
    (16, 12, None),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_is_right_over_the_whole_range(
    case: tuple[int, int, int | None], rng: np.random.Generator
) -> None:
    f, bits, precision = case
    edges = {2**k + d for k in range(bits + 1) for d in (-2, -1, 0, 1, 2)}
    edges |= {2**k - 2 ** max(k - 5, 0) + d for k in range(bits + 1) for d in (-1, 0, 1)}
    fixed = np.array(sorted(e for e in edges if 0 < e < 2**bits), np.int64)
    drawn = np.floor(2.0 ** rng.uniform(0, bits, 10000)).astype(np.int64)
    x = np.concatenate([fixed, np.minimum(drawn, 2**bits - 1)])
    x = np.concatenate([[0, 1 - 2**bits], x, -x[::9]])

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: log(p, x, bits, precision))(x)

    sim = simulate(program, x, fractional_bits=f)
    want = np.log(np.where(x > 0, x, 1) / 2.0**f)
    close = min(20, f + 2) if precision is None else precision
    assert np.abs(sim.value() / 2.0**f - want).max() <= 2.0**-close + 1.1 * 2.0**-f
    cost = cost_of(log, Private((len(x),), f), bits, precision)
    assert (sim.sent, sim.rounds, sim.with_dealing) == (
        cost.by_party(0),
        cost.rounds,
        cost.with_dealing,
    )
    assert cost.rounds == (4 if bits <= 12 else 8)
    assert sim.outputs[0].fractional_bits == f


@by_a_dealer
def test_costs_are_as_declared_whatever_the_values(dealer: int) -> None:
    xs = [v for n in (1, 65) for v in (np.zeros(n, np.int64), np.full(n, 2**17 + 5))]

    def program(p: Party, *xs: Shared) -> Any:
        graph = p.function(lambda x: log(p, x, 31), dynamic=True)
        return [measure_graph_call(p, graph, x) for x in xs]

    calls = zip(*simulate(program, *xs, dealer=dealer, fractional_bits=16).outputs, strict=True)
    for call, x in zip(calls, xs, strict=True):
        assert_costs(call, cost_of(log, Private((len(x),)), 31), dealer)
