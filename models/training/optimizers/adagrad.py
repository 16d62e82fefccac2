"""Adagrad (Duchi et al., JMLR 2011): a += g^2,  w -= rate g / sqrt(a + epsilon)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction

from tfe_bench.models.kinds.passes import Pass, Precision, brought
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import Optimizer, Slot, Terms, number, rounded
from tfe_bench.models.training.schedules import DIGITS
from tfe_bench.protocols.session.sharing import Shared

# Of the sum of squares, which stays below 2^22: a million steps with gradients of 2.
SUM_BITS = 24
_FACTOR_BITS = 12
_FEWER = moments.SQUARE_BITS - SUM_BITS


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Steps that become smaller where gradients were large."""

    initial_accumulator_value: float = number(0.1, 1e-3, 1e3)
    epsilon: float = number(1e-7, 0.0, 1.0)

    kind = "adagrad"
    classes = ("Adagrad",)

    def slots(self, numbers: Precision) -> Sequence[Slot]:
        """The sum of squares."""
        return [Slot("sum", SUM_BITS, self.initial_accumulator_value, power=2)]

    def _scaled(self, terms: Terms, rate: Decimal) -> Decimal:
        """The rate of g / sqrt(a) with the scale in a, not in g."""
        with localcontext(DIGITS):
            return rate * terms.scale / (1 << (_FEWER // 2))

    def _exponent(self, terms: Terms) -> int:
        top = self._scaled(terms, self.schedule.largest)
        return moments.rate_exponent(top, moments.MEAN_BITS, terms.numbers.weight)

    def public(self, terms: Terms, step: int) -> dict[str, int]:
        """The rate."""
        rate = self._scaled(terms, self.schedule.rate(step))
        return moments.public_rate(rate, self._exponent(terms))

    def update(self, p: Pass, terms: Terms, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
        """13 rounds."""
        row, ops = moments.Row(p, terms, gradients), p.ops
        square = ops.mul(row.gradient, row.gradient)
        # times scale^2
        k = (terms.scale - 1).bit_length()
        factor = rounded(Fraction(terms.scale**2 << _FACTOR_BITS, 4**k))
        if factor != 1 << _FACTOR_BITS:
            square = ops.times(square, factor, _FACTOR_BITS)
        square = replace(square, fractional_bits=square.fractional_bits - 2 * k)
        total = ops.add(row.held("sum"), brought(ops, square, SUM_BITS))
        # a / sqrt(b 2^-k) for even k is 2^(k/2) a / sqrt(b), which the rate takes back
        small = replace(total, fractional_bits=moments.SQUARE_BITS)
        least = moments.terms_of(terms, Fraction(self.epsilon) / (1 << _FEWER))
        turn = row.divided(row.gradient, small, least)
        w = row.moved(row.held(), turn, self._exponent(terms))
        return row.found(w, sum=total)
