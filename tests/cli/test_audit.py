"""`audit verify` and `audit show` on files of workers, and on other files."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.receipt_books import Books
from tfe_bench.cluster.job_use import JobUse

if TYPE_CHECKING:
    from tests.cli.conftest import Command


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """Provide three workers' receipts of three jobs."""
    books = Books(tmp_path_factory.mktemp("written"))
    used = ("table", "calls", "telco", "abcd", "by name")
    use = JobUse({used}, {used[:2]: {"minutes:aggregate"}}, {"calls": "0.1"})
    for client in ("bank", "analyst", "bank"):
        books.run_job(client, use if client == "bank" else None)
    books.close()
    books.config.save(books.folder / "cluster.toml")
    return books


def _folders(books: Books) -> list[str]:
    return [str(books.folder / f"receipts{party}") for party in range(3)]


def test_intact_files_are_verified(written: Books, command_here: Command) -> None:
    done = command_here(
        *("audit", "verify", *_folders(written), "--cluster", f"{written.folder}/cluster.toml")
    )
    assert done.returncode == 0 and done.stderr == ""
    assert [line for line in done.stdout.splitlines() if "lines are intact" in line] == [
        line for line in done.stdout.splitlines() if line.startswith("party ")
    ]
    assert done.stdout.count("jobs: 3 done") == 3 and "note:" not in done.stdout
    alone = command_here("audit", "verify", str(written.files(1)[0]))
    assert alone.returncode == 0 and "note: lines that were removed at the end" in alone.stdout
    rows = json.loads(command_here("audit", "verify", *_folders(written), "--json").stdout)
    assert [(row["party"], row["lines"], row["jobs"]) for row in rows] == [
        (party, 7, {"done": 3}) for party in range(3)
    ]


def test_a_changed_line_sets_the_exit_code_and_is_named(
    written: Books, command_here: Command, tmp_path: Path
) -> None:
    lines = written.lines(0)
    path = tmp_path / "changed.jsonl"
    path.write_bytes(b"".join(lines).replace(b'"client":"analyst"', b'"client":"someone"'))
    done = command_here("audit", "verify", str(path), *_folders(written)[1:])
    assert done.returncode == 30 and done.stdout == ""
    line = next(i for i, blob in enumerate(lines, 1) if b'"client":"analyst"' in blob)
    assert f"changed.jsonl, line {line}: the line was altered" in done.stderr
    assert done.stderr.endswith("[receipts-not-intact]\n")
    path.write_bytes(b"".join(lines[:1]))
    assert command_here("audit", "verify", str(path)).returncode == 0
    done = command_here("audit", "verify", str(path), *_folders(written)[1:])
    assert done.returncode == 30 and "line 1: records up to" in done.stderr


def test_jobs_are_shown_by_client_table_and_day(written: Books, command_here: Command) -> None:
    folder = _folders(written)[0]
    done = command_here("audit", "show", folder)
    assert done.returncode == 0 and done.stdout.count("party 0  job ") == 3
    assert "sort, client analyst: done, 0.0 s" in done.stdout
    done = command_here("audit", "show", folder, "--table", "calls", "--client", "bank")
    assert done.stdout.count("client bank") == 2 and "analyst" not in done.stdout
    assert "    used table calls of telco (abcd, by name, minutes:aggregate)\n" in done.stdout
    assert "    charged rho 0.1 of calls\n" in done.stdout
    done = command_here("audit", "show", folder, "--day", "1999-12-31")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no job\n")
    day = time.strftime("%Y-%m-%d", time.gmtime(written.files(0)[0].stat().st_mtime))
    rows = command_here("audit", "show", folder, "--day", day, "--json").stdout.splitlines()
    assert {json.loads(row)["party"] for row in rows} <= {0}


@pytest.mark.parametrize(
    "words, code, text",
    [
        (["verify", "absent"], 10, "cannot be read"),
        (["verify", "."], 2, "a folder without one"),
        (["verify", "a", "a"], 2, "one of them twice"),
        (["verify"], 2, "FILE"),
        (["show", "a", "--day", "tomorrow"], 2, "YYYY-MM-DD"),
        (["show", "other"], 30, "other, line 1: the line was altered: it is not JSON"),
        (["verify", "other"], 30, "other, line 1: the line was altered: it is not JSON"),
        (["verify", "a", "--cluster", "absent.toml"], 10, "absent.toml"),
        (["remove", "a"], 2, "remove"),
    ],
    ids=str,
)
def test_bad_input_is_named(
    written: Books, command_here: Command, tmp_path: Path, words: list[str], code: int, text: str
) -> None:
    shutil.copy(written.files(0)[0], tmp_path / "a")
    (tmp_path / "other").write_text("hello\n")
    done = command_here("audit", *words)
    assert done.returncode == code and text in done.stderr and "Traceback" not in done.stderr


def test_control_characters_of_a_forged_file_are_not_printed(
    written: Books, command_here: Command, tmp_path: Path
) -> None:
    forged = written.files(0)[0].read_bytes().replace(b'"client":"bank"', b'"client":"\\u001b[2J"')
    (tmp_path / "forged").write_bytes(forged)
    done = command_here("audit", "show", "forged")
    assert done.returncode == 0 and "client ?[2J" in done.stdout and "\x1b" not in done.stdout
