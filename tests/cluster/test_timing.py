"""Measurements of three workers of one job, and their trace."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tfe_bench.benchmarks import prediction, trace_file
from tfe_bench.cluster.counted_jobs import count_job_messages
from tfe_bench.cluster.requests import JobResult, PrivateInput

if TYPE_CHECKING:
    from pathlib import Path

    from tfe_bench.cluster.launch import LocalCluster

SECRET = 0x5EC12E7_5EC12E7


def _run_sort(cluster: LocalCluster, **parameters: Any) -> JobResult:
    keys = np.full(300, SECRET, np.int64)
    return cluster.run("sort", {"repeat": 2, **parameters}, {"keys": PrivateInput(keys)})


def test_each_worker_says_where_its_time_went(shared_cluster: LocalCluster) -> None:
    result = _run_sort(shared_cluster)
    measured = result.measured
    for party, timing in enumerate(measured):
        part = timing["breakdown"]
        assert part["run"] == timing["seconds"][-1]
        assert len(timing["seconds"]) == len(timing["cpu_seconds"]) == 2
        assert all(used > 0 for used in timing["cpu_seconds"])
        assert part["waiting"][party] == 0
        assert 0 < sum(part["waiting"]) <= part["run"]
        assert part["packing"] > 0 and part["unpacking"] > 0
        if part["processor"] is not None:
            assert set(part["processor"]) == {"graph", "transport", "other"}
            assert part["processor"]["graph"] > 0 and part["queued"] >= 0
        assert "trace" not in timing
        assert sum(timing["messages"]) > 0 and timing["messages"][party] == 0
    assert result.submitted is not None
    messages = count_job_messages(result.submitted)
    predicted = prediction.predict_run_times(measured, "local", 0.1, messages)
    assert predicted["seconds"]["wan"] > predicted["rounds"] * 0.02 > 0


def test_a_first_run_is_busy_no_longer_than_it_runs(shared_cluster: LocalCluster) -> None:
    """Run time, busy time and prediction exclude the building of graphs without a warm-up."""
    measured = _run_sort(shared_cluster, repeat=1, warm_up=0).measured
    for timing in measured:
        assert timing["trace_seconds"] == timing["build_seconds"] > 0
        own = timing["seconds"][0] - timing["trace_seconds"]
        assert timing["breakdown"]["run"] == pytest.approx(own, abs=1e-6)
    took = max(timing["seconds"][0] - timing["build_seconds"] for timing in measured)
    predicted = prediction.predict_run_times(measured, "local", took)
    assert 0 < predicted["compute_seconds"] <= took + 1e-6


def test_a_traced_job_sends_back_names_sizes_and_times(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    before = time.monotonic_ns()
    result = _run_sort(shared_cluster, trace=True)
    parts = [m["trace"] for m in result.measured]
    for measured, part in zip(result.measured, parts, strict=True):
        assert len(measured["seconds"]) == 2  # the traced run is not among them
        assert before < part["begun"] < part["begun"] + part["ended"] < time.monotonic_ns()
        assert "shuffle" in part["sites"].values() and "msb" in part["sites"].values()
        assert part["left_out"] == 0
    # one host has one clock, and a message between processes takes far less than 10 s either way
    assert len({part["host"] for part in parts}) == 1
    assert trace_file.clock_offsets(parts) == [(0, 0)] * 3
    for part in (parts[1], parts[2]):
        assert 0 < int(part["gaps"]["0"]) < 10_000_000_000
    # nothing of the data
    assert str(SECRET) not in json.dumps(parts)

    path = tmp_path / "trace.json"
    trace_file.write_trace(path, [("sort", parts)])
    events = json.loads(path.read_text())["traceEvents"]
    sent = [e for e in events if e["ph"] == "X" and 10 <= e["tid"] < 20]
    got = [e for e in events if e["ph"] == "X" and 20 <= e["tid"] < 30]
    ours = [[e["args"]["bytes"] for e in way if e["args"]["site"]] for way in (sent, got)]
    assert sum(ours[0]) == sum(ours[1]) > 0 and len(ours[0]) == len(ours[1])
    starts, ends = ({e["id"]: e["ts"] for e in events if e["ph"] == kind} for kind in "sf")
    assert starts and set(starts) == set(ends)
    assert all(starts[name] <= ends[name] for name in starts)
