"""Certificates, key files, and real gRPC connections that accept and refuse them."""

from __future__ import annotations

import datetime
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from tfe_bench.cluster import tls
from tfe_bench.cluster.files import write_private
from tfe_bench.cluster.worker.callers import peer_identity
from tfe_bench.errors import ConfigError, SecurityError, TfeBenchError, UsageError

Pair = tuple[bytes, bytes]


def _party(index: int) -> Pair:
    return tls.make_certificate(tls.party_common_name(index))


def _odd_certificate(
    name: str = "party-1.tfe-bench",
    *,
    start_days: int = -1,
    end_days: int = 30,
    ca: bool | None = False,
    dns: bool = True,
    key: Any = None,
    issuer: tuple[Any, x509.Name] | None = None,
) -> Pair:
    """A certificate that ``make_certificate`` would not make."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, issued_by = issuer or (key, subject)
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issued_by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=start_days))
        .not_valid_after(now + datetime.timedelta(days=end_days))
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    if dns:
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names, critical=False)
    kind = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    pem = builder.sign(signer, kind).public_bytes(serialization.Encoding.PEM)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return key_pem, pem


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
        return peer_identity(context).encode()

    def call(self, credentials: grpc.ChannelCredentials, options: Sequence[Any]) -> str:
        channel = grpc.secure_channel(f"127.0.0.1:{self.port}", credentials, list(options))
        with channel:
            method: Any = channel.unary_unary("/test/whoami")
            return str(method(b"", timeout=5), "ascii")

    def refuses(self, credentials: grpc.ChannelCredentials, options: Sequence[Any]) -> bool:
        """Whether the call fails in the handshake: the server's code is never reached."""
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
    parties = [_party(index) for index in range(3)]
    key, cert = parties[listening]
    others = [pair[1] for index, pair in enumerate(parties) if index != listening]
    server = serve(tls.server_credentials(key, cert, others))
    credentials = tls.channel_credentials(*parties[calling], cert)
    seen = server.call(credentials, tls.target_options(cert))
    assert seen == tls.fingerprint(parties[calling][1])


def test_a_server_refuses_a_certificate_that_only_carries_a_trusted_name(serve: Serve) -> None:
    zero, one, impostor = _party(0), _party(1), _party(1)
    server = serve(tls.server_credentials(*zero, [one[1]]))
    credentials = tls.channel_credentials(*impostor, zero[1])
    assert server.refuses(credentials, tls.target_options(zero[1]))


def test_a_server_refuses_a_caller_without_a_certificate(serve: Serve) -> None:
    zero, one = _party(0), _party(1)
    server = serve(tls.server_credentials(*zero, [one[1]]))
    credentials = grpc.ssl_channel_credentials(root_certificates=zero[1])
    assert server.refuses(credentials, tls.target_options(zero[1]))


def test_a_server_refuses_cleartext(serve: Serve) -> None:
    zero, one = _party(0), _party(1)
    server = serve(tls.server_credentials(*zero, [one[1]]))
    channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
    method: Any = channel.unary_unary("/test/whoami")
    with channel, pytest.raises(grpc.RpcError):
        method(b"", timeout=5)
    assert server.calls == 0


def test_a_caller_refuses_a_server_that_only_carries_the_right_name(serve: Serve) -> None:
    zero, one, impostor = _party(0), _party(1), _party(0)
    server = serve(tls.server_credentials(*impostor, [one[1]]))
    credentials = tls.channel_credentials(*one, zero[1])
    assert server.refuses(credentials, tls.target_options(zero[1]))


def test_a_caller_refuses_another_party_of_its_own_cluster(serve: Serve) -> None:
    zero, one, two = _party(0), _party(1), _party(2)
    server = serve(tls.server_credentials(*two, [zero[1], one[1]]))
    credentials = tls.channel_credentials(*one, zero[1])
    assert server.refuses(credentials, tls.target_options(zero[1]))


def test_the_identity_is_the_certificate_and_not_the_place_it_comes_from(serve: Serve) -> None:
    zero, one, two = _party(0), _party(1), _party(2)
    server = serve(tls.server_credentials(*zero, [one[1], two[1]]))
    as_one = tls.channel_credentials(*one, zero[1])
    as_two = tls.channel_credentials(*two, zero[1])
    options = tls.target_options(zero[1])
    assert server.call(as_one, options) == tls.fingerprint(one[1])
    assert server.call(as_two, options) == tls.fingerprint(two[1])
    assert server.call(as_one, options) == tls.fingerprint(one[1])


def test_certificates_with_one_name_are_told_apart(serve: Serve) -> None:
    zero, twins = _party(0), [_party(1) for _ in range(3)]
    server = serve(tls.server_credentials(*zero, [pair[1] for pair in twins]))
    for pair in twins:
        credentials = tls.channel_credentials(*pair, zero[1])
        seen = server.call(credentials, tls.target_options(zero[1]))
        assert seen == tls.fingerprint(pair[1])


def test_a_party_cannot_vouch_for_another_key(serve: Serve) -> None:
    zero, one = _party(0), _party(1)
    signer = serialization.load_pem_private_key(one[0], password=None)
    subject = x509.load_pem_x509_certificate(one[1]).subject
    key, leaf = _odd_certificate("party-2.tfe-bench", issuer=(signer, subject))
    server = serve(tls.server_credentials(*zero, [one[1]]))
    credentials = grpc.ssl_channel_credentials(zero[1], key, leaf + one[1])
    assert server.refuses(credentials, tls.target_options(zero[1]))


def test_a_leaf_of_a_companys_authority_can_be_pinned_without_its_siblings(serve: Serve) -> None:
    authority = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a company")])
    zero = _odd_certificate("party-0.example.org", issuer=(authority, name))
    one = _odd_certificate("party-1.example.org", issuer=(authority, name))
    sibling = _odd_certificate("party-1.example.org", issuer=(authority, name))
    server = serve(tls.server_credentials(*zero, [one[1]]))
    options = tls.target_options(zero[1])
    seen = server.call(tls.channel_credentials(*one, zero[1]), options)
    assert seen == tls.fingerprint(one[1])
    assert server.refuses(tls.channel_credentials(*sibling, zero[1]), options)


def test_grpc_itself_refuses_an_expired_caller_even_if_trusted(serve: Serve) -> None:
    zero, expired = _party(0), _odd_certificate(start_days=-9, end_days=-1)
    server = serve(tls.server_credentials(*zero, [expired[1]]))
    credentials = grpc.ssl_channel_credentials(zero[1], *expired)
    assert server.refuses(credentials, tls.target_options(zero[1]))


@pytest.mark.parametrize(("start", "end"), [(-9, -1), (1, 9)])
def test_grpc_itself_refuses_a_server_outside_its_validity(
    serve: Serve, start: int, end: int
) -> None:
    one = _party(1)
    key, cert = _odd_certificate("party-0.tfe-bench", start_days=start, end_days=end)
    server = serve(grpc.ssl_server_credentials([(key, cert)], one[1], True))
    credentials = grpc.ssl_channel_credentials(cert, *one)
    assert server.refuses(credentials, tls.target_options(cert))


def test_credentials_say_in_words_what_has_expired() -> None:
    zero, expired = _party(0), _odd_certificate(start_days=-9, end_days=-1)
    with pytest.raises(SecurityError, match=r"party-1\.tfe-bench has expired"):
        tls.server_credentials(*expired, [zero[1]])
    with pytest.raises(SecurityError, match=r"party-1\.tfe-bench has expired"):
        tls.channel_credentials(*expired, zero[1])
    with pytest.raises(SecurityError, match=r"party-1\.tfe-bench has expired"):
        tls.channel_credentials(*zero, expired[1])


def test_a_proxy_in_the_environment_is_not_used(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero, one = _party(0), _party(1)
    server = serve(tls.server_credentials(*zero, [one[1]]))
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    credentials = tls.channel_credentials(*one, zero[1])
    assert server.call(credentials, tls.target_options(zero[1])) == tls.fingerprint(one[1])
    name_only = tls.target_options(zero[1])[:1]
    assert server.refuses(credentials, name_only)  # so the proxy would have been tried


def test_check_certificate_knows_the_first_and_last_moment() -> None:
    _, cert = tls.make_certificate("party-0.tfe-bench", days=10)
    now = datetime.datetime.now(datetime.UTC)
    tls.check_certificate(cert)
    tls.check_certificate(cert, now - datetime.timedelta(minutes=50))
    tls.check_certificate(cert, (now + datetime.timedelta(days=9)).replace(tzinfo=None))
    with pytest.raises(SecurityError, match="not valid yet"):
        tls.check_certificate(cert, now - datetime.timedelta(hours=2))
    end = tls.valid_until(cert)
    tls.check_certificate(cert, end)
    with pytest.raises(SecurityError, match="expired"):
        tls.check_certificate(cert, end + datetime.timedelta(seconds=1))


def test_a_server_without_anyone_to_trust_is_refused() -> None:
    with pytest.raises(SecurityError, match="none"):
        tls.server_credentials(*_party(0), [])


def test_a_key_of_another_certificate_is_refused() -> None:
    (key, _), (_, cert) = _party(0), _party(0)
    with pytest.raises(ConfigError, match="does not belong"):
        tls.server_credentials(key, cert, [cert])
    with pytest.raises(ConfigError, match="does not belong"):
        tls.channel_credentials(key, cert, cert)


def test_a_caller_without_tls_has_no_identity() -> None:
    class Cleartext:
        def auth_context(self) -> dict[str, list[bytes]]:
            return {}

    context: Any = Cleartext()
    with pytest.raises(SecurityError, match="one certificate"):
        peer_identity(context)


def test_make_certificate_is_p256_not_an_authority_and_new_each_time() -> None:
    key, pem = tls.make_certificate("client-analyst.tfe-bench")
    certificate = x509.load_pem_x509_certificate(pem)
    public = certificate.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert isinstance(public.curve, ec.SECP256R1)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and not constraints.value.ca
    assert tls.server_name(pem) == "client-analyst.tfe-bench"
    assert tls.target_options(pem)[0] == (
        "grpc.ssl_target_name_override",
        "client-analyst.tfe-bench",
    )
    other_key, other = tls.make_certificate("client-analyst.tfe-bench")
    assert key != other_key
    assert tls.fingerprint(pem) != tls.fingerprint(other)
    assert tls.key_fingerprint(pem) != tls.key_fingerprint(other)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "../up", "-a", "a..b", "é", "a\n"])
def test_make_certificate_refuses_what_is_no_name(name: str) -> None:
    with pytest.raises(UsageError, match="Received"):
        tls.make_certificate(name)


@pytest.mark.parametrize("days", [-1, 0, 3651])
def test_make_certificate_refuses_days_out_of_range(days: int) -> None:
    with pytest.raises(UsageError, match=f"Received: {days}"):
        tls.make_certificate("a", days)


def test_the_fingerprint_is_that_of_openssl_and_ignores_the_text_around() -> None:
    _, pem = _party(0)
    expected = x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()
    assert tls.fingerprint(pem) == expected
    assert tls.fingerprint(b"a comment\n" + pem.replace(b"\n", b"\r\n") + b"\n\n") == expected


@pytest.mark.parametrize("label", [b"X509 CERTIFICATE", b"TRUSTED CERTIFICATE"])
def test_a_certificate_under_another_label_is_not_smuggled_into_the_trusted_ones(
    serve: Serve, label: bytes
) -> None:
    zero, one, smuggled = _party(0), _party(1), _odd_certificate("party-2.tfe-bench")
    text = one[1] + smuggled[1].replace(b" CERTIFICATE-", b" " + label + b"-")
    try:
        server = serve(tls.server_credentials(*zero, [text]))
    except ConfigError as error:
        assert "exactly one" in str(error)
        return
    credentials = tls.channel_credentials(*smuggled, zero[1])
    assert server.refuses(credentials, tls.target_options(zero[1]))


def _unfit() -> dict[str, tuple[bytes, type[TfeBenchError], str]]:
    key, pem = _party(0)
    ed = ed25519.Ed25519PrivateKey.generate()
    p521 = ec.generate_private_key(ec.SECP521R1())
    return {
        "empty": (b"", ConfigError, "not a certificate"),
        "nonsense": (b"hello", ConfigError, "not a certificate"),
        "cut": (pem[:200], ConfigError, "not a certificate"),
        "key": (key, SecurityError, "private key"),
        "key beside": (pem + key, SecurityError, "private key"),
        "two": (pem + _party(1)[1], ConfigError, "Received: 2"),
        "ed25519": (_odd_certificate(key=ed)[1], ConfigError, "P-256"),
        "p521": (_odd_certificate(key=p521)[1], ConfigError, "P-256"),
        "authority": (_odd_certificate(ca=True)[1], SecurityError, "CA:TRUE"),
        "unsaid": (_odd_certificate(ca=None)[1], SecurityError, "CA:FALSE"),
        "nameless": (_odd_certificate(dns=False)[1], ConfigError, "DNS name"),
    }


@pytest.mark.parametrize("case", list(_unfit()))
def test_an_unfit_certificate_is_refused_with_the_reason(case: str) -> None:
    text, error, reason = _unfit()[case]
    with pytest.raises(error, match=reason):
        tls.canonical_certificate(text)


def test_a_private_file_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode is looked at after every system call that touches the file."""
    modes: list[int] = []

    def watched(name: str) -> None:
        original = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            modes.extend(stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir())
            return result

        monkeypatch.setattr(os, name, call)

    before = os.umask(0)
    try:
        for name in ("open", "fchmod", "fsync", "link", "replace"):
            watched(name)
        write_private(tmp_path / "key", b"secret")
        write_private(tmp_path / "key", b"other", overwrite=True)
    finally:
        os.umask(before)
        monkeypatch.undo()
    assert len(modes) >= 8 and set(modes) == {0o600}
    assert (tmp_path / "key").read_bytes() == b"other"
    assert os.listdir(tmp_path) == ["key"]


def test_write_private_sets_the_mode_under_a_strict_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        write_private(tmp_path / "key", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_write_private_replaces_nothing_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="exists already"):
        write_private(path, b"new")
    assert path.read_bytes() == b"old"
    write_private(path, b"new", overwrite=True)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key"]


def test_write_private_does_not_follow_a_planted_link(tmp_path: Path) -> None:
    target, path = tmp_path / "elsewhere", tmp_path / "key"
    path.symlink_to(target)
    with pytest.raises(ConfigError, match="exists already"):
        write_private(path, b"secret")
    write_private(path, b"secret", overwrite=True)
    assert not target.exists() and not path.is_symlink()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        write_private(tmp_path / "missing" / "key", b"secret")


def test_a_key_comes_back_as_written(tmp_path: Path) -> None:
    key, _ = _party(0)
    write_private(tmp_path / "key", key)
    assert tls.load_private_key(tmp_path / "key") == key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o644, 0o610, 0o601])
def test_a_key_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    write_private(path, _party(0)[0])
    path.chmod(mode)
    with pytest.raises(SecurityError, match=f"chmod 600 {path}") as caught:
        tls.load_private_key(path)
    assert f"{mode:04o}" in str(caught.value)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(SecurityError, match="chmod 600"):
        tls.load_private_key(tmp_path / "link")


def test_an_unfit_key_is_refused_without_quoting_it(tmp_path: Path) -> None:
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    ed, _ = _odd_certificate(key=ed25519.Ed25519PrivateKey.generate())
    for number, text in enumerate([b"", b"secret words", locked, ed, _party(0)[1]]):
        path = tmp_path / str(number)
        write_private(path, text)
        with pytest.raises(ConfigError, match="P-256") as caught:
            tls.load_private_key(path)
        assert "secret words" not in str(caught.value)


def test_what_is_no_plain_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        tls.load_private_key(tmp_path / "missing")
    with pytest.raises(ConfigError):
        tls.load_private_key(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a plain file"):
        tls.load_private_key(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="does not exist"):
        tls.load_certificate(tmp_path / "pipe")


def test_nothing_here_imports_tensorflow_or_numpy() -> None:
    script = (
        "import sys; import tfe_bench.cluster.config, tfe_bench.cluster.policy, "
        "tfe_bench.cluster.tls, tfe_bench.cli.certs; "
        "print(sorted({'tensorflow', 'numpy'} & set(sys.modules)))"
    )
    root = Path(tls.__file__).resolve().parents[1]
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    assert out.stdout == "[]\n"
