"""One traced run at a worker: messages, waits, steps and TensorFlow's ops.

It is a separate run after the timed ones, so that tracing does not affect these.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench.cluster.barrier import wait_at_worker_barrier
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import timeline
from tfe_bench.protocols.session.party import Party

_MARK = "tfe_bench begins"
# Name and kind of an op in TensorFlow's profile.
_OP = re.compile(r"[^:]*:([A-Za-z_][\w>.]*)")
_LEAST_NS = 2_000
_MOST_OPS = 100_000


def trace_worker_run(party: Party, run_once: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Run once; return the result and the trace for the client (benchmarks/trace_file.py).

    All three workers do so together.
    """
    with _TensorflowProfiler() as profiler:
        timeline.set_session_recording(party, timeline.EVENTS)  # a peer may start slightly earlier
        wait_at_worker_barrier(party)
        begun = timeline.read_session_clock()
        profiler.mark_start()
        result = run_once()
        ended = timeline.read_session_clock()
    rows = timeline.read_session_events(party)
    left_out = timeline.read_session_time_totals(party).left_out
    timeline.set_session_recording(party, timeline.OFF)
    rows = rows[(rows["end"] > begun) | (rows["site"] > 0)]
    rows["begin"] = np.maximum(rows["begin"] - begun, 0)
    rows["end"] = np.maximum(rows["end"] - begun, 0)
    has_request_time = rows["about"] > 0
    has_request_time &= rows["kind"] != timeline.WAITED
    rows["about"][has_request_time] -= begun
    sites = {int(n) for n in rows["site"]} - {0}
    return result, {
        "host": _host_id(),
        "gaps": timeline.measure_party_clock_gaps(party),
        "begun": begun,
        "ended": ended - begun,
        "fields": list(rows.dtype.names or ()),
        "events": [list(row) for row in rows.tolist()],
        "left_out": left_out,
        "sites": {n: party.site_names.get(n, "?") for n in sorted(sites)},
        **profiler.get_ops(),
    }


def _host_id() -> str:
    """Return an identifier of the clock: of one boot and one time namespace."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(str(Path("/proc/self/ns/time").readlink()))
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16] if parts else ""


class _TensorflowProfiler:
    """TensorFlow's profiler during a run; without it the trace holds no ops."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._marked = 0
        self._ops: dict[str, Any] = {"op_names": [], "ops": [], "op_seconds": {}}

    def __enter__(self) -> _TensorflowProfiler:
        self._folder = tempfile.TemporaryDirectory(prefix="tfe_bench-trace-")
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
        )
        try:
            tf.profiler.experimental.start(self._folder.name, options)
        except Exception:  # another profiler runs: the trace still has messages and waits
            self._folder.cleanup()
            self._folder = None
        return self

    def mark_start(self) -> None:
        """Relate the profiler's clock to ours: the present is the start."""
        with tf.profiler.experimental.Trace(_MARK):
            pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._folder is None:
            return
        try:
            with contextlib.suppress(Exception):
                tf.profiler.experimental.stop(save=kind is None)
            if kind is None:
                with contextlib.suppress(Exception):  # of another version: no ops
                    self._read_profile(Path(self._folder.name))
        finally:
            self._folder.cleanup()

    def _read_profile(self, folder: Path) -> None:
        space = _parse_profiler_xspace(next(folder.rglob("*.xplane.pb")).read_bytes())
        lines = [
            list(_read_profiler_events(plane, line))
            for plane in space.planes
            for line in plane.lines
        ]
        begun = next(start for line in lines for name, start, _ in line if name == _MARK)
        ops: list[tuple[int, str, int, int]] = []
        seconds: dict[str, float] = {}
        for thread, line in enumerate(lines):
            for name, start, duration in line:
                kind = _OP.fullmatch(name)
                if kind is None or start < begun:
                    continue
                op = kind[1]
                seconds[op] = seconds.get(op, 0.0) + duration / 1e9
                if duration >= _LEAST_NS:
                    ops.append((thread, op, start - begun, duration))
        ops = sorted(ops, key=lambda row: -row[3])[:_MOST_OPS]
        names = sorted({row[1] for row in ops})
        index = {name: i for i, name in enumerate(names)}
        threads = {thread: i for i, thread in enumerate(sorted({row[0] for row in ops}))}
        self._ops = {
            "op_names": names,
            "ops": [[threads[t], index[op], start, length] for t, op, start, length in ops],
            "op_seconds": dict(sorted(seconds.items(), key=lambda item: -item[1])),
        }

    def get_ops(self) -> dict[str, Any]:
        """Return the ops ([thread, name, begin, length] in ns) and seconds by kind."""
        return self._ops


def _read_profiler_events(plane: Any, line: Any) -> Iterator[tuple[str, int, int]]:
    for event in line.events:
        name = str(plane.event_metadata[event.metadata_id].name)
        yield name, int(line.timestamp_ns) + event.offset_ps // 1000, event.duration_ps // 1000


def _parse_profiler_xspace(blob: bytes) -> Any:
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError:
        from tensorflow.core.profiler.protobuf import (  # pyright: ignore[reportMissingImports]
            xplane_pb2,
        )
    space: Any = xplane_pb2.XSpace()  # pyright: ignore[reportAttributeAccessIssue]
    space.ParseFromString(blob)
    return space
