"""Sealed jobs: workers refuse a program that opens values; results tell what was opened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cluster.conftest import Trio
from tests.refusals import raises
from tfe_bench.cluster.job_results import JobResultCollector, _check_same_openings
from tfe_bench.cluster.jobs import DECLARED, NOTHING
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.policy import WorkerPolicy
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import PolicyError, ProtocolError
from tfe_bench.protocols.session.openings import (
    SHUFFLED_COMPARISONS,
    SHUFFLED_POSITIONS,
    VALUES,
    Opening,
    decode_openings,
    encode_openings,
    repeat_openings,
)

KEYS = {"keys": PrivateInput(np.arange(40, dtype=np.int64)[::-1].copy())}
ALL_PAIRS = {"algorithm": "all-pairs", "warm_up": 0}
OPENED = (Opening(SHUFFLED_COMPARISONS, 780, 780),)


@pytest.fixture
def sealed(shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    monkeypatch.setattr(shared_cluster, "sealed", True)
    return shared_cluster


def test_a_result_tells_what_was_opened_as_announced(
    shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[Any] = []
    monkeypatch.setattr(shared_cluster, "on_openings", announced.append)
    result = shared_cluster.run("sort", ALL_PAIRS, KEYS)
    assert result.opened == OPENED and announced == [OPENED]
    result = shared_cluster.run("sort", {**ALL_PAIRS, "repeat": 2, "warm_up": 1}, KEYS)
    assert result.opened == announced.pop() == repeat_openings(OPENED, 3)
    result = shared_cluster.run("sort", {"algorithm": "network"}, KEYS)
    assert result.opened == () and len(announced) == 1


def test_a_sealed_job_that_would_open_is_refused_before_it_runs(sealed: LocalCluster) -> None:
    with raises(PolicyError, "opening-not-permitted", operation=SHUFFLED_COMPARISONS) as error:
        sealed.run("sort", ALL_PAIRS, KEYS)
    assert "780 of them, 780 bits" in str(error.value)
    result = sealed.run("sort", {"algorithm": "network"}, KEYS)
    np.testing.assert_array_equal(result.outputs["keys"], np.arange(40))


@pytest.mark.parametrize(
    ("how", "kinds"),
    [("reveal", {VALUES}), ("lookup", {SHUFFLED_COMPARISONS, SHUFFLED_POSITIONS})],
)
def test_a_program_that_declares_nothing_runs_unsealed_alone(
    trio: Trio, how: str, kinds: set[str]
) -> None:
    client, x = trio.client("analyst"), {"x": PrivateInput(np.arange(8))}
    announced: list[Any] = []
    client.on_openings, client.sealed = announced.append, True
    with raises(PolicyError, "opening-not-permitted"):
        client.run("opening", {"how": how}, x)
    client.sealed = False
    result = client.run("opening", {"how": how}, x)
    assert {opening.what for opening in result.opened} == kinds and announced == [None]


@pytest.mark.parametrize("party", range(3))
@pytest.mark.parametrize("other", [(), None, (replace(OPENED[0], to=1),)])
def test_workers_that_state_different_openings_end_the_job(
    shared_cluster: LocalCluster, party: int, other: Any
) -> None:
    announced: list[Any] = []
    collector = JobResultCollector(shared_cluster.config, None, announced.append)
    stated = {p: other if p == party else OPENED for p in range(3)}
    with raises(ProtocolError, "inconsistent-results", operation="openings"):
        _check_same_openings(stated)
    for first in range(2):
        collector._accept(first, stated[first])
    with raises(ProtocolError, "inconsistent-results", operation="openings"):
        collector._accept(2, stated[2])
    assert not announced and not collector._admitted.is_set()


def test_the_largest_of_three_averages_is_announced(shared_cluster: LocalCluster) -> None:
    announced: list[Any] = []
    collector = JobResultCollector(shared_cluster.config, None, announced.append)
    larger = (replace(OPENED[0], count=781, bits=781),)
    for party, stated in enumerate((OPENED, larger, OPENED)):
        collector._accept(party, stated)
    assert announced == [larger] and collector._admitted.is_set()
    with raises(ProtocolError, "inconsistent-results", operation="openings"):
        _check_same_openings({0: OPENED, 1: larger, 2: OPENED})


def test_an_operator_refuses_jobs_that_open(shared_cluster: LocalCluster) -> None:
    for policy in (WorkerPolicy(1, opens=NOTHING), WorkerPolicy(1, opens=DECLARED)):
        assert policy.permit_openings((), is_sealed=True) == ()
        with raises(PolicyError, "opening-not-permitted", operation=SHUFFLED_COMPARISONS):
            policy.permit_openings(OPENED, is_sealed=True)
        assert policy.permit_openings(None, is_sealed=True) == ()
    assert WorkerPolicy(1).permit_openings(None, is_sealed=False) is None
    assert WorkerPolicy(1).permit_openings(OPENED, is_sealed=False) == {SHUFFLED_COMPARISONS}
    strict = WorkerPolicy(1, opens=NOTHING)
    assert strict.permit_openings(None, is_sealed=False) == ()
    with raises(PolicyError, "opening-not-permitted", party=1) as error:
        strict.permit_openings(OPENED, is_sealed=False)
    assert 'opens = "declared" in worker.toml' in str(error.value)


@pytest.mark.parametrize(
    "rows",
    [
        "x",
        {},
        [[]],
        [["x", 1, 1]],
        [["x", 1, 1, None, 0]],
        [["x", True, 1, None]],
        [["x", 1.0, 1, None]],
        [[1, 1, 1, None]],
        [["x", 1, 1, "0"]],
        [["x", 1, 1, None]] * 10_001,
    ],
)
def test_malformed_openings_of_a_worker_are_refused(rows: Any) -> None:
    with raises(ProtocolError, "malformed-message"):
        decode_openings(rows)
    assert decode_openings(None) is None
    assert decode_openings([["x", 1, 2, 0]]) == (Opening("x", 1, 2, 0),)
    assert encode_openings((Opening("x", 1, 2, 0),)) == [("x", 1, 2, 0)]
