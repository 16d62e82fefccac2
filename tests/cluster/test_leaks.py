"""Jobs leave nothing behind: no connection, task, thread or memory, however they end."""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.cluster.conftest import wait_until
from tfe_bench.cluster.client import Client, PrivateInput, new_job
from tfe_bench.errors import JobCancelled, UsageError

if TYPE_CHECKING:
    from tests.cluster.conftest import Trio

_X = {"x": PrivateInput(np.arange(3))}


def _plain(client: Client) -> None:
    np.testing.assert_array_equal(client.run("plain", {}, _X).outputs["x"], np.arange(3))


def _failing(client: Client) -> None:
    with pytest.raises(UsageError, match="As ordered"):
        client.run("plain", {"fail": True}, _X)


def _refused(client: Client) -> None:
    with pytest.raises(UsageError, match="No installed package"):
        client.run("unknown", {}, _X)


def _leaving(client: Client) -> None:
    """Its progress raises in the middle, as Ctrl-C does."""

    def leave(fraction: float, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.run("plain", {"wait": 60}, _X, leave)


def _cancelled(client: Client) -> None:
    job = new_job()
    running = threading.Event()
    found: list[BaseException] = []

    def run() -> None:
        try:
            client.run("plain", {"wait": 60}, _X, lambda *_: running.set(), job)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert running.wait(60), found
    client.cancel(job)
    thread.join(60)
    assert isinstance(found[0], JobCancelled), found


_ENDS = (_plain, _plain, _failing, _plain, _leaving, _plain, _cancelled, _plain, _refused, _plain)


def _figures(trio: Trio) -> dict[str, int]:
    """Counts of what the process holds, once the last job's remains are gone."""
    gc.collect()
    from tfe_bench.cluster import pending, transport

    kinds = (pending.Job, transport.SessionLink)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(trio.tasks()),
        "threads": sum(not t.name.startswith("tfe-rpc") for t in threading.enumerate()),
        "jobs and sessions": sum(isinstance(each, kinds) for each in gc.get_objects()),
    }


def test_jobs_leave_no_descriptor_task_thread_or_session(trio: Trio) -> None:
    """Forty jobs of five kinds, four at a time for the last half."""
    client = trio.client("analyst")
    for end in _ENDS:
        end(client)
    wait_until(trio.idle, "the first jobs have ended")

    def settled() -> dict[str, int] | None:
        found = _figures(trio)
        # (each server remembers its last call)
        return found if found["jobs and sessions"] <= 2 * 3 else None

    baseline = wait_until(settled, "the first sessions are dropped", 30)
    baseline["jobs and sessions"] = 2 * 3
    for end in _ENDS:
        end(client)
    errors: list[BaseException] = []

    def together(number: int) -> None:
        try:
            for end in _ENDS[number::4]:
                end(client)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=together, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors

    def at_baseline() -> bool:
        found = _figures(trio)
        print(found)
        return all(found[name] <= count for name, count in baseline.items())

    print(baseline)
    wait_until(at_baseline, f"all is as before: {baseline}", 30)
