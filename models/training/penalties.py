"""Regularizers: l1 |w| + l2 w^2, summed over arrays of weights and added to a loss."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple, cast

from tfe_bench.cluster.schema import Mismatch, Rule, list_rule
from tfe_bench.models.layers.base.operations import Operations
from tfe_bench.models.layers.base.passes import ForwardContext, add_aligned, convert_scale
from tfe_bench.models.layers.base.reading import UnsupportedLayer
from tfe_bench.models.training.losses.loss import (
    FACTOR_BITS,
    LOSS_BITS,
    compute_training_sign,
    sum_loss_products,
    sum_loss_terms,
)
from tfe_bench.models.training.schedules import is_real_schedule_option
from tfe_bench.protocols.session.sharing import Shared

# With this bound a weight's part of a gradient is below 2^11, and its mean is in range for |w| <=
# 8.
LARGEST = 1.0
# Significant bits of a public factor, and the largest number of fractional ones.
_FACTOR, _MOST = 16, 30


class WeightPenalty(NamedTuple):
    """l1 |w| + l2 w^2."""

    l1: float
    l2: float


def read_keras_regularizer(regularizer: Any) -> WeightPenalty:
    """Read the penalty of a Keras regularizer.

    Raises:
        UnsupportedLayer: the regularizer is not supported.
    """
    import keras

    numbers = {
        keras.regularizers.L1: ("l1",),
        keras.regularizers.L2: ("l2",),
        keras.regularizers.L1L2: ("l1", "l2"),
    }
    if type(regularizer) not in numbers:
        raise UnsupportedLayer(
            f"regularizer {type(regularizer).__name__}; L1, L2 and L1L2 are supported"
        )
    coefficients = {name: float(getattr(regularizer, name)) for name in numbers[type(regularizer)]}
    return WeightPenalty(coefficients.get("l1", 0.0), coefficients.get("l2", 0.0))


def _read_coefficient(value: object) -> float:
    if not is_real_schedule_option(value, 0.0, LARGEST):
        raise Mismatch(
            f"an l1 and an l2 from 0 to {LARGEST:g} of each regularizer", "number-out-of-range"
        )
    return float(cast(float, value))


_COEFFICIENTS = list_rule(Rule(_read_coefficient), 2, 2)


def _read_penalty(pair: object) -> WeightPenalty:
    row = list(pair) if isinstance(pair, WeightPenalty) else pair
    return WeightPenalty(*_COEFFICIENTS.read(row))


PENALTY = Rule(_read_penalty, list)


def _scale_penalty(ops: Operations, x: Shared, factor: Fraction) -> Shared:
    """Multiply x by a public number, with more fractional bits; the factor is right to 2^-15."""
    size = factor.numerator.bit_length() - factor.denominator.bit_length()
    k = min(max(_FACTOR - size, 0), _MOST)
    return ops.mul_public(x, round(factor * (1 << k)), k)


def add_penalty_gradients(
    p: ForwardContext,
    penalties: Mapping[str, WeightPenalty],
    share: Fraction,
    gradients: Mapping[str, Shared],
) -> dict[str, Shared]:
    """Add l1 sign(w) + 2 l2 w of penalized weights to gradients, which are sums over the batch.

    The added part depends on the weights alone, so it is ready before the gradients.
    """
    ops, result = p.ops, dict(gradients)
    for key in sorted(penalties.keys() & gradients.keys()):  # (the same order at all parties)
        (l1, l2), w, g = penalties[key], p.weights[key], gradients[key]
        parts = []
        if l2:
            parts.append(_scale_penalty(ops, w, 2 * Fraction(l2) / share))
        if l1:
            parts.append(_scale_penalty(ops, compute_training_sign(ops, w), Fraction(l1) / share))
        for part in parts:
            g = add_aligned(ops, g, convert_scale(ops, part, g.fractional_bits))
        result[key] = g
    return result


def compute_penalty_loss(
    p: ForwardContext, penalties: Mapping[str, WeightPenalty], rows: Fraction
) -> Shared | None:
    """Return the penalties' part of a batch's summed losses, [] with LOSS_BITS, or None."""
    ops = p.ops
    total = None
    for key, (l1, l2) in penalties.items():
        w, parts = p.weights[key], []
        if l2:
            parts.append((sum_loss_products(ops, w, w), l2))
        if l1:
            parts.append((sum_loss_terms(ops, ops.mul(w, compute_training_sign(ops, w))), l1))
        for value, factor in parts:
            part = _scale_penalty(
                ops, convert_scale(ops, value, FACTOR_BITS), Fraction(factor) * rows
            )
            part = convert_scale(ops, part, LOSS_BITS)
            total = part if total is None else ops.add(total, part)
    return total
