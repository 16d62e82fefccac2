"""Adamax (Kingma and Ba, ICLR 2015): Adam with the largest gradient in place of the mean square.

    m += (1 - beta_1)(g - m),  u = max(beta_2 u, |g|)
    w -= rate / (1 - beta_1^t) m / sqrt(u^2 + epsilon^2)

The slot holds u^2, so no absolute value is computed; Keras divides by u + epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

from tfe_bench.errors import UsageError
from tfe_bench.models.layers.base import ForwardContext, TrainingPrecision
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import OptimizerSlot, WeightUpdateTerms
from tfe_bench.protocols.session.sharing import Shared

# Gradients are halved, so that one step's square leaves room for those of the others.
_SHIFT = 1


class Adamax(moments.AveragedOptimizer):
    """Steps of the rate's size, by the largest gradient."""

    kind = "adamax"
    keras_classes = ("Adamax",)

    def check_settings(self) -> None:
        """Refuse settings for which u does not bound m as products require."""
        part = self.beta_1 / self.beta_2
        if part >= 1 or (1 - self.beta_1) / (1 - part) > moments.LARGEST_TURN:
            raise UsageError(
                "Expected beta_1 below beta_2, as otherwise a step has no bound. Received: "
                f"{self.beta_1} and {self.beta_2}.",
                code="unbounded-step",
                operation="adamax",
            )

    def list_slots(self, numbers: TrainingPrecision) -> Sequence[OptimizerSlot]:
        """List the mean, and the square of the largest gradient."""
        return [
            OptimizerSlot("m", moments.MOMENT_BITS),
            OptimizerSlot("u2", moments.SQUARE_BITS, power=2),
        ]

    def _correction_factor(self, count: int) -> Decimal:
        return 1 / (1 - Decimal(self.beta_1) ** count)

    def _final_correction(self) -> Decimal:
        return Decimal(1)

    def _epsilon_squares(self, terms: WeightUpdateTerms) -> dict[int, int]:
        return moments.scale_second_moment(
            terms, Fraction(self.epsilon) ** 2 / terms.scale**2, _SHIFT
        )

    def update_weights(
        self, p: ForwardContext, terms: WeightUpdateTerms, gradients: Mapping[str, Shared]
    ) -> dict[str, Shared]:
        """Take a step. 14 to 16 rounds."""
        row, ops = moments.WeightRow(p, terms, gradients, _SHIFT), p.ops
        m, old = row.update_mean("m", self.beta_1), row.get_slot("u2")
        lost, s = moments.split_moment_decay(Fraction(self.beta_2) ** 2, moments.MEAN_DECAY_BITS)
        old = ops.sub(old, ops.truncate(ops.mul_public(old, lost, s), s))
        u2 = row.take_larger(old, ops.mul(row.gradient, row.gradient))
        direction = row.divide_by_root(m, u2, self._epsilon_squares(terms))
        return row.split_state(
            row.take_step(row.get_slot(), direction, self._rate_exponent(terms)), m=m, u2=u2
        )
