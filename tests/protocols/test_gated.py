"""GELU, SiLU and similar functions: values of the whole range, slopes, declared costs, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.edges import parametrize_daily
from tests.protocols.gated import FUNCTIONS, Function
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions.piecewise import RESULT_BITS
from tfe_bench.protocols.nn.gated import MAX_BITS, MIN_BITS
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# (fractional bits, width): the edges of both, and every scale
EDGES = [(f, width) for f in (MIN_BITS, MAX_BITS) for width in (2, 31, 62)]
EVERY = [(f, 31) for f in range(MIN_BITS + 1, MAX_BITS)]
EVERY += [(f, width) for f in (MIN_BITS, MAX_BITS) for width in (12, 48)]
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))


@parametrize_daily("cases", [EDGES, EVERY], [EDGES], ids=["edges", "every"])
@every_function
def test_it_is_right_at_every_scale_over_the_whole_range(
    function: Function, cases: list[tuple[int, int]], rng: np.random.Generator
) -> None:
    xs = [function.operands(width, f, rng) for f, width in cases]

    def program(party: Party, *shares: Shared) -> Any:
        def graph(*shares: Shared) -> Any:
            return [
                function.protocol(party, replace(x, fractional_bits=f), width)
                for x, (f, width) in zip(shares, cases, strict=True)
            ]

        return party.function(graph)(*shares)

    sim = simulate(program, *xs, dealer=int(rng.integers(3)))
    for i, ((f, width), x) in enumerate(zip(cases, xs, strict=True)):
        got = sim.value(lambda out, i=i: out[i])  # type: ignore[misc]
        off = function.error_of(got, x, f)
        worst = np.abs(off).argmax()
        assert abs(off[worst]) < function.ulps, (f, width, x[worst], off[worst])
        assert sim.outputs[0][i].fractional_bits == f
        far = (np.abs(x) > max(function.edges(f))) | (x == 0)
        assert not function.exact_beyond or np.array_equal(got[far], np.maximum(x, 0)[far])


@every_function
def test_a_slope_is_near(function: Function, rng: np.random.Generator) -> None:
    x = function.operands(31, 16, rng)

    def program(party: Party, x: Shared) -> Any:
        return party.function(lambda x: function.module.slope(party, x))(x)

    got = simulate(program, x, fractional_bits=16).value() * 2.0**-RESULT_BITS
    assert np.abs(got - function.slope(x * 2.0**-16)).max() < 2.0**-9.5


@pytest.mark.parametrize(
    ("n", "bits", "exchanges"),
    [(5, 31, None), (9, 48, 1), (9, 31, 2), (3, 62, 3), (4100, 31, None)],
)
@every_function
def test_cost_is_what_is_declared(
    function: Function, n: int, bits: int, exchanges: int | None, rng: np.random.Generator
) -> None:
    dealer, module = int(rng.integers(3)), function.module

    def program(party: Party, x: Shared) -> Any:
        functions = [
            party.function(lambda x: function.protocol(party, x, bits, exchanges)),
            party.function(lambda x: module.slope(party, x)),
        ]
        return [measure_graph_call(party, f, x) for f in functions]

    x = rng.integers(-(4 << 16), 4 << 16, n)
    sim = simulate(program, x, fractional_bits=16, dealer=dealer)
    costs = (
        cost_of(function.protocol, Private((n,)), bits, exchanges),
        cost_of(module.slope, Private((n,))),
    )
    for i, cost in enumerate(costs):
        assert_costs([out[i] for out in sim.outputs], cost, dealer)


@every_function
def test_other_scales_and_rings_are_refused_in_words(function: Function) -> None:
    x = Shared(np.zeros(3, np.int64), None, np.zeros(3, np.int64), 0, MAX_BITS + 1)
    small = replace(x, fractional_bits=16, bits=30)
    few = replace(x, fractional_bits=MIN_BITS - 1)
    scale, ring = "unsupported-scale", "unsupported-ring"
    for bad, code in ((x, scale), (few, scale), (small, ring), (1.0, "not-private")):
        with raises(UsageError, code, operation=function.name):
            function.protocol(None, bad)
