"""Three workers on three addresses, started one by one, and the command that uses them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.announcements import remove_announcement
from tests.refusals import raises
from tfe_bench.benchmarks.records import Record
from tfe_bench.cluster import grpc_tls, tls, wire
from tfe_bench.cluster.client import Client
from tfe_bench.cluster.config import ClusterConfig
from tfe_bench.cluster.launch import Cluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.errors import (
    ClusterError,
    PolicyError,
    SecurityError,
    UsageError,
    VersionMismatch,
)

if TYPE_CHECKING:
    from tests.cluster.conftest import Hosts

pytestmark = pytest.mark.usefixtures("real_processes")

ANALYST = ("--client", "analyst")


def _check_sort(hosts: Hosts, client: str = "analyst", n: int = 30, **parameters: Any) -> None:
    keys = np.random.default_rng(n).integers(-(2**63), 2**63 - 1, n, np.int64)
    with Cluster(hosts.cluster, client) as cluster:
        result = cluster.run("sort", parameters, {"keys": PrivateInput(keys)})
    np.testing.assert_array_equal(result.outputs["keys"], np.sort(keys))
    np.testing.assert_array_equal(result.outputs["indices"], np.argsort(keys, kind="stable"))


def _copy_folder(hosts: Hosts, to: Path) -> Path:
    """Copy the folder for another organization; return its cluster.toml."""
    shutil.copytree(hosts.folder, to)
    return to / "cluster.toml"


def _other_file(hosts: Hosts, to: Path) -> Path:
    """Create a cluster.toml that differs from the shared one in a number."""
    path = _copy_folder(hosts, to)
    text = path.read_text()
    assert "fractional_bits = 16" in text
    path.write_text(text.replace("fractional_bits = 16", "fractional_bits = 8"))
    return path


def test_two_commands_in_a_row_use_the_same_workers(hosts: Hosts) -> None:
    hosts.ensure()
    pids = {p: w.pid for p, w in hosts.workers.items()}
    before = [hosts.log(p).count("is done") for p in range(3)]
    for _ in range(2):
        done = hosts.command(
            *("sort", "--cluster", str(hosts.cluster), *ANALYST, "--n", "60", "--json")
        )
        assert done.returncode == 0, done.stderr
        assert remove_announcement(done.stderr) == ""
        record = Record.from_json(done.stdout)
        assert record.correct and record.tls and record.cluster == "cluster.toml"
    assert {p: w.pid for p, w in hosts.workers.items()} == pids
    for party in range(3):
        assert hosts.log(party).count("is done") == before[party] + 2


def test_which_client_is_asked_where_several_keys_lie_beside_the_file(hosts: Hosts) -> None:
    hosts.ensure()
    done = hosts.command("sort", "--cluster", str(hosts.cluster), "--n", "9")
    assert (done.returncode, done.stdout) == (10, "")
    assert "--client" in done.stderr and "analyst, guest" in done.stderr


def test_a_reveal_to_another_client_is_refused_by_the_one_operator_who_forbids_it(
    hosts: Hosts,
) -> None:
    hosts.ensure()
    done = hosts.command(
        *("sort", "--cluster", str(hosts.cluster), "--client", "guest", "--n", "9")
    )
    assert (done.returncode, done.stdout) == (30, "")
    assert "PolicyError" in done.stderr and "Party 1" in done.stderr and '"guest"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_that_one_operator_does_not_allow_is_refused(hosts: Hosts) -> None:
    hosts.ensure()
    with (
        Cluster(hosts.cluster, "analyst") as cluster,
        raises(PolicyError, "program-not-allowed", operation="channel", party=1),
    ):
        cluster.run("channel", {"rounds": 1, "megabytes": 1, "repeat": 1}, {})


def test_an_emulated_network_is_refused_where_operators_do_not_allow_it(hosts: Hosts) -> None:
    hosts.ensure()
    with (
        Cluster(hosts.cluster, "analyst", profile="wan") as cluster,
        raises(PolicyError, "shaping-not-allowed"),
    ):
        cluster.run("sort", {}, {"keys": PrivateInput(np.arange(4))})


def test_an_input_above_one_operators_limit_is_refused(hosts: Hosts) -> None:
    hosts.ensure()
    with raises(PolicyError, "too-large", received="100001 elements", expected="100000", party=1):
        _check_sort(hosts, n=100_001)


def test_a_refused_job_does_not_keep_the_next_one_waiting(hosts: Hosts) -> None:
    hosts.ensure()
    with pytest.raises(PolicyError):
        _check_sort(hosts, "guest")
    started = time.monotonic()
    _check_sort(hosts)
    # Party 0 waits 12 s for a party without the job, unless the client disconnects.
    assert time.monotonic() - started < 9


def test_jobs_of_two_clients_at_once_both_come_back_right(hosts: Hosts) -> None:
    hosts.ensure()
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            _check_sort(hosts, n=n)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (20, 25, 31)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_client_that_vanishes_leaves_the_workers_free(hosts: Hosts) -> None:
    hosts.ensure()
    begun = hosts.log(0).count("begins")
    client = hosts.processes.start(
        *("-m", "tfe_bench", "sort", "--cluster", str(hosts.cluster), *ANALYST),
        *("--n", "90000", "--repeat", "500"),
    )
    hosts.processes.wait_for(lambda: hosts.log(0).count("begins") > begun, "the job begins")
    time.sleep(1.0)
    assert client.poll() is None
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    _check_sort(hosts)
    assert all(w.poll() is None for w in hosts.workers.values())


def test_a_client_whose_certificate_is_not_in_its_own_file_is_told_so(
    hosts: Hosts, tmp_path: Path
) -> None:
    process = hosts.command("certs", "client", "--name", "stranger", "--out", str(tmp_path / "own"))
    assert process.returncode == 0
    files = [tmp_path / "own" / f"client-stranger.{kind}" for kind in ("key", "crt")]
    with raises(SecurityError, "certificate-not-pinned"):
        Cluster(hosts.cluster, "analyst", *files)
    key, certificate = (hosts.folder / f"client-analyst.{kind}" for kind in ("key", "crt"))
    with pytest.raises(SecurityError):  # a party is no client
        Cluster(hosts.cluster, "analyst", hosts.folder / "party0.key", hosts.folder / "party0.crt")
    Cluster(hosts.cluster, "analyst", key, certificate).close()


def test_a_client_that_is_not_in_the_cluster_file_is_named_with_the_nearest(hosts: Hosts) -> None:
    with raises(UsageError, "unknown-client", received="analist") as refused:
        Cluster(hosts.cluster, "analist")
    assert 'Did you mean "analyst"' in str(refused.value)


def test_a_client_that_the_workers_do_not_know_gets_no_connection(
    hosts: Hosts, tmp_path: Path
) -> None:
    hosts.ensure()
    path = _copy_folder(hosts, tmp_path / "copy")
    for kind in ("key", "crt"):
        (path.parent / f"client-analyst.{kind}").unlink()
    process = hosts.command("certs", "client", "--name", "analyst", "--out", str(path.parent))
    assert process.returncode == 0
    config = ClusterConfig.load(path)
    before = [hosts.log(p).count("begins") for p in range(3)]
    client = Client(
        config,
        tls.load_private_key(path.parent / "client-analyst.key"),
        tls.load_certificate(path.parent / "client-analyst.crt"),
    )
    try:
        with raises(ClusterError, "tls-mismatch") as caught:
            client.wait_ready(2.0)
        assert config.parties[0].address in str(caught.value)
        # The same without a wait for the connection.
        with pytest.raises((ClusterError, SecurityError)):
            client.run("sort", {}, {"keys": PrivateInput(np.arange(3))})
    finally:
        client.close()
    assert [hosts.log(p).count("begins") for p in range(3)] == before
    done = hosts.command("sort", "--cluster", str(path), *ANALYST, "--n", "9")
    assert (done.returncode, done.stdout) == (20, "")
    [line] = done.stderr.splitlines()  # and none of gRPC's
    assert line.startswith("tfe_bench: ClusterError: Party 0") and "no agreement on TLS" in line


def test_a_client_without_any_certificate_gets_no_connection(hosts: Hosts) -> None:
    import grpc

    hosts.ensure()
    party = ClusterConfig.load(hosts.cluster).parties[1]
    assert party.certificate is not None
    for channel in (
        grpc.insecure_channel(party.address),
        grpc.secure_channel(
            party.address,
            grpc.ssl_channel_credentials(party.certificate),
            options=grpc_tls.tls_channel_options(party.certificate),
        ),
    ):
        with channel, pytest.raises(grpc.RpcError) as caught:
            next(wire.stub(channel, wire.HELLO)(iter([b""]), timeout=5))
        assert caught.value.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )


def test_a_worker_may_not_order_jobs_and_a_client_may_not_join_a_session(hosts: Hosts) -> None:
    hosts.ensure()
    config = ClusterConfig.load(hosts.cluster)
    files = hosts.folder
    worker = Client(
        config,
        tls.load_private_key(files / "party0.key"),
        tls.load_certificate(files / "party0.crt"),
    )
    try:
        # Party 0 never calls itself; parties 1 and 2 see a worker's certificate.
        with pytest.raises((ClusterError, SecurityError)):
            worker.run("sort", {}, {"keys": PrivateInput(np.arange(3))})
        call = wire.stub(worker._channels[1], wire.JOB)(iter([wire.event("submit")]), timeout=10)
        with raises(SecurityError, "client-required"):
            _raise_error(next(call))
    finally:
        worker.close()
    with Cluster(hosts.cluster, "analyst") as cluster:
        import grpc

        call = wire.stub(cluster.client._channels[1], wire.STREAM)(iter([b"{}"]), timeout=10)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def _raise_error(blob: bytes) -> None:
    event = wire.JobStreamReader(iter([blob])).next_event()
    assert event is not None and event["event"] == "error"
    raise wire.decode_error_event(event)


def test_a_client_with_another_cluster_file_is_told_both_values(
    hosts: Hosts, tmp_path: Path
) -> None:
    hosts.ensure()
    other = _other_file(hosts, tmp_path / "other")
    done = hosts.command("sort", "--cluster", str(other), *ANALYST, "--n", "9")
    assert (done.returncode, done.stdout) == (30, "")
    assert "VersionMismatch" in done.stderr and "Traceback" not in done.stderr
    assert "8 (client)" in done.stderr and "16 (party" in done.stderr


def test_a_worker_with_another_name_for_the_cluster_shows_both_digests(
    hosts: Hosts, tmp_path: Path
) -> None:
    hosts.ensure()
    path = _copy_folder(hosts, tmp_path / "other")
    path.write_text(path.read_text().replace('name = "trial"', 'name = "trail"'))
    mine, theirs = (ClusterConfig.load(p).digest()[:24] for p in (path, hosts.cluster))
    assert mine != theirs
    with (
        Cluster(path, "analyst") as cluster,
        raises(
            VersionMismatch, "members-differ", operation="cluster", received=mine, expected=theirs
        ),
    ):
        cluster.run("sort", {}, {"keys": PrivateInput(np.arange(3))})


def test_an_absent_party_is_named_with_its_address(hosts: Hosts) -> None:
    hosts.ensure(2)
    started = time.monotonic()
    done = hosts.command("sort", "--cluster", str(hosts.cluster), *ANALYST, "--n", "9")
    seconds = time.monotonic() - started
    print(f"absent party told after {seconds:.2f} s")
    assert (done.returncode, done.stdout) == (20, "")
    assert "Party 2" in done.stderr and f"127.0.0.3:{hosts.ports[2]}" in done.stderr
    assert "Traceback" not in done.stderr
    assert seconds < 15


def test_two_workers_with_different_files_refuse_each_other(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _other_file(hosts, tmp_path / "other")
    hosts.ensure(others={2: other})
    done = hosts.command("sort", "--cluster", str(hosts.cluster), *ANALYST, "--n", "9")
    assert (done.returncode, done.stdout) == (30, "")
    assert "8 (party 2)" in done.stderr and "16 (client)" in done.stderr

    # The workers also refuse a client that sends each worker its own version.
    with Cluster(hosts.cluster, "analyst") as cluster:
        stub, channels = wire.stub, cluster.client._channels
        facts = {"fractional_bits": 8, "cluster": ClusterConfig.load(other).digest()}

        def lying(channel: Any, method: str) -> Any:
            call = stub(channel, method)
            if channel is not channels[2] or method != wire.JOB:
                return call
            return lambda requests, **options: call(pretend(requests), **options)

        def pretend(requests: Iterator[bytes]) -> Iterator[bytes]:
            for bundle in requests:
                for blob in wire.split_bundle(bundle):
                    if not blob.startswith(b"E"):
                        yield blob
                    else:
                        yield b"E" + json.dumps({**json.loads(blob[1:]), **facts}).encode()

        monkeypatch.setattr(wire, "stub", lying)
        with raises(VersionMismatch, "members-differ", operation="fractional_bits") as caught:
            cluster.run("sort", {}, {"keys": PrivateInput(np.arange(3))})
    assert "8 (party 2)" in str(caught.value) and "16 (party" in str(caught.value)


def test_a_worker_ends_in_order_when_told_to(hosts: Hosts) -> None:
    hosts.ensure()
    assert hosts.stop(1) == 0
    assert "Traceback" not in hosts.log(1)


# ---- workers that do not start


def _fails_to_start(hosts: Hosts, *arguments: str) -> tuple[int, str]:
    done = hosts.command("worker", *arguments)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_port_in_use_is_a_configuration_error(hosts: Hosts, tmp_path: Path) -> None:
    path = _copy_folder(hosts, tmp_path / "copy")
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        text = path.read_text()
        path.write_text(text.replace(f"port = {hosts.ports[0]}", f"port = {port}"))
        code, error_line = _fails_to_start(hosts, "--party", "0", "--cluster", str(path))
    assert code == 10
    assert f"127.0.0.1:{port}" in error_line and "in use" in error_line


def test_a_worker_with_another_partys_key_does_not_start(hosts: Hosts, tmp_path: Path) -> None:
    path = _copy_folder(hosts, tmp_path / "copy")
    (path.parent / "worker2.toml").write_text('party = 2\nkey = "party1.key"\n')
    code, error_line = _fails_to_start(hosts, "--party", "2", "--cluster", str(path))
    assert code == 10
    assert "does not belong" in error_line and "party-2" in error_line


def test_a_worker_with_another_partys_settings_does_not_start(hosts: Hosts) -> None:
    code, error_line = _fails_to_start(
        *(hosts, "--party", "2", "--cluster", str(hosts.cluster)),
        *("--config", str(hosts.folder / "worker1.toml")),
    )
    assert code == 10
    assert "of party 1" in error_line and "[file-of-another-party]" in error_line


def test_a_worker_whose_key_others_may_read_does_not_start(hosts: Hosts, tmp_path: Path) -> None:
    path = _copy_folder(hosts, tmp_path / "copy")
    (path.parent / "party0.key").chmod(0o644)
    code, error_line = _fails_to_start(hosts, "--party", "0", "--cluster", str(path))
    assert code == 30
    assert "0644" in error_line and "chmod 600" in error_line
