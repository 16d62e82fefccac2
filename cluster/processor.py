"""Processor time of this process, by the purpose of its threads."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

GRAPH, TRANSPORT, OTHER = "graph", "transport", "other"
_TASKS = "/proc/self/task"
# Names of the threads of gRPC and TensorFlow; Python's threads are distinguished by their id.
_PREFIXES = (("tf_", GRAPH), ("grpc", TRANSPORT), ("event_engine", TRANSPORT))
_CHANNEL = ("tfe-channel", "tfe-rpc")


@dataclass(frozen=True)
class CpuUsage:
    """Nanoseconds of each thread so far.

    Attributes:
        used: on a processor.
        queued: ready, and waiting for a free processor.
        group: GRAPH, TRANSPORT or OTHER.
    """

    used: dict[int, int]
    queued: dict[int, int]
    group: dict[int, str]

    def seconds_since(self, before: CpuUsage) -> tuple[dict[str, float], float]:
        """Return seconds on a processor by group, and seconds queued (all threads added up)."""
        used: dict[str, float] = dict.fromkeys((GRAPH, TRANSPORT, OTHER), 0.0)
        for thread, ns in self.used.items():
            used[self.group[thread]] += (ns - before.used.get(thread, 0)) / 1e9
        queued = sum(ns - before.queued.get(thread, 0) for thread, ns in self.queued.items())
        return used, queued / 1e9


def read_proc_file(path: str, max_bytes: int = 256) -> bytes:
    """Read a short file of the kernel, 5 times as fast as with Python's file objects."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, max_bytes)
    finally:
        os.close(file)


# Names of the threads at the last reading: a file less for each thread.
_thread_names: dict[int, str] = {}


def read_cpu_usage() -> CpuUsage | None:
    """Return the usage of this process's threads; None if the kernel does not count it.

    The calling thread runs the program: its time counts as the graph's.
    """
    python_names = {t.native_id: t.name for t in threading.enumerate() if t.native_id is not None}
    own_thread = threading.get_native_id()
    totals = CpuUsage({}, {}, {})
    try:
        tasks = os.listdir(_TASKS)
    except OSError:
        return None
    for ended in _thread_names.keys() - map(int, tasks):
        del _thread_names[ended]
    for task in tasks:
        thread = int(task)
        try:
            used, queued, _ = map(int, read_proc_file(f"{_TASKS}/{task}/schedstat").split())
            name = _thread_names.get(thread)
            if name is None:
                name = read_proc_file(f"{_TASKS}/{task}/comm").decode(errors="replace")
                _thread_names[thread] = name
        except (OSError, ValueError):  # the thread has ended, or the kernel does not count
            continue
        group = next((g for prefix, g in _PREFIXES if name.startswith(prefix)), OTHER)
        if thread == own_thread:
            group = GRAPH
        elif python_names.get(thread, "").startswith(_CHANNEL):
            group = TRANSPORT
        totals.used[thread], totals.queued[thread], totals.group[thread] = used, queued, group
    return totals if own_thread in totals.used else None
