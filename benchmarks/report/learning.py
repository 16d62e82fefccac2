"""What trainings have learnt: a table and curves, private against plaintext and published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tfe_bench.benchmarks import published
from tfe_bench.benchmarks.published import Figure
from tfe_bench.benchmarks.records import Record
from tfe_bench.benchmarks.report.beside import latest
from tfe_bench.benchmarks.report.drawing import BLUE, GREEN, RED, Theme
from tfe_bench.benchmarks.table import clean

PUBLISHED_EPOCHS = 5
COLOURS = {"sgd": BLUE, "amsgrad": RED, "adam": GREEN}


@dataclass(frozen=True, eq=False)
class Curve:
    """The scores of one training.

    Attributes:
        record: of it.
        epochs: after which it was scored.
        private: parts of the answers that were right.
        plain: the same in plaintext, None where nobody ran it.
    """

    record: Record
    epochs: tuple[float, ...]
    private: tuple[float, ...]
    plain: tuple[float, ...] | None

    @property
    def model(self) -> str:
        """Its name."""
        return clean(str(self.record.parameters.get("model", "")))[:40]

    @property
    def optimizer(self) -> str:
        """Its name."""
        return clean(str(self.record.parameters.get("optimizer", "")))[:20]

    @property
    def dataset(self) -> str:
        """What was learnt."""
        return clean(str(self.record.parameters.get("dataset", "")))[:40]

    def published(self, system: str = "tf-encrypted") -> Figure | None:
        """Another system's figure for the same, with an accuracy after 5 epochs."""
        if self.dataset != "mnist":
            return None
        found = (
            f
            for f in published.published()
            if (f.system, f.workload, f.size, f.optimizer)
            == (system, "train", self.model, self.optimizer)
            and f.accuracy is not None
        )
        return next(found, None)


def curves(records: Iterable[Record]) -> list[Curve]:
    """Of every model, data and optimizer the training of most epochs, the newest of those."""
    best: dict[tuple[str, ...], Curve] = {}
    for record in latest(records):
        curve = _curve(record)
        if curve is None:
            continue
        key = (curve.model, curve.dataset, curve.optimizer)
        before = best.get(key)
        if before is None or (curve.epochs[-1], record.time) >= (
            before.epochs[-1],
            before.record.time,
        ):
            best[key] = curve
    order = [*COLOURS]
    return sorted(
        best.values(),
        key=lambda c: (
            c.dataset,
            c.model,
            order.index(c.optimizer) if c.optimizer in order else len(order),
        ),
    )


def _curve(record: Record) -> Curve | None:
    """A record's scores; one from elsewhere may hold others."""
    found = record.agreement
    if record.workload != "train" or not found or found.get("score") != "accuracy":
        return None
    try:
        epochs = tuple(float(v) for v in found["epochs"])
        private = tuple(float(v) for v in found["private"])
        plain = None if found["plain"] is None else tuple(float(v) for v in found["plain"])
    except (KeyError, TypeError, ValueError):
        return None
    if not epochs or epochs[-1] < 1 or len(private) != len(epochs):
        return None  # a few steps, to see what they cost
    return Curve(record, epochs, private, plain if plain and len(plain) == len(epochs) else None)


def draw(
    found: Sequence[Curve], theme: Theme, axes: Sequence[Any], legend: Callable[[Any], None]
) -> None:
    """One panel for each model and data set: lines are private, crosses plaintext."""
    panels = list(dict.fromkeys((c.model, c.dataset) for c in found))
    for panel, place in zip(panels, axes, strict=False):
        mine = [c for c in found if (c.model, c.dataset) == panel]
        low = 100.0
        for curve in mine:
            colour = COLOURS.get(curve.optimizer, "#555555")
            values = [100 * v for v in curve.private]
            place.plot(
                curve.epochs,
                values,
                "o-",
                color=colour,
                label=f"{curve.optimizer}, private",
                markersize=5,
                linewidth=1.8,
                zorder=3,
            )
            low = min(low, *values)
            if curve.plain is not None:
                theirs = [100 * v for v in curve.plain]
                place.plot(
                    curve.epochs,
                    theirs,
                    ls="--",
                    marker="x",
                    color=theme.ink,
                    alpha=0.75,
                    linewidth=1.0,
                    markersize=6,
                    zorder=4,
                    label="plaintext" if curve is mine[0] else None,
                )
                low = min(low, *theirs)
            figure = curve.published()
            if figure is not None and figure.accuracy is not None:
                place.plot(
                    [PUBLISHED_EPOCHS],
                    [figure.accuracy],
                    marker="D",
                    ls="",
                    markerfacecolor=theme.paper,
                    markeredgecolor=colour,
                    markeredgewidth=1.4,
                    markersize=7,
                    zorder=2,
                    label="tf-encrypted, published" if curve is mine[0] else None,
                )
                low = min(low, figure.accuracy)
        place.set_title(f"{panel[0]}, {panel[1]}", loc="left", fontweight="bold", fontsize=10)
        place.set_xlabel("epochs")
        place.set_ylabel("right answers, %")
        place.set_ylim(low - 0.15 * (100 - low) - 0.2, None)
        whole = int(max(c.epochs[-1] for c in mine))
        place.set_xticks(range(1, max(whole, 1) + 1))
        place.grid()
        legend(place)
    for place in axes[len(panels) :]:
        place.set_axis_off()
