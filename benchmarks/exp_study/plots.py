"""The study's pictures (PNG).  Needs matplotlib, imported here alone and only when drawing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.benchmarks.exp_study import compare, published
from tfe_bench.benchmarks.exp_study.forms import Form
from tfe_bench.benchmarks.exp_study.levels import LEVELS, MEASURED, MODELLED
from tfe_bench.benchmarks.exp_study.study import Study, Timed
from tfe_bench.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours: told apart by everybody.
_COLOURS = {"one-round": "#0072B2", "taylor": "#E69F00", "prime": "#009E73", "pade": "#CC79A7"}
_LINES = {"one-round": "-", "taylor": "--", "prime": "-.", "pade": (0, (1, 1.2))}
_PUBLISHED = {"prime": "prime", "taylor-8": "taylor", "pade": "pade"}


def require() -> None:
    """Fails early where pictures cannot be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "The report's pictures need matplotlib, which cannot be imported. Install it: "
            "pip install 'matplotlib>=3.8'."
        ) from error


def draw(study: Study, folder: Path) -> list[str]:
    """Draws all pictures into a folder; returns their names."""
    pictures: dict[str, Callable[[Study], Figure]] = {
        "exp_radar.png": _radar,
        "exp_error.png": _error,
        "exp_range.png": _range,
        "exp_time.png": _time,
        "exp_memory.png": _memory,
    }
    for name, picture in pictures.items():
        picture(study).savefig(folder / name, dpi=110)
    return list(pictures)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    new: Any = Figure  # its arguments have no types
    figure: Figure = new(figsize=(width, height), layout="constrained")
    return figure


def _colour(label: str) -> str:
    return next(c for m, c in _COLOURS.items() if m in label)


def _line(label: str) -> Any:
    return next(style for m, style in _LINES.items() if m in label)


def _radar(study: Study) -> Figure:
    scores = compare.radar(study)
    figure = _figure(13, 5.6)
    turns = np.linspace(0, 2 * math.pi, len(compare.AXES), endpoint=False)
    closed = np.append(turns, turns[0])
    panels: list[tuple[str, Callable[[str], bool]]] = [
        ("Z$_2$$^{128}$, 40 fractional bits", lambda label: label.endswith("/ 128")),
        ("Z$_2$$^{64}$, 16 fractional bits", lambda label: label.endswith("/ 64")),
        ("published (2 parties + dealer)", lambda label: label.startswith("published")),
    ]
    for i, (title, wanted) in enumerate(panels):
        axes: Any = figure.add_subplot(1, 3, i + 1, projection="polar")
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
    figure.suptitle(
        "exp in six dimensions: outside is better, rings are 10, 100 and 1000 times worse than the "
        f"best of all (time at net2: ours {_net2_source(study)})",
        fontsize=12,
    )
    return figure


def _net2_source(study: Study) -> str:
    sources = {study.source(form, "seconds_net2") for form in study.main}
    return MEASURED if sources == {MEASURED} else MODELLED.upper()


def _error(study: Study) -> Figure:
    figure = _figure(11, 7.5)
    grid_of: Any = figure.subplots(2, 2, sharex=True, sharey="row")
    titles = {64: "Z$_2$$^{64}$, 16 fractional bits", 128: "Z$_2$$^{128}$, 40 fractional bits"}
    for column, ring in enumerate((64, 128)):
        for form in (f for f in study.main if f.ring_bits == ring):
            a = study.accuracy[form]
            exact = np.exp(a.x)
            ae = np.abs(a.y - exact)
            for row, error in enumerate((ae / exact, ae)):
                x, y = _envelope(a.x, error)
                grid_of[row, column].plot(
                    x, y, color=_colour(form.name), ls=_line(form.name), label=form.name, lw=1.4
                )
        for row, limits in enumerate(((0.05, 0.01, 0.0005), (5.0, 1.0, 0.05))):
            axes = grid_of[row, column]
            axes.set_yscale("log")
            axes.set_ylim((1e-15, 1e2) if row == 0 else (1e-13, 1e18))
            axes.grid(alpha=0.25)
            for limit in limits:
                axes.axhline(limit, color="0.5", linewidth=0.7, linestyle=":")
        grid_of[0, column].set_title(titles[ring], fontsize=11)
        grid_of[1, column].set_xlabel("x")
        grid_of[0, column].set_xlim(-40, 40)
    grid_of[0, 0].set_ylabel("relative error (APE)")
    grid_of[1, 0].set_ylabel("absolute error (AE)")
    handles, labels = grid_of[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.suptitle(
        "Error of exp on [-40, 40], largest of each 100 points (dotted: the six thresholds)",
        fontsize=12,
    )
    return figure


def _envelope(x: Any, error: Any, width: int = 100) -> tuple[Any, Any]:
    """The largest error of each few neighbouring points: a curve instead of a cloud."""
    whole = len(x) // width * width
    middle = x[:whole].reshape(-1, width).mean(axis=1)
    return middle, np.maximum(error[:whole].reshape(-1, width).max(axis=1), 1e-30)


def _range(study: Study) -> Figure:
    forms = list(study.accuracy)
    figure = _figure(10, 1.4 + 0.34 * len(forms))
    axes: Any = figure.subplots()
    for i, form in enumerate(forms):
        a = study.accuracy[form]
        exact = np.exp(a.x)
        good = np.abs(a.y - exact) / exact < 0.01
        colour = _colour(form.name)
        for first, last in _runs(a.x, good):
            axes.barh(i, last - first, left=first, height=0.55, color=colour)
        for end in form.valid_range():
            if abs(end) <= 40:
                axes.plot([end, end], [i - 0.42, i + 0.42], color="black", linewidth=1.6)
    axes.set_yticks(range(len(forms)), [form.label for form in forms], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(-40, 40)
    axes.set_xlabel("x")
    axes.grid(axis="x", alpha=0.25)
    axes.set_title(
        "Effective range: bars where the measured relative error is below 1 %,\n"
        "black marks where the declared range ends",
        fontsize=11,
    )
    return figure


def _runs(x: Any, good: Any) -> list[tuple[float, float]]:
    """Stretches of neighbouring points that are good; single points get the grid's width."""
    half = float(x[1] - x[0]) / 2
    edges = np.flatnonzero(np.diff(np.concatenate([[0], good.astype(np.int8), [0]])))
    return [
        (float(x[a]) - half, float(x[b - 1]) + half)
        for a, b in zip(edges[::2], edges[1::2], strict=True)
    ]


def _time(study: Study) -> Figure:
    figure = _figure(13, 4.6)
    panels: Any = figure.subplots(1, 4, sharex=True, sharey=True)
    for level, axes in zip(LEVELS, panels, strict=True):
        for form in (f for f in study.main if f.ring_bits == 128):
            _our_times(axes, form, study.times(form, level))
        for method, ours in _PUBLISHED.items():
            theirs = published.times(method, level.name)
            axes.plot(
                [n for n, _ in theirs],
                [seconds for _, seconds in theirs],
                "s:",
                color=_COLOURS[ours],
                label=f"{method} (published)",
                markersize=3.5,
                linewidth=1,
                alpha=0.8,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        at = study.levels.get(level.name)
        how = at.emulation if at and at.measurements else "ours MODELLED"
        axes.set_title(f"{level.name}: {level.text}\n({how})", fontsize=10)
        axes.set_xlabel("elements")
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("seconds")
    by_label: dict[str, Any] = {}
    for axes in panels:  # not every panel has every line
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            by_label.setdefault(label, handle)
    labels = sorted(by_label, key=lambda label: label.rpartition(" ")[2])
    figure.legend(
        [by_label[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=4,
        fontsize=9,
    )
    figure.suptitle(
        "Time in the ring of 128 bits: filled points measured at the level, hollow ones MODELLED "
        "from local runs; published measured",
        fontsize=12,
    )
    return figure


def _our_times(axes: Any, form: Form, times: list[Timed]) -> None:
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
            markerfacecolor="white",
            color=colour,
            label=f"{form.name} (modelled)",
            markersize=4.5,
        )


def _memory(study: Study) -> Figure:
    figure = _figure(10, 4.4)
    panels: Any = figure.subplots(1, 2, sharex=True, sharey=True)
    for ring, axes in zip((64, 128), panels, strict=True):
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
            for method, ours in _PUBLISHED.items():
                rows_of = [r for r in published.table("memory") if r["exp_mode_name"] == method]
                axes.plot(
                    [float(r["num_elements"]) for r in rows_of],
                    [float(r["mem_cost_kb"]) * 1.024e-3 for r in rows_of],
                    "s:",
                    color=_COLOURS[ours],
                    label=f"{method} (published)",
                    markersize=3.5,
                    linewidth=1,
                    alpha=0.8,
                )
        axes.set_xscale("log")
        axes.set_title(f"ring of {ring} bits", fontsize=11)
        axes.set_xlabel("elements")
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    panels[0].set_ylabel("peak resident memory, MB")
    figure.suptitle("Memory of the largest worker (ours with TensorFlow)", fontsize=12)
    return figure
