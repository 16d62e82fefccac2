"""The base class of optimizers: common options, serialization, and properties of a training.

An optimizer is one module of models/training/optimizers: a class with Keras' numbers, its slots,
its public integers of a step and its private update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from decimal import Decimal, localcontext
from fractions import Fraction
from math import floor
from typing import Any, ClassVar

from tfe_bench.cluster.schema import (
    Header,
    Rule,
    declare_field,
    flag_field,
    integer_rule,
    label_rule,
    list_field,
    mapping_rule,
    object_rule,
    optional_rule,
)
from tfe_bench.errors import UsageError
from tfe_bench.models.layers.base import ForwardContext, TrainingPrecision, renamed
from tfe_bench.models.training.schedules import (
    DIGITS,
    MOST_STEPS,
    LearningRateSchedule,
    bounded_setting,
)
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of a clipped mean gradient, and the bits of its magnitude before clipping.
CLIPPED_BITS, CLIPPED_RANGE = 22, 12
# Bits of the factor from a summed gradient to its mean, if it is not a power of two.
SHARE_BITS = 10
# Small gradients are multiplied by at most 2^MOST_RAISED.
MOST_RAISED = 16
# Mean gradients of weights whose exponent is k stay below 2^(BOUND_BITS + k).
BOUND_BITS = 3
# Name of the public integer of a step that multiplies the direction of the weights.
RATE = "rate"


_KEY = label_rule(1 << 12, code="wrong-type")


def _read_schedule(value: object) -> LearningRateSchedule:
    options = mapping_rule(Rule(lambda option: option), 1 << 10).read(value)
    return LearningRateSchedule(options.pop("kind", None), options)


def choose_factor_exponent(largest: Decimal | Fraction, bits: int) -> int:
    """Return e with largest * 2^e in [2^(bits-1), 2^bits), exactly."""
    part = Fraction(largest)
    e = bits - (part.numerator.bit_length() - part.denominator.bit_length())
    while part * Fraction(2) ** e >= 1 << bits:
        e -= 1
    return e


def round_half_up(value: Fraction) -> int:
    """Round to the nearest integer."""
    return floor(value + Fraction(1, 2))


def check_learning_rate(top: Decimal) -> None:
    """Refuse a rate that is 0 in every step."""
    if top <= 0:
        raise UsageError(
            "Expected a learning rate above 0 in at least one step.",
            code="number-out-of-range",
            operation="learning_rate",
        )


@dataclass(frozen=True)
class OptimizerSlot:
    """An array that an optimizer keeps for each array of weights.

    Attributes:
        fractional_bits: fractional bits of the array.
        initial: initial value, everywhere.
        power: power of the gradient's unit in its own: 2 for squares of gradients.
    """

    name: str
    fractional_bits: int
    initial: float = 0.0
    power: int = 0


@dataclass(frozen=True)
class WeightUpdateTerms:
    """The properties of a training that an update needs besides the optimizer.

    Attributes:
        numbers: the fixed-point format.
        share: the factor from a summed gradient to its mean, without `scale`.
        scale: an integer factor that is left out, so that gradients stay in their range: of
            samples' weights, of a summed loss. A scale-invariant update ignores it.
        min_bits, max_bits: fractional bits of the summed gradients.
        exponents: by key of weights, k: mean gradients stay below 2^(3 + k), and an adaptive update
            computes with 2^-k times them.
    """

    numbers: TrainingPrecision
    share: Fraction
    scale: int
    min_bits: int
    max_bits: int
    exponents: Mapping[str, int] = field(default_factory=dict)

    @property
    def distinct_exponents(self) -> list[int]:
        """The distinct exponents."""
        return sorted(set(self.exponents.values())) or [0]

    @property
    def total_share(self) -> Fraction:
        """The share times the scale."""
        return self.share * self.scale


@dataclass(frozen=True)
class Optimizer(Header, subject="An optimizer", writes_defaults=True):
    """The update rule of weights, with Keras' names and defaults.

    Attributes:
        schedule: schedule of the learning rate.
        weight_decay: w decreases by rate * weight_decay * w before each update.
        undecayed: keys of weights without decay.
        clipnorm, global_clipnorm, clipvalue: bounds on mean gradients: on the norm of each array,
            of all together, or on each element; at most one of them.
        use_ema, ema_momentum, ema_overwrite_frequency: whether a moving average of the weights is
            kept and replaces them: every ema_overwrite_frequency steps, and at the end.
        kind: its name.
        aliases: other names, and their settings that differ from the defaults.
        keras_classes: names of the classes of keras.optimizers that it reads.
        usual_rate: the learning rate of an optimizer given by name.
        fixed_options: options of Keras' class with one supported value, and the reason.
        is_adaptive: whether an update compares or divides for every weight, which a dealer
            prepares.

    Raises:
        UsageError: numbers do not fit.
    """

    schedule: LearningRateSchedule = declare_field(
        object_rule(LearningRateSchedule, _read_schedule)
    )
    _: KW_ONLY
    weight_decay: float = bounded_setting(0.0, 0.0, 1e6)
    undecayed: tuple[str, ...] = list_field(_KEY, 0, 1 << 16, default=())
    clipnorm: float | None = bounded_setting(None, 1e-4, 1e3)
    global_clipnorm: float | None = bounded_setting(None, 1e-4, 1e3)
    clipvalue: float | None = bounded_setting(None, 1e-4, 1e3)
    use_ema: bool = flag_field(default=False)
    ema_momentum: float = bounded_setting(0.99, 0.0, 0.9999)
    ema_overwrite_frequency: int | None = declare_field(
        optional_rule(integer_rule(1, MOST_STEPS)), None
    )

    kind: ClassVar[str]
    aliases: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    keras_classes: ClassVar[tuple[str, ...]]
    usual_rate: ClassVar[float] = 0.001
    fixed_options: ClassVar[Mapping[str, tuple[Any, str]]] = {}
    is_adaptive: ClassVar[bool] = True

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Accept the old names of the interface, with a DeprecationWarning."""
        super().__init_subclass__(**arguments)
        renamed.accept_deprecated_names(cls, renamed.OPTIMIZER)

    @property
    def least_exponent(self) -> int:
        """Least exponent of gradients (WeightUpdateTerms.exponents); below 0 keeps more bits."""
        return 0

    @property
    def factor_bits(self) -> int:
        """Bits of the public factor of a summed gradient."""
        return SHARE_BITS

    def __post_init__(self) -> None:
        self.check_fields()
        clipped = [n for n in ("clipnorm", "global_clipnorm", "clipvalue") if getattr(self, n)]
        if len(clipped) > 1:
            raise UsageError(
                f"Expected at most one kind of gradient clipping. Received: {', '.join(clipped)}.",
                code="conflicting-options",
                operation="clipping",
                received=", ".join(clipped),
            )
        with localcontext(DIGITS):
            decay = Decimal(self.weight_decay) * self.schedule.largest_rate
        if decay > 1:
            raise UsageError(
                "Expected weight_decay times the learning rate to be at most 1, all of a weight. "
                f"Received: {float(decay):g} at the largest rate.",
                code="number-out-of-range",
                operation="weight_decay",
                received=float(decay),
            )
        self.check_settings()

    def check_settings(self) -> None:
        """Refuse settings that do not fit each other."""

    @property
    def clips_gradients(self) -> bool:
        """True if gradients are clipped."""
        return any((self.clipnorm, self.global_clipnorm, self.clipvalue))

    @property
    def compares_weights(self) -> bool:
        """True if a step compares a value for every weight."""
        return self.is_adaptive or self.clipvalue is not None

    # ---- the interface of an optimizer's module

    def list_slots(self, numbers: TrainingPrecision) -> Sequence[OptimizerSlot]:
        """List the slots of each array of weights."""
        raise NotImplementedError

    def compute_public_integers(self, terms: WeightUpdateTerms, step: int) -> dict[str, int]:
        """Return the public integers of a step, counted from 0, by name.

        Raises:
            UsageError: the rate is 0 in every step.
        """
        raise NotImplementedError

    def update_weights(
        self, p: ForwardContext, terms: WeightUpdateTerms, gradients: Mapping[str, Shared]
    ) -> dict[str, Shared]:
        """Return new weights by key, and slots by "key:slot".

        Args:
            p: the pass through the step, with the state as its weights.
            gradients: gradients of some weights by key, summed over the batch.
        """
        raise NotImplementedError

    # ---- serialization

    def to_header(self) -> dict[str, Any]:
        """Return the optimizer as a JSON object."""
        return {"name": self.kind, **super().to_header()}

    @classmethod
    def list_own_settings(cls) -> list[Field[Any]]:
        """List the settings that are specific to this optimizer."""
        common = {setting.name for setting in fields(Optimizer)}
        return [setting for setting in fields(cls) if setting.name not in common]

    def build_keras_optimizer(self, rate: Any) -> Any:
        """Build Keras' own optimizer with the same settings, for the plaintext reference.

        Args:
            rate: a number, or a Keras schedule.
        """
        import keras

        settings = {s.name: getattr(self, s.name) for s in fields(self)}
        for other in ("schedule", "undecayed"):
            del settings[other]
        settings["weight_decay"] = self.weight_decay or None
        return getattr(keras.optimizers, self.keras_classes[0])(rate, **settings)


renamed.accept_deprecated_names(Optimizer, renamed.OPTIMIZER)
