"""Certificates for tests, including some that `make_self_signed_certificate` never creates."""

from __future__ import annotations

import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from tfe_bench.cluster import tls

Pair = tuple[bytes, bytes]


def party_certificate(index: int) -> Pair:
    return tls.make_self_signed_certificate(tls.party_common_name(index))


def odd_certificate(
    name: str = "party-1.tfe-bench",
    *,
    start_days: int = -1,
    end_days: int = 30,
    ca: bool | None = False,
    dns: bool = True,
    key: Any = None,
    issuer: tuple[Any, x509.Name] | None = None,
) -> Pair:
    """Create a certificate that ``make_self_signed_certificate`` never creates."""
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
