"""The pictures of records: time against n, the network's share, each party's bytes and memory."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.fields import PerParty
from tfe_bench.benchmarks.published import PublishedFigure
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report import drawing, learning, network
from tfe_bench.benchmarks.report.comparison_columns import (
    format_published_size,
    latest_records,
    plain_profile,
    record_extents,
)
from tfe_bench.benchmarks.report.drawing import NARROW, Picture, Theme, new_figure, set_plain_ticks
from tfe_bench.benchmarks.table import human_bytes, strip_control

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAMES: Final = ("time", "network", "bytes", "memory", "learning")
MOST_ROWS: Final = 24
_MOST_WORKLOADS: Final = 6
_OURS: Final = {
    **{"local": drawing.BLUE, "lan": drawing.GREEN, "wan": drawing.RED},
    **{"net0": drawing.SKY, "net1": drawing.ORANGE, "net2": drawing.PINK, "net3": drawing.GREY},
}
_MARKERS: Final = "sDv^<>PX*h"
_PARTIES: Final = (drawing.BLUE, drawing.ORANGE, drawing.GREEN)


def draw_record_plots(records: Sequence[Record]) -> dict[str, Picture]:
    """Draw the possible pictures of the records; skip a picture that would be empty.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    newest = latest_records(records)
    makers = dict(
        zip(
            NAMES,
            (_plot_time, _plot_network, _plot_bytes, _plot_memory, _plot_learning),
            strict=True,
        )
    )
    return drawing.draw_pictures(
        {name: functools.partial(make, newest) for name, make in makers.items()}
    )


def _profile_color(profile: str) -> str:
    return _OURS.get(profile, "#555555")


def _record_label(record: Record) -> str:
    size = "x".join(f"{n:,}" for n in record_extents(record) or ()) or format_published_size(record)
    return strip_control(f"{record.workload} {size}".strip())[:48]


# ---- time against n


def _panel_profile(profile: str) -> str:
    """Return the profile of a panel; the loopback shares the panel of LANs."""
    return "lan" if profile in ("local", "lan", "net0") else profile


def _trailing_record_extents(size: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the extents after the first, which grows."""
    return size[1:] if size and size[0] > 0 else None


def _plotted_workloads(records: Sequence[Record]) -> list[tuple[str, tuple[int, ...]]]:
    """Return (workload, extents after the first) with enough sizes for a plot of time against n."""
    kinds = {
        (r.workload, kind): None
        for r in records
        if (kind := _trailing_record_extents(record_extents(r))) is not None
    }
    known = {(f.workload, f.elements[1:]) for f in published.load_figures() if f.elements}
    columns = {_panel_profile(plain_profile(r)) for r in records}

    def has_line(workload: str, rest: tuple[int, ...]) -> bool:
        return any(
            len({record_extents(r) for r in group}) > 1
            for column in columns
            for group in _plotted_record_series(records, workload, rest, column).values()
        )

    chosen = [kind for kind in kinds if kind in known or has_line(*kind)]
    return sorted(chosen, key=lambda kind: kind not in known)[:_MOST_WORKLOADS]


def _plot_time(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    workloads = _plotted_workloads(records)
    if not workloads:
        return None
    known = [*_OURS]
    columns = sorted(
        {_panel_profile(plain_profile(r)) for r in records},
        key=lambda name: known.index(name) if name in known else len(known),
    )
    panels = [(workload, column) for workload in workloads for column in columns]
    series = {(w, c): _plotted_record_series(records, *w, c) for w, c in panels}
    theirs = {
        (workload, rest): [
            f
            for f in published.load_figures()
            if f.workload == workload and f.elements and f.elements[1:] == rest
        ]
        for workload, rest in workloads
    }
    if narrow:
        # A legend's lines add to what the axes need.
        lines = [len(series[w, c]) + len(_published_systems(theirs[w], c)) for w, c in panels]
        heights = [3.1 + 0.22 * count for count in lines]
        figure = new_figure(NARROW, sum(heights))
        grid: Any = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    else:
        figure = new_figure(max(7.6, 5.4 * len(columns)), 3.7 * len(workloads))
        grid = figure.subplots(len(workloads), len(columns), squeeze=False, sharey="row")
    for (workload, column), axes in zip(panels, grid.flat, strict=True):
        _plot_panel(axes, column, theirs[workload], series[workload, column], theme, narrow)
        name, rest = workload
        network_name = "loopback and LAN" if column == "lan" else strip_control(column)
        shape = "".join(f" x {n}" for n in rest)
        title = f"{strip_control(name)}{' of n' + shape if shape else ''}, {network_name}"
        axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
    for row in grid:
        row[0].set_ylabel("seconds")
        # Of all panels of the row, which share the axis: whole decades, and room for the legend.
        low, high = row[0].get_ylim()
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        row[0].set_ylim(low, high if narrow else high * (high / low) ** 0.3)
    return figure


def _published_systems(theirs: list[PublishedFigure], column: str) -> list[tuple[str, str]]:
    """Return (system, profile) of the published figures that a panel shows."""
    shown = ("lan", "local") if column == "lan" else (column,)
    return sorted({(f.system, f.profile) for f in theirs if f.profile in shown})


def _plotted_record_series(
    records: Sequence[Record], workload: str, rest: tuple[int, ...], column: str
) -> dict[str, list[Record]]:
    """Return the lines of one panel: records that differ in n alone, by label."""
    groups: dict[str, list[Record]] = {}
    words: dict[str, tuple[str, str]] = {}
    for record in records:
        profile = plain_profile(record)
        if (
            record.workload,
            _trailing_record_extents(record_extents(record)),
            _panel_profile(profile),
        ) != (workload, rest, column):
            continue
        varying = ("n", "shape", "source")
        options = {k: v for k, v in record.parameters.items() if k not in varying}
        key = f"{profile} {sorted(options.items())!r} {record.cluster} {record.machine!r}"
        groups.setdefault(key, []).append(record)
        words[key] = (profile, ", ".join(f"{k} {v}" for k, v in options.items() if v is not False))
    profiles = [profile for profile, _ in words.values()]
    series: dict[str, list[Record]] = {}
    for key, group in groups.items():
        profile, options_text = words[key]
        label = f"ours, {profile}"
        if profiles.count(profile) > 1:
            label += f" ({options_text})"
        label = strip_control(label)[:60]
        while label in series:
            label += "'"
        series[label] = sorted(group, key=lambda r: record_extents(r) or ())
    return series


def _plot_panel(
    axes: Any,
    column: str,
    theirs: list[PublishedFigure],
    series: dict[str, list[Record]],
    theme: Theme,
    narrow: bool,
) -> None:
    for label, group in series.items():
        n = [(record_extents(r) or (1,))[0] for r in group]
        times = [r.seconds for r in group]
        spread = [t.median - t.min for t in times], [t.max - t.median for t in times]
        color = _profile_color(plain_profile(group[0]))
        median = [t.median for t in times]
        axes.errorbar(n, median, spread, fmt="o-", color=color, label=label, zorder=3)
    systems = _published_systems(theirs, column)
    for i, (system, profile) in enumerate(systems):
        points = sorted(
            (f.elements[0], f.seconds)
            for f in theirs
            if f.elements and (f.system, f.profile) == (system, profile)
        )
        axes.plot(
            *zip(*points, strict=True),
            # points of other systems are different variants: no line connects them
            ls=":" if system.startswith("tf-encrypted") else "",
            lw=1.0,
            marker=_MARKERS[i % len(_MARKERS)],
            color=theme.faint,
            **{"markerfacecolor": theme.paper, "markeredgecolor": theme.ink},
            **{"markeredgewidth": 1.1, "markersize": 6},
            label=f"{system}, published ({'one host' if profile == 'local' else profile})",
        )
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="n")
    set_plain_ticks(axes.yaxis, lambda v: f"{v:,g}" if v < 1e6 else f"{v:.0e}")
    drawing.set_power_ticks(axes.xaxis, 2)
    axes.grid()
    if series or systems:
        drawing.add_legend(axes, narrow, loc="upper left")


# ---- the network's share


def _plot_network(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    by_profile: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        share = network.network_share(record)
        if share is not None and share.latency > 0:
            point = share.latency, record.seconds.median
            by_profile.setdefault(plain_profile(record), []).append(point)
    if not by_profile:
        return None
    figure = new_figure(*((NARROW, 4.4) if narrow else (7.6, 4.6)))
    axes: Any = figure.subplots()
    for profile, points in by_profile.items():
        look = {"s": 34, "edgecolor": theme.paper, "linewidth": 0.6, "zorder": 3}
        latency, seconds = zip(*points, strict=True)
        axes.scatter(
            latency, seconds, color=_profile_color(profile), label=strip_control(profile), **look
        )
    measured = [s for points in by_profile.values() for _, s in points if s > 0]
    ends = [min(measured, default=1.0) / 3, max(measured, default=1.0) * 3]
    axes.plot(ends, ends, color=theme.faint, lw=1.2, label="time = rounds x latency")
    axes.set(xscale="log", xlabel="rounds x one-way latency, seconds")
    axes.set(yscale="log", ylabel="measured, seconds")
    for axis in (axes.xaxis, axes.yaxis):
        set_plain_ticks(axis, lambda v: f"{v:,g}")
    axes.grid()
    drawing.add_legend(axes, narrow, loc="lower right")
    return figure


# ---- what trainings have learned


def _plot_learning(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    curves = learning.collect_curves(records)
    panels = len({(c.model, c.dataset) for c in curves})
    if not panels:
        return None
    columns = 1 if narrow else min(panels, 3)
    rows = math.ceil(panels / columns)
    width = NARROW if narrow else max(5.6, 4.4 * columns)
    figure = new_figure(width, (4.3 if narrow else 3.9) * rows)
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    legend = functools.partial(drawing.add_legend, narrow=narrow, loc="lower right")
    learning.draw_curves(curves, theme, list(grid.flat), legend)
    return figure


# ---- figures of each party


def _plot_bytes(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    rows = {_record_label(r): r.bytes_sent for r in records if r.bytes_sent is not None}
    return _plot_parties(rows, "bytes sent in one run", theme, narrow)


def _plot_memory(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    rows: dict[str, PerParty] = {}
    for record in records:
        if record.peak_memory is not None:
            name = _record_label(record)
            a, b, c = map(max, zip(rows.get(name, (0, 0, 0)), record.peak_memory, strict=True))
            rows[name] = (a, b, c)
    return _plot_parties(rows, "growth above an idle worker, bytes", theme, narrow)


def _plot_parties(
    rows: dict[str, PerParty], label: str, theme: Theme, narrow: bool
) -> Drawing | None:
    from matplotlib.ticker import LogLocator

    shown = [(name, values) for name, values in rows.items() if max(values) > 0][:MOST_ROWS]
    if not shown:
        return None
    figure = new_figure(NARROW if narrow else 8.2, 1.3 + 0.3 * len(shown))
    axes: Any = figure.subplots()
    for i, (_, values) in enumerate(shown):
        ends = min(v for v in values if v > 0), max(values)
        axes.plot(ends, [i, i], color=theme.faint, lw=1.2, zorder=1)
    for party, color in enumerate(_PARTIES):
        places = [(values[party], i) for i, (_, values) in enumerate(shown) if values[party] > 0]
        if places:
            look = {"s": 42, "marker": "os^"[party], "zorder": 2, "alpha": 0.9}
            axes.scatter(*zip(*places, strict=True), color=color, label=f"party {party}", **look)
    names = (textwrap.shorten(n, 24, placeholder="…") if narrow else n for n, _ in shown)
    axes.set_yticks(range(len(shown)), [*names])
    axes.invert_yaxis()
    axes.margins(y=0.5 / len(shown) + 0.02)
    axes.set(xscale="log", xlabel=label)
    if narrow:
        axes.xaxis.set_major_locator(LogLocator(numticks=3))
    set_plain_ticks(axes.xaxis, human_bytes)
    axes.grid(axis="x")
    # "outside" makes room for it, where a legend of the axes would be cut off.
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure
