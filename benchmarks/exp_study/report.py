"""The report folder: CSV files, pictures, the page as HTML and Markdown; whole or not at all."""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfe_bench.benchmarks.exp_study import compare, page, plots
from tfe_bench.benchmarks.exp_study.study import ExpStudy
from tfe_bench.benchmarks.report import html, markdown
from tfe_bench.benchmarks.report.drawing import require_matplotlib
from tfe_bench.errors import DataError

FILES = (
    *("exp.csv", "exp_accuracy.csv", "exp_fits.csv", "exp_levels.csv", "exp_compare.csv"),
    *("report.html", "report.md"),
)


def check_folder(folder: Path) -> None:
    """Check that the report folder can be written, before a long run.

    Raises:
        DataError: it exists and is not an empty folder, or its parent cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            f"Expected a new or empty folder for the report. Received: {str(folder)!r}, "
            "which exists. Remove it, or choose another --report.",
            code="file-exists",
            operation="--report",
            received=folder,
        )
    parent = folder.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise DataError(
            f"Cannot write the report to {str(folder)!r}. Received: a missing or read-only "
            "parent folder. Choose another --report.",
            code="parent-not-writable",
            operation="--report",
            received=folder,
        )


def write_report(study: ExpStudy, folder: Path) -> list[str]:
    """Write the report; the folder appears once all its files are written.

    Returns:
        The names of its files.

    Raises:
        DataError: the folder cannot be written.
        ConfigError: matplotlib is missing.
    """
    check_folder(folder)
    require_matplotlib()
    unfinished = None
    try:
        parent = folder.absolute().parent
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=parent))
        _write_study_files(study, unfinished)
        unfinished.chmod(0o777 & ~_current_umask())
        if folder.exists():
            folder.rmdir()  # empty, as checked: os.rename may not replace it everywhere
        unfinished.rename(folder)
        unfinished = None
    except OSError as error:
        raise DataError(
            f"Cannot write the report to {str(folder)!r}: {error.strerror}.",
            code="file-not-writable",
            operation="--report",
            received=folder,
        ) from error
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
    return sorted(path.name for path in folder.iterdir())


def _current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _write_study_files(study: ExpStudy, folder: Path) -> None:
    _write_csv(folder / "exp.csv", compare.exp_rows(study))
    _write_csv(folder / "exp_accuracy.csv", compare.exp_accuracy_rows(study))
    _write_csv(folder / "exp_fits.csv", compare.exp_fit_rows(study))
    _write_csv(folder / "exp_levels.csv", compare.exp_level_rows(study))
    _write_csv(folder / "exp_compare.csv", compare.exp_comparison_rows(study))
    pictures = plots.draw_pictures(study)
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture.light)
    whole = page.build_study_page(study, pictures)
    (folder / "report.html").write_text(html.render_html(whole), encoding="utf-8")
    (folder / "report.md").write_text(markdown.render_markdown(whole), encoding="utf-8")


def _write_csv(path: Path, rows: Sequence[compare.Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: _format_csv_cell(v) for k, v in row.items()} for row in rows)


def _format_csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.7g}" if isinstance(value, float) else value
