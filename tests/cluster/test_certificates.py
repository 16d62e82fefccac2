"""Certificates and key files: creation, rejection and permissions."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tests.cluster.certificates import odd_certificate, party_certificate
from tests.refusals import raises
from tfe_bench.cluster import grpc_tls, tls
from tfe_bench.cluster.files import write_secret_file
from tfe_bench.errors import ConfigError, SecurityError, TfeBenchError, UsageError


def test_make_certificate_is_p256_not_an_authority_and_new_each_time() -> None:
    key, pem = tls.make_self_signed_certificate("client-analyst.tfe-bench")
    certificate = x509.load_pem_x509_certificate(pem)
    public = certificate.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert isinstance(public.curve, ec.SECP256R1)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and not constraints.value.ca
    assert tls.certificate_server_name(pem) == "client-analyst.tfe-bench"
    assert grpc_tls.tls_channel_options(pem)[0] == (
        "grpc.ssl_target_name_override",
        "client-analyst.tfe-bench",
    )
    other_key, other = tls.make_self_signed_certificate("client-analyst.tfe-bench")
    assert key != other_key
    assert tls.compute_certificate_fingerprint(pem) != tls.compute_certificate_fingerprint(other)
    assert tls.public_key_fingerprint(pem) != tls.public_key_fingerprint(other)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "../up", "-a", "a..b", "é", "a\n"])
def test_make_certificate_refuses_what_is_no_name(name: str) -> None:
    with raises(UsageError, "invalid-name", received=name):
        tls.make_self_signed_certificate(name)


@pytest.mark.parametrize("days", [-1, 0, 3651])
def test_make_certificate_refuses_days_out_of_range(days: int) -> None:
    with raises(UsageError, "number-out-of-range", received=days):
        tls.make_self_signed_certificate("a", days)


def test_the_fingerprint_is_that_of_openssl_and_ignores_the_text_around() -> None:
    _, pem = party_certificate(0)
    expected = x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()
    assert tls.compute_certificate_fingerprint(pem) == expected
    assert (
        tls.compute_certificate_fingerprint(b"a comment\n" + pem.replace(b"\n", b"\r\n") + b"\n\n")
        == expected
    )


def _unfit_certificates() -> dict[str, tuple[bytes, type[TfeBenchError], str]]:
    key, pem = party_certificate(0)
    ed = ed25519.Ed25519PrivateKey.generate()
    p521 = ec.generate_private_key(ec.SECP521R1())
    return {
        "empty": (b"", ConfigError, "certificate-invalid"),
        "nonsense": (b"hello", ConfigError, "certificate-invalid"),
        "cut": (pem[:200], ConfigError, "certificate-invalid"),
        "key": (key, SecurityError, "private-key-in-certificate"),
        "key beside": (pem + key, SecurityError, "private-key-in-certificate"),
        "two": (pem + party_certificate(1)[1], ConfigError, "too-many-certificates"),
        "ed25519": (odd_certificate(key=ed)[1], ConfigError, "certificate-unsupported-key"),
        "p521": (odd_certificate(key=p521)[1], ConfigError, "certificate-unsupported-key"),
        "authority": (odd_certificate(ca=True)[1], SecurityError, "certificate-of-authority"),
        "unsaid": (odd_certificate(ca=None)[1], SecurityError, "certificate-of-authority"),
        "nameless": (odd_certificate(dns=False)[1], ConfigError, "certificate-without-name"),
    }


@pytest.mark.parametrize("case", list(_unfit_certificates()))
def test_an_unfit_certificate_is_refused_with_the_reason(case: str) -> None:
    text, error, code = _unfit_certificates()[case]
    with raises(error, code):
        tls.canonical_certificate(text)


def test_a_private_file_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the mode after every system call that accesses the file."""
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
        write_secret_file(tmp_path / "key", b"secret")
        write_secret_file(tmp_path / "key", b"other", overwrite=True)
    finally:
        os.umask(before)
        monkeypatch.undo()
    assert len(modes) >= 8 and set(modes) == {0o600}
    assert (tmp_path / "key").read_bytes() == b"other"
    assert os.listdir(tmp_path) == ["key"]


def test_write_private_sets_the_mode_under_a_strict_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        write_secret_file(tmp_path / "key", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_write_private_replaces_nothing_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with raises(ConfigError, "file-exists"):
        write_secret_file(path, b"new")
    assert path.read_bytes() == b"old"
    write_secret_file(path, b"new", overwrite=True)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key"]


def test_write_private_does_not_follow_a_planted_link(tmp_path: Path) -> None:
    target, path = tmp_path / "elsewhere", tmp_path / "key"
    path.symlink_to(target)
    with raises(ConfigError, "file-exists"):
        write_secret_file(path, b"secret")
    write_secret_file(path, b"secret", overwrite=True)
    assert not target.exists() and not path.is_symlink()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with raises(ConfigError, "file-not-writable", received="No such file or directory"):
        write_secret_file(tmp_path / "missing" / "key", b"secret")


def test_a_key_comes_back_as_written(tmp_path: Path) -> None:
    key, _ = party_certificate(0)
    write_secret_file(tmp_path / "key", key)
    assert tls.load_private_key(tmp_path / "key") == key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o644, 0o610, 0o601])
def test_a_key_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    write_secret_file(path, party_certificate(0)[0])
    path.chmod(mode)
    with raises(SecurityError, "insecure-permissions") as caught:
        tls.load_private_key(path)
    assert f"{mode:04o}" in str(caught.value) and f"chmod 600 {path}" in str(caught.value)
    (tmp_path / "link").symlink_to(path)
    with raises(SecurityError, "insecure-permissions"):
        tls.load_private_key(tmp_path / "link")


def test_an_unfit_key_is_refused_without_quoting_it(tmp_path: Path) -> None:
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    ed, _ = odd_certificate(key=ed25519.Ed25519PrivateKey.generate())
    for number, text in enumerate([b"", b"secret words", locked, ed, party_certificate(0)[1]]):
        path = tmp_path / str(number)
        write_secret_file(path, text)
        with raises(ConfigError, "key-invalid") as caught:
            tls.load_private_key(path)
        assert "secret words" not in str(caught.value)


def test_what_is_no_plain_key_file_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError, "key-not-readable", received="No such file or directory"):
        tls.load_private_key(tmp_path / "missing")
    with pytest.raises(ConfigError):
        tls.load_private_key(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with raises(ConfigError, "key-invalid"):
        tls.load_private_key(tmp_path / "pipe")
    with raises(ConfigError, "file-not-found"):
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
