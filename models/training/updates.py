"""From summed gradients to new weights, for every optimizer: clipping before its update, decay of
the weights beside it, and the average that follows them.

Learning rate, batch and the loss's factor are one public integer c, so that c g / 2^drop is the
step, and dropping its bits the only truncation.  The drop is static; c is given with every step, so
that a schedule traces nothing anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import localcontext
from fractions import Fraction

from tfe_bench.models.kinds.operations import Operations
from tfe_bench.models.kinds.passes import Pass, brought
from tfe_bench.models.training import clipping, state
from tfe_bench.models.training.optimizers.optimizer import BOUND_BITS, Terms, exponent, rounded
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.schedules import DIGITS
from tfe_bench.protocols.nn import adaptive
from tfe_bench.protocols.session.sharing import Shared

# The public integers of a step, beside those of the optimizer.
_DECAY, _FRESH, _OVERWRITES = "decay", "fresh", "overwrites"
# What a weight loses at the largest rate is exact to 2^-16; the average takes 2^-20 exactly.
_DECAY_BITS, _MOST_DECAY_BITS, _EMA_BITS = 16, 28, 20
# What is truncated stays below 2^62.
MOST_PRODUCT = 62


def terms(recipe: Recipe) -> Terms:
    """What the optimizer has to know of the training."""
    numbers, share = recipe.numbers, recipe.loss.share(recipe.output_shape, recipe.batch)
    least, most = numbers.gradient, numbers.activation + numbers.gradient
    if recipe.optimizer.clips:
        least = most = clipping.fraction(recipe.share)
    exponents = {key: recipe.exponents.get(key, 0) for key in state.learned(recipe)}
    return Terms(numbers, share, int(recipe.share / share), least, most, exponents)


def _most(recipe: Recipe, known: Terms, key: str) -> int:
    """Fractional bits of a summed gradient, so that its product with a public factor has room."""
    k = known.exponents[key]
    if k <= 0 or recipe.optimizer.clips:  # (clipped gradients are small)
        return known.most
    whole = BOUND_BITS + k + (recipe.batch - 1).bit_length() + recipe.optimizer.factor_bits
    return min(known.most, max(1, MOST_PRODUCT - whole))


def _decay_exponent(recipe: Recipe) -> int:
    optimizer = recipe.optimizer
    with localcontext(DIGITS):
        most = Fraction(optimizer.schedule.largest) * Fraction(optimizer.weight_decay)
    return min(max(exponent(most, _DECAY_BITS), 1), _MOST_DECAY_BITS) if most else 1


def public_rates(recipe: Recipe, step: int) -> dict[str, int]:
    """The public integers of a step, counted from 0, by name."""
    optimizer = recipe.optimizer
    found = optimizer.public(terms(recipe), step)
    if optimizer.weight_decay:
        lost = Fraction(optimizer.schedule.rate(step)) * Fraction(optimizer.weight_decay)
        found[_DECAY] = rounded(lost * 2 ** _decay_exponent(recipe))
    if optimizer.use_ema:
        # (the first average is of one step)
        momentum = Fraction(optimizer.ema_momentum) if step else Fraction(0)
        found[_FRESH] = rounded((1 - momentum) * (1 << _EMA_BITS))
        often = optimizer.ema_overwrite_frequency
        if often is not None:
            found[_OVERWRITES] = int((step + 1) % often == 0)
    return found


def update(p: Pass, recipe: Recipe, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
    """The state after a step.

    Args:
        p: the pass through the step, with the state as its weights.
        gradients: of the weights by key, summed over the batch, at any scale.

    Rounds: those of the optimizer; clipping takes 4 to 6 before it by value and 19 to 21 by norm,
    an average 1 behind it.
    """
    optimizer, known = recipe.optimizer, terms(recipe)
    found, given = dict(p.weights), {}
    for key in state.learned(recipe):
        if key in gradients:
            g = gradients[key]
            most = _most(recipe, known, key)
            g = given[key] = brought(p.ops, g, min(max(g.fractional_bits, known.least), most))
            if p.steep:
                p.inside(key, g, MOST_PRODUCT - optimizer.factor_bits)
    if given:
        if optimizer.clips:
            given = clipping.clipped(p.ops, optimizer, recipe.share, given)
        decayed = _decayed(p, recipe, given)
        found.update(decayed)
        before = replace(p, weights={**p.weights, **decayed})
        found.update(optimizer.update(before, known, given))
    if p.steep:
        _watch_squares(p, recipe, found, list(given))
    return _averaged(p, recipe, found) if optimizer.use_ema else found


def _watch_squares(
    p: Pass, recipe: Recipe, found: Mapping[str, Shared], keys: Sequence[str]
) -> None:
    """Watches whether what is remembered of squares has left its range."""
    half, slots = 1 << (adaptive.TOP - 1), recipe.optimizer.slots(recipe.numbers)
    for key in keys:
        for slot in slots:
            if slot.power == 2:
                square = found[f"{key}:{slot.name}"]
                p.inside(key, p.ops.add_public(square, 1 - half), adaptive.TOP - 1)


def _decayed(p: Pass, recipe: Recipe, given: Mapping[str, Shared]) -> dict[str, Shared]:
    """What is left of the weights that decay.  1 round, beside the gradients."""
    if not recipe.optimizer.weight_decay:
        return {}
    e, found = _decay_exponent(recipe), {}
    for key in given:
        if key not in recipe.optimizer.undecayed:
            w = p.weights[key]
            found[key] = p.ops.sub(w, _part(p.ops, w, p.public[_DECAY], e))
    return found


def _averaged(p: Pass, recipe: Recipe, found: Mapping[str, Shared]) -> dict[str, Shared]:
    """The state with the average of the weights, which may take their place.  1 round."""
    ops, made = p.ops, dict(found)
    for key in state.learned(recipe):
        old = f"{key}:{state.AVERAGE}"
        w, average = found[key], found[old]
        step = _part(ops, ops.sub(w, average), p.public[_FRESH], _EMA_BITS)
        average = made[old] = ops.add(average, step)
        if _OVERWRITES in p.public:
            made[key] = ops.add(w, ops.times(ops.sub(average, w), p.public[_OVERWRITES]))
    return made


def _part(ops: Operations, x: Shared, c: object, e: int) -> Shared:
    """c x / 2^e."""
    return ops.truncate(ops.times(x, c, e), e)
