"""Hooks of mkdocs: pages from README and its neighbors, the API, and generated pictures."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^(\s*```\w+) .*$", re.MULTILINE)
# Pages outside docs/, at their usual places in a repository.
BESIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changes.md": "CHANGELOG.md",
}
OPERATIONS = ("operators", "predicates", "ranking", "tensors", "elementary", "neural")
# Title and modules of each page of the API.
API = {
    "operations": (
        "Operations on private tensors",
        [f"protocols.api.{part}" for part in OPERATIONS],
    ),
    "jobs": (
        "Clusters, jobs and programs",
        ["clusters", "cluster.requests", "cluster.jobs", "cluster.simulate"],
    ),
    "models": (
        "Models and training",
        ["models.inference.private", "models.training.trainable", "models.inference.service"],
    ),
    "estimators": (
        "Estimators of scikit-learn",
        [f"models.estimators.{part}" for part in ("linear", "layered", "estimator")],
    ),
    "party": (
        "Inside a program",
        ["protocols.session.party", "protocols.session.sharing", "protocols.session.fixedpoint"],
    ),
    "errors": ("Errors", ["errors"]),
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures without a file in docs/."""
    for page, source in BESIDE.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        for other, name in BESIDE.items():
            text = text.replace(f"]({name})", f"]({other})")
        files.append(File.generated(config, page, content=text))
    for name, (title, modules) in API.items():
        parts = [f"# {title}\n"]
        for module in modules:
            parts.append(f"## tfe_bench.{module}\n\n::: tfe_bench.{module}\n")
        files.append(File.generated(config, f"api/{name}.md", content="\n".join(parts)))
    for name, picture in _load_docs_module("pictures").all_of_them().items():
        files.append(File.generated(config, f"{name}.svg", content=picture))
    notebooks = _load_docs_module("run_notebooks")
    for path in notebooks.NOTEBOOKS:
        text = f"{notebooks.markdown(path)}\n[This page as a notebook]({path.name})\n"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def _load_docs_module(name: str) -> Any:
    """Import docs/NAME.py; mkdocs runs hooks outside of any package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Drop the marks of docs/samples.py after a block's language."""
    return _FENCE.sub(r"\1", markdown)
