"""Clients that send too much, or nothing, or never read: other jobs run, and these end.

The clients have certificates and may submit jobs; their jobs are bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from tests.cluster.conftest import wait_until
from tests.refusals import raises
from tfe_bench.cluster import handshake, wire
from tfe_bench.cluster.client import Client, new_job
from tfe_bench.cluster.requests import LateInput, PrivateInput
from tfe_bench.cluster.worker.job_queue import JobQueue, QueueSlot
from tfe_bench.cluster.worker_calls import WorkerCall, end_calls
from tfe_bench.errors import PolicyError, QueueFull, UsageError

if TYPE_CHECKING:
    from tests.cluster.conftest import Trio

MEGABYTE = 1 << 20
LIMITS: dict[str, Any] = {
    "max_jobs": 4,
    "max_jobs_per_client": 2,
    "stall_seconds": 3.0,
    "max_inputs": 5,
    "max_bytes_per_job": 24 * MEGABYTE,
    "max_bytes_per_client": 32 * MEGABYTE,
}
_X = {"x": PrivateInput(np.arange(3))}


def _check_job_runs(client: Client) -> None:
    np.testing.assert_array_equal(client.run("plain", {}, _X).outputs["x"], np.arange(3))


class _RawJob:
    """The three streams of a job whose client violates the rules.

    Args:
        size: words of its one input.
        data: bytes of the input that the evaluators receive.
        late: whether the input is late.
    """

    def __init__(
        self, client: Client, size: int, data: int, late: bool = False, **parameters: Any
    ) -> None:
        self.job = new_job()
        self._over = threading.Event()
        self.calls: list[WorkerCall] = []
        for party in range(3):
            seeds = {0: ("l1", "l2"), 1: ("l1",), 2: ("l2",)}[party]
            row = {
                "name": "x",
                "shape": [size],
                "fractional_bits": 0,
                "limbs": 1,
                "late": late,
                "seeds": {name: bytes(16).hex() for name in seeds},
            }
            header = wire.event(
                "submit",
                job=self.job,
                program="plain",
                parameters=parameters,
                version=handshake.package_version(),
                ring=64,
                fractional_bits=16,
                cluster=client.config.digest(),
                shaping=None,
                warm_up_bytes=0,
                inputs=[row],
            )
            chunks = list(wire.chunk_stream_data(bytes(data))) if party else []
            requests = self._requests([header, *chunks])
            self.calls.append(WorkerCall(client._channels[party], wire.JOB, requests, timeout=120))

    def _requests(self, blobs: list[bytes]) -> Iterator[bytes]:
        yield from blobs
        self._over.wait(120)

    def read_error(self, party: int) -> dict[str, Any]:
        """Return the error of a worker."""
        reader = wire.JobStreamReader(iter(self.calls[party]))
        while (event := reader.next_event()) is not None:
            if event["event"] == "error":
                return event
        raise AssertionError("no error")

    def leave(self) -> None:
        self._over.set()
        end_calls(self.calls)


def test_headers_whose_data_never_come_expire_and_give_their_places_back(trio: Trio) -> None:
    analyst, guest = trio.client("analyst"), trio.client("guest")
    lame = [_RawJob(client, MEGABYTE // 8, 0) for client in (analyst, analyst, guest, guest)]
    wait_until(lambda: all(len(w._host.queue._slots) == 4 for w in trio.workers), "all are taken")
    with pytest.raises(QueueFull):
        guest.run("plain", {}, _X)
    for each in lame:
        error = each.read_error(1)
        assert error["error"] == "PolicyError"
        assert error["code"] == "client-stalled" and "did not send its inputs" in error["message"]
        assert "party 1" in error["message"] and "stall_seconds" in error["message"]
    # Their streams are still open: the attackers wait.
    wait_until(trio.idle, "the places are free", 30)
    _check_job_runs(guest)
    for each in lame:
        each.leave()


def test_a_stream_that_stops_in_the_middle_expires_too(trio: Trio) -> None:
    client = trio.client("analyst")
    lame = _RawJob(client, 3 * MEGABYTE // 8, 2 * MEGABYTE)
    assert "stall_seconds" in lame.read_error(2)["message"]
    wait_until(trio.idle, "its place is free", 30)
    lame.leave()


def test_chunks_are_whole_so_that_a_trickle_is_no_way_to_hold_a_place(trio: Trio) -> None:
    lame = _RawJob(trio.client("analyst"), MEGABYTE // 8, 1)
    assert "incomplete or too long" in lame.read_error(1)["message"]
    lame.leave()
    wait_until(trio.idle, "its place is free", 30)


def test_a_client_that_keeps_jobs_in_flight_without_end_is_bounded_and_others_take_turns(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    flooding, guest = trio.client("analyst"), trio.client("guest")
    events: list[tuple[str, str]] = []
    set_ready, take_next = JobQueue.set_ready, JobQueue.take_next

    def record_ready(self: JobQueue, slot: QueueSlot) -> None:
        events.append(("ready", slot.client))
        set_ready(self, slot)

    def record_turn(self: JobQueue) -> QueueSlot | None:
        slot = take_next(self)
        if slot is not None:
            events.append(("turn", slot.client))
        return slot

    monkeypatch.setattr(JobQueue, "set_ready", record_ready)
    monkeypatch.setattr(JobQueue, "take_next", record_turn)
    stop = threading.Event()
    refusals: list[QueueFull] = []
    failures: list[BaseException] = []

    def flood() -> None:
        while not stop.is_set():
            try:
                _check_job_runs(flooding)
            except QueueFull as error:
                refusals.append(error)
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=flood) for _ in range(5)]
    for thread in threads:
        thread.start()
    wait_until(lambda: refusals and ("turn", "analyst") in events, "the client is refused")
    for _ in range(5):
        _check_job_runs(guest)
        most = max(sum(s.client == "analyst" for s in w._host.queue._slots) for w in trio.workers)
        assert most <= 2  # (LIMITS)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert "max_jobs_per_client" in str(refusals[0])
    waited = 0
    for kind, client in events[events.index(("ready", "guest")) :]:
        if (kind, client) == ("ready", "guest"):
            waited = 0
        elif (kind, client) == ("turn", "guest"):
            assert waited <= 2  # (one may be taken at this moment)
        elif kind == "turn":
            waited += 1
    wait_until(trio.idle, "the places are free", 30)


def test_a_late_input_that_never_comes_ends_the_job_that_waits_for_it(trio: Trio) -> None:
    client = trio.client("analyst")
    lame = _RawJob(client, MEGABYTE // 8, 0, late=True)
    waiting = trio.client("guest")
    _check_job_runs(waiting)  # after the other job's turn
    error = lame.read_error(1)
    assert error["code"] == "client-stalled" and "did not send its inputs" in error["message"]
    wait_until(trio.idle, "all places are free", 30)
    lame.leave()


def test_a_client_that_takes_long_between_messages_but_not_too_long_is_served(trio: Trio) -> None:
    client = trio.client("analyst")

    def make() -> PrivateInput:
        time.sleep(LIMITS["stall_seconds"] / 4)
        return PrivateInput(np.arange(5))

    late = {name: LateInput((5,), 0, make) for name in "abcde"}  # longer in total
    outputs = client.run("plain", {}, late).outputs
    assert {k: v.tolist() for k, v in outputs.items()} == {k: [0, 1, 2, 3, 4] for k in late}


@pytest.mark.parametrize("method", [wire.CANCEL, wire.MODELS, wire.JOB])
@pytest.mark.parametrize("megabytes", [1, 64])
def test_a_large_first_message_is_refused(trio: Trio, method: str, megabytes: int) -> None:
    client = trio.client("analyst")
    blob = b"E" + bytes(megabytes * MEGABYTE)
    call = wire.stub(client._channels[1], method)(iter([blob]), timeout=60)
    if megabytes == 1:
        event = wire.JobStreamReader(iter(call)).next_event()
        assert event is not None and event["event"] == "error"
        is_limit_named = f"{len(blob)}." in event["message"] and "Party 1" in event["message"]
        assert is_limit_named or (method == wire.JOB and "malformed" in event["message"])
    else:
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(wire.MOST_MESSAGE_BYTES) in caught.value.details()
    wait_until(trio.idle, "nothing is left", 30)


def test_an_honest_client_says_itself_that_a_submission_is_too_large(trio: Trio) -> None:
    with raises(UsageError, "message-too-long", expected=wire.MOST_MESSAGE_BYTES):
        trio.client("analyst").run("plain", {"note": "x" * 5 * MEGABYTE}, _X)


def test_inputs_are_limited_in_number_and_bytes(trio: Trio) -> None:
    client = trio.client("analyst")
    many = {f"x{i}": PrivateInput(np.arange(1)) for i in range(6)}
    with raises(PolicyError, "too-large", received="6", expected="5"):
        client.run("plain", {}, many)
    half = PrivateInput(np.zeros(13 * MEGABYTE // 8, np.int64))
    with raises(PolicyError, "too-many-bytes", operation="max_bytes_per_job"):
        client.run("plain", {}, {"a": half, "b": half})
    wait_until(trio.idle, "nothing is left", 30)


def test_inputs_that_wait_are_limited_for_each_client(trio: Trio) -> None:
    client = trio.client("analyst")
    first = _RawJob(client, 23 * MEGABYTE // 8, 0)
    wait_until(lambda: trio.workers[1]._host.jobs.get_job(first.job), "the first one is there")
    words = 10 * MEGABYTE // 8
    second = PrivateInput(np.zeros(words, np.int64))
    with raises(QueueFull, "too-many-bytes", operation="max_bytes_per_client"):
        client.run("plain", {}, {"a": second})
    # Another client is not affected.
    result = trio.client("guest").run("plain", {}, {"a": second})
    assert result.outputs["a"].size == words
    first.leave()
    wait_until(trio.idle, "nothing is left", 30)


def _count_held_bytes(trio: Trio) -> list[int]:
    return [sum(slot.held_bytes for slot in worker._host.queue._slots) for worker in trio.workers]


def test_results_that_are_not_taken_hold_their_place_and_are_dropped(trio: Trio) -> None:
    client, guest = trio.client("analyst"), trio.client("guest")
    words = 20 * MEGABYTE // 8
    lame = _RawJob(client, 1, 8, words=words)
    wait_until(lambda: _count_held_bytes(trio)[0] == 8 * words, "party 0 holds the results")
    assert _count_held_bytes(trio)[2] == 8 * words
    wait_until(
        lambda: not any(p.running for p in trio.workers[0]._host.queue._slots), "its turn ends"
    )
    status = client.status()[0]
    assert isinstance(status, dict)
    assert [job["state"] for job in status["jobs"]] == ["delivering"]
    # It no longer blocks others, but counts for its client's limit.
    _check_job_runs(guest)
    assert trio.workers[0]._host.queue.count_others("guest") == (False, 0)
    with raises(QueueFull, "too-many-bytes", operation="max_bytes_per_client"):
        client.run("plain", {"words": words}, {"x": PrivateInput(np.arange(1))})
    # (the refused job leaves the queue a moment after its client has the error)
    wait_until(lambda: len(trio.workers[0]._host.queue._slots) == 1, "the refused job is gone")
    wait_until(trio.idle, "the results are dropped", 60)
    assert _count_held_bytes(trio) == [0, 0, 0]
    lame.leave()
    wait_until(lambda: _is_answering(client), "the client may connect again")
    result = client.run("plain", {"words": words}, {"x": PrivateInput(np.arange(1))})
    assert result.outputs["x"].size == words


def _is_answering(client: Client) -> bool:
    return all(isinstance(answer, dict) for answer in client.status())


def test_results_that_are_read_slowly_are_all_delivered(trio: Trio) -> None:
    """The total time exceeds the limit for one message."""
    client = trio.client("analyst")
    words = 8 * MEGABYTE // 8
    slow = _RawJob(client, 1, 8, words=words)
    size, began = 0, time.monotonic()
    others = [threading.Thread(target=list, args=(call,)) for call in slow.calls[1:]]
    for thread in others:
        thread.start()
    for blob in slow.calls[0]:
        time.sleep(LIMITS["stall_seconds"] / 6)
        size += len(blob) - 1 if blob.startswith(b"D") else 0
        if size == 8 * words:
            break
    assert time.monotonic() - began > LIMITS["stall_seconds"]
    assert size == 8 * words
    slow.leave()
    for thread in others:
        thread.join(60)
    wait_until(trio.idle, "its place is free", 30)
