"""GELU within 3 ulp over the whole range, its slope, their declared costs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.simulate import assert_costs, measured, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions.piecewise import RESULT_BITS
from tfe_bench.protocols.nn import gelu
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
FRACTIONS = (8, 12, 16)
LIMIT = 1 << 30


def below(v: Array) -> Array:
    """Phi(v), by the complement, which is exact where it is small."""
    return np.asarray(np.vectorize(math.erfc)(-v / math.sqrt(2)) / 2)


def density(v: Array) -> Array:
    return np.asarray(np.exp(-v * v / 2) / math.sqrt(2 * math.pi))


def whole_range(f: int, rng: np.random.Generator) -> Array:
    """Ring elements: the middle, all of the range, and both sides of every comparison."""
    step, one = gelu.bump(f).step, 1 << f
    edges = [0, step, 2 * step, LIMIT - 1, *(1 << k for k in range(30))]
    near = [s * e + d for e in edges for s in (-1, 1) for d in (-1, 0, 1)]
    return np.concatenate(
        [
            np.clip(near, 1 - LIMIT, LIMIT - 1),
            rng.integers(-6 * one, 6 * one, 6000),
            rng.integers(1 - LIMIT, LIMIT, 1000),
        ]
    )


def test_gelu_is_within_three_ulp_everywhere_and_its_slope_near(rng: np.random.Generator) -> None:
    xs, dealer = [whole_range(f, rng) for f in FRACTIONS], int(rng.integers(3))

    def program(party: Party, *given: Shared) -> Any:
        def graph(*given: Shared) -> Any:
            scaled = [replace(x, fractional_bits=f) for x, f in zip(given, FRACTIONS, strict=True)]
            return [gelu.gelu(party, x) for x in scaled], gelu.slope(party, scaled[-1])

        return party.function(graph)(*given)

    sim = simulate(program, *xs, dealer=dealer)
    for i, (f, x) in enumerate(zip(FRACTIONS, xs, strict=True)):
        v, got = x * 2.0**-f, sim.value(lambda out, i=i: out[0][i])  # type: ignore[misc]
        off = got - v * below(v) * 2.0**f
        worst = np.abs(off).argmax()
        assert abs(off[worst]) < 3, (f, x[worst], off[worst])
        assert sim.outputs[0][0][i].fractional_bits == f
    got = sim.value(lambda out: out[1]) * 2.0**-RESULT_BITS
    assert np.abs(got - below(v) - v * density(v)).max() < 2.0**-9.5


@pytest.mark.parametrize(("n", "bits", "exchanges"), [(5, 31, None), (9, 48, 1), (4100, 31, None)])
def test_cost_is_what_is_declared(
    n: int, bits: int, exchanges: int | None, rng: np.random.Generator
) -> None:
    dealer = int(rng.integers(3))

    def program(party: Party, x: Shared) -> Any:
        functions = [
            party.function(lambda x: gelu.gelu(party, x, bits, exchanges)),
            party.function(lambda x: gelu.slope(party, x)),
        ]
        return [measured(party, f, x) for f in functions]

    x = rng.integers(-(4 << 16), 4 << 16, n)
    sim = simulate(program, x, fractional_bits=16, dealer=dealer)
    costs = (
        cost_of(gelu.gelu, Private((n,)), bits, exchanges),
        cost_of(gelu.slope, Private((n,))),
    )
    for i, cost in enumerate(costs):
        assert_costs([out[i] for out in sim.outputs], cost, dealer)


def test_other_scales_and_rings_are_refused_in_words() -> None:
    x = Shared(np.zeros(3, np.int64), None, np.zeros(3, np.int64), 0, 17)
    for bad in (x, replace(x, fractional_bits=7), replace(x, fractional_bits=16, bits=30), 1.0):
        with pytest.raises(UsageError, match="gelu w"):
            gelu.gelu(None, bad)  # type: ignore[arg-type]
