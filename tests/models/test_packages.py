"""Layers and programs of other packages: as printed on the pages, and loaded before any job."""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from tfe_bench.cli import worker
from tfe_bench.cluster import jobs

PAGE = ROOT / "docs" / "adding_a_layer.md"
_BLOCK = re.compile(
    r"^```\w+ (?:file=(\S+)|skip takes the package installed)\n(.*?)^```$", re.M | re.S
)


def _install_package(folder: Path) -> Path:
    """Install the page's package as pip does; return it and its script."""
    for name, body in _BLOCK.findall(PAGE.read_text()):
        (folder / (name or "script.py")).write_text(body)
    about = folder / "their_layers-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-layers\nVersion: 1.0\n")
    project = (folder / "pyproject.toml").read_text()
    ((name, value),) = re.findall(r'^(\w+) = "(their_layers:\w+)"$', project, re.M)
    (about / "entry_points.txt").write_text(f"[tfe_bench.layers]\n{name} = {value}\n")
    return folder / "script.py"


@pytest.mark.slow
def test_the_pages_package_predicts_on_three_workers(tmp_path: Path) -> None:
    script = _install_package(tmp_path)
    assert "import keras" in (tmp_path / "their_layers.py").read_text()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = re.search(r"It prints `(.*?)`", PAGE.read_text())
    assert printed is not None and printed[1] in done.stdout


class _Point:
    def __init__(self, name: str, value: str, loaded: list[str]) -> None:
        self.name, self.value, self._loaded = name, value, loaded

    def load(self) -> Any:
        self._loaded.append(self.name)
        if self.name == "broken":
            raise SyntaxError("no Python")
        return jobs.Program("theirs", lambda context: {}, lambda *_: None, "of another package")


def test_workers_load_other_packages_when_they_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded: list[str] = []
    points = {
        name: _Point(name, value, loaded)
        for name, value in (
            ("theirs", "their_package:PROGRAM"),
            ("broken", "their_package.broken:PROGRAM"),
            ("sort", "tfe_bench.benchmarks.workloads.sort:PROGRAM"),
        )
    }
    monkeypatch.setattr(jobs, "installed_programs", lambda: points)
    with caplog.at_level(logging.INFO, "tfe_bench.worker"):
        worker.import_extension_packages()
    assert loaded == ["broken", "theirs"]
    assert "the program 'theirs' of another package is loaded" in caplog.text
    assert "'broken' of another package cannot be loaded: no Python" in caplog.text


def test_modules_are_imported_under_their_previous_names_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="layers.base.kind now"):
        moved = importlib.import_module("tfe_bench.models.kinds.kind")
    assert moved is importlib.import_module("tfe_bench.models.layers.base.kind")
    assert moved.__spec__ is not None and moved.__spec__.name == moved.__name__
    with pytest.raises(ImportError):
        importlib.import_module("tfe_bench.models.kinds.nothing")
