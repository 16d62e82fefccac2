"""`python -m tfe_bench report`: an HTML page of records, with pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfe_bench.cli import common


def _add_report_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "records",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="folder with records (.jsonl, .json), or such files",
    )
    common.add_option(p, "--output FILE", "HTML file to write (default: DIR/report.html)")


def run_report(arguments: argparse.Namespace) -> int:
    """Write an HTML page of records.

    Reads records and writes one self-contained HTML page that compares our figures with published
    figures, and the pictures of the page as PNG files in the same folder.
    """
    from tfe_bench.benchmarks.report import files, reading

    first = arguments.records[0]
    output = arguments.output or (first if first.is_dir() else first.parent) / "report.html"
    report_input = reading.read_report_input(arguments.records)
    written = files.write_page(report_input, output)
    for note in report_input.notes:
        print(note)
    print(f"{len(report_input.records) + len(report_input.others)} records: {written[0]}")
    print(f"Pictures: {', '.join(p.name for p in written[1:]) or 'none'}")
    return 0


COMMANDS = {"report": (_add_report_options, run_report)}
