"""The study's pictures."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tfe_bench.benchmarks.exp_study import compare, published
from tfe_bench.benchmarks.exp_study.forms import Form
from tfe_bench.benchmarks.exp_study.levels import LEVELS, MEASURED, MODELLED
from tfe_bench.benchmarks.exp_study.study import Study, Timed
from tfe_bench.benchmarks.report.drawing import (
    BLUE,
    GREEN,
    NARROW,
    ORANGE,
    PINK,
    Picture,
    Theme,
    canvas,
    panels,
    pictures,
    plain_ticks,
    raised,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_COLOURS: Final = {"one-round": BLUE, "taylor": ORANGE, "prime": GREEN, "pade": PINK}
_LINES: Final = {"one-round": "-", "taylor": "--", "prime": "-.", "pade": (0, (1, 1.2))}
_PUBLISHED: Final = {"prime": "prime", "taylor-8": "taylor", "pade": "pade"}
_RINGS: Final = {
    64: "ring of 64 bits, 16 fractional",
    128: "ring of 128 bits, 40 fractional",
}


def draw(study: Study) -> dict[str, Picture]:
    """Draws all pictures.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    makers = {
        "exp_radar": _radar,
        "exp_error": _error,
        "exp_range": _range,
        "exp_time": _time,
        "exp_memory": _memory,
    }
    return pictures({name: functools.partial(make, study) for name, make in makers.items()})


def _colour(label: str) -> str:
    return next(c for m, c in _COLOURS.items() if m in label)


def _line(label: str) -> Any:
    return next(style for m, style in _LINES.items() if m in label)


def _decades(axis: Any) -> None:
    plain_ticks(axis, lambda v: f"10{raised(round(math.log10(v)))}" if v > 0 else "")


def _shared_legend(drawing: Drawing, axes: list[Any], narrow: bool) -> None:
    """One for all panels, below them: not every panel has every line."""
    by_label: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            by_label.setdefault(label, handle)
    labels = sorted(by_label, key=lambda label: label.rpartition(" ")[2])
    drawing.legend(
        [by_label[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=1 if narrow else 4,
    )


def _theirs(axes: Any, method: str, points: list[tuple[float, float]]) -> None:
    """A published line."""
    axes.plot(
        *zip(*points, strict=True),
        "s:",
        color=_COLOURS[_PUBLISHED[method]],
        label=f"{method} (published)",
        markersize=3.5,
        linewidth=1,
        alpha=0.8,
    )


def _radar(study: Study, theme: Theme, narrow: bool) -> Drawing:
    scores = compare.radar(study)
    down, across = (3, 1) if narrow else (1, 3)
    drawing = canvas(NARROW if narrow else 13, 5.4 * down)
    engine: Any = drawing.get_layout_engine()
    engine.set(rect=(0, 0.02, 1, 0.93))  # round axes leave no room for titles and legends
    turns = np.linspace(0, 2 * math.pi, len(compare.AXES), endpoint=False)
    closed = np.append(turns, turns[0])
    parts: list[tuple[str, Callable[[str], bool]]] = [
        (_RINGS[128], lambda label: label.endswith("/ 128")),
        (_RINGS[64], lambda label: label.endswith("/ 64")),
        ("published (2 parties + dealer)", lambda label: label.startswith("published")),
    ]
    for i, (title, wanted) in enumerate(parts):
        axes: Any = drawing.add_subplot(down, across, i + 1, projection="polar")
        axes.set_theta_offset(math.pi / 2)
        axes.set_theta_direction(-1)
        axes.set_xticks(turns, compare.AXES, fontsize=9)
        axes.tick_params(axis="x", pad=12)
        axes.set_ylim(0, 1)
        axes.set_yticks([0.25, 1 / 3, 0.5, 1.0], ["", "1/100", "1/10", "best"], fontsize=7.5)
        axes.set_rlabel_position(30)
        axes.set_title(title, fontsize=11, pad=18)
        for label, row in scores.items():
            if wanted(label):
                values = [*row, row[0]]
                name = label.removeprefix("published ").partition(" / ")[0]
                colour, style = _colour(label), _line(label)
                axes.plot(closed, values, ls=style, color=colour, label=name, linewidth=1.8)
                axes.fill(closed, values, color=colour, alpha=0.05)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=9)
    return drawing


def _error(study: Study, theme: Theme, narrow: bool) -> Drawing:
    drawing, axes = panels(2, 2, narrow, (5.5, 3.75))
    for column, ring in enumerate((64, 128)):
        own = axes[column::2]
        for form in (f for f in study.main if f.ring_bits == ring):
            a = study.accuracy[form]
            exact = np.exp(a.x)
            ae = np.abs(a.y - exact)
            for row, error in enumerate((ae / exact, ae)):
                x, y = _envelope(a.x, error)
                own[row].plot(
                    x, y, color=_colour(form.name), ls=_line(form.name), label=form.name, lw=1.4
                )
        for place, name, limits, shown in (
            (own[0], "relative error (APE)", (0.05, 0.01, 0.0005), (1e-15, 1e2)),
            (own[1], "absolute error (AE)", (5.0, 1.0, 0.05), (1e-13, 1e18)),
        ):
            place.set_yscale("log")
            place.set_ylim(shown)
            _decades(place.yaxis)
            place.set_xlim(-40, 40)
            place.set_xlabel("x")
            place.set_ylabel(name)
            place.grid()
            place.set_title(_RINGS[ring], fontsize=11)
            for limit in limits:
                place.axhline(limit, color=theme.faint, linewidth=0.7, linestyle=":")
    _shared_legend(drawing, axes, narrow)
    return drawing


def _envelope(x: Any, error: Any, width: int = 100) -> tuple[Any, Any]:
    """The largest error of each few neighbouring points: a curve instead of a cloud."""
    whole = len(x) // width * width
    middle = x[:whole].reshape(-1, width).mean(axis=1)
    return middle, np.maximum(error[:whole].reshape(-1, width).max(axis=1), 1e-30)


def _range(study: Study, theme: Theme, narrow: bool) -> Drawing:
    forms = list(study.accuracy)
    drawing = canvas(NARROW if narrow else 10, 1.4 + 0.34 * len(forms))
    axes: Any = drawing.subplots()
    for i, form in enumerate(forms):
        a = study.accuracy[form]
        exact = np.exp(a.x)
        good = np.abs(a.y - exact) / exact < 0.01
        colour = _colour(form.name)
        for first, last in _runs(a.x, good):
            axes.barh(i, last - first, left=first, height=0.55, color=colour)
        for end in form.valid_range():
            if abs(end) <= 40:
                axes.plot([end, end], [i - 0.42, i + 0.42], color=theme.ink, linewidth=1.6)
    axes.set_yticks(range(len(forms)), [form.label for form in forms], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(-40, 40)
    axes.set_xlabel("x")
    axes.grid(axis="x")
    return drawing


def _runs(x: Any, good: Any) -> list[tuple[float, float]]:
    """Stretches of neighbouring points that are good; single points get the grid's width."""
    half = float(x[1] - x[0]) / 2
    edges = np.flatnonzero(np.diff(np.concatenate([[0], good.astype(np.int8), [0]])))
    return [
        (float(x[a]) - half, float(x[b - 1]) + half)
        for a, b in zip(edges[::2], edges[1::2], strict=True)
    ]


def _time(study: Study, theme: Theme, narrow: bool) -> Drawing:
    drawing, every = panels(1, 4, narrow, (3.3, 4.2), sharey=True)
    for level, axes in zip(LEVELS, every, strict=True):
        for form in (f for f in study.main if f.ring_bits == 128):
            _our_times(axes, form, study.times(form, level), theme)
        for method in _PUBLISHED:
            _theirs(axes, method, [*published.times(method, level.name)])
        axes.set_xscale("log")
        axes.set_yscale("log")
        _decades(axes.xaxis)
        _decades(axes.yaxis)
        at = study.levels.get(level.name)
        how = at.emulation if at and at.measurements else "ours MODELLED"
        axes.set_title(f"{level.name}: {level.text}\n({how})", fontsize=10)
        axes.set_xlabel("elements")
        axes.grid()
    every[0].set_ylabel("seconds")
    _shared_legend(drawing, every, narrow)
    return drawing


def _our_times(axes: Any, form: Form, times: list[Timed], theme: Theme) -> None:
    """Measured times filled and joined; the model's at all sizes, hollow where it stands alone."""
    colour, style = _colour(form.name), _line(form.name)
    measured = [t for t in times if t.source == MEASURED]
    alone = [t for t in times if t.source == MODELLED]
    if measured:
        axes.plot(
            [t.n for t in measured],
            [t.seconds for t in measured],
            marker="o",
            ls=style,
            color=colour,
            label=f"{form.name} (measured)",
            markersize=4.5,
            linewidth=1.6,
        )
    if alone:
        axes.plot(
            [t.n for t in times],
            [t.modelled for t in times],
            ls=style,
            color=colour,
            linewidth=0.8,
            alpha=0.6,
        )
        axes.plot(
            [t.n for t in alone],
            [t.modelled for t in alone],
            marker="o",
            ls="",
            markerfacecolor=theme.paper,
            color=colour,
            label=f"{form.name} (modelled)",
            markersize=4.5,
        )


def _memory(study: Study, theme: Theme, narrow: bool) -> Drawing:
    drawing, every = panels(1, 2, narrow, (5.0, 4.4), sharey=True)
    for ring, axes in zip((64, 128), every, strict=True):
        for form in (f for f in study.main if f.ring_bits == ring):
            rows = study.measurements[form]
            axes.plot(
                [m.n for m in rows],
                [max(m.peak_rss) / 1e6 for m in rows],
                marker="o",
                ls=_line(form.name),
                color=_colour(form.name),
                label=form.name,
                markersize=4,
            )
        if ring == 128:
            for method in _PUBLISHED:
                points = [
                    (float(r["num_elements"]), float(r["mem_cost_kb"]) * 1.024e-3)
                    for r in published.table("memory")
                    if r["exp_mode_name"] == method
                ]
                _theirs(axes, method, points)
        axes.set_xscale("log")
        _decades(axes.xaxis)
        axes.set_title(f"ring of {ring} bits", fontsize=11)
        axes.set_xlabel("elements")
        axes.grid()
    every[0].set_ylabel("peak resident memory, MB")
    _shared_legend(drawing, every, narrow)
    return drawing
