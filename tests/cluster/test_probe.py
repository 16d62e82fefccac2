"""A wrong certificate is reported after two probes, before the time limit for an answer.

Every wait here may last ten minutes: an earlier report comes from a probe.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.refusals import raises
from tfe_bench.cluster import grpc_tls, probe, tls, wire
from tfe_bench.cluster.client import Client
from tfe_bench.cluster.config import ClientConfig, ClusterConfig, PartyConfig
from tfe_bench.cluster.launch import _free_worker_ports
from tfe_bench.cluster.worker import peer_streams
from tfe_bench.cluster.worker.peer_streams import PeerStreams
from tfe_bench.errors import ClusterError

_LONG = 600.0


class _Member:
    def __init__(self, name: str) -> None:
        self.key, self.certificate = tls.make_self_signed_certificate(name, days=2)


@pytest.fixture(scope="module")
def members() -> dict[str, _Member]:
    """Create the parties, a client, and an unknown member with that client's name."""
    names = {f"party{p}": tls.party_common_name(p) for p in range(3)}
    names.update(client=tls.client_common_name("a"), stranger=tls.client_common_name("a"))
    return {who: _Member(name) for who, name in names.items()}


@pytest.fixture(scope="module")
def config(members: dict[str, _Member]) -> Iterator[ClusterConfig]:
    """Return a cluster of which only party 0 listens."""
    ports = _free_worker_ports(3)
    cluster_config = ClusterConfig(
        "x",
        tuple(
            PartyConfig(p, f"p{p}", "127.0.0.1", ports[p], members[f"party{p}"].certificate)
            for p in range(3)
        ),
        (ClientConfig("a", members["client"].certificate),),
    )
    server = grpc.server(ThreadPoolExecutor(4))
    own = members["party0"]
    server.add_secure_port(
        cluster_config.parties[0].address,
        grpc_tls.worker_tls_credentials(own.key, own.certificate, cluster_config.trusted_by(0)),
    )
    server.start()
    yield cluster_config
    server.stop(0)


def _replace_certificate(
    config: ClusterConfig, members: dict[str, _Member], who: str
) -> ClusterConfig:
    """Return a cluster.toml with another certificate in a member's place."""
    pem = tls.make_self_signed_certificate(tls.party_common_name(0), days=2)[1]
    if who == "client":
        client = ClientConfig("a", members["stranger"].certificate)
        return dataclasses.replace(config, clients=(client,))
    first = dataclasses.replace(config.parties[0], certificate=pem)
    return dataclasses.replace(config, parties=(first, *config.parties[1:]))


@pytest.mark.parametrize(
    ("who", "pinned", "expected"),
    [
        ("client", "party0", None),
        ("party1", "party0", None),
        ("stranger", "party0", "does not accept it"),
        ("party0", "party0", "does not accept it"),  # it does not call itself
        ("client", "stranger", "does not pin"),
    ],
)
def test_a_look_tells_what_is_wrong(
    config: ClusterConfig,
    members: dict[str, _Member],
    who: str,
    pinned: str,
    expected: str | None,
) -> None:
    target = config.parties[0]
    if pinned != "party0":
        target = _replace_certificate(config, members, "party").parties[0]
    mismatch = probe.find_tls_mismatch(target, members[who].key, members[who].certificate)
    assert mismatch is None if expected is None else expected in str(mismatch)
    assert probe.fetch_worker_fingerprint(target) == tls.compute_certificate_fingerprint(
        members["party0"].certificate
    )
    assert "PRIVATE" not in str(mismatch)


@contextlib.contextmanager
def _serve_connections(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    answer(server.accept()[0])

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_what_is_no_worker_or_busy_is_no_wrong_certificate(
    config: ClusterConfig, members: dict[str, _Member]
) -> None:
    own = members["client"]

    def http(connection: socket.socket) -> None:
        connection.recv(1 << 16)  # (unread data at the end resets the connection)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    for answer, expected in ((http, "does not use a worker's TLS"), (socket.socket.close, None)):
        with _serve_connections(answer) as port:
            target = dataclasses.replace(config.parties[0], port=port)
            mismatch = probe.find_tls_mismatch(target, own.key, own.certificate)
            assert mismatch is None if expected is None else expected in str(mismatch)
    # no process listens, nor can start to
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nobody = dataclasses.replace(config.parties[1], port=held.getsockname()[1])
        assert probe.find_tls_mismatch(nobody, own.key, own.certificate) is None
        assert probe.fetch_worker_fingerprint(nobody) is None


def test_one_look_is_not_believed(
    config: ClusterConfig, members: dict[str, _Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    mismatches: list[str | None] = ["a", None, "a", "b", "b", "b"]
    monkeypatch.setattr(probe, "find_tls_mismatch", lambda *_: mismatches.pop(0))
    own = members["client"]
    watch = probe.TlsProbe(config.parties[0], own.key, own.certificate)
    assert [watch.check_once() for _ in range(6)] == [None, None, None, None, "b", "b"]
    assert probe.TlsProbe(config.parties[0], b"", b"").check_once() is None  # without TLS


_WRONG = ("client", "party")


@pytest.mark.parametrize("wrong", _WRONG)
def test_a_client_is_told_at_once(
    config: ClusterConfig,
    members: dict[str, _Member],
    wrong: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    own = members["stranger" if wrong == "client" else "client"]
    client = Client(_replace_certificate(config, members, wrong), own.key, own.certificate)
    fragment = "does not accept" if wrong == "client" else "does not pin"
    asks: tuple[Callable[[], object], ...] = (
        lambda: client.wait_ready(_LONG),
        lambda: client.ask(0, wire.HELLO, _LONG),
    )
    try:
        for ask in asks:
            with raises(ClusterError, "tls-mismatch", party=0, names=(fragment,)) as raised:
                ask()
            assert config.parties[0].address in str(raised.value)
    finally:
        client.close()
    assert capfd.readouterr().err == ""  # no lines of gRPC's own


@pytest.mark.parametrize("wrong", _WRONG)
def test_a_worker_is_told_at_once(
    config: ClusterConfig,
    members: dict[str, _Member],
    wrong: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_streams, "MEET_SECONDS", _LONG)
    mine = _replace_certificate(config, members, "party") if wrong == "party" else config
    own = members["party1"]
    if wrong == "client":  # its new key is not pinned at the others yet
        own = _Member(tls.party_common_name(1))
    target = mine.parties[0]

    async def dial() -> None:
        loop = asyncio.get_running_loop()
        host: Any = SimpleNamespace(config=mine, party=1, loop=loop)
        host.key, host.certificate = own.key, own.certificate
        credentials = grpc_tls.channel_tls_credentials(
            own.key, own.certificate, target.certificates
        )
        async with grpc.aio.secure_channel(
            target.address, credentials, grpc_tls.tls_channel_options(target.certificates[0])
        ) as channel:
            await PeerStreams(host, None, None)._wait_connected(target, channel)  # type: ignore[arg-type]

    fragment = "does not accept" if wrong == "client" else "does not pin"
    with raises(ClusterError, "tls-mismatch", party=0) as refused:
        asyncio.run(dial())
    assert fragment in str(refused.value)
