"""The documentation builds as a site: every link works, every name of the API has a docstring."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.paths import ROOT

pytest.importorskip("mkdocs")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for page in ("index", "travels", "api/operations", "api/models"):
        assert (tmp_path / f"{page}.html").exists()
    assert "tfe_bench.protocols.session.party.Party" in (tmp_path / "api/party.html").read_text()
    for picture in ("layers", "sort", "prediction", "training"):
        ElementTree.parse(tmp_path / f"{picture}.svg")
