"""Run the notebooks of docs/notebooks and compare their output: python -m docs.run_notebooks.

--write updates their output, without values that differ between two runs: numbers of
executions, times, warnings of TensorFlow.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = tuple(sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")))
SECONDS = 120


def read_cells(path: Path) -> Any:
    """Return a notebook's cells as JSON objects."""
    return json.loads(path.read_text())["cells"]


def printed_text(outputs: Any) -> str:
    """Return a cell's standard output, and the value of its last line."""
    parts = []
    for each in outputs:
        if each["output_type"] == "stream" and each["name"] == "stdout":
            parts.append("".join(each["text"]))
        elif "data" in each:
            parts.append("".join(each["data"].get("text/plain", "")) + "\n")
    return "".join(parts)


def run_notebook(path: Path) -> list[str]:
    """Run a notebook in a kernel of this Python and return the output of each cell.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    at = {"metadata": {"path": str(ROOT)}}
    NotebookClient(book, timeout=SECONDS, kernel_name="python3", resources=at).execute()
    return [printed_text(cell.get("outputs", ())) for cell in book.cells]


def renew_outputs(path: Path, now: list[str]) -> str:
    """Return the notebook's text with its present output."""
    book = json.loads(path.read_text())
    for cell, text in zip(book["cells"], now, strict=True):
        if cell["cell_type"] == "code":
            lines = text.splitlines(keepends=True)
            stream = {"name": "stdout", "output_type": "stream", "text": lines}
            cell |= {"execution_count": None, "metadata": {}, "outputs": [stream] if lines else []}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def markdown(path: Path) -> str:
    """Return the notebook as a page."""
    parts = []
    for cell in read_cells(path):
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            text = f"```python\n{text}\n```"
            if said := printed_text(cell["outputs"]):
                text += f"\n\n```text\n{said}```"
        parts.append(text.replace(".ipynb)", ".md)"))
    return "\n\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Run notebooks; return 1 if the output of one differs."""
    from docs.samples import alike

    parser = argparse.ArgumentParser(prog="python -m docs.run_notebooks", description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all")
    parser.add_argument("--write", action="store_true", help="renew what the notebooks say")
    given = parser.parse_args(argv)
    wrong = False
    for path in given.notebooks or NOTEBOOKS:
        now = run_notebook(path)
        for number, (cell, text) in enumerate(zip(read_cells(path), now, strict=True)):
            if not alike(shown := printed_text(cell.get("outputs", ())), text):
                print(f"{path.name}, cell {number}: it says\n{shown}and prints\n{text}")
                wrong = True
        if given.write:
            path.write_text(renew_outputs(path, now))
    return 1 if wrong and not given.write else 0


if __name__ == "__main__":
    sys.exit(main())
