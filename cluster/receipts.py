"""Receipts: signed lines about jobs, which workers exchange, keep and send to clients.

A worker signs with the private key of its certificate in cluster.toml, the one of its TLS
connections.  Without TLS nothing vouches for a key: a worker then signs with the key that
worker.toml names, else with a temporary one, and no member checks the signatures during a job.

A line is JSON in canonical form (sorted keys, no spaces) with the fields of its kind and

    number      counts the lines of a worker, across files
    before      SHA-256 of the line before, in base64
    at          milliseconds since 1970; never less than in the line before
    signature   over party, number, before, at and the SHA-256 of all other fields, in base64

A signature therefore covers all earlier lines.  ECDSA signatures are r and s, of equal length;
RSA signatures are PKCS #1 v1.5.  Both use SHA-256.  A line contains public facts alone: names that
the workers know anyway, digests, and times.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.session.openings import decode_openings

if TYPE_CHECKING:
    from tfe_bench.cluster.config import ClusterConfig

FORMAT = 1
# Kinds of lines: a worker's start or a new file, a job, and the two other workers' receipts of it.
START, JOB, PEERS = "start", "job", "peers"
# `before` of a worker's first line.
NO_LINE = base64.b64encode(bytes(32)).decode()
# Bytes of a line.
MOST_LINE = 1 << 20
# What is recorded of a peer whose receipt is absent or does not fit.
MISSING, MALFORMED = "receipt-missing", "receipt-malformed"
WRONG_SIGNATURE, DIFFERS = "receipt-signature", "receipt-differs"
TIME_DIFFERS, UNVERIFIED = "receipt-time-differs", "receipt-unverified"
PEER_CODES = ("", MISSING, MALFORMED, WRONG_SIGNATURE, DIFFERS, TIME_DIFFERS, UNVERIFIED)

_DOMAIN = "tfe_bench receipt 1"
_SIGNED_FIELDS = ("number", "before", "at", "signature")
_MOST_NUMBER = 1 << 53
_MOST_SIGNATURE = 1024  # of an RSA key of 6144 bits
_DIGEST_CHARS = len(NO_LINE)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def encode_canonical(value: object) -> bytes:
    """Encode a JSON value in canonical form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest_bytes(blob: bytes) -> str:
    """Return the SHA-256 of bytes in base64."""
    return base64.b64encode(hashlib.sha256(blob).digest()).decode()


# ---- keys and signatures


class ReceiptSigner:
    """A worker's signing key.

    Args:
        key: private, PEM, checked by tls.load_private_key; empty for a temporary one.

    Attributes:
        public_key: in the form of `list_pinned_keys`.
    """

    def __init__(self, key: bytes = b"") -> None:
        private = (
            serialization.load_pem_private_key(key, password=None)
            if key
            else ec.generate_private_key(ec.SECP256R1())
        )
        assert isinstance(private, PrivateKey)
        self._private: PrivateKey = private
        self.public_key = _encode_public_key(private.public_key())

    def sign_statement(self, statement: bytes) -> str:
        """Return the signature of a statement in base64."""
        key = self._private
        if isinstance(key, rsa.RSAPrivateKey):
            signature = key.sign(statement, padding.PKCS1v15(), hashes.SHA256())
        else:
            size = (key.key_size + 7) // 8
            numbers = utils.decode_dss_signature(key.sign(statement, ec.ECDSA(hashes.SHA256())))
            signature = b"".join(number.to_bytes(size, "big") for number in numbers)
        return base64.b64encode(signature).decode()


@functools.lru_cache(maxsize=16)  # (every job of a client needs them)
def list_pinned_keys(config: ClusterConfig) -> tuple[tuple[str, ...], ...]:
    """Return the public keys of the certificates that a cluster file pins for each party.

    A key is SubjectPublicKeyInfo (DER) in base64.  Without TLS a party has no key here.
    """
    if not config.tls:
        return ((), (), ())
    return tuple(
        tuple(
            _encode_public_key(x509.load_pem_x509_certificate(pem).public_key())
            for pem in party.certificates
        )
        for party in config.parties
    )


def _encode_public_key(key: Any) -> str:
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.b64encode(der).decode()


@functools.lru_cache(maxsize=64)
def _load_public_key(text: str) -> ec.EllipticCurvePublicKey | rsa.RSAPublicKey:
    try:
        key = serialization.load_der_public_key(base64.b64decode(text, validate=True))
    except UnsupportedAlgorithm:
        raise ValueError("a key of another kind") from None
    if not isinstance(key, (ec.EllipticCurvePublicKey, rsa.RSAPublicKey)):
        raise ValueError("a key of another kind")
    return key


def is_public_key(text: object) -> bool:
    """Return whether a value is a public key in the form of `list_pinned_keys`."""
    try:
        return (
            isinstance(text, str)
            and len(text) < _MOST_SIGNATURE * 2
            and bool(_load_public_key(text))
        )
    except (ValueError, binascii.Error):
        return False


def _is_signature_of(public_key: str, statement: bytes, signature: str) -> bool:
    try:
        key, blob = _load_public_key(public_key), base64.b64decode(signature, validate=True)
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(blob, statement, padding.PKCS1v15(), hashes.SHA256())
            return True
        size = (key.key_size + 7) // 8
        if len(blob) != 2 * size:
            return False
        r, s = (int.from_bytes(part, "big") for part in (blob[:size], blob[size:]))
        key.verify(utils.encode_dss_signature(r, s), statement, ec.ECDSA(hashes.SHA256()))
        return True
    except (InvalidSignature, ValueError, binascii.Error):
        return False


# ---- lines


@dataclass(frozen=True)
class Seal:
    """The signed fields of a line that are common to all kinds, without its other fields.

    Attributes:
        party: the signer.
        number, before, at, signature: as in the module's description.
    """

    party: int
    number: int
    before: str
    at: int
    signature: str

    def is_valid(self, body_digest: str, public_keys: Iterable[str]) -> bool:
        """Return whether one of some keys has signed the line with this digest of other fields."""
        statement = _format_statement(self.party, self.number, self.before, self.at, body_digest)
        return any(_is_signature_of(key, statement, self.signature) for key in public_keys)


def _format_statement(party: int, number: int, before: str, at: int, body_digest: str) -> bytes:
    return f"{_DOMAIN}\n{party} {number} {before} {at} {body_digest}".encode()


@dataclass(frozen=True)
class Line:
    """A line: its seal, and the fields of its kind.

    Attributes:
        body: the fields of its kind, with `kind`.
    """

    seal: Seal
    body: Mapping[str, Any]

    def encode_line(self) -> bytes:
        """Return the line without its end."""
        seal = {name: getattr(self.seal, name) for name in _SIGNED_FIELDS}
        return encode_canonical({**self.body, **seal})

    @property
    def body_digest(self) -> str:
        """The digest of the fields of its kind."""
        return digest_bytes(encode_canonical(self.body))


def sign_line(
    signer: ReceiptSigner, party: int, number: int, before: str, at: int, body: Mapping[str, Any]
) -> Line:
    """Sign a line."""
    digest = digest_bytes(encode_canonical(body))
    signature = signer.sign_statement(_format_statement(party, number, before, at, digest))
    return Line(Seal(party, number, before, at, signature), body)


def parse_line(blob: bytes, party: int) -> Line:
    """Parse a line of a party's file, without its end; its signature is not checked.

    Args:
        party: the signer; ignored for a start line, which names it.

    Raises:
        ValueError: it is no line of a receipts file, with the reason.
    """
    if len(blob) > MOST_LINE:
        raise ValueError(f"it has more than {MOST_LINE} bytes")
    try:
        value = json.loads(blob)
        is_canonical = isinstance(value, dict) and encode_canonical(value) == blob
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not is_canonical:
        raise ValueError("it is not in the form in which workers write")
    kind = str(value.get("kind"))
    try:
        number, before, at, signature = (value.pop(name) for name in _SIGNED_FIELDS)
        if set(value) != _FIELDS[kind] or not _BODY_CHECKS[kind](value):
            raise ValueError
        seal = Seal(value["party"] if kind == START else party, number, before, at, signature)
        if not is_seal(seal):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError, ProtocolError):
        raise ValueError("its fields are not those of a receipt") from None
    return Line(seal, value)


def is_seal(seal: Seal) -> bool:
    """Return whether the fields of an untrusted seal are of their types and sizes."""
    return (
        all(map(_is_number, (seal.party, seal.number, seal.at)))
        and isinstance(seal.before, str)
        and len(seal.before) == _DIGEST_CHARS
        and isinstance(seal.signature, str)
        and 0 < len(seal.signature) <= _MOST_SIGNATURE
    )


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_NUMBER


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_start_body(body: Mapping[str, Any]) -> bool:
    keys = body["keys"]
    return (
        body["format"] == FORMAT
        and body["party"] in (0, 1, 2)
        and all(_is_number(body[name]) for name in ("party", "file", "dropped"))
        and all(isinstance(body[name], str) for name in ("cluster", "name"))
        and is_public_key(body["key"])
        and isinstance(body["build"], dict)
        and isinstance(keys, list)
        and len(keys) == 3
        and all(isinstance(row, list) and all(map(is_public_key, row)) for row in keys)
    )


def _is_job_body(body: Mapping[str, Any]) -> bool:
    facts = body["facts"]
    stored, charged = facts.get("stored", []), facts.get("charged", {})
    decode_openings(facts.get("opened"))
    return (
        _is_number(body["began"])
        and isinstance(body["end"], str)
        and all(isinstance(facts[name], str) for name in ("job", "client", "program"))
        and isinstance(stored, list)
        and all(isinstance(row, list) and all(map(_is_text, row)) for row in stored)
        and isinstance(charged, dict)
        and all(map(_is_text, charged.values()))
    )


def _is_peers_body(body: Mapping[str, Any]) -> bool:
    rows = body["receipts"]
    return (
        isinstance(body["job"], str)
        and isinstance(rows, list)
        and len(rows) == 2
        and all(map(_is_peer_row, rows))
    )


def _is_peer_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) < 2 or row[0] not in (0, 1, 2):
        return False
    if row[1] not in PEER_CODES:
        return False
    return len(row) == 2 if row[1] in (MISSING, MALFORMED) else is_receipt_row(row[2:])


def is_receipt_row(row: object, has_digest: bool = True) -> bool:
    """Return whether an untrusted value is a row of `encode_receipt_row`."""
    if not isinstance(row, list) or len(row) != 5 + has_digest:
        return False
    digest = row[5] if has_digest else NO_LINE
    return (
        _is_number(row[2])
        and isinstance(digest, str)
        and len(digest) == _DIGEST_CHARS
        and is_seal(Seal(0, row[0], row[1], row[3], row[4]))
    )


def decode_receipt_row(party: int, row: Sequence[Any]) -> Seal:
    """Return the seal of a party's row."""
    number, before, _, at, signature = row[:5]
    return Seal(party, number, before, at, signature)


_FIELDS = {
    START: {
        "kind",
        "format",
        "party",
        "cluster",
        "name",
        "file",
        "dropped",
        "key",
        "keys",
        "build",
    },
    JOB: {"kind", "began", "end", "facts"},
    PEERS: {"kind", "job", "receipts"},
}
_BODY_CHECKS = {START: _is_start_body, JOB: _is_job_body, PEERS: _is_peers_body}
