"""RMSprop (Hinton, 2012): v += (1 - rho)(g^2 - v),  z = momentum z + rate g / sqrt(v + epsilon),
w -= z."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from tfe_bench.errors import UsageError
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
from tfe_bench.protocols.nn import adaptive
from tfe_bench.protocols.session.sharing import Shared

_LEAST_BITS = 8


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """Steps of the rate's size, by each gradient alone."""

    rho: float = number(0.9, 0.0, 0.9999)
    momentum: float = number(0.0, 0.0, 0.9999)
    epsilon: float = number(1e-7, 1e-11, 1.0)

    kind = "rmsprop"
    classes = ("RMSprop",)
    only: ClassVar = {"centered": (False, "A variance is a difference of nearly equal numbers")}

    def _bits(self) -> int:
        """Of the public rate: c g / sqrt(v), summed with momentum, stays below 2^62."""
        turn = 1 / math.sqrt(1 - self.rho) / (1 - self.momentum)
        room = 62 - moments.MEAN_BITS - adaptive.RESULT_BITS
        return min(moments.RATE_BITS, room - math.ceil(math.log2(turn)))

    def check(self) -> None:
        """The rate keeps bits beside steps and their sum."""
        if self._bits() < _LEAST_BITS:
            raise UsageError(
                "rho and momentum are not both near 1: fixed point cannot hold the sum of steps. "
                f"Received: {self.rho} and {self.momentum}. Take less momentum."
            )

    def slots(self, numbers: Precision) -> Sequence[Slot]:
        """The mean of squares, and the velocity."""
        found = [Slot("v", moments.SQUARE_BITS)]
        return [*found, Slot("velocity", numbers.weight)] if self.momentum else found

    def _exponent(self, terms: Terms) -> int:
        return moments.rate_exponent(
            self.schedule.largest, moments.MEAN_BITS, terms.numbers.weight, self._bits()
        )

    def public(self, terms: Terms, step: int) -> dict[str, int]:
        """The rate."""
        return moments.public_rate(self.schedule.rate(step), self._exponent(terms))

    def update(self, p: Pass, terms: Terms, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
        """13 rounds."""
        row, ops, e = moments.Row(p, terms, gradients), p.ops, self._exponent(terms)
        v, w = row.squares("v", self.rho), row.held()
        turn = row.divided(row.gradient, v, moments.units(Fraction(self.epsilon) / terms.scale**2))
        if not self.momentum:
            return row.found(row.moved(w, turn, e), v=v)
        drop = e + turn.fractional_bits - w.fractional_bits
        kept = ops.times(row.held("velocity"), rounded(Fraction(self.momentum) * 2**drop), drop)
        z = ops.truncate(ops.add(kept, ops.times(turn, p.public[RATE], e)), drop)
        return row.found(ops.sub(w, z), v=v, velocity=z)
