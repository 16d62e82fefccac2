"""Inputs that arrive while a job runs: in order, few at a time, for programs that support it."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.jobs import InputSpec, Program
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import LateInput, PrivateInput
from tfe_bench.cluster.worker.late_inputs import MAX_AHEAD, JobInputs, LateInputBuffer
from tfe_bench.errors import JobCancelled, PeerLost, UsageError


def test_few_arrivals_are_kept_ahead_and_all_of_them_come() -> None:
    arrivals, count, kept = LateInputBuffer(), 20, []
    slots = threading.Semaphore(0)

    def receive() -> None:
        for i in range(count):
            arrivals.put_input(f"x{i}", np.array([i]))
            kept.append(i)
            slots.release()

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    for _ in range(MAX_AHEAD):
        assert slots.acquire(timeout=10)
    assert not slots.acquire(timeout=0.2)  # the next waits for room
    for i in range(count):
        assert arrivals.take_input(f"x{i}") == np.array([i])
        assert len(kept) <= i + 1 + MAX_AHEAD
    thread.join(10)
    assert kept == list(range(count))


def test_whoever_waits_gives_up_when_the_job_ends() -> None:
    arrivals = LateInputBuffer()
    for i in range(MAX_AHEAD):
        arrivals.put_input(f"x{i}", np.zeros(0, np.int64))
    failures: list[BaseException] = []

    def wait(what: Any) -> None:
        try:
            what()
        except JobCancelled as error:
            failures.append(error)

    threads = [
        threading.Thread(target=wait, args=(what,), daemon=True)
        for what in (
            lambda: arrivals.put_input("y", np.zeros(0, np.int64)),
            lambda: arrivals.take_input("z"),
        )
    ]
    for thread in threads:
        thread.start()
    arrivals.end_waits()
    for thread in threads:
        thread.join(10)
    assert len(failures) == 2
    with pytest.raises(JobCancelled):
        arrivals.take_input("x0")


def test_a_late_input_is_made_when_it_is_asked_for() -> None:
    names: list[str] = []
    inputs = JobInputs()
    there: Any = object()
    inputs["a"] = there

    def make(name: str) -> Any:
        names.append(name)
        return there

    for name in ("b", "c", "d"):
        inputs.add_late(name, functools.partial(make, name))
    assert list(inputs) == ["a", "b", "c", "d"] and len(inputs) == 4 and names == []
    assert inputs["b"] is there and inputs["b"] is there and names == ["b"]
    assert inputs.pop("c") is there and names == ["b", "c"] and "c" not in inputs
    del inputs["d"]
    assert names == ["b", "c"] and list(inputs) == ["a", "b"]


def test_only_programs_that_want_late_inputs_take_them(shared_cluster: LocalCluster) -> None:
    keys = np.arange(8)
    late = LateInput((8,), 0, lambda: PrivateInput(keys))
    with raises(UsageError, "late-input-not-supported"):
        shared_cluster.run("sort", {}, {"keys": late})
    program: Program[Any] = Program("p", lambda context: {}, late=True)
    program.admit({}, [InputSpec("x", (8,), 0, late=True)])
    # an input whose creation fails ends the job, and the cluster serves the next one
    fails = LateInput((8,), 0, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    with pytest.raises((ZeroDivisionError, UsageError, PeerLost)):
        shared_cluster.run("sort", {}, {"keys": fails})
    done = shared_cluster.run("sort", {}, {"keys": PrivateInput(keys[::-1].copy())})
    assert done.outputs["keys"].tolist() == keys.tolist()
