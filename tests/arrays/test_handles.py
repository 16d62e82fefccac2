"""Arrays that stay at the workers until their release, their expiry, or a limit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arrays.simulated import Client, Workers
from tests.refusals import raises
from tfe_bench.cluster.handles import HandleStore
from tfe_bench.errors import PolicyError, UsageError


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    stores = Workers(tmp_path, max_held_per_client=1 << 16, max_held=100_000)
    yield stores
    stores.close()


def test_a_loop_holds_what_it_uses_and_its_plan_does_not_grow(workers: Workers) -> None:
    client = Client(workers, "ann")
    x = client.private(np.arange(4.0)).compute()
    y = x
    for _ in range(4):
        y = (y + x).compute()
    gc.collect()
    np.testing.assert_allclose(y.reveal(), 5 * np.arange(4.0), atol=1e-3)
    sizes = [len(str(job["plan"])) for job in workers.jobs[1:5]]
    # (sums exceed their first bounds in two iterations; the counts stay the same from then on)
    assert abs(sizes[-1] - sizes[-2]) < 20 and max(sizes) < 800
    # (x, y, and the number of sums that were too large)
    assert workers.count_held("ann") == [(3, workers.count_held("ann")[0][1])] * 3
    del x, y
    gc.collect()
    client.private(np.ones(1)).reveal()
    assert workers.count_held("ann") == [(0, 0)] * 3


def test_handles_are_of_one_client_and_expire(workers: Workers) -> None:
    client = Client(workers, "ann")
    y = client.private(np.arange(3)).compute()
    other = Client(workers, "bob")
    stolen = y.__class__(other, y._node)  # type: ignore[arg-type]
    with raises(UsageError, "handle-not-found"):
        stolen.reveal()
    workers.now = 59.0
    np.testing.assert_array_equal(y.reveal(), range(3))
    workers.now = 118.0  # (each use renews the lease)
    np.testing.assert_array_equal((y + 1).reveal(), range(1, 4))
    workers.now = 179.0
    with raises(UsageError, "handle-not-found"):
        y.reveal()
    assert workers.count_held("ann") == [(0, 0)] * 3


def test_one_worker_without_it_fails_the_job(workers: Workers) -> None:
    client = Client(workers, "ann")
    y = client.private(np.arange(3)).compute()
    workers.stores[2].handles.release_handles("ann", ["*"])
    with raises(UsageError, "handle-not-found", party=2):
        y.reveal()


def test_bounds_of_bytes_are_the_operators(workers: Workers) -> None:
    client = Client(workers, "ann")
    first = client.private(np.zeros(3000)).compute()
    with raises(PolicyError, "held-limit-exceeded", expected=65536):
        client.private(np.zeros(3000)).compute()
    Client(workers, "bob").private(np.zeros(2000)).compute()
    with raises(PolicyError, "held-limit-exceeded", expected=100_000):
        Client(workers, "eve").private(np.zeros(2000)).compute()
    del first
    gc.collect()
    client.private(np.zeros(3000)).compute()


def test_200_handles_leave_nothing(rng: np.random.Generator) -> None:
    now = [0.0]
    handles = HandleStore(
        0, max_bytes=1 << 20, per_client=1 << 19, seconds=5.0, clock=lambda: now[0]
    )
    for i in range(200):
        handles.put_value("ann", f"{i:032x}", object(), None, int(rng.integers(1, 1000)))
        if i % 2:
            handles.release_handles("ann", [f"{i:032x}", f"{i - 1:032x}"])
    assert handles.count_handles("ann") == (0, 0)
    handles.put_value("ann", "a", object(), None, 8)
    with raises(UsageError, "duplicate-handle"):
        handles.put_value("ann", "a", object(), None, 8)
    handles.release_handles("bob", ["a", "*"])
    assert handles.count_handles("ann")[0] == 1
    now[0] = 6.0
    assert handles.count_handles("ann") == (0, 0)


def test_a_handle_is_no_way_to_take_another_name(workers: Workers) -> None:
    client = Client(workers, "ann")
    client.private(np.arange(3)).compute()
    parameters: dict[str, Any] = dict(workers.jobs[-1])
    parameters["plan"]["leaves"][0][0] = "handle"
    with raises(UsageError, "invalid-leaf", operation="source"):
        client.run("compute", parameters, {})
