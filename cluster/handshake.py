"""Agreement of two workers before a session, and derivation of their pairwise keys.

Each side sends a hello; every field that must be equal is compared, and a difference is
refused with both values named.  The pairwise PRF key comes from an ephemeral
X25519 exchange inside the (mutually authenticated) stream: both sides contribute OS
randomness, and a recorded stream does not disclose the key later.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import tfe_bench
from tfe_bench.cluster import json_limits
from tfe_bench.errors import ProtocolError, VersionMismatch

# field -> advice if the two sides differ
_MUST_AGREE = {
    "version": "Install one version of tfe_bench on all three hosts.",
    "abi": "Compile the ops of one version of tfe_bench on all three hosts.",
    "tensorflow": "Install one minor version of TensorFlow on all three hosts.",
    "ring": "Use one cluster.toml on all three hosts.",
    "fractional_bits": "Use one cluster.toml on all three hosts.",
    "cluster": "Use one cluster.toml on all three hosts (and with the client).",
    "client": "Pin the same certificate for this client in cluster.toml on all three hosts.",
    "program": "Install the same program everywhere and submit one set of parameters.",
    "job": "This is a bug in job ordering: please report it.",
}


@dataclass(frozen=True)
class Hello:
    """First message of each side of a stream between workers.

    Attributes:
        cluster: the digest of the parties and settings in cluster.toml.
        cluster_parts: short digests of its parts, which name a difference; no decision depends on
            them.
        client: the name and certificate of the job's client at this worker.
    """

    party: int
    version: str
    abi: int
    tensorflow: str
    ring: int
    fractional_bits: int
    cluster: str
    cluster_parts: str
    client: str
    program: str
    job: str
    public_key: str

    def encode(self) -> bytes:
        """Return the hello as JSON bytes."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def decode(cls, blob: bytes) -> Hello:
        """Parse a hello from JSON bytes.

        Raises:
            ProtocolError: the bytes are not a hello.
        """
        problem = "A peer's first message is not a hello of tfe_bench: it"
        values = json_limits.parse_untrusted_json_object(blob, problem, json_limits.MOST_QUESTION)
        kinds = {"int": int, "str": str}
        for field in dataclasses.fields(cls):
            if type(values.get(field.name)) is not kinds[str(field.type)]:
                raise ProtocolError(
                    f'{problem} has no "{field.name}".',
                    code="malformed-message",
                    operation=field.name,
                )
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})


def minor_version(version: str) -> str:
    """Return major and minor version: 2.21.3 -> 2.21."""
    return ".".join(version.split(".")[:2])


@functools.cache
def tensorflow_version() -> str:
    """Return the installed TensorFlow's version, without importing it."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


def check_peer_hello(
    mine: Hello, theirs: Hello, expected_party: int, differences: str = ""
) -> None:
    """Reject a peer whose hello differs.

    Args:
        differences: a description of the differences of the two cluster files, or "".

    Raises:
        VersionMismatch: naming the field, both values and the remedy.
        ProtocolError: the peer claims to be another party than the expected one.
    """
    if theirs.party != expected_party:
        raise ProtocolError(
            f"Expected party {expected_party}. Received: a hello of party {theirs.party}.",
            code="unexpected-party",
            received=theirs.party,
            expected=expected_party,
        )
    for field, remedy in _MUST_AGREE.items():
        our_value, their_value = getattr(mine, field), getattr(theirs, field)
        if field == "tensorflow":
            our_value, their_value = minor_version(str(our_value)), minor_version(str(their_value))
        if our_value != their_value:
            max_chars = 80 if field == "client" else 24
            shown_a, shown_b = (str(v)[:max_chars] for v in (our_value, their_value))
            where = f" ({differences})" if field == "cluster" and differences else ""
            raise VersionMismatch(
                f"Parties {mine.party} and {theirs.party} differ in {field}{where}. Received: "
                f"{shown_a} (party {mine.party}) and {shown_b} (party {theirs.party}). {remedy}",
                code="members-differ",
                operation=field,
                received=shown_b,
                expected=shown_a,
            )


class KeyAgreement:
    """One side's ephemeral key; `derive_key` returns the 16-byte PRF key that both sides share."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public_key = self._private.public_key().public_bytes_raw().hex()

    def derive_key(self, mine: Hello, theirs: Hello) -> bytes:
        """Derive the key by HKDF-SHA256 from the X25519 secret, bound to both hellos.

        Raises:
            ProtocolError: the peer's public key is malformed, or results in no secret.
        """
        low, high = sorted((mine, theirs), key=lambda h: h.party)
        transcript = hashlib.sha256(low.encode() + b"\0" + high.encode()).digest()
        try:
            peer = X25519PublicKey.from_public_bytes(bytes.fromhex(theirs.public_key))
            secret = self._private.exchange(peer)
        except ValueError:
            raise ProtocolError(
                "Expected an X25519 public key. Received: another value from party "
                f"{theirs.party}.",
                code="invalid-public-key",
                party=theirs.party,
            ) from None
        return HKDF(hashes.SHA256(), 16, salt=transcript, info=b"tfe_bench PRF key").derive(secret)


def program_digest(name: str, parameters: dict[str, Any], shapes: Any) -> str:
    """Return the digest of a job's program, parameters and public shapes of its inputs."""
    canonical = json.dumps([name, parameters, shapes], sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def package_version() -> str:
    """Return this package's version."""
    return tfe_bench.__version__
