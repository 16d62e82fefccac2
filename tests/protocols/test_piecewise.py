"""Piecewise linear functions: close to the exact function, from any ring, in three rounds."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from tests.protocols.dealers import by_a_dealer
from tests.protocols.pads import assert_one_message_each
from tests.refusals import raises
from tfe_bench.cluster.simulate import (
    assert_costs,
    measure_graph_call,
    reconstruct,
    share_for_party,
    simulate,
)
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import piecewise
from tfe_bench.protocols.ring import truncation
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
MANY = 10_000


def sigmoid(v: Array) -> Array:
    return np.asarray(0.5 + np.tanh(v / 2) / 2)


def draw_values(limit: float, rng: np.random.Generator) -> Array:
    """Return knots and their neighbors, the ends of the domain, and values of all sizes."""
    knots = np.array(piecewise.logistic_pieces().knots) / 64
    near = np.concatenate([knots + d * 2.0**-11 for d in (-2, -1, 0, 1, 2)])
    ends = [limit, -limit, 0, 2.0**-16, -(2.0**-16), 8.01, -8.01]
    wide = rng.uniform(-1, 1, MANY // 4) * 2.0 ** rng.uniform(-12, np.log2(limit), MANY // 4)
    return np.concatenate([near, ends, rng.uniform(-9, 9, MANY), wide])


@by_a_dealer
def test_the_logistic_function_from_every_scale_and_ring(
    dealer: int, rng: np.random.Generator
) -> None:
    v = draw_values(2.0**12 - 1, rng)
    scales = (12, 16, 40)
    ring = [np.round(v * 2.0**f).astype(np.int64) for f in scales]

    def program(p: Party, *shares: Shared) -> Any:
        def function(*x: Shared) -> Any:
            inputs = [replace(a, fractional_bits=f) for a, f in zip(x, scales, strict=True)]
            # as an untruncated hidden product: 30 bits, 16 of them fractional
            inputs.append(truncation.truncate_reduce(p, inputs[2], 24, 30))
            return [piecewise.logistic(p, a) for a in inputs]

        return p.function(function)(*shares)

    sim = simulate(program, *ring, dealer=dealer)
    for i in range(4):
        parts = [out[i] for out in sim.outputs]
        assert parts[0].fractional_bits == 20 and parts[0].ring_bits == 64
        got = reconstruct(parts) / 2.0**20
        x = ring[min(i, 2)] / 2.0 ** scales[min(i, 2)]
        off = got - sigmoid(x)
        assert np.abs(off).max() < 2.0**-10.5, (i, np.abs(off).max())
        assert np.abs(off.mean()) < 2.0**-13
        assert np.all(got[x >= 8.01] == 1) and np.all(got[x <= -8.01] == 0)


def test_other_functions_have_pieces_too(rng: np.random.Generator) -> None:
    pieces = piecewise.fit_piecewise_linear(lambda x: x * x / 16, -4, 4, 1, 1, Decimal(2) ** -10)
    assert pieces.error <= 2.0**-10 and pieces.slopes[-1] == 0
    v = np.concatenate([rng.uniform(-4, 4, MANY), rng.uniform(-90, 90, 500)])
    x = np.round(v * 2.0**20).astype(np.int64).reshape(-1, 4)

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: piecewise.evaluate_pieces(p, "square", x, pieces, None))(x)

    sim = simulate(program, x, fractional_bits=20)
    got = sim.value() / 2.0**20
    want = np.minimum(v * v / 16, 1).reshape(-1, 4)
    assert got.shape == want.shape
    # the rounding of x times the slope, and a neighbor's piece slightly beyond its end
    assert np.abs(got - want).max() < pieces.error + 0.5 * 1.5 * 2.0**-11 + 2.0**-10


@by_a_dealer
def test_it_costs_what_it_declares(dealer: int) -> None:
    cases = [(1, 16, 64), (128, 40, 64), (65, 16, 30), (128, 16, 30)]

    def program(p: Party) -> Any:
        results = []
        for n, f, ring in cases:
            x = share_for_party(np.full(n, 12345), p.index, b"x", f, dealer)
            x = replace(x, bits=0 if ring == 64 else ring)
            g = p.function(lambda x: piecewise.logistic(p, x))
            results.append(measure_graph_call(p, g, x))
        return results

    sim = simulate(program, dealer=dealer)
    for i, (n, f, ring) in enumerate(cases):
        cost = cost_of(piecewise.logistic, Private((n,), f, ring % 64))
        assert_costs([out[i] for out in sim.outputs], cost, dealer)
        assert (cost.rounds, cost.with_dealing) == (3, 4)


def test_each_mask_hides_one_message_only(rng: np.random.Generator) -> None:
    def program(p: Party, x: Shared) -> Any:
        f = p.function(lambda x: piecewise.logistic(p, x))
        return f(x), f(x)

    sim = simulate(program, rng.integers(-9, 9, 64) << 15, fractional_bits=16, record=True)
    assert_one_message_each(sim)


def test_bad_input_gets_typed_errors() -> None:
    def program(p: Party, x: Shared) -> Any:
        for wrong, code in (
            (replace(x, fractional_bits=11), "unsupported-scale"),
            (replace(x, fractional_bits=45), "unsupported-scale"),
            (replace(x, bits=20), "unsupported-ring"),
        ):
            with raises(UsageError, code, operation="logistic"):
                piecewise.logistic(p, wrong)
        with raises(UsageError, "unsupported-ring"):
            piecewise.logistic(p, x, bits=21)
        with raises(UsageError, "not-private"):
            piecewise.logistic(p, np.zeros(3))  # type: ignore[arg-type]
        return 0

    simulate(program, np.zeros(3, np.int64), fractional_bits=16)
