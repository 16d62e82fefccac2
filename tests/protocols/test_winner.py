"""Greedy choice: a row with one 1 at the position of each row's largest value."""

from __future__ import annotations

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import gumbel, winner
from tfe_bench.protocols.ring import small_ring
from tfe_bench.protocols.session.counting import Private, cost_of, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


@pytest.mark.parametrize(
    ("rows", "width", "k", "dealer"),
    [
        *((1, 1, 12, 0), (2, 2, 12, 1), (5, 7, 5, 2), (3, 130, 9, 0), (1, 1200, 22, 1)),
        *((1, 11, 64, 2), (3, 9, 63, 0), (2, 20, 50, 1), (2, 20, 49, 2)),
    ],
)
def test_the_first_of_the_largest_is_chosen(
    rows: int, width: int, k: int, dealer: int, rng: np.random.Generator
) -> None:
    """Check the largest allowed differences, all kinds of ties, and the cost on the wire."""
    half = 1 << (min(k, 62) - 2)
    x = rng.integers(-half, half, (rows, width))
    x[0] = half - 1 if width < 100 else rng.integers(-2, 2, width)
    x[-1, rng.integers(width)] = half - 1
    x[-1, rng.integers(width)] = -half
    # The values themselves are arbitrary: a row may lie anywhere in the ring.
    words = x + rng.integers(0, 1 << min(k, 62), (rows, 1))

    def program(p: Party, x: Shared) -> Shared:
        def graph(x: Shared) -> Shared:
            return winner.argmax_one_hot(p, small_ring.reduce_ring(x, k))

        choice: Shared = p.function(graph)(x)
        return choice

    done = simulate(program, words, dealer=dealer)
    assert np.array_equal(done.value(), np.eye(width, dtype=np.int64)[x.argmax(1)])
    cost = cost_of(winner.argmax_one_hot, Private((rows, width), 0, k % 64))
    assert done.sent == cost.by_party(dealer)
    assert (done.rounds, done.with_dealing) == (cost.rounds, cost.with_dealing)


def test_a_vocabulary_is_chosen_from_in_few_rounds() -> None:
    for profile in ("local", "wan"):
        cost = cost_of(winner.argmax_one_hot, Private((1, 50257), 0, 20), profile)
        assert cost.rounds <= 25 and cost.total <= 8 * 5_000_000
    assert cost.rounds <= 21


def test_noise_is_gumbel_s_and_bounded(rng: np.random.Generator) -> None:
    draws = gumbel.draw_gumbel((500, 100), 2.0, 12, rng.bytes) / 2.0**13
    # moments of the standard distribution: mean 0.5772, deviation pi / sqrt(6), median -log(log(2))
    assert abs(draws.mean() - 0.57722) < 0.04 and abs(draws.std() - 1.28255) < 0.04
    assert abs(np.median(draws) - 0.36651) < 0.04
    for byte in (b"\0", b"\xff"):
        (furthest,) = gumbel.draw_gumbel((1,), 1.0, 12, lambda n, b=byte: b * n)  # type: ignore[misc]
        assert 3 << 12 < abs(int(furthest)) < gumbel.MAX_MAGNITUDE << 12
    first, second = (gumbel.draw_gumbel((9,), 1.0, 12) for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("temperature", [-0.1, 8.1, np.nan, np.inf, "1", True, None])
def test_what_is_no_temperature_is_refused(temperature: object) -> None:
    with raises(UsageError, "number-out-of-range", operation="temperature"):
        gumbel.check_gumbel_temperature(temperature)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (5,), (2, 3, 4)])
def test_rows_without_values_are_refused(shape: tuple[int, ...]) -> None:
    with raises(UsageError, "shape-mismatch", operation="one_hot"):
        count_cost(winner.argmax_one_hot, Private(shape, 0, 12))
