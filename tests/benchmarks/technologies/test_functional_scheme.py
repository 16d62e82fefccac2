"""Both schemes: correct results, an independent library, mix-ups, bytes, and invalid inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.benchmarks.technologies import ristretto
from tests.refusals import raises
from tfe_bench.benchmarks.technologies.functional import curve, encoding, scheme
from tfe_bench.benchmarks.technologies.functional.curve import Rows, Table
from tfe_bench.benchmarks.technologies.functional.scheme import (
    HEADS,
    SCHEMES,
    Encryptor,
    MasterKey,
    PublicKey,
    bound_for,
    decrypt,
    setup,
)
from tfe_bench.benchmarks.technologies.functional.sweep import MOST_LENGTH
from tfe_bench.errors import DataError, RangeError, SecurityError, TfeBenchError, UsageError


@pytest.fixture(scope="module")
def table() -> Table:
    return Table(14)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("length", [1, 2, 1023, 1024])
def test_inner_products_come_back(name: str, length: int, table: Table, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    authority = setup(name, length)
    messages = drawn.integers(-255, 256, (3, length))
    messages[1] = 0
    weights = drawn.integers(-127, 128, (4, length))
    weights[2] = 0
    sent = Encryptor(authority.public, 8).encrypt(messages, threads=2)
    keys = authority.derive(weights)
    bound = bound_for(8, keys.rows)
    for threads in (1, 2):
        decrypted = decrypt(sent, keys, table, bound, threads)
        assert (decrypted == messages @ weights.T).all()
    alone = scheme.Ciphertexts(name, sent.fingerprint, sent.elements[:1].copy())
    assert (decrypt(alone, keys, table, bound, 2) == decrypted[:1]).all()


@pytest.mark.parametrize("name", SCHEMES)
def test_the_longest_vectors(name: str, table: Table) -> None:
    authority = setup(name, MOST_LENGTH)
    ones = np.ones((1, MOST_LENGTH), np.int64)
    sent = Encryptor(authority.public, 1, 2).encrypt(ones, 2)
    assert decrypt(sent, authority.derive(-ones), table, MOST_LENGTH)[0, 0] == -MOST_LENGTH
    for length in (0, MOST_LENGTH + 1):
        with raises(UsageError, "number-out-of-range", operation="A vector's length"):
            setup(name, length)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("sign", [1, -1])
def test_results_at_the_bound_and_just_beyond_it(name: str, sign: int, table: Table) -> None:
    authority = setup(name, 2)
    most = 255 * 127 * 2
    sent = Encryptor(authority.public, 8).encrypt(np.full((1, 2), 255))
    keys = authority.derive(np.full((1, 2), sign * 127))
    assert bound_for(8, keys.rows) == most
    assert decrypt(sent, keys, table, most)[0, 0] == sign * most
    with raises(RangeError, "logarithm-not-found", expected=f"{1 - most} to {most - 1}"):
        decrypt(sent, keys, table, most - 1)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(SCHEMES),
    st.integers(1, 31),
    st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 2**31)), min_size=1, max_size=6),
)
def test_any_bits(name: str, bits: int, signed: list[tuple[int, int]]) -> None:
    table = Table(14)
    most = 2**bits - 1
    message = np.array([[s * (v % (most + 1)) for s, v in signed]])
    weights = np.array([[s * (v % 3) for s, v in signed], [1] + [0] * (len(signed) - 1)])
    authority = setup(name, len(signed))
    sent = Encryptor(authority.public, bits).encrypt(message)
    keys = authority.derive(weights)
    decrypted = decrypt(sent, keys, table, bound_for(bits, keys.rows))
    assert (decrypted == message @ weights.T).all()


def _as_bytes(values: Any) -> curve.Bytes:
    return np.stack([np.frombuffer(int(v).to_bytes(32, "little"), np.uint8) for v in values])


def _decode_numbers(encoded: curve.Bytes) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in encoded]


def _encode_elements(points: list[ristretto.Element]) -> curve.Bytes:
    return np.stack([np.frombuffer(e.encoded(), np.uint8) for e in points])


def test_the_selective_scheme_agrees_with_pymife_both_ways(table: Table) -> None:
    from mife.single.selective.ddh import FeDDH, _FeDDH_C

    theirs = FeDDH.generate(3, ristretto.Group())
    public = PublicKey("selective", _encode_elements(theirs.mpk))
    ours = MasterKey(public, _as_bytes(theirs.msk)[None])
    assert (curve.multiply_base(ours.secret[0]) == public.points).all()
    x, y = [3, 0, -7], [5, -2, 11]
    keys, their_key = ours.derive(np.array([y])), FeDDH.keygen(y, theirs)
    assert _decode_numbers(keys.numbers[0]) == [int(their_key.sk)]
    ciphertext = FeDDH.encrypt(x, theirs)
    sent = scheme.Ciphertexts(
        "selective",
        public.fingerprint,
        _encode_elements([ciphertext.g_r, *ciphertext.c])[None].copy(),
    )
    assert decrypt(sent, keys, table, 1000).tolist() == [[-62]]
    own = Encryptor(public, 4).encrypt(np.array([x])).elements[0]
    read = [ristretto.decode_element(e.tobytes()) for e in own]
    assert FeDDH.decrypt(_FeDDH_C(read[0], read[1:]), theirs, their_key, (-100, 100)) == -62


def test_the_adaptive_scheme_is_what_its_paper_says(table: Table) -> None:
    authority = setup("adaptive", 2)
    s, t = (_decode_numbers(part) for part in authority.secret)
    h, *points = (ristretto.decode_element(p.tobytes()) for p in authority.public.points)
    for s_i, t_i, point in zip(s, t, points, strict=True):
        assert ristretto.multiply_point(s_i) + ristretto.multiply_point(t_i, h) == point
    keys = authority.derive(np.array([[3, -4]]))
    for part, row in zip((s, t), keys.numbers, strict=True):
        assert _decode_numbers(row) == [(3 * part[0] - 4 * part[1]) % curve.ORDER]
    r, x = 123456789, (5, 6)
    ciphertext = [ristretto.multiply_point(r), ristretto.multiply_point(r, h)]
    ciphertext += [
        ristretto.multiply_point(r, p) + ristretto.multiply_point(v)
        for p, v in zip(points, x, strict=True)
    ]
    sent = scheme.Ciphertexts(
        "adaptive", authority.public.fingerprint, _encode_elements(ciphertext)[None]
    )
    assert decrypt(sent, keys, table, 100).tolist() == [[-9]]


@pytest.mark.parametrize("name", SCHEMES)
def test_no_two_ciphertexts_share_an_element(name: str) -> None:
    authority = setup(name, 4)
    sent = Encryptor(authority.public, 8).encrypt(np.zeros((50, 4)))
    elements = {e.tobytes() for e in sent.elements.reshape(-1, 32)}
    assert len(elements) == 50 * (4 + HEADS[name])


@pytest.mark.parametrize("name", SCHEMES)
def test_keys_of_another_public_key_scheme_or_length_are_refused(name: str, table: Table) -> None:
    authority = setup(name, 3)
    sent = Encryptor(authority.public, 4).encrypt(np.ones((1, 3)))
    others = {
        "public key": setup(name, 3),
        "length": setup(name, 4),
        "scheme": setup(next(s for s in SCHEMES if s != name), 3),
    }
    for part, other in others.items():
        keys = other.derive(np.ones((1, other.public.length)))
        with raises(SecurityError, "encryption-key-mismatch", operation=part):
            decrypt(sent, keys, table, 100)
    with raises(UsageError, "shape-mismatch", operation="weights"):
        authority.derive(np.ones((1, 4)))


def test_a_tampered_ciphertext_gives_an_error_and_no_value(table: Table) -> None:
    authority = setup("selective", 3)
    sent = Encryptor(authority.public, 4).encrypt(np.ones((1, 3)))
    keys = authority.derive(np.ones((1, 3)))
    sent.elements[0, 2] = curve.multiply_base(curve.random_scalars(1))[0]
    with raises(RangeError, "logarithm-not-found"):
        decrypt(sent, keys, table, 100)
    sent.elements[0, 2] = 255
    with raises(DataError, "invalid-group-element", received="element 2"):
        decrypt(sent, keys, table, 100)


@pytest.mark.parametrize("name", SCHEMES)
def test_bytes_are_read_back(name: str, table: Table) -> None:
    authority = setup(name, 3)
    public = encoding.public_key_from_bytes(encoding.public_key_to_bytes(authority.public))
    assert public.fingerprint == authority.public.fingerprint
    sent = Encryptor(public, 4).encrypt(np.array([[1, 2, 3], [-4, 5, 6]]))
    keys = authority.derive(np.array([[1, 0, -2], [0, 0, 0]]))
    sent = encoding.ciphertexts_from_bytes(encoding.ciphertexts_to_bytes(sent))
    keys = encoding.keys_from_bytes(encoding.keys_to_bytes(keys))
    assert decrypt(sent, keys, table, 100).tolist() == [[-5, 0], [-16, 0]]
    heads = HEADS[name]
    assert len(encoding.ciphertexts_to_bytes(sent)) == 48 + 2 * 32 * (3 + heads)


@pytest.mark.parametrize("name", SCHEMES)
def test_broken_bytes_are_refused(name: str, seed: int) -> None:
    authority = setup(name, 3)
    sent = Encryptor(authority.public, 4).encrypt(np.ones((2, 3)))
    keys = authority.derive(np.array([[1, 0, -2], [0, 0, 0]]))
    whole: list[tuple[bytes, Callable[[bytes], Any]]] = [
        (encoding.public_key_to_bytes(authority.public), encoding.public_key_from_bytes),
        (encoding.ciphertexts_to_bytes(sent), encoding.ciphertexts_from_bytes),
        (encoding.keys_to_bytes(keys), encoding.keys_from_bytes),
    ]
    drawn = np.random.default_rng(seed)
    for data, read in whole:
        read(data)
        for size in {0, 1, 47, 48, 49, len(data) - 1, *drawn.integers(0, len(data), 10).tolist()}:
            with pytest.raises(DataError):
                read(data[:size])
        with pytest.raises(DataError):
            read(data + b"\0")
        # the head: magic, kind, scheme, 0, length and count; each case alters one of them
        for at, value in [(0, 1), (4, 2), (5, 9), (6, 9), (7, 1), (8, 255), (11, 0), (12, 255)]:
            with pytest.raises((DataError, UsageError)):
                read(data[:at] + bytes([value]) + data[at + 1 :])
        for other, _ in whole:
            if other is not data:
                with raises(DataError, "wrong-encoding-kind"):
                    read(other)


def test_numbers_of_a_key_and_elements_of_a_public_key_are_checked() -> None:
    authority = setup("selective", 2)
    data = bytearray(encoding.keys_to_bytes(authority.derive(np.array([[1, 2]]))))
    with raises(DataError, "scalar-not-reduced"):
        encoding.keys_from_bytes(bytes(data[:-1]) + b"\xff")
    data[52 + 4 : 52 + 8] = (7).to_bytes(4, "big")  # an entry in column 7
    with raises(DataError, "invalid-rows"):
        encoding.keys_from_bytes(bytes(data))
    public = bytearray(encoding.public_key_to_bytes(authority.public))
    with raises(DataError, "invalid-group-element", received="element 1"):
        encoding.public_key_from_bytes(bytes(public[:-32]) + b"\xff" * 32)
    public[20] ^= 1
    with raises(SecurityError, "fingerprint-mismatch"):
        encoding.public_key_from_bytes(bytes(public))


def test_an_encryptor_refuses_a_public_key_with_a_forged_element() -> None:
    points = setup("selective", 2).public.points.copy()
    points[1] = 1
    with raises(DataError, "invalid-group-element", operation="The public key"):
        Encryptor(PublicKey("selective", points), 8)
    points[1] = 0
    with raises(DataError, "neutral-element", received="element 1"):
        Encryptor(PublicKey("selective", points), 8)


@pytest.mark.parametrize(
    ("values", "error", "code", "fields"),
    [
        ([[1.0, float("nan")]], RangeError, "number-out-of-range", {"received": "NaN or infinite"}),
        ([[float("inf"), 1.0]], RangeError, "number-out-of-range", {"received": "NaN or infinite"}),
        ([[0.5, 1.0]], RangeError, "number-out-of-range", {"received": "not whole"}),
        ([[16, 0]], RangeError, "number-out-of-range", {"received": "beyond 15 in size"}),
        ([[0, -16]], RangeError, "number-out-of-range", {"received": "beyond 15 in size"}),
        ([[1e300, 0.0]], RangeError, "number-out-of-range", {"received": "beyond 15 in size"}),
        (
            np.array([[2**64 - 1, 0]], np.uint64),
            RangeError,
            "number-out-of-range",
            {"received": "beyond 15 in size"},
        ),
        (
            np.array([[-(2**63), 0]]),
            RangeError,
            "number-out-of-range",
            {"received": "beyond 15 in size"},
        ),
        ([["a", "b"]], UsageError, "not-a-number", {"operation": "Messages"}),
        ([[1 + 1j, 0]], UsageError, "not-a-number", {"operation": "Messages"}),
        ([[True, False]], UsageError, "not-a-number", {"operation": "Messages"}),
        ([[1, 2, 3]], UsageError, "shape-mismatch", {"operation": "messages"}),
        ([1, 2], UsageError, "shape-mismatch", {"operation": "messages"}),
        (np.empty((0, 2)), UsageError, "number-out-of-range", {"operation": "Elements of a batch"}),
    ],
)
def test_messages_that_are_no_whole_numbers_in_range_are_refused(
    values: Any, error: type[TfeBenchError], code: str, fields: dict[str, str]
) -> None:
    encryptor = Encryptor(setup("selective", 2).public, 4)
    with raises(error, code, **fields) as caught:
        encryptor.encrypt(values)
    if error is RangeError:
        assert "row 0, column" in str(caught.value)


def test_what_holds_secrets_does_not_show_them() -> None:
    authority = setup("adaptive", 2)
    keys = authority.derive(np.array([[1, 2]]))
    for thing in (authority, keys, authority.public):
        assert len(repr(thing)) < 100 and "[" not in repr(thing)
    assert not dataclasses.fields(MasterKey)[1].repr or "secret" not in repr(authority)


def test_an_unknown_scheme_is_told_with_the_nearest() -> None:
    with raises(UsageError, "unknown-name", received="selectiv") as caught:
        setup("selectiv", 3)
    assert 'Did you mean "selective"' in str(caught.value)


def test_rows_are_those_of_the_matrix(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    dense = drawn.integers(-3, 4, (5, 7)) * drawn.integers(0, 2, (5, 7))
    assert (Rows.from_dense(dense).to_dense() == dense).all()
    assert bound_for(8, Rows.from_dense(dense)) == np.abs(dense).sum(1).max() * 255
