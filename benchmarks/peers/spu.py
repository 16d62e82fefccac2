"""SPU (SecretFlow), from PyPI, in an environment of its own: ABY3 over 64 bits, three processes."""

from __future__ import annotations

import sys
from pathlib import Path

from tfe_bench.benchmarks.peers.base import (
    Measured,
    Missing,
    Request,
    call,
    python_of,
    run_on_network,
)

PACKAGE = "spu==0.9.5"
_SCRIPT = Path(__file__).parent / "scripts" / "spu_run.py"
_INSTALL_SECONDS = 1800.0


class Spu:
    """SPU's runtime in three processes over TCP, without TLS, on links of the profile.

    Args:
        folder: a virtual environment with the package spu.
        install: make the environment where it is missing, and install the package into it.
    """

    name = "spu"

    def __init__(self, folder: Path | None, install: bool = False) -> None:
        self._folder, self._install = folder, install

    def available(self) -> Missing | None:
        """None if the environment has the package."""
        if self._install and self._folder is not None:
            failed = self._make(self._folder)
            if failed is not None:
                return failed
        python = python_of(self._folder, "--spu-env")
        if isinstance(python, Missing):
            return python
        found = call([str(python), "-c", "import spu"], 120.0)
        if isinstance(found, Missing):
            reason = f"not found: {self._folder} has no package spu (--install puts it there)"
            return Missing(reason)
        return None

    def _make(self, folder: Path) -> Missing | None:
        if not (folder / "bin" / "python").exists():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                return Missing(f"not installed: {folder} exists and is no virtual environment")
            made = call([sys.executable, "-m", "venv", str(folder)], 300.0)
            if isinstance(made, Missing):
                return made
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", PACKAGE]
        done = call(pip, _INSTALL_SECONDS)
        return done if isinstance(done, Missing) else None

    def run(self, request: Request) -> Measured | Missing:
        """Runs the work in the environment."""
        python = python_of(self._folder, "--spu-env")
        return python if isinstance(python, Missing) else run_on_network(python, _SCRIPT, request)
