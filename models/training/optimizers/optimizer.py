"""What all optimizers share: Keras' common options, their reading and writing, and the fixed point
of a training as an update sees it.

An optimizer is one module of models/training/optimizers: a class with Keras' numbers, the arrays it
remembers, its public integers of a step and its private update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from decimal import Decimal, localcontext
from fractions import Fraction
from math import floor
from typing import Any, ClassVar, TypeVar

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.passes import ForwardContext, Precision
from tfe_bench.models.training.schedules import DIGITS, Schedule, is_real
from tfe_bench.protocols.session.sharing import Shared

T = TypeVar("T")
# Of a mean gradient that is clipped: fractional bits, and below 2^12 in magnitude before it is.
CLIPPED_BITS, CLIPPED_RANGE = 22, 12
# Of what takes a summed gradient to its mean, where that is no power of two.
SHARE_BITS = 10
# Small gradients are multiplied by 2^MOST_RAISED at most.
MOST_RAISED = 16
# Mean gradients of weights whose exponent is k stay below 2^(BOUND_BITS + k).
BOUND_BITS = 3
# The public integer of a step that multiplies what moves the weights.
RATE = "rate"


def bounded_setting(default: T, low: float, high: float) -> T:
    """A setting from low to high; None is one too where it is the default."""
    setting: T = field(default=default, metadata={"range": (low, high)})
    return setting


def choose_exponent(largest: Decimal | Fraction, bits: int) -> int:
    """e with largest * 2^e in [2^(bits-1), 2^bits), exactly."""
    part = Fraction(largest)
    e = bits - (part.numerator.bit_length() - part.denominator.bit_length())
    while part * Fraction(2) ** e >= 1 << bits:
        e -= 1
    return e


def round_half_up(value: Fraction) -> int:
    """To the nearest integer."""
    return floor(value + Fraction(1, 2))


def check_rate(top: Decimal) -> None:
    """Raises UsageError if no step moves anything."""
    if top <= 0:
        raise UsageError("A learning rate is above 0 at some step.")


@dataclass(frozen=True)
class Slot:
    """An array that an optimizer remembers for each array of weights.

    Attributes:
        fractional_bits: of the array.
        initial: before the first step, everywhere.
        power: of the gradient's unit in its own: 2 for squares of gradients.
    """

    name: str
    fractional_bits: int
    initial: float = 0.0
    power: int = 0


@dataclass(frozen=True)
class UpdateTerms:
    """What an update has to know of the training besides the optimizer.

    Attributes:
        numbers: the fixed point.
        share: what a summed gradient is multiplied by for its mean, but for `scale`.
        scale: a whole factor that is left out, so that gradients stay in their range: of samples'
            weights, of a loss that is summed.  An update that is the same at any scale leaves it.
        least, most: fractional bits of the summed gradients.
        exponents: by key of weights, k: mean gradients stay below 2^(3 + k), and an adaptive
            update computes with 2^-k of them.
    """

    numbers: Precision
    share: Fraction
    scale: int
    min_bits: int
    max_bits: int
    exponents: Mapping[str, int] = field(default_factory=dict)

    @property
    def distinct_exponents(self) -> list[int]:
        """The exponents that occur."""
        return sorted(set(self.exponents.values())) or [0]

    @property
    def total_share(self) -> Fraction:
        """The share with the scale."""
        return self.share * self.scale


@dataclass(frozen=True)
class Optimizer:
    """How weights follow their gradients; Keras' names and defaults.

    Attributes:
        schedule: of the learning rate.
        weight_decay: w loses rate * weight_decay of itself before each update.
        undecayed: keys of weights that do not.
        clipnorm, global_clipnorm, clipvalue: bounds on mean gradients: on the norm of each array's,
            of all together, or on each element; one of them, or none.
        use_ema, ema_momentum, ema_overwrite_frequency: whether an average of the weights follows
            them and takes their place: every so many steps, and at the end.
        kind: its name.
        aliases: other names, and what each means besides the defaults.
        classes: of keras.optimizers, that it reads.
        usual_rate: the learning rate that goes with a name.
        only: options of Keras' class that have but one value here, and why.
        adaptive: whether an update compares or divides for every weight, which a dealer prepares.

    Raises:
        UsageError: numbers that do not fit.
    """

    schedule: Schedule
    _: KW_ONLY
    weight_decay: float = bounded_setting(0.0, 0.0, 1e6)
    undecayed: tuple[str, ...] = ()
    clipnorm: float | None = bounded_setting(None, 1e-4, 1e3)
    global_clipnorm: float | None = bounded_setting(None, 1e-4, 1e3)
    clipvalue: float | None = bounded_setting(None, 1e-4, 1e3)
    use_ema: bool = False
    ema_momentum: float = bounded_setting(0.99, 0.0, 0.9999)
    ema_overwrite_frequency: int | None = None

    kind: ClassVar[str]
    aliases: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    keras_classes: ClassVar[tuple[str, ...]]
    usual_rate: ClassVar[float] = 0.001
    fixed_options: ClassVar[Mapping[str, tuple[Any, str]]] = {}
    is_adaptive: ClassVar[bool] = True

    @property
    def least_exponent(self) -> int:
        """The least exponent of gradients (Terms.exponents); below 0 small ones keep more bits."""
        return 0

    @property
    def factor_bits(self) -> int:
        """Of the public factor that a summed gradient is multiplied by."""
        return SHARE_BITS

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check_setting(setting, getattr(self, setting.name))
        clipped = [n for n in ("clipnorm", "global_clipnorm", "clipvalue") if getattr(self, n)]
        if len(clipped) > 1:
            raise UsageError(f"Gradients are clipped in one way. Received: {', '.join(clipped)}.")
        often = self.ema_overwrite_frequency
        if often is not None and (type(often) is not int or not 1 <= often <= 10**9):
            raise UsageError(
                f"ema_overwrite_frequency is None or a number of steps. Received: {often!r}."
            )
        if not all(isinstance(key, str) for key in self.undecayed):
            raise UsageError("undecayed names weights.")
        with localcontext(DIGITS):
            decay = Decimal(self.weight_decay) * self.schedule.largest_rate
        if decay > 1:
            raise UsageError(
                "weight_decay times the learning rate is at most 1, all of a weight. Received: "
                f"{float(decay):g} at the largest rate."
            )
        self.check_settings()

    def check_settings(self) -> None:
        """Refuses numbers that do not go together."""

    @property
    def clips_gradients(self) -> bool:
        """Whether gradients are clipped."""
        return any((self.clipnorm, self.global_clipnorm, self.clipvalue))

    @property
    def compares_weights(self) -> bool:
        """Whether a step compares something of every weight."""
        return self.is_adaptive or self.clipvalue is not None

    # ---- what a module of its own says

    def list_slots(self, numbers: Precision) -> Sequence[Slot]:
        """What it remembers of each array of weights."""
        raise NotImplementedError

    def compute_public_integers(self, terms: UpdateTerms, step: int) -> dict[str, int]:
        """The public integers of a step, counted from 0, by name.

        Raises:
            UsageError: no step has a rate above 0.
        """
        raise NotImplementedError

    def update_weights(
        self, p: ForwardContext, terms: UpdateTerms, gradients: Mapping[str, Shared]
    ) -> dict[str, Shared]:
        """New weights by key, and what is remembered by "key:slot".

        Args:
            p: the pass through the step, with the state as its weights.
            gradients: of some weights by key, summed over the batch.
        """
        raise NotImplementedError

    # ---- as data

    def to_header(self) -> dict[str, Any]:
        """As JSON holds it."""
        settings = {"name": self.kind, **vars(self), "schedule": self.schedule.to_header()}
        return {**settings, "undecayed": list(self.undecayed)}

    @classmethod
    def list_own_settings(cls) -> list[Field[Any]]:
        """The settings that not all optimizers have."""
        common = {setting.name for setting in fields(Optimizer)}
        return [setting for setting in fields(cls) if setting.name not in common]

    def build_keras_optimizer(self, rate: Any) -> Any:
        """Keras' own optimizer of the same settings: what the plaintext twin learns by.

        Args:
            rate: a number, or a schedule of Keras.
        """
        import keras

        settings = {s.name: getattr(self, s.name) for s in fields(self)}
        for other in ("schedule", "undecayed"):
            del settings[other]
        settings["weight_decay"] = self.weight_decay or None
        return getattr(keras.optimizers, self.keras_classes[0])(rate, **settings)


def _check_setting(setting: Field[Any], value: Any) -> None:
    bounds = setting.metadata.get("range")
    if bounds is not None:
        if value is None and setting.default is None:
            return
        low, high = bounds
        if not is_real(value, low, high):
            raise UsageError(
                f"{setting.name} of an optimizer is a number from {low} to {high}. Received: "
                f"{value!r}."
            )
    elif isinstance(setting.default, bool) and not isinstance(value, bool):
        raise UsageError(f"{setting.name} is true or false. Received: {value!r}.")
