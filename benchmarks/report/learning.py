"""Learning curves of trainings: a table and plots, private against plaintext and published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.published import PublishedFigure
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report.comparison_columns import latest_records
from tfe_bench.benchmarks.report.drawing import BLUE, GREEN, RED, Theme
from tfe_bench.benchmarks.table import strip_control

PUBLISHED_EPOCHS = 5
COLORS = {"sgd": BLUE, "amsgrad": RED, "adam": GREEN}


@dataclass(frozen=True, eq=False)
class Curve:
    """The scores of one training.

    Attributes:
        record: its record.
        epochs: epochs at which it was scored.
        private: accuracies of the private training.
        plain: accuracies of the plaintext training, None if it was not run.
    """

    record: Record
    epochs: tuple[float, ...]
    private: tuple[float, ...]
    plain: tuple[float, ...] | None

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._parameter_text("model", 40)

    @property
    def optimizer(self) -> str:
        """Name of the optimizer."""
        return self._parameter_text("optimizer", 20)

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return self._parameter_text("dataset", 40)

    def _parameter_text(self, parameter: str, longest: int) -> str:
        return strip_control(str(self.record.parameters.get(parameter, "")))[:longest]

    def published_figure(self) -> PublishedFigure | None:
        """TF Encrypted's figure for the same training, with an accuracy after 5 epochs."""
        if self.dataset != "mnist":
            return None
        key = ("tf-encrypted", "train", self.model, self.optimizer)
        matching = (
            f
            for f in published.load_figures()
            if (f.system, f.workload, f.size, f.optimizer) == key and f.accuracy is not None
        )
        return next(matching, None)


def collect_curves(records: Iterable[Record]) -> list[Curve]:
    """Return the longest training of every model, data and optimizer, the newest of these."""
    every = filter(None, map(_parse_curve, latest_records(records)))
    by_epochs = sorted(every, key=lambda c: (c.epochs[-1], c.record.time))
    best = {(c.dataset, c.model, c.optimizer): c for c in by_epochs}
    known = [*COLORS]
    return sorted(
        best.values(),
        key=lambda c: (
            *(c.dataset, c.model),
            known.index(c.optimizer) if c.optimizer in known else len(known),
        ),
    )


def _parse_curve(record: Record) -> Curve | None:
    """Return a record's scores; a record from elsewhere may hold malformed ones."""
    agreement = record.agreement
    if record.workload != "train" or not agreement or agreement.get("score") != "accuracy":
        return None
    try:
        epochs = tuple(float(v) for v in agreement["epochs"])
        private = tuple(float(v) for v in agreement["private"])
        plain = None if agreement["plain"] is None else tuple(float(v) for v in agreement["plain"])
    except (KeyError, TypeError, ValueError):
        return None
    if not epochs or epochs[-1] < 1 or len(private) != len(epochs):
        return None  # a few steps that measure the cost only
    return Curve(record, epochs, private, plain if plain and len(plain) == len(epochs) else None)


def draw_curves(
    curves: Sequence[Curve], theme: Theme, axes: Sequence[Any], legend: Callable[[Any], None]
) -> None:
    """Draw one panel per model and data set: lines are private, crosses plaintext."""
    panels = list(dict.fromkeys((c.model, c.dataset) for c in curves))
    for panel, place in zip(panels, axes, strict=False):
        panel_curves = [c for c in curves if (c.model, c.dataset) == panel]
        lows = [
            low
            for curve in panel_curves
            for low in _draw_curve(curve, theme, place, curve is panel_curves[0])
        ]
        low = min(100.0, *lows)
        place.set_title(f"{panel[0]}, {panel[1]}", loc="left", fontweight="bold", fontsize=10)
        place.set(xlabel="epochs", ylabel="right answers, %")
        place.set_ylim(low - 0.15 * (100 - low) - 0.2, None)
        place.set_xticks(range(1, max(int(c.epochs[-1]) for c in panel_curves) + 1))
        place.grid()
        legend(place)
    for place in axes[len(panels) :]:
        place.set_axis_off()


def _draw_curve(curve: Curve, theme: Theme, place: Any, first: bool) -> list[float]:
    """Draw a training and its references; return the least value of each."""
    color = COLORS.get(curve.optimizer, "#555555")
    values = [100 * v for v in curve.private]
    place.plot(
        *(curve.epochs, values, "o-"), color=color, label=f"{curve.optimizer}, private", zorder=3
    )
    lows = [min(values)]
    if curve.plain is not None:
        theirs = [100 * v for v in curve.plain]
        label = "plaintext" if first else None
        look = {"color": theme.ink, "alpha": 0.75, "linewidth": 1.0, "markersize": 6, "zorder": 4}
        place.plot(curve.epochs, theirs, "x--", label=label, **look)
        lows.append(min(theirs))
    figure = curve.published_figure()
    if figure is not None and figure.accuracy is not None:
        label = "tf-encrypted, published" if first else None
        look = {"markerfacecolor": theme.paper, "markeredgecolor": color, "markeredgewidth": 1.4}
        place.plot(
            *([PUBLISHED_EPOCHS], [figure.accuracy], "D"),
            label=label,
            markersize=7,
            zorder=2,
            **look,
        )
        lows.append(figure.accuracy)
    return lows
