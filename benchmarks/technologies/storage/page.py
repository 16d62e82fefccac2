"""The report's section on storage devices: published tables and ours, projections, validations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tfe_bench.benchmarks.report import cells, drawing
from tfe_bench.benchmarks.report.drawing import Maker, Picture, Theme
from tfe_bench.benchmarks.report.parts import Cell, Figure, Part, Section, Table
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.benchmarks.technologies.storage.projections import (
    PROJECTION,
    PUBLISHED,
    TECHNOLOGY,
    VALIDATION,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAMES: Final = ("storage",)
_LOOKS: Final = {
    "fpga-ssd": (drawing.ORANGE, "FPGA and SSD"),
    "fpga": (drawing.BLUE, "FPGA only"),
    "csd": (drawing.GREEN, "storage device"),
}
_MOST_ROWS: Final = 200


def list_pictures(measured: Sequence[Measurement]) -> dict[str, Maker]:
    """Return the maker of the picture of both published tables."""
    return {
        "storage": functools.partial(
            _draw_tables, _latest_storage_measurements(measured, PUBLISHED)
        )
    }


def build_sections(
    measured: Sequence[Measurement], pictures: Mapping[str, Picture]
) -> list[Section]:
    """Build the section; return an empty list without measurements."""
    parts: list[Part] = []
    if tables := _latest_storage_measurements(measured, PUBLISHED):
        parts += _build_published_storage(tables, pictures)
    if runs := _latest_storage_measurements(measured, VALIDATION):
        parts.append(_build_storage_validation(runs))
    if projected := _latest_storage_measurements(measured, PROJECTION):
        parts.append(_build_storage_projections(projected))
    return [Section("storage", "Homomorphic inference on storage devices", parts)] if parts else []


def _latest_storage_measurements(measured: Sequence[Measurement], job: str) -> list[Measurement]:
    """Select the newest measurement of each set of parameters, in order of first measurement."""
    mine = [m for m in measured if m.technology == TECHNOLOGY and m.job == job]
    newest = {repr(m.parameters): m for m in sorted(mine, key=lambda m: m.time)}
    return list(newest.values())[:_MOST_ROWS]


def _read_storage_figure(m: Measurement, name: str) -> float | None:
    """Read a number of an untrusted record; None if it is missing or no number."""
    value = m.figures.get(name)
    return float(value) if isinstance(value, int | float) else None


def _read_parameter(m: Measurement, name: str) -> str:
    return str(m.parameters.get(name, ""))


def _build_published_storage(
    tables: list[Measurement], pictures: Mapping[str, Picture]
) -> list[Part]:
    worst = max((abs(_read_storage_figure(m, "difference") or 0.0) for m in tables), default=0.0)
    parts: list[Part] = [
        "A published simulation runs a homomorphic network where its weights lie: 3.3 GB of "
        "plaintexts and 0.5 GB of keys go through each inference. Three layers that are read in "
        "the order of use, while earlier ones compute, give every cell of its two tables: the "
        f"largest difference is {100 * worst:.2f} %."
    ]
    if "storage" in pictures:
        parts.append(
            Figure(
                pictures["storage"],
                "seconds of an inference by bandwidth, and by the number of devices",
                "Circles: published. Lines: ours, of the three-layer model. One published cell is "
                "empty: FPGA and SSD, 32 devices.",
            )
        )
    columns: dict[str, Callable[[Measurement], Cell]] = {
        "configuration": lambda m: _LOOKS.get(_read_parameter(m, "configuration"), ("", "?"))[1],
        "devices": lambda m: cells.whole(_format_number(m, "devices")),
        "GB/s each": lambda m: cells.seconds(_format_number(m, "gigabytes_per_second")),
        "published, ms": lambda m: (
            _format_milliseconds(m, "published_seconds")
            if "published_seconds" in m.figures
            else str(m.figures.get("published", ""))
        ),
        "ours, ms (modeled)": lambda m: _format_milliseconds(m, "latency_seconds"),
        "simulated, ms (modeled)": lambda m: _format_milliseconds(m, "simulated_seconds"),
        "difference": lambda m: cells.report_number_cell(
            "{:+.2f}".format, " %", _format_percent(m, "difference")
        ),
    }
    return [*parts, _build_storage_table(columns, tables, "Both published tables, cell by cell.")]


def _build_storage_validation(runs: list[Measurement]) -> Table:
    columns: dict[str, Callable[[Measurement], Cell]] = {
        "GB/s": lambda m: cells.seconds(_format_number(m, "gigabytes_per_second")),
        "reached": lambda m: cells.seconds(_read_storage_figure(m, "reached_gigabytes_per_second")),
        "measured, s": lambda m: cells.seconds(m.seconds.median if m.seconds else None),
        "predicted, s": lambda m: cells.seconds(_read_storage_figure(m, "predicted_seconds")),
        "off by": lambda m: cells.report_number_cell(
            "{:+.1f}".format, " %", _format_percent(m, "difference")
        ),
        "from costs, s": lambda m: cells.seconds(
            _read_storage_figure(m, "predicted_from_costs_seconds")
        ),
        "off by ": lambda m: cells.report_number_cell(
            "{:+.1f}".format, " %", _format_percent(m, "difference_from_costs")
        ),
    }
    return _build_storage_table(
        columns,
        runs,
        "A real network under CKKS on this machine, its weights read from a file that gives them "
        "at a set rate, and what the model predicts: from when each plaintext is asked for with "
        "all of them in memory, and layer by layer from counts of operations times costs.",
    )


def _build_storage_projections(projected: list[Measurement]) -> Table:
    columns: dict[str, Callable[[Measurement], Cell]] = {
        "model": lambda m: _read_parameter(m, "model"),
        "device": lambda m: _read_parameter(m, "device"),
        "devices": lambda m: cells.whole(_format_number(m, "devices")),
        "clients": lambda m: cells.whole(_format_number(m, "clients")),
        "GB/s each": lambda m: cells.seconds(_format_number(m, "gigabytes_per_second")),
        "asked per s": lambda m: cells.seconds(_format_number(m, "arrivals_per_second")),
        "alone, s": lambda m: cells.seconds(_read_storage_figure(m, "latency_seconds")),
        "median, s": lambda m: cells.seconds(_read_storage_figure(m, "median_seconds")),
        "p95, s": lambda m: cells.seconds(_read_storage_figure(m, "p95_seconds")),
        "per s": lambda m: cells.seconds(_read_storage_figure(m, "throughput_per_second")),
        "computing": lambda m: cells.part(_format_percent(m, "computing")),
        "keys there": lambda m: cells.whole(m.figures.get("key_hits")),
        "memory, MB": lambda m: cells.megabytes(_read_storage_figure(m, "peak_memory_bytes")),
        "breaks even, GB/s": lambda m: cells.seconds(
            _per_giga(_read_storage_figure(m, "break_even_bytes_per_second"))
        ),
        "reading is free from, GB/s": lambda m: cells.seconds(
            _per_giga(_read_storage_figure(m, "hidden_bytes_per_second"))
        ),
    }
    return _build_storage_table(
        columns,
        projected,
        "Projections: all figures are modeled, by a simulation of events. It breaks even where a "
        "device is as fast as the processor that its costs were measured on.",
    )


def _build_storage_table(
    columns: Mapping[str, Callable[[Measurement], Cell]], rows: list[Measurement], caption: str
) -> Table:
    return Table([*columns], [[cell(m) for cell in columns.values()] for m in rows], caption)


def _format_number(m: Measurement, name: str) -> float | None:
    value = m.parameters.get(name)
    return value if isinstance(value, int | float) else None


def _format_milliseconds(m: Measurement, name: str) -> Cell:
    value = _read_storage_figure(m, name)
    return cells.whole(None if value is None else round(1000 * value))


def _format_percent(m: Measurement, name: str) -> float | None:
    value = _read_storage_figure(m, name)
    return None if value is None else 100 * value


def _per_giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9


# ---- the picture


def _draw_tables(tables: list[Measurement], theme: Theme, narrow: bool) -> Drawing | None:
    if not tables:
        return None
    figure, (by_bandwidth, by_devices) = drawing.new_panels(1, 2, narrow, (4.6, 3.7))
    first = [m for m in tables if m.parameters.get("table") == "bandwidth"]
    second = [m for m in tables if m.parameters.get("table") == "devices"]
    _draw_lines(by_bandwidth, theme, first, "gigabytes_per_second", {"fpga": (drawing.BLUE, "")})
    by_bandwidth.set(xlabel="GB/s between storage and device", ylabel="seconds")
    _draw_lines(by_devices, theme, second, "devices", _LOOKS)
    by_devices.set(xlabel="devices")
    titles = ("one device", "devices that share the host's lanes")
    for axes, title in zip((by_bandwidth, by_devices), titles, strict=True):
        axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, None)
        drawing.set_plain_ticks(axes.xaxis, "{:g}".format)
        axes.grid()
        drawing.add_legend(axes, narrow, loc="best")
    return figure


def _draw_lines(
    axes: Any,
    theme: Theme,
    tables: list[Measurement],
    across: str,
    looks: Mapping[str, tuple[str, str]],
) -> None:
    for name, (color, label) in looks.items():
        cells = [m for m in tables if m.parameters.get("configuration") == name]
        ours = [
            (x, y)
            for m in cells
            if (x := _format_number(m, across))
            and (y := _read_storage_figure(m, "latency_seconds"))
        ]
        theirs = [
            (x, y)
            for m in cells
            if (x := _format_number(m, across))
            and (y := _read_storage_figure(m, "published_seconds"))
        ]
        if theirs:
            axes.scatter(
                *zip(*theirs, strict=True),
                s=62,
                facecolor=theme.paper,
                edgecolor=color,
                linewidth=1.4,
                zorder=3,
                label=f"{label}, published".lstrip(", "),
            )
        if ours:
            axes.plot(*zip(*ours, strict=True), color=color, label=f"{label}, ours".lstrip(", "))
