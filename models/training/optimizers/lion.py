"""Lion (Chen et al., NeurIPS 2023): w -= rate sign(beta_1 m + (1 - beta_1) g),
m += (1 - beta_2)(g - m)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tfe_bench.models.layers.base import ForwardContext, TrainingPrecision
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import (
    MOST_RAISED,
    RATE,
    Optimizer,
    OptimizerSlot,
    WeightUpdateTerms,
    check_learning_rate,
    round_half_up,
)
from tfe_bench.models.training.schedules import bounded_setting
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.session.sharing import Shared

_BITS = 16
# (|gradients| are below 4.)
_WIDTH = moments.MOMENT_BITS + _BITS + 5


@dataclass(frozen=True)
class Lion(Optimizer):
    """Steps of the rate, up or down; none where both gradient and mean are 0."""

    beta_1: float = bounded_setting(0.9, 0.001, 0.9999)
    beta_2: float = bounded_setting(0.99, 0.0, 0.9999)

    kind = "lion"
    keras_classes = ("Lion",)

    @property
    def least_exponent(self) -> int:
        """Lower bound on exponents: signs are the same at any scale of gradients."""
        return -MOST_RAISED

    def list_slots(self, numbers: TrainingPrecision) -> Sequence[OptimizerSlot]:
        """List the mean."""
        return [OptimizerSlot("m", moments.MOMENT_BITS)]

    def compute_public_integers(self, terms: WeightUpdateTerms, step: int) -> dict[str, int]:
        """Return the rate in units of the weights."""
        check_learning_rate(self.schedule.largest_rate)
        return {
            RATE: round_half_up(
                Fraction(self.schedule.compute_rate(step)) * (1 << terms.numbers.weight)
            )
        }

    def update_weights(
        self, p: ForwardContext, terms: WeightUpdateTerms, gradients: Mapping[str, Shared]
    ) -> dict[str, Shared]:
        """Take a step. 4 to 6 rounds: one comparison of both signs."""
        row, ops = moments.WeightRow(p, terms, gradients), p.ops
        m, n = row.get_slot("m"), math.prod(ops.get_shape(row.gradient))
        of_mean = round_half_up(Fraction(self.beta_1) * (1 << _BITS))
        g = ops.add_fractional_bits(row.gradient, m.fractional_bits)
        x = ops.add(ops.mul_public(m, of_mean), ops.mul_public(g, (1 << _BITS) - of_mean))
        both = ops.concat([x, ops.neg(x)], 0)
        signs = ops.run_protocol(
            relu.relu_derivative, both, _WIDTH, ops.setting.choose_exchanges(2 * n, _WIDTH)
        )
        up, down = moments.split_weight_row(ops, signs, [(n,), (n,)])
        w = row.get_slot()
        step = ops.mul_public(ops.sub(up, down), p.public[RATE], w.fractional_bits)
        return row.split_state(ops.sub(w, step), m=row.update_mean("m", self.beta_2))
