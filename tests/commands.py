"""Run commands as users do: in a process of their own, or in this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tfe_bench.__main__ import main

Done = subprocess.CompletedProcess[str]


def run_command(
    *arguments: str, patience: float, env: dict[str, str], cwd: Path | None = None
) -> Done:
    """Run ``tfe_bench arguments...`` to its end, without a terminal.

    The process stays in this process group, so that Ctrl-C reaches it. A time limit ends the
    process and closes its pipes.
    """
    return subprocess.run(
        [sys.executable, "-m", "tfe_bench", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=patience,
        env=env,
    )


def check_failure(
    capsys: pytest.CaptureFixture[str], code: int, word: str, *arguments: str
) -> None:
    """Check that a command in this process fails with a code and a word on stderr, without
    output.
    """
    assert main(list(arguments)) == code, arguments
    out, err = capsys.readouterr()
    assert out == "" and word in err and "Traceback" not in err, err
