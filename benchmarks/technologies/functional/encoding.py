"""Encoding of public keys, keys and ciphertexts as bytes, and decoding that checks every field.

    "TFEF", version 1, kind, scheme, 0          8 bytes
    length, count: of values and of items       2 x 4, big endian
    fingerprint of the public key               32 (a public key's own)
    body: the fields above determine its size, and for keys the number of entries before it

No memory is allocated before the size has been checked.
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
    decode_curve_elements,
)
from tfe_bench.benchmarks.technologies.functional.scheme import (
    FINGERPRINT,
    HEADS,
    SCHEMES,
    Ciphertexts,
    FunctionKeys,
    PublicKey,
)
from tfe_bench.benchmarks.technologies.functional.sweep import MOST_ELEMENTS, MOST_LENGTH
from tfe_bench.errors import DataError, SecurityError

_MAGIC: Final = b"TFEF\x01"
_HEAD: Final = struct.Struct(f">5sBBBII{FINGERPRINT}s")
_KINDS: Final = ("public key", "keys", "ciphertexts")
_ENTRIES: Final = struct.Struct(">I")
# An entry of a key's weights: column and value.
_ENTRY: Final = np.dtype([("column", ">u4"), ("value", ">i4")])


def _encode_scheme_header(
    kind: str, scheme: str, length: int, count: int, fingerprint: bytes
) -> bytes:
    return _HEAD.pack(
        _MAGIC, _KINDS.index(kind), SCHEMES.index(scheme), 0, length, count, fingerprint
    )


def _split_scheme_header(kind: str, data: bytes) -> tuple[str, int, int, bytes, memoryview]:
    """Return scheme, length, count, fingerprint and body.

    Raises:
        DataError: the header is not one of this kind.
    """
    if len(data) < _HEAD.size:
        raise DataError(
            f"A {kind} is {_HEAD.size} bytes or more. Received: {len(data)}.",
            code="encoding-truncated",
            operation=kind,
            received=len(data),
        )
    magic, which, scheme, zero, length, count, fingerprint = _HEAD.unpack_from(data)
    if magic != _MAGIC or zero != 0 or which >= len(_KINDS) or scheme >= len(SCHEMES):
        raise DataError(
            f"Expected the bytes of a {kind} of this version. Received: other bytes.",
            code="malformed-encoding",
            operation=kind,
        )
    if _KINDS[which] != kind:
        raise DataError(
            f"These bytes should be a {kind}. Received: those of a {_KINDS[which]}.",
            code="wrong-encoding-kind",
            operation=kind,
            received=_KINDS[which],
        )
    if not 1 <= length <= MOST_LENGTH:
        raise DataError(
            f"The length in a {kind} is 1 to {MOST_LENGTH}. Received: {length}.",
            code="number-out-of-range",
            operation=kind,
            received=length,
        )
    return SCHEMES[scheme], length, count, fingerprint, memoryview(data)[_HEAD.size :]


def _check_size(kind: str, body: memoryview, size: int) -> Bytes:
    if len(body) != size:
        raise DataError(
            f"The body of this {kind} has {size} bytes by its head. Received: {len(body)}. It is "
            "damaged or cut short.",
            code="encoding-truncated",
            operation=kind,
            received=len(body),
            expected=size,
        )
    return np.frombuffer(body, np.uint8).copy()


def _check_count(kind: str, count: int, elements: int) -> None:
    if not 1 <= count * elements <= MOST_ELEMENTS:
        raise DataError(
            f"{kind} hold 1 to {MOST_ELEMENTS} elements. Received: {count} x {elements}.",
            code="number-out-of-range",
            operation=kind,
            received=count,
        )


def public_key_to_bytes(key: PublicKey) -> bytes:
    """Encode a public key: 48 + 32 l bytes for length l, and 32 more if it is adaptive."""
    return (
        _encode_scheme_header("public key", key.scheme, key.length, 0, key.fingerprint)
        + key.points.tobytes()
    )


def public_key_from_bytes(data: bytes) -> PublicKey:
    """Decode the result of `public_key_to_bytes`.

    Raises:
        DataError: the bytes are not a public key, or an element is invalid.
        SecurityError: the fingerprint belongs to another key.
    """
    scheme, length, count, fingerprint, body = _split_scheme_header("public key", data)
    if count:
        raise DataError(
            f"The count in a public key is 0. Received: {count}.",
            code="malformed-encoding",
            operation="count",
            received=count,
        )
    points = _check_size("public key", body, (HEADS[scheme] - 1 + length) * ELEMENT)
    key = PublicKey(scheme, points.reshape(-1, ELEMENT))
    decode_curve_elements(key.points, "The public key")
    if key.fingerprint != fingerprint:
        raise SecurityError(
            "The public key's fingerprint is not that of its elements, "
            f"{key.fingerprint.hex()[:16]}. Received: {fingerprint.hex()[:16]}. Get the key again.",
            code="fingerprint-mismatch",
            received=fingerprint.hex()[:16],
            expected=key.fingerprint.hex()[:16],
        )
    return key


def ciphertexts_to_bytes(ciphertexts: Ciphertexts) -> bytes:
    """Encode ciphertexts of length l: 32 (l + 1) bytes each, adaptive 32 (l + 2); 48 for all."""
    head = _encode_scheme_header(
        "ciphertexts",
        ciphertexts.scheme,
        ciphertexts.length,
        len(ciphertexts),
        ciphertexts.fingerprint,
    )
    return head + ciphertexts.elements.tobytes()


def ciphertexts_from_bytes(data: bytes) -> Ciphertexts:
    """Decode the result of `ciphertexts_to_bytes`; decryption checks the elements.

    Raises:
        DataError: the bytes are not ciphertexts.
    """
    scheme, length, count, fingerprint, body = _split_scheme_header("ciphertexts", data)
    elements_per_text = HEADS[scheme] + length
    _check_count("Ciphertexts", count, elements_per_text)
    elements = _check_size("ciphertexts", body, count * elements_per_text * ELEMENT)
    return Ciphertexts(scheme, fingerprint, elements.reshape(count, elements_per_text, ELEMENT))


def keys_to_bytes(keys: FunctionKeys) -> bytes:
    """Encode keys: 32 bytes each (adaptive 64), 4 for the number of its entries, 8 an entry."""
    rows = keys.rows
    head = _encode_scheme_header("keys", keys.scheme, rows.columns, len(rows), keys.fingerprint)
    entries = np.zeros(len(rows.index), _ENTRY)
    entries["column"], entries["value"] = rows.index, rows.value
    counts = np.diff(rows.start).astype(">u4")
    body = counts.tobytes() + entries.tobytes() + keys.numbers.tobytes()
    return head + _ENTRIES.pack(len(entries)) + body


def keys_from_bytes(data: bytes) -> FunctionKeys:
    """Decode the result of `keys_to_bytes`.

    Raises:
        DataError: the bytes are not keys, or a number is not one of a key.
    """
    scheme, length, count, fingerprint, body = _split_scheme_header("keys", data)
    heads = HEADS[scheme]
    _check_count("Keys", count, heads)
    if len(body) < _ENTRIES.size:
        raise DataError(
            "Expected the number of entries of the keys. Received: keys that are cut short "
            "before it.",
            code="encoding-truncated",
            operation="entries",
        )
    (entries,) = _ENTRIES.unpack_from(body)
    if entries > MOST_ELEMENTS:
        raise DataError(
            f"Keys have up to {MOST_ELEMENTS} entries. Received: {entries}.",
            code="too-large",
            operation="entries",
            received=entries,
        )
    sizes = 4 * count, _ENTRY.itemsize * entries, heads * count * ELEMENT
    rest = _check_size("keys", body[_ENTRIES.size :], sum(sizes))
    counts, packed, numbers = np.split(rest, np.cumsum(sizes)[:-1])
    start = np.concatenate([[0], np.cumsum(counts.view(">u4").astype(np.int64))])
    key_entries = packed.view(_ENTRY)
    if start[-1] != entries or (entries and int(key_entries["column"].max()) >= length):
        raise DataError(
            "The entries of these keys do not fit their number or length.",
            code="invalid-rows",
        )
    value = key_entries["value"].astype(np.int64)
    if entries and int(np.abs(value).max()) >> MOST_INPUT_BITS:
        raise DataError(
            f"Weights of keys are below 2^{MOST_INPUT_BITS} in size. Received: a larger one.",
            code="number-out-of-range",
            operation="weights",
        )
    if not are_reduced(numbers.reshape(-1, ELEMENT)):
        raise DataError(
            "Numbers of a key are below the group's order. Received: a larger one.",
            code="scalar-not-reduced",
        )
    rows = Rows(start.astype(np.int64), key_entries["column"].astype(np.int32), value, length)
    return FunctionKeys(scheme, fingerprint, rows, numbers.reshape(heads, count, ELEMENT))
