"""Three local workers: results, typed errors, and cleanup."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import ClusterError, PeerLost, PolicyError, UsageError
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tests.cluster.conftest import Processes

pytestmark = pytest.mark.usefixtures("real_processes")

Ring = np.ndarray[Any, np.dtype[np.int64]]
_LEAST, _GREATEST = -(2**63), 2**63 - 1


def _draw_keys(n: int, seed: int = 7) -> Ring:
    print(f"seed {seed}")
    return np.random.default_rng(seed).integers(_LEAST, _GREATEST, n, np.int64, endpoint=True)


def _run_sort(
    cluster: LocalCluster, keys: Ring, bits: int = 0, payload: Ring | None = None, **parameters: Any
) -> dict[str, Ring]:
    inputs = {"keys": PrivateInput(keys, bits)}
    if payload is not None:
        inputs["payload"] = PrivateInput(payload)
    return cluster.run("sort", parameters, inputs).outputs


def _assert_sorted(outputs: dict[str, Ring], keys: Ring) -> None:
    np.testing.assert_array_equal(outputs["keys"], np.sort(keys))
    np.testing.assert_array_equal(outputs["indices"], np.argsort(keys, kind="stable"))


def test_full_range_keys_come_back_sorted_with_the_payload_moved_along(
    shared_cluster: LocalCluster,
) -> None:
    keys, payload = _draw_keys(200), _draw_keys(200, seed=8)
    keys[:6] = _LEAST, _GREATEST, 0, -1, 1, _LEAST
    outputs = _run_sort(shared_cluster, keys, payload=payload)
    _assert_sorted(outputs, keys)
    np.testing.assert_array_equal(outputs["payload"], payload[np.argsort(keys, kind="stable")])


def test_equal_keys_keep_their_order_in_both_directions(shared_cluster: LocalCluster) -> None:
    keys = np.random.default_rng(3).integers(0, 4, 60, np.int64)
    _assert_sorted(_run_sort(shared_cluster, keys), keys)
    outputs = _run_sort(shared_cluster, keys, descending=True)
    np.testing.assert_array_equal(outputs["keys"], np.sort(keys)[::-1])
    np.testing.assert_array_equal(outputs["indices"], np.argsort(~keys, kind="stable"))


def test_one_job_follows_another_with_fresh_figures(shared_cluster: LocalCluster) -> None:
    for seed, n in ((1, 40), (2, 70)):
        keys = _draw_keys(n, seed)
        result = shared_cluster.run("sort", {"repeat": 2}, {"keys": PrivateInput(keys)})
        _assert_sorted(result.outputs, keys)
        assert [len(m["seconds"]) for m in result.measured] == [2, 2, 2]
        assert all(sum(m["payload"]) > 0 for m in result.measured)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_the_smallest_inputs_sort(shared_cluster: LocalCluster, n: int) -> None:
    keys = _draw_keys(n)
    _assert_sorted(_run_sort(shared_cluster, keys), keys)


def test_rows_sort_each_on_its_own(shared_cluster: LocalCluster) -> None:
    keys = _draw_keys(3 * 17).reshape(3, 17)
    _assert_sorted(_run_sort(shared_cluster, keys), keys)


def test_fixed_point_keys_keep_their_scale(shared_cluster: LocalCluster) -> None:
    values = np.random.default_rng(5).uniform(-1000, 1000, 50)
    keys = FixedPoint(16).encode(values)
    result = shared_cluster.run("sort", {}, {"keys": PrivateInput(keys, 16)})
    _assert_sorted(result.outputs, keys)
    assert result.fractional_bits["keys"] == 16
    assert result.fractional_bits["indices"] == 0
    back = FixedPoint(16).decode(result.outputs["keys"])
    np.testing.assert_allclose(back, np.sort(values), atol=2**-16)


@pytest.mark.parametrize(
    ("program", "parameters", "code", "fact"),
    [
        ("srot", {}, "unknown-program", '"sort"'),
        ("sort", {"repaet": 1}, "unknown-option", '"repeat"'),
        ("sort", {"algorithm": "quik"}, "unknown-name", '"quick"'),
        ("sort", {"repeat": 0}, "number-out-of-range", "0"),
        ("sort", {"repeat": "many"}, "wrong-type", "'many'"),
    ],
    ids=["program", "parameter", "algorithm", "repeat", "type"],
)
def test_a_mistaken_job_is_refused_and_the_cluster_stays_usable(
    shared_cluster: LocalCluster, program: str, parameters: dict[str, Any], code: str, fact: str
) -> None:
    keys = _draw_keys(9)
    with raises(UsageError, code, names=(fact,)):
        shared_cluster.run(program, parameters, {"keys": PrivateInput(keys)})
    _assert_sorted(_run_sort(shared_cluster, keys), keys)


def test_inputs_that_do_not_fit_each_other_are_refused(shared_cluster: LocalCluster) -> None:
    keys = _draw_keys(9)
    with raises(UsageError, "shape-mismatch"):
        _run_sort(shared_cluster, keys, payload=_draw_keys(8))
    with raises(UsageError, "unexpected-inputs", operation="keys"):
        shared_cluster.run("sort", {}, {"keyz": PrivateInput(keys)})
    _assert_sorted(_run_sort(shared_cluster, keys), keys)


@pytest.mark.parametrize("sizes", [(1 << 40, 0), (1 << 20, 0), (0, 1 << 40)])
def test_a_job_without_a_byte_ends_no_worker(
    shared_cluster: LocalCluster, sizes: tuple[int, int]
) -> None:
    factors = {"x": np.zeros(sizes, np.int64), "y": np.zeros(sizes[::-1], np.int64)}
    inputs = {name: PrivateInput(ring) for name, ring in factors.items()}
    with raises((UsageError, PolicyError), "invalid-shape", "too-large"):
        shared_cluster.run("matmul", {}, inputs)
    keys = _draw_keys(9)
    _assert_sorted(_run_sort(shared_cluster, keys), keys)


@pytest.mark.parametrize("sizes", [(0, 1 << 30), (1 << 30, 0)])
def test_a_sort_of_no_rows_ends_no_worker(
    shared_cluster: LocalCluster, sizes: tuple[int, int]
) -> None:
    with raises(PolicyError, "too-large", operation="inputs of this size"):
        shared_cluster.run("sort", {}, {"keys": PrivateInput(np.zeros(sizes, np.int64))})
    result = _run_sort(shared_cluster, np.zeros((0, 9), np.int64))
    assert result["keys"].shape == result["indices"].shape == (0, 9)


def test_progress_is_told_and_never_falls(shared_cluster: LocalCluster) -> None:
    fractions: list[float] = []
    keys = _draw_keys(2000)
    shared_cluster.run(
        "sort",
        {"repeat": 3},
        {"keys": PrivateInput(keys)},
        lambda fraction, text: fractions.append(fraction),
    )
    assert fractions and all(0 <= f <= 1 for f in fractions) and fractions == sorted(fractions)


def test_closing_leaves_no_process_and_no_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processes: Processes
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalCluster() as cluster:
        pids = processes.watch(cluster.pids)
        [folder] = tmp_path.iterdir()
        keys = sorted(p.name for p in folder.glob("*.key"))
        assert keys == ["party0.key", "party1.key", "party2.key"]
        assert all(p.stat().st_mode & 0o777 == 0o600 for p in folder.glob("*.key"))
        assert folder.stat().st_mode & 0o777 == 0o700
        assert all(processes.is_alive(p) for p in pids)
    assert processes.wait_gone(pids, 5) == []
    assert list(tmp_path.iterdir()) == []
    cluster.close()  # a second call has no effect


def test_workers_die_with_the_process_that_forked_them(processes: Processes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with LocalCluster() as cluster:
        assert cluster._workers is not None
        pids, parent = processes.watch(cluster.pids), cluster._workers._parent
        assert len(set(pids)) == 3 and parent.pid not in pids
        names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]
        assert names == [f"tfe-party-{p}" for p in range(3)]
        parent.kill()
        assert processes.wait_gone(pids, 5) == []
        with raises(PeerLost, "peer-lost", names=("code -9",)):
            _run_sort(cluster, _draw_keys(9))
    assert len(os.listdir("/proc/self/fd")) == before


def test_workers_that_cannot_start_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('it is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with raises(ClusterError, "worker-not-started", received=1, party=0) as refused:
        LocalCluster()
    assert "ImportError" in str(refused.value)


def test_workers_and_keys_do_not_outlive_a_parent_that_is_killed(
    tmp_path: Path, processes: Processes
) -> None:
    script = (
        "import time\n"
        "from tfe_bench.cluster.launch import LocalCluster\n"
        "print(*LocalCluster().pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = processes.start(
        "-c",
        script,
        out=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    pids = processes.watch([int(p) for p in parent.stdout.readline().split()])
    parent.stdout.close()
    assert len(pids) == 3
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert processes.wait_gone(pids, 20) == []
    assert list(tmp_path.glob("**/*.key")) == []
