"""The main forms at a network level: measured on links that hold its figures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tfe_bench.benchmarks.exp_study.forms import Form
from tfe_bench.benchmarks.exp_study.measurement import Measurement, Runner, measure
from tfe_bench.benchmarks.realised import HOST_LIMITED, Realised
from tfe_bench.cluster.profiles import Profile
from tfe_bench.errors import PolicyError, ProfileError

Opener = Callable[[str], contextlib.AbstractContextManager[Runner]]
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
class AtLevel:
    """What was measured at one level.

    Attributes:
        emulation: how the links were made.
        realised: what they were found to hold, before anything was measured.
        measurements: by form, ascending n.
        refused: why nothing was measured, or ''.
    """

    level: Profile
    emulation: str = ""
    realised: Realised | None = None
    measurements: dict[Form, list[Measurement]] = field(default_factory=dict)
    refused: str = ""

    @property
    def host_limited(self) -> bool:
        """Whether the links fall short of the level's figures."""
        return HOST_LIMITED in self.emulation


def at_level(
    open_cluster: Opener,
    level: Profile,
    plan: LevelPlan,
    local: Mapping[Form, Sequence[Measurement]],
    repeat: int,
    step: Callable[[Form, str], None],
    cut: Callable[[str], None],
) -> AtLevel:
    """Measures the forms of `local` at a level, on one set of workers.

    Links that do not hold the level's figures, or that the workers' operators do not let be
    shaped, are no failure of the study: the level stays modelled, and the reason is kept.

    Args:
        local: what was measured without shaped links, by form: what the times are predicted from.
        step: hears of each form and size before it is measured.
        cut: hears of each size that is left out, with the reason.

    Raises:
        TfeBenchError: a worker failed.
    """
    found = AtLevel(level)
    with contextlib.ExitStack() as stack:
        try:
            cluster = stack.enter_context(open_cluster(level.name))
        except (ProfileError, PolicyError) as error:
            found.refused = str(error)
            return found
        found.emulation, found.realised = cluster.emulation or "", cluster.realised
        for form, rows in local.items():
            known = {m.n: m for m in rows}
            for n in (n for n in plan.sizes if n in known):
                seconds = known[n].modelled(level) * (repeat + 1)
                if seconds > plan.job_seconds:
                    cut(
                        f"{form.label} at {level.name}: n = {n:,} left out, about {seconds:.0f} s "
                        f"of runs (limit {plan.job_seconds:.0f} s)"
                    )
                    break
                step(form, f"n = {n:,} at {level.name}")
                found.measurements.setdefault(form, []).append(measure(cluster, form, n, repeat))
    return found
