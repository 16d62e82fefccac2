"""The optimizers on shares: new weights from summed gradients.

Learning rate, batch and the loss's factor are one public integer c, so that c g / 2^drop is the
step, and dropping its bits the only truncation.  The drop is static; c is given with every step, so
that a schedule traces nothing anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.models.training import state
from tfe_bench.models.training.operations import Operations, Value
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.schedules import DIGITS

# Bits of c for SGD: the rate is exact to 2^-11 of the largest, and a gradient's mean over the batch
# may reach 2^4 with momentum (products below 2^62, velocities up to 16 times a step).
RATE_BITS = 11
MOST_DROPPED = 48
RATE, AHEAD = "rate", "ahead"


def _exponent(largest: Decimal, bits: int) -> int:
    """e with largest * 2^e in [2^(bits-1), 2^bits), exactly."""
    part = Fraction(largest)
    e = bits - (part.numerator.bit_length() - part.denominator.bit_length())
    while part * Fraction(2) ** e >= 1 << bits:
        e -= 1
    return e


def _share(recipe: Recipe) -> Fraction:
    """What a summed gradient is multiplied by besides the learning rate."""
    return recipe.loss.factor(math.prod(recipe.output_shape)) / recipe.batch


def _rounded(value: Fraction) -> int:
    """To the nearest integer."""
    return math.floor(value + Fraction(1, 2))


def _sgd_exponent(recipe: Recipe) -> int:
    with localcontext(DIGITS):
        share = _share(recipe)
        top = recipe.optimizer.schedule.largest * share.numerator / share.denominator
    if top <= 0:
        raise UsageError("A learning rate is above 0 at some step.")
    numbers = recipe.numbers
    # biases' gradients have the fewest bits, kernels' the most
    low = numbers.weight - numbers.gradient + 1
    high = MOST_DROPPED + numbers.weight - numbers.activation - numbers.gradient
    return min(max(_exponent(top, RATE_BITS), low), high)


def public_rates(recipe: Recipe, step: int) -> dict[str, int]:
    """The public integers of a step, counted from 0, by name."""
    optimizer = recipe.optimizer
    with localcontext(DIGITS):
        rate = Fraction(optimizer.rate(step, Decimal(0)))
    scaled = rate * _share(recipe) * Fraction(2) ** _sgd_exponent(recipe)
    found = {RATE: _rounded(scaled)}
    if optimizer.nesterov:
        found[AHEAD] = _rounded(scaled * (1 + Fraction(optimizer.momentum)))
    return found


def _sgd(
    ops: Operations,
    recipe: Recipe,
    held: Mapping[str, Value],
    key: str,
    g: Value,
    public: Mapping[str, Any],
) -> dict[str, Value]:
    w, optimizer = held[key], recipe.optimizer
    drop = _sgd_exponent(recipe) + g.fractional_bits - w.fractional_bits
    # scale of the products below
    more = w.fractional_bits + drop - g.fractional_bits

    def stepped(of_velocity: Fraction, rate: str) -> Value:
        down = ops.times(g, public[rate], more)
        if not optimizer.momentum:
            return ops.neg(ops.truncate(down, drop))
        # (a product of the velocity alone: mu v - c g is truncated once)
        kept = ops.times(held[f"{key}:velocity"], _rounded(of_velocity * 2**drop), drop)
        return ops.truncate(ops.sub(kept, down), drop)

    mu = Fraction(optimizer.momentum)
    new = stepped(mu, RATE)
    # w + mu (mu v - c g) - c g
    step = stepped(mu * mu, AHEAD) if optimizer.nesterov else new
    found = {key: ops.add(w, step)}
    return {**found, f"{key}:velocity": new} if optimizer.momentum else found


def update(
    ops: Operations,
    recipe: Recipe,
    held: Mapping[str, Value],
    gradients: Mapping[str, Value],
    public: Mapping[str, Any],
) -> dict[str, Value]:
    """The state after a step.

    Args:
        gradients: of the weights by key, summed over the batch, at any scale.
        public: as step.public_values gives them.

    Rounds: 1 for SGD.
    """
    found = dict(held)
    for key in state.learned(recipe):
        if key in gradients:
            found.update(_sgd(ops, recipe, held, key, gradients[key], public))
    return found
