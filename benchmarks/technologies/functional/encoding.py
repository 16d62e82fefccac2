"""Public keys, keys and ciphertexts as bytes, and back with every field checked.

    "TFEF", version 1, kind, scheme, 0          8 bytes
    length, count: elements, and of what        2 x 4, big endian
    fingerprint of the public key               32 (a public key's own)
    body: its size follows from the above, and of keys from the number of entries before it

Nothing is taken from memory before the size is known to be right.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from tfe_bench.benchmarks.technologies.functional.curve import (
    ELEMENT,
    MOST_INPUT_BITS,
    Bytes,
    Rows,
    are_reduced,
    decode_elements,
)
from tfe_bench.benchmarks.technologies.functional.scheme import (
    FINGERPRINT,
    HEADS,
    MOST_ELEMENTS,
    MOST_LENGTH,
    SCHEMES,
    Ciphertexts,
    FunctionKeys,
    PublicKey,
)
from tfe_bench.errors import DataError, SecurityError

_MAGIC: Final = b"TFEF\x01"
_HEAD: Final = struct.Struct(f">5sBBBII{FINGERPRINT}s")
_KINDS: Final = ("public key", "keys", "ciphertexts")
_ENTRIES: Final = struct.Struct(">I")
# An entry of a key's weights: column and value.
_ENTRY: Final = np.dtype([("column", ">u4"), ("value", ">i4")])


def _encode_header(kind: str, scheme: str, length: int, count: int, fingerprint: bytes) -> bytes:
    return _HEAD.pack(
        _MAGIC, _KINDS.index(kind), SCHEMES.index(scheme), 0, length, count, fingerprint
    )


def _split_header(kind: str, data: bytes) -> tuple[str, int, int, bytes, memoryview]:
    """Scheme, length, count, fingerprint and body."""
    if len(data) < _HEAD.size:
        raise DataError(f"A {kind} is {_HEAD.size} bytes or more. Received: {len(data)}.")
    magic, which, scheme, zero, length, count, fingerprint = _HEAD.unpack_from(data)
    if magic != _MAGIC or zero != 0 or which >= len(_KINDS) or scheme >= len(SCHEMES):
        raise DataError(f"These are no bytes of a {kind}, or of another version. Received: others.")
    if _KINDS[which] != kind:
        raise DataError(f"These bytes should be a {kind}. Received: those of a {_KINDS[which]}.")
    if not 1 <= length <= MOST_LENGTH:
        raise DataError(f"The length in a {kind} is 1 to {MOST_LENGTH}. Received: {length}.")
    return SCHEMES[scheme], length, count, fingerprint, memoryview(data)[_HEAD.size :]


def _check_size(kind: str, body: memoryview, size: int) -> Bytes:
    if len(body) != size:
        raise DataError(
            f"The body of this {kind} has {size} bytes by its head. Received: {len(body)}. It is "
            "damaged or cut short."
        )
    return np.frombuffer(body, np.uint8).copy()


def _check_count(kind: str, count: int, each: int) -> None:
    if not 1 <= count * each <= MOST_ELEMENTS:
        raise DataError(f"{kind} hold 1 to {MOST_ELEMENTS} elements. Received: {count} x {each}.")


def public_key_to_bytes(key: PublicKey) -> bytes:
    """A public key of length l takes 48 + 32 l bytes, and 32 more if it is adaptive."""
    return (
        _encode_header("public key", key.scheme, key.length, 0, key.fingerprint)
        + key.points.tobytes()
    )


def public_key_from_bytes(data: bytes) -> PublicKey:
    """What `public_key_to_bytes` wrote.

    Raises:
        DataError: other bytes, or an element that is none.
        SecurityError: its fingerprint is another key's.
    """
    scheme, length, count, fingerprint, body = _split_header("public key", data)
    if count:
        raise DataError(f"The count in a public key is 0. Received: {count}.")
    points = _check_size("public key", body, (HEADS[scheme] - 1 + length) * ELEMENT)
    key = PublicKey(scheme, points.reshape(-1, ELEMENT))
    decode_elements(key.points, "The public key")
    if key.fingerprint != fingerprint:
        raise SecurityError(
            "The public key's fingerprint is not that of its elements. Received: "
            f"{fingerprint.hex()[:16]}; {key.fingerprint.hex()[:16]} is due. Get the key again."
        )
    return key


def ciphertexts_to_bytes(given: Ciphertexts) -> bytes:
    """A ciphertext of length l takes 32 (l + 1) bytes, adaptive 32 (l + 2); 48 more for all."""
    head = _encode_header("ciphertexts", given.scheme, given.length, len(given), given.fingerprint)
    return head + given.elements.tobytes()


def ciphertexts_from_bytes(data: bytes) -> Ciphertexts:
    """What `ciphertexts_to_bytes` wrote; decryption checks the elements.

    Raises:
        DataError: other bytes.
    """
    scheme, length, count, fingerprint, body = _split_header("ciphertexts", data)
    each = HEADS[scheme] + length
    _check_count("Ciphertexts", count, each)
    elements = _check_size("ciphertexts", body, count * each * ELEMENT)
    return Ciphertexts(scheme, fingerprint, elements.reshape(count, each, ELEMENT))


def keys_to_bytes(keys: FunctionKeys) -> bytes:
    """A key takes 32 bytes, adaptive 64, and 4 for its entries' number and 8 for each of them."""
    rows = keys.rows
    head = _encode_header("keys", keys.scheme, rows.columns, len(rows), keys.fingerprint)
    entries = np.zeros(len(rows.index), _ENTRY)
    entries["column"], entries["value"] = rows.index, rows.value
    counts = np.diff(rows.start).astype(">u4")
    body = counts.tobytes() + entries.tobytes() + keys.numbers.tobytes()
    return head + _ENTRIES.pack(len(entries)) + body


def keys_from_bytes(data: bytes) -> FunctionKeys:
    """What `keys_to_bytes` wrote.

    Raises:
        DataError: other bytes, or numbers that none of a key are.
    """
    scheme, length, count, fingerprint, body = _split_header("keys", data)
    heads = HEADS[scheme]
    _check_count("Keys", count, heads)
    if len(body) < _ENTRIES.size:
        raise DataError("These keys are cut short before their entries' number.")
    (entries,) = _ENTRIES.unpack_from(body)
    if entries > MOST_ELEMENTS:
        raise DataError(f"Keys have up to {MOST_ELEMENTS} entries. Received: {entries}.")
    sizes = 4 * count, _ENTRY.itemsize * entries, heads * count * ELEMENT
    rest = _check_size("keys", body[_ENTRIES.size :], sum(sizes))
    counts, packed, numbers = np.split(rest, np.cumsum(sizes)[:-1])
    start = np.concatenate([[0], np.cumsum(counts.view(">u4").astype(np.int64))])
    found = packed.view(_ENTRY)
    if start[-1] != entries or (entries and int(found["column"].max()) >= length):
        raise DataError("The entries of these keys do not fit their number or length.")
    value = found["value"].astype(np.int64)
    if entries and int(np.abs(value).max()) >> MOST_INPUT_BITS:
        raise DataError(f"Weights of keys are below 2^{MOST_INPUT_BITS} in size.")
    if not are_reduced(numbers.reshape(-1, ELEMENT)):
        raise DataError("Numbers of a key are below the group's order. Received: a larger one.")
    rows = Rows(start.astype(np.int64), found["column"].astype(np.int32), value, length)
    return FunctionKeys(scheme, fingerprint, rows, numbers.reshape(heads, count, ELEMENT))
