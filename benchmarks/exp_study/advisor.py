"""Which form to take for a range of x: the cheapest that is accurate on all of it."""

from __future__ import annotations

from dataclasses import dataclass

from tfe_bench.benchmarks.exp_study.forms import CLAMPS, METHODS, Form
from tfe_bench.benchmarks.exp_study.levels import LEVELS, NetLevel, modelled_seconds
from tfe_bench.errors import UsageError

RANGES = ((-10.0, 10.0), (-10.0, 0.0), (-20.0, 20.0), (-30.0, 0.0), (-40.0, 20.0), (-40.0, 40.0))
"""What the report advises on."""


@dataclass(frozen=True)
class Advice:
    """A form that covers a range, and what it costs.

    Attributes:
        seconds: of the network alone for n elements, by level (modelled).
    """

    form: Form
    low: float
    high: float
    failure: float
    bytes_total: float
    rounds: int
    seconds: dict[str, float]


def candidates() -> list[Form]:
    """Every form that exists, but for other numbers of squarings."""
    found = []
    for ring in (64, 128):
        for method in METHODS:
            for softmax in (False, True):
                for clamp in CLAMPS:
                    form = Form(method, ring, clamp, softmax=softmax)
                    try:
                        form.cost(1)
                        form.covered()
                    except UsageError:
                        continue
                    found.append(form)
    return found


def advise(low: float, high: float, n: int, level: NetLevel = LEVELS[2]) -> list[Advice]:
    """Forms that cover [low, high], cheapest at `level` first.

    Taylor's range is where its own error stays small, so a range it covers may still be less
    exact than another form's.

    Raises:
        UsageError: the range is none, or n is.
    """
    if not (low <= high and abs(low) < 1e6 and abs(high) < 1e6):
        raise UsageError(f"A range is LOW <= HIGH, both finite. Received: {low:g} {high:g}.")
    if n < 1:
        raise UsageError(f"n is 1 or more. Received: {n}.")
    found = []
    for form in candidates():
        first, last = form.covered()
        if not first <= low <= high <= last:
            continue
        cost = form.cost(n)
        sent = tuple(bits // 8 for bits in cost.by_party(0))
        found.append(
            Advice(
                form,
                first,
                last,
                form.failure_probability(),
                sum(sent),
                cost.cold,
                {v.name: modelled_seconds(v, 0.0, cost.cold, sent) for v in LEVELS},
            )
        )
    found.sort(key=lambda a: (a.seconds[level.name], a.bytes_total, a.failure))
    return found


def sentence(low: float, high: float, n: int = 10_000, level: NetLevel = LEVELS[2]) -> str:
    """One line: what to take for a range."""
    found = advise(low, high, n, level)
    where = f"x in [{low:g}, {high:g}]"
    if not found:
        return f"{where}: no form covers it; clamp or scale x first."
    best = found[0]
    text = (
        f"{where}: {best.form.name} in the ring of {best.form.ring_bits} bits "
        f"({best.bytes_total / n:.0f} B in all per element, {_rounds(best.rounds)})"
    )
    exact = next((a for a in found if a.form.ring_bits == 128), None)
    if best.form.ring_bits == 64 and exact is not None:
        text += (
            f"; {exact.form.name} / 128 where six digits or more are wanted "
            f"({exact.bytes_total / n:.0f} B, {_rounds(exact.rounds)})"
        )
    return text + "."


def _rounds(count: int) -> str:
    return f"{count} round" + "s" * (count != 1)
