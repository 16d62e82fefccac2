"""The report's section on all technologies: two pictures and tables."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from tfe_bench.benchmarks.report import cells
from tfe_bench.benchmarks.report.drawing import Maker, Picture
from tfe_bench.benchmarks.report.parts import Figure, Items, Part, Section, Table
from tfe_bench.benchmarks.technologies import columns
from tfe_bench.benchmarks.technologies.columns import Column
from tfe_bench.benchmarks.technologies.compare import pictures as drawn
from tfe_bench.benchmarks.technologies.compare import table
from tfe_bench.benchmarks.technologies.compare.cells import TECHNOLOGIES
from tfe_bench.benchmarks.technologies.compare.tasks import JOBS
from tfe_bench.benchmarks.technologies.measurement import Measurement

NAMES: Final = ("technologies-time", "technologies-bytes")


def list_pictures(measured: Sequence[Measurement]) -> dict[str, Maker]:
    """Return makers of two pictures: bars of time, and bubbles of time by bytes."""
    cells = table.select_technology_cells(measured)
    return {
        NAMES[0]: functools.partial(drawn.draw_bars, cells),
        NAMES[1]: functools.partial(drawn.draw_bubbles, cells),
    }


def build_sections(
    measured: Sequence[Measurement], pictures: Mapping[str, Picture]
) -> list[Section]:
    """Build the section; return an empty list without cells."""
    cells = table.select_technology_cells(measured)
    if not cells:
        return []
    parts: list[Part] = [
        "The same jobs, on the same machine, by technologies that protect from different people. "
        "Times on a LAN and a WAN are modeled alike for all: computing, a delay for each message "
        "on the critical path, and the bytes on it over the rate. Three workers share the cores of "
        "this machine; on a LAN each has its own, so a modeled LAN may be faster."
    ]
    captions = (
        (
            "seconds of each job by each technology",
            "Time of each job on this machine. Hatched: modeled, or a part that is "
            "extrapolated. No bar: not supported, or not measured.",
        ),
        (
            "seconds on a WAN by bytes, colored by what leaks",
            "Time on a WAN (modeled) by bytes that all send; the larger, the more rounds. "
            "Green: only the client learns anything. Orange: the server learns results. "
            "Red: it learns the inputs.",
        ),
    )
    drawn = zip(NAMES, captions, strict=True)
    parts += [Figure(pictures[name], *words) for name, words in drawn if name in pictures]
    known = [m for m in cells if "unsupported" not in m.figures]
    parts += [
        columns.build_table(_COLUMNS, known, _CAPTION),
        _list_protections(cells),
        *_list_missing(cells),
    ]
    return [Section("technologies", "What private computing costs", parts)]


def _mark_leakage(m: Measurement) -> str:
    if m.correct is False:
        return "WRONG"
    if "extrapolated" in m.figures:
        return "extrapolated"
    return "projected" if "latency_seconds" in m.modeled else ""


_COLUMNS: Final[Mapping[str, Column]] = {
    "job": lambda m: f"{m.job} {table.technology_cell_variant(m)}".strip(),
    "technology": lambda m: m.technology,
    "here, ms": columns.figure_column("latency_seconds", scale=1000),
    "": _mark_leakage,
    "LAN, ms (modeled)": columns.figure_column("lan_seconds", scale=1000),
    "WAN, ms (modeled)": columns.figure_column("wan_seconds", scale=1000),
    "slowdown": columns.figure_column("slowdown", cells.ratio),
    "per second": columns.figure_column("samples_per_second"),
    "up, MB": columns.figure_column("up_bytes", cells.megabytes),
    "down, MB": columns.figure_column("down_bytes", cells.megabytes),
    "all, MB": columns.figure_column("total_bytes", cells.megabytes),
    "rounds": columns.figure_column("rounds", columns.format_rounded),
    "others learn": columns.text_column("leakage"),
    "key rank / length, %": columns.figure_column("key_rank_over_length", cells.percent, 100),
    "setup, s": columns.figure_column("setup_seconds"),
    "keys, MB": columns.figure_column("key_bytes", cells.megabytes),
    "memory, MB": columns.figure_column("memory_bytes", cells.megabytes),
    "largest error": columns.figure_column(
        "max_error", functools.partial(cells.report_number_cell, "{:.2g}".format, "")
    ),
    "accuracy, %": columns.figure_column("accuracy", cells.percent, 100),
    "plaintext, %": columns.figure_column("accuracy_plain", cells.percent, 100),
    "security, bits": columns.figure_column("security_bits", columns.format_rounded),
}
_CAPTION: Final = (
    "All cells. Slowdown: of the time here against plaintext's. Up and down: between client and "
    "servers; all: with what servers send each other. A round is a message on the critical path, "
    "the client's question and its answer among them. Accuracy is of as many test pictures as the "
    "record says."
)
_PROTECTION_COLUMNS: Final[Mapping[str, Column]] = {
    "technology": lambda m: m.technology,
    "who learns what": columns.text_column("learns"),
    "others learn": columns.text_column("leakage"),
    "protects from": columns.text_column("adversary"),
    "parties": columns.text_column("parties"),
    "whom one trusts": columns.text_column("trust"),
}


def _list_protections(cells: Sequence[Measurement]) -> Table:
    """Build a table of security promises, from the first cell of each technology."""
    first: dict[tuple[str, str], Measurement] = {}
    for name in TECHNOLOGIES:
        for m in cells:
            if m.technology == name and "learns" in m.figures:
                first.setdefault((name, str(m.figures["learns"])), m)
    caption = "What each technology promises, besides the client's own part."
    return columns.build_table(_PROTECTION_COLUMNS, first.values(), caption)


def _list_missing(cells: Sequence[Measurement]) -> list[Part]:
    """List the reasons why technologies have no figures of a job."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for m in cells:
        if (reason := m.figures.get("unsupported")) is not None:
            label = f"{m.job} {table.technology_cell_variant(m)}".strip()
            reasons.setdefault((m.technology, str(reason)), []).append(label)
    if not reasons:
        return []
    lines = [f"{', '.join(jobs)}: {reason}" for (_, reason), jobs in reasons.items()]
    job_texts = "; ".join(f"{job}: {about}" for job, about in JOBS.items())
    return [
        f"Not in the table, and why ({job_texts}):",
        Items(lines, [name for name, _ in reasons]),
    ]
