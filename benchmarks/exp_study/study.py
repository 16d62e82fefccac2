"""Runs the study on workers: sizes for cost and time, network levels, points for accuracy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tfe_bench.benchmarks.exp_study import grid
from tfe_bench.benchmarks.exp_study.fits import Fit, fit_line
from tfe_bench.benchmarks.exp_study.forms import Form, main_forms, variant_forms
from tfe_bench.benchmarks.exp_study.levels import LEVELS, MEASURED, MODELED
from tfe_bench.benchmarks.exp_study.measurement import (
    Measurement,
    Runner,
    measure_accuracy,
    measure_form,
)
from tfe_bench.benchmarks.measured_links import HOST_LIMITED, MeasuredLinks
from tfe_bench.cluster.profiles import Profile
from tfe_bench.errors import PolicyError, ProfileError

ProgressCallback = Callable[[float, str], None]
LOCAL = "local"
ClusterOpener = Callable[[str], contextlib.AbstractContextManager[Runner]]
"""Gives workers whose links are those of a profile."""


@dataclass(frozen=True)
class LevelPlan:
    """How much is measured at a level.

    Attributes:
        sizes: n of the main forms, ascending; one of them only where it was measured locally too.
        job_seconds: a size whose runs would take longer by the model is left out.
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
    """What was measured at one level.

    Attributes:
        emulation: how the links were made.
        realized: what they were found to hold, before anything was measured.
        measurements: by form, ascending n.
        refused: why nothing was measured, or ''.
    """

    level: Profile
    emulation: str = ""
    realized: MeasuredLinks | None = None
    measurements: dict[Form, list[Measurement]] = field(default_factory=dict)
    refused: str = ""

    @property
    def host_limited(self) -> bool:
        """Whether the links fall short of the level's figures."""
        return HOST_LIMITED in self.emulation


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
        levels: what is measured at each network level; one that is not there is modeled alone.
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


QUICK = Plan(
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
        seconds: measured where `source` says so, else the model's.
        modeled: by the model, from the local measurement.
        repeat: timed runs, of a modeled time the local ones.
    """

    n: int
    seconds: float
    source: str
    modeled: float
    repeat: int

    @property
    def ratio(self) -> float:
        """Predicted over measured; NaN where nothing was measured."""
        return self.modeled / self.seconds if self.source == MEASURED else math.nan


@dataclass
class Study:
    """What was measured.

    Attributes:
        measurements: without shaped links, by form, ascending n.
        levels: at the network levels, by name.
        accuracy: by form.
        cut: sizes that were left out, with the reason.
    """

    plan: Plan
    measurements: dict[Form, list[Measurement]] = field(default_factory=dict)
    levels: dict[str, LevelResults] = field(default_factory=dict)
    accuracy: dict[Form, grid.Accuracy] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)

    @property
    def main_forms(self) -> list[Form]:
        """Forms measured at several sizes."""
        return [f for f, rows in self.measurements.items() if len(rows) > 1]

    def largest_measurement(self, form: Form) -> Measurement:
        """At the greatest n."""
        return self.measurements[form][-1]

    def bytes_per_element(self, form: Form) -> tuple[float, float, float]:
        """By party: the slope where there are sizes, else at the only one."""
        rows = self.measurements[form]
        if len(rows) > 1:
            a, b, c = (self.fit_quantity(form, f"bytes_P{p}").a for p in range(3))
        else:
            a, b, c = (sent / rows[0].n for sent in rows[0].sent)
        return a, b, c

    def times_at_level(self, form: Form, level: Profile) -> list[TimePoint]:
        """At a network level, for each n that was measured locally: measured there, or modeled."""
        at = self.levels.get(level.name)
        there = {m.n: m for m in at.measurements.get(form, ())} if at else {}
        found = []
        for m in self.measurements[form]:
            modeled, own = m.modeled_seconds(level), there.get(m.n)
            if own is None:
                found.append(TimePoint(m.n, modeled, MODELED, modeled, len(m.seconds)))
            else:
                found.append(TimePoint(m.n, own.median, MEASURED, modeled, len(own.seconds)))
        return found

    def fitted_times(self, form: Form, level: Profile) -> list[TimePoint]:
        """What the line of a level goes through: measured times if there are two, else modeled."""
        rows = self.times_at_level(form, level)
        measured = [t for t in rows if t.source == MEASURED]
        if len(measured) > 1:
            return measured
        return [replace(t, seconds=t.modeled, source=MODELED) for t in rows]

    def quantity_source(self, form: Form, quantity: str) -> str:
        """Whether what a line goes through was measured, or modeled."""
        level = _LEVEL_OF.get(quantity)
        return MEASURED if level is None else self.fitted_times(form, level)[0].source

    def fit_quantity(self, form: Form, quantity: str) -> Fit:
        """The line of one of QUANTITIES over the sizes of a main form."""
        level = _LEVEL_OF.get(quantity)
        if level is not None:
            times = self.fitted_times(form, level)
            return fit_line([t.n for t in times], [t.seconds for t in times])
        value = _MEASURED[quantity]
        rows = self.measurements[form]
        return fit_line([m.n for m in rows], [value(m) for m in rows])

    def fit_memory(self, form: Form) -> Fit:
        """The line of peak memory in kB of the worker for which it is steepest."""
        return max(
            (self.fit_quantity(form, f"peak_rss_kb_P{p}") for p in range(3)), key=lambda f: f.a
        )

    def model_fit(self, form: Form, quantity: str) -> Fit | None:
        """The model's line over the same sizes as `fit`; None for what is no time at a level."""
        level = _LEVEL_OF.get(quantity)
        if level is None:
            return None
        times = self.fitted_times(form, level)
        return fit_line([t.n for t in times], [t.modeled for t in times])


_MEASURED: dict[str, Callable[[Measurement], float]] = {
    **{f"bytes_P{p}": lambda m, p=p: m.sent[p] for p in range(3)},  # type: ignore[misc]
    "bytes_total": lambda m: sum(m.sent),
    **{f"peak_rss_kb_P{p}": lambda m, p=p: m.peak_rss[p] / 1024 for p in range(3)},  # type: ignore[misc]
    "seconds_local": lambda m: m.median,
}
_LEVEL_OF = {f"seconds_{level.name}": level for level in LEVELS}
QUANTITIES = (*_MEASURED, *_LEVEL_OF)
"""What lines are fitted to."""


def run_study(
    open_cluster: ClusterOpener, plan: Plan, tell: ProgressCallback = lambda fraction, text: None
) -> Study:
    """Measures every form: without shaped links, then at each network level of the plan.

    Links that do not hold a level's figures, or that the workers' operators do not let be shaped,
    are no failure of the study: the level stays modeled, and the reason is kept.

    Args:
        open_cluster: gives the workers of a profile; LOCAL one time or (`plan.fresh`) once for each
            main form, each level one time, or once more after the others if it refuses.
        tell: hears how far it is.

    Raises:
        TfeBenchError: a worker failed.
    """
    study = Study(plan)
    main, others = main_forms(), variant_forms(plan.quick)
    at_levels = {
        level: len(main) * len(plan.levels[level.name].sizes)
        for level in LEVELS
        if level.name in plan.levels
    }
    work = len(main) * (len(plan.sizes) + 1) + 2 * len(others) + sum(at_levels.values())
    done = 0

    def report_step(form: Form, what: str) -> None:
        nonlocal done
        tell(done / work, f"{form.label}: {what}")
        done += 1

    def measure_one(cluster: Runner, form: Form, sizes: tuple[int, ...]) -> None:
        nonlocal done
        rows = study.measurements.setdefault(form, [])
        for i, n in enumerate(sizes):
            if rows and (reason := _reason_to_skip(plan, rows[-1], n)):
                study.cut.append(f"{form.label}: n = {n:,} left out, {reason}")
                done += len(sizes) - i
                break
            report_step(form, f"n = {n:,}")
            rows.append(measure_form(cluster, form, n, plan.repeat))
        report_step(form, f"accuracy on {grid.POINTS:,} points")
        study.accuracy[form] = measure_accuracy(cluster, form, plan.float32)

    def measure_level(level: Profile) -> LevelResults:
        """The main forms at a level, on one set of workers."""
        found, own = LevelResults(level), plan.levels[level.name]
        with contextlib.ExitStack() as stack:
            try:
                cluster = stack.enter_context(open_cluster(level.name))
            except (ProfileError, PolicyError) as error:
                found.refused = str(error)
                return found
            found.emulation, found.realized = cluster.emulation or "", cluster.realized
            for form in main:
                known = {m.n: m for m in study.measurements[form]}
                for n in (n for n in own.sizes if n in known):
                    seconds = known[n].modeled_seconds(level) * (plan.repeat + 1)
                    if reason := _describe_excess(seconds, own.job_seconds):
                        study.cut.append(
                            f"{form.label} at {level.name}: n = {n:,} left out, {reason}"
                        )
                        break
                    report_step(form, f"n = {n:,} at {level.name}")
                    rows = found.measurements.setdefault(form, [])
                    rows.append(measure_form(cluster, form, n, plan.repeat))
        return found

    with contextlib.ExitStack() as stack:
        shared = None if plan.fresh else stack.enter_context(open_cluster(LOCAL))
        for form in main:
            own = open_cluster(LOCAL) if shared is None else contextlib.nullcontext(shared)
            with own as cluster:
                measure_one(cluster, form, plan.sizes)
        shared = shared or stack.enter_context(open_cluster(LOCAL))
        for form in others:
            measure_one(shared, form, (plan.variant_size,))
    refused: list[Profile] = []
    for again in (False, True):  # once more after the others: a busy moment may be over
        for level in refused if again else at_levels:
            before = done
            found = study.levels[level.name] = measure_level(level)
            if found.refused and not again:
                refused.append(level)
            else:
                done = before + at_levels[level]
    tell(1.0, "writing")
    return study


def _describe_excess(seconds: float, limit: float) -> str:
    return f"about {seconds:.0f} s of runs (limit {limit:.0f} s)" if seconds > limit else ""


def _reason_to_skip(plan: Plan, before: Measurement, n: int) -> str:
    """Why n is not measured, or ''; by what the size before it took."""
    factor = n / before.n
    if before.n < 1_000:  # fixed costs only
        return ""
    if reason := _describe_excess(before.median * factor * (plan.repeat + 1), plan.job_seconds):
        return reason
    growth = max(before.growth) * factor
    if before.n >= 100_000 and growth > plan.job_bytes:
        return f"about {growth / 1e9:.1f} GB a worker (limit {plan.job_bytes / 1e9:.1f} GB)"
    return ""
