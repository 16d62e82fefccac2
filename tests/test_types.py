"""Types are correct for two type checkers.

A folder outside the checkout keeps what a checker has accepted: mypy's own cache, and for pyright,
which has none, the digest of everything that it reads.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.compiled import lock_folder
from tests.paths import ROOT

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfe_bench" / "types"


def _says(*command: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stdout + done.stderr)[-4000:]


def _digest_pyright_inputs() -> str:
    """Return a digest of sources, stubs, settings, and all installed packages with Python."""
    settings = ROOT / "pyproject.toml"
    folders = [*tomllib.loads(settings.read_text())["tool"]["pyright"]["include"], "tests/stubs"]
    files = {file for folder in folders for file in (ROOT / folder).rglob("*.py*")}
    packages = sorted(f"{d.name} {d.version}" for d in importlib.metadata.distributions())
    digest = hashlib.sha256(repr([sys.version, packages]).encode())
    for file in sorted({settings, *(f for f in files if f.suffix in (".py", ".pyi"))}):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_types_are_right(checker: str) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: pip install '.[lint]'")
    if checker == "pyright" and _says("pyright", "--version")[0]:
        pytest.skip("pyright cannot be fetched: it brings itself at its first call")
    folder = CACHE / checker
    with lock_folder(folder):
        if checker == "mypy":
            code, output = _says("mypy", "--cache-dir", str(folder))
            assert code == 0, output
            return
        accepted = folder / _digest_pyright_inputs()
        if not accepted.exists():
            code, output = _says("pyright")
            assert code == 0, output
            accepted.touch()
