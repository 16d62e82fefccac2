"""Nadam (Dozat, ICLR workshop 2016): Adam that looks ahead.

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

from tfe_bench.models.kinds.passes import Pass, Precision
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import Slot, Terms, rounded
from tfe_bench.models.training.schedules import DIGITS
from tfe_bench.protocols.session.sharing import Shared

_OF_MEAN, _OF_GRADIENT, _LEAST = "of_mean", "of_gradient", "least"
_BITS = 16
# 0.96^t is below 10^-50 then.
_WARM = 3000


@cache
def _warming() -> list[Decimal]:
    """Products of 1 - 0.96^t / 2 up to each t."""
    with localcontext(DIGITS):
        found, power = [Decimal(1)], Decimal(1)
        for _ in range(_WARM):
            power *= Decimal("0.96")
            found.append(found[-1] * (1 - power / 2))
        return found


class Nadam(moments.Averaged):
    """Adam with Nesterov's momentum."""

    kind = "nadam"
    classes = ("Nadam",)

    def check(self) -> None:
        """n is bounded by sqrt(v), as products are: the factors of m and g are at most 1."""
        moments.check_bound(self.beta_1, self.beta_2, more=1 / math.sqrt(1 - self.beta_2))

    def slots(self, numbers: Precision) -> Sequence[Slot]:
        """The means."""
        return [Slot("m", moments.MOMENT_BITS), Slot("v", moments.SQUARE_BITS, power=2)]

    def _momentum(self, t: int) -> Decimal:
        return Decimal(self.beta_1) * (1 - Decimal("0.96") ** t / 2)

    def _product(self, t: int) -> Decimal:
        return Decimal(self.beta_1) ** t * _warming()[min(t, _WARM)]

    def _corrected(self, count: int) -> Decimal:
        return moments.square_correction(self.beta_2, count)

    def public(self, terms: Terms, step: int) -> dict[str, int]:
        """The rate, and the factors of the mean and of the gradient."""
        t = step + 1
        with localcontext(DIGITS):
            of_mean = self._momentum(t + 1) / (1 - self._product(t + 1))
            of_gradient = (1 - self._momentum(t)) / (1 - self._product(t))
            epsilon = Fraction(self._corrected(t) * Decimal(self.epsilon) / terms.scale)
        least = moments.terms_of(terms, epsilon**2, moments.square_shift(self.beta_2))
        return {
            **super().public(terms, step),
            _OF_MEAN: rounded(Fraction(of_mean) * (1 << _BITS)),
            _OF_GRADIENT: rounded(Fraction(of_gradient) * (1 << _BITS)),
            # (Keras adds epsilon to the root of the corrected mean)
            **{f"{_LEAST}{k}": unit for k, unit in least.items()},
        }

    def update(self, p: Pass, terms: Terms, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
        """12 rounds."""
        row = moments.Row(p, terms, gradients, moments.square_shift(self.beta_2))
        ops = p.ops
        m, v = row.mean("m", self.beta_1), row.squares("v", self.beta_2)
        g = ops.shifted(row.gradient, m.fractional_bits)
        ahead = ops.add(
            ops.times(m, p.public[_OF_MEAN], _BITS), ops.times(g, p.public[_OF_GRADIENT], _BITS)
        )
        ahead = ops.truncate(ahead, _BITS)
        least = {k: p.public[f"{_LEAST}{k}"] for k in terms.distinct}
        turn = row.divided(ahead, v, least)
        return row.found(row.moved(row.held(), turn, self._exponent(terms)), m=m, v=v)
