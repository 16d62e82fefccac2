"""Runs of expressions: they send the priced bytes, equal to those of an installed program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers, tfb, traced_from_now
from tests.refusals import raises
from tfe_bench import LocalCluster
from tfe_bench.arrays import explaining
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import PolicyError
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

X = np.linspace(-2, 2, 24).reshape(6, 4)
W = np.linspace(-1, 1, 8).reshape(4, 2)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    stores = Workers(tmp_path)
    yield stores
    stores.close()


def dense_layer(x: Any, w: Any) -> Any:
    """Compute the same expression for private arrays and for parties' values."""
    h = tfb.sigmoid(x @ w + np.array([0.5, -0.5]), bits=40)
    return tfb.reduce_mean(tfb.where(h > 0.5, h * h, -h) / 3, axis=0)


def test_an_expression_sends_what_is_said_and_what_a_program_sends(workers: Workers) -> None:
    client = Client(workers, "ann")
    y = dense_layer(
        client.private(X, bound=2), client.private(W, bound=1)
    )  # (as small as the plain operation)
    _, price = explaining.price_array_reveal(y._node)
    result = y.reveal()
    assert workers.last is not None

    def program(party: Party, x: Shared, w: Shared) -> Shared:
        output: Shared = party.function(dense_layer)(x, w)
        return output

    ring = [FixedPoint(16).encode(each) for each in (X, W)]
    plain = simulate(program, *ring, fractional_bits=16)
    expected = FixedPoint(16).decode(plain.value())
    np.testing.assert_allclose(result, expected, atol=1e-3)
    assert workers.last.sent == plain.sent == price.cost.by_party(0)
    assert workers.last.to == plain.to
    rounds = (price.cost.rounds, price.cost.with_dealing)
    assert (plain.rounds, plain.with_dealing) == rounds
    assert (workers.last.rounds, workers.last.with_dealing) == rounds
    assert f"{price.cost.rounds} rounds" in y.explain("wan")


@pytest.mark.parametrize("then", ["reveal", "handle", "bits", "sort"])
def test_what_is_said_is_sent(then: str, workers: Workers) -> None:
    client = Client(workers, "ann")
    x = client.private(X).compute()
    y = {
        "reveal": x + 1,
        "handle": x.sum(axis=0),
        "bits": x[:2] > 0,
        "sort": tfb.reverse(tfb.sort(x[0]), [0]),
    }[then]
    _, price = explaining.price_array_reveal(y._node)
    y.reveal()
    assert workers.last is not None
    if then != "sort":  # (the number of comparisons depends on a shuffle)
        assert workers.last.sent == price.cost.by_party(0)
    assert price.cost.total > 0  # fresh masks: others may know the masks of a held array


def test_the_second_run_of_an_expression_traces_nothing(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(workers, "ann")
    w = client.private(W).compute()
    (dense_layer(client.private(X), w)).reveal()
    traced = traced_from_now(monkeypatch)
    (dense_layer(client.private(X + 1), (w + 0).compute())).reveal()
    traced.clear()
    (dense_layer(client.private(X - 1), (w + 0).compute())).reveal()
    assert not traced
    Client(workers, "bob").private(X).sum().reveal()
    assert traced


def test_results_do_not_depend_on_what_was_computed_together(workers: Workers) -> None:
    client = Client(workers, "ann")
    x, b = client.private(X), client.private(X > 0)
    top, places = tfb.top_k(x, 2)
    parts = client.compute(x.sum(axis=0), b, top, places, x)
    np.testing.assert_allclose(parts[0].reveal(), X.sum(0), atol=1e-3)
    np.testing.assert_array_equal((~parts[1]).reveal(), X <= 0)
    np.testing.assert_array_equal(parts[3].reveal(), np.argsort(-X, kind="stable")[:, :2])
    np.testing.assert_allclose((parts[2][:, 0] - parts[4].max(axis=1)).reveal(), 0, atol=1e-4)


def test_a_shape_without_axes_and_one_without_elements(workers: Workers) -> None:
    client = Client(workers, "ann")
    result = (client.private(2.5) * 2).reveal()
    assert result == 5.0 and np.shape(result) == ()
    assert client.private(True).reveal() is np.True_
    assert client.private(np.zeros((0, 3))).reveal().shape == (0, 3)


def test_operators_may_refuse_what_costs_too_much(tmp_path: Path) -> None:
    workers = Workers(tmp_path, max_sent_per_job=10_000)
    client = Client(workers, "ann")
    assert (client.private(np.ones(4)) > 0).reveal().all()
    with raises(PolicyError, "too-large", operation="a job with this traffic", expected="10000"):
        tfb.exp(client.private(np.ones(1000))).reveal()
    workers.close()


def test_regression_by_hand(cluster: LocalCluster, rng: np.random.Generator) -> None:
    """Check ten lines that a client runs: two handles remain, and only the model is revealed."""
    x = rng.normal(size=(64, 3))
    t = (x @ [2.0, -1.0, 0.5] > 0) * 1.0
    rows, labels = cluster.compute(cluster.private(x), cluster.private(t))
    w, plain = cluster.private(np.zeros(3)).compute(), np.zeros(3)
    for _ in range(3):
        error = tfb.sigmoid(rows @ w) - labels
        w = (w - error @ rows / 16).compute()
        plain = plain - (1 / (1 + np.exp(-x @ plain)) - t) @ x / 16
    np.testing.assert_allclose(w.reveal(), plain, atol=5e-3)
