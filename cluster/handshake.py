"""Agreement of two workers before a session, and derivation of their pairwise keys.

Each side sends a hello; every field that must be equal is compared, and a difference is
refused with both values named.  The pairwise PRF key of a stream's first job comes from an
ephemeral X25519 exchange inside the (mutually authenticated) stream: both sides contribute OS
randomness, and a recorded stream does not disclose the key later.  Hellos of further jobs on the
stream contain only the fields of the job, and their keys come from a chain (`StreamKeys`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import time
from dataclasses import dataclass
from typing import Any, Self

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
    "chain": "This is a bug in the order of jobs on a stream: please report it.",
}

# One exchange of X25519 keys serves at most this number of jobs, and this time.
CHAIN_JOBS, CHAIN_SECONDS = 64, 300.0
_CHAIN_BYTES, _KEY_BYTES, _TAG_BYTES = 32, 16, 16


@dataclass(frozen=True)
class _JobFields:
    """Fields of every hello.

    Attributes:
        client: the name and certificate of the job's client at this worker.
        program: the digest of the job's program, parameters and shapes.
        job: the job's name.
    """

    party: int
    client: str
    program: str
    job: str

    def encode(self) -> bytes:
        """Return the hello as JSON bytes."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Parse a hello from JSON bytes.

        Raises:
            ProtocolError: the bytes are not a hello of this class.
        """
        return cls._from_values(_parse_hello(blob))

    @classmethod
    def _from_values(cls, values: dict[str, Any]) -> Self:
        kinds = {"int": int, "str": str}
        for field in dataclasses.fields(cls):
            if type(values.get(field.name)) is not kinds[str(field.type)]:
                raise ProtocolError(
                    f'{_NO_HELLO} has no "{field.name}".',
                    code="malformed-message",
                    operation=field.name,
                )
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})


@dataclass(frozen=True)
class Hello(_JobFields):
    """First message of each side of a stream between workers, and of a job with fresh keys.

    Attributes:
        cluster: the digest of the parties and settings in cluster.toml.
        cluster_parts: short digests of its parts, which name a difference; no decision depends on
            them.
        public_key: an ephemeral X25519 key.
    """

    version: str
    abi: int
    tensorflow: str
    ring: int
    fractional_bits: int
    cluster: str
    cluster_parts: str
    public_key: str


@dataclass(frozen=True)
class JobHello(_JobFields):
    """First message of each side for a further job on a stream.

    The other fields of the stream's hellos do not change while both workers run.

    Attributes:
        chain: the tag of the chain of keys, equal at both sides exactly if their next keys are.
    """

    chain: str


_NO_HELLO = "A peer's first message is not a hello of tfe_bench: it"


def _parse_hello(blob: bytes) -> dict[str, Any]:
    return json_limits.parse_untrusted_json_object(blob, _NO_HELLO, json_limits.MOST_QUESTION)


def decode_hello(blob: bytes) -> Hello | JobHello:
    """Parse either hello from JSON bytes.

    Raises:
        ProtocolError: the bytes are not a hello.
    """
    values = _parse_hello(blob)
    return (JobHello if "chain" in values else Hello)._from_values(values)


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
    mine: Hello | JobHello,
    theirs: Hello | JobHello,
    expected_party: int,
    differences: str = "",
) -> None:
    """Reject a peer whose hello differs.

    Args:
        theirs: a hello of the class of `mine`.
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
        if not hasattr(mine, field):
            continue
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
    """One side's ephemeral X25519 key."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public_key = self._private.public_key().public_bytes_raw().hex()

    def derive_chain(self, mine: Hello, theirs: Hello) -> bytes:
        """Derive a stream's first chain key from the X25519 secret, bound to both hellos.

        Raises:
            ProtocolError: the peer's public key is malformed, or results in no secret.
        """
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
        salt = _digest_hellos(mine, theirs)
        return HKDF(hashes.SHA256(), _CHAIN_BYTES, salt, b"tfe_bench key chain").derive(secret)


class StreamKeys:
    """One side's PRF keys of the jobs on one stream, one after the other.

    A chain key comes from an X25519 exchange in the hellos of the first job, and again after
    CHAIN_JOBS jobs or CHAIN_SECONDS.  Each job takes one step of the chain:

        PRF key (16 bytes) | next chain key (32) | tag (16)
            = HKDF-SHA256(chain key, salt = SHA-256(both sides' hellos of the job))

    The three parts are different bytes of a pseudorandom function's output.  So no key discloses
    another one.  The step overwrites its chain key: who reads a worker's memory later learns no
    earlier key.  The hellos name both parties, the client, the program and the job.  Those of the
    first job name the cluster.  The two sides compare the tags in the hellos of the next job: if
    they have taken different steps, that job fails before any message.
    """

    def __init__(self) -> None:
        self._agreement: KeyAgreement | None = None
        self._chain = bytearray()
        self._tag = ""
        self._jobs = 0
        self._started_at = 0.0

    @property
    def is_exchange_due(self) -> bool:
        """True if the next job begins with an X25519 exchange."""
        age = time.monotonic() - self._started_at
        return not self._chain or self._jobs >= CHAIN_JOBS or age > CHAIN_SECONDS

    def start_exchange(self) -> str:
        """Return a fresh public key for this side's Hello."""
        self._agreement = KeyAgreement()
        return self._agreement.public_key

    def get_chain_tag(self) -> str:
        """Return the tag for this side's JobHello.

        Raises:
            ProtocolError: there is no chain, or it has served its number of jobs.
        """
        if not self._chain or self._jobs >= CHAIN_JOBS:
            raise ProtocolError(
                "Expected a hello with a fresh X25519 key. Received: a hello of a further job.",
                code="malformed-message",
                operation="public_key",
            )
        return self._tag

    def derive_key(self, mine: Hello | JobHello, theirs: Hello | JobHello) -> bytes:
        """Return the job's 16-byte PRF key, which both sides share, and take the chain's step.

        Raises:
            ProtocolError: the peer's public key is malformed, or results in no secret.
        """
        if isinstance(mine, Hello) and isinstance(theirs, Hello) and self._agreement is not None:
            self._chain = bytearray(self._agreement.derive_chain(mine, theirs))
            self._agreement, self._jobs, self._started_at = None, 0, time.monotonic()
        size = _KEY_BYTES + _CHAIN_BYTES + _TAG_BYTES
        salt = _digest_hellos(mine, theirs)
        step = HKDF(hashes.SHA256(), size, salt, b"tfe_bench PRF key").derive(self._chain)
        self._chain[:] = step[_KEY_BYTES : _KEY_BYTES + _CHAIN_BYTES]
        self._tag = step[-_TAG_BYTES:].hex()
        self._jobs += 1
        return step[:_KEY_BYTES]

    def erase_chain(self) -> None:
        """Overwrite the chain key, because the stream ends."""
        self._chain[:] = bytes(len(self._chain))
        self._chain = bytearray()
        self._agreement = None


def _digest_hellos(mine: Hello | JobHello, theirs: Hello | JobHello) -> bytes:
    low, high = sorted((mine, theirs), key=lambda h: h.party)
    return hashlib.sha256(low.encode() + b"\0" + high.encode()).digest()


def program_digest(name: str, parameters: dict[str, Any], shapes: Any) -> str:
    """Return the digest of a job's program, parameters and public shapes of its inputs."""
    canonical = json.dumps([name, parameters, shapes], sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def package_version() -> str:
    """Return this package's version."""
    return tfe_bench.__version__
