"""Certificates and private keys.

There is no certificate authority.  Every party and every client creates its own key and
self-signed certificate and distributes only the certificate; ``cluster.toml`` pins each one.
The certificate's fingerprint identifies a caller, never a name inside the certificate.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tfe_bench.cluster.toml_file import prefix_config_errors
from tfe_bench.errors import ConfigError, SecurityError, UsageError

DOMAIN = "tfe-bench"
MAX_DAYS = 3650

E = TypeVar("E", bound=x509.ExtensionType)

_REMEDY = 'Create one with "python -m tfe_bench certs party" or "certs client".'
_CLOCK_SKEW = datetime.timedelta(hours=1)  # the other hosts' clocks may be behind
_MAX_PEM = 1 << 20
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"(?=.{{1,64}}\Z){_LABEL}(\.{_LABEL})*")


def party_common_name(party: int) -> str:
    """Return the name in the certificate of worker ``party`` (0, 1 or 2)."""
    return f"party-{party}.{DOMAIN}"


def client_common_name(name: str) -> str:
    """Return the name in the certificate of the client ``name``."""
    return f"client-{name}.{DOMAIN}"


def make_self_signed_certificate(
    common_name: str, days: int = 365, key_pem: bytes | None = None
) -> tuple[bytes, bytes]:
    """Create a key (ECDSA on P-256, from OS randomness) and its self-signed certificate.

    P-256 because gRPC's BoringSSL does not offer Ed25519; ``CA:FALSE`` so that a pinned
    certificate authenticates itself and nothing else.  The subject holds a random number in
    addition to the name: OpenSSL finds a trust anchor by subject, and during a roll-over two
    certificates of one member are trusted.

    Args:
        common_name: becomes the subject and, as a DNS name, the subject alternative name.
        days: validity from now; the certificate starts one hour earlier, for slow clocks.
        key_pem: an existing key to use instead of a new one.

    Returns:
        The private key (PEM, PKCS#8, not encrypted) and the certificate (PEM).

    Raises:
        UsageError: the name is not a DNS name of at most 64 characters, or ``days`` is outside
            1..3650.
        ConfigError: ``key_pem`` is not an unencrypted P-256, P-384 or RSA key.
    """
    if not _DNS_NAME.fullmatch(common_name):
        raise UsageError(
            "A certificate's name consists of letters, digits, '-', '_' and '.', at most 64 "
            f"characters. Received: {common_name!r}. Choose a shorter or plainer name.",
            code="invalid-name",
            operation="common_name",
            received=common_name,
        )
    if not 1 <= days <= MAX_DAYS:
        raise UsageError(
            f"A certificate is valid for 1 to {MAX_DAYS} days. Received: {days}. Choose other "
            "days.",
            code="number-out-of-range",
            operation="days",
            received=days,
            expected=f"1 to {MAX_DAYS}",
        )
    key = _parse_private_key_pem(key_pem) if key_pem else ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, secrets.token_hex(8)),
        ]
    )
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(common_name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=False,
                crl_sign=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return key_pem, certificate.public_bytes(serialization.Encoding.PEM)


def load_private_key(path: str | os.PathLike[str]) -> bytes:
    """Read a private key (PEM) that only its owner can read.

    Raises:
        SecurityError: the group or others have any permission on the file.
        ConfigError: the file is missing, or is not an unencrypted P-256, P-384 or RSA key.
    """
    path = Path(path)
    try:
        # The check uses the descriptor, not the name, so that the checked file is the one that is
        # read; O_NONBLOCK so that a named pipe cannot hang the worker.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(
                    f"The private key {path} is not a plain file. {_REMEDY}",
                    code="key-invalid",
                    received=str(path),
                )
            permissions = stat.S_IMODE(status.st_mode)
            if permissions & 0o077:
                raise SecurityError(
                    f"The private key {path} is open to other users of this machine. "
                    f"Received: mode {permissions:04o}. Run: chmod 600 {path}; if others may "
                    "have read it, create a new key and certificate.",
                    code="insecure-permissions",
                    received=f"mode {permissions:04o}",
                    expected="mode 0600",
                )
            data = file.read(_MAX_PEM)
    except OSError as error:
        raise ConfigError(
            f"Cannot read the private key {path}. Received: {error.strerror}. {_REMEDY}",
            code="key-not-readable",
            received=error.strerror,
        ) from None
    with prefix_config_errors(path):
        _parse_private_key_pem(data)
    return data


def load_certificate(path: str | os.PathLike[str]) -> bytes:
    """Read one certificate (PEM) and return its canonical form.

    Raises:
        ConfigError, SecurityError: as `canonical_certificate`, or the file cannot be read.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise ConfigError(
                f"The certificate {path} does not exist. {_REMEDY}",
                code="file-not-found",
                received=str(path),
            )
        with path.open("rb") as file:
            data = file.read(_MAX_PEM)
    except OSError as error:
        raise ConfigError(
            f"Cannot read the certificate {path}. Received: {error.strerror}."
            " Check the file's permissions.",
            code="file-not-readable",
            received=error.strerror,
        ) from None
    with prefix_config_errors(path):
        return canonical_certificate(data)


def canonical_certificate(cert_pem: bytes) -> bytes:
    """Check that a PEM text is one certificate fit for pinning and return only that.

    Re-encoding matters: gRPC would trust every certificate that it finds in the text, including
    some that other readers skip.

    Raises:
        ConfigError: it is not exactly one certificate, its key is of a kind that gRPC does not
            accept, it has no DNS name, or it does not allow TLS for servers and clients.
        SecurityError: it holds a private key, or is a certificate authority's.
    """
    return _parse_certificate_pem(cert_pem).public_bytes(serialization.Encoding.PEM)


@functools.lru_cache(maxsize=256)  # (each call has certificates of the same members)
def compute_certificate_fingerprint(cert_pem: bytes) -> str:
    """Return the SHA-256 of the certificate's DER form, 64 lower-case hex digits.

    Raises:
        ConfigError, SecurityError: as `canonical_certificate`.
    """
    der = _parse_certificate_pem(cert_pem).public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).hexdigest()


def format_certificate_fingerprint(digest: str) -> str:
    """Format a fingerprint for comparison by people: in groups of four digits."""
    return " ".join(digest[i : i + 4] for i in range(0, len(digest), 4))


def public_key_fingerprint(cert_pem: bytes) -> str:
    """Return the SHA-256 of the certificate's public key (DER), 64 lower-case hex digits.

    Raises:
        ConfigError, SecurityError: as `canonical_certificate`.
    """
    return hashlib.sha256(
        _public_key_der(_parse_certificate_pem(cert_pem).public_key())
    ).hexdigest()


def certificate_server_name(cert_pem: bytes) -> str:
    """Return the first DNS name among the certificate's subject alternative names.

    Raises:
        ConfigError, SecurityError: as `canonical_certificate`.
    """
    return _certificate_dns_names(_parse_certificate_pem(cert_pem))[0]


def certificate_valid_until(cert_pem: bytes) -> datetime.datetime:
    """Return the time at which the certificate expires (UTC).

    Raises:
        ConfigError, SecurityError: as `canonical_certificate`.
    """
    return _parse_certificate_pem(cert_pem).not_valid_after_utc


def certificate_valid_from(cert_pem: bytes) -> datetime.datetime:
    """Return the time from which the certificate is valid (UTC).

    Raises:
        ConfigError, SecurityError: as `canonical_certificate`.
    """
    return _parse_certificate_pem(cert_pem).not_valid_before_utc


def select_key_certificate(key: bytes, certificates: Sequence[bytes]) -> bytes:
    """Return the certificate of a key; of several, the one that expires last.

    Raises:
        ConfigError: no certificate belongs to the key.
    """
    public = _public_key_der(_parse_private_key_pem(key).public_key())
    matching = [
        c for c in certificates if _public_key_der(_parse_certificate_pem(c).public_key()) == public
    ]
    if not matching:
        check_tls_key_pair(key, certificates[0])
    return max(matching, key=certificate_valid_until)


def check_certificate_validity(cert_pem: bytes, now: datetime.datetime | None = None) -> None:
    """Check that a certificate is valid at a time.

    gRPC checks the same in every handshake, but only reports that a socket was closed.

    Args:
        cert_pem: the certificate.
        now: the time to check (UTC if it has no time zone); the present by default.

    Raises:
        SecurityError: it has expired or is not valid yet.
        ConfigError: as `canonical_certificate`.
    """
    certificate = _parse_certificate_pem(cert_pem)
    if now is None:
        now = datetime.datetime.now(datetime.UTC)
    elif now.tzinfo is None:
        now = now.replace(tzinfo=datetime.UTC)
    name = _certificate_dns_names(certificate)[0]
    if now > certificate.not_valid_after_utc:
        raise SecurityError(
            f"The certificate of {name} has expired. Received: valid until "
            f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, now {now:%Y-%m-%d %H:%M %Z}. "
            "Its owner creates a new one (python -m tfe_bench certs renew) and all parties put it "
            "into cluster.toml.",
            code="certificate-expired",
            operation=name,
            received=f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
        )
    if now < certificate.not_valid_before_utc:
        raise SecurityError(
            f"The certificate of {name} is not valid yet. Received: valid from "
            f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, now {now:%Y-%m-%d %H:%M %Z}. "
            "Check the clocks of this machine and of the one that created it.",
            code="certificate-not-yet-valid",
            operation=name,
            received=f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
        )


def check_any_certificate_valid(
    certificates: Sequence[bytes], now: datetime.datetime | None = None
) -> None:
    """Check that at least one certificate of a member is valid at a time.

    Raises:
        SecurityError: none is valid; the error names the one that expires last.
    """
    failures: list[tuple[datetime.datetime, SecurityError]] = []
    for certificate in certificates:
        try:
            check_certificate_validity(certificate, now)
            return
        except SecurityError as error:
            failures.append((certificate_valid_until(certificate), error))
    raise max(failures, key=lambda r: r[0])[1]


def check_tls_key_pair(key: bytes, cert: bytes) -> bytes:
    """Check that a certificate is valid and that the key is its own; return its canonical form.

    Raises:
        ConfigError: key and certificate do not belong together, or are unusable.
        SecurityError: the certificate is not valid now.
    """
    check_certificate_validity(cert)
    certificate = _parse_certificate_pem(cert)
    if _public_key_der(_parse_private_key_pem(key).public_key()) != _public_key_der(
        certificate.public_key()
    ):
        raise ConfigError(
            "The private key does not belong to the certificate of "
            f"{_certificate_dns_names(certificate)[0]}. Check which key file worker.toml names "
            "and which "
            "certificate cluster.toml names for this party.",
            code="key-mismatch",
            operation=_certificate_dns_names(certificate)[0],
        )
    return certificate.public_bytes(serialization.Encoding.PEM)


def _public_key_der(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _is_grpc_compatible_key(public_key: object) -> bool:
    """Return whether a gRPC handshake accepts a public key (not Ed25519, not P-521)."""
    if isinstance(public_key, ec.EllipticCurvePublicKey):
        return isinstance(public_key.curve, (ec.SECP256R1, ec.SECP384R1))
    return isinstance(public_key, rsa.RSAPublicKey) and public_key.key_size >= 2048


def _parse_private_key_pem(key_pem: bytes) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    problem = f"This is not an unencrypted private key on P-256, P-384 or RSA in PEM. {_REMEDY}"
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # their text could quote the file
        raise ConfigError(problem, code="key-invalid") from None
    if not isinstance(key, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
        raise ConfigError(problem, code="key-invalid")
    if not _is_grpc_compatible_key(key.public_key()):
        raise ConfigError(problem, code="key-invalid")
    return key


def _parse_certificate_pem(cert_pem: bytes) -> x509.Certificate:
    if b"PRIVATE KEY" in cert_pem:
        raise SecurityError(
            "A certificate is public, and this file also has a private key. "
            "Do not send it; if it was sent, create a new key and certificate.",
            code="private-key-in-certificate",
        )
    try:
        certificates = x509.load_pem_x509_certificates(cert_pem)
    except ValueError:
        raise ConfigError(
            f"This is not a certificate in PEM. {_REMEDY}", code="certificate-invalid"
        ) from None
    if len(certificates) != 1:
        raise ConfigError(
            "A certificate file holds exactly one certificate, not a chain. Received: "
            f"{len(certificates)}. Keep the party's own and delete the others.",
            code="too-many-certificates",
            received=len(certificates),
            expected=1,
        )
    [certificate] = certificates
    try:
        _check_certificate_pinnable(certificate)
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise ConfigError(
            f"This certificate cannot be read. Received: {error}. {_REMEDY}",
            code="certificate-invalid",
        ) from None
    return certificate


def _check_certificate_pinnable(certificate: x509.Certificate) -> None:
    if not _is_grpc_compatible_key(certificate.public_key()):
        raise ConfigError(
            "A certificate needs a key that gRPC accepts: P-256, P-384 or RSA of at least 2048 "
            f"bits. Received: {type(certificate.public_key()).__name__}. {_REMEDY}",
            code="certificate-unsupported-key",
            received=type(certificate.public_key()).__name__,
        )
    if not _certificate_dns_names(certificate):
        raise ConfigError(
            f"A certificate needs a DNS name (subject alternative name). Received: none. {_REMEDY}",
            code="certificate-without-name",
        )
    extensions = certificate.extensions
    constraints = _find_certificate_extension(extensions, x509.BasicConstraints)
    if constraints is None or constraints.ca:
        # Its holder could sign certificates for others, and every server would accept these.
        raise SecurityError(
            "A pinned certificate must not be a certificate authority's: it needs the basic "
            f"constraint CA:FALSE. Received: {'CA:TRUE' if constraints else 'none'}. {_REMEDY}",
            code="certificate-of-authority",
        )
    usage = _find_certificate_extension(extensions, x509.KeyUsage)
    extended = _find_certificate_extension(extensions, x509.ExtendedKeyUsage)
    required_usages = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    if (usage is not None and not usage.digital_signature) or (
        extended is not None and not required_usages <= set(extended)
    ):
        raise ConfigError(
            "A certificate's key usage must allow TLS as server and as client (digitalSignature, "
            f"serverAuth, clientAuth). Received: less. {_REMEDY}",
            code="certificate-key-usage",
        )


def _find_certificate_extension(extensions: x509.Extensions, kind: type[E]) -> E | None:
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _certificate_dns_names(certificate: x509.Certificate) -> list[str]:
    names = _find_certificate_extension(certificate.extensions, x509.SubjectAlternativeName)
    return [] if names is None else list(names.get_values_for_type(x509.DNSName))
