"""Receipts of running workers: exchanged, recorded, checked by clients; they fail no job."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.conftest import Trio, wait_until
from tests.cluster.endings import INPUTS, end_by_leaving, end_in_failure
from tests.refusals import raises
from tfe_bench import tables
from tfe_bench.cluster import receipts, wire
from tfe_bench.cluster.job_receipts import JobReceipt
from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.cluster.receipt_files import read_receipt_lines, verify_receipt_files
from tfe_bench.cluster.receipts import JOB, PEERS, Line
from tfe_bench.cluster.requests import JobResult, PrivateInput
from tfe_bench.cluster.worker import receipts as worker_receipts
from tfe_bench.cluster.worker.receipt_file import list_receipt_files
from tfe_bench.errors import PolicyError, ProtocolError, TfeBenchError

LIMITS = {"max_elements": 1000}


def _files(trio: Trio, party: int) -> list[Path]:
    folder = trio.workers[party]._host.policy.receipts
    assert folder is not None
    return list_receipt_files(folder)


def _lines(trio: Trio, party: int, kind: str, job: str | None = None) -> list[dict[str, Any]]:
    """Return a worker's lines of a kind, and of one job."""
    lines = [line for path in _files(trio, party) for _, line, _ in read_receipt_lines(path)]
    bodies = [dict(line.body) for line in lines if line.body["kind"] == kind]
    names = [body["job"] if kind == PEERS else body.get("facts", {})["job"] for body in bodies]
    return [body for body, name in zip(bodies, names, strict=True) if job in (None, name)]


def _recorded_codes(trio: Trio, party: int, job: str) -> dict[int, str]:
    """Return what a worker has recorded of its peers' receipts of a job."""
    [body] = wait_until(lambda: _lines(trio, party, PEERS, job), "the receipts are recorded")
    return {peer: code for peer, code, *_ in body["receipts"]}


def _run(trio: Trio, name: str = "analyst", job: str | None = None, **parameters: Any) -> JobResult:
    client = trio.client(name)
    try:
        return client.run("plain", parameters, INPUTS, None, job)
    finally:
        client.close()


def test_a_client_gets_the_receipt_that_three_workers_keep(trio: Trio) -> None:
    receipt = _run(trio).receipt
    assert isinstance(receipt, JobReceipt) and receipt.is_verified
    facts = receipt.facts
    assert (facts["client"], facts["program"]) == ("analyst", "plain")
    assert facts["inputs"] == ["x"] and facts["recipients"] == ["analyst"]
    assert facts["opened"] == facts["stored"] == [] and facts["charged"] == {}
    for party in range(3):
        [body] = _lines(trio, party, JOB, facts["job"])
        assert body["facts"] == facts and body["end"] == "done"
        others = {peer: "" for peer in range(3) if peer != party}
        assert _recorded_codes(trio, party, facts["job"]) == others
    paths = [path for party in range(3) for path in _files(trio, party)]
    chains = verify_receipt_files(paths, trio.config)
    for chain, seal in zip(chains, receipt.seals, strict=True):
        assert chain.places[seal.number][1] == seal.signature
    kept = [receipts.parse_line(line.encode(), p) for p, line in
            enumerate(receipt.to_json().splitlines())]  # fmt: skip
    assert [line.seal for line in kept] == list(receipt.seals)


def test_a_receipt_takes_at_most_200_bytes_of_a_workers_answer(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    encode = wire.event

    def measure(kind: str, **fields: Any) -> bytes:
        if kind == "done":
            sizes.append(len(encode(kind, **fields)) - len(encode(kind)))
        return encode(kind, **fields)

    monkeypatch.setattr(wire, "event", measure)
    _run(trio)
    assert len(sizes) == 3 and max(sizes) <= 200


def test_lines_of_jobs_on_different_inputs_differ_in_names_and_times_alone(trio: Trio) -> None:
    """Also the messages between workers have one length, up to digits of the lines' numbers."""
    seen: list[dict[str, Any]] = []
    client = trio.client("analyst")
    for value in (0, 2**62):
        words = np.full(6, value, np.int64)
        receipt = client.run("plain", {"square": True}, {"x": PrivateInput(words)}).receipt
        assert receipt is not None
        seen.append({**receipt.facts, "job": ""})
        for party in range(3):
            [body] = _lines(trio, party, JOB, receipt.facts["job"])
            assert set(body) == {"kind", "began", "end", "facts"}
    assert seen[0] == seen[1]
    assert not any(str(2**62) in path.read_text() for path in _files(trio, 0))


@pytest.mark.parametrize("fault", ["key", "facts"])
def test_a_client_refuses_a_receipt_that_does_not_fit(
    trio: Trio, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, job = trio.workers[1]._host.receipts, os.urandom(16).hex()
    name, value, code = {
        "key": ("_signer", receipts.ReceiptSigner(), receipts.WRONG_SIGNATURE),
        "facts": ("_cluster", "another", receipts.DIFFERS),
    }[fault]
    appended: list[Line] = []
    with monkeypatch.context() as patch:
        patch.setattr(book, name, value)
        if fault == "key":  # (this worker's own file stays verifiable for the other tests)
            patch.setattr(book._file, "append_line", appended.append)
        with raises(ProtocolError, "receipt-invalid", operation="receipt", party=1):
            _run(trio, job=job)
        for party in (0, 2):
            assert _recorded_codes(trio, party, job)[1] == code
            assert _lines(trio, party, JOB, job)[0]["end"] == "done"
        wait_until(lambda: not book._exchanges and book._ended.empty(), "its own lines")
        time.sleep(0.1)
    result = _run(trio)
    np.testing.assert_array_equal(result.outputs["x"], INPUTS["x"].ring)


@pytest.mark.parametrize("row", [None, [], [1, 2, 3, 4, 5], "x", {"a": 1}])
def test_a_client_refuses_a_malformed_receipt(
    trio: Trio, row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfe_bench.cluster.worker import job_runner

    def encode(line: Line) -> dict[str, Any]:
        return {} if row is None else {"receipt": row}

    monkeypatch.setattr(job_runner, "encode_client_fields", encode)
    with raises(ProtocolError, "receipt-invalid", operation="receipt", party=0):
        _run(trio)


@pytest.mark.parametrize(
    "message, code",
    [
        (b"", receipts.MISSING),
        (b"{}", receipts.MISSING),
        (b"[1]", receipts.MALFORMED),
        (b"\xff" * 100, receipts.MALFORMED),
        (b"[" * (1 << 21), receipts.MALFORMED),
    ],
    ids=["none", "empty", "list", "binary", "long"],
)
def test_a_workers_bad_message_is_recorded_and_fails_no_job(
    trio: Trio, message: bytes, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, job = trio.workers[2]._host.receipts, os.urandom(16).hex()
    start = book.start_exchange

    def start_badly(jobs: Any) -> Any:
        exchange = start(jobs)
        exchange.message = message
        return exchange

    with monkeypatch.context() as patch:
        patch.setattr(book, "start_exchange", start_badly)
        assert _run(trio, job=job).receipt is not None
        for party in (0, 1):
            assert _recorded_codes(trio, party, job) == {2: code, 1 - party: ""}
    # the streams serve the next job
    assert _recorded_codes(trio, 0, _run(trio).receipt.facts["job"]) == {1: "", 2: ""}  # type: ignore[union-attr]


def test_failed_cancelled_and_refused_jobs_have_lines_with_their_codes(trio: Trio) -> None:
    def last_ends() -> list[str]:
        wait_until(trio.idle, "all jobs have ended")
        return [_lines(trio, party, JOB)[-1]["end"] for party in range(3)]

    with pytest.raises(TfeBenchError):
        _run(trio, fail=True)
    assert last_ends() == ["invalid-usage"] * 3
    before = [len(_lines(trio, party, JOB)) for party in range(3)]
    client = trio.client("analyst")
    large = {"x": PrivateInput(np.zeros(1001, np.int64))}
    with raises(TfeBenchError, "too-large"):
        client.run("plain", {}, large)
    wait_until(
        lambda: [len(_lines(trio, p, JOB)) for p in range(3)] == [n + 1 for n in before],
        "each worker has recorded the refusal",
    )
    refused = _lines(trio, 0, JOB)[-1]
    assert refused["end"] == "too-large" and refused["facts"]["client"] == "analyst"
    end_in_failure(client)
    assert all(end != "done" for end in last_ends())
    end_by_leaving(client)
    wait_until(lambda: set(last_ends()) <= {"job-cancelled", "job-ended-by-peer"}, "the ends")
    paths = [path for party in range(3) for path in _files(trio, party)]
    assert verify_receipt_files(paths, trio.config)


def test_each_job_of_a_batch_has_its_own_receipt(trio: Trio) -> None:
    inputs = {"x": PrivateInput(np.arange(4, dtype=np.int64))}
    clients = [trio.client(name) for name in ("analyst", "guest", "analyst")]
    results: dict[int, JobResult] = {}

    def run(i: int, **parameters: Any) -> None:
        results[i] = clients[i].run("batched" if i else "plain", parameters, inputs)

    threads = [threading.Thread(target=run, args=(0,), kwargs={"wait": 1})]
    threads[0].start()
    wait_until(lambda: trio.workers[0]._host.jobs.list_jobs(), "the first job")
    threads += [threading.Thread(target=run, args=(i,)) for i in (1, 2)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert "batched" in results[1].measured[0]
    for i, name in ((1, "guest"), (2, "analyst")):
        receipt = results[i].receipt
        assert receipt is not None and receipt.facts["client"] == name
        assert _recorded_codes(trio, 1, receipt.facts["job"]) == {0: "", 2: ""}


def test_two_hundred_receipts_take_little_and_leave_nothing(trio: Trio) -> None:
    """Prints the processor time of a job's receipts at a worker; the workers share this process."""
    _run(trio)
    wait_until(trio.idle, "all jobs have ended")

    def held() -> tuple[int, int, int]:
        books = [worker._host.receipts for worker in trio.workers]
        wait_until(lambda: not any(book._exchanges for book in books), "all are recorded")
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(_files(trio, 0))

    book = trio.workers[0]._host.receipts
    before, used = held(), 0.0
    append = book._append_body

    def measure(body: Any) -> Line:
        nonlocal used
        started = time.thread_time()
        line = append(body)
        used += time.thread_time() - started
        return line

    book._append_body = measure  # type: ignore[method-assign]
    client = trio.client("analyst")
    for _ in range(200):
        client.run("plain", {}, INPUTS)
    client.close()
    wait_until(trio.idle, "all jobs have ended")
    after = held()
    book._append_body = append  # type: ignore[method-assign]
    print(f"{1e6 * used / 200:.0f} us of processor time for two lines")
    assert after[0] <= before[0] + 12 and after[1] <= before[1] + 12 and after[2] == before[2]


def test_a_stopped_workers_files_are_intact(trio: Trio) -> None:
    _run(trio)
    trio.restart(1)
    assert _run(trio).receipt is not None
    chain = verify_receipt_files(_files(trio, 1), trio.config)[0]
    assert chain.ends["done"] >= 2


# ---- clusters of processes


def test_programs_of_a_cluster_have_receipts(shared_cluster: LocalCluster) -> None:
    keys = {"keys": PrivateInput(np.arange(20, dtype=np.int64))}
    receipt = shared_cluster.run("sort", {"algorithm": "all-pairs"}, keys).receipt
    assert receipt is not None and receipt.is_verified
    [opened] = receipt.facts["opened"]
    assert opened[0] == "comparisons of shuffled keys"
    assert all(abs(seal.at - receipt.seals[0].at) < 60_000 for seal in receipt.seals)
    assert all(0 <= seal.at - began < 600_000 for seal, began in
               zip(receipt.seals, receipt.began, strict=True))  # fmt: skip


def test_a_cluster_without_tls_has_unverified_receipts() -> None:
    with LocalCluster(tls_on=False) as cluster:
        keys = {"keys": PrivateInput(np.arange(20, dtype=np.int64))}
        receipt = cluster.run("sort", {}, keys).receipt
        assert receipt is not None and not receipt.is_verified


def test_a_querys_receipt_names_tables_rights_and_the_charged_budget(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlglot")
    received: list[JobResult] = []

    def open_tables(name: str) -> Any:
        client = trio.client(name)
        run = client.run

        def keep_result(*arguments: Any, **more: Any) -> JobResult:
            received.append(run(*arguments, **more))
            return received[-1]

        monkeypatch.setattr(client, "run", keep_result)
        return tables(client)

    rows = {"k": list(range(40)), "v": list(range(40))}
    bounds = {"k": "int[0,63]", "v": "int[0,100]"}
    open_tables("analyst").put(
        *("visits", rows), types=bounds, clients=["guest"], rights=["v:aggregate"], budget="0.5"
    )
    put = received[-1].receipt
    assert put is not None and put.facts["recipients"] == [] and put.facts["client"] == "analyst"
    [row] = put.facts["stored"]
    assert row[:3] == ["table", "visits", "analyst"] and row[4:] == ["stored"]
    guest = open_tables("guest")
    guest.sql("select sum(v) s from visits", rho="0.125").run()
    query = received[-1].receipt
    assert query is not None and query.facts["recipients"] == ["guest"]
    assert query.facts["charged"] == {"visits": "0.125"}
    [used] = query.facts["stored"]
    assert used == ["table", "visits", "analyst", row[3], "by name", "v:aggregate"]
    with raises(PolicyError, "missing-right"):
        guest.sql("select k from visits", rho="0.1").run()
    for party in range(3):
        [body] = _lines(trio, party, JOB, query.facts["job"])
        assert body["facts"]["charged"] == {"visits": "0.125"}


def test_receipts_have_public_types_alone(trio: Trio) -> None:
    _run(trio)
    for party in range(3):
        for path in _files(trio, party):
            for line in path.read_bytes().splitlines():
                for value in _walk(json.loads(line)):
                    assert isinstance(value, (str, int, type(None)))
                    assert not isinstance(value, float) or math.isfinite(value)
    assert {field.name for field in dataclasses.fields(JobReceipt)} == {
        *("facts", "began", "seals", "is_verified")
    }
    assert worker_receipts.MOST_EXCHANGED < wire.MOST_MESSAGE_BYTES


def _walk(value: Any) -> Any:
    children = value.values() if isinstance(value, dict) else value
    for child in children:
        if isinstance(child, (dict, list)):
            yield from _walk(child)
        else:
            yield child
