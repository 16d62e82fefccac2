"""SPU (SecretFlow) from PyPI, in its own environment: ABY3 over 64 bits, three processes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import MappingProxyType

from tfe_bench.benchmarks.baselines.base import (
    UnavailableBaseline,
    VenvBaseline,
    run_baseline_process,
)

PACKAGE = "spu==0.9.5"
_INSTALL_SECONDS = 1800.0


class Spu(VenvBaseline):
    """SPU's runtime in three processes over TCP, without TLS, on links of the profile.

    A join is its PSI between two owners, who both learn which rows match.

    Args:
        folder: a virtual environment with the package spu.
        install: make the environment where it is missing, and install the package into it.
    """

    name = package = "spu"
    option = "--spu-env"
    hint = " (--install puts it there)"
    on_networks = True
    scripts = MappingProxyType({"join": "spu_join_run.py"})

    def __init__(self, folder: Path | None, install: bool = False) -> None:
        super().__init__(folder)
        self._install = install

    def find_obstacle(self) -> UnavailableBaseline | None:
        """Return None if the environment has the package."""
        failed = None
        if self._install and self._folder is not None:
            failed = self._create_environment(self._folder)
        return failed or super().find_obstacle()

    def _create_environment(self, folder: Path) -> UnavailableBaseline | None:
        if not (folder / "bin" / "python").exists():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                return UnavailableBaseline(
                    f"not installed: {folder} exists and is no virtual environment"
                )
            venv_result = run_baseline_process([sys.executable, "-m", "venv", str(folder)], 300.0)
            if isinstance(venv_result, UnavailableBaseline):
                return venv_result
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", PACKAGE]
        done = run_baseline_process(pip, _INSTALL_SECONDS)
        return done if isinstance(done, UnavailableBaseline) else None
