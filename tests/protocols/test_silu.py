"""SiLU within 2 ulp over the whole range, its slope, their declared costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.simulate import assert_costs, measured, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions.piecewise import RESULT_BITS
from tfe_bench.protocols.nn import activations, silu
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
FRACTIONS = tuple(range(silu.FEWEST_BITS, silu.MOST_BITS + 1))
WIDTHS = (2, 12, 31, 48, 62)


def sigmoid(v: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -v)))


def whole_range(f: int, width: int, rng: np.random.Generator) -> Array:
    """Ring elements: the middle, all of the range, and both sides of every comparison."""
    edge, most = activations.edge(f), (1 << (width - 1)) - 1
    near = [s * e + d for e in (0, edge, most) for s in (-1, 1) for d in (-1, 0, 1)]
    powers = [s * (1 << k) for k in range(width - 1) for s in (-1, 1)]
    middle = rng.integers(-2 * edge, 2 * edge, 600)
    return np.concatenate(
        [np.clip([*near, *powers, *middle], -most, most), rng.integers(-most, most + 1, 200)]
    )


@pytest.mark.parametrize("f", FRACTIONS)
def test_silu_is_within_two_ulp_at_every_width(f: int, rng: np.random.Generator) -> None:
    xs, dealer = [whole_range(f, width, rng) for width in WIDTHS], int(rng.integers(3))

    def program(party: Party, *given: Shared) -> Any:
        def graph(*given: Shared) -> Any:
            return [silu.silu(party, x, width) for x, width in zip(given, WIDTHS, strict=True)]

        return party.function(graph)(*given)

    sim = simulate(program, *xs, fractional_bits=f, dealer=dealer)
    for i, (width, x) in enumerate(zip(WIDTHS, xs, strict=True)):
        got = sim.value(lambda out, i=i: out[i])  # type: ignore[misc]
        # as a difference: doubles do not hold all of 62 bits
        rest = np.abs(x) * sigmoid(-np.abs(x) * 2.0**-f)
        off = (got - np.maximum(x, 0)) + rest
        worst = np.abs(off).argmax()
        assert abs(off[worst]) < 2, (width, x[worst], off[worst])
        assert sim.outputs[0][i].fractional_bits == f
        far = np.abs(x) >= activations.edge(f) + 1
        assert np.array_equal(got[far | (x == 0)], np.maximum(x, 0)[far | (x == 0)])


def test_its_slope_is_near(rng: np.random.Generator) -> None:
    x = whole_range(16, 31, rng)

    def program(party: Party, x: Shared) -> Any:
        return party.function(lambda x: silu.slope(party, x))(x)

    got = simulate(program, x, fractional_bits=16).value() * 2.0**-RESULT_BITS
    v = x * 2.0**-16
    s = sigmoid(v)
    assert np.abs(got - s * (1 + v * (1 - s))).max() < 2.0**-9.5


@pytest.mark.parametrize(("n", "bits", "exchanges"), [(5, 31, None), (9, 48, 1), (4100, 31, None)])
def test_cost_is_what_is_declared(
    n: int, bits: int, exchanges: int | None, rng: np.random.Generator
) -> None:
    dealer = int(rng.integers(3))

    def program(party: Party, x: Shared) -> Any:
        functions = [
            party.function(lambda x: silu.silu(party, x, bits, exchanges)),
            party.function(lambda x: silu.slope(party, x)),
        ]
        return [measured(party, f, x) for f in functions]

    x = rng.integers(-(4 << 16), 4 << 16, n)
    sim = simulate(program, x, fractional_bits=16, dealer=dealer)
    costs = (
        cost_of(silu.silu, Private((n,)), bits, exchanges),
        cost_of(silu.slope, Private((n,))),
    )
    for i, cost in enumerate(costs):
        assert_costs([out[i] for out in sim.outputs], cost, dealer)


def test_other_scales_and_rings_are_refused_in_words() -> None:
    x = Shared(np.zeros(3, np.int64), None, np.zeros(3, np.int64), 0, 17)
    for bad in (x, replace(x, fractional_bits=7), replace(x, fractional_bits=16, bits=30), 1.0):
        with pytest.raises(UsageError, match="silu w"):
            silu.silu(None, bad)  # type: ignore[arg-type]
