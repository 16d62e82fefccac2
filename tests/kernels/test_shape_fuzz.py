"""No shape and no number crashes a process: every op of the library gets hostile ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

FUZZ = Path(__file__).with_name("shape_fuzz.py")
WAITING = ["Recv"]  # its session has ended in the fuzz: it would wait for a message


def _run_fuzz(*words: int) -> tuple[list[str], int, str]:
    done = subprocess.run(
        [sys.executable, str(FUZZ), *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    return done.stdout.splitlines(), done.returncode, done.stderr


def _find_crashes(seed: int, percent: int, each: int) -> list[str]:
    """Return the cases that crash the process, each with its last output."""
    endings: list[str] = []
    begin = 0
    while len(endings) < 40:
        lines, code, stderr = _run_fuzz(seed, percent, each, begin)
        assert lines, stderr[-2000:]
        last = lines[-1].split()
        assert last[0] != "MISSING", f"ops without a row in shape_fuzz.py, or rows without: {last}"
        if last[0] == "END":
            assert begin or last[1:] == WAITING, "ops that have refused all they were given"
            return endings
        assert last[0] == "CASE", stderr[-2000:]
        endings.append(f"{lines[-1]}: rc {code}, {stderr.strip().splitlines()[-1:]}")
        begin = int(last[1])
    return endings


def test_no_shape_and_no_number_ends_the_process_in_any_op(seed: int) -> None:
    assert _find_crashes(seed, 1, 4) == []


@pytest.mark.slow
def test_no_combination_of_many_ends_the_process_in_any_op(seed: int) -> None:
    assert _find_crashes(seed, 100, 1000) == []
