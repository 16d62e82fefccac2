"""At every edge an operation is correct, or the workers count a violation of its range."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.arrays.edge_rows import CASES
from tests.arrays.edges import Real, bounds_of, walk_case
from tests.arrays.simulated import Client, Workers, tfb
from tests.refusals import raises
from tfe_bench.errors import RangeError, UsageError


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    workers = Workers(tmp_path_factory.mktemp("edges"))
    yield Client(workers, "ann")
    workers.close()


def _check_case(client: Client, name: str, seed: int, widths: int | None = None) -> None:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    combinations = bounds_of(CASES[name].kinds)
    if widths is not None:
        chosen = rng.choice(len(combinations), min(widths, len(combinations)), replace=False)
        combinations = [combinations[i] for i in chosen]
    right = 0
    for each in combinations:
        report = walk_case(CASES[name], client, each, rng)
        assert not report.wrong, (name, each, len(report.wrong), report.wrong[:4])
        right += report.right
    assert right or widths is not None, f"{name} refuses all that it is given"


# Inexpensive cases that once failed.
DAILY = ("ff add", "ff atan2", "f leaky_relu 1e9", "f clip in 31 bits", "f3 convolution")


@pytest.mark.parametrize("name", DAILY)
def test_edges_are_right_or_counted(client: Client, name: str, seed: int) -> None:
    _check_case(client, name, seed, widths=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_edges_are_right_or_counted(client: Client, name: str, seed: int) -> None:
    _check_case(client, name, seed)


NOT_NUMBERS: dict[str, Callable[[Client, float], Any]] = {
    "an element": lambda c, v: c.private([1.0, v]),
    "a bound": lambda c, v: c.private([1.0], bound=v),
    "a term": lambda c, v: c.private([1.0]) + v,
    "a factor": lambda c, v: c.private([1.0]) * np.array([v]),
    "a divisor": lambda c, v: c.private([1.0]) / v,
    "a power": lambda c, v: c.private([1.0]) ** v,
    "a base": lambda c, v: v ** c.private([1.0]),
    "a limit": lambda c, v: np.clip(c.private([1.0]), 0.0, v),
    "a slope": lambda c, v: tfb.leaky_relu(c.private([1.0]), v),
    "a choice": lambda c, v: np.where(c.private([True]), 1.0, v),
    "a substitute": lambda c, v: tfb.divide(c.private([1.0]), c.private([1.0]), otherwise=v),
}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_what_is_no_number_is_refused(client: Client, name: str, value: float) -> None:
    before = len(client.workers.jobs)
    with pytest.raises((UsageError, RangeError)):
        NOT_NUMBERS[name](client, float(value))
    assert len(client.workers.jobs) == before


def test_kept_integers_compare_in_all_that_a_count_admits(client: Client) -> None:
    client.private(np.array([3, 2**39]), bound=2**63).keep("numbers")
    kept = client.load("numbers")  # (only their 64-bit range is known)
    less, places = client.reveal(kept < 5, tfb.one_hot(kept, 4))
    assert less.tolist() == [True, False] and places.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]


def test_a_power_by_a_large_exponent_is_refused(client: Client) -> None:
    base = client.private([1 + 2.0**-16])
    with raises(RangeError, "values-left-range"):
        (base ** client.private([2.0**14 + 1])).reveal()
    with raises(UsageError, "number-out-of-range", operation="pow"):
        _ = base**16384.5
    assert (base ** client.private([2.0**14])).reveal() == pytest.approx(1.284, rel=0.5)


def test_the_root_of_a_large_sum_of_squares_keeps_its_precision(client: Client) -> None:
    values = np.array([6153.8, -258.1, 20726.0])
    wide = client.private(values, bound=2.0**44)
    norm, std = client.reveal(tfb.norm(wide), wide.std())
    np.testing.assert_allclose([norm, std], [np.linalg.norm(values), values.std()], rtol=2.0**-18)


def test_a_mean_of_many_small_integers_keeps_its_precision(client: Client) -> None:
    """A sum of integers is divided at the scale of its mean, which has 16 bits more."""
    values = np.full(5000, 999)
    values[::2] = -1000
    means = [client.private(v, bound=1000).mean() for v in (values, np.abs(values))]
    expected = [values.mean(), np.abs(values).mean()]
    np.testing.assert_allclose(client.reveal(*means), expected, rtol=0, atol=3 * 2.0**-16)


@pytest.mark.slow
def test_what_a_loop_carries_on_is_right_or_counted(client: Client) -> None:
    for start, factor, turns in (
        (1.0, 2.0, 40),
        (-1e-3, 1e3, 5),
        (2.0**20, 1.0, 9),
        (3.0, 0.5, 64),
    ):
        x = client.private(np.array([start]))
        held = client.compute(tfb.foldl(lambda v, f=factor: v * f, turns, x))[0]
        expected = Real(start) * Real(factor) ** turns
        try:
            result = (held + 0.0).reveal()
        except RangeError:
            assert abs(expected) > 2.0**20
        else:
            assert abs(result[0] - expected) <= turns * 2.0**-15 * max(1.0, abs(float(expected)))
