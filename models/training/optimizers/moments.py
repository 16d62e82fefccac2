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
from tfe_bench.models.kinds.passes import ForwardContext, convert_scale, reshape_value
from tfe_bench.models.training.optimizers.optimizer import (
    MOST_RAISED,
    RATE,
    SHARE_BITS,
    Optimizer,
    UpdateTerms,
    bounded_setting,
    check_rate,
    choose_exponent,
    round_half_up,
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


def split_decay(beta: float | Fraction, max_bits: int) -> tuple[int, int]:
    """(C, s): 1 - beta as C / 2^s with C < 2^most and s <= 20."""
    part = Fraction(1) - Fraction(beta)
    s = min(20, choose_exponent(part, max_bits))
    return max(1, round_half_up(part * 2**s)), s


def fresh_part(beta_2: float) -> Fraction:
    """1 - beta_2 as fixed point has it."""
    part, s = split_decay(beta_2, SQUARE_DECAY_BITS)
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


def check_bound(beta_1: float, beta_2: float, extra: float = 0.0) -> None:
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
        bound = (1 - beta_1) / math.sqrt((1 - beta_2) * (1 - part)) + extra
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
    check_rate(top)
    more = fractional_bits + adaptive.RESULT_BITS - weight
    return min(max(choose_exponent(top, bits), 1), MOST_DROPPED - more)


def public_rate(rate: Decimal, e: int) -> dict[str, int]:
    """The public integer c."""
    return {RATE: round_half_up(Fraction(rate) * Fraction(2) ** e)}


def to_square_units(square: Fraction) -> int:
    """A public square in units of the means of squares."""
    return round_half_up(square * (1 << SQUARE_BITS))


def scale_square(terms: UpdateTerms, square: Fraction, shift: int = 0) -> dict[int, int]:
    """By the exponent k of gradients, a public square times 4^-(shift + k), in `units`."""
    return {
        k: to_square_units(square / Fraction(4) ** (shift + k)) for k in terms.distinct_exponents
    }


def least_exponent(square: float) -> int:
    """The least k for which 4^-k times what is added to squares leaves them their room."""
    room = adaptive.TOP - SQUARE_BITS - 2 - math.log2(max(square, 1e-300))
    return -min(MOST_RAISED, max(0, math.floor(room / 2)))


@dataclass(frozen=True)
class AveragedOptimizer(Optimizer):
    """Steps of the rate's size by the mean of gradients, which begins at 0."""

    beta_1: float = bounded_setting(0.9, 0.0, 0.9999)
    beta_2: float = bounded_setting(0.999, 0.5, 0.9999)
    epsilon: float = bounded_setting(1e-7, 0.0, 1.0)

    def _correction_factor(self, count: int) -> Decimal:
        """What the rate is times in a step, counted from 1, as means are too small at first."""
        raise NotImplementedError

    @property
    def least_exponent(self) -> int:
        """Steps are the same at any scale of gradients, but for epsilon."""
        return least_exponent(self.epsilon**2)

    def _final_correction(self) -> Decimal:
        """What `_corrected` comes to after many steps."""
        part = fresh_part(self.beta_2)
        return (Decimal(part.denominator) / part.numerator).sqrt()

    def _epsilon_squares(self, terms: UpdateTerms) -> dict[int, int]:
        """By the exponent of gradients, epsilon^2 in units of the sums of squares."""
        square = Fraction(self.epsilon) ** 2 / terms.scale**2 / fresh_part(self.beta_2)
        return scale_square(terms, square, square_shift(self.beta_2))

    def _rate_exponent(self, terms: UpdateTerms) -> int:
        with localcontext(DIGITS):
            # the correction falls or rises from its first value toward its last
            top = self.schedule.largest_rate * max(
                self._correction_factor(1), self._final_correction()
            )
        return rate_exponent(top, MOMENT_BITS, terms.numbers.weight)

    def compute_public_integers(self, terms: UpdateTerms, step: int) -> dict[str, int]:
        """The rate with the corrections of the means."""
        with localcontext(DIGITS):
            rate = self.schedule.compute_rate(step) * self._correction_factor(step + 1)
        return public_rate(rate, self._rate_exponent(terms))


# ---- all weights in one row


def flatten_values(ops: Operations, xs: Sequence[Shared]) -> Shared:
    """All elements in one row."""
    rows = [reshape_value(ops, x, (math.prod(ops.get_shape(x)),)) for x in xs]
    return rows[0] if len(rows) == 1 else ops.concat(rows, 0)


def split_row(ops: Operations, x: Shared, wanted: Sequence[Shape]) -> list[Shared]:
    """`flat` undone."""
    arrays, start = [], 0
    for shape in wanted:
        size = math.prod(shape)

        def part(v: Shared, start: int = start, size: int = size, shape: Shape = shape) -> Shared:
            return shapes.reshape(shapes.slice(v, [start], [size]), shape)

        arrays.append(ops.apply_local(part, x, shape))
        start += size
    return arrays


def _mean_gradient(ops: Operations, terms: UpdateTerms, g: Shared, shift: int) -> Shared:
    """2^-shift of the mean gradient of a summed one, with MEAN_BITS fractional bits."""
    share = terms.share
    whole = share.numerator == 1 and share.denominator.bit_count() == 1
    e = share.denominator.bit_length() - 1 if whole else choose_exponent(share, SHARE_BITS)
    fewer = max(0, -e - shift)
    factor = round_half_up(share * Fraction(2) ** e) << fewer
    return convert_scale(ops, ops.mul_public(g, factor, e + shift + fewer), MEAN_BITS)


class WeightRow:
    """All weights with a gradient in one row, and what is remembered of them.

    Attributes:
        ops: that compute or count.
        gradient: 2^-(shift + k) of the mean over the batch, with MEAN_BITS fractional bits and the
            exponent k of its weights (Terms.exponents): so all of it lies below 8.
    """

    def __init__(
        self, p: ForwardContext, terms: UpdateTerms, gradients: Mapping[str, Shared], shift: int = 0
    ) -> None:
        self.ops, self._held, self._public = p.ops, p.weights, p.public

        def scale(key: str) -> tuple[int, int]:
            return terms.exponents.get(key, 0), gradients[key].fractional_bits

        self._keys = sorted(gradients, key=scale)
        self._shapes = [p.ops.get_shape(gradients[key]) for key in self._keys]
        means, self._runs = [], dict[int, int]()
        for (k, _), keys in itertools.groupby(self._keys, key=scale):
            gradient_row = flatten_values(p.ops, [gradients[key] for key in keys])
            means.append(_mean_gradient(p.ops, terms, gradient_row, shift + k))
            self._runs[k] = self._runs.get(k, 0) + math.prod(p.ops.get_shape(gradient_row))
        self.gradient = flatten_values(p.ops, means)

    def get_slot(self, slot: str = "") -> Shared:
        """What is remembered under a name; without one, the weights."""
        ending = f":{slot}" if slot else ""
        return flatten_values(self.ops, [self._held[key + ending] for key in self._keys])

    def split_state(self, weights: Shared, **slots: Shared) -> dict[str, Shared]:
        """The new state by key."""
        state = {}
        for ending, value in {"": weights, **{f":{k}": v for k, v in slots.items()}}.items():
            split = split_row(self.ops, value, self._shapes)
            for key, one in zip(self._keys, split, strict=True):
                state[key + ending] = one
        return state

    def update_mean(self, slot: str, beta: float) -> Shared:
        """The running mean of gradients after this one.  1 round."""
        ops, m = self.ops, self.get_slot(slot)
        part, s = split_decay(beta, MEAN_DECAY_BITS)
        fresh = ops.sub(ops.add_fractional_bits(self.gradient, m.fractional_bits), m)
        return ops.add(m, ops.truncate(ops.mul_public(fresh, part, s), s))

    def update_squares(self, slot: str, beta: float) -> Shared:
        """beta v + g^2 after this gradient: the running mean of squares over 1 - beta.  1 round.

        No product of a square is taken, so that it is right for gradients far above those that
        the mean may have in the long run.
        """
        ops, v = self.ops, self.get_slot(slot)
        part, s = split_decay(beta, SQUARE_DECAY_BITS)
        square = ops.mul(self.gradient, self.gradient)
        return ops.add(ops.sub(v, ops.truncate(ops.mul_public(v, part, s), s)), square)

    def take_larger(self, x: Shared, y: Shared) -> Shared:
        """The larger of two squares."""
        ops = self.ops
        bits = SQUARE_BITS + SQUARE_RANGE  # of |x - y|, in ring units
        exchanges = ops.setting.choose_exchanges(math.prod(ops.get_shape(x)), bits)
        return ops.run_protocol(relational.maximum, x, y, bits, exchanges)

    def divide_by_root(self, x: Shared, square: Shared, least: Mapping[int, Any]) -> Shared:
        """x / sqrt(square + least), with adaptive.RESULT_BITS more.  9 rounds.

        Args:
            square: with SQUARE_BITS fractional bits.
            least: public, in units of those, by the exponent of gradients (`terms_of`).
        """
        ops = self.ops
        root, wanted = square, [least[k] for k in self._runs]
        if any(not isinstance(c, int) or c for c in wanted):
            pieces = split_row(ops, square, [(n,) for n in self._runs.values()])
            root = flatten_values(
                ops, [ops.add_public(v, c) for v, c in zip(pieces, wanted, strict=True)]
            )
        return ops.run_protocol(adaptive.scale_by_root, x, root, profile=ops.setting.update_profile)

    def take_step(self, w: Shared, direction: Shared, e: int) -> Shared:
        """w - c / 2^e turn, for the step's public rate c.  1 round."""
        ops = self.ops
        drop = e + direction.fractional_bits - w.fractional_bits
        return ops.sub(w, ops.truncate(ops.mul_public(direction, self._public[RATE], e), drop))
