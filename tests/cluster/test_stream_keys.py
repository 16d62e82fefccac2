"""Keys of jobs on streams that stay: one for each job, and none after a failure."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.cluster.conftest import Trio, wait_until
from tests.cluster.endings import INPUTS, end_by_leaving, end_cancelled, end_in_failure
from tfe_bench.cluster import handshake, simulate
from tfe_bench.cluster.client import Client
from tfe_bench.cluster.transport import SessionLink
from tfe_bench.cluster.worker import peer_streams
from tfe_bench.errors import ClusterError, TfeBenchError

_SQUARES = np.arange(3) ** 2


class _RecordedLink(SessionLink):
    """A session that logs its masks.

    Attributes:
        sessions: (party, keys, log) of each session that has ended.
    """

    sessions: ClassVar[list[tuple[int, bytes, Any]]] = []

    def __init__(self, party: int, keys: bytes) -> None:
        super().__init__(party, keys)
        self._keys = keys
        self._native.record(self.handle, 1)

    def finish(self) -> None:
        self.sessions.append((self.party, self._keys, simulate.get_mask_log(self)))  # type: ignore[arg-type]
        super().finish()


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, bytes, Any]]]:
    _RecordedLink.sessions = []
    monkeypatch.setattr(peer_streams, "SessionLink", _RecordedLink)
    yield _RecordedLink.sessions


def _square(client: Client) -> None:
    outputs = client.run("plain", {"square": True}, INPUTS).outputs
    np.testing.assert_array_equal(outputs["x"], _SQUARES)


def _restart_worker(trio: Trio, party: int) -> None:
    wait_until(trio.idle, "the jobs have ended")
    trio.restart(party)


def _disconnect(trio: Trio) -> None:
    for worker in trio.workers:
        worker._host.on_loop(worker._peer_streams.connections.close(), 10)


def test_the_masks_of_two_hundred_jobs_are_all_distinct(
    trio: Trio, sessions: list[tuple[int, bytes, Any]]
) -> None:
    clients = [trio.client("analyst"), trio.client("guest")]
    events: list[Callable[[], object]] = [
        lambda: end_in_failure(clients[0]),
        lambda: _disconnect(trio),
        lambda: end_cancelled(clients[1]),
        lambda: _restart_worker(trio, 1),
        lambda: end_by_leaving(clients[0]),
    ]
    for i in range(200):
        _square(clients[i % 2])
        if i % 20 == 19:
            events[i // 20 % len(events)]()
            clients[0].wait_ready()
            clients[1].wait_ready()
    wait_until(trio.idle, "all jobs have ended")
    parties_by_key: dict[bytes, list[int]] = {}
    makers_by_mask: dict[tuple[bytes, int, int], list[int]] = {}
    sites_by_words: dict[int, set[tuple[bytes, int, int]]] = {}
    for party, keys, log in sessions:
        for j in {party, (party + 1) % 3}:
            parties_by_key.setdefault(keys[16 * j : 16 * j + 16], []).append(party)
        for record in log:
            j = int(record["key"])
            mask = keys[16 * j : 16 * j + 16], int(record["hi"]), int(record["lo"])
            makers_by_mask.setdefault(mask, []).append(party)
            if not record["sent"]:  # (the digest is that of the mask)
                sites_by_words.setdefault(int(record["digest"]), set()).add(mask)
    # Each key is held by two parties, in one job: no mask of one job has the name of another's.
    assert bytes(16) not in parties_by_key
    assert all(len(set(parties)) == len(parties) <= 2 for parties in parties_by_key.values())
    for party in range(3):
        assert sum(other == party for other, *_ in sessions) >= 200
    assert len(makers_by_mask) >= 3 * 200
    assert all(len(masks) == 1 for masks in sites_by_words.values())


_STEPS = [
    (mine, theirs, when) for mine, theirs in ((0, 1), (1, 0), (1, 2), (2, 1)) for when in (0, 1)
]


@pytest.mark.parametrize("fresh", [True, False], ids=["exchange", "chain"])
@pytest.mark.parametrize(("mine", "theirs", "when"), _STEPS)
def test_a_failure_at_a_step_of_the_chain_drops_its_streams(
    trio: Trio,
    sessions: list[tuple[int, bytes, Any]],
    monkeypatch: pytest.MonkeyPatch,
    mine: int,
    theirs: int,
    when: int,
    fresh: bool,
) -> None:
    """The step fails at one side before (0) or after (1) it has changed the chain."""
    client = trio.client("analyst")
    _square(client)
    wait_until(trio.idle, "the job has ended")
    if fresh:
        _disconnect(trio)
    derive = handshake.StreamKeys.derive_key
    broken: list[handshake.StreamKeys] = []

    def fail_once(self: handshake.StreamKeys, own: Any, other: Any) -> bytes:
        is_chosen = not broken and (own.party, other.party) == (mine, theirs)
        if is_chosen:
            broken.append(self)
        if not is_chosen or when == 1:
            key = derive(self, own, other)
        if is_chosen:
            raise ClusterError("As ordered.")
        return key

    monkeypatch.setattr(handshake.StreamKeys, "derive_key", fail_once)
    with pytest.raises(TfeBenchError):
        client.run("plain", {"square": True}, INPUTS)
    [failed] = broken
    wait_until(lambda: not failed._chain, "the chain is erased")
    wait_until(trio.idle, "the job has ended")
    for _ in range(2):
        _square(client)
    wait_until(lambda: len(sessions) >= 9, "the three jobs' sessions have ended")
    holders = [
        (keys[16 * j : 16 * j + 16], party)
        for party, keys, _ in sessions
        for j in (party, (party + 1) % 3)
    ]
    assert len(holders) == len(set(holders))  # (the failed job may have begun at one side)
    assert max(Counter(key for key, _ in holders).values()) == 2


@pytest.mark.parametrize("chain", ["0" * 32, ""])
def test_a_further_job_of_another_chain_is_refused_and_the_next_one_runs(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, chain: str
) -> None:
    client = trio.client("analyst")
    _square(client)
    wait_until(trio.idle, "the job has ended")
    with monkeypatch.context() as patch:
        tag = handshake.StreamKeys.get_chain_tag
        lies = [chain]
        patch.setattr(
            handshake.StreamKeys, "get_chain_tag", lambda self: lies.pop() if lies else tag(self)
        )
        with pytest.raises(TfeBenchError, match="differ in chain"):
            client.run("plain", {"square": True}, INPUTS)
    _square(client)


def test_jobs_of_a_batch_leave_their_streams_to_the_next_jobs(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [trio.client("analyst"), trio.client("guest")]
    _square(clients[0])
    wait_until(trio.idle, "the job has ended")
    begun = threading.Event()
    measured: list[Any] = [None] * 3
    lead = threading.Thread(
        target=lambda: clients[0].run("plain", {"wait": 1}, INPUTS, lambda *_: begun.set())
    )
    lead.start()
    begun.wait(60)

    def run(number: int) -> None:
        result = clients[number % 2].run("batched", {}, INPUTS)
        np.testing.assert_array_equal(result.outputs["x"], np.arange(3))
        measured[number] = result.measured[0]["batched"]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in (lead, *threads):
        thread.join(60)
    assert measured == [{"requests": 3, "samples": 9}] * 3
    wait_until(trio.idle, "all jobs have ended")
    idle = [worker._peer_streams.connections._idle for worker in trio.workers]

    def all_are_idle() -> bool:
        return len(idle[0][1]) >= 4 and len(idle[0][2]) >= 4 and len(idle[1][2]) >= 4

    wait_until(all_are_idle, "the streams of all four jobs are kept", 20)
    for _ in range(6):
        _square(clients[0])
