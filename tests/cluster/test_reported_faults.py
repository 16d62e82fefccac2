"""Faults of jobs: a sealed job reports codes alone; what a peer reports is quoted as its word."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.cluster.conftest import wait_until
from tests.refusals import raises
from tfe_bench import errors
from tfe_bench.cluster import faults
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.transport import NOTICE, SessionLink
from tfe_bench.error_codes import CODES, DEFAULT_CODES
from tfe_bench.errors import ClusterError, PeerLost, RangeError, TfeBenchError, UsageError

if TYPE_CHECKING:
    from tests.cluster.conftest import Trio

SECRET = "the value 271828"
_X = {"x": PrivateInput(np.arange(3))}


@pytest.mark.parametrize("code", sorted({**CODES, **DEFAULT_CODES}))
def test_a_sealed_job_reports_a_code_of_a_short_list(code: str) -> None:
    error = UsageError(SECRET, code=code, operation=SECRET, received=SECRET, expected=SECRET)
    error.party = 2
    reduced = faults.reduce_to_code(error)
    assert reduced.code == (code if code in faults.FAULT_KINDS else "job-failed")
    assert type(reduced) is faults.FAULT_KINDS[reduced.code]
    assert reduced.party == 2
    assert SECRET not in str(reduced) + json.dumps(reduced.to_fields())
    assert faults.reduce_to_code(reduced).to_fields() == reduced.to_fields()


def test_the_list_is_short_and_of_known_codes() -> None:
    assert set(faults.FAULT_KINDS) <= {*CODES, *DEFAULT_CODES}
    assert len(faults.FAULT_KINDS) <= 30
    assert {kind.__name__ for kind in faults.FAULT_KINDS.values()} <= set(faults._REPORTED_KINDS)


@pytest.mark.parametrize("error", [ValueError(SECRET), OSError(5, SECRET), KeyError(SECRET)])
def test_an_error_of_python_is_reduced_too(error: Exception) -> None:
    reduced = faults.reduce_to_code(error)
    assert type(reduced) is ClusterError and reduced.code == "worker-failed"
    assert SECRET not in str(reduced)


def test_a_peers_report_is_quoted_bounded_and_printable() -> None:
    fields = {
        "error": "RangeError",
        "message": "\x1b[2J\nfine é" + "x" * 50_000,
        "code": "made-up-code",
        "operation": "\x07" * 1000,
        "received": ["x"],
        "party": True,
        "reporter": 2,
    }
    error = faults.decode_notice(json.dumps(fields).encode(), 1)
    assert type(error) is RangeError and error.code == RangeError.code
    assert str(error).startswith("Party 1 reported: \\x1b[2J\\nfine éxxx")
    assert len(str(error)) < 1100 and error.operation is not None and len(error.operation) <= 300
    assert str(error).isprintable() and error.operation.isprintable()
    assert (error.received, error.party, error.reporter) == (None, None, 1)
    assert len(faults.encode_notice(error)) < 4000


@pytest.mark.parametrize("lost", [0, 1, 2, None])
def test_a_lost_worker_is_the_word_of_the_peer_that_reports_it(lost: int | None) -> None:
    error = faults.decode_notice(faults.encode_notice(PeerLost(lost, SECRET)), 1)
    name = "a client" if lost is None else f"party {lost}"
    assert type(error) is PeerLost and error.party == lost
    assert str(error).startswith(f"Party 1 reported: Lost {name}.")
    reduced = faults.reduce_to_code(error)
    assert type(reduced) is PeerLost and "Party 1 reported" in str(reduced)
    assert SECRET not in str(error) + str(reduced)


def test_a_notice_that_is_too_long_is_one_without_a_reason() -> None:
    blob = json.dumps({"error": "UsageError", "message": "x" * (1 << 16)}).encode()
    assert faults.decode_notice(blob, 2).code == "session-ended"
    assert faults.decode_notice(b"[" * 10_000, 2).code == "session-ended"


# ---- in workers


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Provide all notices that workers send."""
    sent: list[bytes] = []
    pump = SessionLink._pump_outgoing

    async def record(self: SessionLink, peer: int, write: Callable[[bytes], Any]) -> None:
        async def write_recorded(blob: bytes) -> None:
            if blob.startswith(NOTICE):
                sent.append(blob)
            await write(blob)

        await pump(self, peer, write_recorded)

    monkeypatch.setattr(SessionLink, "_pump_outgoing", record)
    yield sent


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("order", ["late_fail", "late_error"])
def test_a_fault_of_a_computing_job_has_words_only_if_it_is_not_sealed(
    trio: Trio,
    notices: list[bytes],
    caplog: pytest.LogCaptureFixture,
    is_sealed: bool,
    order: str,
) -> None:
    client = trio.client("analyst")
    client.sealed = is_sealed
    with caplog.at_level(logging.WARNING, "tfe_bench.worker"):
        with pytest.raises(TfeBenchError) as caught:
            client.run("plain", {"square": 1, order: SECRET}, _X)
        wait_until(trio.idle, "the job has ended", 20)
    texts = [str(caught.value), json.dumps(caught.value.to_fields())]
    texts += [notice.decode(errors="replace") for notice in notices]
    if is_sealed:
        assert caught.value.code == ("job-failed" if order == "late_fail" else "worker-failed")
        assert "codes alone" in texts[0] or "code alone" in texts[0]
        assert not [text for text in texts if SECRET in text or "As ordered" in text]
        assert not any("ArithmeticError" in text for text in texts)
    elif order == "late_fail":
        assert SECRET in texts[0] and type(caught.value) is UsageError
    else:  # (the text of another package's error leaves no worker)
        assert not [text for text in texts if SECRET in text]
    if order == "late_fail":  # an operator sees it
        assert any(SECRET in record.getMessage() for record in caplog.records)


def test_a_refusal_before_the_first_graph_keeps_its_words(trio: Trio) -> None:
    client = trio.client("analyst")
    client.sealed = True
    with raises(UsageError, "invalid-usage") as caught:
        client.run("plain", {"fail": True}, _X)
    assert "As ordered." in str(caught.value)
    np.testing.assert_array_equal(client.run("plain", {"square": 1}, _X).outputs["x"], [0, 1, 4])


@pytest.mark.parametrize("kind", sorted(faults._REPORTED_KINDS))
@pytest.mark.parametrize("is_sealed", [True, False])
def test_an_error_that_a_peer_makes_up_is_reported_as_its_word(
    trio: Trio, monkeypatch: pytest.MonkeyPatch, kind: str, is_sealed: bool
) -> None:
    """Party 2 ends the session by a notice of its own words; parties 0 and 1 quote it."""
    encode, links = faults.encode_notice, []

    def make_up(error: TfeBenchError) -> bytes:
        if "one worker" in str(error) or (error.code == "job-failed" and error.reporter is None):
            made_up: Any = getattr(errors, kind)
            made_up = made_up(0, SECRET) if kind == "PeerLost" else made_up(SECRET)
            links.append(made_up)
            return encode(made_up)
        return encode(error)

    monkeypatch.setattr(faults, "encode_notice", make_up)
    failed: list[TfeBenchError] = []
    fail = SessionLink.fail

    def record(self: SessionLink, cause: TfeBenchError) -> None:
        if self.party != 2:
            failed.append(cause)
        fail(self, cause)

    monkeypatch.setattr(SessionLink, "fail", record)
    client = trio.client("analyst")
    client.sealed = is_sealed
    with pytest.raises(TfeBenchError) as caught:
        client.run("plain", {"square": 1, "fail_at": 2}, _X)
    wait_until(trio.idle, "the job has ended", 20)
    assert links
    quoted = [cause for cause in failed if cause.reporter == 2]
    assert quoted and all(str(cause).startswith("Party 2 reported: ") for cause in quoted)
    assert {type(cause).__name__ for cause in quoted} == {kind}
    if is_sealed:
        assert SECRET not in str(caught.value)
