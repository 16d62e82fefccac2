"""Learning rates by step, with the same result on every host.

The three workers multiply shares by these rates, so all of them use decimal arithmetic, which
Python defines exactly: hosts differ in the last bit of libm's pow and cos.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Any

from tfe_bench.cluster.schema import Mismatch, Rule, declare_field, optional_rule
from tfe_bench.errors import UsageError, check_one_of

DIGITS = Context(prec=50)
MOST_STEPS = 10**9
MOST_PIECES = 1000
_PI = Decimal("3.14159265358979323846264338327950288419716939937511")
Options = Mapping[str, Any]


def is_real_schedule_option(value: Any, low: float = 0.0, high: float = 1e6) -> bool:
    """Return whether this is a number from low to high."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and low <= value <= high  # (NaN is neither)


def bounded_setting(default: Any, low: float, high: float) -> Any:
    """Declare a field for a number from low to high; None is valid where it is the default."""

    def read_value(value: object) -> object:
        if not is_real_schedule_option(value, low, high):
            raise Mismatch(f"a number from {low:g} to {high:g}", "number-out-of-range")
        return value  # (an integer stays one in headers)

    rule = Rule(read_value, least=low, most=high)
    return declare_field(optional_rule(rule) if default is None else rule, default)


def _is_schedule_count(value: Any, low: int = 1) -> bool:
    return type(value) is int and low <= value <= MOST_STEPS


def _is_schedule_step_count(value: Any) -> bool:
    """Return whether this is a valid divisor of steps."""
    return is_real_schedule_option(value, 1e-3, MOST_STEPS)


def _is_schedule_fraction(value: Any) -> bool:
    return is_real_schedule_option(value, 0.0, 1.0)


def _is_schedule_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_schedule_boundaries(value: Any) -> bool:
    listed = isinstance(value, (list, tuple)) and all(_is_schedule_count(e, 0) for e in value)
    return listed and all(a < b for a, b in itertools.pairwise(value))


def _is_schedule_rates(value: Any) -> bool:
    listed = isinstance(value, (list, tuple)) and 1 <= len(value) <= MOST_PIECES
    return listed and all(is_real_schedule_option(v) for v in value)


def compute_schedule_cosine(x: Decimal) -> Decimal:
    """Compute cos(x) for 0 <= x <= pi, by its series."""
    with localcontext(DIGITS):
        term = total = Decimal(1)
        for i in range(1, 40):
            term = -term * x * x / ((2 * i - 1) * (2 * i))
            total += term
        return +total


# ---- each kind: the rate of a step, counted from 0


def _exponential_rate_decay(o: Options, step: int) -> Decimal:
    passed = _count_rate_decays(o, step)
    return Decimal(o["initial_learning_rate"]) * (Decimal(o["decay_rate"]).ln() * passed).exp()


def _inverse_time_rate_decay(o: Options, step: int) -> Decimal:
    lost = 1 + Decimal(o["decay_rate"]) * _count_rate_decays(o, step)
    return Decimal(o["initial_learning_rate"]) / lost


def _count_rate_decays(o: Options, step: int) -> Decimal:
    """Return step / decay_steps, rounded down with staircase."""
    passed = Decimal(step) / Decimal(o["decay_steps"])
    return passed.to_integral_value(ROUND_FLOOR) if o["staircase"] else passed


def _piecewise_learning_rate(o: Options, step: int) -> Decimal:
    return Decimal(o["values"][sum(step > e for e in o["boundaries"])])


def _polynomial_rate_decay(o: Options, step: int) -> Decimal:
    first, last = Decimal(o["initial_learning_rate"]), Decimal(o["end_learning_rate"])
    steps, now, power = Decimal(o["decay_steps"]), Decimal(step), Decimal(o["power"])
    if o["cycle"]:
        steps *= max(Decimal(1), (now / steps).to_integral_value(ROUND_CEILING))
    remaining = 1 - min(now, steps) / steps
    # (0^0 is 1, as in Keras)
    decay_factor = (remaining.ln() * power).exp() if remaining else Decimal(not power)
    return (first - last) * decay_factor + last


def _cosine_rate_decay(o: Options, step: int) -> Decimal:
    first, target = Decimal(o["initial_learning_rate"]), o["warmup_target"]
    warm: int = o["warmup_steps"]
    if target is not None:
        top = Decimal(target)
        if step < warm:
            return first + (top - first) * step / warm
        first, step = top, step - warm
    steps = Decimal(o["decay_steps"])
    return _cosine_learning_rate(first, Decimal(o["alpha"]), min(Decimal(step), steps) / steps)


def _cosine_learning_rate(
    first: Decimal, alpha: Decimal, part: Decimal, height: Decimal = Decimal(1)
) -> Decimal:
    return first * ((1 - alpha) * height * (1 + compute_schedule_cosine(_PI * part)) / 2 + alpha)


def _cosine_rate_restarts(o: Options, step: int) -> Decimal:
    passed, longer = Decimal(step) / Decimal(o["first_decay_steps"]), Decimal(o["t_mul"])
    if longer == 1:
        count = int(passed)
        part = passed - count
    else:
        # the periods before number i last (longer^i - 1) / (longer - 1) of the first one
        grown = 1 + passed * (longer - 1)
        count = int(grown.ln() / longer.ln())
        # (the logarithm is rounded)
        while longer ** (count + 1) <= grown:
            count += 1
        while longer**count > grown:
            count -= 1
        part = (grown / longer**count - 1) / (longer - 1)
    height = Decimal(o["m_mul"]) ** count if count else Decimal(1)
    first, alpha = Decimal(o["initial_learning_rate"]), Decimal(o["alpha"])
    return _cosine_learning_rate(first, alpha, part, height)


@dataclass(frozen=True)
class _LearningRateScheduleKind:
    """One kind of learning-rate schedule.

    Attributes:
        checks: checks of its options, by their Keras names.
        rate: the rate of a step.
        keras: the class of keras.optimizers.schedules.
    """

    checks: Mapping[str, Callable[[Any], bool]]
    rate: Callable[[Options, int], Decimal]
    keras: str | None = None


_FIRST: Mapping[str, Callable[[Any], bool]] = {"initial_learning_rate": is_real_schedule_option}
_DECAY = {**_FIRST, "decay_steps": _is_schedule_step_count}
# Options that may hold the largest rate.
_TOPS = ("rate", "initial_learning_rate", "end_learning_rate", "warmup_target")
KINDS: Mapping[str, _LearningRateScheduleKind] = {
    "constant": _LearningRateScheduleKind(
        {"rate": is_real_schedule_option}, lambda o, step: Decimal(o["rate"])
    ),
    "exponential": _LearningRateScheduleKind(
        {
            **_DECAY,
            "decay_rate": lambda v: is_real_schedule_option(v, 1e-9, 1.0),
            "staircase": _is_schedule_flag,
        },
        _exponential_rate_decay,
        "ExponentialDecay",
    ),
    "piecewise": _LearningRateScheduleKind(
        {"boundaries": _is_schedule_boundaries, "values": _is_schedule_rates},
        _piecewise_learning_rate,
        "PiecewiseConstantDecay",
    ),
    "polynomial": _LearningRateScheduleKind(
        {
            **_DECAY,
            "end_learning_rate": is_real_schedule_option,
            "power": lambda v: is_real_schedule_option(v, 0.0, 100.0),
            "cycle": _is_schedule_flag,
        },
        _polynomial_rate_decay,
        "PolynomialDecay",
    ),
    "inverse_time": _LearningRateScheduleKind(
        {**_DECAY, "decay_rate": is_real_schedule_option, "staircase": _is_schedule_flag},
        _inverse_time_rate_decay,
        "InverseTimeDecay",
    ),
    "cosine": _LearningRateScheduleKind(
        {
            **_DECAY,
            "alpha": _is_schedule_fraction,
            "warmup_target": lambda v: v is None or is_real_schedule_option(v),
            "warmup_steps": lambda v: _is_schedule_count(v, 0),
        },
        _cosine_rate_decay,
        "CosineDecay",
    ),
    "restarts": _LearningRateScheduleKind(
        {
            **_FIRST,
            "first_decay_steps": _is_schedule_step_count,
            "t_mul": lambda v: is_real_schedule_option(v, 1.0, 100.0),
            "m_mul": _is_schedule_fraction,
            "alpha": _is_schedule_fraction,
        },
        _cosine_rate_restarts,
        "CosineDecayRestarts",
    ),
}
KERAS = {kind.keras: name for name, kind in KINDS.items() if kind.keras is not None}


@dataclass(frozen=True)
class LearningRateSchedule:
    """A learning rate for each step.

    Attributes:
        kind: a key of KINDS.
        options: public, as JSON values.

    Raises:
        UsageError: the kind is unknown, or options do not fit it.
    """

    kind: str
    options: Options

    def __post_init__(self) -> None:
        check_one_of("Learning rates are", self.kind, KINDS, operation="learning_rate")
        checks = KINDS[self.kind].checks
        bad = [n for n in checks if n not in self.options or not checks[n](self.options[n])]
        if not bad and "boundaries" in checks:
            fits = len(self.options["values"]) == len(self.options["boundaries"]) + 1
            bad = [] if fits else ["values"]
        if bad or set(self.options) != set(checks):
            raise UsageError(
                f"Expected {', '.join(checks)} for a learning rate of kind {self.kind!r}: rates "
                "from 0 to "
                f"10^6, that do not grow beyond the first, and steps. Received: "
                f"{str(dict(self.options))[:300]}"
                f"{', where ' + ', '.join(bad) + ' do not fit' if bad else ''}.",
                code="invalid-schedule",
                operation=self.kind,
                received=", ".join(bad),
            )

    def compute_rate(self, step: int) -> Decimal:
        """Return the rate of a step, counted from 0."""
        with localcontext(DIGITS):
            return +KINDS[self.kind].rate(self.options, step)

    @property
    def largest_rate(self) -> Decimal:
        """Bound on all rates."""
        tops = [self.options.get(name) for name in _TOPS]
        return max(Decimal(v) for v in (*tops, *self.options.get("values", ())) if v is not None)

    def to_header(self) -> dict[str, Any]:
        """Return the schedule as a JSON object."""
        simple = {k: list(v) if isinstance(v, tuple) else v for k, v in self.options.items()}
        return {"kind": self.kind, **simple}


def read_keras_schedule(rate: Any) -> LearningRateSchedule:
    """Read the schedule of a number, or of a Keras optimizer's get_config().

    Raises:
        UsageError: the schedule is not supported.
    """
    if isinstance(rate, Mapping):
        name, options = rate.get("class_name"), dict(rate.get("config", {}))
        options.pop("name", None)
        if name in KERAS:
            kind = KERAS[name]
            known = {
                k: keras_option_to_json(options.pop(k)) for k in KINDS[kind].checks if k in options
            }
            if "boundaries" in known:  # (Keras compares them as integers)
                known["boundaries"] = [
                    int(v) if is_real_schedule_option(v, 0, MOST_STEPS) else v
                    for v in known["boundaries"]
                ]
            if not options:
                return LearningRateSchedule(kind, known)
        raise UsageError(
            f"Expected a number or {', '.join(KERAS)} as learning rate. Received: {name!r}.",
            code="unsupported-argument",
            operation="learning_rate",
            received=name,
        )
    if not is_real_schedule_option(rate):
        raise UsageError(
            f"Expected a learning rate from 0 to 10^6. Received: {type(rate).__name__}.",
            code="number-out-of-range",
            operation="learning_rate",
        )
    return LearningRateSchedule("constant", {"rate": float(rate)})


def keras_option_to_json(value: Any) -> Any:
    """Convert Keras' options to JSON values."""
    if isinstance(value, (list, tuple)):
        return [keras_option_to_json(v) for v in value]
    return value.item() if hasattr(value, "item") else value
