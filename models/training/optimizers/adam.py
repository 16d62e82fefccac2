"""Adam, AMSGrad and AdamW.

    Adam     m += (1 - beta_1)(g - m),  v += (1 - beta_2)(g^2 - v)
             w -= rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m / sqrt(v + epsilon^2)
    AMSGrad  the same with the largest v so far in place of v
    AdamW    Adam with weight_decay

Keras divides by sqrt(v) + epsilon: both agree where sqrt(v) is far above epsilon, and where it is
not, fixed point has no bits to tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from tfe_bench.models.kinds.passes import Pass, Precision
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import Slot, Terms
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class Adam(moments.Averaged):
    """Steps of the rate's size."""

    amsgrad: bool = False

    kind = "adam"
    aliases: ClassVar = {"amsgrad": {"amsgrad": True}, "adamw": {"weight_decay": 0.004}}
    classes = ("Adam", "AdamW")

    def check(self) -> None:
        """m is bounded by sqrt(v), as products are."""
        if not self.amsgrad:
            moments.check_bound(self.beta_1, self.beta_2)

    def slots(self, numbers: Precision) -> Sequence[Slot]:
        """The means, and of AMSGrad the largest of squares."""
        found = [Slot("m", moments.MOMENT_BITS), Slot("v", moments.SQUARE_BITS, power=2)]
        return [*found, Slot("v_hat", moments.SQUARE_BITS, power=2)] if self.amsgrad else found

    def _corrected(self, count: int) -> Decimal:
        of_squares = moments.square_correction(self.beta_2, count)
        return of_squares / (1 - Decimal(self.beta_1) ** count)

    def update(self, p: Pass, terms: Terms, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
        """12 rounds; for AMSGrad those of a maximum more."""
        row = moments.Row(p, terms, gradients, moments.square_shift(self.beta_2))
        m, v = row.mean("m", self.beta_1), row.squares("v", self.beta_2)
        root, slots = v, {"m": m, "v": v}
        if self.amsgrad:
            root = slots["v_hat"] = row.larger(row.held("v_hat"), v)
        turn = row.divided(m, root, self._least(terms))
        return row.found(row.moved(row.held(), turn, self._exponent(terms)), **slots)
