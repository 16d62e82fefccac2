"""Messages of a job's stream: joined, separated, and few of them to a client."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster import wire
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.worker import job_events
from tfe_bench.cluster.worker.job_events import JobEvents
from tfe_bench.cluster.worker.loop_waits import LoopWaits
from tfe_bench.errors import ProtocolError

T = TypeVar("T")


@pytest.mark.parametrize(
    "sizes",
    [(), (0,), (0, 0), (1, 2, 3), (wire.BUNDLE_BYTES,), (9, wire.BUNDLE_BYTES, 9, 9)],
    ids=str,
)
def test_joined_messages_are_the_same_after_separation(sizes: tuple[int, ...]) -> None:
    messages = [b"D" + bytes([i]) * size for i, size in enumerate(sizes)]
    waiting, sent = deque(messages), []
    while waiting:
        sent.append(wire.take_bundle(waiting))
    assert [m for blob in sent for m in wire.split_bundle(blob)] == messages
    assert all(len(blob) <= wire.BUNDLE_BYTES + 100 for blob in sent)
    # a message is not joined with one that leaves no room
    assert len(sent) <= 1 + 2 * sum(size >= wire.BUNDLE_BYTES for size in sizes)


def test_a_lone_message_is_sent_as_it_is() -> None:
    assert wire.take_bundle(deque([b"Dx"])) == b"Dx"
    assert wire.split_bundle(b"") == [b""] and wire.split_bundle(b"E{}") == [b"E{}"]


@pytest.mark.parametrize(
    "blob",
    [
        *(b"B", b"B\0", b"B\1\0\0\0", b"B\3\0\0\0ab", b"B\1\0\0\0x\1", b"B\xff\xff\xff\xffx"),
        b"B" + bytes(1 << 20),
    ],
    ids=["empty", "length", "no-message", "short", "rest", "long", "empty messages"],
)
def test_a_malformed_bundle_is_refused(blob: bytes) -> None:
    with raises(ProtocolError, "malformed-message"):
        wire.split_bundle(blob)
    with raises(ProtocolError, "malformed-message"):
        wire.JobStreamReader(iter([blob])).next_event()


def test_a_bundle_within_a_bundle_is_refused() -> None:
    inner = wire.take_bundle(deque([b"E{}", b"E{}"]))
    outer = wire.take_bundle(deque([inner, inner]))
    with raises(ProtocolError, "unexpected-message"):
        wire.JobStreamReader(iter([outer])).next_event()


# ---- waits


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    fresh = asyncio.new_event_loop()
    thread = threading.Thread(target=fresh.run_forever, daemon=True)
    thread.start()
    yield fresh
    fresh.call_soon_threadsafe(fresh.stop)
    thread.join(10)
    fresh.close()


def _on_loop(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result(20)


def test_a_wait_ends_when_any_thread_has_changed_its_condition(
    loop: asyncio.AbstractEventLoop,
) -> None:
    waits, values = LoopWaits(loop), [0, 0]

    def wait_until(condition: Callable[[], bool], seconds: float | None = None) -> Any:
        return asyncio.run_coroutine_threadsafe(waits.wait_for(condition, seconds), loop)

    both = [wait_until(lambda i=i: values[i] == 300) for i in (0, 1)]  # type: ignore[misc]
    late = wait_until(lambda: False, 0.05)
    cancelled = wait_until(lambda: False)

    def count_up(i: int) -> None:
        for _ in range(300):
            values[i] += 1
            waits.check_waits()

    threads = [threading.Thread(target=count_up, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    assert [wait.result(20) for wait in both] == [True, True]
    assert late.result(20) is False
    cancelled.cancel()
    assert wait_until(lambda: True).result(20) is True
    for thread in threads:
        thread.join()
    waits.check_waits()
    _on_loop(loop, asyncio.sleep(0))
    assert waits._waits == []


def test_a_change_after_the_end_of_the_loop_is_ignored() -> None:
    loop = asyncio.new_event_loop()
    waits = LoopWaits(loop)
    waits.watch_condition(lambda: False)
    loop.close()
    waits.check_waits()


# ---- events


def _event_kinds(blob: bytes) -> list[str]:
    """Return the kinds of the events of a message."""
    return [json.loads(message[1:])["event"] for message in wire.split_bundle(blob)]


def test_waiting_events_are_one_message_and_the_last_one_ends_them(
    loop: asyncio.AbstractEventLoop,
) -> None:
    events = JobEvents(LoopWaits(loop))
    events.put_messages(wire.event("measured"), wire.event("result"), wire.event("done"))
    assert _event_kinds(_on_loop(loop, events.take_message())) == ["measured", "result", "done"]
    large = b"D" * (wire.BUNDLE_BYTES + 1)
    events.put_messages(large, wire.event("done"))
    assert _on_loop(loop, events.take_message()) == large
    assert _event_kinds(_on_loop(loop, events.take_message())) == ["done"]
    events.end_messages()
    assert _on_loop(loop, events.take_message()) is None


def test_progress_is_sent_from_its_time_on_and_silence_is_broken(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_events, "PROGRESS_SECONDS", 0.02)
    events = JobEvents(LoopWaits(loop))
    events.report_progress(0.5, "early", time.monotonic() + 1000)
    assert _event_kinds(_on_loop(loop, events.take_message())) == ["alive"]
    events.report_progress(0.6, "replaced", time.monotonic())
    events.report_progress(0.7, "due", time.monotonic())
    message = _on_loop(loop, events.take_message())
    assert json.loads(message[1:]) == {"event": "progress", "fraction": 0.7, "text": "due"}
    assert _event_kinds(_on_loop(loop, events.take_message())) == ["alive"]
    events.report_progress(1.0, "end", time.monotonic())
    events.put_messages(wire.event("done"))
    assert _event_kinds(_on_loop(loop, events.take_message())) == ["progress", "done"]


def test_a_small_job_is_one_message_to_a_worker_and_two_to_its_client(
    monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster
) -> None:
    stub, channels = wire.stub, shared_cluster.client._channels
    sent: list[list[bytes]] = [[], [], []]
    received: list[list[bytes]] = [[], [], []]

    def record_messages(channel: Any, method: str) -> Any:
        party = next(p for p in range(3) if channels[p] is channel)

        def call(requests: Iterator[bytes], **options: Any) -> Any:
            def record_requests() -> Iterator[bytes]:
                for blob in requests:
                    sent[party].append(blob)
                    yield blob

            class _Answers:
                def __init__(self) -> None:
                    self._call = stub(channel, method)(record_requests(), **options)

                def __getattr__(self, name: str) -> Any:
                    return getattr(self._call, name)

                def __next__(self) -> bytes:
                    received[party].append(next(self._call))
                    return received[party][-1]

            return _Answers()

        return call

    keys = np.arange(5, dtype=np.int64)
    shared_cluster.run("sort", {}, {"keys": PrivateInput(keys)})
    with monkeypatch.context() as patch:
        patch.setattr(wire, "stub", record_messages)
        outputs = shared_cluster.run("sort", {}, {"keys": PrivateInput(keys[::-1])}).outputs
    np.testing.assert_array_equal(outputs["keys"], keys)
    assert [len(blobs) for blobs in sent] == [1, 1, 1]
    for party in range(3):
        kinds = [
            [m[:1] if m[:1] == b"D" else json.loads(m[1:])["event"] for m in wire.split_bundle(b)]
            for b in received[party]
        ]
        # (a slow machine may show signs of life and progress)
        kinds = [kind for kind in kinds if kind not in (["alive"], ["progress"])]
        results = [kind for kind, _ in itertools.groupby(kinds[-1]) if kind != "progress"]
        assert kinds[0] == ["accepted"] and len(kinds) == 2, kinds
        assert results[0] == "measured" and results[-1] == "done" and "result" in results, kinds
