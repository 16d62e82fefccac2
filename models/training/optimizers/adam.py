"""Adam, AMSGrad and AdamW.

    Adam     m += (1 - beta_1)(g - m),  v += (1 - beta_2)(g^2 - v)
             w -= rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m / sqrt(v + epsilon^2)
    AMSGrad  the same with the largest v so far in place of v
    AdamW    Adam with weight_decay

Keras divides by sqrt(v) + epsilon: both agree where sqrt(v) is far above epsilon; elsewhere fixed
point has no bits to distinguish them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from tfe_bench.cluster.schema import flag_field
from tfe_bench.models.layers.base import ForwardContext, TrainingPrecision
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import OptimizerSlot, WeightUpdateTerms
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class Adam(moments.AveragedOptimizer):
    """Steps of the rate's size."""

    amsgrad: bool = flag_field(default=False)

    kind = "adam"
    aliases: ClassVar = {"amsgrad": {"amsgrad": True}, "adamw": {"weight_decay": 0.004}}
    keras_classes = ("Adam", "AdamW")

    def check_settings(self) -> None:
        """Refuse settings for which sqrt(v) does not bound m as products require."""
        if not self.amsgrad:
            moments.check_moment_bound(self.beta_1, self.beta_2)

    def list_slots(self, numbers: TrainingPrecision) -> Sequence[OptimizerSlot]:
        """List the means, and for AMSGrad the largest mean of squares."""
        slots = [
            OptimizerSlot("m", moments.MOMENT_BITS),
            OptimizerSlot("v", moments.SQUARE_BITS, power=2),
        ]
        return (
            [*slots, OptimizerSlot("v_hat", moments.SQUARE_BITS, power=2)]
            if self.amsgrad
            else slots
        )

    def _correction_factor(self, count: int) -> Decimal:
        of_squares = moments.second_moment_correction(self.beta_2, count)
        return of_squares / (1 - Decimal(self.beta_1) ** count)

    def update_weights(
        self, p: ForwardContext, terms: WeightUpdateTerms, gradients: Mapping[str, Shared]
    ) -> dict[str, Shared]:
        """Take a step. 12 rounds; AMSGrad adds those of a maximum."""
        row = moments.WeightRow(p, terms, gradients, moments.second_moment_shift(self.beta_2))
        m, v = row.update_mean("m", self.beta_1), row.update_squares("v", self.beta_2)
        root, slots = v, {"m": m, "v": v}
        if self.amsgrad:
            root = slots["v_hat"] = row.take_larger(row.get_slot("v_hat"), v)
        direction = row.divide_by_root(m, root, self._epsilon_squares(terms))
        return row.split_state(
            row.take_step(row.get_slot(), direction, self._rate_exponent(terms)), **slots
        )
