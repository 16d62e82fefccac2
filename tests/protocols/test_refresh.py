"""A refreshed value is the same value, under masks that are independent of the old ones."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

from tests.protocols.shares import draw_words
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import refresh
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@pytest.mark.parametrize("dealer", range(3))
@pytest.mark.parametrize("limbs", (1, 2))
def test_the_value_stays_and_every_part_is_new(
    dealer: int, limbs: int, rng: np.random.Generator
) -> None:
    values = draw_words(rng, 10_001, limbs)

    def program(p: Party, x: Shared) -> Any:
        graph = p.function(lambda y: refresh.refresh(p, y))
        return graph(x), graph(x), x, measure_graph_call(p, graph, x)

    sim = simulate(program, values, dealer=dealer, limbs=limbs, fractional_bits=7)
    original = sim.value(lambda out: out[2])
    if limbs == 1:
        np.testing.assert_array_equal(original, values)
    for i in range(2):
        np.testing.assert_array_equal(sim.value(operator.itemgetter(i)), original)
    for first, second, x, _ in sim.outputs:
        assert (first.fractional_bits, first.limbs) == (7, limbs)
        for part in ("m", "l1", "l2"):
            one, two, old = (getattr(y, part) for y in (first, second, x))
            assert (one is None) == (old is None)
            if one is not None:
                assert not np.any(one == two) and not np.any(one == old)
    cost = cost_of(refresh.refresh, Private((values.size // limbs,), limbs=limbs))
    assert_costs([out[3] for out in sim.outputs], cost, dealer)


def test_a_smaller_ring_stays_and_one_of_part_of_two_words_is_refused() -> None:
    def program(p: Party, x: Shared) -> Any:
        refreshed = p.function(lambda y: refresh.refresh(p, y))
        with raises(UsageError, "unsupported-ring", operation="refresh"):
            refreshed(Shared(x.m, x.l1, x.l2, x.dealer, 0, 2, 70))
        return refreshed(Shared(x.m, x.l1, x.l2, x.dealer, 0, 1, 31))

    assert np.array_equal(simulate(program, np.arange(4)).value(), np.arange(4))
