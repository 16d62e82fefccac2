"""The pictures of records: time against n, the network's share, each party's bytes and memory."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.published import Figure
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report import learning, network
from tfe_bench.benchmarks.report.beside import extents, latest, profile_of, size_of
from tfe_bench.benchmarks.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    NARROW,
    ORANGE,
    PINK,
    RED,
    SKY,
    Picture,
    Theme,
    canvas,
    legend,
    pictures,
    plain_ticks,
    raised,
)
from tfe_bench.benchmarks.table import clean, human_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAMES: Final = ("time", "network", "bytes", "memory", "learning")
MOST_ROWS: Final = 24
_MOST_WORKLOADS: Final = 6
_OURS: Final = {
    "local": BLUE,
    "lan": GREEN,
    "wan": RED,
    "net0": SKY,
    "net1": ORANGE,
    "net2": PINK,
    "net3": GREY,
}
_MARKERS: Final = "sDv^<>PX*h"
_PARTIES: Final = (BLUE, ORANGE, GREEN)


def draw(records: Sequence[Record]) -> dict[str, Picture]:
    """Draws what the records allow: a picture that would be empty is left out.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    newest = latest(records)
    makers = dict(zip(NAMES, (_time, _network, _bytes, _memory, _learning), strict=True))
    return pictures({name: functools.partial(make, newest) for name, make in makers.items()})


def _colour(profile: str) -> str:
    return _OURS.get(profile, "#555555")


def _name(record: Record) -> str:
    size = "x".join(f"{n:,}" for n in extents(record) or ()) or size_of(record)
    return clean(f"{record.workload} {size}".strip())[:48]


# ---- time against n


def _column(profile: str) -> str:
    """The loopback shares its panel with LANs."""
    return "lan" if profile in ("local", "lan", "net0") else profile


def _workloads(records: Sequence[Record]) -> list[tuple[str, tuple[int, ...]]]:
    """(workload, extents after the first) that a plot of time against n says something about."""
    kinds = {
        (r.workload, n[1:]): None for r in records if (n := extents(r)) is not None and n[0] > 0
    }
    known = {(f.workload, f.elements[1:]) for f in published.published() if f.elements}
    columns = {_column(profile_of(r)) for r in records}

    def has_line(workload: str, rest: tuple[int, ...]) -> bool:
        return any(
            len({extents(r) for r in group}) > 1
            for column in columns
            for group in _series(records, workload, rest, column).values()
        )

    chosen = [kind for kind in kinds if kind in known or has_line(*kind)]
    return sorted(chosen, key=lambda kind: kind not in known)[:_MOST_WORKLOADS]


def _time(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    workloads = _workloads(records)
    if not workloads:
        return None
    columns = sorted(
        {_column(profile_of(r)) for r in records},
        key=lambda name: [*_OURS].index(name) if name in _OURS else len(_OURS),
    )
    panels = [(workload, column) for workload in workloads for column in columns]
    series = {(w, c): _series(records, *w, c) for w, c in panels}
    theirs = {
        (workload, rest): [
            f
            for f in published.published()
            if f.workload == workload and f.elements and f.elements[1:] == rest
        ]
        for workload, rest in workloads
    }
    if narrow:
        # A legend's lines add to what the axes need.
        lines = [len(series[w, c]) + len(_systems(theirs[w], c)) for w, c in panels]
        heights = [3.1 + 0.22 * count for count in lines]
        drawing = canvas(NARROW, sum(heights))
        grid: Any = drawing.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    else:
        drawing = canvas(max(7.6, 5.4 * len(columns)), 3.7 * len(workloads))
        grid = drawing.subplots(len(workloads), len(columns), squeeze=False, sharey="row")
    for (workload, column), axes in zip(panels, grid.reshape(-1), strict=True):
        _panel(axes, column, theirs[workload], series[workload, column], theme, narrow)
        name, rest = workload
        network_name = "loopback and LAN" if column == "lan" else clean(column)
        shape = "".join(f" x {n}" for n in rest)
        title = f"{clean(name)}{' of n' + shape if shape else ''}, {network_name}"
        axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
    for row in grid:
        row[0].set_ylabel("seconds")
        # Of all panels of the row, which share the axis: whole decades, and room for the legend.
        low, high = row[0].get_ylim()
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        row[0].set_ylim(low, high if narrow else high * (high / low) ** 0.3)
    return drawing


def _systems(theirs: list[Figure], column: str) -> list[tuple[str, str]]:
    """(system, profile) of the published figures that a panel shows."""
    shown = ("lan", "local") if column == "lan" else (column,)
    return sorted({(f.system, f.profile) for f in theirs if f.profile in shown})


def _series(
    records: Sequence[Record], workload: str, rest: tuple[int, ...], column: str
) -> dict[str, list[Record]]:
    """Lines of one panel: records that differ in n alone, by label."""
    groups: dict[str, list[Record]] = {}
    words: dict[str, tuple[str, str]] = {}
    for record in records:
        n = extents(record)
        profile = profile_of(record)
        if record.workload != workload or n is None or n[1:] != rest or n[0] < 1:
            continue
        if _column(profile) != column:
            continue
        varying = ("n", "shape", "source")
        options = {k: v for k, v in record.parameters.items() if k not in varying}
        key = f"{profile} {sorted(options.items())!r} {record.cluster} {record.machine!r}"
        groups.setdefault(key, []).append(record)
        words[key] = (profile, ", ".join(f"{k} {v}" for k, v in options.items() if v is not False))
    found: dict[str, list[Record]] = {}
    for key, group in groups.items():
        profile, options_text = words[key]
        label = f"ours, {profile}"
        if sum(p == profile for p, _ in words.values()) > 1:
            label += f" ({options_text})"
        label = clean(label)[:60]
        while label in found:
            label += "'"
        found[label] = sorted(group, key=lambda r: extents(r) or ())
    return found


def _panel(
    axes: Any,
    column: str,
    theirs: list[Figure],
    series: dict[str, list[Record]],
    theme: Theme,
    narrow: bool,
) -> None:
    for label, group in series.items():
        n = [(extents(r) or (1,))[0] for r in group]
        median = [r.seconds.median for r in group]
        spread = [
            [r.seconds.median - r.seconds.min for r in group],
            [r.seconds.max - r.seconds.median for r in group],
        ]
        axes.errorbar(
            *(n, median, spread),
            fmt="o-",
            color=_colour(profile_of(group[0])),
            label=label,
            markersize=5,
            linewidth=1.8,
            capsize=2.5,
            zorder=3,
        )
    systems = _systems(theirs, column)
    for i, (system, profile) in enumerate(systems):
        points = sorted(
            (f.elements[0], f.seconds)
            for f in theirs
            if f.elements and (f.system, f.profile) == (system, profile)
        )
        axes.plot(
            *zip(*points, strict=True),
            # others' points are of different variants: no line leads through them
            ls=":" if system.startswith("tf-encrypted") else "",
            lw=1.0,
            marker=_MARKERS[i % len(_MARKERS)],
            color=theme.faint,
            markerfacecolor=theme.paper,
            markeredgecolor=theme.ink,
            markeredgewidth=1.1,
            markersize=6,
            label=f"{system}, published ({'one host' if profile == 'local' else profile})",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("n")
    plain_ticks(axes.yaxis, lambda v: f"{v:,g}" if v < 1e6 else f"{v:.0e}")
    plain_ticks(axes.xaxis, lambda v: f"2{raised(round(math.log2(v)))}" if v > 0 else "")
    axes.grid()
    if series or systems:
        legend(axes, narrow, loc="upper left")


# ---- the network's share


def _network(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    rows = [(r, network.share(r)) for r in records]
    points = [(r, s) for r, s in rows if s is not None and s.latency > 0]
    if not points:
        return None
    drawing = canvas(*((NARROW, 4.4) if narrow else (7.6, 4.6)))
    axes: Any = drawing.subplots()
    profiles = list(dict.fromkeys(profile_of(r) for r, _ in points))
    for profile in profiles:
        mine = [(s.latency, r.seconds.median) for r, s in points if profile_of(r) == profile]
        axes.scatter(
            *zip(*mine, strict=True),
            s=34,
            color=_colour(profile),
            edgecolor=theme.paper,
            linewidth=0.6,
            label=clean(profile),
            zorder=3,
        )
    measured = [r.seconds.median for r, _ in points if r.seconds.median > 0]
    ends = [min(measured, default=1.0) / 3, max(measured, default=1.0) * 3]
    axes.plot(ends, ends, color=theme.faint, lw=1.2, label="time = rounds x latency")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rounds x one-way latency, seconds")
    axes.set_ylabel("measured, seconds")
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis, lambda v: f"{v:,g}")
    axes.grid()
    legend(axes, narrow, loc="lower right")
    return drawing


# ---- what trainings have learnt


def _learning(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    found = learning.curves(records)
    panels = len({(c.model, c.dataset) for c in found})
    if not panels:
        return None
    columns = 1 if narrow else min(panels, 3)
    rows = math.ceil(panels / columns)
    width = NARROW if narrow else max(5.6, 4.4 * columns)
    drawing = canvas(width, (4.3 if narrow else 3.9) * rows)
    grid: Any = drawing.subplots(rows, columns, squeeze=False)
    axes = list(grid.reshape(-1))
    learning.draw(found, theme, axes, lambda place: legend(place, narrow, loc="lower right"))
    return drawing


# ---- figures of each party


def _bytes(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    rows = {_name(r): r.bytes_sent for r in records if r.bytes_sent is not None}
    return _parties(rows, "bytes sent in one run", theme, narrow)


def _memory(records: list[Record], theme: Theme, narrow: bool) -> Drawing | None:
    rows: dict[str, tuple[int, int, int]] = {}
    for record in records:
        if record.peak_memory is not None:
            name = _name(record)
            before = rows.get(name, (0, 0, 0))
            a, b, c = (max(x, y) for x, y in zip(before, record.peak_memory, strict=True))
            rows[name] = (a, b, c)
    return _parties(rows, "growth above an idle worker, bytes", theme, narrow)


def _parties(
    rows: dict[str, tuple[int, int, int]], label: str, theme: Theme, narrow: bool
) -> Drawing | None:
    from matplotlib.ticker import LogLocator

    rows = {name: values for name, values in rows.items() if max(values) > 0}
    chosen = dict(list(rows.items())[:MOST_ROWS])
    if not chosen:
        return None
    drawing = canvas(NARROW if narrow else 8.2, 1.3 + 0.3 * len(chosen))
    axes: Any = drawing.subplots()
    for i, values in enumerate(chosen.values()):
        positive = [v for v in values if v > 0]
        axes.plot([min(positive), max(positive)], [i, i], color=theme.faint, lw=1.2, zorder=1)
    for party, colour in enumerate(_PARTIES):
        places = [(v[party], i) for i, v in enumerate(chosen.values()) if v[party] > 0]
        if places:
            axes.scatter(
                *zip(*places, strict=True),
                s=42,
                color=colour,
                marker="os^"[party],
                label=f"party {party}",
                zorder=2,
                alpha=0.9,
            )
    names = [textwrap.shorten(n, 24, placeholder="…") for n in chosen] if narrow else list(chosen)
    axes.set_yticks(range(len(chosen)), names)
    axes.invert_yaxis()
    axes.margins(y=0.5 / len(chosen) + 0.02)
    axes.set_xscale("log")
    if narrow:
        axes.xaxis.set_major_locator(LogLocator(numticks=3))
    plain_ticks(axes.xaxis, human_bytes)
    axes.set_xlabel(label)
    axes.grid(axis="x")
    # "outside" makes room for it, where a legend of the axes would be cut off.
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return drawing
