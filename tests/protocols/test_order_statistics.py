"""The k largest are TensorFlow's; quantiles are NumPy's within their bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.protocols.shares import EDGES, output_at
from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import order_statistics as order
from tfe_bench.protocols.order.sort import sort
from tfe_bench.protocols.ring.truncation import truncate_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
QS = (0, 0.0, 0.1, 0.25, 1 / 3, 0.5, 0.7, 1 - 2**-30, 0.999, 1, 1.0)


def plain_largest(x: Array, k: int) -> tuple[Array, Array]:
    places = np.argsort(~x, axis=-1, kind="stable")[..., :k]  # ~x has no overflow
    return np.take_along_axis(x, places, axis=-1), places


@by_a_dealer
def test_the_k_largest_and_their_places_are_exact_and_of_equal_ones_the_first_comes_first(
    dealer: int, rng: np.random.Generator
) -> None:
    many = rng.integers(INT64.min, INT64.max, (100, 100), endpoint=True)
    many[:50] = rng.integers(-3, 4, (50, 100))
    edges = rng.permuted(np.stack([EDGES, EDGES[::-1]]), axis=1)
    cube = rng.integers(-3, 4, (2, 3, 4, 5))
    cases: list[tuple[Array, int]] = [
        (many, 7),
        (edges, 5),
        (edges, edges.shape[1]),
        *((cube, k) for k in range(1, 6)),
        (cube[0, 0, 0], 2),
        (cube[..., :1], 1),
    ]

    def program(p: Party, *shares: Shared) -> Any:
        return [order.top_k(p, x, k) for x, (_, k) in zip(shares, cases, strict=True)]

    sim = simulate(program, *(x for x, _ in cases), dealer=dealer, fractional_bits=5)
    for i, (x, k) in enumerate(cases):
        for j, want in enumerate(plain_largest(x, k)):
            got = sim.value(output_at(i, j))
            assert got.shape == want.shape and np.array_equal(got, want), (i, j)
            assert all(out[i][j].fractional_bits == 5 * (1 - j) for out in sim.outputs)


def test_every_algorithm_gives_the_same(rng: np.random.Generator) -> None:
    x = rng.integers(-9, 10, (4, 11))

    def program(p: Party, x: Shared) -> Any:
        return [
            (*order.top_k(p, x, 3, algorithm=a), order.median(p, x, algorithm=a, profile="wan"))
            for a in ("quick", "all-pairs", "network")
        ]

    sim = simulate(program, x)
    for i in range(3):
        for j, want in enumerate((*plain_largest(x, 3), np.median(x, axis=-1))):
            assert np.array_equal(sim.value(output_at(i, j)), want)


def exact_quantile(x: Array, q: float) -> tuple[list[Fraction], list[int]]:
    """Return quantiles of rows without rounding, and the distances of the two neighbors."""
    rows = np.sort(x.reshape(-1, x.shape[-1]), axis=1)
    place = Fraction(q) * (rows.shape[1] - 1)
    below = min(int(place), rows.shape[1] - 1)
    above = min(below + 1, rows.shape[1] - 1)
    quantiles, gaps = [], []
    for row in rows:
        gap = int(row[above]) - int(row[below])
        quantiles.append(int(row[below]) + (place - below) * gap)
        gaps.append(gap)
    return quantiles, gaps


def check_quantile(got: Array, x: Array, q: float) -> None:
    exact, gaps = exact_quantile(x, q)
    assert got.shape == x.shape[:-1]
    for value, want, gap in zip(got.reshape(-1), exact, gaps, strict=True):
        assert abs(int(value) - want) < 1 + Fraction(gap, 2**17), (q, want)


@by_a_dealer
def test_quantiles_are_within_their_bound_of_the_exact_ones(
    dealer: int, rng: np.random.Generator
) -> None:
    # neighbors less than 2^46 apart
    x = rng.integers(-(2**44), 2**44, (400, 30))
    x[:50] = rng.integers(-2, 3, (50, 30))
    x[50:60] = rng.choice(EDGES[abs(EDGES.astype(float)) < 2**45], (10, 30))
    x[60, :] = np.where(np.arange(30) < 15, -(2**45), 2**45 - 1)
    some = [x[:20, :n] for n in (1, 2, 3, 10)] + [x[:6, :8].reshape(3, 2, 8), x[0]]

    def program(p: Party, x: Shared, *some: Shared) -> Any:
        few = QS if dealer == 0 else QS[4:6]
        return (
            [order.quantile(p, x, q) for q in few],
            [[order.quantile(p, s, q) for q in (0.3, 0.5)] for s in some],
            [order.median(p, s) for s in (x, *some)],
        )

    sim = simulate(program, x, *some, dealer=dealer, fractional_bits=16)
    for i, q in enumerate(QS if dealer == 0 else QS[4:6]):
        check_quantile(sim.value(output_at(0, i)), x, q)
        assert all(out[0][i].fractional_bits == 16 for out in sim.outputs)
    for i, s in enumerate(some):
        for j, q in enumerate((0.3, 0.5)):
            check_quantile(sim.value(output_at(1, i, j)), s, q)
    for i, s in enumerate((x, *some)):
        got = sim.value(output_at(2, i))
        check_quantile(got, s, 0.5)
        assert np.all(abs(got - np.median(s, axis=-1)) < 1)
    odd = sim.value(output_at(2, 3))
    assert np.array_equal(odd, np.median(some[2], axis=-1))  # nothing is rounded


def test_the_ends_and_places_on_a_value_are_exact_on_the_whole_ring(
    rng: np.random.Generator,
) -> None:
    x = rng.permuted(np.tile(EDGES[:381], (2, 1)), axis=1)
    assert x.shape[1] % 4 == 1
    qs = (0.0, 0.25, 0.5, 0.75, 1.0)

    def program(p: Party, x: Shared) -> Any:
        return [order.quantile(p, x, q) for q in qs]

    sim = simulate(program, x)
    for i, q in enumerate(qs):
        want = np.sort(x, axis=1)[:, int(q * (x.shape[1] - 1))]
        assert np.array_equal(sim.value(output_at(i)), want)


def test_a_place_of_few_bits_leaves_room_for_distant_neighbors() -> None:
    half = np.array([[-(2**60), 2**60], [2**62 - 2**61, 2**62 - 1], [0, 2**61]])
    eighth = half >> 3

    def program(p: Party, half: Shared, eighth: Shared) -> Any:
        return order.median(p, half), order.quantile(p, eighth, 0.125)

    sim = simulate(program, half, eighth)
    check_quantile(sim.value(output_at(0)), half, 0.5)
    check_quantile(sim.value(output_at(1)), eighth, 0.125)


def test_they_cost_what_their_sort_does_and_one_truncation_whatever_the_values(
    rng: np.random.Generator,
) -> None:
    """Count costs of the network: the shuffle of a quicksort is fresh in every run."""
    inputs = [np.zeros((3, 8), np.int64), rng.integers(-(2**40), 2**40, (3, 8))]
    by: dict[str, Any] = {"algorithm": "network"}
    calls: list[Callable[[Party, Shared], Any]] = [
        lambda p, x: sort(p, x, descending=True, **by),
        lambda p, x: order.top_k(p, x, 2, **by),
        lambda p, x: sort(p, x, **by),
        lambda p, x: order.quantile(p, x, 1.0, **by),
        lambda p, x: order.median(p, x, **by),
        lambda p, x: order.quantile(p, x, 0.3, **by),
    ]

    def program(p: Party, *shares: Shared) -> Any:
        result = []
        for x in shares:
            for call in calls:
                p.reset_counters()
                call(p, x)
                rounds = p.rounds()
                result.append((8 * sum(p.counters()["payload"]), sum(r.ahead for r in rounds)))
        return result

    sim = simulate(program, *inputs, dealer=2)
    more = [truncate_cost(3, bits).by_party(2) for bits in (1, 16)]
    for party, out in enumerate(sim.outputs):
        assert out[:6] == out[6:]
        falling, top, rising, last, half, other = out[:6]
        assert top == falling and last == rising
        assert half[0] == rising[0] + more[0][party]
        assert other[0] == rising[0] + more[1][party]
        one = 0 if party == 2 else 1  # the dealer receives nothing
        assert half[1] <= rising[1] + one and other[1] <= rising[1] + one


def test_no_rows_give_no_results() -> None:
    def program(p: Party, x: Shared) -> Any:
        return *order.top_k(p, x, 2), order.median(p, x)

    sim = simulate(program, np.zeros((0, 4), np.int64))
    assert [sim.value(output_at(i)).shape for i in range(3)] == [(0, 2), (0, 2), (0,)]


Use = Callable[[Party, Shared], Any]


def two_words(x: Shared) -> Shared:
    import tensorflow as tf

    return replace(x.map(lambda a: tf.stack([a, a], axis=-1)), limbs=2)


REFUSED: dict[str, tuple[str, str, Use]] = {
    "k = 0": ("number-out-of-range", "top_k", lambda p, x: order.top_k(p, x, 0)),
    "k beyond the row": ("number-out-of-range", "top_k", lambda p, x: order.top_k(p, x, 7)),
    "k below 0": ("number-out-of-range", "top_k", lambda p, x: order.top_k(p, x, -1)),
    "half a k": ("number-out-of-range", "top_k", lambda p, x: order.top_k(p, x, 1.5)),  # type: ignore[arg-type]
    "a truth value as k": ("number-out-of-range", "top_k", lambda p, x: order.top_k(p, x, True)),
    "top_k of a public tensor": ("not-private", "top_k", lambda p, x: order.top_k(p, np.arange(3))),  # type: ignore[arg-type]
    "top_k of a scalar": (
        "empty-input",
        "top_k",
        lambda p, x: order.top_k(p, x.map(lambda a: a[0, 0])),
    ),
    "top_k of no values": (
        "empty-input",
        "top_k",
        lambda p, x: order.top_k(p, x.map(lambda a: a[:, :0])),
    ),
    "top_k of two words": ("unsupported-ring", "top_k", lambda p, x: order.top_k(p, two_words(x))),
    "top_k of a small ring": (
        "unsupported-ring",
        "top_k",
        lambda p, x: order.top_k(p, replace(x, bits=31)),
    ),
    "an unknown algorithm": (
        "unknown-name",
        "sort algorithm",
        lambda p, x: order.top_k(p, x, 1, algorithm="quik"),
    ),
    "q below 0": ("number-out-of-range", "quantile", lambda p, x: order.quantile(p, x, -0.01)),
    "q above 1": ("number-out-of-range", "quantile", lambda p, x: order.quantile(p, x, 1.01)),
    "q not a number": (
        "number-out-of-range",
        "quantile",
        lambda p, x: order.quantile(p, x, float("nan")),
    ),
    "q a text": ("number-out-of-range", "quantile", lambda p, x: order.quantile(p, x, "0.5")),  # type: ignore[arg-type]
    "q a truth value": ("number-out-of-range", "quantile", lambda p, x: order.quantile(p, x, True)),
    "quantile of a public tensor": (
        "not-private",
        "quantile",
        lambda p, x: order.quantile(p, np.arange(3), 0.5),  # type: ignore[arg-type]
    ),
    "quantile of no values": (
        "empty-input",
        "quantile",
        lambda p, x: order.quantile(p, x.map(lambda a: a[:, :0]), 0.5),
    ),
    "quantile of two words": (
        "unsupported-ring",
        "quantile",
        lambda p, x: order.quantile(p, two_words(x), 0.5),
    ),
    "median of a public tensor": (
        "not-private",
        "median",
        lambda p, x: order.median(p, np.arange(3)),  # type: ignore[arg-type]
    ),
    "median of a scalar": (
        "empty-input",
        "median",
        lambda p, x: order.median(p, x.map(lambda a: a[0, 0])),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_order_statistics_refuse(what: str) -> None:
    code, name, use = REFUSED[what]
    with raises(UsageError, code, operation=name):
        simulate(use, np.zeros((2, 6), np.int64))
