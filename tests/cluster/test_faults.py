"""A worker that dies or hangs during a sort: the error names it at once."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.edges import parametrize_daily
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import PeerLost

if TYPE_CHECKING:
    from tests.cluster.conftest import Processes

# 2 s after a death and 10 s after a hang; the rest is a margin for a busy machine.
SECONDS = {signal.SIGKILL: 6.0, signal.SIGSTOP: 10.0 + 4.0}


def _break_mid_sort(cluster: LocalCluster, strike: Callable[[], None]) -> tuple[PeerLost, float]:
    """Return the error of a long sort that is interrupted, and the seconds until the error."""
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1 << 18, np.int64)
    running = threading.Event()
    struck: list[float] = []

    def wait_and_strike() -> None:
        if running.wait(120):
            time.sleep(0.3)
            struck.append(time.monotonic())
            strike()

    thread = threading.Thread(target=wait_and_strike, daemon=True)
    thread.start()
    with pytest.raises(PeerLost) as caught:
        cluster.run(
            "sort",
            {"repeat": 20},
            {"keys": PrivateInput(keys)},
            lambda fraction, _: running.set() if fraction > 0.02 else None,
        )
    seconds = time.monotonic() - struck[0]
    thread.join()
    return caught.value, seconds


@parametrize_daily(
    ("party", "strike"),
    itertools.product(range(3), SECONDS),
    [(1, signal.SIGKILL), (2, signal.SIGSTOP)],
)
def test_a_worker_that_dies_or_hangs_is_named_within_seconds_and_ends_on_close(
    party: int, strike: signal.Signals, processes: Processes
) -> None:
    with LocalCluster() as cluster:
        pids = processes.watch(cluster.pids)
        error, seconds = _break_mid_sort(cluster, lambda: os.kill(pids[party], strike))
        print(f"party {party} gets {strike.name}: told after {seconds:.2f} s: {error}")
        assert error.party == party
        assert f"party {party}" in str(error)
        assert seconds < SECONDS[strike]
        # The other workers ended the job, too, and run until the cluster is closed.
        survivors = [pid for p, pid in enumerate(pids) if p != party]
        assert all(processes.is_alive(pid) for pid in survivors)
    assert processes.wait_gone(pids, 5) == []


@pytest.mark.slow
def test_a_worker_that_hangs_shortly_and_goes_on_is_not_lost(processes: Processes) -> None:
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 1 << 16, np.int64)
    running = threading.Event()
    with LocalCluster() as cluster:
        pids = processes.watch(cluster.pids)

        def pause() -> None:
            if running.wait(120):
                os.kill(pids[1], signal.SIGSTOP)
                time.sleep(2.0)
                os.kill(pids[1], signal.SIGCONT)

        thread = threading.Thread(target=pause, daemon=True)
        thread.start()
        result = cluster.run(
            "sort", {"repeat": 5}, {"keys": PrivateInput(keys)}, lambda *_: running.set()
        )
        thread.join()
    np.testing.assert_array_equal(result.outputs["keys"], np.sort(keys))
