"""The study on workers: sizes for cost and time, network levels, points for accuracy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tfe_bench.benchmarks.exp_study import grid
from tfe_bench.benchmarks.exp_study.fits import Fit, fit_line
from tfe_bench.benchmarks.exp_study.forms import ExpForm, main_exp_forms, variant_exp_forms
from tfe_bench.benchmarks.exp_study.levels import LEVELS, MEASURED, MODELED
from tfe_bench.benchmarks.exp_study.measurement import (
    ExpMeasurement,
    ExpRunner,
    measure_exp_accuracy,
    measure_exp_form,
)
from tfe_bench.benchmarks.measured_links import HOST_LIMITED, MeasuredLinks
from tfe_bench.cluster.profiles import NetworkProfile
from tfe_bench.errors import PolicyError, ProfileError

ProgressCallback = Callable[[float, str], None]
LOCAL = "local"
ClusterOpener = Callable[[str], contextlib.AbstractContextManager[ExpRunner]]
"""Gives workers whose links are those of a profile."""


@dataclass(frozen=True)
class LevelPlan:
    """Sizes to measure at a level.

    Attributes:
        sizes: n of the main forms, ascending; only sizes that are measured locally too.
        job_seconds: limit of the modeled time of a size; larger sizes are skipped.
    """

    sizes: tuple[int, ...]
    job_seconds: float


LEVEL_PLANS: dict[str, LevelPlan] = {
    "net0": LevelPlan((1_000, 10_000, 100_000, 1_000_000), 10.0),
    "net1": LevelPlan((1_000, 10_000, 100_000, 1_000_000), 10.0),
    "net2": LevelPlan((1_000, 10_000, 100_000), 18.0),
    "net3": LevelPlan((100, 1_000, 10_000), 20.0),
}


@dataclass
class LevelResults:
    """Measurements at one level.

    Attributes:
        emulation: emulation of the links.
        realized: measured figures of the links, before the first job.
        measurements: by form, ascending n.
        refused: the reason why the level was not measured, or ''.
    """

    level: NetworkProfile
    emulation: str = ""
    realized: MeasuredLinks | None = None
    measurements: dict[ExpForm, list[ExpMeasurement]] = field(default_factory=dict)
    refused: str = ""

    @property
    def host_limited(self) -> bool:
        """True if the links miss the level's figures."""
        return HOST_LIMITED in self.emulation


@dataclass(frozen=True)
class StudyPlan:
    """Sizes and limits of a study.

    Attributes:
        sizes: n of the main forms, ascending; a size and all after it are skipped if the size
            before it predicts more than `job_seconds` or `job_bytes`.
        variant_size: n of the other forms.
        repeat: timed runs; the median counts.
        closed_form: n for which bytes and rounds are computed.
        fresh: True if each main form gets new workers, so that no form's memory counts as
            another form's idle memory.
        float32: True if x is rounded to float32 first.
        levels: plans of the network levels; levels without a plan are modeled only.
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
    levels: Mapping[str, LevelPlan] = field(default_factory=lambda: LEVEL_PLANS)


QUICK = StudyPlan(
    sizes=(100, 1_000, 10_000),
    job_seconds=5.0,
    fresh=False,
    quick=True,
    levels={name: LevelPlan((1_000, 10_000), 3.0) for name in ("net1", "net2")},
)


@dataclass(frozen=True)
class TimePoint:
    """The time of a form at one n and network level.

    Attributes:
        seconds: measured if `source` says so, else modeled.
        modeled: modeled from the local measurement.
        repeat: timed runs; for a modeled time, the local ones.
    """

    n: int
    seconds: float
    source: str
    modeled: float
    repeat: int

    @property
    def ratio(self) -> float:
        """Predicted over measured time; NaN without a measurement."""
        return self.modeled / self.seconds if self.source == MEASURED else math.nan


@dataclass
class ExpStudy:
    """Results of the study.

    Attributes:
        measurements: without shaped links, by form, ascending n.
        levels: at the network levels, by name.
        accuracy: by form.
        cut: skipped sizes, with the reason.
    """

    plan: StudyPlan
    measurements: dict[ExpForm, list[ExpMeasurement]] = field(default_factory=dict)
    levels: dict[str, LevelResults] = field(default_factory=dict)
    accuracy: dict[ExpForm, grid.Accuracy] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)

    @property
    def main_forms(self) -> list[ExpForm]:
        """Forms measured at several sizes."""
        return [f for f, rows in self.measurements.items() if len(rows) > 1]

    def largest_measurement(self, form: ExpForm) -> ExpMeasurement:
        """Return the measurement at the largest n."""
        return self.measurements[form][-1]

    def bytes_per_element(self, form: ExpForm) -> tuple[float, float, float]:
        """Return bytes per element by party: the slope over the sizes, or the only figure."""
        rows = self.measurements[form]
        if len(rows) > 1:
            a, b, c = (self.fit_quantity(form, f"bytes_P{p}").a for p in range(3))
        else:
            a, b, c = (sent / rows[0].n for sent in rows[0].sent)
        return a, b, c

    def times_at_level(self, form: ExpForm, level: NetworkProfile) -> list[TimePoint]:
        """Return times at a network level for each locally measured n: measured or modeled."""
        at = self.levels.get(level.name)
        there = {m.n: m for m in at.measurements.get(form, ())} if at else {}
        points = []
        for m in self.measurements[form]:
            modeled, measured_there = m.modeled_seconds(level), there.get(m.n)
            if measured_there is None:
                points.append(TimePoint(m.n, modeled, MODELED, modeled, len(m.seconds)))
            else:
                points.append(
                    TimePoint(
                        m.n, measured_there.median, MEASURED, modeled, len(measured_there.seconds)
                    )
                )
        return points

    def fitted_times(self, form: ExpForm, level: NetworkProfile) -> list[TimePoint]:
        """Return the times for a level's fit: measured ones if there are two, else modeled ones."""
        rows = self.times_at_level(form, level)
        measured = [t for t in rows if t.source == MEASURED]
        if len(measured) > 1:
            return measured
        return [replace(t, seconds=t.modeled, source=MODELED) for t in rows]

    def quantity_source(self, form: ExpForm, quantity: str) -> str:
        """Return MEASURED or MODELED for the points of a fit."""
        level = _LEVEL_OF.get(quantity)
        return MEASURED if level is None else self.fitted_times(form, level)[0].source

    def fit_quantity(self, form: ExpForm, quantity: str) -> Fit:
        """Return the fit of one of QUANTITIES over the sizes of a main form."""
        level = _LEVEL_OF.get(quantity)
        if level is not None:
            times = self.fitted_times(form, level)
            return fit_line([t.n for t in times], [t.seconds for t in times])
        value = _MEASURED[quantity]
        rows = self.measurements[form]
        return fit_line([m.n for m in rows], [value(m) for m in rows])

    def fit_memory(self, form: ExpForm) -> Fit:
        """Return the fit of peak memory in kB of the worker with the steepest slope."""
        return max(
            (self.fit_quantity(form, f"peak_rss_kb_P{p}") for p in range(3)), key=lambda f: f.a
        )

    def model_fit(self, form: ExpForm, quantity: str) -> Fit | None:
        """Return the modeled fit over the sizes of `fit_quantity`; None unless a level's time."""
        level = _LEVEL_OF.get(quantity)
        if level is None:
            return None
        times = self.fitted_times(form, level)
        return fit_line([t.n for t in times], [t.modeled for t in times])


_MEASURED: dict[str, Callable[[ExpMeasurement], float]] = {
    **{f"bytes_P{p}": lambda m, p=p: m.sent[p] for p in range(3)},  # type: ignore[misc]
    "bytes_total": lambda m: sum(m.sent),
    **{f"peak_rss_kb_P{p}": lambda m, p=p: m.peak_rss[p] / 1024 for p in range(3)},  # type: ignore[misc]
    "seconds_local": lambda m: m.median,
}
_LEVEL_OF = {f"seconds_{level.name}": level for level in LEVELS}
QUANTITIES = (*_MEASURED, *_LEVEL_OF)
"""What lines are fitted to."""


def run_study(
    open_cluster: ClusterOpener,
    plan: StudyPlan,
    tell: ProgressCallback = lambda fraction, text: None,
) -> ExpStudy:
    """Measure every form: without shaped links, then at each network level of the plan.

    Links that miss a level's figures, or that the workers' operators do not allow to be shaped,
    do not fail the study: the level stays modeled, and the reason is stored.

    Args:
        open_cluster: opens the workers of a profile; called for LOCAL once, or (`plan.fresh`) once
            for each main form; for each level once, and again after the others if it refuses.
        tell: callback for progress.

    Raises:
        TfeBenchError: a worker failed.
    """
    study = ExpStudy(plan)
    main, others = main_exp_forms(), variant_exp_forms(plan.quick)
    at_levels = {
        level: len(main) * len(plan.levels[level.name].sizes)
        for level in LEVELS
        if level.name in plan.levels
    }
    work = len(main) * (len(plan.sizes) + 1) + 2 * len(others) + sum(at_levels.values())
    done = 0

    def report_step(form: ExpForm, text: str) -> None:
        nonlocal done
        tell(done / work, f"{form.label}: {text}")
        done += 1

    def measure_one(cluster: ExpRunner, form: ExpForm, sizes: tuple[int, ...]) -> None:
        nonlocal done
        rows = study.measurements.setdefault(form, [])
        for i, n in enumerate(sizes):
            if rows and (reason := _reason_to_skip_size(plan, rows[-1], n)):
                study.cut.append(f"{form.label}: n = {n:,} left out, {reason}")
                done += len(sizes) - i
                break
            report_step(form, f"n = {n:,}")
            rows.append(measure_exp_form(cluster, form, n, plan.repeat))
        report_step(form, f"accuracy on {grid.POINTS:,} points")
        study.accuracy[form] = measure_exp_accuracy(cluster, form, plan.float32)

    def measure_level(level: NetworkProfile) -> LevelResults:
        """Measure the main forms at a level, on one set of workers."""
        results, level_plan = LevelResults(level), plan.levels[level.name]
        with contextlib.ExitStack() as stack:
            try:
                cluster = stack.enter_context(open_cluster(level.name))
            except (ProfileError, PolicyError) as error:
                results.refused = str(error)
                return results
            results.emulation, results.realized = cluster.emulation or "", cluster.realized
            for form in main:
                known = {m.n: m for m in study.measurements[form]}
                for n in (n for n in level_plan.sizes if n in known):
                    seconds = known[n].modeled_seconds(level) * (plan.repeat + 1)
                    if reason := _describe_time_excess(seconds, level_plan.job_seconds):
                        study.cut.append(
                            f"{form.label} at {level.name}: n = {n:,} left out, {reason}"
                        )
                        break
                    report_step(form, f"n = {n:,} at {level.name}")
                    rows = results.measurements.setdefault(form, [])
                    rows.append(measure_exp_form(cluster, form, n, plan.repeat))
        return results

    with contextlib.ExitStack() as stack:
        shared = None if plan.fresh else stack.enter_context(open_cluster(LOCAL))
        for form in main:
            opened_cluster = (
                open_cluster(LOCAL) if shared is None else contextlib.nullcontext(shared)
            )
            with opened_cluster as cluster:
                measure_one(cluster, form, plan.sizes)
        shared = shared or stack.enter_context(open_cluster(LOCAL))
        for form in others:
            measure_one(shared, form, (plan.variant_size,))
    refused: list[NetworkProfile] = []
    for again in (False, True):  # a second attempt after the others: a busy moment may be over
        for level in refused if again else at_levels:
            before = done
            level_results = study.levels[level.name] = measure_level(level)
            if level_results.refused and not again:
                refused.append(level)
            else:
                done = before + at_levels[level]
    tell(1.0, "writing")
    return study


def _describe_time_excess(seconds: float, limit: float) -> str:
    return f"about {seconds:.0f} s of runs (limit {limit:.0f} s)" if seconds > limit else ""


def _reason_to_skip_size(plan: StudyPlan, before: ExpMeasurement, n: int) -> str:
    """Return why n is not measured, or '', from the cost of the size before it."""
    factor = n / before.n
    if before.n < 1_000:  # fixed costs only
        return ""
    if reason := _describe_time_excess(
        before.median * factor * (plan.repeat + 1), plan.job_seconds
    ):
        return reason
    growth = max(before.growth) * factor
    if before.n >= 100_000 and growth > plan.job_bytes:
        return f"about {growth / 1e9:.1f} GB a worker (limit {plan.job_bytes / 1e9:.1f} GB)"
    return ""
