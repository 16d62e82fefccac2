"""SGD, Adam and AMSGrad as Keras writes them: what is public about an update.

    SGD      w += v,  v = momentum v - rate g   (Nesterov: w += momentum v - rate g, v the new one)
    Adam     m += (1 - beta_1)(g - m),  v += (1 - beta_2)(g^2 - v)
             w -= rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m / sqrt(v + epsilon^2)
    AMSGrad  the same with the largest v so far in place of v

Keras divides by sqrt(v) + epsilon: both agree where sqrt(v) is far above epsilon, and where it is
not, fixed point has no bits to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

from tfe_bench.errors import UsageError, check_one_of
from tfe_bench.models.training import schedules
from tfe_bench.models.training.schedules import DIGITS, Schedule, real

NAMES = ("sgd", "amsgrad", "adam")
# What Keras' optimizers have besides, and what it is when it is not used.
_UNUSED = {
    "weight_decay": None,
    "clipnorm": None,
    "global_clipnorm": None,
    "clipvalue": None,
    "use_ema": False,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}
_OTHER = ("name", "ema_momentum", "ema_overwrite_frequency")


@dataclass(frozen=True)
class Optimizer:
    """How weights follow their gradients; Keras' names and defaults.

    Attributes:
        name: "sgd", "adam" or "amsgrad".
        schedule: of the learning rate.
        momentum, nesterov: of SGD.
        beta_1, beta_2, epsilon: of Adam and AMSGrad.

    Raises:
        UsageError: an unknown name, or numbers that do not fit.
    """

    name: str
    schedule: Schedule
    momentum: float = 0.0
    nesterov: bool = False
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        check_one_of("Optimizers are", self.name, NAMES)
        for what, low, high in (
            ("momentum", 0.0, 0.9999),
            ("beta_1", 0.0, 0.9999),
            ("beta_2", 0.5, 0.9999),
            ("epsilon", 0.0, 1.0),
        ):
            if not real(getattr(self, what), low, high):
                raise UsageError(
                    f"{what} of an optimizer is a number from {low} to {high}. Received: "
                    f"{getattr(self, what)!r}."
                )
        if not isinstance(self.nesterov, bool):
            raise UsageError(f"nesterov is true or false. Received: {self.nesterov!r}.")

    @property
    def adaptive(self) -> bool:
        """Whether steps are divided by the root of the squared gradients' mean."""
        return self.name != "sgd"

    def rate(self, step: int, beta_2: Decimal) -> Decimal:
        """What a step's update is multiplied by, the corrections of Adam's means included.

        Args:
            step: counted from 0.
            beta_2: as fixed point has it (Numbers.decay).
        """
        with localcontext(DIGITS):
            rate = self.schedule.rate(step)
            if not self.adaptive:
                return rate
            return rate * self._corrected(step + 1, beta_2)

    def largest(self, beta_2: Decimal) -> Decimal:
        """A bound on `rate`, for all steps."""
        with localcontext(DIGITS):
            top = self.schedule.largest
            # the correction falls or rises from its first value toward 1
            return top * max(self._corrected(1, beta_2), Decimal(1)) if self.adaptive else top

    def _corrected(self, count: int, beta_2: Decimal) -> Decimal:
        first = Decimal(self.beta_1)
        return (1 - beta_2**count).sqrt() / (1 - first**count)

    def header(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**vars(self), "schedule": self.schedule.header()}

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Optimizer:
        """The optimizer of a header, which may come from a stranger.

        Raises:
            UsageError: it is none.
        """
        rest = dict(header)
        rates = dict(rest.pop("schedule", {}))
        schedule = Schedule(rates.pop("kind", None), rates)
        try:
            return cls(schedule=schedule, **rest)
        except TypeError:
            raise UsageError(f"An optimizer has no such settings: {sorted(rest)}.") from None


def of_keras(given: Any) -> Optimizer:
    """An Optimizer from a Keras optimizer object, or from a name with Keras' defaults.

    Raises:
        UsageError: another optimizer, or options that are not supported, all of them named.
    """
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, str):
        name = given.lower()
        rate = 0.01 if name == "sgd" else 0.001
        return Optimizer(name, Schedule("constant", {"rate": rate}))
    import keras

    kinds: dict[Any, tuple[str, ...]] = {
        keras.optimizers.SGD: ("momentum", "nesterov"),
        keras.optimizers.Adam: ("beta_1", "beta_2", "epsilon", "amsgrad"),
    }
    if type(given) not in kinds:
        raise UsageError(
            "Optimizers are keras.optimizers.SGD and Adam (with amsgrad or without), or their "
            f"names. Received: {type(given).__name__}."
        )
    config = dict(given.get_config())
    for other in _OTHER:
        config.pop(other, None)
    schedule = schedules.of_keras(config.pop("learning_rate"))
    own = {key: config.pop(key) for key in kinds[type(given)]}
    used = [
        key
        for key, value in config.items()
        if _UNUSED.get(key, value) != value or key not in _UNUSED
    ]
    if used:
        raise UsageError(
            f"{type(given).__name__} has options that are not supported: {', '.join(used)}. "
            "Leave them out."
        )
    amsgrad = own.pop("amsgrad", False)
    name = "sgd" if "momentum" in own else "amsgrad" if amsgrad else "adam"
    return Optimizer(name, schedule, **own)
