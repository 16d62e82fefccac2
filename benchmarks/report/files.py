"""Atomic writing of the report's files."""

from __future__ import annotations

from pathlib import Path

from tfe_bench import atomic
from tfe_bench.benchmarks.report import annexes, drawing, html, page, plots
from tfe_bench.benchmarks.report.reading import ReportInput
from tfe_bench.errors import UsageError


def check_output(path: Path) -> None:
    """Check that the page can be written.

    Raises:
        UsageError: the name does not end in .html.
        DataError: its folder is missing or read-only, or it is a folder.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(
            f"Expected an .html file as --output. Received: {str(path)!r}.",
            code="unsupported-file-type",
            operation="--output",
            received=path,
        )
    atomic.check_output_writable(path, "--output", "The page")


def write_page(reading: ReportInput, path: Path) -> list[Path]:
    """Write the page, and its pictures in the same folder as NAME-time.png and so on.

    Pictures of an earlier page of that name that this one lacks are removed.

    Returns:
        The files, the page first.

    Raises:
        DataError: they cannot be written.
        ConfigError: matplotlib is missing.
    """
    check_output(path)
    providers = annexes.load_report_sections()[0].values()
    pictures = plots.draw_record_plots(reading.records)
    for each in providers:
        pictures |= drawing.draw_pictures(each.list_pictures(each.select_records(reading.others)))
    others = [name for each in providers for name in each.picture_names]
    text = html.render_html(page.build_report_page(reading, pictures))
    written = [path]
    for name in (*plots.NAMES, *others):
        picture_path = path.with_name(f"{path.stem}-{name}.png")
        if name in pictures:
            _replace_report_file(picture_path, pictures[name].light)
            written.append(picture_path)
        else:
            picture_path.unlink(missing_ok=True)
    _replace_report_file(path, text.encode())
    return written


def _replace_report_file(path: Path, content: bytes) -> None:
    atomic.write_atomically(path, lambda out: out.write(content), 0o644)
