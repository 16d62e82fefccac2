"""The report's section on storage devices: published tables and ours, projections, validations."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tfe_bench.benchmarks.report import cells, drawing
from tfe_bench.benchmarks.report.drawing import Maker, Picture, Theme
from tfe_bench.benchmarks.report.parts import Figure, Part, Section
from tfe_bench.benchmarks.technologies import columns
from tfe_bench.benchmarks.technologies.columns import Column
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


def _percent_column(name: str, digits: int) -> Column:
    show = functools.partial(cells.report_number_cell, f"{{:+.{digits}f}}".format, " %")
    return columns.figure_column(name, show, 100)


def _giga_column(name: str) -> Column:
    return columns.figure_column(name, lambda v: cells.seconds(None if v is None else v / 1e9))


def _milliseconds_column(name: str) -> Column:
    return columns.figure_column(name, columns.format_rounded, 1000)


_PUBLISHED_COLUMNS: Final[Mapping[str, Column]] = {
    "configuration": lambda m: _LOOKS.get(str(m.parameters.get("configuration")), ("", "?"))[1],
    "devices": columns.parameter_column("devices", cells.whole),
    "GB/s each": columns.parameter_column("gigabytes_per_second"),
    "published, ms": lambda m: (
        _milliseconds_column("published_seconds")(m)
        if "published_seconds" in m.figures
        else str(m.figures.get("published", ""))
    ),
    "ours, ms (modeled)": _milliseconds_column("latency_seconds"),
    "simulated, ms (modeled)": _milliseconds_column("simulated_seconds"),
    "difference": _percent_column("difference", 2),
}
_VALIDATION_COLUMNS: Final = {
    "GB/s": columns.parameter_column("gigabytes_per_second"),
    "reached": columns.figure_column("reached_gigabytes_per_second"),
    "measured, s": columns.median_column(),
    "predicted, s": columns.figure_column("predicted_seconds"),
    "off by": _percent_column("difference", 1),
    "from costs, s": columns.figure_column("predicted_from_costs_seconds"),
    "off by ": _percent_column("difference_from_costs", 1),
}
_VALIDATION_CAPTION: Final = (
    "A real network under CKKS on this machine, its weights read from a file that gives them at a "
    "set rate, and what the model predicts: from when each plaintext is asked for with all of them "
    "in memory, and layer by layer from counts of operations times costs."
)
_PROJECTION_COLUMNS: Final = {
    "model": columns.text_column("model", "parameters"),
    "device": columns.text_column("device", "parameters"),
    "devices": columns.parameter_column("devices", cells.whole),
    "clients": columns.parameter_column("clients", cells.whole),
    "GB/s each": columns.parameter_column("gigabytes_per_second"),
    "asked per s": columns.parameter_column("arrivals_per_second"),
    "alone, s": columns.figure_column("latency_seconds"),
    "median, s": columns.figure_column("median_seconds"),
    "p95, s": columns.figure_column("p95_seconds"),
    "per s": columns.figure_column("throughput_per_second"),
    "computing": columns.figure_column("computing", cells.part, 100),
    "keys there": columns.figure_column("key_hits", cells.whole),
    "memory, MB": columns.figure_column("peak_memory_bytes", cells.megabytes),
    "breaks even, GB/s": _giga_column("break_even_bytes_per_second"),
    "reading is free from, GB/s": _giga_column("hidden_bytes_per_second"),
}
_PROJECTION_CAPTION: Final = (
    "Projections: all figures are modeled, by a simulation of events. It breaks even where a "
    "device is as fast as the processor that its costs were measured on."
)


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
        parts.append(columns.build_table(_VALIDATION_COLUMNS, runs, _VALIDATION_CAPTION))
    if projected := _latest_storage_measurements(measured, PROJECTION):
        parts.append(columns.build_table(_PROJECTION_COLUMNS, projected, _PROJECTION_CAPTION))
    return [Section("storage", "Homomorphic inference on storage devices", parts)] if parts else []


def _latest_storage_measurements(measured: Sequence[Measurement], job: str) -> list[Measurement]:
    """Select the newest measurement of each set of parameters, in order of first measurement."""
    mine = [m for m in measured if m.technology == TECHNOLOGY and m.job == job]
    newest = {repr(m.parameters): m for m in sorted(mine, key=lambda m: m.time)}
    return list(newest.values())[:_MOST_ROWS]


def _build_published_storage(
    tables: list[Measurement], pictures: Mapping[str, Picture]
) -> list[Part]:
    worst = max(abs(columns.read_number(m.figures, "difference") or 0.0) for m in tables)
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
    caption = "Both published tables, cell by cell."
    return [*parts, columns.build_table(_PUBLISHED_COLUMNS, tables, caption)]


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
    for configuration, (color, label) in looks.items():
        cells = [m for m in tables if m.parameters.get("configuration") == configuration]
        ours, theirs = (
            [
                (x, y)
                for m in cells
                if (x := columns.read_number(m.parameters, across))
                and (y := columns.read_number(m.figures, name))
            ]
            for name in ("latency_seconds", "published_seconds")
        )
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
