"""The parts of adaptive optimizers.

All weights form one row; there are running means of their gradients and of the squares, and a step
that is divided by a root.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.layers.base import (
    ForwardContext,
    Operations,
    Shape,
    convert_scale,
    reshape_value,
)
from tfe_bench.models.training.optimizers.optimizer import (
    MOST_RAISED,
    RATE,
    SHARE_BITS,
    Optimizer,
    WeightUpdateTerms,
    check_learning_rate,
    choose_factor_exponent,
    round_half_up,
)
from tfe_bench.models.training.schedules import DIGITS, bounded_setting
from tfe_bench.protocols.nn import adaptive
from tfe_bench.protocols.ring import relational, shapes
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of the means: of the gradients, and of their squares.
MOMENT_BITS, SQUARE_BITS = 26, adaptive.VARIANCE_BITS
# Fractional bits of a mean gradient in an update: its square has those of the mean of squares,
# and stays below 2^62 for gradients below 2^11.
MEAN_BITS = SQUARE_BITS // 2
# Bits of the integer part of a mean of squares, and of its sign.
SQUARE_RANGE = adaptive.TOP - SQUARE_BITS + 1
SQUARE_DECAY_BITS, MEAN_DECAY_BITS = 12, 16
# The rate is exact to 2^-16 of the largest, and updates may reach 2^7.
RATE_BITS, LARGEST_TURN = 16, 1 << 7
MOST_DROPPED = 48


def split_moment_decay(beta: float | Fraction, max_bits: int) -> tuple[int, int]:
    """Return (C, s): 1 - beta as C / 2^s with C < 2^max_bits and s <= 20."""
    part = Fraction(1) - Fraction(beta)
    s = min(20, choose_factor_exponent(part, max_bits))
    return max(1, round_half_up(part * 2**s)), s


def fresh_gradient_part(beta_2: float) -> Fraction:
    """Return 1 - beta_2 as fixed point represents it."""
    part, s = split_moment_decay(beta_2, SQUARE_DECAY_BITS)
    return Fraction(part, 1 << s)


def second_moment_correction(beta_2: float, count: int) -> Decimal:
    """Return sqrt((1 - beta_2^count) / (1 - beta_2)), with beta_2 as fixed point represents it.

    The sum of squares of `WeightRow.update_squares` is the mean over 1 - beta_2; the correction is
    exact for it.
    """
    part = fresh_gradient_part(beta_2)
    share = Decimal(part.numerator) / part.denominator
    return ((1 - (1 - share) ** count) / share).sqrt()


def second_moment_shift(beta_2: float) -> int:
    """Return j: 2^-j is near sqrt(1 - beta_2), so that a sum of 4^-j g^2 is about their mean."""
    return round(-math.log2(fresh_gradient_part(beta_2)) / 2)


def check_moment_bound(beta_1: float, beta_2: float, extra: float = 0.0) -> None:
    """Refuse means m and v without a bound on m / sqrt(v) that fits into products.

    By the inequality of Cauchy and Schwarz it is below (1 - beta_1) / sqrt((1 - beta_2)(1 -
    beta_1^2 / beta_2)).

    Args:
        extra: an addend of the bound.

    Raises:
        UsageError: there is no such bound.
    """
    part = beta_1**2 / beta_2
    fits = part < 1
    if fits:
        bound = (1 - beta_1) / math.sqrt((1 - beta_2) * (1 - part)) + extra
        fits = bound <= LARGEST_TURN
    if not fits:
        raise UsageError(
            "Expected beta_1^2 well below beta_2, as otherwise a step has no bound. Received: "
            f"beta_1={beta_1} and beta_2={beta_2}.",
            code="unbounded-step",
        )


def learning_rate_exponent(
    top: Decimal, fractional_bits: int, weight: int, bits: int = RATE_BITS
) -> int:
    """Return e of the public rate c / 2^e; c has this many bits at the largest rate.

    Args:
        fractional_bits: fractional bits of the value that is divided by a root.
        weight: fractional bits of the weights.
    """
    check_learning_rate(top)
    more = fractional_bits + adaptive.RESULT_BITS - weight
    return min(max(choose_factor_exponent(top, bits), 1), MOST_DROPPED - more)


def public_learning_rate(rate: Decimal, e: int) -> dict[str, int]:
    """Return the public integer c."""
    return {RATE: round_half_up(Fraction(rate) * Fraction(2) ** e)}


def to_second_moment_units(square: Fraction) -> int:
    """Convert a public square to units of the means of squares."""
    return round_half_up(square * (1 << SQUARE_BITS))


def scale_second_moment(
    terms: WeightUpdateTerms, square: Fraction, shift: int = 0
) -> dict[int, int]:
    """Return a public square times 4^-(shift + k) in square units, by the exponent k."""
    return {
        k: to_second_moment_units(square / Fraction(4) ** (shift + k))
        for k in terms.distinct_exponents
    }


def least_gradient_exponent(square: float) -> int:
    """Return the least k for which 4^-k times an addend of squares leaves them enough room."""
    room = adaptive.TOP - SQUARE_BITS - 2 - math.log2(max(square, 1e-300))
    return -min(MOST_RAISED, max(0, math.floor(room / 2)))


@dataclass(frozen=True)
class AveragedOptimizer(Optimizer):
    """Steps of the rate's size by the mean of gradients, which starts at 0."""

    beta_1: float = bounded_setting(0.9, 0.0, 0.9999)
    beta_2: float = bounded_setting(0.999, 0.5, 0.9999)
    epsilon: float = bounded_setting(1e-7, 0.0, 1.0)

    def _correction_factor(self, count: int) -> Decimal:
        """Return the factor of the rate in a step, counted from 1: means start too small."""
        raise NotImplementedError

    @property
    def least_exponent(self) -> int:
        """Lower bound on exponents: steps are scale-invariant, except for epsilon."""
        return least_gradient_exponent(self.epsilon**2)

    def _final_correction(self) -> Decimal:
        """Return the limit of `_correction_factor` after many steps."""
        part = fresh_gradient_part(self.beta_2)
        return (Decimal(part.denominator) / part.numerator).sqrt()

    def _epsilon_squares(self, terms: WeightUpdateTerms) -> dict[int, int]:
        """Return epsilon^2 in units of the sums of squares, by the exponent of gradients."""
        square = Fraction(self.epsilon) ** 2 / terms.scale**2 / fresh_gradient_part(self.beta_2)
        return scale_second_moment(terms, square, second_moment_shift(self.beta_2))

    def _rate_exponent(self, terms: WeightUpdateTerms) -> int:
        with localcontext(DIGITS):
            # the correction is monotone from its first value to its last
            top = self.schedule.largest_rate * max(
                self._correction_factor(1), self._final_correction()
            )
        return learning_rate_exponent(top, MOMENT_BITS, terms.numbers.weight)

    def compute_public_integers(self, terms: WeightUpdateTerms, step: int) -> dict[str, int]:
        """Return the rate with the corrections of the means."""
        with localcontext(DIGITS):
            rate = self.schedule.compute_rate(step) * self._correction_factor(step + 1)
        return public_learning_rate(rate, self._rate_exponent(terms))


# ---- all weights in one row


def flatten_weight_arrays(ops: Operations, xs: Sequence[Shared]) -> Shared:
    """Concatenate all elements to one row."""
    rows = [reshape_value(ops, x, (math.prod(ops.get_shape(x)),)) for x in xs]
    return rows[0] if len(rows) == 1 else ops.concat(rows, 0)


def split_weight_row(ops: Operations, x: Shared, block_shapes: Sequence[Shape]) -> list[Shared]:
    """Split a row into arrays, the inverse of `flatten_weight_arrays`."""
    arrays, start = [], 0
    for shape in block_shapes:
        size = math.prod(shape)

        def slice_weight_row(
            v: Shared, start: int = start, size: int = size, shape: Shape = shape
        ) -> Shared:
            return shapes.reshape(shapes.slice(v, [start], [size]), shape)

        arrays.append(ops.apply_local(slice_weight_row, x, shape))
        start += size
    return arrays


def _mean_gradient(ops: Operations, terms: WeightUpdateTerms, g: Shared, shift: int) -> Shared:
    """Return 2^-shift of the mean gradient of a summed one, with MEAN_BITS fractional bits."""
    share = terms.share
    whole = share.numerator == 1 and share.denominator.bit_count() == 1
    e = share.denominator.bit_length() - 1 if whole else choose_factor_exponent(share, SHARE_BITS)
    fewer = max(0, -e - shift)
    factor = round_half_up(share * Fraction(2) ** e) << fewer
    return convert_scale(ops, ops.mul_public(g, factor, e + shift + fewer), MEAN_BITS)


class WeightRow:
    """All weights with a gradient in one row, and their slots.

    Attributes:
        ops: the operations that compute or count.
        gradient: 2^-(shift + k) times the mean over the batch, with MEAN_BITS fractional bits and
            the exponent k of its weights (WeightUpdateTerms.exponents): so all of it lies below 8.
    """

    def __init__(
        self,
        p: ForwardContext,
        terms: WeightUpdateTerms,
        gradients: Mapping[str, Shared],
        shift: int = 0,
    ) -> None:
        self.ops, self._held, self._public = p.ops, p.weights, p.public

        def get_gradient_scale(key: str) -> tuple[int, int]:
            return terms.exponents.get(key, 0), gradients[key].fractional_bits

        self._keys = sorted(gradients, key=get_gradient_scale)
        self._shapes = [p.ops.get_shape(gradients[key]) for key in self._keys]
        means, self._runs = [], dict[int, int]()
        for (k, _), keys in itertools.groupby(self._keys, key=get_gradient_scale):
            gradient_row = flatten_weight_arrays(p.ops, [gradients[key] for key in keys])
            means.append(_mean_gradient(p.ops, terms, gradient_row, shift + k))
            self._runs[k] = self._runs.get(k, 0) + math.prod(p.ops.get_shape(gradient_row))
        self.gradient = flatten_weight_arrays(p.ops, means)

    def get_slot(self, slot: str = "") -> Shared:
        """Return a slot; without a name, the weights."""
        ending = f":{slot}" if slot else ""
        return flatten_weight_arrays(self.ops, [self._held[key + ending] for key in self._keys])

    def split_state(self, weights: Shared, **slots: Shared) -> dict[str, Shared]:
        """Return the new state by key."""
        state = {}
        for ending, value in {"": weights, **{f":{k}": v for k, v in slots.items()}}.items():
            split = split_weight_row(self.ops, value, self._shapes)
            for key, one in zip(self._keys, split, strict=True):
                state[key + ending] = one
        return state

    def update_mean(self, slot: str, beta: float) -> Shared:
        """Return the running mean of gradients after this one. 1 round."""
        ops, m = self.ops, self.get_slot(slot)
        part, s = split_moment_decay(beta, MEAN_DECAY_BITS)
        fresh = ops.sub(ops.add_fractional_bits(self.gradient, m.fractional_bits), m)
        return ops.add(m, ops.truncate(ops.mul_public(fresh, part, s), s))

    def update_squares(self, slot: str, beta: float) -> Shared:
        """Return beta v + g^2: the running mean of squares over 1 - beta. 1 round.

        No square is multiplied, so the result is right for gradients far above those that the mean
        may have in the long run.
        """
        ops, v = self.ops, self.get_slot(slot)
        part, s = split_moment_decay(beta, SQUARE_DECAY_BITS)
        square = ops.mul(self.gradient, self.gradient)
        return ops.add(ops.sub(v, ops.truncate(ops.mul_public(v, part, s), s)), square)

    def take_larger(self, x: Shared, y: Shared) -> Shared:
        """Return the larger of two squares."""
        ops = self.ops
        bits = SQUARE_BITS + SQUARE_RANGE  # of |x - y|, in ring units
        exchanges = ops.setting.choose_exchanges(math.prod(ops.get_shape(x)), bits)
        return ops.run_protocol(relational.maximum, x, y, bits, exchanges)

    def divide_by_root(self, x: Shared, square: Shared, least: Mapping[int, Any]) -> Shared:
        """Return x / sqrt(square + least), with adaptive.RESULT_BITS more. 9 rounds.

        Args:
            square: with SQUARE_BITS fractional bits.
            least: public, in units of those, by the exponent of gradients (`scale_second_moment`).
        """
        ops = self.ops
        root, lower_bounds = square, [least[k] for k in self._runs]
        if any(not isinstance(c, int) or c for c in lower_bounds):
            pieces = split_weight_row(ops, square, [(n,) for n in self._runs.values()])
            root = flatten_weight_arrays(
                ops, [ops.add_public(v, c) for v, c in zip(pieces, lower_bounds, strict=True)]
            )
        return ops.run_protocol(adaptive.scale_by_root, x, root, profile=ops.setting.update_profile)

    def take_step(self, w: Shared, direction: Shared, e: int) -> Shared:
        """Return w - c / 2^e direction, for the step's public rate c. 1 round."""
        ops = self.ops
        drop = e + direction.fractional_bits - w.fractional_bits
        return ops.sub(w, ops.truncate(ops.mul_public(direction, self._public[RATE], e), drop))
