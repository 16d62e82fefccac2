"""How well a state predicts: logits, and the number of right answers."""

from __future__ import annotations

from collections.abc import Mapping

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.operations import Operations, Setting, shifted
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.training import gradients, losses
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, truncation
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def logits(
    party: Party, recipe: Recipe, setting: Setting, held: Mapping[str, Shared], x: Shared
) -> Shared:
    """The model's output before its softmax or sigmoid, [batch, ...], at any scale."""
    small = recipe.loss.name == losses.BINARY
    p = Pass(Operations(party, setting), held, recipe.numbers, recipe.frozen, small=small)
    return gradients.forward(p, recipe, x)


def correct(
    party: Party,
    recipe: Recipe,
    setting: Setting,
    held: Mapping[str, Shared],
    x: Shared,
    y: Shared,
) -> Shared:
    """The number of right answers in a batch, a private integer [].

    A class is right if no other has a larger logit; one output is right if it is on its target's
    side of 1/2, and several count one by one.

    Args:
        x, y: features and targets as step.step takes them, any number of rows.

    Raises:
        UsageError: the loss is of no classification.
    """
    import tensorflow as tf

    if recipe.loss.name == losses.SQUARED:
        raise UsageError(
            "There are no right answers to count with mean_squared_error. Received: a regression."
        )
    z = logits(party, recipe, setting, held, x)
    f, bits = recipe.numbers.activation, recipe.numbers.ring
    if z.fractional_bits > f:
        z = truncation.truncate(party, z, z.fractional_bits - f)
    if recipe.loss.categorical:
        best = extremes.reduce_max(
            party, z, len(z.shape) - 1, bits=bits + 1, profile=setting.profile
        )
        # targets are 0 and 1, so that this is the right class's logit, exactly
        product = arithmetic.mul(party, z, y).map(lambda a: tf.reduce_sum(a, axis=-1))
        d = arithmetic.sub(product, shifted(best, product.fractional_bits))
        count = None if d.shape.num_elements() is None else int(d.shape.num_elements())
        below = compare.msb(party, d, bits + 1 + y.fractional_bits, None)
        right = convert.b2a(party, logic.invert(convert.open_bits(party, below)), [count])
        return right.map(tf.reduce_sum)
    flat = [v.map(lambda a: tf.reshape(a, [-1])) for v in (z, y)]
    negative = convert.open_bits(party, compare.msb(party, flat[0], bits, None))
    positive = logic.invert(negative)
    one = y.fractional_bits
    # 1 - b - y + 2 b y
    both = convert.inject(party, positive, flat[1]).map(tf.reduce_sum)
    ones = convert.b2a(party, positive, tf.shape(flat[0].any)).map(tf.reduce_sum)
    n = int(flat[0].shape.num_elements())
    wrong = arithmetic.sub(
        arithmetic.add(shifted(ones, one), flat[1].map(tf.reduce_sum)), both.map(lambda a: 2 * a)
    )
    right = arithmetic.add_public(arithmetic.neg(wrong), tf.constant(n << one, tf.int64))
    return truncation.truncate(party, right, one)
