"""Runs the command line as users do: a process of its own, here without a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]

# Room for three workers' start on a busy machine; what fails early takes a fraction of a second.
PATIENCE = 180.0


def plain_environment(**more: str) -> dict[str, str]:
    """This process's environment without what changes how a command prints."""
    changing = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TF_CPP_MIN_LOG_LEVEL")
    kept = {k: v for k, v in os.environ.items() if k not in changing}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **more}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs ``tfe_bench arguments...`` in the test's own folder."""

    def run(*arguments: str, **environment: str) -> Done:
        # A process group of its own would keep Ctrl-C from it; a time limit ends it with its pipes.
        return subprocess.run(
            [sys.executable, "-m", "tfe_bench", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=PATIENCE,
            env=plain_environment(**environment),
        )

    return run


class Lent:
    """A cluster that stays open, however often a command that it is lent to closes it."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def __enter__(self) -> Lent:
        return self

    def __exit__(self, *_: object) -> None:
        """Stays open."""

    close = __exit__
