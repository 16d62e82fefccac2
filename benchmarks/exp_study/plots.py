"""The study's pictures."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tfe_bench.benchmarks.exp_study import compare, grid, published
from tfe_bench.benchmarks.exp_study.forms import ExpForm
from tfe_bench.benchmarks.exp_study.levels import LEVELS, MEASURED, MODELED
from tfe_bench.benchmarks.exp_study.study import ExpStudy, TimePoint
from tfe_bench.benchmarks.report import drawing
from tfe_bench.benchmarks.report.drawing import NARROW, Picture, Theme, new_figure, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_COLORS: Final = {
    **{"one-round": drawing.BLUE, "taylor": drawing.ORANGE},
    **{"prime": drawing.GREEN, "pade": drawing.PINK},
}
_LINES: Final = {"one-round": "-", "taylor": "--", "prime": "-.", "pade": (0, (1, 1.2))}
_PUBLISHED: Final = {"prime": "prime", "taylor-8": "taylor", "pade": "pade"}
_RINGS: Final = {
    64: "ring of 64 bits, 16 fractional",
    128: "ring of 128 bits, 40 fractional",
}


def draw_pictures(study: ExpStudy) -> dict[str, Picture]:
    """Draw all pictures.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    makers = {
        "radar": _plot_radar,
        "error": _plot_error,
        "range": _plot_range,
        "time": _plot_time,
        "memory": _plot_memory,
    }
    return drawing.draw_pictures(
        {f"exp_{name}": functools.partial(make, study) for name, make in makers.items()}
    )


def _line_style(label: str) -> dict[str, Any]:
    """Return the color and line style of a method."""
    method = next(method for method in _COLORS if method in label)
    return {"color": _COLORS[method], "ls": _LINES[method]}


def _forms_of_ring(study: ExpStudy, bits: int) -> Iterator[ExpForm]:
    return (form for form in study.main_forms if form.ring_bits == bits)


def _set_log_axes(axes: Any, names: str) -> None:
    """Make the axes named "x" or "xy" logarithmic, with decades as ticks."""
    for name in names:
        axes.set(**{f"{name}scale": "log"})
        drawing.set_power_ticks(getattr(axes, f"{name}axis"), 10)


def _add_shared_legend(figure: Drawing, axes: list[Any], narrow: bool) -> None:
    """Add one legend for all panels, below them: not every panel has every line."""
    by_label: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            by_label.setdefault(label, handle)
    labels = sorted(by_label, key=lambda label: label.rpartition(" ")[2])
    handles, columns = [by_label[label] for label in labels], 1 if narrow else 4
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _label_elements(figure: Drawing, axes: list[Any], label: str, narrow: bool) -> Drawing:
    """Label the panels of one scale, and add their legend."""
    for each in axes:
        each.set_xlabel("elements")
        each.grid()
    axes[0].set_ylabel(label)
    _add_shared_legend(figure, axes, narrow)
    return figure


def _plot_published(axes: Any, method: str, points: Sequence[tuple[float, float]]) -> None:
    """Plot a published line."""
    look = {"color": _COLORS[_PUBLISHED[method]], "markersize": 3.5, "linewidth": 1, "alpha": 0.8}
    axes.plot(*zip(*points, strict=True), "s:", label=f"{method} (published)", **look)


def _plot_radar(study: ExpStudy, theme: Theme, narrow: bool) -> Drawing:
    scores = compare.radar_scores(study)
    down, across = (3, 1) if narrow else (1, 3)
    figure = new_figure(NARROW if narrow else 13, 5.4 * down)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, 0.02, 1, 0.93))  # round axes leave no room for titles and legends
    turns = np.linspace(0, 2 * math.pi, len(compare.AXES), endpoint=False)
    closed = np.append(turns, turns[0])
    parts = {
        _RINGS[128]: {k: v for k, v in scores.items() if k.endswith("/ 128")},
        _RINGS[64]: {k: v for k, v in scores.items() if k.endswith("/ 64")},
        "published (2 parties + dealer)": {
            k: v for k, v in scores.items() if k.startswith("published")
        },
    }
    for i, (title, rows) in enumerate(parts.items()):
        axes: Any = figure.add_subplot(down, across, i + 1, projection="polar")
        axes.set_theta_offset(math.pi / 2)
        axes.set_theta_direction(-1)
        axes.set_xticks(turns, compare.AXES, fontsize=9)
        axes.tick_params(axis="x", pad=12)
        axes.set_ylim(0, 1)
        axes.set_yticks([0.25, 1 / 3, 0.5, 1.0], ["", "1/100", "1/10", "best"], fontsize=7.5)
        axes.set_rlabel_position(30)
        axes.set_title(title, fontsize=11, pad=18)
        for label, row in rows.items():
            values = [*row, row[0]]
            name = label.removeprefix("published ").partition(" / ")[0]
            axes.plot(closed, values, label=name, **_line_style(label))
            axes.fill(closed, values, color=_line_style(label)["color"], alpha=0.05)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=9)
    return figure


def _plot_error(study: ExpStudy, theme: Theme, narrow: bool) -> Drawing:
    figure, axes = new_panels(2, 2, narrow, (5.5, 3.75))
    kinds = (
        ("relative error (APE)", grid.APE_LIMITS, (1e-15, 1e2)),
        ("absolute error (AE)", grid.AE_LIMITS, (1e-13, 1e18)),
    )
    for column, ring in enumerate((64, 128)):
        column_axes = axes[column::2]
        for form in _forms_of_ring(study, ring):
            a = study.accuracy[form]
            exact = np.exp(a.x)
            ae = np.abs(a.y - exact)
            for place, error in zip(column_axes, (ae / exact, ae), strict=True):
                place.plot(
                    *_max_envelope(a.x, error), label=form.name, lw=1.4, **_line_style(form.name)
                )
        for place, (name, limits, shown) in zip(column_axes, kinds, strict=True):
            _set_log_axes(place, "y")
            place.set(xlabel="x", xlim=grid.RANGE, ylabel=name, ylim=shown)
            place.grid()
            place.set_title(_RINGS[ring], fontsize=11)
            for limit in limits:
                place.axhline(limit, color=theme.faint, linewidth=0.7, linestyle=":")
    _add_shared_legend(figure, axes, narrow)
    return figure


def _max_envelope(x: Any, error: Any, width: int = 100) -> tuple[Any, Any]:
    """Return the largest error of each group of neighboring points: a curve instead of a cloud."""
    whole = len(x) // width * width
    middle = x[:whole].reshape(-1, width).mean(axis=1)
    return middle, np.maximum(error[:whole].reshape(-1, width).max(axis=1), 1e-30)


def _plot_range(study: ExpStudy, theme: Theme, narrow: bool) -> Drawing:
    figure = new_figure(NARROW if narrow else 10, 1.4 + 0.34 * len(study.accuracy))
    axes: Any = figure.subplots()
    for i, (form, a) in enumerate(study.accuracy.items()):
        exact = np.exp(a.x)
        good = np.abs(a.y - exact) / exact < 0.01
        for first, last in _find_accurate_intervals(a.x, good):
            color = _line_style(form.name)["color"]
            axes.barh(i, last - first, left=first, height=0.55, color=color)
        for end in form.valid_range():
            if abs(end) <= 40:
                axes.plot([end, end], [i - 0.42, i + 0.42], color=theme.ink, linewidth=1.6)
    axes.set_yticks(range(len(study.accuracy)), [form.label for form in study.accuracy], fontsize=9)
    axes.invert_yaxis()
    axes.set(xlabel="x", xlim=grid.RANGE)
    axes.grid(axis="x")
    return figure


def _find_accurate_intervals(x: Any, good: Any) -> list[tuple[float, float]]:
    """Return intervals of neighboring good points; single points get the grid's width."""
    half = float(x[1] - x[0]) / 2
    edges = np.flatnonzero(np.diff(np.concatenate([[0], good.astype(np.int8), [0]])))
    return [
        (float(x[a]) - half, float(x[b - 1]) + half)
        for a, b in zip(edges[::2], edges[1::2], strict=True)
    ]


def _plot_time(study: ExpStudy, theme: Theme, narrow: bool) -> Drawing:
    figure, every = new_panels(1, 4, narrow, (3.3, 4.2), sharey=True)
    for level, axes in zip(LEVELS, every, strict=True):
        for form in _forms_of_ring(study, 128):
            _plot_our_times(axes, form, study.times_at_level(form, level), theme)
        for method in _PUBLISHED:
            _plot_published(axes, method, published.published_times(method, level.name))
        _set_log_axes(axes, "xy")
        at = study.levels.get(level.name)
        how = at.emulation if at and at.measurements else "ours MODELED"
        axes.set_title(f"{level.name}: {level.text}\n({how})", fontsize=10)
    return _label_elements(figure, every, "seconds", narrow)


def _plot_our_times(axes: Any, form: ExpForm, times: list[TimePoint], theme: Theme) -> None:
    """Plot measured times filled and joined, modeled times hollow."""
    look = _line_style(form.name)
    measured = [(t.n, t.seconds) for t in times if t.source == MEASURED]
    alone = [(t.n, t.modeled) for t in times if t.source == MODELED]
    points: dict[str, Any] = {"marker": "o", "markersize": 4.5}
    if measured:
        label = f"{form.name} (measured)"
        axes.plot(*zip(*measured, strict=True), label=label, linewidth=1.6, **points, **look)
    if alone:
        model = [t.n for t in times], [t.modeled for t in times]
        axes.plot(*model, linewidth=0.8, alpha=0.6, **look)
        points |= {"ls": "", "color": look["color"], "markerfacecolor": theme.paper}
        axes.plot(*zip(*alone, strict=True), label=f"{form.name} (modeled)", **points)


def _plot_memory(study: ExpStudy, theme: Theme, narrow: bool) -> Drawing:
    figure, every = new_panels(1, 2, narrow, (5.0, 4.4), sharey=True)
    for ring, axes in zip((64, 128), every, strict=True):
        for form in _forms_of_ring(study, ring):
            points = [(m.n, max(m.peak_rss) / 1e6) for m in study.measurements[form]]
            look = {"marker": "o", "markersize": 4, "linewidth": 1.5, **_line_style(form.name)}
            axes.plot(*zip(*points, strict=True), label=form.name, **look)
        for method in _PUBLISHED if ring == 128 else ():
            theirs = published.published_points("memory", method, "mem_cost_kb")
            _plot_published(axes, method, [(n, 1.024e-3 * kb) for n, kb in theirs])
        _set_log_axes(axes, "x")
        axes.set_title(f"ring of {ring} bits", fontsize=11)
    return _label_elements(figure, every, "peak resident memory, MB", narrow)
