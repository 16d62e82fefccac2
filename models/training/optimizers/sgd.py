"""SGD: w += v, v = momentum v - rate g  (Nesterov: w += momentum v - rate g, v the new one)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import localcontext
from fractions import Fraction

from tfe_bench.cluster.schema import flag_field
from tfe_bench.models.layers.base import ForwardContext, TrainingPrecision
from tfe_bench.models.training.optimizers.optimizer import (
    RATE,
    Optimizer,
    OptimizerSlot,
    WeightUpdateTerms,
    check_learning_rate,
    choose_factor_exponent,
    round_half_up,
)
from tfe_bench.models.training.schedules import DIGITS, bounded_setting
from tfe_bench.protocols.session.sharing import Shared

# Bits of c: the rate is exact to 2^-11 of the largest, and a gradient's mean over the batch may
# reach 2^4 with momentum (products below 2^62, velocities up to 16 times a step).
RATE_BITS = 11
MOST_DROPPED = 48
_AHEAD = "ahead"


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Steps as large as the gradients. 1 round."""

    momentum: float = bounded_setting(0.0, 0.0, 0.9999)
    nesterov: bool = flag_field(default=False)

    kind = "sgd"
    keras_classes = ("SGD",)
    usual_rate = 0.01
    is_adaptive = False

    @property
    def factor_bits(self) -> int:
        """Bits of c, and of the sum of steps that a velocity is."""
        ahead = 1 if self.nesterov else 0
        return RATE_BITS + math.ceil(-math.log2(1 - self.momentum)) + ahead

    def list_slots(self, numbers: TrainingPrecision) -> Sequence[OptimizerSlot]:
        """List the velocity."""
        return [OptimizerSlot("velocity", numbers.weight)] if self.momentum else []

    def _rate_exponent(self, terms: WeightUpdateTerms) -> int:
        share, numbers = terms.total_share, terms.numbers
        with localcontext(DIGITS):
            top = self.schedule.largest_rate * share.numerator / share.denominator
        check_learning_rate(top)
        # gradients of biases have the fewest bits, those of kernels the most
        low = numbers.weight - terms.min_bits + 1
        high = MOST_DROPPED + numbers.weight - terms.max_bits
        return min(max(choose_factor_exponent(top, RATE_BITS), low), high)

    def compute_public_integers(self, terms: WeightUpdateTerms, step: int) -> dict[str, int]:
        """Return the rate, and for Nesterov the look-ahead rate."""
        rate = Fraction(self.schedule.compute_rate(step))
        scaled = rate * terms.total_share * Fraction(2) ** self._rate_exponent(terms)
        integers = {RATE: round_half_up(scaled)}
        if self.nesterov:
            integers[_AHEAD] = round_half_up(scaled * (1 + Fraction(self.momentum)))
        return integers

    def update_weights(
        self, p: ForwardContext, terms: WeightUpdateTerms, gradients: Mapping[str, Shared]
    ) -> dict[str, Shared]:
        """Take a step. 1 round."""
        state = {}
        for key, g in gradients.items():
            state.update(self._update_array(p, self._rate_exponent(terms), key, g))
        return state

    def _update_array(self, p: ForwardContext, e: int, key: str, g: Shared) -> dict[str, Shared]:
        ops, w = p.ops, p.weights[key]
        drop = e + g.fractional_bits - w.fractional_bits
        # scale of the products below
        more = w.fractional_bits + drop - g.fractional_bits

        def compute_step(of_velocity: Fraction, rate: str) -> Shared:
            down = ops.mul_public(g, p.public[rate], more)
            if not self.momentum:
                return ops.neg(ops.truncate(down, drop))
            # (the velocity is multiplied separately: mu v - c g is truncated once)
            kept_velocity = ops.mul_public(
                p.weights[f"{key}:velocity"], round_half_up(of_velocity * 2**drop), drop
            )
            return ops.truncate(ops.sub(kept_velocity, down), drop)

        mu = Fraction(self.momentum)
        new = compute_step(mu, RATE)
        # w + mu (mu v - c g) - c g
        step = compute_step(mu * mu, _AHEAD) if self.nesterov else new
        new_state = {key: ops.add(w, step)}
        return {**new_state, f"{key}:velocity": new} if self.momentum else new_state
