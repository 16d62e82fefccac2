"""Ordinary amounts are correct in expressions; incorrect results are refused with an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers, tfb
from tests.refusals import raises
from tfe_bench.arrays import bounds, operations
from tfe_bench.errors import RangeError, UsageError


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    workers = Workers(tmp_path_factory.mktemp("bounds"))
    yield Client(workers, "ann")
    workers.close()


def test_every_operation_has_a_rule() -> None:
    unknown = bounds.widest_result_bounds
    assert not [o.name for o in operations.list_operations().values() if o.bounds is unknown]


PAY = 40000 + 9000 * np.sin(np.arange(300.0))
HOURS = 10 + 50 * np.abs(np.cos(np.arange(300.0)))
MASK = np.arange(300) % 3 > 0
# Expressions of amounts as functions of (pay, hours, mask), by their plaintext form.
AMOUNTS: dict[str, Callable[..., Any]] = {
    "std": lambda p, h, m: p.std(),
    "var": lambda p, h, m: p.var(),
    "norm": lambda p, h, m: np.linalg.norm(p),
    "over the mean": lambda p, h, m: p / p.mean(),
    "by the hour": lambda p, h, m: p / h,
    "masked mean": lambda p, h, m: np.where(m, p, 0.0).sum() / np.where(m, h * 0 + 1.0, 0.0).sum(),
    "square": lambda p, h, m: p**2,
    "mean square": lambda p, h, m: (p * p).mean(),
    "inner product": lambda p, h, m: p @ p,
    "z": lambda p, h, m: (p - p.mean()) / p.std(),
    "columns": lambda p, h, m: p.reshape(100, 3).std(0),
}


def test_ordinary_amounts_are_right(client: Client) -> None:
    pay, hours, mask = (client.private(v) for v in (PAY, HOURS, MASK))
    expressions = [of(pay, hours, mask) for of in AMOUNTS.values()]
    for (name, of), result in zip(AMOUNTS.items(), client.reveal(*expressions), strict=True):
        expected = np.asarray(of(PAY, HOURS, MASK))
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=5e-5, err_msg=name)


FAR, NEAR = np.array([20000.0, -5e5, 0.25]), np.array([20000.0, 1.0, -0.5])
WHOLE, PARTS = np.array([3000000000, -17, 2**35]), np.array([7, 5, -1])
# By name: the expression, and its plaintext form.
OTHERS: dict[str, tuple[Callable[[Client], Any], Any]] = {
    "angles": (lambda c: np.arctan2(c.private(FAR), c.private(NEAR)), np.arctan2(FAR, NEAR)),
    "floors": (lambda c: c.private(WHOLE) // c.private(PARTS), WHOLE // PARTS),
    "remainders": (lambda c: c.private(FAR) % 7.5, FAR % 7.5),
    "powers": (lambda c: c.private([-2.0, 3.0]) ** c.private([3, 2]), [-8, 9]),
    "a base": (lambda c: 2.0 ** c.private([3.0, -1.0]), [8, 0.5]),
    "a median": (lambda c: np.median(c.private([1, 2])), 1.5),
    "a quantile": (lambda c: tfb.quantile(c.private([1, 2, 3, 4]), 0.25), 1.75),
    "a mean": (lambda c: c.private(np.full(100000, 20000.0)).mean(), 20000),
    "products": (lambda c: c.private([1.5, 2.0, -3e2, 4e2, 1.0]).prod(), -36e4),
    "a chosen quotient": (
        lambda c: tfb.divide(c.private([1.0, 2.0]), c.private([0.0, 4.0]), otherwise=-1.0),
        [-1, 0.5],
    ),
    "a chosen logarithm": (lambda c: tfb.log(c.private([0.0, 1.0]), otherwise=5.0), [5, 0]),
}


@pytest.mark.slow
def test_others_are_right(client: Client) -> None:
    result = client.reveal(*(of(client) for of, _ in OTHERS.values()))
    for (name, (_, expected)), value in zip(OTHERS.items(), result, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4, err_msg=name)


REFUSED: dict[str, Callable[[Client], Any]] = {
    "a division by 0": lambda c: c.private([1.0, 2.0]) / c.private([0.0, 1.0]),
    "a root": lambda c: np.sqrt(c.private([-1.0])),
    "a logarithm": lambda c: np.log(c.private([0.0, 1.0])),
    "a reciprocal": lambda c: tfb.reciprocal(c.private([0.0])),
    "an exponent": lambda c: np.exp(c.private([32.0])),
    "a square": lambda c: c.private([1e9], bound=1e9) ** 2,
    "an angle": lambda c: np.arctan2(c.private([1e10], bound=1e10), c.private([1.0])),
    "a floor": lambda c: c.private([2**50], bound=2**51) // c.private([7]),
    "bits": lambda c: tfb.relu(c.private([1e5]), bits=31),
    "whole numbers": lambda c: c.private(np.array([2**62, -(2**62)]), bound=2**63).max(),
    "an array": lambda c: c.private([2e6]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_client_knows_is_refused_before_anything_is_sent(client: Client, name: str) -> None:
    before = len(client.workers.jobs)
    with raises(RangeError, "own-values-out-of-range", "outside-bound"):
        REFUSED[name](client)
    assert len(client.workers.jobs) == before


def test_what_the_workers_count_is_refused_when_it_is_revealed(client: Client) -> None:
    x = client.private(np.array([1.0, 2.0, 4.0]))
    ratio = client.compute(x / (x - 2.0))[0]
    with raises(RangeError, "values-left-range", operation="divide") as caught:
        (ratio + 1.0).reveal()
    assert "(1 times)" in str(caught.value)
    assert np.isfinite((ratio + 1.0).reveal(check=False)).all()
    with raises(RangeError, "values-left-range", operation="divide"):
        ratio.keep("ratio")


def test_plans_do_not_depend_on_elements(client: Client) -> None:
    def plan(values: Any) -> Any:
        x = client.private(np.asarray(values))
        ((x - x.mean()) / x.std()).reveal(check=True)
        return client.workers.jobs[-1]["plan"]

    assert plan([1.0, 2.0, 4.0]) == plan([1e6, 3.0, 5e5])


def test_a_loop_holds_what_it_carries_on_to_its_bounds(client: Client) -> None:
    x = client.private(np.array([3.0, 1.0]))
    assert np.allclose(tfb.foldl(lambda v: v * 2.0, 10, x).reveal(), [3072.0, 1024.0])
    with raises(RangeError, "values-left-range", operation="foldl"):
        tfb.foldl(lambda v: v * 4.0, 12, x).reveal()


def test_a_client_looks_at_its_own_elements_of_a_loop_itself(client: Client) -> None:
    """Check that the workers count none of them; a large element only causes a refusal."""
    start = client.private(np.zeros((2, 2)))

    def step(total: Any, x: Any) -> Any:
        return total + tfb.transpose(tfb.exp(tfb.transpose(x)))

    def counts(result: Any) -> int:
        result.reveal()
        return str(client.workers.jobs[-1]["plan"]).count("count_")

    rows = np.arange(12.0).reshape(3, 2, 2) / 8
    folded = tfb.foldl(step, client.private(rows), start)
    assert np.allclose(folded.reveal(), np.exp(rows).sum(0), atol=1e-3)
    # (a product is no longer an array of this client)
    assert counts(folded) < counts(tfb.foldl(step, client.private(rows) * 1.0, start))
    before = len(client.workers.jobs)
    with raises(RangeError, "own-values-out-of-range", "outside-bound"):
        tfb.foldl(step, client.private(rows * 1e3), start).reveal()
    assert len(client.workers.jobs) == before

    def part(total: Any, x: Any) -> Any:  # (the other elements have no effect)
        return total + tfb.exp(x[:1])

    small, large = rows.copy(), rows.copy()
    large[:, 1] = 1e3
    plans = [counts(tfb.foldl(part, client.private(x), start)) for x in (small, large)]
    assert plans[0] == plans[1] > 0


@pytest.mark.parametrize("bound", [-1.0, (2, 1), "1", float("nan"), (1, 2, 3), True])
def test_bounds_are_numbers(client: Client, bound: Any) -> None:
    with raises(UsageError, "invalid-bound"):
        client.private([0.0], bound=bound)


def test_declared_bounds_save_bytes_and_are_shown(client: Client) -> None:
    wide = client.private(PAY) * client.private(HOURS)
    narrow = client.private(PAY / 1e5, bound=1) * client.private(HOURS, bound=(0, 64))
    assert "split=" in wide.explain() and "split=" not in narrow.explain()
    assert "64" in narrow.explain()
