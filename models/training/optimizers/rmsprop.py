"""RMSprop (Hinton, 2012): v += (1 - rho)(g^2 - v),  z = momentum z + rate g / sqrt(v + epsilon),
w -= z."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import ClassVar

from tfe_bench.models.layers.base import ForwardContext, TrainingPrecision
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import (
    RATE,
    Optimizer,
    OptimizerSlot,
    WeightUpdateTerms,
    round_half_up,
)
from tfe_bench.models.training.schedules import DIGITS, bounded_setting
from tfe_bench.protocols.nn import adaptive
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """Steps of the rate's size, by each gradient alone."""

    rho: float = bounded_setting(0.9, 0.0, 0.9999)
    momentum: float = bounded_setting(0.0, 0.0, 0.9999)
    epsilon: float = bounded_setting(1e-7, 1e-11, 1.0)

    kind = "rmsprop"
    keras_classes = ("RMSprop",)
    fixed_options: ClassVar = {
        "centered": (False, "A variance is a difference of nearly equal numbers")
    }

    @property
    def least_exponent(self) -> int:
        """Lower bound on exponents: steps are scale-invariant, except for epsilon."""
        return moments.least_gradient_exponent(self.epsilon)

    def _count_rate_bits(self) -> int:
        """Return the bits of the public rate: c g / sqrt(v), with momentum, is below 2^62."""
        room = 62 - moments.MEAN_BITS - adaptive.RESULT_BITS
        return min(moments.RATE_BITS, room - math.ceil(-math.log2(1 - self.momentum)))

    def _scale_rate(self, rate: Decimal) -> Decimal:
        """Return the rate of g over the root of the sum of squares."""
        with localcontext(DIGITS):
            return rate * moments.second_moment_correction(self.rho, 1 << 30)

    def list_slots(self, numbers: TrainingPrecision) -> Sequence[OptimizerSlot]:
        """List the mean of squares, and the velocity."""
        slots = [OptimizerSlot("v", moments.SQUARE_BITS, power=2)]
        return [*slots, OptimizerSlot("velocity", numbers.weight)] if self.momentum else slots

    def _rate_exponent(self, terms: WeightUpdateTerms) -> int:
        top = self._scale_rate(self.schedule.largest_rate)
        return moments.learning_rate_exponent(
            top, moments.MEAN_BITS, terms.numbers.weight, self._count_rate_bits()
        )

    def compute_public_integers(self, terms: WeightUpdateTerms, step: int) -> dict[str, int]:
        """Return the rate."""
        rate = self._scale_rate(self.schedule.compute_rate(step))
        return moments.public_learning_rate(rate, self._rate_exponent(terms))

    def update_weights(
        self, p: ForwardContext, terms: WeightUpdateTerms, gradients: Mapping[str, Shared]
    ) -> dict[str, Shared]:
        """Take a step. 12 rounds."""
        shift, ops, e = moments.second_moment_shift(self.rho), p.ops, self._rate_exponent(terms)
        row = moments.WeightRow(p, terms, gradients, shift)
        v, w = row.update_squares("v", self.rho), row.get_slot()
        square = Fraction(self.epsilon) / terms.scale**2 / moments.fresh_gradient_part(self.rho)
        direction = row.divide_by_root(
            row.gradient, v, moments.scale_second_moment(terms, square, shift)
        )
        if not self.momentum:
            return row.split_state(row.take_step(w, direction, e), v=v)
        drop = e + direction.fractional_bits - w.fractional_bits
        kept_velocity = ops.mul_public(
            row.get_slot("velocity"), round_half_up(Fraction(self.momentum) * 2**drop), drop
        )
        z = ops.truncate(ops.add(kept_velocity, ops.mul_public(direction, p.public[RATE], e)), drop)
        return row.split_state(ops.sub(w, z), v=v, velocity=z)
