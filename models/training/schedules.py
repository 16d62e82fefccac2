"""Learning rates by step, computed alike on every host.

The three workers multiply shares by what comes out of here, so that all of it is decimal
arithmetic, which Python defines exactly: hosts differ in the last bit of libm's pow and cos.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Any

from tfe_bench.errors import UsageError, check_one_of

DIGITS = Context(prec=50)
MOST_STEPS = 10**9
MOST_PIECES = 1000
_PI = Decimal("3.14159265358979323846264338327950288419716939937511")
# Options of each kind, by the names that Keras gives them.
KINDS: Mapping[str, tuple[str, ...]] = {
    "constant": ("rate",),
    "exponential": ("initial_learning_rate", "decay_steps", "decay_rate", "staircase"),
    "piecewise": ("boundaries", "values"),
    "cosine": (
        "initial_learning_rate",
        "decay_steps",
        "alpha",
        "warmup_target",
        "warmup_steps",
    ),
}
KERAS = {
    "ExponentialDecay": "exponential",
    "PiecewiseConstantDecay": "piecewise",
    "CosineDecay": "cosine",
}


def real(value: Any, low: float = 0.0, high: float = 1e6) -> bool:
    """Whether this is a finite number from low to high."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    return fits and math.isfinite(value) and low <= value <= high


def _count(value: Any, low: int = 1) -> bool:
    return type(value) is int and low <= value <= MOST_STEPS


def cosine(x: Decimal) -> Decimal:
    """cos(x) for 0 <= x <= pi, by its series."""
    with localcontext(DIGITS):
        term = total = Decimal(1)
        for i in range(1, 40):
            term = -term * x * x / ((2 * i - 1) * (2 * i))
            total += term
        return +total


@dataclass(frozen=True)
class Schedule:
    """A learning rate for each step.

    Attributes:
        kind: of KINDS.
        options: public, as JSON holds them.

    Raises:
        UsageError: an unknown kind, or options that do not fit it.
    """

    kind: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_one_of("Learning rates are", self.kind, KINDS)
        if set(self.options) != set(KINDS[self.kind]) or not self._fits():
            raise UsageError(
                f"A learning rate of kind {self.kind!r} wants {', '.join(KINDS[self.kind])}, rates "
                f"from 0 to 10^6 and whole steps. Received: {dict(self.options)!r}."
            )

    def _fits(self) -> bool:
        o = self.options
        if self.kind == "constant":
            return real(o["rate"])
        if self.kind == "piecewise":
            edges, values = o["boundaries"], o["values"]
            lists = all(isinstance(v, (list, tuple)) for v in (edges, values))
            return (
                lists
                and len(values) == len(edges) + 1 <= MOST_PIECES
                and all(_count(e, 0) for e in edges)
                and all(a < b for a, b in itertools.pairwise(edges))
                and all(real(v) for v in values)
            )
        fits = real(o["initial_learning_rate"]) and _count(o["decay_steps"])
        if self.kind == "exponential":
            rate = o["decay_rate"]
            return fits and real(rate, 1e-9, 1.0) and isinstance(o["staircase"], bool)
        target = o["warmup_target"]
        return (
            fits
            and real(o["alpha"], 0.0, 1.0)
            and (target is None or real(target))
            and _count(o["warmup_steps"], 0)
        )

    def rate(self, step: int) -> Decimal:
        """Of a step, counted from 0."""
        with localcontext(DIGITS):
            return +_RATES[self.kind](self.options, step)

    @property
    def largest(self) -> Decimal:
        """A bound on all rates."""
        o = self.options
        if self.kind == "constant":
            return Decimal(o["rate"])
        if self.kind == "piecewise":
            return max(Decimal(v) for v in o["values"])
        first = Decimal(o["initial_learning_rate"])
        target = o.get("warmup_target")
        return first if target is None else max(first, Decimal(target))

    def header(self) -> dict[str, Any]:
        """As JSON holds it."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in self.options.items()}
        return {"kind": self.kind, **plain}


def of_keras(given: Any) -> Schedule:
    """The schedule of a number, or of what a Keras optimizer's get_config() says.

    Raises:
        UsageError: a schedule that is not supported.
    """
    if isinstance(given, Mapping):
        name, options = given.get("class_name"), dict(given.get("config", {}))
        options.pop("name", None)
        if name in KERAS:
            kind = KERAS[name]
            known = {k: plain(options.pop(k)) for k in KINDS[kind] if k in options}
            if not options:
                return Schedule(kind, known)
        raise UsageError(f"Learning rates are numbers or {', '.join(KERAS)}. Received: {name!r}.")
    if not real(given):
        raise UsageError(
            f"A learning rate is a number from 0 to 10^6. Received: {type(given).__name__}."
        )
    return Schedule("constant", {"rate": float(given)})


def plain(value: Any) -> Any:
    """Keras' options as JSON holds them; whole floats (steps) become integers where due."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value.item() if hasattr(value, "item") else value


def _exponential(o: Mapping[str, Any], step: int) -> Decimal:
    steps = o["decay_steps"]
    exponent = Decimal(step // steps) if o["staircase"] else Decimal(step) / steps
    return Decimal(o["initial_learning_rate"]) * (Decimal(o["decay_rate"]).ln() * exponent).exp()


def _piecewise(o: Mapping[str, Any], step: int) -> Decimal:
    edges: Sequence[int] = o["boundaries"]
    values: Sequence[float] = o["values"]
    return Decimal(values[sum(step > e for e in edges)])


def _cosine(o: Mapping[str, Any], step: int) -> Decimal:
    first, target = Decimal(o["initial_learning_rate"]), o["warmup_target"]
    warm: int = o["warmup_steps"]
    steps: int = o["decay_steps"]
    if target is not None:
        top = Decimal(target)
        if step < warm:
            return first + (top - first) * step / warm
        first, step = top, step - warm
    part = Decimal(min(step, steps)) / steps
    alpha = Decimal(o["alpha"])
    return first * ((1 - alpha) * (1 + cosine(_PI * part)) / 2 + alpha)


_RATES: Mapping[str, Callable[[Mapping[str, Any], int], Decimal]] = {
    "constant": lambda o, step: Decimal(o["rate"]),
    "exponential": _exponential,
    "piecewise": _piecewise,
    "cosine": _cosine,
}
