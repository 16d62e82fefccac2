"""Lion (Chen et al., NeurIPS 2023): w -= rate sign(beta_1 m + (1 - beta_1) g),
m += (1 - beta_2)(g - m)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tfe_bench.models.kinds.passes import Pass, Precision
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import (
    MOST_RAISED,
    RATE,
    Optimizer,
    Slot,
    Terms,
    number,
    refuse_no_rate,
    rounded,
)
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.session.sharing import Shared

_BITS = 16
# |gradients| are below 4.
_WIDTH = moments.MOMENT_BITS + _BITS + 5


@dataclass(frozen=True)
class Lion(Optimizer):
    """Steps of the rate, up or down; none where both gradient and mean are 0."""

    beta_1: float = number(0.9, 0.001, 0.9999)
    beta_2: float = number(0.99, 0.0, 0.9999)

    kind = "lion"
    classes = ("Lion",)

    @property
    def least_exponent(self) -> int:
        """Signs are the same at any scale of gradients."""
        return -MOST_RAISED

    def slots(self, numbers: Precision) -> Sequence[Slot]:
        """The mean."""
        return [Slot("m", moments.MOMENT_BITS)]

    def public(self, terms: Terms, step: int) -> dict[str, int]:
        """The rate in units of the weights."""
        refuse_no_rate(self.schedule.largest)
        return {RATE: rounded(Fraction(self.schedule.rate(step)) * (1 << terms.numbers.weight))}

    def update(self, p: Pass, terms: Terms, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
        """4 to 6 rounds: comparisons of both signs at once."""
        row, ops = moments.Row(p, terms, gradients), p.ops
        m, n = row.held("m"), math.prod(ops.shape(row.gradient))
        of_mean = rounded(Fraction(self.beta_1) * (1 << _BITS))
        g = ops.shifted(row.gradient, m.fractional_bits)
        x = ops.add(ops.times(m, of_mean), ops.times(g, (1 << _BITS) - of_mean))
        both = ops.concat([x, ops.neg(x)], 0)
        signs = ops.call(relu.derivative, both, _WIDTH, ops.setting.exchanges(2 * n, _WIDTH))
        up, down = moments.parts(ops, signs, [(n,), (n,)])
        w = row.held()
        step = ops.times(ops.sub(up, down), p.public[RATE], w.fractional_bits)
        return row.found(ops.sub(w, step), m=row.mean("m", self.beta_2))
