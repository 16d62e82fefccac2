"""Run the command line as users do, in a separate process without a terminal, or here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Done, run_command
from tests.paths import ROOT
from tfe_bench.__main__ import main

Command = Callable[..., Done]

# Time for the start of three workers on a busy machine; early failures take a fraction of a second.
PATIENCE = 180.0


def plain_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without variables that change a command's output."""
    changing = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TF_CPP_MIN_LOG_LEVEL")
    kept = {k: v for k, v in os.environ.items() if k not in changing}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Return a function that runs ``tfe_bench arguments...`` in the test's folder."""

    def run(*arguments: str, **environment: str) -> Done:
        env = plain_environment(**environment)
        return run_command(*arguments, patience=PATIENCE, env=env, cwd=tmp_path)

    return run


@pytest.fixture
def command_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Return a function that runs ``tfe_bench arguments...`` in the test's folder.

    It runs in this process: an interpreter for each command line would take most of the time.
    """

    def run(*arguments: str) -> Done:
        monkeypatch.chdir(tmp_path)
        try:
            code = main([*arguments])
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        out, err = capfd.readouterr()
        return Done([*arguments], code, out, err)

    return run


class SharedCluster:
    """A cluster that stays open when a command that uses it closes it."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def __enter__(self) -> SharedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the cluster open."""

    close = __exit__
