"""Receipts: each change of a worker's file is found, and its line named."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.receipt_books import Books, exchange_receipts, make_jobs
from tests.refusals import raises
from tfe_bench.cluster import job_receipts, receipts
from tfe_bench.cluster.job_use import JobUse
from tfe_bench.cluster.receipt_files import Chain, select_receipts, verify_receipt_files
from tfe_bench.cluster.worker import receipts as worker_receipts
from tfe_bench.errors import (
    ConfigError,
    DataError,
    PolicyError,
    SecurityError,
    UsageError,
)
from tfe_bench.protocols.session.openings import Opening


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    """Provide three books."""
    three = Books(tmp_path)
    yield three
    three.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """Provide three closed books with the lines of three jobs."""
    three = Books(tmp_path_factory.mktemp("written"))
    for client in ("analyst", "bank", "analyst"):
        three.run_job(client)
    three.close()
    return three


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """Provide three closed books with the lines of one job."""
    three = Books(tmp_path_factory.mktemp("short"))
    three.run_job()
    three.close()
    return three


def _copy(books: Books, folder: Path, party: int, lines: list[bytes] | None = None) -> Path:
    """Return a copy of a party's file, with other lines."""
    path = folder / f"copy{party}.jsonl"
    path.write_bytes(b"".join(books.lines(party) if lines is None else lines))
    return path


def _refused_line(error: pytest.ExceptionInfo[SecurityError]) -> int:
    assert error.value.code == "receipts-not-intact"
    return int(str(error.value.received).removeprefix("line "))


def _find_fault(*paths: Path) -> tuple[str, int]:
    """Return the text and the line of the first fault."""
    with pytest.raises(SecurityError) as error:
        verify_receipt_files(paths)
    line = _refused_line(error)
    assert f"{error.value.operation}, line {line}: " in str(error.value)
    return str(error.value), line


def test_files_are_intact_alone_and_together(written: Books) -> None:
    paths = [path for party in range(3) for path in written.files(party)]
    chains = verify_receipt_files(paths)
    assert [chain.party for chain in chains] == [0, 1, 2]
    for chain, path in zip(chains, paths, strict=True):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert chain.ends == {"done": 3} and not chain.codes and not chain.notes
        assert len(chain.places) == 7 and len(chain.witnesses) == 6
        assert verify_receipt_files([path], written.config)[0].places == {
            number: (place._replace(file=0), signature)
            for number, (place, signature) in chain.places.items()
        }
    assert verify_receipt_files(paths[::-1], written.config)


def test_a_file_cut_at_any_byte_is_named(short: Books, tmp_path: Path) -> None:
    """Alone if the cut is inside of a line, else with the two other files."""
    party = 2
    whole = short.files(party)[0].read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    others = [short.files(p)[0] for p in range(3) if p != party]
    path = tmp_path / "cut.jsonl"
    kinds = [json.loads(line)["kind"] for line in short.lines(party)]
    last_job = max(i for i, kind in enumerate(kinds) if kind == "job")
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size == 0:
            assert "the file is empty" in _find_fault(path)[0]
        elif size not in ends:
            text, line = _find_fault(path)
            assert "the line is cut after" in text
            assert line == 1 + sum(end < size for end in ends)
        else:
            assert verify_receipt_files([path])
            remaining = ends.index(size) + 1
            if remaining <= last_job:  # (the last line is known to its worker alone)
                text, line = _find_fault(path, *others)
                assert "were removed, or their file" in text and line == remaining


def test_each_edited_byte_is_found(short: Books, tmp_path: Path) -> None:
    lines = short.lines(1)
    for number, line in enumerate(lines, 1):
        for position in range(0, len(line), 7):
            edited = bytearray(line)
            edited[position] = ord("x") if line[position] != ord("x") else ord("y")
            changed = [*lines[: number - 1], bytes(edited), *lines[number:]]
            text, found = _find_fault(_copy(short, tmp_path, 1, changed))
            assert found == number, (number, position, text)


Change = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    "change, text, line",
    [
        (lambda x: [*x[:2], x[3], x[2], *x[4:]], "lines were reordered", 3),
        (lambda x: [x[0], x[2], x[1], *x[3:]], "lines were reordered", 2),
        (lambda x: [*x[:2], *x[3:]], "record 3 before this line were removed", 3),
        (lambda x: [*x[:2], *x[5:]], "records 3 to 5 before this line were removed", 3),
        (lambda x: x[1:], "does not begin with a start line", 1),
        (lambda x: [*x[:3], x[2], *x[3:]], "lines were reordered: this is record 3", 4),
        (lambda x: [*x, x[0]], "lines were reordered: this is record 1", 8),
        (lambda x: [*x[:3], b"\n", *x[3:]], "the line was altered: it is not JSON", 4),
        (lambda x: [*x[:3], b" " + x[3], *x[4:]], "not in the form in which workers write", 4),
        (lambda x: [*x[:3], b"{}\n"], "its fields are not those of a receipt", 4),
        (lambda x: [*x[:3], b"[" * 9999 + b"\n"], "it is not JSON", 4),
        (lambda x: [*x[:3], b"1" * (2 << 20) + b"\n"], "cut after", 4),
    ],
)
def test_swapped_removed_and_added_lines_are_named(
    written: Books, tmp_path: Path, change: Change, text: str, line: int
) -> None:
    found, at = _find_fault(_copy(written, tmp_path, 0, change(written.lines(0))))
    assert text in found and at == line


def _sign_again(
    books: Books, party: int, changes: dict[int, dict[str, Any]], key: bytes = b""
) -> list[bytes]:
    """Return a party's lines, signed again from the first changed one on.

    Args:
        changes: fields to change, by line counted from 0.
        key: another key than the party's.
    """
    signer = receipts.ReceiptSigner(key or books.policies[party].load_key())
    lines, before = [], receipts.NO_LINE
    for position, blob in enumerate(books.lines(party)):
        line = receipts.parse_line(blob[:-1], party)
        if position < min(changes):
            lines.append(blob)
        else:
            change = dict(changes.get(position, {}))
            at = change.pop("at", line.seal.at)
            body = {**line.body, **change}
            again = receipts.sign_line(signer, party, line.seal.number, before, at, body)
            lines.append(again.encode_line() + b"\n")
        before = receipts.digest_bytes(lines[-1][:-1])
    return lines


def test_a_backdated_line_is_named(written: Books, tmp_path: Path) -> None:
    early = receipts.parse_line(written.lines(0)[2][:-1], 0).seal.at - 1000
    path = _copy(written, tmp_path, 0, _sign_again(written, 0, {3: {"at": early}}))
    text, line = _find_fault(path)
    assert "the line was backdated" in text and line == 4


def test_a_chain_that_its_worker_wrote_again_is_found_by_the_others(
    written: Books, tmp_path: Path
) -> None:
    jobs = [i for i, line in enumerate(written.lines(0)) if b'"kind":"job"' in line]
    job = json.loads(written.lines(0)[jobs[1]])
    forged: dict[str, Any] = {"facts": {**job["facts"], "client": "someone"}}
    path = _copy(written, tmp_path, 0, _sign_again(written, 0, {jobs[1]: forged}))
    assert "was altered: party 1's receipt of the job is receipt-differs" in _find_fault(path)[0]
    forged = {"began": job["began"] - 60_000}
    path = _copy(written, tmp_path, 0, _sign_again(written, 0, {jobs[1]: forged}))
    assert verify_receipt_files([path])
    others = [written.files(1)[0], written.files(2)[0]]
    text, line = _find_fault(path, *others)
    assert "was altered or backdated after the workers had exchanged it" in text
    assert line == jobs[1] + 1
    whole = _copy(written, tmp_path, 0, _sign_again(written, 0, {jobs[0]: {}}))
    assert verify_receipt_files([whole])
    assert _find_fault(whole, *others)[1] == jobs[0] + 1
    assert _find_fault(others[0], whole)[1] == jobs[0] + 1


def test_a_foreign_key_is_found(written: Books, tmp_path: Path) -> None:
    from tfe_bench.cluster import tls

    key, _ = tls.make_self_signed_certificate("party-0.tfe-bench")
    lines = _sign_again(written, 0, {2: {}}, key)
    text, line = _find_fault(_copy(written, tmp_path, 0, lines))
    assert "another key than party 0's has signed it" in text and line == 3
    # a start line names the foreign key
    public = receipts.ReceiptSigner(key).public_key
    path = _copy(written, tmp_path, 0, _sign_again(written, 0, {0: {"key": public}}, key))
    assert verify_receipt_files([path])
    text, line = _find_fault(path, written.files(1)[0])
    assert "signed by a foreign key" in text and line == 1
    with raises(SecurityError, "receipts-not-intact", received="line 1"):
        verify_receipt_files([path], written.config)


def test_a_file_of_another_cluster_is_found(written: Books, tmp_path: Path) -> None:
    other = Books(tmp_path)
    other.run_job()
    other.close()
    text, _ = _find_fault(written.files(0)[0], other.files(1)[0])
    assert "the file is of another cluster" in text
    with raises(SecurityError, "receipts-not-intact", received="line 1") as error:
        verify_receipt_files(other.files(0), written.config)
    assert "of another cluster" in str(error.value)


def test_a_job_that_two_others_dated_otherwise_is_found(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = make_jobs()
    now = worker_receipts._read_clock
    for party, (book, job) in enumerate(zip(books.books, jobs, strict=True)):
        shift = 3_600_000 if party == 2 else 0
        monkeypatch.setattr(worker_receipts, "_read_clock", lambda s=shift: now() + s)
        book.sign_result(job, True)
        monkeypatch.setattr(worker_receipts, "_read_clock", now)
    exchange_receipts([b.start_exchange([j]) for b, j in zip(books.books, jobs, strict=True)])
    books.close()
    chains = [verify_receipt_files(books.files(party))[0] for party in range(3)]
    assert [dict(chain.codes) for chain in chains] == [
        {receipts.TIME_DIFFERS: 1},
        {receipts.TIME_DIFFERS: 1},
        {receipts.TIME_DIFFERS: 2},
    ]
    text, line = _find_fault(*(books.files(party)[0] for party in range(3)))
    assert "the line was backdated: the job ended at" in text and line == 2


def test_a_file_that_is_no_receipts_file_is_refused(tmp_path: Path) -> None:
    with raises(DataError, "file-not-readable"):
        verify_receipt_files([tmp_path / "absent"])
    for content in (b"hello\n", b"\x00\xff\n", b'{"kind":"start"}\n', b"{}\n{}\n"):
        path = tmp_path / "other"
        path.write_bytes(content)
        assert _find_fault(path)[1] == 1


# ---- the worker's part


def _chain(books: Books, party: int) -> Chain:
    books.close()
    return verify_receipt_files(books.files(party))[0]


def test_a_peer_without_a_receipt_or_with_another_one_is_recorded(books: Books) -> None:
    others = make_jobs("guest")
    cases: list[tuple[bytes | None, str]] = [
        (None, receipts.MISSING),
        (b"", receipts.MISSING),
        (b"{}", receipts.MISSING),
        (b"[", receipts.MALFORMED),
        (b"[]", receipts.MALFORMED),
        (b'{"x":[1]}', receipts.MALFORMED),
        (b" " * (1 << 18), receipts.MALFORMED),
    ]
    for message, code in cases:
        jobs = make_jobs()
        line = books.books[0].sign_result(jobs[0], True)
        exchange = books.books[0].start_exchange(jobs[:1])
        if message is not None:
            exchange.receive_message(1, message)
        exchange.end_exchange()
        exchange.receive_message(2, b"late")
        assert line.body["end"] == "done" and code
    # a signature over other facts, and one of another worker
    jobs = make_jobs()
    for job, other in zip(jobs, others, strict=True):
        other.name = job.name
    books.books[0].sign_result(jobs[0], True)
    exchange = books.books[0].start_exchange(jobs[:1])
    for party, peer in ((1, 1), (2, 1)):
        others[party].receipt = books.books[peer].sign_result(others[party], True)
        exchange.receive_message(party, books.books[peer].start_exchange([others[party]]).message)
    chain = _chain(books, 0)
    assert chain.codes == {
        receipts.MISSING: 3 + 7,
        receipts.MALFORMED: 4,
        receipts.DIFFERS: 1,
        receipts.WRONG_SIGNATURE: 1,
    }
    assert chain.ends == {"done": 8}


def test_failed_and_refused_jobs_have_lines(books: Books) -> None:
    book = books.books[1]
    job, waiting, mistaken = make_jobs()[0], make_jobs(began=None)[0], make_jobs(began=None)[0]
    book.record_end(job, UsageError("no", code="wrong-type"))
    book.record_end(job, None)
    book.record_end(make_jobs()[0], RuntimeError("secret"))
    book.record_end(waiting, PolicyError("no", code="missing-right"))
    book.record_end(mistaken, UsageError("no", code="wrong-type"))
    header = {"job": "a" * 32, "program": "x" * 4000}
    for _ in range(30):
        book.record_refusal("guest", header, PolicyError("no", code="program-not-allowed"))
    book.record_refusal("guest", header, UsageError("no", code="wrong-type"))
    chain = _chain(books, 1)
    assert chain.ends == {
        "wrong-type": 1,
        "worker-failed": 1,
        "missing-right": 1,
        "program-not-allowed": worker_receipts.MOST_REFUSALS,
    }
    assert b"secret" not in books.files(1)[0].read_bytes()


def test_lines_are_chained_across_files_and_the_oldest_are_removed(tmp_path: Path) -> None:
    books = Books(tmp_path, max_receipt_bytes=1 << 12, max_receipt_files=5)
    for _ in range(30):
        books.run_job()
    time.sleep(0.2)
    books.close()
    files = books.files(0)
    assert len(files) == 5
    assert all(path.stat().st_size < (1 << 12) + receipts.MOST_LINE for path in files)
    others = [path for party in (1, 2) for path in books.files(party)]
    assert verify_receipt_files([*files, *others])[0].places
    assert verify_receipt_files([files[3], files[1], files[2]])
    with raises(SecurityError, "receipts-not-intact", operation=str(files[3]), received="line 1"):
        verify_receipt_files([files[1], files[3]])
    with raises(SecurityError, "receipts-not-intact", operation=str(files[2])) as error:
        verify_receipt_files([*files[:3], *others])
    assert "were removed, or their file is not given" in str(error.value)


def test_a_restarted_worker_continues_its_chain(books: Books) -> None:
    books.run_job()
    for _ in range(3):
        books.close()
        books.start()
        books.run_job()
    chain = _chain(books, 0)
    assert chain.ends == {"done": 4} and len(books.files(0)) == 1


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_half_written_line_is_removed_and_named(books: Books, kept: int) -> None:
    books.run_job()
    books.close()
    [path] = books.files(0)
    half = books.lines(0)[-1][:-1][:kept]
    with path.open("ab") as stream:
        stream.write(half)
    assert "the line is cut" in _find_fault(path)[0]
    books.start()
    books.run_job()
    chain = _chain(books, 0)
    assert chain.ends == {"done": 2}
    assert f"a half-written line of {len(half)} bytes" in chain.notes[0]
    assert verify_receipt_files([path, *books.files(1), *books.files(2)])


def test_a_worker_killed_at_the_begin_of_a_file_continues(tmp_path: Path) -> None:
    books = Books(tmp_path)
    books.run_job()
    books.close()
    half = tmp_path / "receipts0" / "receipts-000002.jsonl"
    half.write_bytes(b'{"at":1')
    half.chmod(0o600)
    books.start()
    books.run_job()
    assert _chain(books, 0).notes and len(books.files(0)) == 1
    # nothing but half a line
    (tmp_path / "other").mkdir()
    books = Books(tmp_path / "other")
    books.close()
    books.files(0)[0].write_bytes(b"{")
    books.start()
    books.run_job()
    assert _chain(books, 0).ends == {"done": 1}


def test_a_damaged_end_or_an_open_file_stops_the_start(tmp_path: Path) -> None:
    books = Books(tmp_path)
    books.run_job()
    books.close()
    [path] = books.files(0)
    whole = path.read_bytes()
    for content in (whole + b"hello\n", b"x" * (3 << 20), whole + b"x" * (2 << 20)):
        path.write_bytes(content)
        with raises(SecurityError, "receipts-not-intact", operation="receipts"):
            worker_receipts.ReceiptBook(books.config, books.policies[0])
    path.write_bytes(books.files(1)[0].read_bytes())
    with raises(SecurityError, "file-of-another-party", received=1, expected=0):
        worker_receipts.ReceiptBook(books.config, books.policies[0])
    path.write_bytes(whole)
    path.chmod(0o640)
    with raises(SecurityError, "insecure-permissions", operation="receipts"):
        worker_receipts.ReceiptBook(books.config, books.policies[0])
    path.chmod(0o600)
    path.parent.chmod(0o770)
    with raises(SecurityError, "insecure-permissions", operation="receipts"):
        worker_receipts.ReceiptBook(books.config, books.policies[0])
    path.parent.chmod(0o700)
    first = worker_receipts.ReceiptBook(books.config, books.policies[0])
    with raises(ConfigError, "folder-in-use", operation="receipts"):
        worker_receipts.ReceiptBook(books.config, books.policies[0])
    first.close_book()


def test_a_job_whose_line_cannot_be_written_sends_no_result(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    books.run_job()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, blob: write(fd, blob[:40]))
        job = make_jobs()[0]
        with raises(DataError, "receipts-not-writable", operation="receipts", party=0):
            books.books[0].sign_result(job, True)
        assert job.receipt is None
        books.books[0].record_end(job, DataError("full", code="receipts-not-writable"))
    books.run_job()
    assert _chain(books, 0).ends == {"done": 2}


def test_without_tls_receipts_are_kept_and_marked_as_unverified(tmp_path: Path) -> None:
    import dataclasses

    books = Books(tmp_path)
    books.close()
    books.config = dataclasses.replace(books.config, tls=False)
    books.policies = [dataclasses.replace(policy, key=None) for policy in books.policies]
    for party in range(3):
        books.files(party)[0].unlink()
    books.start()
    books.run_job()
    books.close()
    chains = verify_receipt_files([path for p in range(3) for path in books.files(p)])
    assert all(chain.codes == {receipts.UNVERIFIED: 2} for chain in chains)


def test_a_policy_without_a_folder_keeps_no_file(tmp_path: Path) -> None:
    import dataclasses

    books = Books(tmp_path)
    books.close()
    books.policies = [dataclasses.replace(policy, receipts=None) for policy in books.policies]
    before = books.lines(0)
    books.start()
    first, second = books.run_job()[0].receipt, books.run_job()[0].receipt
    books.close()
    assert books.lines(0) == before and first is not None and second is not None
    assert second.seal.number > first.seal.number > 1


# ---- contents


def test_a_line_is_bounded_and_lists_what_a_job_used() -> None:
    use = JobUse()
    for number in range(100):
        use.stored.add(("table", f"t{number:03}", "bank", "ab", "by name"))
    use.rights["table", "t001"] = {f"\u20ac{number:060}:sum" for number in range(90)}
    use.charged["t001"] = "0.1"
    facts = job_receipts.build_job_facts(
        *("a" * 32, "analyst", "query", "p", "c", "1"),
        make_jobs()[0].inputs * 40,
        True,
        [Opening("comparisons", 3, 3)],
        use.list_stored(),
        use.charged,
    )
    assert facts["stored"][0] == ["table", "t000", "bank", "ab", "by name"]
    assert facts["stored"][-1] == ["68 more"] and len(facts["stored"]) == 33
    assert facts["stored"][1][-1] == "63 more"
    assert facts["inputs"] == ["keys"] * 16 + ["24 more"]
    assert facts["opened"] == [["comparisons", 3, 3, None]] and facts["recipients"] == ["analyst"]
    assert len(receipts.encode_canonical(facts)) < receipts.MOST_LINE // 4


def test_jobs_are_selected_by_client_table_and_day(books: Books) -> None:
    use = JobUse(stored={("table", "calls", "telco", "ab", "by name")}, charged={"bills": "0.5"})
    books.run_job("bank", use)
    books.run_job("analyst")
    books.close()
    files = books.files(0)
    day = time.strftime("%Y-%m-%d", time.gmtime())

    def clients(**chosen: str) -> list[str]:
        return [line.body["facts"]["client"] for line in select_receipts(files, **chosen)]

    assert clients() == ["bank", "analyst"]
    assert clients(client="bank") == clients(table="calls") == clients(table="bills") == ["bank"]
    assert clients(table="other") == clients(day="1999-01-01") == clients(client="x") == []
    assert clients(day=day) in (["bank", "analyst"], ["analyst"], [])
