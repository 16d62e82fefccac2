"""Short Fourier series of private values: their tables, their integers, values, costs, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocols.activation_widths import EXACT
from tests.protocols.operands import Array
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import harmonics
from tfe_bench.protocols.functions.harmonics import Series
from tfe_bench.protocols.nn import series
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

UNIT = 2.0**-harmonics.WEIGHT_BITS


def evaluate_series(s: Series, v: Array) -> Array:
    """Return the series in float64."""
    constant, *rest = (w * UNIT for w in s.weights)
    total = np.full(np.shape(v), constant)
    for j, (a, b) in enumerate(zip(rest[::2], rest[1::2], strict=True), 1):
        angle = 2 * np.pi * s.odd * j / 2**s.turn * v
        total += a * np.cos(angle) + b * np.sin(angle)
    return total


@pytest.mark.parametrize("name", series.ACTIVATIONS)
def test_a_table_is_as_near_as_it_states(name: str) -> None:
    """Check a quarter beyond the knots, the ends from the knots on, and coarse weights."""
    bend, right = series.ACTIVATIONS[name], EXACT[name]
    low, high = bend.low / 4, bend.high / 4
    v = np.linspace(low - 0.25, high + 0.25, 4001)
    half = v / 2 if bend.ends is None else 0
    assert np.abs(evaluate_series(bend.series, v) + half - right(v)).max() < 2.0**-11
    lower, upper = (0, None) if bend.ends is None else bend.ends
    beyond = np.linspace(0, 40, 4001)
    above = beyond + high if upper is None else upper
    assert np.abs(right(beyond + high) - above).max() < 2.0**-11
    assert np.abs(right(low - beyond) - lower).max() < 2.0**-11
    everywhere = np.linspace(-40, 40, 8001)
    assert np.abs(bend.evaluate_plain(everywhere) - right(everywhere)).max() < 2.0**-11
    assert np.array_equal(bend.series.evaluate_plain(v), evaluate_series(bend.series, v))
    weights = bend.series.weights
    assert len(weights) % 2 == 1 and bend.series.harmonic_count <= harmonics.MAX_HARMONICS
    # The exchanged value has room for it, and its total rounding stays below 2^-11.
    assert sum(map(abs, weights)) * UNIT < 8
    for bits in (13, 14):
        unit = 2.0 ** -bend.series.dealt_bits(bits)
        total = bend.series.harmonic_count * UNIT + sum(map(abs, weights[1:])) * UNIT * unit
        assert np.sqrt(2) * total < 2.0**-11


@pytest.mark.parametrize("name", ["held", *series.ACTIVATIONS])
def test_a_series_fits_the_ring_of_its_values(name: str) -> None:
    """The values and their error fit, for every phase of x."""
    bend = series.MEMORY_GATE if name == "held" else series.ACTIVATIONS[name]
    v = np.linspace(0, 2**bend.series.turn / bend.series.odd, 20001)
    for f in range(series.MIN_BITS, series.MAX_BITS + 2):
        below, ring = bend.series.find_range(f)
        units = evaluate_series(bend.series, v) * 2.0**f + below
        assert units.min() - 2.0 ** (f - 10) >= 2
        assert units.max() + 2.0 ** (f - 10) + 2 < 2 ** (ring - 1)


CASES = [(f, 12) for f in (0, 1, 11, 20)] + [(16, 16), (16, 17), (23, 31)]


@pytest.mark.parametrize("count", [1, 2, harmonics.MAX_HARMONICS])
def test_a_series_is_right_for_every_word(count: int, rng: np.random.Generator) -> None:
    """Check all wraps of the sum of the masks, and every phase of a small series."""
    weights = rng.integers(-(1 << 15), 1 << 15, 2 * count + 1)
    # The period is 32/5; fewer harmonics are not a special case.
    s = Series(5, 5, tuple(int(w) for w in weights))
    edges = np.array([0, 1, -1, (1 << 63) - 1, -(1 << 63)])
    x = np.concatenate([np.arange(1 << 8), rng.integers(-(1 << 62), 1 << 62, 801), edges])

    def program(party: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            return [
                harmonics.evaluate_series(
                    party, "h", s, replace(x, fractional_bits=f), out, out + 6
                )
                for f, out in CASES
            ]

        return party.function(graph)(x)

    sim = simulate(program, x, dealer=int(rng.integers(3)))
    total = np.abs(weights[1:]).sum() * UNIT
    for i, (f, out) in enumerate(CASES):
        got = sim.value(lambda y, i=i: y[i])  # type: ignore[misc]
        half = 1 << (out + 5)
        small = (got + half) % (2 * half) - half
        phase = (x & ((1 << (5 + f)) - 1)) * 2.0**-f
        off = np.abs(small * 2.0**-out - evaluate_series(s, phase))
        bound = np.sqrt(2) * (count * UNIT + total * 2.0 ** -s.dealt_bits(out))
        assert off.max() < bound + 2.0**-out, (f, out, x[off.argmax()])


@pytest.mark.parametrize(
    ("name", "n", "bits"), [("gelu", 5, 31), ("mish", 2100, 18), ("erf", 3, 62)]
)
def test_cost_is_what_is_declared(name: str, n: int, bits: int, rng: np.random.Generator) -> None:
    def program(party: Party, x: Shared) -> Any:
        return measure_graph_call(
            party, party.function(lambda x: series.evaluate_series(party, x, name, bits)), x
        )

    dealer, x = int(rng.integers(3)), rng.integers(-(1 << 16), 1 << 16, n)
    sim = simulate(program, x, fractional_bits=16, dealer=dealer)
    assert_costs(sim.outputs, cost_of(series.evaluate_series, Private((n,)), name, bits), dealer)


def test_ends_are_exact_beyond_the_knots(rng: np.random.Generator) -> None:
    f, bits = 12, 24
    x = np.array([-(1 << 23) + 1, -11 << f, 11 << f, (1 << 23) - 1])

    def program(party: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            return [series.evaluate_series(party, x, name, bits) for name in series.ACTIVATIONS]

        return party.function(graph)(x)

    sim = simulate(program, x, fractional_bits=f, dealer=int(rng.integers(3)))
    for i, (name, bend) in enumerate(series.ACTIVATIONS.items()):
        lower, upper = bend.ends or (0, None)
        high = 2 * x[2:] if upper is None else [upper << f] * 2
        got = sim.value(lambda y, i=i: y[i])  # type: ignore[misc]
        assert np.array_equal(got, [lower << f] * 2 + list(high)), name
        assert sim.outputs[0][i].fractional_bits == f + series.activation_extra_bits(name)


def test_what_does_not_fit_is_refused_in_words() -> None:
    x = Shared(np.zeros(3, np.int64), None, np.zeros(3, np.int64), 0, 16)
    for code, bad in (
        ("unsupported-scale", replace(x, fractional_bits=17)),
        ("unsupported-scale", replace(x, fractional_bits=7)),
        ("unsupported-ring", replace(x, bits=30)),
    ):
        with raises(UsageError, code):
            series.evaluate_series(None, bad, "silu")  # type: ignore[arg-type]
    with raises(UsageError, "unknown-name", operation="series", received="selu"):
        series.evaluate_series(None, x, "selu")  # type: ignore[arg-type]
    s = series.ACTIVATIONS["silu"].series
    for scale, out, bits in ((24, 12, 20), (16, 32, 20), (16, 12, 1), (16, 12, 43)):
        operand = replace(x, fractional_bits=scale)
        with raises(UsageError, "unsupported-scale"):
            harmonics.evaluate_series(None, "h", s, operand, out, bits)  # type: ignore[arg-type]
