"""The optimizers on shares: new weights from summed gradients.

Learning rate, batch and the loss's factor are one public integer c, so that c g / 2^drop is the
step, and dropping its bits the only truncation.  The drop is static; c is given with every step, so
that a schedule traces nothing anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

from tfe_bench.errors import UsageError
from tfe_bench.models.kinds.layer import Shape
from tfe_bench.models.kinds.operations import Operations
from tfe_bench.models.kinds.passes import Pass, brought, reshaped
from tfe_bench.models.training import state
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.schedules import DIGITS
from tfe_bench.protocols.nn import adaptive
from tfe_bench.protocols.ring import relational, shapes
from tfe_bench.protocols.session.sharing import Shared

# Bits of c for SGD: the rate is exact to 2^-11 of the largest, and a gradient's mean over the batch
# may reach 2^4 with momentum (products below 2^62, velocities up to 16 times a step).
RATE_BITS = 11
MOST_DROPPED = 48
RATE, AHEAD = "rate", "ahead"
# Adam: fractional bits of a mean gradient, below 4 in magnitude, so that its square takes twice as
# many and, times what the mean of squares takes of it, stays below 2^62.
MEAN_BITS = 22
SQUARE_RANGE = 5
SQUARE_DECAY_BITS, MEAN_DECAY_BITS = 12, 16
# The rate is exact to 2^-16 of the largest, and updates may reach 2^7.
DIRECTION_RATE_BITS = 16


def _exponent(largest: Decimal, bits: int) -> int:
    """e with largest * 2^e in [2^(bits-1), 2^bits), exactly."""
    part = Fraction(largest)
    e = bits - (part.numerator.bit_length() - part.denominator.bit_length())
    while part * Fraction(2) ** e >= 1 << bits:
        e -= 1
    return e


def _share(recipe: Recipe) -> Fraction:
    """What a summed gradient is multiplied by besides the learning rate.

    What else Recipe.share has is left to the rate (samples' weights have a common factor), so that
    gradients stay in their range; an update is the same at any scale.
    """
    return recipe.loss.share(recipe.output_shape, recipe.batch)


def _rounded(value: Fraction) -> int:
    """To the nearest integer."""
    return math.floor(value + Fraction(1, 2))


def _sgd_exponent(recipe: Recipe) -> int:
    with localcontext(DIGITS):
        share = recipe.share
        top = recipe.optimizer.schedule.largest * share.numerator / share.denominator
    if top <= 0:
        raise UsageError("A learning rate is above 0 at some step.")
    numbers = recipe.numbers
    # biases' gradients have the fewest bits, kernels' the most
    low = numbers.weight - numbers.gradient + 1
    high = MOST_DROPPED + numbers.weight - numbers.activation - numbers.gradient
    return min(max(_exponent(top, RATE_BITS), low), high)


# ---- Adam's numbers


def _decay(beta: float, most: int) -> tuple[int, int]:
    """(C, s): 1 - beta as C / 2^s with C < 2^most and s <= 20."""
    part = Fraction(1) - Fraction(beta)
    s = min(20, _exponent(Decimal(1 - Decimal(beta)), most))
    return max(1, _rounded(part * 2**s)), s


def squares_decay(recipe: Recipe) -> tuple[int, int]:
    """(C, s): what the mean of squares takes of a new one is C / 2^s, which is 1 - beta_2."""
    return _decay(recipe.optimizer.beta_2, SQUARE_DECAY_BITS)


def _beta_2(recipe: Recipe) -> Decimal:
    """As fixed point has it: the correction of the mean is then exact."""
    part, s = squares_decay(recipe)
    with localcontext(DIGITS):
        return 1 - Decimal(part) / (1 << s)


def _update_exponent(recipe: Recipe) -> int:
    with localcontext(DIGITS):
        top = recipe.optimizer.largest(_beta_2(recipe))
    if top <= 0:
        raise UsageError("A learning rate is above 0 at some step.")
    more = state.MOMENT_BITS + adaptive.RESULT_BITS - recipe.numbers.weight
    return min(max(_exponent(top, DIRECTION_RATE_BITS), 1), MOST_DROPPED - more)


def public_rates(recipe: Recipe, step: int) -> dict[str, int]:
    """The public integers of a step, counted from 0, by name."""
    optimizer = recipe.optimizer
    if optimizer.adaptive:
        with localcontext(DIGITS):
            rate = Fraction(optimizer.rate(step, _beta_2(recipe)))
        return {RATE: _rounded(rate * Fraction(2) ** _update_exponent(recipe))}
    with localcontext(DIGITS):
        rate = Fraction(optimizer.rate(step, Decimal(0)))
    scaled = rate * recipe.share * Fraction(2) ** _sgd_exponent(recipe)
    found = {RATE: _rounded(scaled)}
    if optimizer.nesterov:
        found[AHEAD] = _rounded(scaled * (1 + Fraction(optimizer.momentum)))
    return found


# ---- steps


def _mean(ops: Operations, recipe: Recipe, g: Shared) -> Shared:
    """The mean gradient of a summed one, with MEAN_BITS fractional bits."""
    share = _share(recipe)
    whole = share.numerator == 1 and share.denominator.bit_count() == 1
    e = share.denominator.bit_length() - 1 if whole else _exponent(_decimal(share), 10)
    return brought(ops, ops.times(g, _rounded(share * Fraction(2) ** e), e), MEAN_BITS)


def _decimal(value: Fraction) -> Decimal:
    with localcontext(DIGITS):
        return Decimal(value.numerator) / value.denominator


def _flat(ops: Operations, xs: Sequence[Shared]) -> Shared:
    """All elements in one row."""
    rows = [reshaped(ops, x, (math.prod(ops.shape(x)),)) for x in xs]
    return rows[0] if len(rows) == 1 else ops.concat(rows, 0)


def _parts(ops: Operations, x: Shared, wanted: Sequence[Shape]) -> list[Shared]:
    """`_flat` undone."""
    found, start = [], 0
    for shape in wanted:
        size = math.prod(shape)

        def part(v: Shared, start: int = start, size: int = size, shape: Shape = shape) -> Shared:
            return shapes.reshape(shapes.slice(v, [start], [size]), shape)

        found.append(ops.map(part, x, shape))
        start += size
    return found


def _adaptive(p: Pass, recipe: Recipe, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
    """Adam and AMSGrad, for all weights in one row."""
    ops, held, optimizer = p.ops, p.weights, recipe.optimizer
    keys = sorted(gradients, key=lambda key: gradients[key].fractional_bits)
    own_shapes = [ops.shape(gradients[key]) for key in keys]
    scales = sorted({gradients[key].fractional_bits for key in keys})
    means = []
    for scale in scales:
        some = [gradients[key] for key in keys if gradients[key].fractional_bits == scale]
        means.append(_mean(ops, recipe, _flat(ops, some)))
    g = _flat(ops, means)
    w, m, v = (_flat(ops, [held[key + slot] for key in keys]) for slot in ("", ":m", ":v"))
    part, s = _decay(optimizer.beta_1, MEAN_DECAY_BITS)
    fresh = ops.sub(ops.shifted(g, m.fractional_bits), m)
    m = ops.add(m, ops.truncate(ops.times(fresh, part, s), s))
    part, s = squares_decay(recipe)
    square = ops.mul(g, g)
    fresh = ops.times(ops.sub(square, ops.shifted(v, square.fractional_bits)), part, s)
    v = ops.add(v, ops.truncate(fresh, fresh.fractional_bits - v.fractional_bits))
    slots, root = {":m": m, ":v": v}, v
    if optimizer.name == "amsgrad":
        old = _flat(ops, [held[f"{key}:v_hat"] for key in keys])
        bits = state.SQUARE_BITS + SQUARE_RANGE  # of |old - v|, in ring units
        exchanges = ops.setting.exchanges(math.prod(ops.shape(old)), bits)
        root = slots[":v_hat"] = ops.call(relational.maximum, old, v, bits, exchanges)
    epsilon = _rounded(Fraction(optimizer.epsilon) ** 2 * 2**state.SQUARE_BITS)
    if epsilon:
        root = ops.add_public(root, epsilon)
    turn = ops.call(adaptive.update, m, root, profile=ops.setting.update_profile)
    e = _update_exponent(recipe)
    drop = e + turn.fractional_bits - w.fractional_bits
    w = ops.sub(w, ops.truncate(ops.times(turn, p.public[RATE], e), drop))
    found = {}
    for slot, value in {"": w, **slots}.items():
        for key, one in zip(keys, _parts(ops, value, own_shapes), strict=True):
            found[key + slot] = one
    return found


def _sgd(p: Pass, recipe: Recipe, key: str, g: Shared) -> dict[str, Shared]:
    ops, w, optimizer = p.ops, p.weights[key], recipe.optimizer
    drop = _sgd_exponent(recipe) + g.fractional_bits - w.fractional_bits
    # scale of the products below
    more = w.fractional_bits + drop - g.fractional_bits

    def stepped(of_velocity: Fraction, rate: str) -> Shared:
        down = ops.times(g, p.public[rate], more)
        if not optimizer.momentum:
            return ops.neg(ops.truncate(down, drop))
        # (a product of the velocity alone: mu v - c g is truncated once)
        kept = ops.times(p.weights[f"{key}:velocity"], _rounded(of_velocity * 2**drop), drop)
        return ops.truncate(ops.sub(kept, down), drop)

    mu = Fraction(optimizer.momentum)
    new = stepped(mu, RATE)
    # w + mu (mu v - c g) - c g
    step = stepped(mu * mu, AHEAD) if optimizer.nesterov else new
    found = {key: ops.add(w, step)}
    return {**found, f"{key}:velocity": new} if optimizer.momentum else found


def update(p: Pass, recipe: Recipe, gradients: Mapping[str, Shared]) -> dict[str, Shared]:
    """The state after a step.

    Args:
        p: the pass through the step, with the state as its weights.
        gradients: of the weights by key, summed over the batch, at any scale.

    Rounds: 1 for SGD; for Adam 4 and those of the update, for AMSGrad those of a maximum more.
    """
    found, given = dict(p.weights), {}
    for key in state.learned(recipe):
        if key in gradients:
            g = gradients[key]
            least = recipe.numbers.gradient
            bits = min(max(g.fractional_bits, least), recipe.numbers.activation + least)
            given[key] = brought(p.ops, g, bits)
    if recipe.optimizer.adaptive:
        return {**found, **_adaptive(p, recipe, given)} if given else found
    for key, g in given.items():
        found.update(_sgd(p, recipe, key, g))
    return found
