"""Polynomials and products of private values: error bounds, zero, small rings, costs, views."""

from __future__ import annotations

import decimal
from dataclasses import replace
from decimal import Decimal
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.protocols.dealers import by_a_dealer
from tests.protocols.pads import assert_one_message_each
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import approximation
from tfe_bench.protocols.functions.polynomial import polyval
from tfe_bench.protocols.functions.small_product import multiply_small
from tfe_bench.protocols.ring import truncation
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]


def draw_small(rng: np.random.Generator, bits: int, n: int) -> Array:
    """Return |x| < 2^(bits-1), with the edges first."""
    limit = 2 ** (bits - 1)
    edges = [0, 1, -1, limit - 1, 1 - limit, limit // 2, -limit // 2, limit // 2 - 1]
    return np.concatenate([edges, rng.integers(1 - limit, limit, n - len(edges))])


POLYNOMIALS: list[tuple[list[float], int, int, int | None]] = [
    # coefficients, bits of x, fractional bits of x and of the result
    ([1.0, 0.0], 30, 16, 16),
    ([0.5, -1.25, 3.0, 0.1, -2.0], 19, 16, None),
    ([0.0, 0.0, 1e-3, -7.5, 100.0], 20, 16, None),
    ([1 / 5040, 0, -1 / 120, 0, 1 / 6, 0, -1, 0], 20, 18, 24),
    ([2.0, -1.0, 0.25], 35, 24, 16),
    ([-0.3, 0.2, 1.0, -1.0, 0.5, 0.25, -0.125, 0.9], 17, 16, 20),
    ([3.0, 1.0], 2, 0, 8),
]


@by_a_dealer
def test_polyval_errs_by_less_than_an_ulp_and_a_fifth(
    dealer: int, rng: np.random.Generator
) -> None:
    n = 12000 if dealer == 0 else 500
    xs = [draw_small(rng, bits, n) for _, bits, _, _ in POLYNOMIALS]

    def program(p: Party, *xs: Shared) -> Any:
        def all_of(*xs: Shared) -> list[Shared]:
            return [
                polyval(p, a, replace(x, fractional_bits=f), bits, out)
                for x, (a, bits, f, out) in zip(xs, POLYNOMIALS, strict=True)
            ]

        return p.function(all_of)(*xs)

    sim = simulate(program, *xs, dealer=dealer)
    cost = 0
    for i, (a, bits, f, out) in enumerate(POLYNOMIALS):
        out = f if out is None else out
        got = sim.value(itemgetter(i))
        want = np.polyval(a, xs[i] / 2.0**f) * 2.0**out
        assert np.abs(got - want).max() < 1.2, i
        assert all(o[i].fractional_bits == out for o in sim.outputs)
        declared = cost_of(polyval, tuple(a), Private((n,), f), bits, out)
        assert (declared.rounds, declared.with_dealing) == (1, 2)
        cost += declared.dealer
    assert sim.sent[dealer] == cost
    # independent evaluations share their round
    assert (sim.rounds, sim.with_dealing) == (1, 2)


def test_polyval_takes_values_in_small_rings_and_of_any_shape(rng: np.random.Generator) -> None:
    x = rng.integers(-(2**20), 2**20, (3, 1, 5))

    def program(p: Party, x: Shared) -> Any:
        def cubed(x: Shared) -> Shared:
            return polyval(p, [1.0, 0.0, 0.0, -0.5], truncation.truncate_reduce(p, x, 4, 18), 17)

        return p.function(cubed)(x)

    sim = simulate(program, x, fractional_bits=20)
    want = (x / 2.0**20) ** 3 - 0.5
    assert sim.value().shape == x.shape
    # the preceding truncation is off by an ulp itself, times 3 x^2
    assert np.abs(sim.value() - want * 2**16).max() < 4.3


def test_polyval_refuses_what_does_not_fit() -> None:
    cases: list[tuple[list[float], int]] = [
        ([1.0] * 9, 30),  # more than 256 bits
        ([1.0, float("nan")], 10),
        ([1.0], 10),
        ([0.0, 0.0, 1.0], 10),
        ([1.0, 2.0], 70),
        ([1.0, 2.0], 1),
    ]

    def program(p: Party, x: Shared) -> Any:
        refused = []
        for a, bits in cases:
            with pytest.raises(UsageError):
                p.function(lambda x, a=a, bits=bits: polyval(p, a, x, bits))(x)
            refused.append(True)
        return refused

    simulate(program, np.arange(3), fractional_bits=16)


def test_a_ring_without_room_for_the_sign_is_refused() -> None:
    def program(p: Party, x: Shared) -> Any:
        def tight(x: Shared) -> Shared:
            return polyval(p, [1.0, 0.0], truncation.truncate_reduce(p, x, 4, 16), 16)

        with raises(UsageError, "operand-mismatch"):
            p.function(tight)(x)

    simulate(program, np.arange(3), fractional_bits=20)


PRODUCTS: list[tuple[tuple[int, ...], int, int]] = [
    # bits, drop, ring of the result
    ((31, 31), 16, 64),
    ((54, 27), 40, 64),
    ((40, 12), 30, 30),
    ((20, 20, 20), 32, 64),
    ((2, 33), 0, 64),
]


@by_a_dealer
def test_products_are_rounded_to_a_neighbor_and_zero_stays_zero(
    dealer: int, rng: np.random.Generator
) -> None:
    n = 10000 if dealer == 1 else 300
    xs = [[draw_small(rng, b, n) for b in bits] for bits, _, _ in PRODUCTS]
    for x in xs:
        x[0][rng.random(n) < 0.05] = 0
        x[-1][8:] = rng.permutation(x[-1][8:])

    def program(p: Party, *flat: Shared) -> Any:
        def all_of(*flat: Shared) -> list[Shared]:
            left = iter(flat)
            return [
                multiply_small(p, [(next(left), b) for b in bits], drop, ring)
                for bits, drop, ring in PRODUCTS
            ]

        return p.function(all_of)(*flat)

    sim = simulate(program, *(x for group in xs for x in group), dealer=dealer, fractional_bits=16)
    for i, (bits, drop, ring) in enumerate(PRODUCTS):
        got = sim.value(itemgetter(i))
        exact = np.prod([x.astype(object) for x in xs[i]], axis=0)
        for g, e in zip(got, exact, strict=True):
            above = (int(g) - (e >> drop)) % 2**ring
            assert above == 0 or (above == 1 and e % 2**drop)
        assert sim.outputs[0][i].fractional_bits == 16 * len(bits) - drop
    declared = [
        cost_of(multiply_small, tuple((Private((n,)), b) for b in bits), drop, ring)
        for bits, drop, ring in PRODUCTS
    ]
    assert sim.sent[dealer] == sum(c.dealer for c in declared)
    assert sim.sent[(dealer + 1) % 3] == sum(c.e1 for c in declared)
    assert (sim.rounds, sim.with_dealing) == (1, 2)


def test_product_refuses_other_numbers_of_factors() -> None:
    def program(p: Party, x: Shared) -> Any:
        for count in (1, 4):
            with raises(UsageError, "operand-count"):
                p.function(lambda x, c=count: multiply_small(p, [(x, 8)] * c, 4))(x)

    simulate(program, np.arange(3))


@by_a_dealer
def test_costs_are_as_declared_whatever_the_values(dealer: int) -> None:
    sizes = (1, 63, 1000)
    a = [1.0, -2.0, 0.5, 3.0]

    def program(p: Party, *xs: Shared) -> Any:
        f = p.function(lambda x: polyval(p, a, x, 18), dynamic=True)
        g = p.function(lambda x: multiply_small(p, [(x, 18), (x, 18)], 16, 40), dynamic=True)
        return [measure_graph_call(p, graph, x) for x in xs for graph in (f, g)]

    xs = [v for n in sizes for v in (np.zeros(n, np.int64), np.full(n, 2**17 - 1))]
    calls = zip(*simulate(program, *xs, dealer=dealer, fractional_bits=16).outputs, strict=True)
    operands = [Private((len(x),)) for x in xs]
    costs = [
        c
        for x in operands
        for c in (
            cost_of(polyval, tuple(a), x, 18, None),
            cost_of(multiply_small, ((x, 18), (x, 18)), 16, 40),
        )
    ]
    for call, cost in zip(calls, costs, strict=True):
        assert_costs(call, cost, dealer)


# ---- the parties' views


@by_a_dealer
def test_received_words_are_uniform_and_fresh_for_frozen_shares(
    dealer: int, rng: np.random.Generator, heard: list[list[Any]]
) -> None:
    n = 4096

    def program(p: Party, x: Shared, y: Shared) -> Any:
        def traced(x: Shared, y: Shared) -> Any:
            heard[p.index].clear()
            polyval(p, [1.0, 2.0, 3.0], x, 20)
            multiply_small(p, [(x, 20), (y, 20)], 16)
            return list(heard[p.index])

        f = p.function(traced)
        import tensorflow as tf

        # the same share for every element: only the masks differ
        still = [v.map(lambda a: tf.fill(tf.shape(a), a[0])) for v in (x, y)]
        return [f(*still), f(*still)]

    plain = np.zeros(n, np.int64), np.full(n, 2**19 - 1)
    keys = [rng.bytes(16) for _ in range(3)]
    sim = simulate(program, *plain, dealer=dealer, fractional_bits=16, keys=keys)
    for party in range(3):
        words = [
            np.ascontiguousarray(m).reshape(-1).view(np.uint64)
            for call in sim.outputs[party]
            for m in call
        ]
        if party == dealer:
            assert not words  # the dealer receives nothing
            continue
        every = np.concatenate(words)
        assert len(np.unique(every)) == len(every)
        for message in words:
            for lane in range(8):
                counts = np.bincount(message.view(np.uint8)[lane::8], minlength=256)
                assert stats.chisquare(counts).pvalue > 1e-8


def test_each_mask_hides_one_message_only() -> None:
    def program(p: Party, x: Shared) -> Any:
        f = p.function(
            lambda x: (polyval(p, [1.0, 2.0, 3.0], x, 20), multiply_small(p, [(x, 20)] * 3, 9))
        )
        return f(x), f(x)

    sim = simulate(program, np.arange(100), fractional_bits=4, record=True)
    sent = assert_one_message_each(sim)
    assert len(sent) == 2 * 2 * 3  # calls, protocols; D, E1, E2 send one each


# ---- approximations


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (approximation.decimal_reciprocal, lambda x: 1 / x),
        (approximation.decimal_rsqrt, lambda x: 1 / np.sqrt(x)),
        (Decimal.sqrt, np.sqrt),
        (Decimal.ln, np.log),
    ],
)
@pytest.mark.parametrize("bits", [8, 20, 24])
def test_approximations_are_as_close_as_asked_for(function: Any, reference: Any, bits: int) -> None:
    low, high = Decimal("0.48"), Decimal("1.003")
    error = Decimal(2) ** -bits
    polynomial = approximation.fit_approximation(function, low, high, 30, error, relative=False)
    x = np.linspace(0.48, 1.003, 3001)
    with decimal.localcontext(approximation.DIGITS):
        got = [
            float(
                approximation.evaluate_horner(
                    polynomial.coefficients, Decimal(float(v)) * 2**30 - polynomial.center
                )
                / Decimal(2) ** polynomial.scale
            )
            for v in x
        ]
    assert np.abs(got - reference(x)).max() < 1.01 * 2.0**-bits
    assert polynomial.limit >= max(
        float(high) * 2**30 - polynomial.center, polynomial.center - 0.48 * 2**30
    )


def test_plans_are_the_same_integers_everywhere() -> None:
    # A pinned value: hosts that differ here would compute different polynomials.
    polynomial = approximation.fit_approximation(
        Decimal.ln, Decimal("0.5"), Decimal(1), 12, Decimal(2) ** -10, relative=False
    )
    assert polynomial.coefficients == (-10107253980594, 11449042772, -1974930, 434)
    assert (polynomial.scale, polynomial.center, polynomial.limit) == (45, 3072, 1025)
