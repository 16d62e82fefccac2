"""Runs the study on workers: sizes for cost and time, 10,000 points for accuracy."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tfe_bench.benchmarks.exp_study import grid
from tfe_bench.benchmarks.exp_study.fits import Fit, line
from tfe_bench.benchmarks.exp_study.forms import Form, main_forms, variants
from tfe_bench.benchmarks.exp_study.levels import LEVELS, modelled_seconds
from tfe_bench.cluster.client import JobResult, PrivateInput
from tfe_bench.protocols.fixedpoint import FixedPoint

Triple = tuple[int, int, int]
Tell = Callable[[float, str], None]


class Runner(Protocol):
    """A cluster."""

    def run(self, program: str, parameters: Any, inputs: Any) -> JobResult:
        """Runs a program."""
        ...


Opener = Callable[[], contextlib.AbstractContextManager[Runner]]


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        sizes: n of the main forms, ascending; one is left out with all after it where the size
            before it says that it would take longer than `job_seconds` or `job_bytes`.
        variant_size: n of the other forms.
        repeat: timed runs, of which the median counts.
        closed_form: n for which bytes and rounds are computed.
        fresh: whether each main form gets workers of its own, so that no form's memory is
            counted as another's idle memory.
        float32: whether x is rounded to float32 first.
    """

    sizes: tuple[int, ...] = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
    variant_size: int = 10_000
    repeat: int = 3
    closed_form: tuple[int, ...] = (1_000_000, 10_000_000)
    job_seconds: float = 25.0
    job_bytes: float = 3e9
    fresh: bool = True
    quick: bool = False
    float32: bool = False


QUICK = Plan(sizes=(100, 1_000, 10_000), job_seconds=5.0, fresh=False, quick=True)


@dataclass(frozen=True)
class Measurement:
    """One form at one n, all of it measured.

    Attributes:
        sent: payload bytes that each party sent in one run.
        rounds: messages on the critical path from a cold start; rounds_ahead with the dealer's
            material already there.
        peak_rss: resident bytes of each worker at the highest point.
        growth: the part of that above the idle worker.
        seconds: of each run, of the slowest party.
    """

    form: Form
    n: int
    sent: Triple
    rounds: int
    rounds_ahead: int
    peak_rss: Triple
    growth: Triple
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the seconds."""
        return statistics.median(self.seconds)

    def modelled(self, level: int) -> float:
        """Seconds at a network level, modelled."""
        return modelled_seconds(LEVELS[level], self.median, self.rounds, self.sent)

    @property
    def as_declared(self) -> bool:
        """Whether bytes and rounds are what the closed form says."""
        cost = self.form.cost(self.n)
        declared = (cost.by_party(0), cost.rounds, cost.cold)
        return (tuple(8 * b for b in self.sent), self.rounds_ahead, self.rounds) == declared


@dataclass
class Study:
    """What was measured.

    Attributes:
        measurements: by form, ascending n.
        accuracy: by form.
        cut: sizes that were left out, with the reason.
    """

    plan: Plan
    measurements: dict[Form, list[Measurement]] = field(default_factory=dict)
    accuracy: dict[Form, grid.Accuracy] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)

    @property
    def main(self) -> list[Form]:
        """Forms measured at several sizes."""
        return [f for f, rows in self.measurements.items() if len(rows) > 1]

    def largest(self, form: Form) -> Measurement:
        """At the greatest n."""
        return self.measurements[form][-1]

    def bytes_per_element(self, form: Form) -> tuple[float, float, float]:
        """By party: the slope where there are sizes, else at the only one."""
        rows = self.measurements[form]
        if len(rows) > 1:
            a, b, c = (self.fit(form, f"bytes_P{p}").a for p in range(3))
        else:
            a, b, c = (sent / rows[0].n for sent in rows[0].sent)
        return a, b, c

    def fit(self, form: Form, quantity: str) -> Fit:
        """The line of one of QUANTITIES over the sizes of a main form."""
        value = QUANTITIES[quantity]
        rows = self.measurements[form]
        return line([m.n for m in rows], [value(m) for m in rows])


def _sent(party: int) -> Callable[[Measurement], float]:
    return lambda m: m.sent[party]


def _peak_kb(party: int) -> Callable[[Measurement], float]:
    return lambda m: m.peak_rss[party] / 1024


def _modelled(level: int) -> Callable[[Measurement], float]:
    return lambda m: m.modelled(level)


QUANTITIES: dict[str, Callable[[Measurement], float]] = {
    **{f"bytes_P{p}": _sent(p) for p in range(3)},
    "bytes_total": lambda m: sum(m.sent),
    **{f"peak_rss_kb_P{p}": _peak_kb(p) for p in range(3)},
    "seconds_local": lambda m: m.median,
    **{f"seconds_{v.name}": _modelled(i) for i, v in enumerate(LEVELS)},
}
"""What lines are fitted to."""


def run(open_cluster: Opener, plan: Plan, tell: Tell = lambda fraction, text: None) -> Study:
    """Measures every form.

    Args:
        open_cluster: gives the workers, one time or (`plan.fresh`) once for each main form.
        tell: hears how far it is.

    Raises:
        TfeBenchError: a worker failed.
    """
    study = Study(plan)
    main, others = main_forms(), variants(plan.quick)
    work = len(main) * (len(plan.sizes) + 1) + 2 * len(others)
    done = 0

    def step(form: Form, what: str) -> None:
        nonlocal done
        tell(done / work, f"{form.label}: {what}")
        done += 1

    def one(cluster: Runner, form: Form, sizes: tuple[int, ...]) -> None:
        rows = study.measurements.setdefault(form, [])
        for i, n in enumerate(sizes):
            if rows and (reason := _too_large(plan, rows[-1], n)):
                study.cut.append(f"{form.label}: n = {n:,} left out, {reason}")
                done_too = len(sizes) - i
                nonlocal done
                done += done_too
                break
            step(form, f"n = {n:,}")
            rows.append(_measure(cluster, form, n, plan.repeat))
        step(form, f"accuracy on {grid.POINTS:,} points")
        study.accuracy[form] = _accuracy(cluster, form, plan.float32)

    with contextlib.ExitStack() as stack:
        shared = None if plan.fresh else stack.enter_context(open_cluster())
        for form in main:
            with _kept(shared) if shared is not None else open_cluster() as cluster:
                one(cluster, form, plan.sizes)
        shared = shared or stack.enter_context(open_cluster())
        for form in others:
            one(shared, form, (plan.variant_size,))
    tell(1.0, "writing")
    return study


@contextlib.contextmanager
def _kept(cluster: Runner) -> Iterator[Runner]:
    yield cluster


def _too_large(plan: Plan, before: Measurement, n: int) -> str:
    """Why n is not measured, or ''; by what the size before it took."""
    factor = n / before.n
    if before.n < 1_000:  # fixed costs only
        return ""
    seconds = before.median * factor * (plan.repeat + 1)
    if seconds > plan.job_seconds:
        return f"about {seconds:.0f} s of runs (limit {plan.job_seconds:.0f} s)"
    growth = max(before.growth) * factor
    if before.n >= 100_000 and growth > plan.job_bytes:
        return f"about {growth / 1e9:.1f} GB a worker (limit {plan.job_bytes / 1e9:.1f} GB)"
    return ""


def inputs(form: Form, x: Any) -> dict[str, PrivateInput]:
    """x, encoded for the program "exp"."""
    point = FixedPoint(form.fxp, form.ring_bits)
    return {"x": PrivateInput(point.encode(x), form.fxp, point.limbs)}


def decoded(form: Form, result: JobResult) -> Any:
    """exp(x) as float64."""
    bits = result.fractional_bits["y"]
    return FixedPoint(bits, 64 * result.limbs["y"]).decode(result.outputs["y"])


def usual_range(form: Form) -> tuple[float, float]:
    """The declared range within that of the accuracy points: where x is drawn from."""
    low, high = form.valid_range()
    return max(grid.RANGE[0], low), min(grid.RANGE[1], high)


def _measure(cluster: Runner, form: Form, n: int, repeat: int) -> Measurement:
    x = np.linspace(*usual_range(form), n)
    result = cluster.run("exp", {**form.parameters, "repeat": repeat}, inputs(form, x))
    measured = result.measured
    steps = list(zip(*(m["rounds"] for m in measured), strict=True))
    a, b, c = measured
    return Measurement(
        form=form,
        n=n,
        sent=(sum(a["payload"]), sum(b["payload"]), sum(c["payload"])),
        rounds=sum(max(s[0] for s in step) for step in steps),
        rounds_ahead=sum(max(s[1] for s in step) for step in steps),
        peak_rss=(_peak(a), _peak(b), _peak(c)),
        growth=(a["peak_memory"], b["peak_memory"], c["peak_memory"]),
        seconds=tuple(max(turn) for turn in zip(*(m["seconds"] for m in measured), strict=True)),
    )


def _peak(measured: dict[str, Any]) -> int:
    return int(measured["idle_memory"]) + int(measured["peak_memory"])


def _accuracy(cluster: Runner, form: Form, float32: bool) -> grid.Accuracy:
    x = grid.points(float32)
    parameters = {**form.parameters, "repeat": 1, "warm_up": 0}
    y = decoded(form, cluster.run("exp", parameters, inputs(form, x)))
    # Against the points that were meant, as in the published benchmark: an input's rounding counts.
    return grid.measure(grid.points(), y, form.valid_range())
