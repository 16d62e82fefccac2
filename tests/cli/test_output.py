"""Output and files of a successful command."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.announcements import remove_announcement
from tests.paths import ROOT
from tfe_bench.benchmarks.records import Record, read_records

if TYPE_CHECKING:
    from tests.cli.conftest import Command

_ROWS = [
    ("ann", "85000.10", "31.4159"),
    ("Bob, Jr.", "72000.1", " 244.59"),
    ("cy", "91000.77", "29.2718"),
    ("di", "72000.10", "52.500"),
]
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLOR = re.compile(r"\x1b\[[0-9;]*\b(3[0-7]|9[0-7]|4[0-7])[0-9;]*m")


def test_json_prints_one_record_and_the_result_goes_to_a_private_file(
    command_here: Command, tmp_path: Path
) -> None:
    (tmp_path / "people.csv").write_text(
        "name,salary,bonus\n" + "".join(f'"{n}",{s},{b}\n' for n, s, b in _ROWS)
    )
    done = command_here(
        *("sort", "--input", "people.csv", "--column", "salary", "--payload", "bonus,name"),
        *("--descending", "--output", "result.csv", "--record", "records.jsonl", "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert remove_announcement(done.stderr) == ""
    assert done.stdout.count("\n") == 1 and done.stdout.endswith("}\n")
    record = Record.from_json(done.stdout)
    assert record.workload == "sort" and record.correct and record.tls
    # Generated keys are sorted at least five times, a file once.
    assert record.repeats == 1 and record.parameters["warm_up"] == 0 and record.cluster == "local"
    assert record.parameters["n"] == 4 and record.parameters["source"] == "people.csv"

    result = tmp_path / "result.csv"
    assert result.stat().st_mode & 0o777 == 0o600
    # Key and payload are as read, to the last digit; equal keys keep the file's order.
    assert result.read_text() == (
        "salary,bonus,name\n91000.77,29.2718,cy\n85000.10,31.4159,ann\n"
        '72000.1, 244.59,"Bob, Jr."\n72000.10,52.500,di\n'
    )

    assert read_records(tmp_path / "records.jsonl") == [record]
    # A record may be published: it contains no value of the input. (Only whole numbers count: a
    # time may contain the same digits.)
    numbers = set(re.findall(r"[\d.]+", done.stdout))
    for _, salary, bonus in _ROWS:
        assert not numbers & {salary, f"{salary}.0", bonus.strip()}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("people.csv", "records.jsonl", "result.csv"),
    ]


def test_without_a_terminal_the_table_is_plain_text_and_stderr_is_silent(
    command: Command, tmp_path: Path
) -> None:
    values = np.random.default_rng(2).uniform(-50, 50, 30)
    np.save(tmp_path / "values.npy", values)
    done = command(
        *("sort", "--input", "values.npy", "--output", "result.npy", "--repeat", "1"), COLUMNS="60"
    )
    assert done.returncode == 0, done.stderr
    assert remove_announcement(done.stderr) == ""
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert re.search(r"^correct +yes, max error", done.stdout, re.MULTILINE)
    for noise in ("oneDNN", "WARNING", "I0000", "cpu_feature"):
        assert noise not in done.stdout
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), np.sort(values))
    assert (tmp_path / "result.npy").stat().st_mode & 0o777 == 0o600


def _on_terminal(
    folder: Path, columns: int, *arguments: str, **environment: str
) -> tuple[int, str]:
    """Run a command on a separate terminal; return its exit code and all output."""
    from_us, for_it = pty.openpty()
    fcntl.ioctl(for_it, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
    root = str(ROOT)
    process = subprocess.Popen(
        [sys.executable, "-m", "tfe_bench", *arguments],
        stdin=for_it,
        stdout=for_it,
        stderr=for_it,
        cwd=folder,
        env={**plain, "PYTHONPATH": root, "TERM": "xterm", **environment},
        start_new_session=True,
    )
    os.close(for_it)
    output = b""
    limit = time.monotonic() + 180
    try:
        with suppress(OSError):  # the terminal closes with its last process
            while block := os.read(from_us, 1 << 16):
                output += block
                assert time.monotonic() < limit
        return process.wait(60), output.decode(errors="replace")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(from_us)


def _read_screen(output: str, columns: int) -> list[str]:
    """Return the remaining lines, without text that a carriage return or an erasure removed."""
    lines: list[str] = []
    for line in output.replace("\r\n", "\n").split("\n"):
        if "\x1b[1A\x1b[2K" in line:  # up one line, and erase it
            lines.pop()
        line = line.rpartition("\x1b[2K")[2].rpartition("\r")[2]
        lines.append(_ESCAPE.sub("", line).rstrip())
    assert all(len(line) <= columns for line in lines), lines
    return lines


def test_a_narrow_terminal_shows_a_bar_and_then_the_table(tmp_path: Path) -> None:
    code, output = _on_terminal(tmp_path, 50, "sort", "--n", "400", "--repeat", "3")
    assert code == 0, output
    assert "starting the workers" in output and "━" in output
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 1  # the cursor is shown again
    screen = _read_screen(output, 50)
    assert "━" not in "".join(screen)  # the progress bar is erased
    assert any(line.startswith("run time") for line in screen)
    assert any(line.startswith("correct") and "yes" in line for line in screen)
    assert _COLOR.search(output)


def test_no_color_is_obeyed(tmp_path: Path) -> None:
    code, output = _on_terminal(tmp_path, 60, "sort", "--n", "20", "--repeat", "1", NO_COLOR="1")
    assert code == 0, output
    assert not _COLOR.search(output)
    assert any(line.startswith("run time") for line in _read_screen(output, 60))


@pytest.mark.slow
def test_json_shows_no_bar_even_on_a_terminal(tmp_path: Path) -> None:
    code, output = _on_terminal(tmp_path, 60, "sort", "--n", "20", "--repeat", "1", "--json")
    assert code == 0, output
    assert "\x1b" not in output and "━" not in output
    assert json.loads(output)["workload"] == "sort"


def test_an_error_on_a_terminal_is_readable(tmp_path: Path) -> None:
    code, output = _on_terminal(tmp_path, 40, "sort", "--n", "-1")
    assert code == 2
    assert "\x1b" not in output and "Received: -1" in output


# A line printed by print, and a table of rich, whose console ends the process itself.
PRINTING = [
    ["certs", "party", "--party", "0", "--out", "x"],
    ["TABLE"],
]
TABLE = """
import sys, tfe_bench.__main__ as command
from rich.console import Console
def show(parsed=None):
    Console().print("a table")
    return 0
command.parse_command = lambda words: type("Parsed", (), {"command": "sort", "run": show})
sys.exit(command.run())
"""


def _run_to_end(words: list[str], stdout: int, folder: Path) -> subprocess.CompletedProcess[str]:
    python = ["-c", TABLE] if words == ["TABLE"] else ["-m", "tfe_bench", *words]
    return subprocess.run(
        [sys.executable, *python],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("words", PRINTING, ids=lambda words: words[0])
def test_a_full_standard_output_is_said_in_words(words: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = _run_to_end(words, full.fileno(), tmp_path)
    assert "tfe_bench: DataError: " in done.stderr and "[output-not-writable]" in done.stderr
    assert done.returncode == 10


def test_a_closed_standard_output_is_refused_before_anything_runs(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tfe_bench", "certs", "party", "--party", "0", "--out", "x"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stderr == (
        "tfe_bench: DataError: Standard output is closed. Redirect it: > /dev/null. "
        "[output-not-writable]\n"
    )
    assert done.returncode == 10 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", PRINTING, ids=lambda words: words[0])
def test_a_reader_that_leaves_early_causes_no_traceback(words: list[str], tmp_path: Path) -> None:
    from_it, to_us = os.pipe()
    os.close(from_it)
    try:
        done = _run_to_end(words, to_us, tmp_path)
    finally:
        os.close(to_us)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.returncode == 141


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["matmul", "exp", "channel"])
def test_every_workload_prints_one_record(command: Command, workload: str) -> None:
    size = [] if workload == "channel" else ["--n", "16"]
    done = command(workload, *size, "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    json.loads(done.stdout)


def test_advice_on_a_range_needs_no_worker(command_here: Command, tmp_path: Path) -> None:
    done = command_here("exp", "--advise", "-10", "10", "--n", "1000")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "one-round" in done.stdout and "modeled" in done.stdout
    document = json.loads(command_here("exp", "--advise", "-40", "0", "--json").stdout)
    assert document["forms"] and document["forms"][0]["modeled_network_seconds"]["net2"] > 0
    assert "no form covers it" in command_here("exp", "--advise", "0", "900").stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_quick_study_writes_its_report(command: Command, tmp_path: Path) -> None:
    options = ("--quick", "--levels", "net1", "--emulate", "channel")
    done = command("exp", "--study", *options, "--report", "study")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "MODELED" in done.stdout and "offline not counted" in done.stdout
    assert "16 measured" in done.stdout and "channel" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["study"]
    names = {p.name for p in (tmp_path / "study").iterdir()}
    assert {"exp.csv", "exp_accuracy.csv", "exp_fits.csv", "exp_compare.csv"} <= names
    assert "exp_levels.csv" in names
    assert {"report.md", "exp_radar.png", "exp_error.png", "exp_range.png"} <= names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("exp --study --quick --report study", 12),
        ("sort --n 4096 --repeat 1000 --record r.jsonl --trace t.json", 15),
    ],
)
def test_what_is_interrupted_leaves_no_folder_record_or_trace(
    tmp_path: Path, words: str, seconds: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tfe_bench", *words.split()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "" and err.strip().endswith("interrupted")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_of_several_operations_is_one_file(command_here: Command, tmp_path: Path) -> None:
    done = command_here(
        *("ops", "--only", "relu,mul", "--scale", "0.001", "--repeat", "1"),
        *("--trace", "t.json", "--json"),
    )
    assert done.returncode == 0, done.stderr
    records = [Record.from_json(line) for line in done.stdout.splitlines()]
    assert len(records) == 2
    for record in records:
        assert record.breakdown is not None and record.breakdown[0]["ops"]
        assert record.prediction is not None and record.prediction["seconds"]["wan"] > 0
        assert record.repeats == 1
    titles = {e["name"] for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert {"relu", "mul"} <= titles
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_a_trace_that_could_not_be_written_is_refused_before_anything_runs(
    command_here: Command, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    for path in ("here", "none/t.json"):
        done = command_here("sort", "--n", "10", "--trace", path)
        assert done.returncode == 10 and "--trace" in done.stderr
    done = command_here("sort", "--n", "10", "--trace", "a", "--record", "./a")
    assert done.returncode == 2 and "[conflicting-options]" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["here"]
