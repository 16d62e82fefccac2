"""The notebooks of docs/ run and print the recorded output."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.pages import import_page

notebooks = import_page("run_notebooks")
samples = import_page("samples")
ALL = [pytest.param(path, id=path.stem) for path in notebooks.NOTEBOOKS]
FAST = "first_prediction"


@pytest.mark.parametrize("path", ALL)
def test_a_notebook_is_as_it_was_written_and_holds_nothing_of_its_machine(path: Path) -> None:
    text = path.read_text()
    printed = [
        notebooks.printed_text(cell.get("outputs", ())) for cell in notebooks.read_cells(path)
    ]
    assert notebooks.renew_outputs(path, printed) == text
    assert not re.search(r"/(root|home|tmp|usr)/|I0000|Traceback", text)
    code = [c for c in notebooks.read_cells(path) if c["cell_type"] == "code"]
    for cell in code:
        ast.parse("".join(cell["source"]))
    assert json.loads(text)["nbformat"] == 4 and any(cell["outputs"] for cell in code)


def test_a_page_shows_code_and_what_it_prints() -> None:
    for path in notebooks.NOTEBOOKS:
        page = notebooks.markdown(path)
        assert page.startswith("# ") and "```python\n" in page and "```text\n" in page
        assert ".ipynb)" not in page


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, id=p.stem, marks=() if p.stem == FAST else pytest.mark.slow)
        for p in notebooks.NOTEBOOKS
    ],
)
def test_a_notebook_prints_what_it_says(path: Path) -> None:
    shown = [notebooks.printed_text(cell.get("outputs", ())) for cell in notebooks.read_cells(path)]
    for number, (says, prints) in enumerate(zip(shown, notebooks.run_notebook(path), strict=True)):
        assert samples.is_alike(says, prints), f"cell {number} prints\n{prints}"
