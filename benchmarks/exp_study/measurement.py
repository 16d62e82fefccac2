"""Measurements of one form at one size on workers: traffic, time and accuracy."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tfe_bench.benchmarks.exp_study import grid
from tfe_bench.benchmarks.exp_study.forms import ExpForm
from tfe_bench.benchmarks.fields import PerParty
from tfe_bench.benchmarks.measured_links import MeasuredLinks
from tfe_bench.benchmarks.prediction import (
    measured_run_rounds,
    measured_run_seconds,
    modeled_seconds,
)
from tfe_bench.cluster.profiles import NetworkProfile
from tfe_bench.cluster.requests import JobResult, PrivateInput
from tfe_bench.protocols.session.fixedpoint import FixedPoint


class ExpRunner(Protocol):
    """A cluster with measured links."""

    @property
    def emulation(self) -> str | None:
        """Emulation of its links, with ", host-limited" if they miss their figures."""
        ...

    @property
    def realized(self) -> MeasuredLinks | None:
        """Measured figures of the links; None if nothing is shaped."""
        ...

    def run(self, program: str, parameters: Any, inputs: Any) -> JobResult:
        """Run a program."""
        ...


@dataclass(frozen=True)
class ExpMeasurement:
    """Measured costs of one form at one n.

    Attributes:
        sent: payload bytes that each party sends in one run.
        rounds: messages on the critical path, offline + online; rounds_ahead: online rounds, with
            the correlated randomness dealt in advance.
        peak_rss: largest resident bytes of each worker.
        growth: increase of peak_rss over the idle worker.
        seconds: time of each run, of the slowest party.
    """

    form: ExpForm
    n: int
    sent: PerParty
    rounds: int
    rounds_ahead: int
    peak_rss: PerParty
    growth: PerParty
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the seconds."""
        return statistics.median(self.seconds)

    def modeled_seconds(self, level: NetworkProfile) -> float:
        """Return the modeled seconds at a network level, from a local measurement."""
        return modeled_seconds(level, self.median, self.rounds, self.sent)

    @property
    def matches_declared_cost(self) -> bool:
        """True if bytes and rounds equal the closed form."""
        cost = self.form.cost(self.n)
        declared = (cost.by_party(0), cost.rounds, cost.with_dealing)
        return (tuple(8 * b for b in self.sent), self.rounds_ahead, self.rounds) == declared


def encode_exp_inputs(form: ExpForm, x: Any) -> dict[str, PrivateInput]:
    """Return x, encoded for the program "exp"."""
    point = FixedPoint(form.fxp, form.ring_bits)
    return {"x": PrivateInput(point.encode(x), form.fxp, point.limbs)}


def decode_exp_result(form: ExpForm, result: JobResult) -> Any:
    """Return exp(x) as float64."""
    bits = result.fractional_bits["y"]
    return FixedPoint(bits, 64 * result.limbs["y"]).decode(result.outputs["y"])


def drawing_range(form: ExpForm) -> tuple[float, float]:
    """Return the declared range within that of the accuracy points: the range of random x."""
    low, high = form.valid_range()
    return max(grid.RANGE[0], low), min(grid.RANGE[1], high)


def measure_exp_form(cluster: ExpRunner, form: ExpForm, n: int, repeat: int) -> ExpMeasurement:
    """Run a form on n points of its range, `repeat` times."""
    x = np.linspace(*drawing_range(form), n)
    result = cluster.run("exp", {**form.parameters, "repeat": repeat}, encode_exp_inputs(form, x))
    measured = result.measured
    with_dealing, online = measured_run_rounds(measured)
    a, b, c = measured
    return ExpMeasurement(
        form=form,
        n=n,
        sent=(sum(a["payload"]), sum(b["payload"]), sum(c["payload"])),
        rounds=with_dealing,
        rounds_ahead=online,
        peak_rss=(_peak_bytes(a), _peak_bytes(b), _peak_bytes(c)),
        growth=(a["peak_memory"], b["peak_memory"], c["peak_memory"]),
        seconds=tuple(measured_run_seconds(measured)),
    )


def _peak_bytes(measured: dict[str, Any]) -> int:
    return int(measured["idle_memory"]) + int(measured["peak_memory"])


def measure_exp_accuracy(cluster: ExpRunner, form: ExpForm, float32: bool) -> grid.Accuracy:
    """Run a form on the points of `grid`."""
    x = grid.exp_grid_points(float32)
    parameters = {**form.parameters, "repeat": 1, "warm_up": 0}
    y = decode_exp_result(form, cluster.run("exp", parameters, encode_exp_inputs(form, x)))
    # Compared at the points before rounding, as in the published benchmark: input rounding counts.
    return grid.score_exp_accuracy(grid.exp_grid_points(), y, form.valid_range())
