"""Inner-product functional encryption over ristretto255.

A key authority holds numbers s.  The holder of a key for weights y learns <x, y> of an encrypted
x; further keys reveal the inner products with their weights, and nothing else.

    selective: h_i = g^s_i; ct = (g^r, h_i^r g^x_i); key <s, y>; prod ct_i^y_i / ct_0^key = g^<x, y>
        (Abdalla, Bourse, De Caro and Pointcheval, PKC 2015, section 3.1).  Secure if messages
        are chosen before the adversary sees the public key.
    adaptive: two generators g, h and h_i = g^s_i h^t_i; ct = (g^r, h^r, h_i^r g^x_i); keys <s, y>
        and <t, y> (Agrawal, Libert and Stehle, CRYPTO 2016, section 3).  Also secure if messages
        are chosen after the adversary has seen the public key.

Both are secure under the decisional Diffie-Hellman assumption (128 bits in this group) against an
adversary that requests keys adaptively.  Neither hides y, nor limits an adversary that can request
enough keys: see `leakage`.  Ciphertexts are malleable and not authenticated.  The scheme recovers
only small results: a table of discrete logarithms (`curve.Table`) finds those within a bound.

All functions work on batches: many ciphertexts, many keys.  A fingerprint identifies the public
key: values of another one are refused and not decrypted to garbage.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.technologies.functional import curve
from tfe_bench.benchmarks.technologies.functional.curve import ELEMENT, Bytes, Numbers, Rows, Words
from tfe_bench.benchmarks.technologies.functional.integers import to_bounded_integers
from tfe_bench.benchmarks.technologies.functional.sweep import MOST_ELEMENTS, MOST_LENGTH
from tfe_bench.errors import DataError, SecurityError, UsageError, check_one_of, check_range

SCHEMES: Final = ("selective", "adaptive")
HEADS: Final = {"selective": 1, "adaptive": 2}
"""Elements of a ciphertext before those of its message; also numbers of a key."""
"""Most elements of a batch of ciphertexts, and most entries of a batch of keys: 1 GB."""
FINGERPRINT: Final = 32


@dataclass(frozen=True, eq=False, repr=False)
class PublicKey:
    """Public key for encryption.

    Attributes:
        scheme: one of SCHEMES.
        points: uint8 [heads - 1 + length, 32]: h if the scheme has one, then h_i.

    Raises:
        UsageError: the scheme is unknown, or the length is outside 1 to MOST_LENGTH.
    """

    scheme: str
    points: Bytes

    def __post_init__(self) -> None:
        check_one_of("A scheme is one of", self.scheme, SCHEMES)
        check_range("A vector's length", self.length, 1, MOST_LENGTH)

    def __repr__(self) -> str:
        return f"PublicKey({self.scheme}, length {self.length})"

    @property
    def heads(self) -> int:
        """Number of head elements of the scheme, as in HEADS."""
        return HEADS[self.scheme]

    @property
    def length(self) -> int:
        """Number of values in a message."""
        return len(self.points) - (HEADS[self.scheme] - 1)

    @functools.cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 digest of the whole key, 32 bytes; its keys and ciphertexts carry it."""
        digest = hashlib.sha256(f"tfe_bench functional {self.scheme} {self.length}\0".encode())
        digest.update(self.points.tobytes())
        return digest.digest()


@dataclass(frozen=True, eq=False, repr=False)
class FunctionKeys:
    """Keys for the inner products with `rows`, which are public.

    Attributes:
        scheme, fingerprint: those of the public key.
        rows: the weights.
        numbers: uint8 [heads, rows, 32]; their holder can decrypt.
    """

    scheme: str
    fingerprint: bytes
    rows: Rows
    numbers: Bytes

    def __repr__(self) -> str:
        return f"FunctionKeys({self.scheme}, {self.rows!r})"

    @property
    def nbytes(self) -> int:
        """Bytes of the keys that the authority sends, without the weights."""
        return self.numbers.nbytes


@dataclass(frozen=True, eq=False, repr=False)
class Ciphertexts:
    """A batch of encrypted messages.

    Attributes:
        scheme, fingerprint: those of the public key.
        elements: uint8 [batch, heads + length, 32].

    Raises:
        UsageError: the scheme, shape or length is invalid.
    """

    scheme: str
    fingerprint: bytes
    elements: Bytes

    def __post_init__(self) -> None:
        check_one_of("A scheme is one of", self.scheme, SCHEMES)
        if self.elements.ndim != 3 or self.elements.shape[2] != ELEMENT:
            raise UsageError(
                f"Ciphertexts are [batch, elements, {ELEMENT}] bytes. Received: "
                f"{list(self.elements.shape)}.",
                code="shape-mismatch",
                operation="ciphertexts",
                received=list(self.elements.shape),
            )
        check_range("A message's length", self.length, 1, MOST_LENGTH)

    def __repr__(self) -> str:
        return f"Ciphertexts({self.scheme}, {len(self)} of length {self.length})"

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def length(self) -> int:
        """Number of values in a message."""
        return int(self.elements.shape[1]) - HEADS[self.scheme]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.elements.nbytes


@dataclass(frozen=True, eq=False, repr=False)
class MasterKey:
    """Master key of the key authority.

    Attributes:
        public: the public key.
        secret: uint8 [heads, length, 32]: s, and t if the scheme has one.
    """

    public: PublicKey
    secret: Bytes

    def __repr__(self) -> str:
        return f"MasterKey({self.public.scheme}, length {self.public.length})"

    def derive(self, weights: Any) -> FunctionKeys:
        """Derive keys for weights: `Rows`, or whole numbers [keys, length] below 2^31 in size.

        Constant time in the secret; the weights are public.

        Raises:
            UsageError: the weights have another length than the public key.
            RangeError: a weight is NaN, not whole, or too large.
        """
        rows = weights if isinstance(weights, Rows) else as_weight_rows(weights)
        if rows.columns != self.public.length:
            raise UsageError(
                f"Weights have the public key's length, {self.public.length}. Received: "
                f"{rows.columns}.",
                code="shape-mismatch",
                operation="weights",
                received=rows.columns,
                expected=self.public.length,
            )
        numbers = np.stack([curve.scalar_inner_products(s, rows) for s in self.secret])
        return FunctionKeys(self.public.scheme, self.public.fingerprint, rows, numbers)


def as_weight_rows(weights: Any) -> Rows:
    """Convert whole numbers [keys, length] to rows.

    Raises:
        UsageError: the weights are not a matrix of numbers, or have too many entries.
        RangeError: a weight is NaN, not whole, or too large.
    """
    dense = to_bounded_integers("Weights", weights, (1 << curve.MOST_INPUT_BITS) - 1)
    if dense.ndim != 2 or not dense.size:
        raise UsageError(
            f"Weights are [keys, length]. Received: {list(dense.shape)}.",
            code="shape-mismatch",
            operation="weights",
            received=list(dense.shape),
        )
    check_range("Entries of all weights", dense.size, 1, MOST_ELEMENTS)
    return Rows.from_dense(dense)


def setup(scheme: str, length: int) -> MasterKey:
    """Generate a master key from random numbers of the operating system.

    Raises:
        UsageError: the scheme is unknown, or the length is outside 1 to MOST_LENGTH.
    """
    check_one_of("A scheme is one of", scheme, SCHEMES)
    check_range("A vector's length", length, 1, MOST_LENGTH)
    secret = np.stack([curve.random_scalars(length) for _ in range(HEADS[scheme])])
    exponents, more = secret[0], np.empty((0, ELEMENT), np.uint8)
    if scheme == "adaptive":
        # h = g^w, and h_i = g^(w t_i + s_i); w is discarded.
        w = curve.random_scalars(1)
        exponents = curve.multiply_add(secret[1], np.repeat(w, length, 0), secret[0])
        more = w
    points = curve.multiply_base(np.concatenate([more, exponents]))
    return MasterKey(PublicKey(scheme, points), secret)


class Encryptor:
    """Encryptor with a public key, whose tables are built once: 8 kB for each element.

    Args:
        public: the key; each of its elements is checked.
        bits: messages are below 2^bits in size; public, 1 to 31.
        threads: threads that build the tables.

    Raises:
        DataError: the key holds bytes that encode no element, or the neutral element.
    """

    def __init__(self, public: PublicKey, bits: int, threads: int = 1) -> None:
        check_range("--input-bits", bits, 1, curve.MOST_INPUT_BITS)
        if not public.points.any(axis=1).all():
            at = int(np.argmin(public.points.any(axis=1)))
            raise DataError(
                "The public key holds the neutral element, under which a value would be sent in "
                f"the clear. Received: element {at} (counted from 0). The key is damaged or "
                "forged: get it again.",
                code="neutral-element",
                received=f"element {at}",
            )
        self.public, self.bits = public, bits
        one = np.zeros((1, ELEMENT), np.uint8)
        one[0, 0] = 1
        elements = np.concatenate([curve.multiply_base(one), public.points])
        self._table: Words = curve.build_combs(elements, "The public key", threads)

    @property
    def nbytes(self) -> int:
        """Bytes of its tables."""
        return int(self._table.nbytes)

    def encrypt(self, messages: Any, threads: int = 1) -> Ciphertexts:
        """Encrypt whole numbers [batch, length] in constant time.

        Raises:
            UsageError: the messages have another length, or the batch is too large.
            RangeError: a number is NaN, not whole, or beyond the declared bits.
        """
        public = self.public
        integers = to_bounded_integers("Messages", messages, (1 << self.bits) - 1)
        if integers.ndim != 2 or integers.shape[1] != public.length:
            raise UsageError(
                f"Messages are [batch, {public.length}]. Received: {list(integers.shape)}.",
                code="shape-mismatch",
                operation="messages",
                received=list(integers.shape),
            )
        check_range("Elements of a batch", len(integers) * (public.length + 2), 1, MOST_ELEMENTS)
        padded = np.zeros((len(integers), public.heads + public.length), np.int64)
        padded[:, public.heads :] = integers
        # The encryption randomness is twice this number, and equally uniform.
        half = curve.random_scalars(len(integers))
        elements = curve.encrypt_messages(self._table, half, padded, self.bits, threads)
        return Ciphertexts(public.scheme, public.fingerprint, elements)


def check_matching_keys(ciphertexts: Ciphertexts, keys: FunctionKeys) -> None:
    """Reject keys of another master key, scheme or length than that of the ciphertexts.

    Raises:
        SecurityError: keys and ciphertexts do not belong together.
    """
    for fact_name, key_fact, due in (
        ("scheme", keys.scheme, ciphertexts.scheme),
        ("length", keys.rows.columns, ciphertexts.length),
        ("public key", keys.fingerprint.hex()[:16], ciphertexts.fingerprint.hex()[:16]),
    ):
        if key_fact != due:
            raise SecurityError(
                f"The keys were derived for another {fact_name} than the ciphertexts': {due} is "
                f"due. Received: {key_fact}. Request keys from the key authority of that "
                "public key.",
                code="encryption-key-mismatch",
                operation=fact_name,
                received=key_fact,
                expected=due,
            )


def evaluate_function_keys(points: Words, keys: FunctionKeys, threads: int = 1) -> Words:
    """Compute g^<x, y> of one unpacked ciphertext (`curve.decode_curve_elements`) for all keys."""
    return curve.evaluate_key_rows(points, keys.numbers, keys.rows, threads)


def decrypt(
    ciphertexts: Ciphertexts,
    keys: FunctionKeys,
    table: curve.Table,
    bound: int,
    threads: int = 1,
) -> Numbers:
    """Decrypt the inner products of all messages with all weights: int64 [batch, keys].

    Args:
        bound: results are from -bound to bound.
        threads: the ciphertexts are split among these threads; for a single ciphertext, the keys
            are.

    Raises:
        SecurityError: the keys belong to another public key.
        DataError: a ciphertext or key is damaged.
        RangeError: a result is not within the bound; a wrong value is never returned.
    """
    check_matching_keys(ciphertexts, keys)
    table.check_bound(bound)
    batch = len(ciphertexts)
    out = np.zeros((batch, len(keys.rows)), np.int64)
    inside = threads if batch == 1 else 1

    def part(begin: int, end: int) -> None:
        for i in range(begin, end):
            points = curve.decode_curve_elements(ciphertexts.elements[i], threads=inside)
            out[i] = table.find_logarithms(
                evaluate_function_keys(points, keys, inside), bound, inside
            )

    curve.run_parts_in_threads(batch, threads, part)
    return out


def bound_for(input_bits: int, rows: Rows) -> int:
    """Bound the size of inner products of messages below 2^input_bits with these rows."""
    before = np.concatenate([[0], np.cumsum(np.abs(rows.value))])
    sums = before[rows.start[1:]] - before[rows.start[:-1]]
    return int(sums.max(initial=0)) * ((1 << input_bits) - 1)
