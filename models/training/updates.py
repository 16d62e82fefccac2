"""The update of the weights from summed gradients, for every optimizer.

It consists of clipping, the weight decay, the optimizer's update and the moving average.

Learning rate, batch and the loss's factor form one public integer c, so that c g / 2^drop is the
step, and dropping its bits the only truncation. The drop is static; c is an input of every step, so
that a schedule needs no new trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import localcontext
from fractions import Fraction

from tfe_bench.models.layers.base import ForwardContext, Operations, convert_scale
from tfe_bench.models.training import clipping, state
from tfe_bench.models.training.optimizers.optimizer import (
    BOUND_BITS,
    WeightUpdateTerms,
    choose_factor_exponent,
    round_half_up,
)
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.schedules import DIGITS
from tfe_bench.protocols.nn import adaptive
from tfe_bench.protocols.session.sharing import Shared

# Names of the public integers of a step, besides those of the optimizer.
_DECAY, _FRESH, _OVERWRITES = "decay", "fresh", "overwrites"
# The decay at the largest rate is exact to 2^-16; the average is exact to 2^-20.
_DECAY_BITS, _MOST_DECAY_BITS, _EMA_BITS = 16, 28, 20
# Truncated values stay below 2^62.
MOST_PRODUCT = 62


def build_update_terms(recipe: Recipe) -> WeightUpdateTerms:
    """Build the properties of the training that an optimizer needs."""
    numbers, share = recipe.numbers, recipe.loss.compute_share(recipe.output_shape, recipe.batch)
    min_bits, max_bits = numbers.gradient, numbers.activation + numbers.gradient
    if recipe.optimizer.clips_gradients:
        min_bits = max_bits = clipping.choose_clipped_gradient_bits(recipe.gradient_share)
    exponents = {key: recipe.exponents.get(key, 0) for key in state.list_trained_keys(recipe)}
    return WeightUpdateTerms(
        numbers, share, int(recipe.gradient_share / share), min_bits, max_bits, exponents
    )


def _limit_gradient_bits(recipe: Recipe, update_terms: WeightUpdateTerms, key: str) -> int:
    """Limit a summed gradient's fractional bits, so that its product with a factor fits."""
    k = update_terms.exponents[key]
    if k <= 0 or recipe.optimizer.clips_gradients:  # (clipped gradients are small)
        return update_terms.max_bits
    whole = BOUND_BITS + k + (recipe.batch - 1).bit_length() + recipe.optimizer.factor_bits
    return min(update_terms.max_bits, max(1, MOST_PRODUCT - whole))


def _weight_decay_exponent(recipe: Recipe) -> int:
    optimizer = recipe.optimizer
    with localcontext(DIGITS):
        max_decay = Fraction(optimizer.schedule.largest_rate) * Fraction(optimizer.weight_decay)
    return (
        min(max(choose_factor_exponent(max_decay, _DECAY_BITS), 1), _MOST_DECAY_BITS)
        if max_decay
        else 1
    )


def public_learning_rates(recipe: Recipe, step: int) -> dict[str, int]:
    """Return the public integers of a step, counted from 0, by name."""
    optimizer = recipe.optimizer
    integers = optimizer.compute_public_integers(build_update_terms(recipe), step)
    if optimizer.weight_decay:
        lost = Fraction(optimizer.schedule.compute_rate(step)) * Fraction(optimizer.weight_decay)
        integers[_DECAY] = round_half_up(lost * 2 ** _weight_decay_exponent(recipe))
    if optimizer.use_ema:
        # (the first average covers one step)
        momentum = Fraction(optimizer.ema_momentum) if step else Fraction(0)
        integers[_FRESH] = round_half_up((1 - momentum) * (1 << _EMA_BITS))
        frequency = optimizer.ema_overwrite_frequency
        if frequency is not None:
            integers[_OVERWRITES] = int((step + 1) % frequency == 0)
    return integers


def update_training_state(
    p: ForwardContext, recipe: Recipe, gradients: Mapping[str, Shared]
) -> dict[str, Shared]:
    """Compute the state after a step.

    Args:
        p: the pass through the step, with the state as its weights.
        gradients: gradients of the weights by key, summed over the batch, at any scale.

    Rounds: those of the optimizer; clipping adds 4 to 6 before it by value and 19 to 21 by norm, an
    average 1 after it.
    """
    optimizer, update_terms = recipe.optimizer, build_update_terms(recipe)
    state_values, scaled_gradients = dict(p.weights), {}
    for key in state.list_trained_keys(recipe):
        if key in gradients:
            g = gradients[key]
            max_bits = _limit_gradient_bits(recipe, update_terms, key)
            g = scaled_gradients[key] = convert_scale(
                p.ops, g, min(max(g.fractional_bits, update_terms.min_bits), max_bits)
            )
            if p.checks_gradients:
                p.check_magnitude(key, g, MOST_PRODUCT - optimizer.factor_bits)
    if scaled_gradients:
        if optimizer.clips_gradients:
            scaled_gradients = clipping.clip_gradients(
                p.ops, optimizer, recipe.gradient_share, scaled_gradients
            )
        decayed = _decay_weights(p, recipe, scaled_gradients)
        state_values.update(decayed)
        before = replace(p, weights={**p.weights, **decayed})
        state_values.update(optimizer.update_weights(before, update_terms, scaled_gradients))
    if p.checks_gradients:
        _check_squared_gradients(p, recipe, state_values, list(scaled_gradients))
    return _average_weights(p, recipe, state_values) if optimizer.use_ema else state_values


def _check_squared_gradients(
    p: ForwardContext, recipe: Recipe, state_values: Mapping[str, Shared], keys: Sequence[str]
) -> None:
    """Check that the slots of squares stay in their range."""
    half, slots = 1 << (adaptive.TOP - 1), recipe.optimizer.list_slots(recipe.numbers)
    for key in keys:
        for slot in slots:
            if slot.power == 2:
                square = state_values[f"{key}:{slot.name}"]
                p.check_magnitude(key, p.ops.add_public(square, 1 - half), adaptive.TOP - 1)


def _decay_weights(
    p: ForwardContext, recipe: Recipe, gradients: Mapping[str, Shared]
) -> dict[str, Shared]:
    """Apply the weight decay. 1 round, in parallel with the gradients."""
    if not recipe.optimizer.weight_decay:
        return {}
    e, decayed = _weight_decay_exponent(recipe), {}
    for key in gradients:
        if key not in recipe.optimizer.undecayed:
            w = p.weights[key]
            decayed[key] = p.ops.sub(w, _scale_weight_update(p.ops, w, p.public[_DECAY], e))
    return decayed


def _average_weights(
    p: ForwardContext, recipe: Recipe, state_values: Mapping[str, Shared]
) -> dict[str, Shared]:
    """Update the average of the weights, which may replace them. 1 round."""
    ops, new_state = p.ops, dict(state_values)
    for key in state.list_trained_keys(recipe):
        old = f"{key}:{state.AVERAGE}"
        w, average = state_values[key], state_values[old]
        step = _scale_weight_update(ops, ops.sub(w, average), p.public[_FRESH], _EMA_BITS)
        average = new_state[old] = ops.add(average, step)
        if _OVERWRITES in p.public:
            new_state[key] = ops.add(w, ops.mul_public(ops.sub(average, w), p.public[_OVERWRITES]))
    return new_state


def _scale_weight_update(ops: Operations, x: Shared, c: object, e: int) -> Shared:
    """Return c x / 2^e."""
    return ops.truncate(ops.mul_public(x, c, e), e)
