"""The report's section on all technologies: two pictures and tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tfe_bench.benchmarks.report import cells
from tfe_bench.benchmarks.report.drawing import Maker, Picture
from tfe_bench.benchmarks.report.parts import Cell, Figure, Items, Part, Section, Table
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
    parts += [_build_technology_table(cells), _list_protections(cells), *_list_missing(cells)]
    return [Section("technologies", "What private computing costs", parts)]


def _build_technology_table(measured_cells: Sequence[Measurement]) -> Table:
    known = [m for m in measured_cells if "unsupported" not in m.figures]

    def seconds(network: str) -> Callable[[Measurement], Cell]:
        def cell(m: Measurement) -> Cell:
            value = table.technology_cell_seconds(m, network)
            return cells.seconds(None if value is None else 1000 * value)

        return cell

    def number(name: str, show: Callable[[float | None], Cell]) -> Callable[[Measurement], Cell]:
        return lambda m: show(table.read_technology_figure(m, name))

    def percent(name: str) -> Callable[[Measurement], Cell]:
        def cell(m: Measurement) -> Cell:
            value = table.read_technology_figure(m, name)
            return cells.percent(None if value is None else 100 * value)

        return cell

    def whole(name: str) -> Callable[[Measurement], Cell]:
        def cell(m: Measurement) -> Cell:
            value = table.read_technology_figure(m, name)
            return cells.whole(None if value is None else round(value))

        return cell

    columns: dict[str, Callable[[Measurement], Cell]] = {
        "job": lambda m: f"{m.job} {table.technology_cell_variant(m)}".strip(),
        "technology": lambda m: m.technology,
        "here, ms": seconds("local"),
        "": _mark_leakage,
        "LAN, ms (modeled)": seconds("lan"),
        "WAN, ms (modeled)": seconds("wan"),
        "slowdown": number("slowdown", cells.ratio),
        "per second": number("samples_per_second", cells.seconds),
        "up, MB": number("up_bytes", cells.megabytes),
        "down, MB": number("down_bytes", cells.megabytes),
        "all, MB": number("total_bytes", cells.megabytes),
        "rounds": whole("rounds"),
        "others learn": lambda m: str(m.figures.get("leakage", "")),
        "key rank / length, %": percent("key_rank_over_length"),
        "setup, s": number("setup_seconds", cells.seconds),
        "keys, MB": number("key_bytes", cells.megabytes),
        "memory, MB": number("memory_bytes", cells.megabytes),
        "largest error": number(
            "max_error", functools.partial(cells.report_number_cell, "{:.2g}".format, "")
        ),
        "accuracy, %": percent("accuracy"),
        "plaintext, %": percent("accuracy_plain"),
        "security, bits": whole("security_bits"),
    }
    caption = (
        "All cells. Slowdown: of the time here against plaintext's. Up and down: between client "
        "and servers; all: with what servers send each other. A round is a message on the "
        "critical path, the client's question and its answer among them. Accuracy is of as many "
        "test pictures as the record says."
    )
    rows = [[cell(m) for cell in columns.values()] for m in known]
    return Table([*columns], rows, caption)


def _mark_leakage(m: Measurement) -> str:
    if m.correct is False:
        return "WRONG"
    if "extrapolated" in m.figures:
        return "extrapolated"
    return "projected" if "latency_seconds" in m.modeled else ""


def _list_protections(cells: Sequence[Measurement]) -> Table:
    """Build a table of security promises, from the first cell of each technology."""
    first: dict[tuple[str, str], Measurement] = {}
    for name in TECHNOLOGIES:
        for m in cells:
            if m.technology == name and "learns" in m.figures:
                first.setdefault((name, str(m.figures["learns"])), m)
    columns: dict[str, Callable[[Measurement], Cell]] = {
        "technology": lambda m: m.technology,
        "who learns what": lambda m: str(m.figures["learns"]),
        "others learn": lambda m: str(m.figures.get("leakage", "")),
        "protects from": lambda m: str(m.figures.get("adversary", "")),
        "parties": lambda m: str(m.figures.get("parties", "")),
        "whom one trusts": lambda m: str(m.figures.get("trust", "")),
    }
    rows = [[cell(m) for cell in columns.values()] for m in first.values()]
    return Table([*columns], rows, "What each technology promises, besides the client's own part.")


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
