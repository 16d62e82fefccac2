"""Two pictures of the comparison: bars of time, and bubbles of time by bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tfe_bench.benchmarks.report import drawing
from tfe_bench.benchmarks.report.drawing import NARROW, Theme, new_figure
from tfe_bench.benchmarks.table import human_bytes, human_seconds
from tfe_bench.benchmarks.technologies.compare import table
from tfe_bench.benchmarks.technologies.compare.cells import INPUTS, LEAKAGES, TECHNOLOGIES
from tfe_bench.benchmarks.technologies.measurement import Measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_COLORS: Final = {
    "plaintext": drawing.GREY,
    "secret-sharing": drawing.BLUE,
    "functional": drawing.ORANGE,
    "homomorphic": drawing.GREEN,
    "storage": drawing.PINK,
}
_LEAKS: Final = dict(zip(LEAKAGES, (drawing.GREEN, drawing.ORANGE, drawing.RED), strict=True))
_MARKERS: Final = dict(zip(TECHNOLOGIES, "Xo^sD", strict=True))
_BAR: Final = 0.16  # inches
_MOST_ROWS: Final = 40


def draw_bars(cells: Sequence[Measurement], theme: Theme, narrow: bool) -> Drawing | None:
    """Draw seconds on this machine, one group of bars for each job."""
    known = [m for m in cells if (table.technology_cell_seconds(m) or 0.0) > 0]
    labels = list(dict.fromkeys(_label_measurement(m) for m in known))[:_MOST_ROWS]
    if not labels:
        return None
    names = [name for name in TECHNOLOGIES if any(m.technology == name for m in known)]
    group = len(names) + 1
    figure = new_figure(NARROW if narrow else 8.2, 1.4 + _BAR * group * len(labels))
    axes: Any = figure.subplots()
    for place, name in enumerate(names):
        technology_cells = [
            m for m in known if m.technology == name and _label_measurement(m) in labels
        ]
        drawn = axes.barh(
            [labels.index(_label_measurement(m)) * group + place for m in technology_cells],
            [table.technology_cell_seconds(m) for m in technology_cells],
            0.9,
            color=_COLORS[name],
            label=name,
        )
        for bar, m in zip(drawn, technology_cells, strict=True):
            if "latency_seconds" in m.modeled:
                bar.set(hatch="////", edgecolor=theme.paper, linewidth=0)
    axes.set_yticks([i * group + (group - 2) / 2 for i in range(len(labels))], labels)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set(xscale="log", xlabel="seconds on this machine")
    _thin_ticks(axes.xaxis, narrow)
    drawing.set_plain_ticks(axes.xaxis, human_seconds)
    axes.grid(axis="x")
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside upper center",
        ncols=2 if narrow else len(names),
    )
    return figure


def draw_bubbles(cells: Sequence[Measurement], theme: Theme, narrow: bool) -> Drawing | None:
    """Draw seconds on a WAN by bytes; the color shows the leakage, the shape the technology."""
    points = [
        (m, total, seconds)
        for m in cells
        if (total := table.read_technology_figure(m, "total_bytes") or 0.0) > 0
        and (seconds := table.technology_cell_seconds(m, "wan") or 0.0) > 0
    ]
    if not points:
        return None
    figure = new_figure(NARROW if narrow else 8.2, 5.6)
    axes: Any = figure.subplots()
    for m, total, seconds in points:
        leaks = str(m.figures.get("leakage", INPUTS))
        rounds = max(2.0, table.read_technology_figure(m, "rounds") or 2.0)
        axes.scatter(
            total,
            seconds,
            s=40 + 40 * math.log2(rounds / 2),
            marker=_MARKERS[m.technology],
            color=_LEAKS.get(leaks, drawing.RED),
            alpha=0.75,
            edgecolor=theme.ink,
            linewidth=0.6,
            zorder=3,
        )
        axes.annotate(
            m.job, (total, seconds), xytext=(4, 4), textcoords="offset points", fontsize=6.5
        )
    axes.set(xscale="log", xlabel="bytes that all send")
    axes.set(yscale="log", ylabel="seconds on a WAN, modeled")
    _thin_ticks(axes.xaxis, narrow)
    drawing.set_plain_ticks(axes.xaxis, human_bytes)
    drawing.set_plain_ticks(axes.yaxis, human_seconds)
    axes.grid()
    _draw_legend(figure, axes, theme, [m for m, *_ in points], narrow)
    return figure


def _draw_legend(
    figure: Any, axes: Any, theme: Theme, cells: Sequence[Measurement], narrow: bool
) -> None:
    """Draw a legend of shapes (technologies) and colors (leakage) with empty scatter plots."""
    shapes = [name for name in TECHNOLOGIES if any(m.technology == name for m in cells)]
    leaks = [name for name in LEAKAGES if any(m.figures.get("leakage") == name for m in cells)]
    look = {"s": 50, "edgecolor": theme.ink, "linewidth": 0.6}
    for name in shapes:
        axes.scatter([], [], marker=_MARKERS[name], color=theme.paper, label=name, **look)
    for name in leaks:
        axes.scatter([], [], marker="o", color=_LEAKS[name], label=f"others learn {name}", **look)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper center", ncols=2 if narrow else 4
    )


def _label_measurement(m: Measurement) -> str:
    return f"{m.job} {table.technology_cell_variant(m)}".strip()[:24]


def _thin_ticks(axis: Any, narrow: bool) -> None:
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(numticks=3 if narrow else 9))
