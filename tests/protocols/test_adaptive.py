"""Updates of adaptive optimizers: right to 2^-6 for all variances, at the declared cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.protocols.pads import assert_one_message_each
from tests.protocols.shares import assert_declared
from tests.refusals import raises
from tfe_bench.cluster.simulate import (
    assert_costs,
    measure_graph_call,
    reconstruct,
    share_for_party,
    simulate,
)
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import adaptive
from tfe_bench.protocols.ring import relational, truncation
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
MANY = 10_000


def draw_variances(rng: np.random.Generator) -> Array:
    """Return ring elements from 1 to 2^46: powers of two, neighbors, and random magnitudes."""
    edges = {2**k + d for k in range(47) for d in (-1, 0, 1)} | {2**46 - 1}
    near = {int(2**k * (1 + e)) for k in range(46) for e in (-0.04, -0.03, -0.01, 0.01)}
    fixed = sorted(v for v in edges | near | set(range(1, 70)) if 0 < v < 2**46)
    return np.concatenate([fixed, np.exp2(rng.uniform(0, 46, MANY))]).astype(np.int64)


@by_a_dealer
@pytest.mark.parametrize("f", [24, 28])
def test_directions_are_right_to_6_bits(dealer: int, f: int, rng: np.random.Generator) -> None:
    v = draw_variances(rng)
    # values of an optimizer: below 8, often 0
    want = rng.standard_normal(len(v)) * rng.choice([0, 0.01, 1, 2], len(v))
    m = np.round(want * np.sqrt(v / 2.0**40) * 2.0**f).astype(np.int64)
    m[: len(v) // 9] = rng.integers(-(2**10), 2**10, len(v) // 9)
    zero = np.zeros(100, np.int64)
    m, v = np.concatenate([m, np.arange(-50, 50)]), np.concatenate([v, zero])

    def program(p: Party, m: Shared, v: Shared) -> Any:
        m, v = replace(m, fractional_bits=f), replace(v, fractional_bits=40)
        return p.function(lambda m, v: adaptive.scale_by_root(p, m, v))(m, v)

    sim = simulate(program, m, v, dealer=dealer)
    assert sim.outputs[0].fractional_bits == f + adaptive.RESULT_BITS
    got = sim.value() / 2.0 ** (f + adaptive.RESULT_BITS)
    assert not got[m == 0].any()
    exact = m / 2.0**f / np.sqrt(np.where(v == 0, adaptive.EPSILON**2, v / 2.0**40))
    rel = (got / np.where(m == 0, 1, exact))[(m != 0) & (v > 0)] - 1
    assert np.abs(rel).max() < 2.0**-6
    assert np.sqrt(np.mean(rel**2)) < 2.0**-7 and abs(rel.mean()) < 2.0**-9
    none = (m != 0) & (v == 0)
    assert np.all(np.abs(got[none] / exact[none] - 1) < 0.15)


def test_each_party_deals_for_a_third(rng: np.random.Generator) -> None:
    n = 60_000
    v = np.exp2(rng.uniform(5, 40, n)).astype(np.int64).reshape(-1, 10)
    m = np.round(np.sqrt(v / 2.0**40) * 2.0**28).astype(np.int64)

    def program(p: Party, m: Shared, v: Shared) -> Any:
        m, v = replace(m, fractional_bits=28), replace(v, fractional_bits=40)
        f = p.function(lambda m, v: adaptive.scale_by_root(p, m, v, profile="wan"))
        return f(m, v), measure_graph_call(p, f, m, v)

    sim = simulate(program, m, v, dealer=1)
    parts = [out[0] for out in sim.outputs]
    assert all(p.dealer == 1 for p in parts)
    got = reconstruct(parts) / 2.0**41
    assert got.shape == v.shape and np.abs(got - 1).max() < 2.0**-6
    cost = cost_of(adaptive.scale_by_root, Private((n,), 28), Private((n,), 40), profile="wan")
    assert_costs([out[1] for out in sim.outputs], cost, 1)
    assert max(cost.dealer, cost.e1, cost.e2) < 900 * n


@by_a_dealer
def test_it_costs_what_it_declares(dealer: int) -> None:
    def run(p: Party, n: int) -> Any:
        m = share_for_party(np.full(n, 77), p.index, b"m", 28, dealer)
        v = share_for_party(np.full(n, 12345), p.index, b"v", 40, dealer)
        return measure_graph_call(p, p.function(lambda m, v: adaptive.scale_by_root(p, m, v)), m, v)

    def declared(n: int) -> Cost:
        cost = cost_of(adaptive.scale_by_root, Private((n,), 28), Private((n,), 40))
        assert (cost.rounds, cost.with_dealing) == (9, 10)
        return cost

    assert_declared(dealer, (1, 63, 65, 1000), run, declared)


@by_a_dealer
def test_products_with_a_small_rings_factor_are_exact(
    dealer: int, rng: np.random.Generator
) -> None:
    rings = (3, 8, 26, 63)
    x = rng.integers(-(2**63), 2**63, MANY)
    y = [rng.integers(-(2 ** (k - 2)) + 1, 2 ** (k - 2), MANY) for k in rings]
    for k, some in zip(rings, y, strict=True):
        edges = [0, 1, -1, 2 ** (k - 2) - 1, 1 - 2 ** (k - 2)]
        some[:5] = [e for e in edges if abs(e) < 2 ** (k - 2)] + [0] * sum(
            abs(e) >= 2 ** (k - 2) for e in edges
        )

    def program(p: Party, x: Shared, *ys: Shared) -> Any:
        def function(x: Shared, *ys: Shared) -> Any:
            results = []
            for k, y in zip(rings, ys, strict=True):
                double = y.map(lambda a: a * 2)  # no bits are dropped
                small = truncation.truncate_reduce(p, double, 1, k)
                results.append(adaptive.lifted_product(p, x, small))
            return results

        return p.function(function)(x, *ys)

    sim = simulate(program, x, *y, dealer=dealer)
    for i, factor in enumerate(y):
        with np.errstate(over="ignore"):
            want = x * factor
        assert np.array_equal(reconstruct([out[i] for out in sim.outputs]), want)


def test_amsgrads_maximum_takes_three_rounds(rng: np.random.Generator) -> None:
    x, y = (np.exp2(rng.uniform(0, 45, MANY)).astype(np.int64) for _ in range(2))

    def program(p: Party, x: Shared, y: Shared) -> Any:
        f = p.function(lambda x, y: relational.maximum(p, x, y, bits=47, exchanges=1))
        return f(x, y), measure_graph_call(p, f, x, y)

    sim = simulate(program, x, y, fractional_bits=40)
    assert np.array_equal(reconstruct([out[0] for out in sim.outputs]), np.maximum(x, y))
    operand = Private((MANY,), 40)
    cost = cost_of(relational.maximum, operand, operand, bits=47, exchanges=1)
    assert_costs([out[1] for out in sim.outputs], cost)
    assert cost.rounds == 3


def test_each_mask_hides_one_message_only(rng: np.random.Generator) -> None:
    def program(p: Party, m: Shared, v: Shared) -> Any:
        v = replace(v, fractional_bits=40)
        f = p.function(lambda m, v: adaptive.scale_by_root(p, m, v))
        return f(m, v), f(m, v)

    sim = simulate(program, *rng.integers(1, 2**30, (2, 65)), record=True)
    assert_one_message_each(sim)


def test_bad_input_gets_typed_errors() -> None:
    def program(p: Party, x: Shared) -> Any:
        v = replace(x, fractional_bits=40)
        cases: list[tuple[Any, Any, str]] = [
            (x, replace(x, fractional_bits=39), "unsupported-scale"),
            (replace(x, fractional_bits=33), v, "unsupported-scale"),
            (x, v.map(lambda a: a[:1]), "shape-mismatch"),
            (replace(x, bits=30), v, "unsupported-ring"),
            (np.zeros(2), v, "not-private"),
        ]
        for m, variance, code in cases:
            with raises(UsageError, code):
                adaptive.scale_by_root(p, m, variance)
        with raises(UsageError, "unknown-name"):
            adaptive.scale_by_root(p, x, v, profile="fast")
        small = replace(x, bits=20)
        cases = [
            (x, x, "unsupported-ring"),
            (small, small, "unsupported-ring"),
            (x, small.map(lambda a: a[:1]), "shape-mismatch"),
            (x, 3, "not-private"),
        ]
        for a, b, code in cases:
            with raises(UsageError, code):
                adaptive.lifted_product(p, a, b)
        return 0

    simulate(program, np.zeros(2, np.int64), fractional_bits=24)
