"""The printed table of a suite: a line for each row and profile, with the published figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report.comparison_columns import best_published_pair
from tfe_bench.benchmarks.table import (
    align_columns,
    format_three_digits,
    human_seconds,
    print_faint,
    print_table_rows,
    print_within,
    strip_control,
)

_HEAD = ("row", "profile", "time", "published", "ratio", "")


@dataclass(frozen=True)
class SuiteLine:
    """One row at one profile.

    Attributes:
        record: None without a record, or with wrong results only.
        state: "measured", "kept" (from before), "not run", "failed" or "WRONG".
    """

    label: str
    profile: str
    record: Record | None
    state: str


def print_suite(
    lines: Sequence[SuiteLine], failures: Sequence[str], file: Path, console: Console
) -> None:
    """Print the table, the failures, and the path of the records."""
    rows = align_columns([_HEAD, *map(_suite_line_cells, lines)], (2, 3, 4))
    print_table_rows(
        console, rows, [line.state in ("failed", "WRONG") for line in lines], console.width
    )
    for failure in failures:
        print_within(console, Text(f"failed: {strip_control(failure)}", style="red"), console.width)
    notes = [
        "time: median. published: TF Encrypted's figure at about that size (a LAN's next to "
        f"local). {published.CAVEAT}",
        f"Records: {file}. A page of them: python -m tfe_bench report {file.parent}",
    ]
    print_faint(console, notes, console.width)


def _suite_line_cells(line: SuiteLine) -> tuple[str, ...]:
    pair = best_published_pair(line.record) if line.record else None
    ratio = pair.ratio if pair else None
    return (
        strip_control(line.label),
        strip_control(line.record.profile if line.record else line.profile),
        human_seconds(line.record.seconds.median) if line.record else "-",
        human_seconds(pair.figure.seconds) if pair else "-",
        f"{format_three_digits(ratio)}x" if ratio is not None else "-",
        line.state,
    )
