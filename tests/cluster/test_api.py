"""Errors of a user of a cluster in Python: reported in words before anything is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.refusals import raises
from tfe_bench import Client, Cluster, LocalCluster
from tfe_bench.cluster.client import new_job
from tfe_bench.cluster.config import ClusterConfig, PartyConfig
from tfe_bench.cluster.launch import _free_worker_ports
from tfe_bench.cluster.local_workers import LocalWorkers
from tfe_bench.cluster.profiles import PROFILES
from tfe_bench.cluster.requests import LateInput, PrivateInput
from tfe_bench.errors import ClusterError, ConfigError, PeerLost, TfeBenchError, UsageError


@pytest.fixture
def client() -> Client:
    """Provide a client of a cluster without running workers."""
    ports = _free_worker_ports(3)
    parties = tuple(PartyConfig(p, f"p{p}", "127.0.0.1", ports[p]) for p in range(3))
    return Client(ClusterConfig("x", parties, tls=False))


@pytest.fixture
def cluster(client: Client) -> Cluster:
    """Provide a cluster without running workers."""
    instance = Cluster.__new__(Cluster)
    instance.name, instance.profile = "x", PROFILES["local"]
    instance._init_client(client.config, b"", b"")
    return instance


_KEYS = {"keys": PrivateInput(np.arange(3))}
_NESTED: list[Any] = []
_NESTED.append(_NESTED)
_WRONG: dict[str, tuple[tuple[Any, ...], dict[str, str]]] = {
    "an array": (
        ("sort", {}, {"keys": np.arange(3)}),
        {"operation": "keys", "received": "ndarray of int64", "expected": "PrivateInput"},
    ),
    "reals": (("sort", {}, {"keys": np.zeros(3)}), {"received": "ndarray of float64"}),
    "a list": (
        ("sort", {}, {"keys": [1, 2]}),
        {"received": "list", "expected": "PrivateInput"},
    ),
    "inputs in a list": (
        ("sort", {}, [PrivateInput(np.arange(3))]),
        {"operation": "inputs", "expected": "a dict"},
    ),
    "an input without a name": (
        ("sort", {}, {3: PrivateInput(np.arange(3))}),
        {"operation": "3", "expected": "PrivateInput"},
    ),
    "no inputs": (("sort", {}, None), {"operation": "inputs", "received": "NoneType"}),
    "no program": ((None, {}, _KEYS), {"operation": "program", "received": "NoneType"}),
    "an empty program": (("", {}, _KEYS), {"operation": "program", "received": "str"}),
    "no parameters": (("sort", None, _KEYS), {"operation": "parameters", "expected": "a dict"}),
    "an array in parameters": (
        ("sort", {"a": np.arange(3)}, _KEYS),
        {"operation": "a", "expected": "JSON values"},
    ),
    "a NumPy number": (
        ("sort", {"a": np.int64(3)}, _KEYS),
        {"operation": "a", "received": "int64 of int64", "expected": "JSON values"},
    ),
    "NaN": (
        ("sort", {"b": [float("nan")]}, _KEYS),
        {"operation": "b", "received": "list", "expected": "JSON values"},
    ),
    "a set": (("sort", {"a": {1}}, _KEYS), {"operation": "a", "received": "set"}),
    "itself": (("sort", {"a": _NESTED}, _KEYS), {"operation": "a", "received": "list"}),
    "a key that is none": (("sort", {(1, 2): 3}, _KEYS), {"expected": "JSON values"}),
    "a job that is none": (("sort", {}, _KEYS, None, "mine"), {"operation": "job"}),
}


@pytest.mark.parametrize("case", _WRONG)
def test_arguments_of_another_type_are_refused_in_words(client: Client, case: str) -> None:
    arguments, fields = _WRONG[case]
    code = "invalid-name" if case == "a job that is none" else "wrong-type"
    with raises(UsageError, code, **fields) as raised:
        client.run(*arguments)
    assert "[0 1 2]" not in str(raised.value)  # no values
    client.close()


def test_what_a_cluster_is_given_is_looked_at(cluster: Cluster) -> None:
    with raises(UsageError, "wrong-type", operation="keys", received="ndarray of int64"):
        cluster.run("sort", {}, {"keys": np.arange(3)})  # type: ignore[dict-item]
    for value in (np.zeros(3), None, 7):
        calls: tuple[Callable[[Any], object], ...] = (
            lambda g: cluster.predict(g, np.zeros((1, 3))),
            lambda g: cluster.fit(g, np.zeros((1, 3)), np.zeros(1)),
            lambda g: cluster.evaluate(g, np.zeros((1, 3)), np.zeros(1)),
            lambda g: cluster.deploy(g, "name"),
        )
        for ask in calls:
            with raises(UsageError, "wrong-type", received=type(value).__name__):
                ask(value)
    for name in ("", None, 7):
        with raises(UsageError, "wrong-type", operation="job"):
            cluster.client.cancel(name)  # type: ignore[arg-type]
    cluster.close()


@pytest.mark.parametrize("bits", [-1, 128, 1.0, "16", None, True])
def test_a_scale_that_is_none_is_refused(bits: Any) -> None:
    with raises(UsageError, "number-out-of-range", operation="fractional_bits"):
        PrivateInput(np.arange(3), bits)
    PrivateInput(np.arange(3), 0)
    PrivateInput(np.arange(3), 127)


def test_after_close_everything_says_so(cluster: Cluster) -> None:
    client = cluster.client
    with cluster:
        pass
    cluster.close()  # a second call has no effect
    like: Any = type("Like", (), dict.fromkeys(("shared_weights", "fit", "evaluate"), lambda s: 0))
    late = LateInput((3,), 0, lambda: PrivateInput(np.arange(3)))
    calls: tuple[Callable[[], object], ...] = (
        lambda: cluster.run("sort", {}, _KEYS),
        lambda: cluster.predict("name", np.zeros((1, 3))),
        lambda: cluster.predict(like, np.zeros((1, 3))),
        lambda: cluster.fit(like, np.zeros((1, 3))),
        lambda: cluster.evaluate(like, np.zeros((1, 3)), np.zeros(1)),
        lambda: cluster.deploy(like, "name"),
        cluster.__enter__,
        lambda: client.run("sort", {}, {"keys": late}),
        client.wait_ready,
        client.status,
        lambda: client.cancel("a"),
        client.models,
        client.stored,
        lambda: client.undeploy("name"),
        lambda: client.predict("name", np.zeros((1, 3))),
        lambda: client.ask(0, "Hello"),
        client.close,
    )
    for call in calls[:-1]:
        with raises(UsageError, "connection-closed"):
            call()
    calls[-1]()


@pytest.mark.parametrize("threads", [0, -1, 1.0, "2", True])
def test_a_number_of_threads_that_is_none_starts_nothing(threads: Any) -> None:
    with raises(UsageError, "number-out-of-range", operation="threads"):
        LocalCluster(threads)


def test_paths_and_profiles_of_another_type_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refused: tuple[tuple[Callable[[], object], type[TfeBenchError]], ...] = (
        (lambda: LocalCluster(models=tmp_path / "file"), ConfigError),
        (lambda: LocalCluster(models=tmp_path / "file" / "models"), ConfigError),
        (lambda: LocalCluster(models=7), UsageError),  # type: ignore[arg-type]
        (lambda: LocalCluster(profile=[]), UsageError),  # type: ignore[arg-type]
        (lambda: LocalCluster(emulate=None), UsageError),  # type: ignore[arg-type]
        (lambda: tfe.Cluster(None), UsageError),  # type: ignore[arg-type]
        (lambda: tfe.Cluster(tmp_path / "none.toml"), ConfigError),
    )
    for call, kind in refused:
        with pytest.raises(kind):
            call()


def test_the_last_words_of_a_worker_that_died_are_told(
    tmp_path: Path,
) -> None:
    program_text = "print(*[f'{p} pid 1' for p in range(3)], '0 ended -6', sep='\\n')"
    workers = LocalWorkers([sys.executable, "-c", program_text], tmp_path, dict(os.environ))
    workers._parent.wait()
    local: Any = LocalCluster.__new__(LocalCluster)
    local._folder, local._workers = tmp_path, workers
    log = "2026-01-01 00:00:00,000 [party 0] job 1 begins\n"

    for words, output in (
        ("", "code -6."),
        ("F0000 shape.cc:70] Check failed: 0 <= size\n", ": F0000 shape.cc:70] Chec"),
        ("x" * 5000, ": " + "x" * 600 + "."),
    ):
        (tmp_path / "party0.log").write_text(log + words)
        with raises(PeerLost, "peer-lost", names=("code -6", output)):
            local.explain(ClusterError("its stream broke"))


def test_a_new_job_has_a_name_that_is_taken(client: Client) -> None:
    with pytest.raises(ClusterError):  # no worker runs
        client.run("sort", {}, _KEYS, job=new_job())
    client.close()


def test_a_client_shows_where_it_leads_and_no_key(cluster: Cluster) -> None:
    shown = repr(cluster)
    assert shown.startswith("<Cluster of ") and "as client" in shown and "closed" not in shown
    assert all(party.address in shown for party in cluster.config.parties)
    assert "PRIVATE" not in shown and len(shown) < 200
    cluster.close()
    assert repr(cluster).endswith(", closed>")
