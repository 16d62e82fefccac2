"""Load the modules of docs/, which belong to no package."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from tests.paths import ROOT

DOCS = ROOT / "docs"


def import_page(name: str) -> Any:
    """Import docs/NAME.py."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses look up their module there
    spec.loader.exec_module(loaded)
    return loaded
