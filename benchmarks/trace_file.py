"""A readable trace: Chrome's trace-event JSON, for Perfetto and chrome://tracing.

One process row per party; it holds the steps, the waits, messages sent to and received from each
peer (with arrows between them), and TensorFlow's ops by thread.  Names, sizes and times only.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfe_bench import atomic
from tfe_bench.errors import DataError

Row = dict[str, Any]
Jobs = Sequence[tuple[str, Sequence[Mapping[str, Any]]]]

_SENT, _RECEIVED, _WAITED, _STEP = range(4)
_STEPS, _WAITS, _TO, _FROM, _OPS = 1, 2, 10, 20, 100
_BETWEEN = 10_000_000  # between jobs, ns


def clock_offsets(parts: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return each party's clock offset from party 0, and its uncertainty, in ns.

    0 if both read the same clock; else from the messages of `timeline.clock_gaps`: half the
    difference of the two directions, off by less than half their sum.
    """
    offsets = [(0, 0)]
    for p in (1, 2):
        if parts[p]["host"] and parts[p]["host"] == parts[0]["host"]:
            offsets.append((0, 0))
            continue
        there, back = int(parts[p]["gaps"]["0"]), int(parts[0]["gaps"][str(p)])
        offsets.append(((there - back) // 2, abs(there + back) // 2))
    return offsets


def chrome_trace_events(jobs: Jobs) -> list[Row]:
    """Return the trace events of jobs, one after the other.

    Args:
        jobs: a title and the recordings of the three workers (cluster/tracing.py).
    """
    rows: list[Row] = []
    names: dict[tuple[int, int], str] = {}
    start = 0
    for number, (title, parts) in enumerate(jobs):
        shifts = clock_offsets(parts)
        origins = [
            int(part["begun"]) - shift for part, (shift, _) in zip(parts, shifts, strict=True)
        ]
        first = min(origins)
        end = start
        for p, part in enumerate(parts):
            at = start + origins[p] - first
            end = max(end, at + int(part["ended"]))
            offset, off_by = (ns / 1e3 for ns in shifts[p])
            row = _trace_slice_event(p, _STEPS, title, at, at + int(part["ended"]))
            rows.append({**row, "args": {"clock_offset_us": offset, "off_by_at_most_us": off_by}})
            names[p, _STEPS] = "steps"
            rows += _party_trace_events(p, part, at, f"{number}", names)
        start = end + _BETWEEN
    both = Counter(row["id"] for row in rows if "id" in row)
    # A message whose other end was not seen has no arrow.
    rows = [row for row in rows if "id" not in row or both[row["id"]] == 2]
    return _heading_events(3 if names else 0, names) + sorted(rows, key=lambda row: row["ts"])


def _heading_events(parties: int, names: Mapping[tuple[int, int], str]) -> list[Row]:
    rows = [
        row
        for p in range(parties)
        for row in _heading_event(p, 0, "process", name=f"party {p}", sort_index=p)
    ]
    for (p, thread), name in sorted(names.items()):
        rows += _heading_event(p, thread, "thread", name=name, sort_index=thread)
    return rows


def _heading_event(p: int, thread: int, subject: str, **arguments: object) -> list[Row]:
    return [
        {"name": f"{subject}_{key}", "ph": "M", "pid": p, "tid": thread, "args": {key: value}}
        for key, value in arguments.items()
    ]


def _party_trace_events(
    p: int, part: Mapping[str, Any], at: int, job: str, names: dict[tuple[int, int], str]
) -> list[Row]:
    sites = {int(n): str(name) for n, name in part["sites"].items()}
    lanes: dict[int, list[Row]] = {}
    arrows: list[Row] = []
    for values in part["events"]:
        e = dict(zip(part["fields"], values, strict=True))
        kind, peer = e["kind"], e["peer"]
        begin, end = at + e["begin"], at + e["end"]
        site = sites.get(e["site"], "bookkeeping")
        if kind == _STEP:
            row = _trace_slice_event(p, _STEPS, f"step {e['step']}", begin, end)
        elif kind == _WAITED:
            names[p, _WAITS] = "waiting"
            row = _trace_slice_event(p, _WAITS, f"for party {peer}: {site}", begin, end)
            row["args"] = {"peer": peer, "site": e["site"], "step": e["step"]}
        else:
            thread = (_TO if kind == _SENT else _FROM) + peer
            names[p, thread] = f"sends to {peer}" if kind == _SENT else f"receives from {peer}"
            row = _trace_slice_event(p, thread, site, begin, end)
            details = {name: e[name] for name in ("peer", "bytes", "site", "slot", "step")}
            row["args"] = {**details, "run_ahead": bool(e["run_ahead"])}
            if e["iteration"]:
                row["args"]["iteration"] = e["iteration"] - 1
            waited = e["begin"] - e["about"] if kind == _SENT else e["end"] - e["about"]
            if e["about"]:
                row["args"]["queued_us" if kind == _SENT else "asked_for_us_before"] = waited / 1e3
            ends = (p, peer) if kind == _SENT else (peer, p)
            name = "/".join(map(str, (job, *ends, e["step"], e["site"], e["iteration"], e["slot"])))
            arrows.append(_trace_arrow_event(row, "s" if kind == _SENT else "f", name))
        lanes.setdefault(row["tid"], []).append(row)
    for thread, op, begin, length in part["ops"]:
        names[p, _OPS + thread] = f"ops, thread {thread}"
        begin += at
        row = _trace_slice_event(p, _OPS + thread, str(part["op_names"][op]), begin, begin + length)
        lanes.setdefault(row["tid"], []).append(row)
    for thread, row_of in lanes.items():
        if thread != _STEPS and thread < _OPS:
            _separate_slices(row_of)
    return [*(row for row_of in lanes.values() for row in row_of), *arrows]


def _trace_slice_event(p: int, thread: int, name: str, begin: int, end: int) -> Row:
    return {
        "name": name,
        "ph": "X",
        "pid": p,
        "tid": thread,
        "ts": begin / 1e3,
        "dur": max(0, end - begin) / 1e3,
    }


def _trace_arrow_event(row: Row, kind: str, name: str) -> Row:
    arrow = {"name": "message", "cat": "message", "ph": kind, "id": name}
    arrow.update({key: row[key] for key in ("pid", "tid", "ts")})
    if kind == "f":
        arrow["bp"] = "e"
    return arrow


def _separate_slices(row_of: list[Row]) -> None:
    """Truncate slices that overlap partly: an earlier one ends where the next begins."""
    row_of.sort(key=lambda row: row["ts"])
    for row, following in itertools.pairwise(row_of):
        row["dur"] = min(row["dur"], following["ts"] - row["ts"])


def write_trace(path: str | os.PathLike[str], jobs: Jobs) -> None:
    """Write the trace of jobs atomically, with mode 0600.

    Raises:
        DataError: the file cannot be written, or a worker's recording is malformed.
    """
    try:
        left_out = sum(int(part["left_out"]) for _, parts in jobs for part in parts)
        whole = {
            "traceEvents": chrome_trace_events(jobs),
            "displayTimeUnit": "ms",
            "otherData": {"by": "tfe_bench", "events_left_out": left_out},
        }
        text = json.dumps(whole, allow_nan=False, separators=(",", ":"))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(
            f"The recording of a worker is malformed. Received: {type(error).__name__}.",
            code="malformed-message",
            operation="trace",
        ) from error
    atomic.write_atomically(Path(path), lambda out: out.write(text.encode("ascii")))
