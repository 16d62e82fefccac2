"""The published figures: SecretFlow's benchmark of exp, as data.

Two parties and a dealer (SEMI2K) over Z_2^128 with 40 fractional bits; the dealer's offline work
is not counted.  Methods: pade (mode 1), taylor-8 (mode 2), prime (mode 3).  Bytes are those of one
party.  The tables in this folder are the published ones, retyped.
"""

from __future__ import annotations

import csv
import importlib.resources
from dataclasses import dataclass
from functools import cache

from tfe_bench.benchmarks.exp_study.fits import Fit, fit_line
from tfe_bench.benchmarks.exp_study.grid import NAMES
from tfe_bench.benchmarks.exp_study.levels import LEVELS
from tfe_bench.benchmarks.prediction import modeled_seconds

SOURCE = "SecretFlow's exp benchmark (SEMI2K: 2 parties + dealer, FM128, 40 fractional bits)"
CAVEAT = (
    "The published figures are of two parties and a dealer whose offline work is not counted; "
    "ours are of three parties with everything counted."
)
METHODS = ("prime", "taylor-8", "pade")


def read_published_exp_table(name: str) -> list[dict[str, str]]:
    """Return the rows of one published table.

    Its name is comm, error, memory, netlevels, range, summary, time, ...
    """
    text = importlib.resources.files(__name__).joinpath(f"{name}.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def published_points(name: str, method: str, quantity: str) -> list[tuple[int, float]]:
    """Return (n, quantity) of one method in a published table, in its order."""
    rows = (r for r in read_published_exp_table(name) if r["exp_mode_name"] == method)
    return [(int(r["num_elements"]), float(r[quantity])) for r in rows]


def published_times(method: str, level: str) -> list[tuple[int, float]]:
    """Return published (n, seconds) of one method at one level, in order."""
    rows = (r for r in read_published_exp_table("time") if f"net{r['net_level']}" == level)
    return sorted(
        (int(r["num_elements"]), float(r["elapsed_s"]))
        for r in rows
        if r["exp_mode_name"] == method
    )


@dataclass(frozen=True)
class Published:
    """One method's published column.

    Attributes:
        shares: of points below the six thresholds, in the order of grid.NAMES.
        mean_printed: the "mean range score" as printed (see `contradictions`).
        memory: fit of peak memory in kB, over the published table.
        times: fit of seconds by level, over the points that were published.
    """

    method: str
    bytes_per_element: float
    rounds: int
    memory: Fit
    shares: tuple[float, ...]
    mean_printed: float
    mse: float
    mae: float
    mape: float
    times: dict[str, Fit]

    @property
    def mean6(self) -> float:
        """Mean of the six printed shares."""
        return sum(self.shares) / len(self.shares)


@cache
def published_columns() -> dict[str, Published]:
    """Return the published columns by method, fitted to the published tables."""
    return {method: _build_column(method) for method in METHODS}


def _build_column(method: str) -> Published:
    (scores,) = (r for r in read_published_exp_table("range") if r["exp_mode"] == method)
    (error,) = (r for r in read_published_exp_table("error") if r["exp_mode"] == method)
    return Published(
        method=method,
        bytes_per_element=_fit_points(published_points("comm", method, "bytes_sent")).a,
        rounds=int(published_points("comm", method, "rounds")[0][1]),
        memory=_fit_points(published_points("memory", method, "mem_cost_kb")),
        shares=tuple(float(scores[name]) for name in NAMES),
        mean_printed=float(scores["mean_range_score_published"]),
        **{name: float(error[name]) for name in ("mse", "mae", "mape")},
        times={
            v.name: _fit_points(points)
            for v in LEVELS
            if (points := published_times(method, v.name))
        },
    )


def _fit_points(points: list[tuple[int, float]]) -> Fit:
    n, y = zip(*points, strict=True)
    return fit_line(n, y)


def compare_with_model(level: str) -> tuple[float, float]:
    """Return (least, largest) ratio of published seconds to the modeled network time."""
    link = next(v for v in LEVELS if v.name == level)
    ratios = []
    for method, column in published_columns().items():
        for n, seconds in published_times(method, level):
            sent = (round(column.bytes_per_element * n),)
            ratios.append(seconds / modeled_seconds(link, 0.0, column.rounds, sent))
    return min(ratios), max(ratios)


def find_contradictions() -> list[str]:
    """Return contradictions and gaps of the published figures, found in the tables."""
    contradictions = []
    printed = "/".join(f"{c.mean_printed:.3f}" for c in published_columns().values())
    means = "/".join(f"{c.mean6:.3f}" for c in published_columns().values())
    if printed != means:
        contradictions.append(
            f'The published "mean range score" ({"/".join(METHODS)}: {printed}) is not the mean of '
            f"the six printed columns ({means}): it must count thresholds that were not printed. "
            "Ours is the mean of the six, and is compared with that mean."
        )
    rows = read_published_exp_table("time")
    sizes = sorted({int(r["num_elements"]) for r in rows})
    for level in sorted({r["net_level"] for r in rows}):
        missing = []
        for method in METHODS:
            present = dict(published_times(method, f"net{level}"))
            if absent := [f"{n:,}" for n in sizes if n not in present]:
                missing.append(f"{method} n = {', '.join(absent)}")
        if missing:
            contradictions.append(
                f"The published times at level {level} have holes: {'; '.join(missing)}. "
                "Fits are over what is there."
            )
    memory = read_published_exp_table("memory")
    keys = [(r["num_elements"], r["exp_mode_name"]) for r in memory]
    twice = sorted({int(n) for n, m in keys if keys.count((n, m)) > 1})
    if twice:
        where = ", ".join(f"{n:,}" for n in twice)
        contradictions.append(
            f"The published memory at n = {where} is listed twice, with "
            "different figures; the fits of either count both."
        )
    return contradictions
