"""Reciprocal and division: relative error over the whole range, documented zeros, costs, views."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
from scipy import stats

from tests.edges import parametrize_daily
from tests.protocols.dealers import by_a_dealer
from tests.protocols.pads import assert_one_message_each
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import reciprocal as r
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]


def draw_magnitudes(rng: np.random.Generator, bits: int, n: int) -> Array:
    """Return 0 < X < 2^bits: all edges, and log-uniform ones."""
    near = [0, 1, -1, 2, -2]
    edges = {2**k + d for k in range(bits + 1) for d in near}
    # where coarse comparisons may have either result
    edges |= {2**k - 2 ** max(k - 5, 0) + d for k in range(bits + 1) for d in (-1, 0, 1)}
    fixed = np.array(sorted(e for e in edges if 0 < e < 2**bits), np.int64)
    drawn = np.floor(2.0 ** rng.uniform(0, bits, n)).astype(np.int64)
    return np.concatenate([fixed, np.minimum(drawn, 2**bits - 1)])


def with_the_rest(x: Array, bits: int) -> Array:
    """Return these with zero and negative values."""
    return np.concatenate([[0, 1 - 2**bits], x, -x[::7]])


def plain_inverse(x: Array, f: int, signed: bool = False) -> Array:
    """Return the expected ring elements as reals."""
    safe = np.where(x == 0, 1, x).astype(float)
    y = 2.0 ** (2 * f) / safe
    return np.where((x == 0) | ((x < 0) & (not signed)), 0.0, y)


def is_within(got: Array, want: Array, precision: float, ulp: float) -> None:
    """Check |got - want| <= 2^-precision |want| + ulp."""
    off = np.abs(got.astype(float) - want) - 2.0**-precision * np.abs(want)
    worst = int(np.argmax(off))
    assert off[worst] <= ulp, (worst, got[worst], want[worst])


CASES: list[tuple[int, int, int, bool]] = [
    # fractional bits, bits, precision, signed
    (16, 62, 20, False),
    (16, 62, 20, True),
    (8, 62, 20, False),
    (24, 62, 22, False),
    (16, 31, 12, False),
    (20, 13, 20, False),
    (16, 12, 16, False),
    (4, 2, 6, False),
]
# The widest, the most bits of a fraction, one stage, and the narrowest.
DAILY = [(16, 62, 20, True), (24, 62, 22, False), (16, 12, 16, False), (4, 2, 6, False)]


@parametrize_daily("case", CASES, DAILY, ids=str)
def test_reciprocal_is_right_over_the_whole_range(
    case: tuple[int, int, int, bool], rng: np.random.Generator
) -> None:
    f, bits, precision, signed = case
    x = with_the_rest(draw_magnitudes(rng, bits, 10000), bits)

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: r.reciprocal(p, x, bits, precision, signed))(x)

    sim = simulate(program, x, fractional_bits=f)
    got, want = sim.value(), plain_inverse(x, f, signed)
    is_within(got, want, precision, 1.2)
    assert not got[want == 0].any()
    assert sim.outputs[0].fractional_bits == f and sim.outputs[0].ring_bits == 64
    cost = cost_of(r.reciprocal, Private((len(x),), f), bits, precision, signed)
    assert (sim.sent, sim.rounds, sim.with_dealing) == (
        cost.by_party(0),
        cost.rounds,
        cost.with_dealing,
    )
    assert cost.rounds == (5 if bits <= 12 else 9)


def draw_quotients(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return x, y > 0 with quotients in the domain at 16 fractional bits."""
    y = draw_magnitudes(rng, 62, n)
    x = np.floor(2.0 ** rng.uniform(0, 30, len(y))).astype(np.int64)
    x = np.where(rng.random(len(y)) < 0.02, 2**30 - 1, x) * rng.choice([-1, 1], len(y))
    keep = np.abs(x / y.astype(float)) < 2.0**13.9
    x[:3], keep[:3] = 0, True
    return x[keep], y[keep]


def test_quotients_err_relative_to_themselves(rng: np.random.Generator) -> None:
    x, y = draw_quotients(rng, 12000)
    sign = rng.choice([-1, 1], len(y))
    public, dealer = 3.25, int(rng.integers(3))
    y_public = draw_magnitudes(rng, 62, 300)
    y_public = y_public[y_public > 2**4]
    counted, alone = Private((len(y),)), Private((len(y_public),))
    cost = [
        cost_of(r.divide, counted, counted),
        cost_of(r.divide, counted, counted, signed=True),
        cost_of(r.divide, public, alone),
    ]

    def program(p: Party, x: Shared, y: Shared, z: Shared, alone: Shared) -> Any:
        return p.function(
            lambda x, y, z, alone: [
                r.divide(p, x, y),
                r.divide(p, x, z, signed=True),
                r.divide(p, public, alone),
            ]
        )(x, y, z, alone)

    exact = x.astype(float) / y * 2.0**16
    zero = rng.random(len(y)) < 0.02
    y, exact = np.where(zero, 0, y), np.where(zero, 0, exact)
    sim = simulate(program, x, y, y * sign, y_public, dealer=dealer, fractional_bits=16)
    for i, want in enumerate((exact, exact * sign)):
        got = sim.value(itemgetter(i))
        is_within(got, want, 20, 1.25)
        assert not got[zero].any()  # division by zero
    is_within(sim.value(itemgetter(2)), public * 2.0**32 / y_public, 20, 1.25)
    roles = [sum(getattr(c, k) for c in cost) for k in ("dealer", "e1", "e2")]
    assert sim.sent == tuple(roles[(p - dealer) % 3] for p in range(3))
    assert (sim.rounds, sim.with_dealing) == (9, 10) == (cost[0].rounds, cost[0].with_dealing)


@parametrize_daily(
    ("f", "bits"), [(8, 62), (20, 31), (24, 62), (16, 20), (10, 12)], [(24, 62), (10, 12)]
)
def test_quotients_are_right_at_other_scales_and_ranges(
    f: int, bits: int, rng: np.random.Generator
) -> None:
    y = draw_magnitudes(rng, bits, 3000)
    x = rng.integers(0, 2 ** (30 if f < 24 else 29), len(y)) >> rng.integers(0, 30, len(y))
    keep = x / y.astype(float) < 2.0 ** (29.9 - f)
    x, y = x[keep], y[keep]

    def program(p: Party, x: Shared, y: Shared) -> Any:
        return p.function(lambda x, y: r.divide(p, x, y, bits))(x, y)

    sim = simulate(program, x, y, fractional_bits=f)
    is_within(sim.value(), x.astype(float) / y * 2.0**f, 20, 1.25 if f <= 20 else 1.7)
    cost = cost_of(r.divide, Private((len(y),), f), Private((len(y),), f), bits)
    assert (sim.sent, sim.rounds) == (cost.by_party(0), cost.rounds)


RANGES: list[tuple[float, float, int]] = [
    # low, high, rounds
    (1, 2, 1),
    (0.5, 1.1, 1),
    (1, 1000, 5),
    (0.25, 100, 5),
    (1, 70000, 9),
]


def test_known_ranges_take_fewer_rounds(rng: np.random.Generator) -> None:
    xs, f = [], int(rng.choice([8, 16, 20]))
    for low, high, _ in RANGES:
        first, last = int(np.ceil(low * 2**f)), int(high * 2**f)
        x = rng.integers(first, last + 1, 2000)
        edges = [c for k in range(62) for c in (2**k - 1, 2**k, 2**k + 1) if first <= c <= last]
        xs.append(np.concatenate([[first, last], edges, x]))

    def program(p: Party, *xs: Shared) -> Any:
        return [
            p.function(lambda x, a=low, b=high: r.reciprocal_in(p, x, a, b))(x)
            for x, (low, high, _) in zip(xs, RANGES, strict=True)
        ]

    sim = simulate(program, *xs, fractional_bits=f)
    for i, (low, high, rounds) in enumerate(RANGES):
        is_within(sim.value(itemgetter(i)), plain_inverse(xs[i], f), 20, 1.45)
        assert cost_of(r.reciprocal_in, Private((1,), f), low, high).rounds == rounds
    costs = [
        cost_of(r.reciprocal_in, Private((len(x),), f), a, b)
        for x, (a, b, _) in zip(xs, RANGES, strict=True)
    ]
    assert sim.sent == tuple(sum(c.by_party(0)[p] for c in costs) for p in range(3))
    assert (sim.rounds, sim.with_dealing) == (
        sum(c.rounds for c in costs),
        sum(c.with_dealing for c in costs),
    )


FUNCTIONS: dict[str, Callable[[Party, Shared], Shared]] = {
    "reciprocal": lambda p, x: r.reciprocal(p, x, 12, 10),
    "divide": lambda p, x: r.divide(p, x, x, 31, True, 10),
    "reciprocal_in": lambda p, x: r.reciprocal_in(p, x, 1, 2),
}


@by_a_dealer
def test_costs_are_as_declared_whatever_the_values(dealer: int) -> None:
    xs = [np.zeros(65, np.int64), np.full(65, 2**17 + 5), np.ones(1, np.int64)]

    def program(p: Party, *xs: Shared) -> Any:
        graphs = [
            p.function(lambda x, run=run: run(p, x), dynamic=True) for run in FUNCTIONS.values()
        ]
        return [measure_graph_call(p, graph, x) for x in xs for graph in graphs]

    calls = zip(*simulate(program, *xs, dealer=dealer, fractional_bits=16).outputs, strict=True)
    costs = [cost_of(run, Private((len(x),))) for x in xs for run in FUNCTIONS.values()]
    for call, cost in zip(calls, costs, strict=True):
        assert_costs(call, cost, dealer)


def test_shapes_and_empty_tensors_pass_through() -> None:
    x = np.arange(1, 25, dtype=np.int64).reshape(2, 3, 4) << 16

    def program(p: Party, x: Shared) -> Any:
        def both(x: Shared) -> Any:
            nothing = x.map(lambda a: a[:0])
            return r.reciprocal(p, x, 31), r.reciprocal(p, nothing, 31)

        return p.function(both)(x)

    sim = simulate(program, x, fractional_bits=16)
    got = sim.value(itemgetter(0))
    assert got.shape == x.shape
    is_within(got.reshape(-1), plain_inverse(x, 16).reshape(-1), 20, 1.2)
    assert sim.value(itemgetter(1)).shape == (0, 3, 4)


def test_bad_arguments_are_refused() -> None:
    bad: list[tuple[Callable[[Party, Shared], Any], str]] = [
        (lambda p, x: r.reciprocal(p, x, 63), "number-out-of-range"),
        (lambda p, x: r.reciprocal(p, x, 1), "number-out-of-range"),
        (lambda p, x: r.reciprocal(p, x, 62, 23), "number-out-of-range"),
        (lambda p, x: r.reciprocal_in(p, x, 0, 1), "invalid-range"),
        (lambda p, x: r.reciprocal_in(p, x, 2, 1), "invalid-range"),
        (lambda p, x: r.divide(p, x, x, numerator_bits=50), "unsupported-scale"),
    ]

    def program(p: Party, x: Shared) -> Any:
        for call, code in bad:
            with raises(UsageError, code):
                p.function(lambda x, call=call: call(p, x))(x)

    simulate(program, np.arange(3), fractional_bits=16)
    with raises(UsageError, "unsupported-scale"):
        cost_of(r.reciprocal, Private((1,), 25))


# ---- the parties' views


def test_received_words_are_uniform_and_do_not_depend_on_the_value(
    rng: np.random.Generator, heard: list[list[Any]]
) -> None:
    n, dealer = 4096, int(rng.integers(3))

    def program(p: Party, *xs: Shared) -> Any:
        import tensorflow as tf

        def traced(x: Shared) -> Any:
            heard[p.index].clear()
            r.divide(p, x, x, 31, signed=True)
            return list(heard[p.index])

        f = p.function(traced)
        still = [x.map(lambda a: tf.fill(tf.shape(a), a[0])) for x in xs]
        return [f(x) for x in (*still, still[-1])]

    plain = [np.full(n, v) for v in (0, 1, -(2**20) - 3)]
    sim = simulate(program, *plain, dealer=dealer, fractional_bits=16)
    for party in range(3):
        calls = sim.outputs[party]
        if party == dealer:
            assert not any(calls)
            continue
        for messages in zip(*calls, strict=True):
            for message in messages:
                counts = np.bincount(
                    np.ascontiguousarray(message).reshape(-1).view(np.uint8), minlength=256
                )
                assert stats.chisquare(counts).pvalue > 1e-9
            # packed bytes: compare eight at a time
            words = [np.ascontiguousarray(m).reshape(-1).view(np.uint8) for m in messages]
            whole = [w[: len(w) // 8 * 8].view(np.uint64) for w in words]
            every = np.concatenate(whole)
            assert len(np.unique(every)) == len(every)


def test_each_mask_hides_one_message_only() -> None:
    def program(p: Party, x: Shared) -> Any:
        f = p.function(lambda x: r.divide(p, x, x, 31, signed=True))
        return f(x), f(x)

    sim = simulate(program, np.arange(100), fractional_bits=16, record=True)
    sent = assert_one_message_each(sim)
    assert len(sent) > 100
