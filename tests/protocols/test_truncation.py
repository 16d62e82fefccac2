"""Truncation rounds without bias within its bound, never fails in its range, costs as declared."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.shares import assert_costs_of_all
from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import convert, refresh
from tfe_bench.protocols.ring.truncation import (
    truncate,
    truncate_reduce,
)
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
SIZES = (1, 63, 64, 65, 1000)
MANY = 10_000


def edge_values(bound: int) -> list[int]:
    """Return 0, +-1, 2^k and its neighbors and the ends of (-bound, bound)."""
    top = (bound - 1).bit_length()
    numbers = {s * (2**k + d) for s in (1, -1) for k in range(top) for d in (-1, 0, 1)}
    return sorted(v for v in numbers | {bound - 1, 1 - bound} if abs(v) < bound)


def values_below(bound: int, rng: np.random.Generator) -> Array:
    return np.concatenate([edge_values(bound), rng.integers(1 - bound, bound, MANY)]).astype(
        np.int64
    )


def floor_and_fraction(x: Array, f: int) -> tuple[Array, Array]:
    return x >> f, (x & (2**f - 1)) / 2**f


@pytest.mark.parametrize("dealer", range(3))
@pytest.mark.parametrize(
    ("how", "below", "dropped", "most", "bias"),
    [
        ("safe", 2**62, (1, 16, 31, 48), 1.0, 0.0),
        # three floors of f bits, recentered by half a unit
        ("probable", 2**20, (1, 8, 16), 1.5, 1.0),
    ],
    ids=["safe_below_2_62", "probable_below_2_20"],
)
def test_truncation_errs_less_than_it_says_and_without_other_bias(
    dealer: int,
    how: str,
    below: int,
    dropped: tuple[int, ...],
    most: float,
    bias: float,
    seed: int,
    rng: np.random.Generator,
) -> None:
    x = values_below(below, rng)
    sim = simulate(
        lambda p, x: p.function(lambda x: [truncate(p, x, f, how) for f in dropped])(x),
        x,
        dealer=dealer,
        seed=seed.to_bytes(4, "little"),
        fractional_bits=50,
    )
    for i, f in enumerate(dropped):
        floor, fraction = floor_and_fraction(x, f)
        error = sim.value(itemgetter(i)) - floor - fraction
        assert np.all(np.abs(error) < most), f
        # a coin of variance at most 1/4: six standard deviations of the mean
        assert abs(np.mean(error[-MANY:]) + bias * 2.0 ** -(f + 1)) < 6 * 0.5 / MANY**0.5, f
        assert all(out[i].fractional_bits == 50 - f for out in sim.outputs)


@pytest.mark.parametrize("dealer", range(3))
def test_truncate_reduce_errs_less_than_one_ulp_modulo_2_k_for_every_k_it_admits(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    # Modulo 2^k no value is too large.
    x = np.concatenate([values_below(2**46, rng), values_below(2**63, rng), [INT64.min]])
    cases = [(16, 31), (16, 48), (16, 2), (1, 63), (48, 16), (48, 2)]
    sim = simulate(
        lambda p, x: p.function(lambda x: [truncate_reduce(p, x, t, k) for t, k in cases])(x),
        x,
        dealer=dealer,
        seed=seed.to_bytes(4, "little"),
        fractional_bits=16,
    )
    for i, (t, k) in enumerate(cases):
        floor, fraction = floor_and_fraction(x, t)
        got = sim.value(itemgetter(i))
        up = (got - floor.astype(object)) % 2**k
        error = up.astype(np.float64) - fraction
        assert set(up) <= {0, 1} and np.all(np.abs(error) < 1), (t, k)
        assert abs(np.mean(error)) < 6 * 0.5 / MANY**0.5, (t, k)
        for out in sim.outputs:
            assert (out[i].ring_bits, out[i].fractional_bits) == (k, 16 - t)


def to_nearest(x: Array, f: int) -> list[int]:
    """Return x / 2^f, halves up, in Python's integers."""
    return [(int(v) + (1 << (f - 1))) >> f for v in x]


@pytest.mark.parametrize("third", range(3))
def test_exact_truncation_rounds_to_the_nearest_for_every_width_it_drops(
    third: int, seed: int, rng: np.random.Generator
) -> None:
    widths = range(1 + third, 49, 3)
    x = np.concatenate([values_below(2**62, rng)[::4], [-(2**62)]])
    halves = [np.array([d + (1 << (f - 1)) for d in (-1, 0, 1)]) for f in widths]
    x = np.concatenate([x, *halves, *(h - (9 << f) for f, h in zip(widths, halves, strict=True))])
    sim = simulate(
        lambda p, x: p.function(lambda x: [truncate(p, x, f, "exact") for f in widths])(x),
        x,
        dealer=third,
        seed=seed.to_bytes(4, "little"),
        fractional_bits=50,
    )
    for i, f in enumerate(widths):
        fits = x < 2**62 - (1 << (f - 1))
        got = sim.value(itemgetter(i))
        assert got[fits].tolist() == to_nearest(x[fits], f), f
        assert all(out[i].fractional_bits == 50 - f for out in sim.outputs)


def test_what_an_exact_truncation_reveals_depends_on_no_mask(rng: np.random.Generator) -> None:
    """Open the same values under 80 masks: "safe" discloses a coin, "exact" nothing."""
    f = 16
    x = np.concatenate([rng.integers(-(2**40), 2**40, 200), [1 << (f - 1), -(1 << (f - 1))]])
    opened: dict[str, Array] = {}
    for method in ("safe", "exact"):

        def program(p: Party, x: Shared, method: str = method) -> Any:
            def published(x: Shared) -> Any:
                return io.reveal(p, truncate(p, refresh.refresh(p, x), f, method))

            graph = p.function(published)
            return [graph(x) for _ in range(80)]

        opened[method] = np.array(simulate(program, x).outputs[0])
    assert (opened["exact"] == to_nearest(x, f)).all()
    # (one face only: below 2^-32 for a fraction within 1 / 4 of a half)
    _, fraction = floor_and_fraction(x, f)
    coins = (opened["safe"] != opened["safe"][0]).any(axis=0)
    assert coins[np.abs(fraction - 0.5) < 1 / 4].all()


def test_truncation_keeps_shapes_also_empty_and_scalar() -> None:
    inputs = [np.full(shape, 5 << 16) for shape in ((), (2, 0), (2, 3, 4))]

    def program(p: Party, *x: Shared) -> Any:
        def truncated(*x: Shared) -> list[Shared]:
            safe = [truncate(p, v, 16) for v in x]
            reduced = [truncate_reduce(p, v, 16, 31) for v in x]
            exact = [truncate(p, v, 16, "exact") for v in x]
            return [*safe, *reduced, *exact, *(truncate(p, v, 16, "probable") for v in x)]

        return p.function(truncated)(*x)

    sim = simulate(program, *inputs)
    for i in range(12):
        got = np.asarray(sim.value(itemgetter(i)))
        assert got.shape == inputs[i % 3].shape
        # nothing is rounded here; only the probabilistic method errs then
        assert np.all(np.abs(got.astype(np.float64) - 5) <= (1 if i >= 9 else 0))


REFUSED: dict[str, Callable[[Party, Shared], Any]] = {
    "0 bits": lambda p, x: truncate(p, x, 0),
    "49 bits": lambda p, x: truncate(p, x, 49),
    "an unknown method": lambda p, x: truncate(p, x, 16, "saef"),
    "a wide value": lambda p, x: truncate(p, convert.extend_to_wide(p, x, 1), 16),
    "49 bits to the nearest": lambda p, x: truncate(p, x, 49, "exact"),
    "a small ring's value to the nearest": lambda p, x: truncate(
        p, truncate_reduce(p, x, 1, 31), 16, "exact"
    ),
    "a value of a small ring": lambda p, x: truncate(p, truncate_reduce(p, x, 1, 31), 16),
    "0 bits reduced": lambda p, x: truncate_reduce(p, x, 0, 31),
    "a ring of 1 bit": lambda p, x: truncate_reduce(p, x, 16, 1),
    "a ring of more bits than are left": lambda p, x: truncate_reduce(p, x, 16, 49),
    "a small ring reduced": lambda p, x: truncate_reduce(p, truncate_reduce(p, x, 1, 31), 1, 2),
}


@pytest.mark.parametrize("what", REFUSED)
def test_truncation_refuses(what: str) -> None:
    with raises(UsageError, "number-out-of-range", "unsupported-ring", "unknown-name") as caught:
        simulate(lambda p, x: p.function(lambda x: REFUSED[what](p, x))(x), np.arange(3))
    assert str(caught.value.operation).startswith("truncate")


COSTS: list[Callable[[Party, Shared], Shared]] = [
    lambda p, x: truncate(p, x, 16),
    lambda p, x: truncate(p, x, 13),
    lambda p, x: truncate(p, x, 13, "probable"),
    lambda p, x: truncate(p, x, 16, "exact"),
    lambda p, x: truncate(p, x, 1, "exact"),
    lambda p, x: truncate(p, x, 48, "exact"),
    lambda p, x: truncate_reduce(p, x, 16, 31),
    lambda p, x: truncate_reduce(p, x, 1, 63),
]


@pytest.mark.parametrize("dealer", range(3))
def test_truncation_costs_what_it_says_whatever_the_values(
    dealer: int, rng: np.random.Generator
) -> None:
    inputs = [x for n in SIZES for x in (np.zeros(n, np.int64), rng.integers(-(2**20), 2**20, n))]

    assert_costs_of_all(COSTS, inputs, dealer)
