"""Adagrad (Duchi et al., JMLR 2011): a += g^2,  w -= rate g / sqrt(a + epsilon)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction

from tfe_bench.models.layers.base import ForwardContext, TrainingPrecision, convert_scale
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import (
    Optimizer,
    OptimizerSlot,
    WeightUpdateTerms,
    round_half_up,
)
from tfe_bench.models.training.schedules import DIGITS, bounded_setting
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of the sum of squares, which stays below 2^22: a million steps with gradients of
# 2.
SUM_BITS = 24
_FACTOR_BITS = 12
_FEWER = moments.SQUARE_BITS - SUM_BITS


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Steps that shrink where gradients were large."""

    initial_accumulator_value: float = bounded_setting(0.1, 1e-3, 1e3)
    epsilon: float = bounded_setting(1e-7, 0.0, 1.0)

    kind = "adagrad"
    keras_classes = ("Adagrad",)

    def list_slots(self, numbers: TrainingPrecision) -> Sequence[OptimizerSlot]:
        """List the sum of squares."""
        return [OptimizerSlot("sum", SUM_BITS, self.initial_accumulator_value, power=2)]

    def _scale_rate(self, terms: WeightUpdateTerms, rate: Decimal) -> Decimal:
        """Return the rate of g / sqrt(a) with the scale in a, not in g."""
        with localcontext(DIGITS):
            return rate * terms.scale / (1 << (_FEWER // 2))

    def _rate_exponent(self, terms: WeightUpdateTerms) -> int:
        top = self._scale_rate(terms, self.schedule.largest_rate)
        return moments.learning_rate_exponent(top, moments.MEAN_BITS, terms.numbers.weight)

    def compute_public_integers(self, terms: WeightUpdateTerms, step: int) -> dict[str, int]:
        """Return the rate."""
        rate = self._scale_rate(terms, self.schedule.compute_rate(step))
        return moments.public_learning_rate(rate, self._rate_exponent(terms))

    def update_weights(
        self, p: ForwardContext, terms: WeightUpdateTerms, gradients: Mapping[str, Shared]
    ) -> dict[str, Shared]:
        """Take a step. 13 rounds."""
        row, ops = moments.WeightRow(p, terms, gradients), p.ops
        square = ops.mul(row.gradient, row.gradient)
        # times scale^2
        k = (terms.scale - 1).bit_length()
        factor = round_half_up(Fraction(terms.scale**2 << _FACTOR_BITS, 4**k))
        if factor != 1 << _FACTOR_BITS:
            square = ops.mul_public(square, factor, _FACTOR_BITS)
        square = replace(square, fractional_bits=square.fractional_bits - 2 * k)
        total = ops.add(row.get_slot("sum"), convert_scale(ops, square, SUM_BITS))
        # a / sqrt(b 2^-k) for even k is 2^(k/2) a / sqrt(b), which the rate compensates
        small = replace(total, fractional_bits=moments.SQUARE_BITS)
        least = moments.scale_second_moment(terms, Fraction(self.epsilon) / (1 << _FEWER))
        direction = row.divide_by_root(row.gradient, small, least)
        w = row.take_step(row.get_slot(), direction, self._rate_exponent(terms))
        return row.split_state(w, sum=total)
