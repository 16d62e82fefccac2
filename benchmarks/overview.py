"""One table of many operations: a line for each, with as many columns as the terminal can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.table import (
    align_columns,
    format_three_digits,
    human_bytes,
    human_seconds,
    print_faint,
    print_table_rows,
    strip_control,
)

_WIDEST = 88
# Left out one after the other where the terminal is too narrow.
_DISPENSABLE = ("size", "sent", "rounds", "B/elem", "ulp")


@dataclass(frozen=True)
class OperationLine:
    """One operation's measurement.

    Attributes:
        record: its record.
        elements: divisor of its bytes.
        ulps: largest error, see operations.Verdict.
    """

    record: Record
    elements: int
    ulps: float


def print_overview(lines: Sequence[OperationLine], console: Console) -> None:
    """Print the table, then notes on its columns and on the machine."""
    if not lines:
        return
    width = min(console.width, _WIDEST)
    cells = [_operation_line_cells(line) for line in lines]
    left_out: list[str] = []
    rows: list[str] = []
    for name in (*_DISPENSABLE, None):
        columns = [column for column in cells[0] if column not in left_out]
        right = [i for i, column in enumerate(columns) if column not in ("operation", "size")]
        rows = align_columns(
            [columns, *([row[column] for column in columns] for row in cells)], right
        )
        if name is None or max(map(len, rows)) <= width:
            break
        left_out.append(name)
    print_table_rows(console, rows, [not line.record.correct for line in lines], width)
    print_faint(console, _overview_notes(lines, left_out), width)


def _operation_line_cells(line: OperationLine) -> dict[str, str]:
    record = line.record
    sent = sum(record.bytes_sent or ())
    return {
        "operation": strip_control(record.workload),
        "size": strip_control(str(record.parameters.get("shape", "-"))),
        "time": human_seconds(record.seconds.median),
        "B/elem": format_three_digits(sent / line.elements),
        "sent": human_bytes(sent),
        "rounds": f"{record.rounds}/{record.rounds_ahead}",
        "ulp": _format_ulps(line.ulps),
        "ok": "yes" if record.correct else "NO",
    }


def _format_ulps(ulps: float) -> str:
    if ulps == 0:
        return "0"
    return f"{ulps:.3f}" if ulps < 1000 else f"{ulps:.0e}"


def _overview_notes(lines: Sequence[OperationLine], left_out: Sequence[str]) -> list[str]:
    first = lines[0].record
    notes = []
    if left_out:
        notes.append(f"No room for: {', '.join(left_out)}. A wider terminal or --json shows them.")
    notes.append(
        "time: median. sent: by all parties; B/elem: per element of the result (of the input for "
        "sums, means and sorts). rounds: total/online. ulp: largest error in 2^-f, f the "
        "result's fractional bits; of results above 1 in 2^-f parts."
    )
    wrong = [strip_control(line.record.workload) for line in lines if not line.record.correct]
    verdict = f"wrong: {', '.join(wrong)}" if wrong else "all correct"
    sha, mark, dirty = (first.commit or "").partition("+")
    commit = f", commit {strip_control(sha[:12] + mark + dirty)}" if sha else ""
    tls = "on" if first.tls else "OFF"
    notes.append(
        f"{len(lines)} operations, {first.repeats} runs each, {verdict}. Cluster "
        f"{strip_control(first.cluster)}, TLS {tls}; {strip_control(first.machine.cpu)}, "
        f"{first.machine.cores} cores; tfe_bench {first.versions['tfe_bench']}{commit}; "
        f"{strip_control(first.time)}."
    )
    return notes
