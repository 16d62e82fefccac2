"""A client that sends inconsistent shares: detected before its input is used."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cluster.lies import Change, alter_header, alter_messages
from tests.refusals import raises
from tfe_bench.cluster import wire
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.requests import PrivateInput
from tfe_bench.cluster.worker import results
from tfe_bench.cluster.worker.inputs import check_input_copies
from tfe_bench.errors import (
    PolicyError,
    ProtocolError,
    TfeBenchError,
    UsageError,
    VersionMismatch,
)
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared

KEYS = np.arange(40, dtype=np.int64)[::-1].copy()


def _check_refused(
    monkeypatch: pytest.MonkeyPatch,
    cluster: LocalCluster,
    lies: dict[int, Change],
    kind: type[TfeBenchError] = ProtocolError,
    code: str = "inconsistent-shares",
) -> None:
    """Check that the cluster refuses altered messages and stays usable."""
    with monkeypatch.context() as patch:
        alter_messages(patch, cluster, lies)
        with raises(kind, code):
            cluster.run("sort", {}, {"keys": PrivateInput(KEYS)})
    outputs = cluster.run("sort", {}, {"keys": PrivateInput(KEYS)}).outputs
    np.testing.assert_array_equal(outputs["keys"], np.sort(KEYS))


def _in_data(change: Callable[[bytes], bytes]) -> Change:
    return lambda blob: [b"D" + change(blob[1:])] if blob.startswith(b"D") else [blob]


def _alter_seed(name: str, value: str) -> Change:
    return alter_header(lambda header: header["inputs"][0]["seeds"].update({name: value}))


@pytest.mark.parametrize("party", [1, 2])
def test_different_masked_inputs_at_the_two_evaluators_are_refused(
    monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster, party: int
) -> None:
    def flip(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    _check_refused(monkeypatch, shared_cluster, {party: _in_data(flip)})


@pytest.mark.parametrize(("party", "seed"), [(0, "l1"), (0, "l2"), (1, "l1"), (2, "l2")])
def test_different_seeds_at_dealer_and_evaluator_are_refused(
    monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster, party: int, seed: str
) -> None:
    lies = {party: _alter_seed(seed, "ab" * 16)}
    _check_refused(monkeypatch, shared_cluster, lies)


@pytest.fixture(scope="module")
def submission(shared_cluster: LocalCluster) -> list[bytes]:
    """Provide an honest client's submission to party 1."""
    sent: list[bytes] = []

    def record(blob: bytes) -> list[bytes]:
        sent.append(blob)
        return [blob]

    with pytest.MonkeyPatch.context() as patch:
        alter_messages(patch, shared_cluster, {1: record})
        shared_cluster.run("sort", {}, {"keys": PrivateInput(KEYS)})
    return sent


def _submit_blobs(cluster: LocalCluster, blobs: list[bytes]) -> dict[str, Any]:
    """Return party 1's first event after a submission."""
    call = wire.stub(cluster.client._channels[1], wire.JOB)(iter(blobs), timeout=30)
    event = wire.JobStreamReader(call).next_event()
    call.cancel()
    assert event is not None
    return event


def test_an_honest_submission_is_taken(
    shared_cluster: LocalCluster, submission: list[bytes]
) -> None:
    assert _submit_blobs(shared_cluster, submission)["event"] == "accepted"


@pytest.mark.parametrize(
    "lie",
    [
        _alter_seed("m", "00" * 16),
        _alter_seed("l2", "00" * 16),
        _alter_seed("l1", "00" * 8),
        _alter_seed("l1", "zz"),
        alter_header(lambda header: header["inputs"][0].update(seeds={})),
        alter_header(lambda header: header["inputs"][0].update(seeds=None)),
        alter_header(lambda header: header["inputs"][0].update(shape=[-1, -40])),
        alter_header(lambda header: header["inputs"][0].update(shape="many")),
        alter_header(lambda header: header.update(inputs=7)),
        alter_header(lambda header: header.pop("job")),
        alter_header(lambda header: header.update(event="progress")),
        lambda blob: [b"E{"] if blob.startswith(b"E") else [blob],
        lambda blob: [b""] if blob.startswith(b"E") else [blob],
    ],
    ids=[
        *("unknown-part", "third-part", "short-seed", "no-hex", "no-seeds", "null-seeds"),
        *("negative-shape", "text-shape", "no-list", "no-name", "no-submission"),
        *("no-json", "empty"),
    ],
)
def test_a_malformed_submission_is_refused(
    shared_cluster: LocalCluster, submission: list[bytes], lie: Change
) -> None:
    answer = _submit_blobs(
        shared_cluster, [changed for blob in submission for changed in lie(blob)]
    )
    assert answer["event"] == "error"
    assert type(wire.decode_error_event(answer)) is ProtocolError
    shared_cluster.run("sort", {}, {"keys": PrivateInput(KEYS)})


@pytest.mark.parametrize(
    "change",
    [lambda data: data + bytes(8), lambda data: data[:-8] + bytes(17)],
    ids=["longer", "uneven"],
)
def test_an_input_of_another_length_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    shared_cluster: LocalCluster,
    change: Callable[[bytes], bytes],
) -> None:
    lies = {2: _in_data(change)}
    _check_refused(monkeypatch, shared_cluster, lies, code="malformed-message")


def test_other_parameters_at_one_worker_are_refused(
    monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster
) -> None:
    lies = {2: alter_header(lambda header: header["parameters"].update(repeat=2))}
    _check_refused(monkeypatch, shared_cluster, lies, VersionMismatch, "members-differ")


def test_another_shape_at_one_worker_is_refused(
    monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster
) -> None:
    lies = {0: alter_header(lambda header: header["inputs"][0].update(shape=[39]))}
    _check_refused(monkeypatch, shared_cluster, lies, VersionMismatch, "members-differ")


def test_a_shape_beyond_the_limit_is_refused_before_its_data_is_read(
    monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster
) -> None:
    huge = alter_header(lambda header: header["inputs"][0].update(shape=[1 << 30]))
    _check_refused(
        monkeypatch, shared_cluster, dict.fromkeys(range(3), huge), PolicyError, "too-large"
    )


# ---- comparisons of copies


class _RecordingParty:
    """A party that writes its messages to a board, from which its peers read them."""

    def __init__(self, index: int, board: dict[tuple[int, int], bytes], ready: threading.Barrier):
        self.index, self.dealer = index, 0
        self._board, self._ready = board, ready

    def exchange_each(self, payloads: dict[int, bytes]) -> dict[int, bytes]:
        for peer, payload in payloads.items():
            self._board[self.index, peer] = payload
        self._ready.wait(10)
        return {peer: self._board[peer, self.index] for peer in payloads}


def _list_comparisons(seed1: bytes, seed2: bytes, masked: bytes) -> dict[tuple[int, int], bytes]:
    """Return the messages of each pair of parties, by (from, to)."""
    held = [{"l1": seed1, "l2": seed2}, {"l1": seed1}, {"l2": seed2}]
    board: dict[tuple[int, int], bytes] = {}
    ready = threading.Barrier(3)
    threads = [
        threading.Thread(
            target=check_input_copies,
            args=(
                _RecordingParty(p, board, ready),
                "x",
                held[p],
                np.frombuffer(masked if p else b"", np.int64),
            ),
        )
        for p, m in enumerate((b"", masked, masked))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert set(board) == {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}
    return board


def test_only_the_two_holders_of_a_part_compare_it() -> None:
    one = b"1" * 16, b"2" * 16, b"m" * 24
    base = _list_comparisons(*one)
    changed = [
        _list_comparisons(*(b"x" * len(part) if i == j else part for j, part in enumerate(one)))
        for i in range(3)
    ]
    differences = [{pair for pair in base if base[pair] != other[pair]} for other in changed]
    # The dealer could search a small input by a digest of m: it never receives one.
    assert differences == [{(0, 1), (1, 0)}, {(0, 2), (2, 0)}, {(1, 2), (2, 1)}]
    assert all(len(digest) == hashlib.sha256().digest_size for digest in base.values())
    assert base[1, 2] == base[2, 1]


# ---- results


def _count_sent_data(party: int, value: Shared) -> int:
    return sum(len(m) - 1 for m in results.encode_result_share(party, "y", value)[1:])


@pytest.mark.parametrize("dealer", range(3))
@pytest.mark.parametrize("limbs", [1, 2])
def test_a_result_takes_a_word_of_each_worker(limbs: int, dealer: int) -> None:
    words = np.arange(6).reshape(3, 2)
    value = Shared(words, words, words, dealer, 16, limbs)
    for party in range(3):
        assert _count_sent_data(party, value) == words.nbytes
        assert results.count_held_result_bytes(party, {"y": value}) == words.nbytes


@pytest.mark.parametrize("party", range(3))
def test_a_result_for_a_client_is_over_the_whole_ring_or_refused(party: int) -> None:
    """Check that other bits of a word, which may contain more than the result, are not sent."""
    words = np.arange(4)
    refused: list[Any] = [
        *(Shared(words, words, words, bits=bits) for bits in range(2, 64)),
        *(Shared(words, words, words, limbs=2, bits=bits) for bits in range(65, 128)),
        MaskedBits(words, words, 4),
        EvaluatorBits(words, None, 4),
        words,
    ]
    for value in refused:
        with raises(UsageError, "unsupported-ring") as error:
            results.encode_result_share(party, "y", value)
        assert "1 2" not in str(error.value)
    for value in (Shared(words, words, words), Shared(words, words, words, limbs=2)):
        assert results.encode_result_share(party, "y", value)
