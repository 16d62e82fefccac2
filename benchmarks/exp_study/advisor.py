"""Advice on the form for a range of x: the cheapest that is accurate on all of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfe_bench.benchmarks.exp_study.forms import CLAMPS, METHODS, SOFTMAX, ExpForm
from tfe_bench.benchmarks.exp_study.levels import LEVELS
from tfe_bench.benchmarks.prediction import modeled_seconds
from tfe_bench.cluster.profiles import NetworkProfile
from tfe_bench.errors import UsageError, check_range

RANGES = ((-10.0, 10.0), (-10.0, 0.0), (-20.0, 20.0), (-30.0, 0.0), (-40.0, 20.0), (-40.0, 40.0))
"""What the report advises on."""
WORST = 0.01


@dataclass(frozen=True)
class FormAdvice:
    """A form that covers a range, and its cost.

    Attributes:
        failure: declared probability of a wrong element.
        error: declared relative error, over the range; the last place comes on top.
        seconds: of the network alone for n elements, by level (modeled).
    """

    form: ExpForm
    low: float
    high: float
    failure: float
    error: float
    bytes_total: float
    rounds: int
    seconds: dict[str, float]


def list_exp_forms() -> list[ExpForm]:
    """Return every form that exists, except for other numbers of squarings."""
    candidates = []
    for ring in (64, 128):
        for method in METHODS:
            for softmax in (False, True) if method in SOFTMAX else (False,):
                for clamp in CLAMPS:
                    form = ExpForm(method, ring, clamp, softmax=softmax)
                    try:
                        form.cost(1)
                        form.useful_range()
                    except UsageError:
                        continue
                    candidates.append(form)
    return candidates


def rank_exp_forms(
    low: float, high: float, n: int, level: NetworkProfile = LEVELS[2]
) -> list[FormAdvice]:
    """Return forms that cover [low, high] with an error below 1 %, cheapest at `level` first.

    Raises:
        UsageError: the range or n is invalid.
    """
    if not (low <= high and abs(low) < 1e6 and abs(high) < 1e6):
        raise UsageError(
            f"Expected a range LOW <= HIGH with magnitudes below 10^6. Received: {low:g} {high:g}.",
            code="invalid-range",
            received=f"{low:g} {high:g}",
        )
    check_range("n", n, 1)
    ranked = []
    for form in list_exp_forms():
        first, last = form.useful_range()
        if not first <= low <= high <= last:
            continue
        error = float(form.relative_error(np.array([low, high])).max())
        if error > WORST:
            continue
        cost = form.cost(n)
        sent = tuple(bits // 8 for bits in cost.by_party(0))
        ranked.append(
            FormAdvice(
                form,
                first,
                last,
                form.failure_probability(),
                error,
                sum(sent),
                cost.with_dealing,
                {v.name: modeled_seconds(v, 0.0, cost.with_dealing, sent) for v in LEVELS},
            )
        )
    ranked.sort(key=lambda a: (a.seconds[level.name], a.bytes_total, a.failure))
    return ranked


def advice_sentence(
    low: float, high: float, n: int = 10_000, level: NetworkProfile = LEVELS[2]
) -> str:
    """Return one line of advice for a range."""
    ranked = rank_exp_forms(low, high, n, level)
    where = f"x in [{low:g}, {high:g}]"
    if not ranked:
        return f"{where}: no form covers it; clamp or scale x first."
    best = ranked[0]
    text = f"{where}: {_describe_advice(best, n)}"
    finer = next((a for a in ranked if a.form.ring_bits == 128 and a.error < best.error), None)
    if best.form.ring_bits == 64 and finer is not None:
        text += f"; where more digits are wanted, {_describe_advice(finer, n)}"
    return text + "."


def advice_sentences() -> list[str]:
    """Return a line for each of several ranges."""
    return [advice_sentence(*limits) for limits in RANGES]


def _describe_advice(a: FormAdvice, n: int) -> str:
    return (
        f"{a.form.name} in the ring of {a.form.ring_bits} bits ({a.bytes_total / n:.0f} B in all "
        f"per element, {_format_rounds(a.rounds)}, error {a.error:.0e} and {a.form.fxp} bits)"
    )


def _format_rounds(count: int) -> str:
    return f"{count} round" + "s" * (count != 1)
