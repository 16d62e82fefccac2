"""What adaptive optimizers are made of: all weights in one row, running means of their gradients
and of those' squares, and a step that is divided by a root."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.layer import Shape
from tfe_bench.models.kinds.operations import Operations
from tfe_bench.models.kinds.passes import Pass, brought, reshaped
from tfe_bench.models.training.optimizers.optimizer import (
    RATE,
    Optimizer,
    Terms,
    exponent,
    number,
    refuse_no_rate,
    rounded,
)
from tfe_bench.models.training.schedules import DIGITS
from tfe_bench.protocols.nn import adaptive
from tfe_bench.protocols.ring import relational, shapes
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of the means: of the gradients, and of their squares.
MOMENT_BITS, SQUARE_BITS = 26, adaptive.VARIANCE_BITS
# Of a mean gradient, below 4 in magnitude, so that its square takes twice as many and, times what
# the mean of squares takes of it, stays below 2^62.
MEAN_BITS = 22
SQUARE_RANGE = 5
SQUARE_DECAY_BITS, MEAN_DECAY_BITS = 12, 16
# The rate is exact to 2^-16 of the largest, and updates may reach 2^7.
RATE_BITS, LARGEST_TURN = 16, 1 << 7
MOST_DROPPED = 48


def decay(beta: float | Fraction, most: int) -> tuple[int, int]:
    """(C, s): 1 - beta as C / 2^s with C < 2^most and s <= 20."""
    part = Fraction(1) - Fraction(beta)
    s = min(20, exponent(part, most))
    return max(1, rounded(part * 2**s)), s


def square_correction(beta_2: float, count: int) -> Decimal:
    """sqrt(1 - beta_2^count), with beta_2 as fixed point has it: it fits the mean exactly."""
    part, s = decay(beta_2, SQUARE_DECAY_BITS)
    return (1 - (1 - Decimal(part) / (1 << s)) ** count).sqrt()


def check_bound(beta_1: float, beta_2: float, more: float = 0.0) -> None:
    """Refuses means m and v without a bound on m / sqrt(v) that products leave room for.

    By the inequality of Cauchy and Schwarz it is below
    (1 - beta_1) / sqrt((1 - beta_2)(1 - beta_1^2 / beta_2)).

    Args:
        more: what is added to it.

    Raises:
        UsageError: there is none.
    """
    part = beta_1**2 / beta_2
    fits = part < 1
    if fits:
        bound = (1 - beta_1) / math.sqrt((1 - beta_2) * (1 - part)) + more
        fits = bound <= LARGEST_TURN
    if not fits:
        raise UsageError(
            "beta_1^2 is well below beta_2, or else a step has no bound. Received: "
            f"beta_1={beta_1} and beta_2={beta_2}."
        )


def rate_exponent(top: Decimal, fractional_bits: int, weight: int, bits: int = RATE_BITS) -> int:
    """e of the public rate c / 2^e, with c of so many bits at the largest rate.

    Args:
        fractional_bits: of what is divided by a root.
        weight: fractional bits of the weights.
    """
    refuse_no_rate(top)
    more = fractional_bits + adaptive.RESULT_BITS - weight
    return min(max(exponent(top, bits), 1), MOST_DROPPED - more)


def public_rate(rate: Decimal, e: int) -> dict[str, int]:
    """The public integer c."""
    return {RATE: rounded(Fraction(rate) * Fraction(2) ** e)}


def units(square: Fraction) -> int:
    """A public square in units of the means of squares."""
    return rounded(square * (1 << SQUARE_BITS))


@dataclass(frozen=True)
class Averaged(Optimizer):
    """Steps of the rate's size by the mean of gradients, which begins at 0."""

    beta_1: float = number(0.9, 0.0, 0.9999)
    beta_2: float = number(0.999, 0.5, 0.9999)
    epsilon: float = number(1e-7, 0.0, 1.0)

    def _corrected(self, count: int) -> Decimal:
        """What the rate is times in a step, counted from 1, as means are too small at first."""
        raise NotImplementedError

    def _exponent(self, terms: Terms) -> int:
        with localcontext(DIGITS):
            # the correction falls or rises from its first value toward 1
            top = self.schedule.largest * max(self._corrected(1), Decimal(1))
        return rate_exponent(top, MOMENT_BITS, terms.numbers.weight)

    def public(self, terms: Terms, step: int) -> dict[str, int]:
        """The rate with the corrections of the means."""
        with localcontext(DIGITS):
            rate = self.schedule.rate(step) * self._corrected(step + 1)
        return public_rate(rate, self._exponent(terms))


# ---- all weights in one row


def flat(ops: Operations, xs: Sequence[Shared]) -> Shared:
    """All elements in one row."""
    rows = [reshaped(ops, x, (math.prod(ops.shape(x)),)) for x in xs]
    return rows[0] if len(rows) == 1 else ops.concat(rows, 0)


def parts(ops: Operations, x: Shared, wanted: Sequence[Shape]) -> list[Shared]:
    """`flat` undone."""
    found, start = [], 0
    for shape in wanted:
        size = math.prod(shape)

        def part(v: Shared, start: int = start, size: int = size, shape: Shape = shape) -> Shared:
            return shapes.reshape(shapes.slice(v, [start], [size]), shape)

        found.append(ops.map(part, x, shape))
        start += size
    return found


def _mean(ops: Operations, terms: Terms, g: Shared) -> Shared:
    """The mean gradient of a summed one, with MEAN_BITS fractional bits."""
    share = terms.share
    whole = share.numerator == 1 and share.denominator.bit_count() == 1
    e = share.denominator.bit_length() - 1 if whole else exponent(share, 10)
    return brought(ops, ops.times(g, rounded(share * Fraction(2) ** e), e), MEAN_BITS)


class Row:
    """All weights with a gradient in one row, and what is remembered of them.

    Attributes:
        ops: that compute or count.
        gradient: the mean over the batch, with MEAN_BITS fractional bits.
    """

    def __init__(self, p: Pass, terms: Terms, gradients: Mapping[str, Shared]) -> None:
        self.ops, self._held, self._public = p.ops, p.weights, p.public
        self._keys = sorted(gradients, key=lambda key: gradients[key].fractional_bits)
        self._shapes = [p.ops.shape(gradients[key]) for key in self._keys]
        means = []
        for scale in sorted({g.fractional_bits for g in gradients.values()}):
            some = [gradients[k] for k in self._keys if gradients[k].fractional_bits == scale]
            means.append(_mean(p.ops, terms, flat(p.ops, some)))
        self.gradient = flat(p.ops, means)

    def held(self, slot: str = "") -> Shared:
        """What is remembered under a name; without one, the weights."""
        ending = f":{slot}" if slot else ""
        return flat(self.ops, [self._held[key + ending] for key in self._keys])

    def found(self, weights: Shared, **slots: Shared) -> dict[str, Shared]:
        """The new state by key."""
        found = {}
        for ending, value in {"": weights, **{f":{k}": v for k, v in slots.items()}}.items():
            split = parts(self.ops, value, self._shapes)
            for key, one in zip(self._keys, split, strict=True):
                found[key + ending] = one
        return found

    def mean(self, slot: str, beta: float) -> Shared:
        """The running mean of gradients after this one.  1 round."""
        ops, m = self.ops, self.held(slot)
        part, s = decay(beta, MEAN_DECAY_BITS)
        fresh = ops.sub(ops.shifted(self.gradient, m.fractional_bits), m)
        return ops.add(m, ops.truncate(ops.times(fresh, part, s), s))

    def squares(self, slot: str, beta: float) -> Shared:
        """The running mean of squared gradients after this one.  2 rounds."""
        ops, v = self.ops, self.held(slot)
        part, s = decay(beta, SQUARE_DECAY_BITS)
        square = ops.mul(self.gradient, self.gradient)
        fresh = ops.times(ops.sub(square, ops.shifted(v, square.fractional_bits)), part, s)
        return ops.add(v, ops.truncate(fresh, fresh.fractional_bits - v.fractional_bits))

    def larger(self, x: Shared, y: Shared) -> Shared:
        """The larger of two squares."""
        ops = self.ops
        bits = SQUARE_BITS + SQUARE_RANGE  # of |x - y|, in ring units
        exchanges = ops.setting.exchanges(math.prod(ops.shape(x)), bits)
        return ops.call(relational.maximum, x, y, bits, exchanges)

    def divided(self, x: Shared, square: Shared, least: Any) -> Shared:
        """x / sqrt(square + least), with adaptive.RESULT_BITS more.  9 rounds.

        Args:
            square: with SQUARE_BITS fractional bits.
            least: public, in units of those (`units`).
        """
        ops = self.ops
        none = isinstance(least, int) and not least
        root = square if none else ops.add_public(square, least)
        return ops.call(adaptive.update, x, root, profile=ops.setting.update_profile)

    def moved(self, w: Shared, turn: Shared, e: int) -> Shared:
        """w - c / 2^e turn, for the step's public rate c.  1 round."""
        ops = self.ops
        drop = e + turn.fractional_bits - w.fractional_bits
        return ops.sub(w, ops.truncate(ops.times(turn, self._public[RATE], e), drop))
