"""Connections without a certificate: jobs continue, and members can still connect."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.cluster.conftest import wait_until
from tests.refusals import raises
from tfe_bench.cluster import tls, wire
from tfe_bench.cluster.client import Client, new_job
from tfe_bench.cluster.launch import Cluster
from tfe_bench.cluster.requests import JobResult, PrivateInput
from tfe_bench.cluster.seeds import Ring
from tfe_bench.cluster.worker import connection_guard
from tfe_bench.cluster.worker.connection_guard import reserve_socket_descriptors
from tfe_bench.errors import ClusterError, ConfigError, JobCancelled, QueueFull

if TYPE_CHECKING:
    from tests.cluster.conftest import Hosts, Trio

LIMITS = {"max_connections": 64, "max_connections_per_address": 8}
_DESCRIPTORS = 1024
_UNREACHABLE = ("worker-not-reachable", "worker-refuses-connections", "tls-mismatch", "peer-lost")
_X = {"x": PrivateInput(np.arange(3))}


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """Raise the limit on descriptors: the attacker is this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], 8192)), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class _IdleConnections:
    """Connections that send nothing, or invalid bytes."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._open: list[socket.socket] = []

    def open(self, count: int, says: bytes = b"") -> None:
        for _ in range(count):
            with contextlib.suppress(OSError):  # they may be closed before the call returns
                connection = socket.create_connection(self._address, 5)
                self._open.append(connection)
                connection.sendall(says)
                connection.setblocking(False)

    def count_open(self) -> int:
        """Return the number of connections that the other side has not closed."""
        return sum(map(_is_open, self._open))

    def close(self) -> None:
        for each in self._open:
            each.close()


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1 << 16))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _count_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Hosts]:
    """Start three workers with a usual limit on descriptors."""
    from tests.cluster.conftest import Hosts

    hosts = Hosts(tmp_path / "trial", ("analyst", "guest"))
    try:
        hosts.ensure()
        for worker in hosts.workers.values():
            resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
        yield hosts
    finally:
        hosts.close()


def test_thousands_of_idle_connections_stop_no_job_and_keep_nobody_out(three: Hosts) -> None:
    keys = np.arange(30_000)[::-1].copy()
    long = _SortInThread(three, "analyst", keys, repeat=1000)
    assert long.runs.wait(120), long.ended
    attack = _IdleConnections(("127.0.0.1", three.ports[0]))
    try:
        attack.open(1100)
        attack.open(1900, b"GET / HTTP/1.1\r\n\r\n")
        wait_until(lambda: attack.count_open() <= 40, "strangers are closed", 20)
        assert _count_descriptors(three.workers[0].pid) < _DESCRIPTORS / 2
        attack.open(1100)
        # Another client connects meanwhile and submits a job.
        other = _SortInThread(three, "guest", keys[:9])
        assert other.waits.wait(60), other.ended
        assert not long.ended, long.ended
        long.cluster.client.cancel(long.job)
        assert isinstance(long.end(), JobCancelled), long.ended
        result = other.end()
        assert isinstance(result, JobResult), result
        np.testing.assert_array_equal(result.outputs["keys"], np.sort(keys[:9]))
    finally:
        attack.close()
    log = three.log(0)
    messages = [line for line in log.splitlines() if "connections from 127.0.0.1" in line]
    assert messages and "max_connections_per_address" in log
    assert len(messages) <= 8, messages  # and not 4,100
    assert "Too many open files" not in log
    assert log.count("ssl_transport_security") == 0  # gRPC would print such a line for each of them


class _SortInThread:
    """A sort in a separate thread, on its own connections."""

    def __init__(self, hosts: Hosts, client: str, keys: Ring, **parameters: int) -> None:
        self.job = new_job()
        self.runs, self.waits = threading.Event(), threading.Event()
        self.ended: list[JobResult | BaseException] = []
        self.cluster = Cluster(hosts.cluster, client)
        self._thread = threading.Thread(target=self._run, args=(keys, parameters), daemon=True)
        self._thread.start()

    def _run(self, keys: Ring, parameters: dict[str, int]) -> None:
        def progress(fraction: float, text: str) -> None:
            (self.waits if text.startswith("waiting") else self.runs).set()

        try:
            inputs = {"keys": PrivateInput(keys)}
            result = self.cluster.client.run("sort", parameters, inputs, progress, self.job)
            self.ended.append(result)
        except BaseException as error:
            self.ended.append(error)

    def end(self) -> JobResult | BaseException:
        self._thread.join(120)
        self.cluster.close()
        return self.ended[0]


def test_strangers_are_closed_when_they_do_not_call(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = trio.client("analyst")
    party = trio.config.parties[2]
    monkeypatch.setattr(connection_guard, "UNAUTHENTICATED_SECONDS", 0.5)
    idle = _IdleConnections((party.host, party.port))
    idle.open(4)
    wait_until(lambda: idle.count_open() == 0, "all are closed", 30)
    idle.close()
    # A member's connection stays open without traffic.
    time.sleep(1.0)
    assert client.run("plain", {}, _X).outputs["x"].size == 3
    assert any("127.0.0.1: 4 closed: no call within" in line for line in caplog.messages)


def test_the_oldest_strangers_make_room_for_the_newest(trio: Trio) -> None:
    party = trio.config.parties[1]
    first, second = (_IdleConnections((party.host, party.port)) for _ in range(2))
    try:
        first.open(8)
        wait_until(lambda: len(_list_unauthenticated(trio, 1)) == 8, "they are seen")
        second.open(8)
        wait_until(lambda: first.count_open() == 0, "the old ones are closed", 60)
        assert second.count_open() == 8
        trio.client("guest")  # is accepted
    finally:
        first.close()
        second.close()


def _list_unauthenticated(trio: Trio, party: int) -> list[object]:
    held = trio.workers[party]._guard._connections
    return [c for c in list(held.values()) if not c.member and not c.close_reason]


def test_a_wrong_certificate_is_told_with_its_address_and_seldom(
    trio: Trio, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # (one line per event and interval: an earlier test may have caused it)
    monkeypatch.setattr(connection_guard, "_WARN_SECONDS", 8.0)
    monkeypatch.setattr(
        trio.workers[0]._guard, "_warnings", connection_guard._ConnectionWarningLog()
    )
    wrong = tls.make_self_signed_certificate(tls.client_common_name("analyst"), 60)
    text = "connections from 127.0.0.1: "

    def tried() -> bool:
        client = Client(trio.config, *wrong)  # (one client waits longer before each try)
        with contextlib.suppress(Exception):
            list(wire.stub(client._channels[0], wire.HELLO)(iter([b""]), timeout=1.5))
        client.close()
        return any(m.startswith(text) for m in caplog.messages)

    # a handshake may end between two scans of the worker
    wait_until(tried, "it is told", 120)
    for _ in range(7):
        tried()
    time.sleep(0.5)
    assert sum(m.startswith(text) for m in caplog.messages) <= 3


def test_a_member_holds_no_more_than_its_share(trio: Trio) -> None:
    share = LIMITS["max_connections"] // 4
    before = trio.workers[0]._guard._count_connections("guest")
    clients = []
    try:
        with raises(QueueFull, "too-many-connections", expected=str(share), party=0):
            for _ in range(share + 1):
                clients.append(trio.client("guest"))
                clients[-1].ask(0, wire.STATUS)
        # Another member is not affected.
        assert trio.client("analyst").run("plain", {}, _X).outputs["x"].size == 3
    finally:
        for client in clients:
            client.close()
    wait_until(
        lambda: trio.workers[0]._guard._count_connections("guest") <= before, "they are gone", 60
    )
    assert trio.client("guest").run("plain", {}, _X).outputs["x"].size == 3


def test_a_client_is_told_that_a_worker_takes_no_more_connections(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the error does not blame the client's certificate."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def refuse() -> None:  # as gRPC does above its limit
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=refuse, daemon=True).start()
        parties = (
            dataclasses.replace(trio.config.parties[0], port=port),
            *trio.config.parties[1:],
        )
        config = dataclasses.replace(trio.config, parties=parties)
        # (the other workers must accept this cluster.toml)
        digest = trio.config.digest()
        monkeypatch.setattr(type(config), "digest", lambda _: digest)
        client = Client(config, *trio._keys["analyst"])

        def read_error(attempt: Callable[[], object]) -> str:
            """(On a busy machine a probe may fail: `refuse` has half a second.)"""
            for _ in range(10):
                with raises(ClusterError, *_UNREACHABLE, party=0) as caught:
                    attempt()
                assert "certificate" not in str(caught.value)
                if "takes no more" in str(caught.value):
                    break
            return str(caught.value)

        try:
            for attempt in (
                lambda: client.wait_ready(1),
                lambda: client.ask(0, wire.STATUS, 1),
                lambda: client.run("plain", {}, _X),
            ):
                assert "takes no more" in read_error(attempt)
        finally:
            client.close()
            server.shutdown(socket.SHUT_RDWR)


def test_a_limit_on_descriptors_that_is_too_low_is_an_error_at_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: requests.append(limits))
    for soft, hard, raised, fits in (
        (1024, 1024, [], True),
        (256, 1024, [(1024, 1024)], True),
        (256, 512, [(512, 512)], False),
        (767, 767, [], False),
        (768, 768, [], True),
        (1024, resource.RLIM_INFINITY, [(65536, resource.RLIM_INFINITY)], True),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, [], True),
    ):
        requests.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=(soft, hard): limits)
        if fits:
            reserve_socket_descriptors(512)
        else:
            with raises(ConfigError, "descriptor-limit", received=hard, expected=768):
                reserve_socket_descriptors(512)
        assert requests == raised


def test_addresses_are_read_in_every_way_in_which_grpc_writes_them() -> None:
    for text, expected in (
        ("ipv4:10.1.2.3:4567", ("10.1.2.3", 4567)),
        ("ipv6:%5B::1%5D:5", ("::1", 5)),
        ("ipv6:[2001:db8::2]:65535", ("2001:db8::2", 65535)),
        ("ipv6:%5B::ffff:10.1.2.3%5D:5", ("10.1.2.3", 5)),
        ("ipv6:%5Bfe80::1%25eth0%5D:5", ("fe80::1", 5)),
        ("unix:/tmp/x", None),
        ("ipv4:nonsense:5", None),
        ("", None),
    ):
        assert connection_guard._parse_grpc_peer(text) == expected


def test_what_is_told_of_strangers_is_bounded_in_lines_and_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(connection_guard, "time", SimpleNamespace(monotonic=lambda: now[0]))
    warning_log = connection_guard._ConnectionWarningLog()
    warning_log.count_event("a", "ended")
    assert warning_log.take_lines() == ["connections from a: 1 ended"]
    for _ in range(1000):
        warning_log.count_event("a", "ended")
    assert warning_log.take_lines() == []
    now[0] += 61
    assert warning_log.take_lines() == ["connections from a: 1000 ended"]
    for i in range(1000):
        warning_log.count_event(f"host{i}", "ended")
    lines = warning_log.take_lines()
    assert len(lines) <= connection_guard._MAX_WARNED_HOSTS + 1
    assert any("other addresses: 9" in line for line in lines)
    now[0] += 61
    assert (
        warning_log.take_lines() == [] and warning_log.take_lines() == [] and not warning_log._hosts
    )
