"""A client's calls are over, with their threads, when it returns to its caller."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from tests.cluster.endings import end_by_leaving
from tests.refusals import raises
from tfe_bench.cluster import wire
from tfe_bench.cluster.client import Client
from tfe_bench.cluster.job_results import JobResultCollector
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import UsageError

_KEYS = {"keys": PrivateInput(np.arange(50))}


def _end_plainly(client: Client) -> None:
    np.testing.assert_array_equal(client.run("sort", {}, _KEYS).outputs["keys"], np.arange(50))


def _end_refused(client: Client) -> None:
    with raises(UsageError, "unknown-program"):
        client.run("unknown", {}, _KEYS)


def _end_in_failure(client: Client) -> None:
    with pytest.raises(UsageError):
        client.run("sort", {"repeat": 1001}, _KEYS)


def _end_by_leaving(client: Client) -> None:
    end_by_leaving(client, "sort", {"repeat": 1000}, _KEYS)


def _ask_workers(client: Client) -> None:
    assert all(isinstance(answer, dict) for answer in client.status())


def _is_active(call: grpc.Call) -> bool:
    try:
        return bool(call.is_active())
    except NotImplementedError:  # the error of a call that is over, kept by a traceback
        return False


def _list_threads_and_calls(earlier: set[threading.Thread]) -> list[object]:
    """List the threads that run and the calls that are not over.

    Args:
        earlier: threads to omit.
    """
    calls = [each for each in gc.get_objects() if isinstance(each, grpc.Call) and _is_active(each)]
    return [*(t for t in threading.enumerate() if t not in earlier), *calls]


@pytest.fixture
def slow_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay the end of each thread that serves a call."""
    make_stub, read_stream = wire.stub, JobResultCollector.read_stream

    def send_slowly(requests: Iterator[bytes]) -> Iterator[bytes]:
        yield from requests
        time.sleep(0.1)

    def make_slow_stub(channel: grpc.Channel, method: str) -> Callable[..., Any]:
        stub = make_stub(channel, method)

        def start_call(requests: Iterator[bytes], **options: Any) -> Any:
            call = stub(send_slowly(requests), **options)
            call.add_callback(lambda: time.sleep(0.05))
            return call

        return start_call

    def read_slowly(collector: JobResultCollector, party: int, call: Iterator[bytes]) -> None:
        read_stream(collector, party, call)
        time.sleep(0.15)

    monkeypatch.setattr(wire, "stub", make_slow_stub)
    monkeypatch.setattr(JobResultCollector, "read_stream", read_slowly)


@pytest.mark.usefixtures("slow_threads")
@pytest.mark.parametrize(
    "end", [_end_plainly, _end_refused, _end_in_failure, _end_by_leaving, _ask_workers]
)
def test_no_thread_and_no_call_remains_after_a_job(
    shared_cluster: LocalCluster, end: Callable[[Client], None]
) -> None:
    """The interpreter's end may stop a thread of gRPC that has a lock of a call."""
    earlier = set(threading.enumerate())
    for _ in range(3):
        end(shared_cluster.client)
        assert not _list_threads_and_calls(earlier)


def test_no_thread_or_descriptor_remains_after_two_hundred_failed_jobs(
    shared_cluster: LocalCluster,
) -> None:
    _end_in_failure(shared_cluster.client)
    earlier = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        _end_in_failure(shared_cluster.client)
        _end_refused(shared_cluster.client)
    assert not _list_threads_and_calls(earlier)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
