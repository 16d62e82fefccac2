"""Streams between workers that stay from job to job: fresh keys, and none after a failed job."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.cluster.conftest import Trio, wait_until
from tests.cluster.endings import INPUTS, end_by_leaving, end_cancelled, end_in_failure
from tests.cluster.test_transport import Pipe, _make_frame, link
from tfe_bench.cluster.transport import BYE, NOTICE, SessionLink
from tfe_bench.cluster.worker import peer_streams
from tfe_bench.errors import JobCancelled

__all__ = ["link"]


def _list_kept_calls(trio: Trio) -> set[Any]:
    """Return the streams that the workers keep, after the end of all jobs."""
    wait_until(trio.idle, "all jobs have ended")
    connections = [worker._peer_streams.connections for worker in trio.workers]
    return {c.call for each in connections for idle in each._idle.values() for c in idle}


def _wait_for_streams(trio: Trio) -> set[Any]:
    """Return the kept streams once each pair of workers has one."""

    def list_all() -> set[Any]:
        calls = _list_kept_calls(trio)
        return calls if len(calls) >= 3 else set()

    return set(wait_until(list_all, "the streams are kept"))


def test_jobs_of_different_clients_use_one_stream_with_different_keys(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

    class _RecordedLink(SessionLink):
        def __init__(self, party: int, pair_keys: bytes) -> None:
            keys[party].append(pair_keys)
            super().__init__(party, pair_keys)

    monkeypatch.setattr(peer_streams, "SessionLink", _RecordedLink)
    clients = [trio.client("analyst"), trio.client("guest")]
    clients[0].run("plain", {}, INPUTS)
    used = _wait_for_streams(trio)
    for i in range(8):
        outputs = clients[i % 2].run("plain", {}, INPUTS).outputs
        np.testing.assert_array_equal(outputs["x"], INPUTS["x"].ring)
        used &= _wait_for_streams(trio)
    # (a job may begin before its predecessor's streams are free, so that there are two of a pair)
    assert used
    pairs = [
        keys[p][job][16 * j : 16 * j + 16] for p in range(3) for job in range(9) for j in (0, 1, 2)
    ]
    held = [key for key in pairs if key != bytes(16)]
    # each key is held by two workers, in one job
    assert len(held) == 2 * 3 * 9 and len(set(held)) == 3 * 9
    for job in range(9):
        assert len({keys[p][job] for p in range(3)}) == 3


@pytest.mark.parametrize("end", [end_in_failure, end_by_leaving, end_cancelled])
def test_a_failed_job_leaves_none_of_its_streams(trio: Trio, end: Any) -> None:
    client = trio.client("analyst")
    for _ in range(3):
        client.run("plain", {}, INPUTS)
    before = _wait_for_streams(trio)
    end(client)
    wait_until(
        lambda: len(before - _list_kept_calls(trio)) >= 3, "the failed job's streams are dropped"
    )
    np.testing.assert_array_equal(client.run("plain", {}, INPUTS).outputs["x"], INPUTS["x"].ring)
    assert len(before - _wait_for_streams(trio)) >= 3


# ---- one session's end on its stream


def _pump(link: SessionLink, *blobs: bytes | None, finishes: bool = True) -> bool:
    """Return whether the stream of a link may serve another session after these blobs."""

    async def run() -> bool:
        pipe = Pipe()
        for blob in blobs:
            await pipe.write(blob)  # type: ignore[arg-type]

        async def write(blob: bytes) -> None:
            pass

        pumping = asyncio.ensure_future(link.pump_blobs(0, pipe.read, write))
        await asyncio.sleep(0.1)
        if finishes:
            link.finish()
        return await asyncio.wait_for(pumping, 20)

    return asyncio.run(run())


def test_a_stream_serves_another_session_after_the_goodbyes_of_both(link: SessionLink) -> None:
    assert _pump(link, b"", _make_frame(b"last"), BYE) is True
    assert link.cause is None


def test_frames_after_our_own_end_belong_to_the_session_that_has_ended(link: SessionLink) -> None:
    async def run() -> bool:
        pipe = Pipe()
        link.finish()

        async def write(blob: bytes) -> None:
            if blob == BYE:
                await pipe.write(_make_frame(b"late"))
                await pipe.write(BYE)

        return await asyncio.wait_for(link.pump_blobs(0, pipe.read, write), 20)

    assert asyncio.run(run()) is True


@pytest.mark.parametrize(
    "blobs",
    [(None,), (NOTICE + b'{"error": "JobCancelled", "message": "no"}',), (b"garbage",), ()],
    ids=["end", "notice", "garbage", "silence"],
)
def test_a_stream_without_the_peers_goodbye_serves_no_other_session(
    link: SessionLink, blobs: tuple[bytes | None, ...]
) -> None:
    assert _pump(link, *blobs) is False


def test_a_stream_of_a_session_that_failed_here_serves_no_other(link: SessionLink) -> None:
    link.fail(JobCancelled("no", code="job-cancelled"))
    assert _pump(link, BYE) is False
