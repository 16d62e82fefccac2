"""A trace is valid trace-event JSON, holds the measurements, and is written completely or not."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import raises
from tfe_bench.benchmarks import trace_file
from tfe_bench.errors import DataError

FIELDS = ["begin", "end", "about", "step", "bytes"]
FIELDS += ["site", "iteration", "slot", "kind", "peer", "run_ahead"]
SENT, RECEIVED, WAITED, STEP = range(4)


def worker_trace(begun: int, events: list[list[int]], **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "host": "one",
        "gaps": {},
        "begun": begun,
        "ended": 9_000,
        "fields": FIELDS,
        "events": events,
        "left_out": 0,
        "sites": {"7": "mul"},
        "op_names": ["TfeBench>Mask"],
        "ops": [[0, 0, 1_000, 500]],
    }
    return plain | changes


def three_traces() -> list[dict[str, Any]]:
    return [
        worker_trace(1_000_000, [[0, 8_000, 0, 3, 0, 0, 0, 0, STEP, -1, 0]]),
        worker_trace(1_000_500, [[2_000, 2_500, 1_500, 3, 64, 7, 0, 1, SENT, 2, 0]]),
        worker_trace(
            1_001_000,
            [
                [3_000, 3_100, 500, 3, 64, 7, 0, 1, RECEIVED, 1, 0],
                [1_100, 3_100, 2_000, 3, 0, 7, 0, 0, WAITED, 1, 0],
            ],
        ),
    ]


def check_trace(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """Check the rules of Perfetto and chrome://tracing for the format; return the events."""
    assert whole["displayTimeUnit"] in ("ms", "ns")
    last = 0.0
    for event in whole["traceEvents"]:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["name"], str) and event["ph"] in "XMsf"
        if event["ph"] == "M":
            assert event["args"]
            continue
        assert event["ts"] >= last >= 0
        last = event["ts"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
        else:
            assert event["id"] and event["cat"]
    rows: dict[tuple[int, int], float] = {}
    for event in whole["traceEvents"]:
        if event["ph"] == "X" and 1 < event["tid"] < 100:
            key = event["pid"], event["tid"]
            assert event["ts"] >= rows.get(key, 0.0) - 1e-6  # no two overlap
            rows[key] = event["ts"] + event["dur"]
    return list(whole["traceEvents"])


def test_a_message_has_a_slice_at_both_ends_and_an_arrow(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    trace_file.write_trace(path, [("sort", three_traces())])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    events = check_trace(json.loads(path.read_text()))
    headings = {
        (e["pid"], e["args"]["name"])
        for e in events
        if e["name"] in ("process_name", "thread_name")
    }
    assert {(p, f"party {p}") for p in range(3)} <= headings
    assert (1, "sends to 2") in headings and (2, "receives from 1") in headings
    (sent,) = (e for e in events if e["ph"] == "X" and e["pid"] == 1 and e["name"] == "mul")
    (wait,) = (e for e in events if e["name"] == "for party 1: mul")
    # party 1 began 0.5 us after party 0
    assert sent["ts"] == 2.5 and sent["dur"] == 0.5 and sent["args"]["bytes"] == 64
    assert wait["ts"] == 2.1 and wait["dur"] == 2.0 and wait["pid"] == 2
    start, finish = (next(e for e in events if e["ph"] == kind) for kind in "sf")
    assert start["id"] == finish["id"] and (start["pid"], finish["pid"]) == (1, 2)
    assert any(e["name"] == "TfeBench>Mask" for e in events)
    assert any(e["name"] == "step 3" for e in events)


def test_a_message_seen_at_one_end_has_no_arrow() -> None:
    parts = three_traces()
    parts[2]["events"] = []
    assert not [e for e in trace_file.chrome_trace_events([("sort", parts)]) if e["ph"] in "sf"]


def test_clocks_of_several_hosts_are_aligned_by_what_they_exchanged() -> None:
    parts = three_traces()
    # party 1's clock is 1 s ahead, a message takes 20 us; party 2 is 5 us behind, takes 4 us
    for part, host in zip(parts, "abc", strict=True):
        part["host"] = host
    parts[0]["gaps"] = {"1": 20_000 - 1_000_000_000, "2": 4_000 + 5_000}
    parts[1]["gaps"] = {"0": 20_000 + 1_000_000_000}
    parts[2]["gaps"] = {"0": 4_000 - 5_000}
    assert trace_file.clock_offsets(parts) == [(0, 0), (1_000_000_000, 20_000), (-5_000, 4_000)]
    # one host has one clock, whatever the time of messages
    for part in parts:
        part["host"] = "a"
    assert trace_file.clock_offsets(parts) == [(0, 0)] * 3


def test_several_jobs_follow_each_other() -> None:
    events = trace_file.chrome_trace_events([("relu", three_traces()), ("mul", three_traces())])
    first, second = (
        [e for e in events if e["ph"] == "X" and e["name"] == title and e["tid"] == 1]
        for title in ("relu", "mul")
    )
    assert len(first) == len(second) == 3
    assert max(e["ts"] + e["dur"] for e in first) < min(e["ts"] for e in second)
    check_trace({"traceEvents": events, "displayTimeUnit": "ms"})


def test_a_trace_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with raises(DataError, "file-not-writable") as caught:
        trace_file.write_trace(path, [("sort", three_traces())])
    assert caught.value.exit_code == 10
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["t.json"]
    with raises(DataError, "file-not-writable"):
        trace_file.write_trace(tmp_path / "none" / "t.json", [("sort", three_traces())])


@pytest.mark.parametrize("change", [{"events": [[1]]}, {"ops": [[0, 9, 1, 1]]}, {"begun": "x"}])
def test_a_malformed_trace_of_a_worker_is_a_data_error(
    change: dict[str, Any], tmp_path: Path
) -> None:
    with raises(DataError, "malformed-message", operation="trace"):
        trace_file.write_trace(
            tmp_path / "t.json", [("sort", [part | change for part in three_traces()])]
        )
    assert list(tmp_path.iterdir()) == []
