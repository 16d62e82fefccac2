"""Gradient clipping: elements or norms are limited to a public bound.

A norm is never revealed. With u = sum g^2 / c^2 the gradient is multiplied by 1 / sqrt(max(u, 1)) =
min(1, c / |g|): one private reciprocal root for each norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from tfe_bench.models.layers.base import Operations, convert_scale, reshape_value
from tfe_bench.models.training.optimizers import moments
from tfe_bench.models.training.optimizers.optimizer import (
    CLIPPED_BITS,
    CLIPPED_RANGE,
    Optimizer,
    choose_factor_exponent,
    round_half_up,
)
from tfe_bench.protocols.functions import roots
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring.products import BilinearShareProduct, sum_matrix_products
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of u and of the factor.
_UNIT_BITS = 20
# Bits of 1 / c.
_BOUND_BITS = 14
# A sum of squares stays below 2^62 in ring units.
_MOST_SUM = 62


def choose_clipped_gradient_bits(stepped: Fraction) -> int:
    """Choose the fractional bits of summed gradients whose mean has CLIPPED_BITS.

    Args:
        stepped: the factor from the sum to the mean.
    """
    return max(1, choose_factor_exponent(1 / stepped, CLIPPED_BITS + 1))


def clip_gradients(
    ops: Operations, optimizer: Optimizer, stepped: Fraction, gradients: Mapping[str, Shared]
) -> dict[str, Shared]:
    """Clip summed gradients so that their means keep the optimizer's bound.

    Args:
        stepped: the factor from a sum to its mean.
        gradients: with `choose_fractional_bits(stepped)` fractional bits; means and their norm are
            below 2^CLIPPED_RANGE.

    Off by 2^-11 of the bound at most, and 2^-22 of a mean.
    Rounds: 4 to 6 by value, 19 to 21 by norm; twice these by norms of less than 1/32, or of large
    arrays.
    """
    keys, xs = list(gradients), list(gradients.values())
    if optimizer.clipvalue is not None:
        row = _clip_gradient_by_value(
            ops, moments.flatten_weight_arrays(ops, xs), Fraction(optimizer.clipvalue), stepped
        )
    else:
        bound = optimizer.clipnorm or optimizer.global_clipnorm
        assert bound is not None
        groups = [moments.flatten_weight_arrays(ops, [x]) for x in xs]
        groups = groups if optimizer.clipnorm else [moments.flatten_weight_arrays(ops, groups)]
        for c in _plan_clipping_bounds(Fraction(bound), _squared_gradient_bits(ops, groups)):
            groups = _clip_gradient_by_norm(ops, groups, stepped / c)
        row = moments.flatten_weight_arrays(ops, groups)
    clipped_gradients = moments.split_weight_row(ops, row, [ops.get_shape(x) for x in xs])
    return dict(zip(keys, clipped_gradients, strict=True))


def _clip_gradient_by_value(
    ops: Operations, g: Shared, bound: Fraction, stepped: Fraction
) -> Shared:
    """Return g - max(g - c, 0) + max(-c - g, 0), with one comparison of both."""
    n, unit = math.prod(ops.get_shape(g)), (1 << g.fractional_bits) / stepped
    c = round_half_up(bound * unit)
    sides = [ops.add_public(x, -c) for x in (g, ops.neg(g))]
    wide = math.ceil(unit).bit_length() + CLIPPED_RANGE + 2
    over = _rectify_gradient(ops, ops.concat(sides, 0), wide)
    above, below = moments.split_weight_row(ops, over, [(n,), (n,)])
    return ops.add(ops.sub(g, above), below)


def _squared_gradient_bits(ops: Operations, groups: Sequence[Shared]) -> int:
    """Choose the fractional bits of g / c.

    Rounding adds n / 4 units to a sum of squares, 2^-18 at most.
    """
    largest_count = max(math.prod(ops.get_shape(g)) for g in groups)
    return max(14, 9 + largest_count.bit_length() // 2)


def _plan_clipping_bounds(bound: Fraction, bits: int) -> list[Fraction]:
    """Plan the norms to clip to in sequence, the largest first.

    A sum of squares of g / c holds norms below 2^(31 - bits) c. If a bound is so small that larger
    norms occur, gradients are first clipped to a nearby larger bound: its rounding is the same for
    all elements.
    """
    bounds, room = [bound], _MOST_SUM // 2 - bits
    while bounds[0] * Fraction(2) ** room < 1 << CLIPPED_RANGE:
        bounds.insert(0, bounds[0] * Fraction(2) ** (room - 1))
    return bounds


def _clip_gradient_by_norm(
    ops: Operations, groups: Sequence[Shared], share: Fraction
) -> list[Shared]:
    """Return each group, a row, times min(1, c / |g|).

    Args:
        share: the factor from a sum to its mean over c.
    """
    sizes = [math.prod(ops.get_shape(g)) for g in groups]
    bits = _squared_gradient_bits(ops, groups)
    e = choose_factor_exponent(share, _BOUND_BITS)
    units = convert_scale(
        ops,
        ops.mul_public(
            moments.flatten_weight_arrays(ops, groups), round_half_up(share * Fraction(2) ** e), e
        ),
        bits,
    )
    sums = []
    for x, n in zip(
        moments.split_weight_row(ops, units, [(n,) for n in sizes]), sizes, strict=True
    ):
        square = BilinearShareProduct(
            reshape_value(ops, x, (1, n)), reshape_value(ops, x, (n, 1)), sum_matrix_products
        )
        sums.append(reshape_value(ops, ops.sum_products([square]), (1,)))
    u = ops.truncate(moments.flatten_weight_arrays(ops, sums), 2 * bits - _UNIT_BITS)
    wide = _MOST_SUM - 2 * bits + _UNIT_BITS
    over = _rectify_gradient(ops, ops.add_public(u, -(1 << _UNIT_BITS)), wide + 2)
    factor = ops.run_protocol(roots.rsqrt, ops.add_public(over, 1 << _UNIT_BITS), wide + 1)
    factors = moments.split_weight_row(ops, factor, [(1,)] * len(groups))
    products = [ops.mul(g, f) for g, f in zip(groups, factors, strict=True)]
    row = ops.truncate(moments.flatten_weight_arrays(ops, products), _UNIT_BITS)
    return list(moments.split_weight_row(ops, row, [ops.get_shape(g) for g in groups]))


def _rectify_gradient(ops: Operations, x: Shared, bits: int) -> Shared:
    """Return max(x, 0)."""
    exchanges = ops.setting.choose_exchanges(math.prod(ops.get_shape(x)), bits)
    return ops.run_protocol(relu.relu, x, bits, exchanges)
