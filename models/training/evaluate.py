"""Evaluation of a state: its score, and whether weights exceed their range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.models.layers.base.operations import Operations, ProtocolSetting, add_fractional_bits
from tfe_bench.models.layers.base.passes import ForwardContext, convert_scale
from tfe_bench.models.training import gradients
from tfe_bench.models.training.losses.loss import subtract_labels_from_outputs, sum_loss_products
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, shapes, truncation
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# A model with a larger weight does not learn: sums of products are wrong from 2^13 on.
LARGEST_WEIGHT = 2.0**10
# Fractional bits of a sum of squared errors.
ERROR_BITS = 20
WEIGHT_CHECKS = "checks of the weights"


def score_evaluation_batch(
    party: Party,
    recipe: Recipe,
    setting: ProtocolSetting,
    state: Mapping[str, Shared],
    x: Shared,
    y: Shared,
) -> Shared:
    """Compute the right answers in a batch, or for real targets the squared error; [].

    The first is a number, the second a sum over the batch.

    The score stays private until the client of the training reconstructs it. A class is right if no
    other has a larger logit; a single output is right if it is on its target's side of 1/2, and
    several outputs count one by one.

    Args:
        x, y: features and targets as in step.run_step, any number of rows.
    """
    ops, small = Operations(party, setting), recipe.loss.accepts_small_ring
    p = ForwardContext(ops, state, recipe.numbers, recipe.frozen, accepts_small_ring=small)
    z = gradients.run_forward_pass(p, recipe, x)  # before the softmax or sigmoid, at any scale
    if recipe.loss.counts_answers:
        return _count_right_predictions(party, recipe, setting, z, y)
    d = subtract_labels_from_outputs(ops, z, y)
    return convert_scale(ops, sum_loss_products(ops, d, d), ERROR_BITS)


def _count_right_predictions(
    party: Party, recipe: Recipe, setting: ProtocolSetting, z: Shared, y: Shared
) -> Shared:
    """Count the right answers, by the logits."""
    f, bits = recipe.numbers.activation, recipe.numbers.ring
    if z.fractional_bits > f:
        z = truncation.truncate(party, z, z.fractional_bits - f)
    if recipe.loss.is_categorical:
        best = extremes.reduce_max(
            party, z, len(z.shape) - 1, bits=bits + 1, profile=setting.profile
        )
        # targets are 0 and 1, so this is exactly the logit of the right class
        product = arithmetic.mul(party, z, y).map(lambda a: tf.reduce_sum(a, axis=-1))
        d = arithmetic.sub(product, add_fractional_bits(best, product.fractional_bits))
        count = None if d.shape.num_elements() is None else int(d.shape.num_elements())
        below = compare.msb(party, d, bits + 1 + y.fractional_bits, None)
        right = convert.b2a(party, logic.invert_bits(convert.mask_bits(party, below)), [count])
        return right.map(tf.reduce_sum)
    flat = [v.map(lambda a: tf.reshape(a, [-1])) for v in (z, y)]
    negative = convert.mask_bits(party, compare.msb(party, flat[0], bits, None))
    positive = logic.invert_bits(negative)
    one = y.fractional_bits
    # 1 - b - y + 2 b y
    both = convert.inject(party, positive, flat[1]).map(tf.reduce_sum)
    ones = convert.b2a(party, positive, tf.shape(flat[0].any)).map(tf.reduce_sum)
    n = int(flat[0].shape.num_elements())
    wrong = arithmetic.sub(
        arithmetic.add(add_fractional_bits(ones, one), flat[1].map(tf.reduce_sum)),
        both.map(lambda a: 2 * a),
    )
    right = arithmetic.add_public(arithmetic.neg(wrong), tf.constant(n << one, tf.int64))
    return truncation.truncate(party, right, one)


def detect_weight_overflow(
    party: Party, weights: Sequence[Shared], bound: float = LARGEST_WEIGHT
) -> Any:
    """Reveal one bit to all workers, and nothing else: whether |w| >= bound for some weight.

    bit = [number of (w - bound < 0) and (-w - bound < 0) is below 2n], public, an int64 scalar.
    Rounds: 3 + 1 + 1 + 3 + 1 for comparison, exchange, conversion, comparison, publication.
    """

    def subtract_weight_bound(w: Shared, sign: int) -> Shared:
        edge = round(bound * 2.0**w.fractional_bits)
        flat = w.map(lambda a: tf.reshape(sign * a, [-1]))
        return replace(flat, m=None if flat.m is None else flat.m - edge, fractional_bits=0)

    sides = shapes.concat([subtract_weight_bound(w, sign) for w in weights for sign in (1, -1)], 0)
    count = int(sides.shape[0])
    inside = convert.b2a(party, convert.mask_bits(party, compare.msb(party, sides)))
    missing = inside.map(lambda a: tf.reshape(tf.reduce_sum(a), [1]))
    missing = replace(missing, m=None if missing.m is None else missing.m - count)
    bit = io.reveal_bits(party, compare.msb(party, missing), WEIGHT_CHECKS)
    return tf.bitwise.bitwise_and(tf.reshape(bit, [-1])[0], tf.constant(1, tf.int64))
