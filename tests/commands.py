"""Commands as users run them: processes of their own, or here in this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tfe_bench.__main__ import main

Done = subprocess.CompletedProcess[str]


def finished(
    *arguments: str, patience: float, env: dict[str, str], cwd: Path | None = None
) -> Done:
    """Runs ``tfe_bench arguments...`` to its end, without a terminal.

    A process group of its own would keep Ctrl-C from it; a time limit ends it with its pipes.
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


def fails(capsys: pytest.CaptureFixture[str], code: int, word: str, *arguments: str) -> None:
    """A command that ends in this process with a code, a word on stderr, and no more."""
    assert main(list(arguments)) == code, arguments
    out, err = capsys.readouterr()
    assert out == "" and word in err and "Traceback" not in err, err
