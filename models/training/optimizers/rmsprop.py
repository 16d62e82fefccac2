"""RMSprop (Hinton, 2012): v += (1 - rho)(g^2 - v),  z = momentum z + rate g / sqrt(v + epsilon),
w -= z."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import ClassVar

from tfe_bench.models.kinds.passes import Pass, Precision
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import (
    RATE,
    Optimizer,
    Slot,
    Terms,
    number,
    rounded,
)
from tfe_bench.models.training.schedules import DIGITS
from tfe_bench.protocols.nn import adaptive
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """Steps of the rate's size, by each gradient alone."""

    rho: float = number(0.9, 0.0, 0.9999)
    momentum: float = number(0.0, 0.0, 0.9999)
    epsilon: float = number(1e-7, 1e-11, 1.0)

    kind = "rmsprop"
    classes = ("RMSprop",)
    only: ClassVar = {"centered": (False, "A variance is a difference of nearly equal numbers")}

    @property
    def least_exponent(self) -> int:
        """Steps are the same at any scale of gradients, but for epsilon."""
        return moments.least_exponent(self.epsilon)

    def _bits(self) -> int:
        """Of the public rate: c g / sqrt(v), summed with momentum, stays below 2^62."""
        room = 62 - moments.MEAN_BITS - adaptive.RESULT_BITS
        return min(moments.RATE_BITS, room - math.ceil(-math.log2(1 - self.momentum)))

    def _scaled(self, rate: Decimal) -> Decimal:
        """The rate of g over the root of the sum of squares."""
        with localcontext(DIGITS):
            return rate * moments.square_correction(self.rho, 1 << 30)

    def slots(self, numbers: Precision) -> Sequence[Slot]:
        """The mean of squares, and the velocity."""
        found = [Slot("v", moments.SQUARE_BITS, power=2)]
        return [*found, Slot("velocity", numbers.weight)] if self.momentum else found

    def _exponent(self, terms: Terms) -> int:
        top = self._scaled(self.schedule.largest)
        return moments.rate_exponent(top, moments.MEAN_BITS, terms.numbers.weight, self._bits())

    def public(self, terms: Terms, step: int) -> dict[str, int]:
        """The rate."""
        rate = self._scaled(self.schedule.rate(step))
        return moments.public_rate(rate, self._exponent(terms))

    def update(self, p: Pass, terms: Terms, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
        """12 rounds."""
        shift, ops, e = moments.square_shift(self.rho), p.ops, self._exponent(terms)
        row = moments.Row(p, terms, gradients, shift)
        v, w = row.squares("v", self.rho), row.held()
        square = Fraction(self.epsilon) / terms.scale**2 / moments.fresh_part(self.rho)
        turn = row.divided(row.gradient, v, moments.terms_of(terms, square, shift))
        if not self.momentum:
            return row.found(row.moved(w, turn, e), v=v)
        drop = e + turn.fractional_bits - w.fractional_bits
        kept = ops.times(row.held("velocity"), rounded(Fraction(self.momentum) * 2**drop), drop)
        z = ops.truncate(ops.add(kept, ops.times(turn, p.public[RATE], e)), drop)
        return row.found(ops.sub(w, z), v=v, velocity=z)
