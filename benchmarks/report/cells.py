"""Cells of tables: formatted figures of a record."""

# ruff: noqa: RUF001 (a page is typeset with the signs that belong there)

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from tfe_bench.benchmarks import error_metrics
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report.annexes import AnnexRecord
from tfe_bench.benchmarks.report.comparison_columns import format_published_size, record_extents
from tfe_bench.benchmarks.report.html import escape_text
from tfe_bench.benchmarks.report.parts import NOTHING, Number, RawHtml
from tfe_bench.benchmarks.table import format_three_digits, human_bytes


def format_count(count: int, noun: str) -> str:
    """Format a number of things."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def readable_size(record: Record) -> str:
    """Format the size for readers."""
    of = record_extents(record)
    return " × ".join(f"{n:,}" for n in of) if of else format_published_size(record) or "–"


def record_size_cell(record: Record) -> Number:
    """Return the size, sorted by its first extent."""
    return Number((record_extents(record) or (0,))[0], readable_size(record))


def report_number_cell(show: Callable[[float], str], after: str, value: float | None) -> Number:
    """Return a number with its text and a unit after it."""
    return NOTHING if value is None else Number(value, show(value), after)


def _format_real_figure(value: float) -> str:
    return format_three_digits(value) if value >= 1e-3 else f"{value:.5f}"


seconds = partial(report_number_cell, _format_real_figure, "")  # or other reals
part = partial(report_number_cell, _format_real_figure, " %")
ratio = partial(report_number_cell, format_three_digits, "×")
whole = partial(report_number_cell, "{:,}".format, "")
percent = partial(report_number_cell, "{:.2f}".format, "")
megabytes = partial(report_number_cell, lambda count: format_three_digits(count / 1e6), "")


def network_cell(record: Record) -> RawHtml:
    """Return the profile, and its emulation."""
    marks = [] if record.profile_emulation is None else [record.profile_emulation]
    if not record.tls:
        marks.append("no TLS")
    labels = "".join(f' <span class="mark">{escape_text(m)}</span>' for m in marks)
    return RawHtml(escape_text(record.profile) + labels)


def describe_machine(record: Record | AnnexRecord) -> str:
    """Describe the machine in one line."""
    of = record.machine
    memory = human_bytes(of.memory_bytes)
    return f"{of.cpu}, {format_count(of.cores, 'core')}, {memory}, {of.kernel}"


def describe_record_versions(record: Record) -> str:
    """Describe versions and commit in one line."""
    sha, mark, dirty = (record.commit or "").partition("+")
    commit = f" at {sha[:12]}{mark}{dirty}" if sha else ""
    own_version, *others = (f"{name} {version or '–'}" for name, version in record.versions.items())
    return f"{own_version}{commit}; {', '.join(others)}"


def correctness_cell(record: Record) -> RawHtml:
    """Return the correctness of the result, and its largest error."""
    if record.correct is None:
        return RawHtml("not checked")
    word = '<span class="good">yes</span>' if record.correct else '<span class="bad">NO</span>'
    error = error_metrics.format_error(record, 2) if record.max_error else None
    return RawHtml(word + (f" ± {error}" if error else ""))


def describe_record_parameters(record: Record) -> str:
    """Describe sizes and options in one line."""
    return ", ".join(
        f"{k} {v if isinstance(v, str) else json.dumps(v)}" for k, v in record.parameters.items()
    )
