"""Clients are added and removed while workers serve; each worker admits those of its own file."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cluster.conftest import wait_until
from tests.refusals import raises
from tfe_bench.cluster import agreement, tls, wire
from tfe_bench.cluster.client import Client, new_job
from tfe_bench.cluster.config import ClientConfig, ClusterConfig
from tfe_bench.cluster.jobs import NOTHING
from tfe_bench.cluster.policy import RevealRule, unknown_policy_names
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import (
    ClusterError,
    ConfigError,
    PolicyError,
    SecurityError,
    TfeBenchError,
    VersionMismatch,
)

if TYPE_CHECKING:
    from tests.cluster.conftest import Hosts, Trio

_slow = functools.partial(pytest.param, marks=pytest.mark.slow)
_X = {"x": PrivateInput(np.arange(3))}


def _check_job_runs(client: Client) -> None:
    np.testing.assert_array_equal(client.run("plain", {}, _X).outputs["x"], np.arange(3))


def _make_client_pair(name: str = "bob") -> tuple[bytes, bytes]:
    return tls.make_self_signed_certificate(tls.client_common_name(name), 60)


def _with_client(config: ClusterConfig, name: str, *certificates: bytes) -> ClusterConfig:
    """Return the same cluster with a client of these certificates, or without that client."""
    others = tuple(each for each in config.clients if each.name != name)
    own = (ClientConfig(name, *certificates),) if certificates else ()
    return dataclasses.replace(config, clients=(*others, *own))


@pytest.fixture(autouse=True)
def _as_before(trio: Trio) -> Iterator[None]:
    policies = [worker._host.policy for worker in trio.workers]
    yield
    for worker, policy in zip(trio.workers, policies, strict=True):
        worker.reload(trio.config, policy)


def _reload_workers(trio: Trio, config: ClusterConfig, *parties: int) -> None:
    for party in parties or (0, 1, 2):
        trio.workers[party].reload(config, trio.workers[party]._host.policy)


@pytest.fixture
def opened() -> Iterator[Any]:
    clients: list[Client] = []

    def open_client(config: ClusterConfig, pair: tuple[bytes, bytes]) -> Client:
        clients.append(Client(config, *pair))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


def test_a_client_is_added_while_another_ones_job_runs_and_needs_no_new_file_of_the_others(
    trio: Trio, opened: Any
) -> None:
    pair = _make_client_pair()
    config = _with_client(trio.config, "bob", pair[1])
    old = trio.client("analyst")
    progress: list[str] = []
    done: list[Any] = []
    thread = threading.Thread(
        target=lambda: done.append(
            old.run("plain", {"wait": 1}, _X, progress=lambda f, text: progress.append(text))
        )
    )
    thread.start()
    wait_until(lambda: "waiting" in progress, "the job runs", 20)
    _reload_workers(trio, config)
    thread.join(30)
    np.testing.assert_array_equal(done[0].outputs["x"], np.arange(3))
    bob = opened(config, pair)
    bob.wait_ready()
    _check_job_runs(bob)
    _check_job_runs(old)  # this worker's file has no bob


@pytest.mark.parametrize("absent", [_slow(0), 1, _slow(2)])
def test_a_client_that_one_worker_does_not_have_is_refused_there(
    trio: Trio, opened: Any, absent: int
) -> None:
    pair = _make_client_pair()
    config = _with_client(trio.config, "bob", pair[1])
    _reload_workers(trio, config, *({0, 1, 2} - {absent}))
    with raises(ClusterError, "tls-mismatch", party=absent):
        opened(config, pair).wait_ready(8)


@pytest.mark.parametrize("other", [_slow(0), _slow(1), 2])
@pytest.mark.parametrize("what", ["name", "certificate"])
def test_workers_that_know_a_client_by_other_names_or_certificates_run_no_job_of_it(
    trio: Trio, opened: Any, other: int, what: str
) -> None:
    """Two names of one certificate, or two certificates of one name: no worker confuses them."""
    pair, second = _make_client_pair(), _make_client_pair()
    config = _with_client(trio.config, "bob", pair[1])
    if what == "certificate":
        config = _with_client(trio.config, "bob", pair[1], second[1])
        _reload_workers(trio, config)
        client = opened(config, pair)
        # at one worker it presents its other certificate
        liar = opened(config, second)
        client._channels[other], liar._channels[other] = (
            liar._channels[other],
            client._channels[other],
        )
    else:
        plain = tls.make_self_signed_certificate("someone.example", 60)
        pair = plain
        config = _with_client(trio.config, "bob", pair[1])
        _reload_workers(trio, config)
        _reload_workers(trio, _with_client(trio.config, "carol", pair[1]), other)
        client = opened(config, pair)
    client.wait_ready()
    with raises(TfeBenchError, "members-differ", operation="client") as caught:
        client.run("plain", {}, _X)
    assert isinstance(caught.value, VersionMismatch | ClusterError)
    if what == "name":
        assert "bob" in str(caught.value) and "carol" in str(caught.value)


def test_a_client_that_is_taken_out_loses_its_jobs_its_connections_and_all_questions(
    trio: Trio,
) -> None:
    guest = trio.client("guest")
    job = new_job()
    errors: list[Exception] = []

    def order() -> None:
        try:
            guest.run("plain", {"wait": 60}, _X, job=job)
        except TfeBenchError as error:
            errors.append(error)

    thread = threading.Thread(target=order)
    thread.start()
    wait_until(lambda: len(trio.workers[1]._host.jobs.list_jobs()) == 1, "the job is there", 20)
    wait_until(lambda: trio.workers[1]._host.jobs.list_jobs()[0].began is not None, "it runs", 20)
    _reload_workers(trio, _with_client(trio.config, "guest"), 1)  # one worker is enough
    thread.join(20)
    assert isinstance(errors[0], TfeBenchError) and "not in cluster.toml" in str(errors[0])
    with pytest.raises((SecurityError, ClusterError)):
        guest.ask(1, wire.STATUS)
    with pytest.raises(TfeBenchError):
        guest.run("plain", {}, _X)
    wait_until(trio.idle, "nothing is left", 20)
    _check_job_runs(trio.client("analyst"))


def test_a_certificate_changes_step_by_step_without_a_restart(trio: Trio, opened: Any) -> None:
    old = trio.client("guest")
    _check_job_runs(old)
    pair = _make_client_pair("guest")
    [before] = [c.certificate for c in trio.config.clients if c.name == "guest"]
    assert before is not None
    both = _with_client(trio.config, "guest", before, pair[1])
    new = opened(both, pair)
    _reload_workers(trio, both, 0)
    _check_job_runs(old)  # two workers have only the old one
    _reload_workers(trio, both)
    new.wait_ready()
    _check_job_runs(new)
    _check_job_runs(old)
    _reload_workers(trio, _with_client(trio.config, "guest", pair[1]))
    _check_job_runs(new)
    with pytest.raises((SecurityError, ClusterError)):
        old.ask(0, wire.STATUS)


def test_a_waiting_job_that_the_new_rules_do_not_allow_ends(trio: Trio) -> None:
    running, waiting = trio.client("analyst"), trio.client("guest")
    errors: list[Exception] = []

    def order(client: Client, seconds: int) -> None:
        try:
            client.run("plain", {"wait": seconds}, _X)
        except TfeBenchError as error:
            errors.append(error)

    threads = [threading.Thread(target=order, args=(c, 1)) for c in (running, waiting)]
    threads[0].start()
    host = trio.workers[0]._host
    wait_until(lambda: any(j.began is not None for j in host.jobs.list_jobs()), "one runs", 20)
    threads[1].start()
    wait_until(lambda: len(host.queue.list_waiting()) == 1, "one waits", 20)
    rules = (RevealRule("plain", ("analyst",)),)
    trio.workers[0].reload(trio.config, dataclasses.replace(host.policy, reveal=rules))
    for thread in threads:
        thread.join(30)
    [error] = errors
    assert isinstance(error, PolicyError) and '"guest"' in str(error)


@pytest.mark.parametrize(
    ("program", "parameters"),
    [("sort", {"algorithm": "all-pairs", "warm_up": 0}), ("plain", {"reveal": True})],
    ids=["declared", "undeclared"],
)
@pytest.mark.parametrize("strict", range(3))
def test_a_waiting_job_opens_only_what_the_rules_of_its_turn_allow(
    trio: Trio, program: str, parameters: dict[str, Any], strict: int
) -> None:
    running, waiting = trio.client("analyst"), trio.client("guest")
    inputs = {"keys" if program == "sort" else "x": PrivateInput(np.arange(3)[::-1])}
    waiting.run(program, parameters, inputs)  # (the rules allow it)
    errors: list[TfeBenchError] = []

    def order() -> None:
        with pytest.raises(TfeBenchError) as caught:
            waiting.run(program, parameters, inputs)
        errors.append(caught.value)

    threads = [
        threading.Thread(target=lambda: running.run("plain", {"wait": 1}, _X)),
        threading.Thread(target=order),
    ]
    threads[0].start()
    host = trio.workers[0]._host
    wait_until(lambda: any(j.began is not None for j in host.jobs.list_jobs()), "one runs", 20)
    threads[1].start()
    wait_until(lambda: len(host.queue.list_waiting()) == 1, "one waits", 20)
    policy = dataclasses.replace(trio.workers[strict]._host.policy, opens=NOTHING)
    trio.workers[strict].reload(trio.config, policy)
    for thread in threads:
        thread.join(30)
    assert errors[0].code == "opening-not-permitted", errors


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("name", "other", "the name"),
        ("fractional_bits", 12, "fractional_bits"),
    ],
)
def test_what_takes_a_restart_changes_nothing(
    trio: Trio, field: str, value: Any, told: str
) -> None:
    host = trio.workers[0]._host
    pair = _make_client_pair()
    other = dataclasses.replace(_with_client(trio.config, "bob", pair[1]), **{field: value})
    with raises(ConfigError, "restart-required", operation=told):
        trio.workers[0].reload(other, host.policy)
    policy = dataclasses.replace(host.policy, max_connections=100, max_jobs=3)
    with raises(ConfigError, "restart-required", operation="max_connections"):
        trio.workers[0].reload(trio.config, policy)
    assert host.config == trio.config and host.queue.limits.max_jobs != 3


def test_each_part_of_two_files_that_differ_is_named(trio: Trio) -> None:
    config = trio.config
    certificate = tls.make_self_signed_certificate(tls.party_common_name(2), 60)[1]
    one, two = config.parties[1], config.parties[2]
    cases: dict[str, dict[str, Any]] = {
        "the name": {"name": "other"},
        "fractional_bits": {"fractional_bits": 12},
        "party 1's name": {"parties": (config.parties[0], dataclasses.replace(one, name="x"), two)},
        "party 1's address": {
            "parties": (config.parties[0], dataclasses.replace(one, port=7), two)
        },
        "party 2's certificate": {
            "parties": (*config.parties[:2], dataclasses.replace(two, certificate=certificate))
        },
    }
    for fragment, fields in cases.items():
        other = dataclasses.replace(config, **fields)
        assert (
            agreement.describe_cluster_differences(
                config, agreement.summarize_cluster_settings(other)
            )
            == fragment
        )
        assert other.digest() != config.digest()
        client = Client(other, *_make_client_pair())
        client.close()
    # (tls and ring are covered by the digest's test: another ring is refused when the file is read)
    assert set(cases) | {"ring", "tls"} >= {
        name for name in agreement.list_cluster_settings(config) if "party 0" not in name
    } - {"party 2's name", "party 2's address", "party 1's certificate"}
    assert (
        agreement.describe_cluster_differences(config, agreement.summarize_cluster_settings(config))
        == ""
    )
    for garbage in (None, "", "[1]", "{", 5, json.dumps({"x": 1})):
        assert agreement.describe_cluster_differences(config, garbage) == ""


def test_names_that_there_are_not_are_told_with_the_nearest(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    host = trio.workers[0]._host
    policy = dataclasses.replace(
        host.policy,
        allow_programs=("srot", "sort"),
        reveal=(RevealRule("sotr", ("analist", "guest")), RevealRule("*", ("*",))),
    )
    unknown = unknown_policy_names(trio.config, policy)
    assert all(
        name in line for name, line in zip(("srot", "sotr", "analist"), unknown, strict=True)
    )
    assert 'Did you mean "sort"?' in unknown[0] and 'Did you mean "analyst"?' in unknown[2]
    caplog.set_level(logging.WARNING, "tfe_bench.worker")
    trio.workers[0].reload(trio.config, policy)
    assert all(line in caplog.messages for line in unknown)


@pytest.mark.slow
def test_sighup_reads_the_files_again_and_keeps_the_old_ones_where_they_do_not_fit(
    hosts: Hosts, tmp_path: Path
) -> None:
    hosts.ensure()
    pids = {p: w.pid for p, w in hosts.workers.items()}
    text = hosts.cluster.read_text()
    process = hosts.command("certs", "client", "--name", "bob", "--out", str(hosts.folder))
    assert process.returncode == 0
    bob = ("sort", "--cluster", str(hosts.cluster), "--client", "bob", "--n", "9")

    def looked(party: int) -> int:
        return hosts.log(party).count("read again") + hosts.log(party).count("are not taken")

    def hang_up(*parties: int) -> None:
        before = {p: looked(p) for p in parties}
        for party in parties:
            os.kill(hosts.workers[party].pid, signal.SIGHUP)
        hosts.processes.wait_for(
            lambda: all(looked(p) > before[p] for p in parties), "they have read their files", 20
        )

    try:
        hosts.cluster.write_text(text + '\n[[client]]\nname = "bob"\ncertificate = "none.crt"\n')
        hang_up(0)
        assert "none.crt" in hosts.log(0) and "what was read before holds" in hosts.log(0)
        hosts.cluster.write_text(
            text + '\n[[client]]\nname = "bob"\ncertificate = "client-bob.crt"\n'
        )
        worker1 = hosts.folder / "worker1.toml"
        rules = worker1.read_text()
        worker1.write_text(rules.replace('to = ["analyst"]', 'to = ["analyst", "bob", "guets"]', 1))
        hang_up(0, 1, 2)
        assert "client bob was added" in hosts.log(2)
        assert 'Did you mean "guest"?' in hosts.log(1)
        # parties 0 and 2 reveal to analyst and guest alone
        done = hosts.command(*bob)
        assert done.returncode == 30 and "does not allow this reveal" in done.stderr
        for party in (0, 2):
            path = hosts.folder / f"worker{party}.toml"
            path.write_text(path.read_text().replace('"guest"', '"guest", "bob"'))
        hang_up(0, 2)
        done = hosts.command(*bob)
        assert done.returncode == 0, done.stderr
        assert {p: w.pid for p, w in hosts.workers.items()} == pids
    finally:
        hosts.cluster.write_text(text)
