"""Memory of workers: returned once a large job is over, and growth of jobs in slices."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tfe_bench.benchmarks import operations
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.worker import memory
from tfe_bench.cluster.worker.memory import MemoryMeter
from tfe_bench.protocols.session import heap
from tfe_bench.protocols.session.fixedpoint import FixedPoint


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when freed blocks are returned, soon after a job."""
    event = threading.Event()
    monkeypatch.setattr(memory, "_IDLE_SECONDS", 0.2)
    monkeypatch.setattr(heap, "return_free_blocks", event.set)
    return event


def set_growth(meter: MemoryMeter, monkeypatch: pytest.MonkeyPatch, growth: int) -> None:
    """State the growth of the job that has ended."""
    monkeypatch.setattr(meter, "peak_growth", lambda: growth)


def test_freed_blocks_are_returned_after_a_large_job(
    returned: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = MemoryMeter()
    set_growth(meter, monkeypatch, memory._LARGE_GROWTH + 1)
    meter.reset_peak()
    meter.schedule_return()
    assert returned.wait(30)


def test_a_small_job_after_a_large_one_delays_the_return(
    returned: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_IDLE_SECONDS", 60.0)
    meter = MemoryMeter()
    set_growth(meter, monkeypatch, memory._LARGE_GROWTH + 1)
    meter.schedule_return()
    first = meter._trim_timer
    meter.reset_peak()
    assert first.finished.is_set()  # cancelled
    monkeypatch.setattr(memory, "_IDLE_SECONDS", 0.0)
    set_growth(meter, monkeypatch, 0)
    meter.schedule_return()
    assert returned.wait(30)


def test_small_jobs_return_nothing(
    returned: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = MemoryMeter()
    set_growth(meter, monkeypatch, memory._LARGE_GROWTH)
    meter.schedule_return()
    assert not meter._trim_timer.is_alive() and not returned.is_set()


def read_resident_memory(pid: int, name: str) -> int:
    """Return a figure of /proc/PID/status in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) * 1024


def make_inputs(name: str, n: int) -> dict[str, PrivateInput]:
    """Return encoded inputs of an operation."""
    operation = operations.find_operation(name)
    drawn = operation.inputs((n,), np.random.default_rng(3))
    return {key: PrivateInput(FixedPoint(16).encode(x), 16) for key, x in drawn.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reciprocal", "log", "gelu", "round", "histogram"])
def test_a_job_in_slices_takes_little_memory_and_returns_it(name: str) -> None:
    n = 1 << 20
    with LocalCluster() as cluster:
        cluster.run("operation", {"operation": name}, make_inputs(name, 100))
        idle = [read_resident_memory(pid, "VmRSS") for pid in cluster.pids]
        cluster.run("operation", {"operation": name}, make_inputs(name, n))
        peaks = [read_resident_memory(pid, "VmHWM") for pid in cluster.pids]
        # At once reciprocal grows by 48 to 65 times the inputs and keeps nearly all of it, and
        # histogram by 71 times.
        assert max(peak - base for peak, base in zip(peaks, idle, strict=True)) < 16 * 16 * n
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            now = [read_resident_memory(pid, "VmRSS") for pid in cluster.pids]
            if max(a - b for a, b in zip(now, idle, strict=True)) < 8 * 16 * n:
                return
            time.sleep(1)
        pytest.fail(f"workers keep {now} after {idle}")


@pytest.mark.slow
def test_two_hundred_jobs_in_slices_leave_memory_where_it_was() -> None:
    inputs = make_inputs("reciprocal", 60_000)
    with LocalCluster() as cluster:
        for _ in range(20):
            cluster.run("operation", {"operation": "reciprocal"}, inputs)
        before = [read_resident_memory(pid, "VmRSS") for pid in cluster.pids]
        for _ in range(200):
            cluster.run("operation", {"operation": "reciprocal"}, inputs)
        after = [read_resident_memory(pid, "VmRSS") for pid in cluster.pids]
        assert max(b - a for a, b in zip(before, after, strict=True)) < 64 << 20
