"""Types are correct for two type checkers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.paths import ROOT


def _says(*command: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stdout + done.stderr)[-4000:]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_types_are_right(checker: str) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: pip install '.[lint]'")
    if checker == "pyright" and _says("pyright", "--version")[0]:
        pytest.skip("pyright cannot be fetched: it brings itself at its first call")
    code, output = _says(checker)
    assert code == 0, output
