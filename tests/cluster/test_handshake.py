"""Agreement of two workers, and the key of their session."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import raises
from tfe_bench.cluster import handshake
from tfe_bench.cluster.handshake import Hello, JobHello, KeyAgreement, StreamKeys
from tfe_bench.errors import ProtocolError, VersionMismatch


def _make_hello(party: int = 0, **other: Any) -> Hello:
    fields: dict[str, Any] = {
        "party": party,
        "version": "0.1.0",
        "abi": 1,
        "tensorflow": "2.21.0",
        "ring": 64,
        "fractional_bits": 16,
        "cluster": "c" * 64,
        "cluster_parts": "{}",
        "client": "analyst " + "a" * 64,
        "program": "d" * 64,
        "job": "e" * 32,
        "public_key": "00" * 32,
    }
    return Hello(**{**fields, **other})


def test_hellos_that_agree_pass() -> None:
    handshake.check_peer_hello(_make_hello(0), _make_hello(1), 1)
    handshake.check_peer_hello(
        _make_hello(0), _make_hello(1, tensorflow="2.21.9", public_key="11" * 32), 1
    )


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("version", "0.2.0"),
        ("abi", 2),
        ("tensorflow", "2.20.0"),
        ("ring", 128),
        ("fractional_bits", 8),
        ("cluster", "f" * 64),
        ("client", "analyst " + "b" * 64),
        ("program", "f" * 64),
        ("job", "f" * 32),
    ],
)
def test_every_field_that_differs_is_refused_with_both_values(field: str, other: Any) -> None:
    mine, theirs = _make_hello(0), _make_hello(2, **{field: other})
    with pytest.raises(VersionMismatch) as caught:
        handshake.check_peer_hello(mine, theirs, 2)
    text = str(caught.value)
    assert field in text and "(party 0)" in text and "(party 2)" in text
    for value in (getattr(mine, field), other):
        shown = handshake.minor_version(value) if field == "tensorflow" else str(value)
        assert shown[:24] in text
    assert caught.value.exit_code == 30


def test_no_field_is_left_unchecked() -> None:
    own = {"party", "public_key", "cluster_parts"}  # differ by definition, or only explain
    fields = {f.name for kind in (Hello, JobHello) for f in dataclasses.fields(kind)}
    assert fields == own | set(handshake._MUST_AGREE)


def test_a_hello_of_another_party_is_refused() -> None:
    with raises(ProtocolError, "unexpected-party", received=2, expected=1):
        handshake.check_peer_hello(_make_hello(0), _make_hello(2), 1)


def test_a_hello_survives_the_wire() -> None:
    assert Hello.decode(_make_hello(2).encode()) == _make_hello(2)


@pytest.mark.parametrize("blob", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{", b'{"party": 0}'])
def test_what_is_no_hello_is_refused(blob: bytes) -> None:
    with raises(ProtocolError, "malformed-message"):
        Hello.decode(blob)


_UNFIT: dict[str, Any] = {
    "null": None,
    "true": True,
    "a list": [1],
    "an object": {},
    "a fraction": 1.5,
    "60 deep": json.loads("[" * 60 + "]" * 60),
}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Hello)])
def test_a_field_of_another_type_is_no_hello(field: str) -> None:
    good = dataclasses.asdict(_make_hello())
    other = "1" if type(good[field]) is int else 1
    for value in (*_UNFIT.values(), other):
        with raises(ProtocolError, "malformed-message", operation=field):
            Hello.decode(json.dumps({**good, field: value}).encode())


@pytest.mark.parametrize("blob", [b"[" * 100_000, b'{"job": "' + b"x" * 70_000 + b'"}'])
def test_a_hello_is_small_and_flat(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        Hello.decode(blob)


@pytest.mark.parametrize("key", ["", "zz" * 32, "00" * 31, "00" * 32, "1" * 63])
def test_what_is_no_public_key_is_refused(key: str) -> None:
    mine = KeyAgreement()
    with raises(ProtocolError, "invalid-public-key"):
        mine.derive_chain(
            _make_hello(0, public_key=mine.public_key), _make_hello(1, public_key=key)
        )


@given(st.binary(max_size=200))
def test_random_bytes_are_no_hello(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        Hello.decode(blob)


def _derive_keys(change: dict[str, Any] | None = None) -> tuple[bytes, bytes]:
    a, b = StreamKeys(), StreamKeys()
    hello_a, hello_b = (
        _make_hello(0, public_key=a.start_exchange()),
        _make_hello(1, public_key=b.start_exchange()),
    )
    received_hello = dataclasses.replace(hello_b, **(change or {}))
    return a.derive_key(hello_a, received_hello), b.derive_key(hello_b, hello_a)


def test_both_sides_derive_one_key_of_16_bytes() -> None:
    first, second = _derive_keys()
    assert first == second
    assert len(first) == 16


def test_every_session_has_keys_of_its_own() -> None:
    assert len({_derive_keys()[0] for _ in range(20)}) == 20


def test_the_key_depends_on_the_whole_hello() -> None:
    # A field that is altered in transit results in two different keys.
    first, second = _derive_keys({"job": "0" * 32})
    assert first != second


def test_the_hello_carries_no_secret() -> None:
    agreement = KeyAgreement()
    hello = _make_hello(public_key=agreement.public_key)
    private = agreement._private.private_bytes_raw()
    assert private.hex() not in hello.encode().decode()
    assert set(json.loads(hello.encode())) == {f.name for f in dataclasses.fields(Hello)}


# ---- the chain of keys of one stream


class _Stream:
    """Both sides of a stream."""

    def __init__(self) -> None:
        self.keys = StreamKeys(), StreamKeys()

    def derive_keys(self, **other: Any) -> tuple[bytes, bytes]:
        """Return both sides' keys of the next job."""
        sides = self.keys
        hellos: list[Any] = []
        for party, side in enumerate(sides):
            if sides[0].is_exchange_due:
                hellos.append(_make_hello(party, public_key=side.start_exchange(), **other))
            else:
                hellos.append(_make_job_hello(party, chain=side.get_chain_tag(), **other))
        handshake.check_peer_hello(hellos[0], hellos[1], 1)
        return sides[0].derive_key(*hellos), sides[1].derive_key(*hellos[::-1])


def _make_job_hello(party: int = 0, **other: Any) -> JobHello:
    fields = {"client": "analyst", "program": "d" * 64, "job": "e" * 32, "chain": "f" * 32}
    return JobHello(party=party, **{**fields, **other})


def test_a_stream_has_another_key_for_each_job_and_both_sides_the_same() -> None:
    stream = _Stream()
    keys = [stream.derive_keys(job=f"{i:032x}") for i in range(200)]
    assert all(first == second and len(first) == 16 for first, second in keys)
    assert len({first for first, _ in keys}) == 200
    same = [stream.derive_keys() for _ in range(50)]  # (two jobs of one name: never the same key)
    assert len({first for first, _ in keys + same}) == 250


def test_the_keys_of_two_streams_have_nothing_in_common() -> None:
    keys = [stream.derive_keys()[0] for stream in (_Stream(), _Stream()) for _ in range(20)]
    assert len(set(keys)) == 40


def test_an_exchange_is_due_after_its_number_of_jobs_and_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, side = _Stream(), StreamKeys()
    assert side.is_exchange_due
    for _ in range(handshake.CHAIN_JOBS):
        stream.derive_keys()
        side = stream.keys[0]
    assert side.is_exchange_due
    with raises(ProtocolError, "malformed-message", operation="public_key"):
        side.get_chain_tag()  # the other side may not go on without a fresh key, either
    stream.derive_keys()
    assert not side.is_exchange_due
    monkeypatch.setattr(handshake, "CHAIN_SECONDS", -1.0)
    assert side.is_exchange_due


def test_a_step_overwrites_the_chain_key_that_gave_the_jobs_key() -> None:
    stream = _Stream()
    stream.derive_keys()
    side = stream.keys[0]
    chain, before = side._chain, bytes(side._chain)
    key, _ = stream.derive_keys()
    assert side._chain is chain and bytes(chain) != before
    assert key not in bytes(chain)
    side.erase_chain()
    assert bytes(chain) == bytes(32) and side.is_exchange_due


def test_a_stream_has_no_further_job_before_an_exchange_of_keys() -> None:
    for side in (StreamKeys(), _Stream().keys[0]):
        with raises(ProtocolError, "malformed-message", operation="public_key"):
            side.get_chain_tag()


@pytest.mark.parametrize("field", ["client", "program", "job", "chain"])
def test_a_field_of_a_further_job_that_differs_is_refused(field: str) -> None:
    mine, theirs = _make_job_hello(0), _make_job_hello(1, **{field: "0" * 32})
    with raises(VersionMismatch, "members-differ", operation=field):
        handshake.check_peer_hello(mine, theirs, 1)


def test_sides_that_have_taken_different_steps_do_not_start_a_job() -> None:
    stream = _Stream()
    stream.derive_keys()
    ahead = stream.keys[0]
    ahead.derive_key(_make_job_hello(0), _make_job_hello(1))
    with raises(VersionMismatch, "members-differ", operation="chain"):
        stream.derive_keys()


@pytest.mark.parametrize("field", ["client", "program", "job"])
def test_the_key_of_a_further_job_depends_on_each_field(field: str) -> None:
    stream = _Stream()
    stream.derive_keys()
    a, b = stream.keys
    tags = a.get_chain_tag(), b.get_chain_tag()
    own, other = (_make_job_hello(party, chain=tag) for party, tag in enumerate(tags))
    change: dict[str, Any] = {field: "0" * 32}
    received = dataclasses.replace(other, **change)
    assert a.derive_key(own, received) != b.derive_key(other, own)


def test_either_hello_is_told_by_its_fields() -> None:
    for hello in (_make_hello(1), _make_job_hello(1)):
        assert handshake.decode_hello(hello.encode()) == hello
    values = json.loads(_make_job_hello().encode())
    for field in values:
        if field != "chain":
            with raises(ProtocolError, "malformed-message", operation=field):
                handshake.decode_hello(json.dumps({**values, field: None}).encode())
    with raises(ProtocolError, "malformed-message"):
        Hello.decode(_make_job_hello().encode())


def test_the_tag_of_a_chain_discloses_neither_its_key_nor_a_jobs() -> None:
    stream = _Stream()
    key, _ = stream.derive_keys()
    side = stream.keys[0]
    tag = bytes.fromhex(side.get_chain_tag())
    assert tag not in bytes(side._chain) and tag != key


def test_the_program_digest_tells_programs_parameters_and_shapes_apart() -> None:
    base = ("sort", {"repeat": 1}, [["keys", [3], 0]])
    others = [
        ("max", {"repeat": 1}, [["keys", [3], 0]]),
        ("sort", {"repeat": 2}, [["keys", [3], 0]]),
        ("sort", {"repeat": 1}, [["keys", [4], 0]]),
        ("sort", {"repeat": 1}, [["keys", [3], 16]]),
        ("sort", {}, [["keys", [3], 0]]),
    ]
    digests = [handshake.program_digest(*each) for each in [base, *others]]
    assert len(set(digests)) == len(digests)
    assert handshake.program_digest("sort", {"a": 1, "b": 2}, []) == handshake.program_digest(
        "sort", {"b": 2, "a": 1}, []
    )
