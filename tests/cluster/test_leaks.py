"""Jobs leave no connection, task, thread or memory, however they end."""

from __future__ import annotations

import gc
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cluster.conftest import wait_until
from tests.cluster.endings import (
    INPUTS,
    end_by_leaving,
    end_cancelled,
    end_in_failure,
    end_plainly,
    end_refused,
)
from tests.models import tiny
from tfe_bench import clusters
from tfe_bench.cluster.client import new_job
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import JobCancelled, UsageError
from tfe_bench.models.inference.private import convert
from tfe_bench.private_tables import tables

if TYPE_CHECKING:
    from tests.cluster.conftest import Trio

_ENDS = (
    end_plainly,
    end_plainly,
    end_in_failure,
    end_plainly,
    end_by_leaving,
    end_plainly,
    end_cancelled,
    end_plainly,
    end_refused,
    end_plainly,
)


def _list_jobs_and_sessions() -> list[Any]:
    from tfe_bench.cluster import transport
    from tfe_bench.cluster.worker import pending

    kinds = (pending.Job, transport.SessionLink)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


def _count_resources(trio: Trio, earlier: set[int]) -> dict[str, int]:
    """Count the process's resources, after the last job's have been released.

    Args:
        earlier: ids of jobs and sessions that earlier tests' servers still store.
    """
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(trio.tasks()),
        "threads": sum(not t.name.startswith("tfe-rpc") for t in threading.enumerate()),
        "jobs and sessions": sum(id(each) not in earlier for each in _list_jobs_and_sessions()),
    }


def test_jobs_leave_no_descriptor_task_thread_or_session(trio: Trio) -> None:
    """Twenty jobs of five kinds, half of them four at a time, after ten that fill pools."""
    client = trio.client("analyst")
    errors: list[BaseException] = []
    held = _list_jobs_and_sessions()  # (held, so that no new object gets the id of one of them)
    earlier = {id(each) for each in held}

    def together(number: int) -> None:
        try:
            for end in _ENDS[number::4]:
                end(client)
        except BaseException as error:
            errors.append(error)

    def four_at_a_time() -> None:
        threads = [threading.Thread(target=together, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors

    four_at_a_time()
    wait_until(trio.idle, "the first jobs have ended")

    def settled() -> dict[str, int] | None:
        figures = _count_resources(trio, earlier)
        # (each server stores its last call)
        return figures if figures["jobs and sessions"] <= 2 * 3 else None

    baseline = wait_until(settled, "the first sessions are dropped")
    baseline["jobs and sessions"] = 2 * 3
    for end in _ENDS:
        end(client)
    four_at_a_time()

    def at_baseline() -> bool:
        figures = _count_resources(trio, earlier)
        print(figures)
        return all(figures[name] <= count for name, count in baseline.items())

    print(baseline)
    wait_until(at_baseline, f"all is as before: {baseline}")


class _Process:
    """Resources of one worker's process, read from /proc."""

    def __init__(self, pid: int) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        self.threads = int(status.split("Threads:")[1].split()[0])
        self.megabytes = int(status.split("VmRSS:")[1].split()[0]) / 1024

    def __str__(self) -> str:
        return f"{self.descriptors} fds, {self.threads} threads, {self.megabytes:.0f} MB"


def _run_sort(cluster: LocalCluster, rng: np.random.Generator) -> None:
    keys = rng.integers(-(2**63), 2**63 - 1, int(rng.integers(0, 300)), np.int64)
    sorted_keys = cluster.run("sort", {}, {"keys": PrivateInput(keys)}).outputs["keys"]
    np.testing.assert_array_equal(sorted_keys, np.sort(keys))


def _run_matmul(cluster: LocalCluster, rng: np.random.Generator) -> None:
    n = int(rng.integers(1, 40))
    x, y = (rng.integers(-1000, 1000, (n, n), np.int64) for _ in range(2))
    inputs = {"x": PrivateInput(x), "y": PrivateInput(y)}
    [product] = cluster.run("matmul", {}, inputs).outputs.values()
    np.testing.assert_array_equal(product, x @ y)


def _run_failing(cluster: LocalCluster, rng: np.random.Generator) -> None:
    with pytest.raises(UsageError):
        cluster.run("sort", {"repeat": int(rng.integers(1001, 2000))}, INPUTS)


def _run_interrupted(cluster: LocalCluster, rng: np.random.Generator) -> None:
    """Run a job whose client disconnects."""

    def leave(fraction: float, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.run("sort", {"repeat": 1000}, {"keys": PrivateInput(np.arange(500))}, leave)


def _is_cancelled(cluster: LocalCluster, rng: np.random.Generator) -> None:
    job = new_job()
    events: list[str] = []

    def cancel(fraction: float, text: str) -> None:
        if not events:  # more progress reports may have been in transit
            events.append(job)
            cluster.client.cancel(job)

    with pytest.raises(JobCancelled):
        keys = {"keys": PrivateInput(np.arange(500))}
        cluster.client.run("sort", {"repeat": 1000}, keys, cancel, job)


_MIX = (
    _run_sort,
    _run_matmul,
    _run_sort,
    _run_failing,
    _run_sort,
    _run_interrupted,
    _run_matmul,
    _run_sort,
    _is_cancelled,
    _run_sort,
)


Samples = list[list[_Process]]  # by moment and party


def _looked_at(cluster: LocalCluster) -> list[_Process]:
    return [_Process(pid) for pid in cluster.pids]


def _typical_figures(samples: Samples, party: int) -> tuple[int, int, float]:
    """Return minima of descriptors and threads, and the median of memory (it varies by 50 MB)."""
    of = [moment[party] for moment in samples]
    print(f"party {party}: {'; '.join(map(str, of))}")
    megabytes = statistics.median(p.megabytes for p in of)
    return min(p.descriptors for p in of), min(p.threads for p in of), megabytes


def _are_steady(before: Samples, after: Samples) -> None:
    for party in range(len(before[0])):
        first, last = _typical_figures(before, party), _typical_figures(after, party)
        assert last[0] <= first[0] + 2
        # (an idle thread of the pool is reused)
        assert last[1] <= first[1] + 12
        assert last[2] <= first[2] + 40


def _stay_as_they_were(cluster: LocalCluster, once: Callable[[int], None]) -> None:
    """Check workers and this client over two hundred turns after the first twenty."""
    held: Samples = []
    for number in range(220):
        once(number)
        if number >= 20 and number % 10 == 9:
            held.append([*_looked_at(cluster), _Process(os.getpid())])
    _are_steady(held[:5], held[-5:])


@pytest.mark.slow
def test_two_hundred_jobs_leave_three_processes_as_they_were(rng: np.random.Generator) -> None:
    with LocalCluster() as cluster:
        for kind in 6 * _MIX:
            kind(cluster, rng)
        held: Samples = []
        for _ in range(20):
            for kind in _MIX:
                kind(cluster, rng)
            held.append(_looked_at(cluster))
        _are_steady(held[:5], held[-5:])


def _of_many_kinds() -> tuple[Any, Any]:
    """Return a model of an exponential, a root and a learned slope, and its private values."""
    keras: Any = pytest.importorskip("keras")
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((4,)),
            layers.Dense(4, "silu"),
            layers.PReLU("ones"),
            layers.UnitNormalization(),
            layers.Dense(3),
        ]
    )
    return model, convert(model)


@pytest.mark.slow
def test_two_hundred_predictions_leave_workers_and_client_as_they_were(
    rng: np.random.Generator,
) -> None:
    model, private = _of_many_kinds()
    x = rng.normal(0, 1, (2, 4)).astype(np.float32)
    want = model.predict(x, verbose=0)
    with clusters.LocalCluster() as cluster:
        _stay_as_they_were(
            cluster,
            lambda _: np.testing.assert_allclose(cluster.predict(private, x), want, atol=1e-3),
        )


@pytest.mark.slow
def test_two_hundred_trainings_leave_workers_and_client_as_they_were() -> None:
    """With four rates, each of which has its own graph; the learned weights are requested."""
    x, y = tiny.draw_data()
    some = [tiny.private_model(0.1 * (1 + i)) for i in range(4)]

    def once(number: int) -> None:
        private = some[number % 4]
        cluster.fit(private, x, y, batch_size=tiny.BATCH)
        if number >= 200:
            right = (private.keras.predict(x, verbose=0)[:, 0] > 0.5) == y
            assert abs(cluster.evaluate(private, x, y) - right.mean()) <= 0.02

    with clusters.LocalCluster() as cluster:
        _stay_as_they_were(cluster, once)


@pytest.mark.slow
def test_two_hundred_texts_leave_workers_and_client_as_they_were() -> None:
    """With weights of 20,000 words, whose masks are held as seeds."""
    keras: Any = pytest.importorskip("keras")
    layers, length, count = keras.layers, 6, 160
    words = keras.Input((length,), dtype="int32")
    table = layers.ReversibleEmbedding(count, 128)
    x = table(words)
    y = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 64)(y, y, use_causal_mask=True)])
    model = keras.Model(words, table(layers.LayerNormalization()(x), reverse=True))
    texts = np.random.default_rng(1).integers(0, count, (4, length))
    private = convert(model, samples=texts, activations="series")
    with clusters.LocalCluster() as cluster:
        expected = cluster.generate(private, texts[0, :3], 3)

        def once(_: int) -> None:
            tokens = cluster.generate(private, texts[0, :3], 3)
            np.testing.assert_array_equal(tokens, expected)

        _stay_as_they_were(cluster, once)


@pytest.mark.slow
def test_a_soak(rng: np.random.Generator) -> None:
    """Mixed jobs for TFE_BENCH_SOAK_MINUTES (30); prints the figures of docs/performance.md."""
    minutes = float(os.environ.get("TFE_BENCH_SOAK_MINUTES", "30"))
    with LocalCluster() as cluster:
        for kind in 6 * _MIX:
            kind(cluster, rng)
        held: Samples = []
        counts: Counter[str] = Counter()
        began = last_report = time.monotonic()
        while time.monotonic() - began < minutes * 60:
            kind = _MIX[int(rng.integers(len(_MIX)))]
            kind(cluster, rng)
            counts[kind.__name__.strip("_")] += 1
            if time.monotonic() - last_report > min(60, 6 * minutes):
                last_report = time.monotonic()
                held.append(_looked_at(cluster))
                here = "; ".join(map(str, held[-1]))
                print(
                    f"{(last_report - began) / 60:.0f} min, {counts.total()} jobs: {here}",
                    flush=True,
                )
        print(f"{minutes:g} minutes, {counts.total()} jobs: {dict(counts)}")
        third = len(held) // 3
        _are_steady(held[:third], held[-third:])


@pytest.mark.slow
def test_two_hundred_queries_leave_workers_and_client_as_they_were(
    rng: np.random.Generator,
) -> None:
    pytest.importorskip("sqlglot")
    k, v = rng.permutation(40), rng.integers(-100, 100, 40)
    bounds = {"k": "int[0,63]", "v": "int[-100,100]"}
    with LocalCluster() as cluster:
        db = tables(cluster)
        db.put("t", {"k": k.tolist(), "v": v.tolist()}, types=bounds, unique=["k"])

        def once(number: int) -> None:
            # (workers keep each plan's graphs, up to a bound that is not reached here)
            bound = 20 * (number % 4)
            texts = {
                0: "select sum(v) s, count(*) n from t where v > 0",
                1: f"select sum(v) s, count(*) n from t where v > {bound}",
                2: "select k, v from t order by v desc, k limit 3",
            }
            rows = db.sql(texts[number % 3]).run().rows
            if number % 3 == 2:
                due = sorted(zip(k.tolist(), v.tolist(), strict=True), key=lambda r: (-r[1], r[0]))
                assert [tuple(row) for row in rows] == due[:3]
            else:
                some = v[v > (bound if number % 3 else 0)]
                assert [tuple(row) for row in rows] == [
                    (some.sum() if len(some) else None, len(some))
                ]
            if number % 20 == 5:
                with pytest.raises(UsageError):
                    db.sql("select v from t order by nothing").run()

        _stay_as_they_were(cluster, once)
