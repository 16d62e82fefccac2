"""Square roots: relative error over the whole range, zero for x <= 0, costs."""

from __future__ import annotations

from fractions import Fraction
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.edges import parametrize_daily
from tests.protocols.dealers import by_a_dealer
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions.roots import reciprocal_root, rsqrt, sqrt
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
CASES = [
    # fractional bits, bits, precision, precision of sqrt
    (16, 62, 20, 20),
    (8, 62, 22, 21),
    (24, 62, 20, 19),
    (16, 31, 12, 12),
    (17, 30, 20, 20),
    (16, 12, 16, 16),
]


def draw_values(rng: np.random.Generator, bits: int, n: int) -> Array:
    """Return zero, negative values, all edges, and log-uniform values."""
    edges = {2**k + d for k in range(bits + 1) for d in (-2, -1, 0, 1, 2)}
    edges |= {2**k - 2 ** max(k - 5, 0) + d for k in range(bits + 1) for d in (-1, 0, 1)}
    fixed = np.array(sorted(e for e in edges if 0 < e < 2**bits), np.int64)
    drawn = np.floor(2.0 ** rng.uniform(0, bits, n)).astype(np.int64)
    x = np.concatenate([fixed, np.minimum(drawn, 2**bits - 1)])
    return np.concatenate([[0, 1 - 2**bits], x, -x[::9]])


@parametrize_daily("case", CASES, [CASES[0], CASES[-1]], ids=str)
def test_roots_are_right_over_the_whole_range(
    case: tuple[int, int, int, int], rng: np.random.Generator
) -> None:
    f, bits, precision, of_sqrt = case
    x = draw_values(rng, bits, 10000)

    def program(p: Party, x: Shared) -> Any:
        return [
            p.function(lambda x: rsqrt(p, x, bits, precision))(x),
            p.function(lambda x: sqrt(p, x, bits, precision))(x),
        ]

    dealer = int(rng.integers(3))
    sim = simulate(program, x, dealer=dealer, fractional_bits=f)
    root = np.sqrt(np.where(x > 0, x, 1) / 2.0**f)
    for i, (want, closeness) in enumerate(((1 / root, precision), (root, of_sqrt))):
        got = sim.value(itemgetter(i)).astype(float)
        want = np.where(x > 0, want, 0) * 2.0**f
        assert (np.abs(got - want) - 2.0**-closeness * want).max() <= 1.2, i
        assert not got[x <= 0].any()
        assert sim.outputs[0][i].fractional_bits == f
    operand = Private((len(x),), f)
    costs = [cost_of(function, operand, bits, precision) for function in (rsqrt, sqrt)]
    sent = zip(*(cost.by_party(dealer) for cost in costs), strict=True)
    assert sim.sent == tuple(map(sum, sent)) and sim.rounds == sum(c.rounds for c in costs)
    assert costs[0].rounds == costs[1].rounds == (5 if bits <= 12 else 9)


# scale, bits, lowest: the largest result has 42 bits, or few; one stage, two, and the whole range
SCALED = [(58, 54, 32), (42, 61, 0), (52, 61, 38), (20, 20, 14), (61, 61, 38), (38, 43, 40)]


@pytest.mark.parametrize(
    "times", [Fraction(1), Fraction(227023, 1 << 18), Fraction(131073, 1 << 18)]
)
def test_roots_of_more_bits_are_right_from_the_lowest_value_on(
    times: Fraction, rng: np.random.Generator
) -> None:
    """Check within 2^-18 of the result, and 1.2 units: the largest leave 19 of 61 bits."""
    inputs = []
    for _, bits, lowest in SCALED:
        x = draw_values(rng, bits, 300)
        inputs.append(np.concatenate([[0] if not lowest else [], x[x >= 2**lowest]]).astype(int))

    def program(p: Party, *xs: Shared) -> Any:
        def all_of(*xs: Shared) -> list[Shared]:
            rows = zip(xs, SCALED, strict=True)
            return [reciprocal_root(p, x, *row, times=times) for x, row in rows]

        return p.function(all_of)(*xs)

    dealer = int(rng.integers(3))
    sim = simulate(program, *inputs, dealer=dealer)
    for i, (x, (scale, _, _)) in enumerate(zip(inputs, SCALED, strict=True)):
        got = sim.value(itemgetter(i)).astype(float)
        want = np.where(x > 0, float(times) * 2.0**scale / np.sqrt(np.maximum(x, 1)), 0)
        assert (np.abs(got - want) - 2.0**-18 * want).max() <= 1.2, SCALED[i]
    costs = [
        cost_of(reciprocal_root, Private((len(x),)), *r)
        for x, r in zip(inputs, SCALED, strict=True)
    ]
    assert sim.sent == tuple(map(sum, zip(*(c.by_party(dealer) for c in costs), strict=True)))


@pytest.mark.parametrize("times", [Fraction(1, 2), Fraction(5, 4), 1.0, -Fraction(3, 4)])
def test_roots_refuse_other_factors(times: Any) -> None:
    with raises(UsageError, "number-out-of-range", operation="reciprocal_root"):
        cost_of(reciprocal_root, Private((4,)), 42, 61, 0, times=times)


@by_a_dealer
def test_costs_are_as_declared_whatever_the_values(dealer: int) -> None:
    xs = [v for n in (1, 65) for v in (np.zeros(n, np.int64), np.full(n, 2**17 + 5))]

    def program(p: Party, *xs: Shared) -> Any:
        graphs = [
            p.function(lambda x: rsqrt(p, x, 31, 10), dynamic=True),
            p.function(lambda x: sqrt(p, x, 20), dynamic=True),
        ]
        return [measure_graph_call(p, graph, x) for x in xs for graph in graphs]

    calls = zip(*simulate(program, *xs, dealer=dealer, fractional_bits=16).outputs, strict=True)
    operands = [Private((len(x),)) for x in xs]
    costs = [c for x in operands for c in (cost_of(rsqrt, x, 31, 10), cost_of(sqrt, x, 20))]
    for call, cost in zip(calls, costs, strict=True):
        assert_costs(call, cost, dealer)
