"""Real gRPC connections that accept and refuse certificates."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cluster.certificates import odd_certificate, party_certificate
from tests.refusals import raises
from tfe_bench.cluster import grpc_tls, tls
from tfe_bench.cluster.worker.callers import get_caller_fingerprint
from tfe_bench.errors import ConfigError, SecurityError


class _Server:
    """A gRPC server on 127.0.0.1 that answers every call with the caller's fingerprint."""

    def __init__(self, credentials: grpc.ServerCredentials) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(1))
        self.calls = 0
        self._lock = threading.Lock()
        handler: Any = grpc.unary_unary_rpc_method_handler(self._whoami)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test", {"whoami": handler}),)
        )
        self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()

    def _whoami(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            self.calls += 1
        return get_caller_fingerprint(context).encode()

    def call(self, credentials: grpc.ChannelCredentials, options: Sequence[Any]) -> str:
        channel = grpc.secure_channel(f"127.0.0.1:{self.port}", credentials, list(options))
        with channel:
            method: Any = channel.unary_unary("/test/whoami")
            return str(method(b"", timeout=5), "ascii")

    def refuses(self, credentials: grpc.ChannelCredentials, options: Sequence[Any]) -> bool:
        """Return whether the call fails in the handshake, before the server's code."""
        before = self.calls
        with pytest.raises(grpc.RpcError) as caught:
            self.call(credentials, options)
        return caught.value.code() == grpc.StatusCode.UNAVAILABLE and self.calls == before

    def stop(self) -> None:
        self._server.stop(0).wait(5)


Serve = Callable[[grpc.ServerCredentials], _Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[_Server] = []

    def start(credentials: grpc.ServerCredentials) -> _Server:
        servers.append(_Server(credentials))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.mark.parametrize(("listening", "calling"), [(0, 1), (1, 0), (2, 1)])
def test_two_parties_know_each_other_in_both_directions(
    serve: Serve, listening: int, calling: int
) -> None:
    parties = [party_certificate(index) for index in range(3)]
    key, cert = parties[listening]
    others = [pair[1] for index, pair in enumerate(parties) if index != listening]
    server = serve(grpc_tls.worker_tls_credentials(key, cert, others))
    credentials = grpc_tls.channel_tls_credentials(*parties[calling], cert)
    fingerprint = server.call(credentials, grpc_tls.tls_channel_options(cert))
    assert fingerprint == tls.compute_certificate_fingerprint(parties[calling][1])


def test_a_server_refuses_a_caller_without_a_certificate(serve: Serve) -> None:
    zero, one = party_certificate(0), party_certificate(1)
    server = serve(grpc_tls.worker_tls_credentials(*zero, [one[1]]))
    credentials = grpc.ssl_channel_credentials(root_certificates=zero[1])
    assert server.refuses(credentials, grpc_tls.tls_channel_options(zero[1]))


def test_a_server_refuses_cleartext(serve: Serve) -> None:
    zero, one = party_certificate(0), party_certificate(1)
    server = serve(grpc_tls.worker_tls_credentials(*zero, [one[1]]))
    channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
    method: Any = channel.unary_unary("/test/whoami")
    with channel, pytest.raises(grpc.RpcError):
        method(b"", timeout=5)
    assert server.calls == 0


@pytest.mark.parametrize(
    ("serving", "calling"),
    [("zero", "also one"), ("also zero", "one"), ("two", "one")],
    ids=["a caller of a trusted name", "a server of the right name", "another of the cluster"],
)
def test_who_only_carries_a_name_is_refused(serve: Serve, serving: str, calling: str) -> None:
    """Check that a caller of party 0 requires its pinned certificate; a server a trusted one."""
    numbers = {"zero": 0, "one": 1, "two": 2, "also zero": 0, "also one": 1}
    parties = {name: party_certificate(number) for name, number in numbers.items()}
    known = [parties[name][1] for name in ("zero", "one") if name != serving]
    server = serve(grpc_tls.worker_tls_credentials(*parties[serving], known))
    expected = parties["zero"][1]
    credentials = grpc_tls.channel_tls_credentials(*parties[calling], expected)
    assert server.refuses(credentials, grpc_tls.tls_channel_options(expected))


def test_the_identity_is_the_certificate_and_not_the_place_it_comes_from(serve: Serve) -> None:
    zero, one, two = party_certificate(0), party_certificate(1), party_certificate(2)
    server = serve(grpc_tls.worker_tls_credentials(*zero, [one[1], two[1]]))
    as_one = grpc_tls.channel_tls_credentials(*one, zero[1])
    as_two = grpc_tls.channel_tls_credentials(*two, zero[1])
    options = grpc_tls.tls_channel_options(zero[1])
    assert server.call(as_one, options) == tls.compute_certificate_fingerprint(one[1])
    assert server.call(as_two, options) == tls.compute_certificate_fingerprint(two[1])
    assert server.call(as_one, options) == tls.compute_certificate_fingerprint(one[1])


def test_certificates_with_one_name_are_told_apart(serve: Serve) -> None:
    zero, twins = party_certificate(0), [party_certificate(1) for _ in range(3)]
    server = serve(grpc_tls.worker_tls_credentials(*zero, [pair[1] for pair in twins]))
    for pair in twins:
        credentials = grpc_tls.channel_tls_credentials(*pair, zero[1])
        fingerprint = server.call(credentials, grpc_tls.tls_channel_options(zero[1]))
        assert fingerprint == tls.compute_certificate_fingerprint(pair[1])


def test_a_party_cannot_vouch_for_another_key(serve: Serve) -> None:
    zero, one = party_certificate(0), party_certificate(1)
    signer = serialization.load_pem_private_key(one[0], password=None)
    subject = x509.load_pem_x509_certificate(one[1]).subject
    key, leaf = odd_certificate("party-2.tfe-bench", issuer=(signer, subject))
    server = serve(grpc_tls.worker_tls_credentials(*zero, [one[1]]))
    credentials = grpc.ssl_channel_credentials(zero[1], key, leaf + one[1])
    assert server.refuses(credentials, grpc_tls.tls_channel_options(zero[1]))


def test_a_leaf_of_a_companys_authority_can_be_pinned_without_its_siblings(serve: Serve) -> None:
    authority = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a company")])
    zero = odd_certificate("party-0.example.org", issuer=(authority, name))
    one = odd_certificate("party-1.example.org", issuer=(authority, name))
    sibling = odd_certificate("party-1.example.org", issuer=(authority, name))
    server = serve(grpc_tls.worker_tls_credentials(*zero, [one[1]]))
    options = grpc_tls.tls_channel_options(zero[1])
    fingerprint = server.call(grpc_tls.channel_tls_credentials(*one, zero[1]), options)
    assert fingerprint == tls.compute_certificate_fingerprint(one[1])
    assert server.refuses(grpc_tls.channel_tls_credentials(*sibling, zero[1]), options)


def test_grpc_itself_refuses_an_expired_caller_even_if_trusted(serve: Serve) -> None:
    zero, expired = party_certificate(0), odd_certificate(start_days=-9, end_days=-1)
    server = serve(grpc_tls.worker_tls_credentials(*zero, [expired[1]]))
    credentials = grpc.ssl_channel_credentials(zero[1], *expired)
    assert server.refuses(credentials, grpc_tls.tls_channel_options(zero[1]))


@pytest.mark.parametrize(("start", "end"), [(-9, -1), (1, 9)])
def test_grpc_itself_refuses_a_server_outside_its_validity(
    serve: Serve, start: int, end: int
) -> None:
    one = party_certificate(1)
    key, cert = odd_certificate("party-0.tfe-bench", start_days=start, end_days=end)
    server = serve(grpc.ssl_server_credentials([(key, cert)], one[1], True))
    credentials = grpc.ssl_channel_credentials(cert, *one)
    assert server.refuses(credentials, grpc_tls.tls_channel_options(cert))


def test_credentials_say_in_words_what_has_expired() -> None:
    zero, expired = party_certificate(0), odd_certificate(start_days=-9, end_days=-1)
    with raises(SecurityError, "certificate-expired", operation="party-1.tfe-bench"):
        grpc_tls.worker_tls_credentials(*expired, [zero[1]])
    with raises(SecurityError, "certificate-expired", operation="party-1.tfe-bench"):
        grpc_tls.channel_tls_credentials(*expired, zero[1])
    with raises(SecurityError, "certificate-expired", operation="party-1.tfe-bench"):
        grpc_tls.channel_tls_credentials(*zero, expired[1])


def test_a_proxy_in_the_environment_is_not_used(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, one = party_certificate(0), party_certificate(1)
    server = serve(grpc_tls.worker_tls_credentials(*zero, [one[1]]))
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    credentials = grpc_tls.channel_tls_credentials(*one, zero[1])
    assert server.call(
        credentials, grpc_tls.tls_channel_options(zero[1])
    ) == tls.compute_certificate_fingerprint(one[1])
    name_only = grpc_tls.tls_channel_options(zero[1])[:1]
    assert server.refuses(credentials, name_only)  # so the proxy would be used


def test_check_certificate_knows_the_first_and_last_moment() -> None:
    _, cert = tls.make_self_signed_certificate("party-0.tfe-bench", days=10)
    now = datetime.datetime.now(datetime.UTC)
    tls.check_certificate_validity(cert)
    tls.check_certificate_validity(cert, now - datetime.timedelta(minutes=50))
    tls.check_certificate_validity(cert, (now + datetime.timedelta(days=9)).replace(tzinfo=None))
    with raises(SecurityError, "certificate-not-yet-valid"):
        tls.check_certificate_validity(cert, now - datetime.timedelta(hours=2))
    end = tls.certificate_valid_until(cert)
    tls.check_certificate_validity(cert, end)
    with raises(SecurityError, "certificate-expired"):
        tls.check_certificate_validity(cert, end + datetime.timedelta(seconds=1))


def test_a_server_without_anyone_to_trust_is_refused() -> None:
    with raises(SecurityError, "certificate-missing"):
        grpc_tls.worker_tls_credentials(*party_certificate(0), [])


def test_a_key_of_another_certificate_is_refused() -> None:
    (key, _), (_, cert) = party_certificate(0), party_certificate(0)
    with raises(ConfigError, "key-mismatch"):
        grpc_tls.worker_tls_credentials(key, cert, [cert])
    with raises(ConfigError, "key-mismatch"):
        grpc_tls.channel_tls_credentials(key, cert, cert)


def test_a_caller_without_tls_has_no_identity() -> None:
    class Cleartext:
        def auth_context(self) -> dict[str, list[bytes]]:
            return {}

    context: Any = Cleartext()
    with raises(SecurityError, "certificate-missing"):
        get_caller_fingerprint(context)


@pytest.mark.parametrize("label", [b"X509 CERTIFICATE", b"TRUSTED CERTIFICATE"])
def test_a_certificate_under_another_label_is_not_smuggled_into_the_trusted_ones(
    serve: Serve, label: bytes
) -> None:
    zero, one, smuggled = (
        party_certificate(0),
        party_certificate(1),
        odd_certificate("party-2.tfe-bench"),
    )
    text = one[1] + smuggled[1].replace(b" CERTIFICATE-", b" " + label + b"-")
    try:
        server = serve(grpc_tls.worker_tls_credentials(*zero, [text]))
    except ConfigError as error:
        assert "exactly one" in str(error)
        return
    credentials = grpc_tls.channel_tls_credentials(*smuggled, zero[1])
    assert server.refuses(credentials, grpc_tls.tls_channel_options(zero[1]))
