"""Common parts of the commands of other technologies: options, libraries, output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tfe_bench import atomic
from tfe_bench.benchmarks.technologies.job_options import format_flag, get_option
from tfe_bench.benchmarks.technologies.libraries import import_library as import_library
from tfe_bench.cli import common
from tfe_bench.errors import check_range

if TYPE_CHECKING:
    from tfe_bench.benchmarks.technologies.measurement import Measurement

# Functions that format the cells of a table, by heading.
Columns = Mapping[str, Callable[["Measurement"], str]]


def add_technology_options(p: argparse.ArgumentParser, repeat: int = 3) -> None:
    """Add the options for repeats and for the files of measurements."""
    common.add_option(
        p, "--repeat R", f"number of timed runs (default: {repeat})", type=int, default=repeat
    )
    common.add_option(p, "--json", "print only the measurements, as JSON lines")
    common.add_option(p, "--record FILE", "append the measurements to a .jsonl file")


def add_job_options(
    p: argparse._ActionsContainer, job: type, defaults: Mapping[str, str | None]
) -> None:
    """Add the options that are fields of a job's dataclass.

    Args:
        job: the dataclass.
        defaults: by field, in the order of the help: None for the field's default, else the text of
            a default that depends on the command, whose option is None if it is not given.
    """
    for name, text in defaults.items():
        option, default = get_option(job, name)
        about = option["about"]
        if text != "":
            about += f" (default: {default if text is None else text})"
        default, usage = default if text is None else None, f"{format_flag(name)} {option['value']}"
        if option["value"].startswith("{"):
            flag, _, choices = usage.partition(" ")
            p.add_argument(flag, choices=choices[1:-1].split(","), default=default, help=about)
        else:
            kind = int if isinstance(option["range"][0], int) else float
            common.add_option(p, usage, about, type=kind, default=default)


def check_technology_options(arguments: argparse.Namespace) -> None:
    """Reject options that cannot be carried out or stored, before anything runs.

    Raises:
        UsageError: an option is invalid.
        DataError: the file of --record cannot be written.
    """
    check_range("--repeat", arguments.repeat, 1, 1000)
    if arguments.record is not None:
        atomic.check_output_writable(arguments.record, "--record", "The record", existing=True)


def report_technology_measurements(
    arguments: argparse.Namespace,
    measured: Sequence[Measurement],
    title: str,
    columns: Columns,
    notes: Sequence[str] = (),
) -> int:
    """Store and print measurements, as JSON lines or as a table; return the exit code.

    Args:
        notes: lines below the table.
    """
    code = keep_technology_measurements(arguments, measured)
    if not arguments.json:
        from rich.console import Console
        from rich.table import Column, Table

        console = Console()
        heads = (Column(name, overflow="fold") for name in columns)  # words are never truncated
        table = Table(*heads, title=title, title_justify="left")
        for each in measured:
            table.add_row(*(cell(each) for cell in columns.values()))
        console.print(table)
        for note in notes:
            console.print(note, markup=False, highlight=False)
    return code


def keep_technology_measurements(
    arguments: argparse.Namespace, measured: Sequence[Measurement]
) -> int:
    """Store measurements, and print them if --json is given; return the exit code."""
    from tfe_bench.benchmarks import records

    for measurement in measured:
        if arguments.record is not None:
            records.append_record(arguments.record, measurement)
    for measurement in measured:
        if arguments.json:
            print(measurement.to_json(), flush=True)
    return 1 if any(measurement.correct is False for measurement in measured) else 0
