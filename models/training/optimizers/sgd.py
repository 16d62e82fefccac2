"""SGD: w += v, v = momentum v - rate g  (Nesterov: w += momentum v - rate g, v the new one)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import localcontext
from fractions import Fraction

from tfe_bench.models.kinds.passes import Pass, Precision
from tfe_bench.models.training.optimizers.optimizer import (
    RATE,
    Optimizer,
    Slot,
    Terms,
    exponent,
    number,
    refuse_no_rate,
    rounded,
)
from tfe_bench.models.training.schedules import DIGITS
from tfe_bench.protocols.session.sharing import Shared

# Bits of c: the rate is exact to 2^-11 of the largest, and a gradient's mean over the batch may
# reach 2^4 with momentum (products below 2^62, velocities up to 16 times a step).
RATE_BITS = 11
MOST_DROPPED = 48
_AHEAD = "ahead"


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Steps as large as the gradients.  1 round."""

    momentum: float = number(0.0, 0.0, 0.9999)
    nesterov: bool = False

    kind = "sgd"
    classes = ("SGD",)
    usual_rate = 0.01
    adaptive = False

    @property
    def factor_bits(self) -> int:
        """Those of c, and of the sum of steps that a velocity is."""
        ahead = 1 if self.nesterov else 0
        return RATE_BITS + math.ceil(-math.log2(1 - self.momentum)) + ahead

    def slots(self, numbers: Precision) -> Sequence[Slot]:
        """The velocity."""
        return [Slot("velocity", numbers.weight)] if self.momentum else []

    def _exponent(self, terms: Terms) -> int:
        share, numbers = terms.stepped, terms.numbers
        with localcontext(DIGITS):
            top = self.schedule.largest * share.numerator / share.denominator
        refuse_no_rate(top)
        # biases' gradients have the fewest bits, kernels' the most
        low = numbers.weight - terms.least + 1
        high = MOST_DROPPED + numbers.weight - terms.most
        return min(max(exponent(top, RATE_BITS), low), high)

    def public(self, terms: Terms, step: int) -> dict[str, int]:
        """The rate, and with Nesterov the one that looks ahead."""
        rate = Fraction(self.schedule.rate(step))
        scaled = rate * terms.stepped * Fraction(2) ** self._exponent(terms)
        found = {RATE: rounded(scaled)}
        if self.nesterov:
            found[_AHEAD] = rounded(scaled * (1 + Fraction(self.momentum)))
        return found

    def update(self, p: Pass, terms: Terms, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
        """1 round."""
        found = {}
        for key, g in gradients.items():
            found.update(self._updated(p, self._exponent(terms), key, g))
        return found

    def _updated(self, p: Pass, e: int, key: str, g: Shared) -> dict[str, Shared]:
        ops, w = p.ops, p.weights[key]
        drop = e + g.fractional_bits - w.fractional_bits
        # scale of the products below
        more = w.fractional_bits + drop - g.fractional_bits

        def stepped(of_velocity: Fraction, rate: str) -> Shared:
            down = ops.times(g, p.public[rate], more)
            if not self.momentum:
                return ops.neg(ops.truncate(down, drop))
            # (a product of the velocity alone: mu v - c g is truncated once)
            kept = ops.times(p.weights[f"{key}:velocity"], rounded(of_velocity * 2**drop), drop)
            return ops.truncate(ops.sub(kept, down), drop)

        mu = Fraction(self.momentum)
        new = stepped(mu, RATE)
        # w + mu (mu v - c g) - c g
        step = stepped(mu * mu, _AHEAD) if self.nesterov else new
        found = {key: ops.add(w, step)}
        return {**found, f"{key}:velocity": new} if self.momentum else found
