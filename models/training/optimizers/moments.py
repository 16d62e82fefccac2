"""What adaptive optimizers are made of: all weights in one row, running means of their gradients
and of those' squares, and a step that is divided by a root."""

from __future__ import annotations

import itertools
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
    MOST_RAISED,
    RATE,
    SHARE_BITS,
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
# Of a mean gradient as an update takes it: its square has the bits of the mean of squares at once,
# and stays below 2^62 for gradients below 2^11.
MEAN_BITS = SQUARE_BITS // 2
# Bits of the whole part of a mean of squares, and of its sign.
SQUARE_RANGE = adaptive.TOP - SQUARE_BITS + 1
SQUARE_DECAY_BITS, MEAN_DECAY_BITS = 12, 16
# The rate is exact to 2^-16 of the largest, and updates may reach 2^7.
RATE_BITS, LARGEST_TURN = 16, 1 << 7
MOST_DROPPED = 48


def decay(beta: float | Fraction, most: int) -> tuple[int, int]:
    """(C, s): 1 - beta as C / 2^s with C < 2^most and s <= 20."""
    part = Fraction(1) - Fraction(beta)
    s = min(20, exponent(part, most))
    return max(1, rounded(part * 2**s)), s


def fresh_part(beta_2: float) -> Fraction:
    """1 - beta_2 as fixed point has it."""
    part, s = decay(beta_2, SQUARE_DECAY_BITS)
    return Fraction(part, 1 << s)


def square_correction(beta_2: float, count: int) -> Decimal:
    """sqrt((1 - beta_2^count) / (1 - beta_2)), with beta_2 as fixed point has it.

    The sum of squares that `Row.squares` keeps is the mean over 1 - beta_2; it fits exactly.
    """
    part = fresh_part(beta_2)
    share = Decimal(part.numerator) / part.denominator
    return ((1 - (1 - share) ** count) / share).sqrt()


def square_shift(beta_2: float) -> int:
    """j: 2^-j is near sqrt(1 - beta_2), so that a sum of 4^-j g^2 is about their mean."""
    return round(-math.log2(fresh_part(beta_2)) / 2)


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


def terms_of(terms: Terms, square: Fraction, shift: int = 0) -> dict[int, int]:
    """By the exponent k of gradients, a public square times 4^-(shift + k), in `units`."""
    return {k: units(square / Fraction(4) ** (shift + k)) for k in terms.distinct}


def least_exponent(square: float) -> int:
    """The least k for which 4^-k times what is added to squares leaves them their room."""
    room = adaptive.TOP - SQUARE_BITS - 2 - math.log2(max(square, 1e-300))
    return -min(MOST_RAISED, max(0, math.floor(room / 2)))


@dataclass(frozen=True)
class Averaged(Optimizer):
    """Steps of the rate's size by the mean of gradients, which begins at 0."""

    beta_1: float = number(0.9, 0.0, 0.9999)
    beta_2: float = number(0.999, 0.5, 0.9999)
    epsilon: float = number(1e-7, 0.0, 1.0)

    def _corrected(self, count: int) -> Decimal:
        """What the rate is times in a step, counted from 1, as means are too small at first."""
        raise NotImplementedError

    @property
    def least_exponent(self) -> int:
        """Steps are the same at any scale of gradients, but for epsilon."""
        return least_exponent(self.epsilon**2)

    def _last(self) -> Decimal:
        """What `_corrected` comes to after many steps."""
        part = fresh_part(self.beta_2)
        return (Decimal(part.denominator) / part.numerator).sqrt()

    def _least(self, terms: Terms) -> dict[int, int]:
        """By the exponent of gradients, epsilon^2 in units of the sums of squares."""
        square = Fraction(self.epsilon) ** 2 / terms.scale**2 / fresh_part(self.beta_2)
        return terms_of(terms, square, square_shift(self.beta_2))

    def _exponent(self, terms: Terms) -> int:
        with localcontext(DIGITS):
            # the correction falls or rises from its first value toward its last
            top = self.schedule.largest * max(self._corrected(1), self._last())
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


def _mean(ops: Operations, terms: Terms, g: Shared, shift: int) -> Shared:
    """2^-shift of the mean gradient of a summed one, with MEAN_BITS fractional bits."""
    share = terms.share
    whole = share.numerator == 1 and share.denominator.bit_count() == 1
    e = share.denominator.bit_length() - 1 if whole else exponent(share, SHARE_BITS)
    fewer = max(0, -e - shift)
    factor = rounded(share * Fraction(2) ** e) << fewer
    return brought(ops, ops.times(g, factor, e + shift + fewer), MEAN_BITS)


class Row:
    """All weights with a gradient in one row, and what is remembered of them.

    Attributes:
        ops: that compute or count.
        gradient: 2^-(shift + k) of the mean over the batch, with MEAN_BITS fractional bits and the
            exponent k of its weights (Terms.exponents): so all of it lies below 8.
    """

    def __init__(
        self, p: Pass, terms: Terms, gradients: Mapping[str, Shared], shift: int = 0
    ) -> None:
        self.ops, self._held, self._public = p.ops, p.weights, p.public

        def scale(key: str) -> tuple[int, int]:
            return terms.exponents.get(key, 0), gradients[key].fractional_bits

        self._keys = sorted(gradients, key=scale)
        self._shapes = [p.ops.shape(gradients[key]) for key in self._keys]
        means, self._runs = [], dict[int, int]()
        for (k, _), keys in itertools.groupby(self._keys, key=scale):
            some = flat(p.ops, [gradients[key] for key in keys])
            means.append(_mean(p.ops, terms, some, shift + k))
            self._runs[k] = self._runs.get(k, 0) + math.prod(p.ops.shape(some))
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
        """beta v + g^2 after this gradient: the running mean of squares over 1 - beta.  1 round.

        No product of a square is taken, so that it is right for gradients far above those that
        the mean may have in the long run.
        """
        ops, v = self.ops, self.held(slot)
        part, s = decay(beta, SQUARE_DECAY_BITS)
        square = ops.mul(self.gradient, self.gradient)
        return ops.add(ops.sub(v, ops.truncate(ops.times(v, part, s), s)), square)

    def larger(self, x: Shared, y: Shared) -> Shared:
        """The larger of two squares."""
        ops = self.ops
        bits = SQUARE_BITS + SQUARE_RANGE  # of |x - y|, in ring units
        exchanges = ops.setting.exchanges(math.prod(ops.shape(x)), bits)
        return ops.call(relational.maximum, x, y, bits, exchanges)

    def divided(self, x: Shared, square: Shared, least: Mapping[int, Any]) -> Shared:
        """x / sqrt(square + least), with adaptive.RESULT_BITS more.  9 rounds.

        Args:
            square: with SQUARE_BITS fractional bits.
            least: public, in units of those, by the exponent of gradients (`terms_of`).
        """
        ops = self.ops
        root, wanted = square, [least[k] for k in self._runs]
        if any(not isinstance(c, int) or c for c in wanted):
            pieces = parts(ops, square, [(n,) for n in self._runs.values()])
            root = flat(ops, [ops.add_public(v, c) for v, c in zip(pieces, wanted, strict=True)])
        return ops.call(adaptive.update, x, root, profile=ops.setting.update_profile)

    def moved(self, w: Shared, turn: Shared, e: int) -> Shared:
        """w - c / 2^e turn, for the step's public rate c.  1 round."""
        ops = self.ops
        drop = e + turn.fractional_bits - w.fractional_bits
        return ops.sub(w, ops.truncate(ops.times(turn, self._public[RATE], e), drop))
