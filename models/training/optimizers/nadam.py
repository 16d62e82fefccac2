"""Nadam (Dozat, ICLR workshop 2016): Adam with a look-ahead.

u_t = beta_1 (1 - 0.96^t / 2),  U_t = u_1 ... u_t
n = u_{t+1} / (1 - U_{t+1}) m + (1 - u_t) / (1 - U_t) g
w -= rate sqrt(1 - beta_2^t) n / sqrt(v + (1 - beta_2^t) epsilon^2)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

from tfe_bench.models.layers.base import ForwardContext, TrainingPrecision
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import (
    OptimizerSlot,
    WeightUpdateTerms,
    round_half_up,
)
from tfe_bench.models.training.schedules import DIGITS
from tfe_bench.protocols.session.sharing import Shared

_OF_MEAN, _OF_GRADIENT, _LEAST = "of_mean", "of_gradient", "least"
_BITS = 16
# 0.96^t is below 10^-50 from this step on.
_WARM = 3000


@cache
def _list_momentum_products() -> list[Decimal]:
    """List the products of 1 - 0.96^t / 2 up to each t."""
    with localcontext(DIGITS):
        products, power = [Decimal(1)], Decimal(1)
        for _ in range(_WARM):
            power *= Decimal("0.96")
            products.append(products[-1] * (1 - power / 2))
        return products


class Nadam(moments.AveragedOptimizer):
    """Adam with Nesterov's momentum."""

    kind = "nadam"
    keras_classes = ("Nadam",)

    def check_settings(self) -> None:
        """Refuse settings without a bound on n / sqrt(v): factors of m and g are at most 1."""
        moments.check_moment_bound(self.beta_1, self.beta_2, extra=1 / math.sqrt(1 - self.beta_2))

    def list_slots(self, numbers: TrainingPrecision) -> Sequence[OptimizerSlot]:
        """List the means."""
        return [
            OptimizerSlot("m", moments.MOMENT_BITS),
            OptimizerSlot("v", moments.SQUARE_BITS, power=2),
        ]

    def _momentum_at(self, t: int) -> Decimal:
        return Decimal(self.beta_1) * (1 - Decimal("0.96") ** t / 2)

    def _momentum_product(self, t: int) -> Decimal:
        return Decimal(self.beta_1) ** t * _list_momentum_products()[min(t, _WARM)]

    def _correction_factor(self, count: int) -> Decimal:
        return moments.second_moment_correction(self.beta_2, count)

    def compute_public_integers(self, terms: WeightUpdateTerms, step: int) -> dict[str, int]:
        """Return the rate, and the factors of the mean and of the gradient."""
        t = step + 1
        with localcontext(DIGITS):
            of_mean = self._momentum_at(t + 1) / (1 - self._momentum_product(t + 1))
            of_gradient = (1 - self._momentum_at(t)) / (1 - self._momentum_product(t))
            epsilon = Fraction(self._correction_factor(t) * Decimal(self.epsilon) / terms.scale)
        least = moments.scale_second_moment(
            terms, epsilon**2, moments.second_moment_shift(self.beta_2)
        )
        return {
            **super().compute_public_integers(terms, step),
            _OF_MEAN: round_half_up(Fraction(of_mean) * (1 << _BITS)),
            _OF_GRADIENT: round_half_up(Fraction(of_gradient) * (1 << _BITS)),
            # (Keras adds epsilon to the root of the corrected mean)
            **{f"{_LEAST}{k}": unit for k, unit in least.items()},
        }

    def update_weights(
        self, p: ForwardContext, terms: WeightUpdateTerms, gradients: Mapping[str, Shared]
    ) -> dict[str, Shared]:
        """Take a step. 12 rounds."""
        row = moments.WeightRow(p, terms, gradients, moments.second_moment_shift(self.beta_2))
        ops = p.ops
        m, v = row.update_mean("m", self.beta_1), row.update_squares("v", self.beta_2)
        g = ops.add_fractional_bits(row.gradient, m.fractional_bits)
        ahead = ops.add(
            ops.mul_public(m, p.public[_OF_MEAN], _BITS),
            ops.mul_public(g, p.public[_OF_GRADIENT], _BITS),
        )
        ahead = ops.truncate(ahead, _BITS)
        least = {k: p.public[f"{_LEAST}{k}"] for k in terms.distinct_exponents}
        direction = row.divide_by_root(ahead, v, least)
        return row.split_state(
            row.take_step(row.get_slot(), direction, self._rate_exponent(terms)), m=m, v=v
        )
