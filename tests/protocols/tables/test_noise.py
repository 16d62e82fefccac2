"""Noise has exactly the declared distribution, and includes that of each worker."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.refusals import raises
from tfe_bench.cluster.simulate import share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.tables import noise


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(9, 4), Fraction(8)])
def test_the_sampler_has_the_distribution_of_a_discrete_gaussian(
    variance: Fraction, seed: int
) -> None:
    below = random.Random(seed).randrange
    n, most = 6000, 5 * math.isqrt(int(variance) + 1)
    counts = Counter(noise.draw_discrete_gaussian(variance, below) for _ in range(n))
    exact = {x: np.exp(-(x**2) / (2 * float(variance))) for x in range(-most - 20, most + 21)}
    whole = sum(exact.values())
    bins = [x for x in exact if exact[x] / whole * n >= 8]
    observed = [counts[x] for x in bins]
    due = [exact[x] / whole * n for x in bins]
    observed.append(n - sum(observed))
    due.append(n - sum(due))
    if due[-1] < 8:  # too rare for a separate bin
        observed[-2:], due[-2:] = [sum(observed[-2:])], [sum(due[-2:])]
    assert stats.chisquare(observed, due).pvalue > 1e-6


def test_values_come_back_with_what_the_three_workers_drew(seed: int) -> None:
    count, variance = 4000, Fraction(400)
    drawn = [
        noise.draw_noise(variance, count, random.Random(3 * seed + p).randrange) for p in range(3)
    ]
    x = np.arange(count, dtype=np.int64) - 7

    def program(p: Party) -> Any:
        own = np.array(drawn[p.index], np.int64)
        known = share_for_party(x, p.index, bytes(32))
        return p.function(lambda v, w: noise.add_noise(p, v, w))(known, own)

    due = np.sum(drawn, 0)
    assert np.array_equal(simulate(program).value(), x + due)
    # The sum of squares over the variance is chi-squared, up to 1e-30.
    ratio = float(np.sum(due.astype(float) ** 2)) / (1.5 * float(variance))
    assert stats.chi2.ppf(1e-7, count) < ratio < stats.chi2.ppf(1 - 1e-7, count)


@pytest.mark.parametrize(
    ("variance", "count"),
    [
        (Fraction(16) - Fraction(1, 1 << 60), 1),
        (Fraction(1 << 96) + 1, 1),
        (Fraction(-1), 1),
        (16 + Fraction(1, (1 << 64) + 1), 1),
        (Fraction(16), -1),
        (Fraction(16), (1 << 20) + 1),
    ],
)
def test_noise_that_would_not_hold_is_refused(variance: Fraction, count: int) -> None:
    code = "number-out-of-range" if count == 1 else "too-large"
    with raises(UsageError, code):
        noise.draw_noise(variance, count)


def test_the_edges_of_what_can_be_drawn_hold() -> None:
    assert noise.draw_noise(Fraction(16), 0) == []
    for variance in (Fraction(16), 16 + Fraction(1, 1 << 64), Fraction(1 << 96)):
        assert all(abs(x) < 1 << 62 for x in noise.draw_noise(variance, 20))
