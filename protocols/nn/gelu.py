"""GELU, x Phi(x) with Phi the normal distribution, and its slope.

Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016; the protocol is this project's.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.functions import approximation, polynomial
from tfe_bench.protocols.nn import gated
from tfe_bench.protocols.ring import arithmetic, compare, convert, logic, masked
from tfe_bench.protocols.ring.checks import check_fractional_bits_range, check_private_64bit_tensor
from tfe_bench.protocols.session import slices, slots, tensor_ops
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# 1 / sqrt(2 pi)
_PEAK = Decimal("0.39894228040143267793994605993438186847585863116493465766592582967065792589930")
_MIN_TERM = Decimal(10) ** -70


def _normal_density(a: Decimal) -> Decimal:
    return _PEAK * (-a * a / 2).exp()


def _normal_tail(a: Decimal) -> Decimal:
    """Compute Phi(-a) for a >= 0: 1/2 - phi(a) (a + a^3/3 + a^5/(3 5) + ...)."""
    total, term, n = Decimal(0), a, 1
    while term > _MIN_TERM:
        total += term
        n += 2
        term = term * a * a / n
    return Decimal(1) / 2 - _normal_density(a) * total


def _gelu_residual(a: Decimal) -> Decimal:
    """Compute max(x, 0) - gelu(x) for |x| = a."""
    return a * _normal_tail(a)


def _gelu_slope(x: Decimal) -> Decimal:
    rising = _normal_tail(-x) if x < 0 else 1 - _normal_tail(x)
    return rising + x * _normal_density(x)


@dataclass(frozen=True, eq=False)
class ActivationResidual:
    """A fit of a Phi(-a) for a < 2 step as p(min(a, step)) + q(max(a - step, 0)); 0 beyond.

    Attributes:
        step: in ring units.
        parts: p and q.
    """

    step: int
    parts: tuple[polynomial.FittedPolynomial, polynomial.FittedPolynomial]


def fit_residual(function: Callable[[Decimal], Decimal], f: int) -> ActivationResidual:
    """Fit a residual for f fractional bits, with an error below 1/8 ulp where it is not 0."""
    half_ulp, eighths = Decimal(2) ** -(f + 1), 8
    while function(Decimal(2 * eighths) / 8) > half_ulp:
        eighths += 1
    step = Decimal(eighths) / 8
    off = function(step)

    def outer_residual_part(a: Decimal) -> Decimal:
        return function(step + a) - off

    p, q = (
        polynomial.fit_polynomial(
            approximation.fit_approximation(part, Decimal(0), step, f, half_ulp / 8, False), f
        )
        for part in (function, outer_residual_part)
    )
    return ActivationResidual(eighths << (f - 3), (p, q))


@functools.cache
def residual_for_scale(f: int) -> ActivationResidual:
    """Return the residual of GELU for f fractional bits."""
    return fit_residual(_gelu_residual, f)


def gelu(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """Compute x Phi(x), the exact GELU, error below 3 ulp, for every |x| < 2^(bits-1) ring units.

    gelu(x) = max(x, 0) - h(|x|) with h(a) = a Phi(-a), which is below half an ulp from 2 S on. Five
    comparisons (with -2S, -S, 0, S, 2S) yield min(|x|, S) and max(|x| - S, 0) where |x| < 2S, and 0
    elsewhere. A polynomial of each, both exchanged together with max(x, 0), yields h.

    Args:
        exchanges: of the comparisons; None: 1 for few elements, 2 for many.

    Rounds: exchanges + 3 online, exchanges + 4 in total. Bits sent: those of five comparisons and
    of both steps.
    Raises:
        UsageError: another ring, fewer than 8 or more than 16 fractional bits.
    """
    return minus_residual(party, "gelu", x, residual_for_scale, bits, exchanges)


@slices.slice_elementwise
def minus_residual(
    party: Party,
    name: str,
    x: Shared,
    residual_of: Callable[[int], ActivationResidual],
    bits: int,
    exchanges: int | None,
) -> Shared:
    """Compute max(x, 0) minus a residual of |x|, which depends on the fractional bits.

    Rounds, bits and errors: as `gelu`.
    """
    check_fractional_bits_range(
        name, check_private_64bit_tensor(name, x, known=True), gated.MIN_BITS, gated.MAX_BITS
    )
    f = x.fractional_bits
    shape, residual = x.shape.as_list(), residual_of(f)
    flat = x.map(lambda a: tensor_ops.reshape(a, [-1]))
    n = int(flat.shape[0])
    width = compare.comparison_bits_with_constant(bits, 2 * residual.step)
    knots = np.array([[k * residual.step] for k in (-2, -1, 0, 1, 2)], np.int64)
    shifted = replace(
        flat.map(lambda a: tensor_ops.tile(a[None], [5, 1])),
        m=None if flat.m is None else flat.m[None] - knots,
    )
    below = convert.mask_bits(
        party, compare.msb(party, shifted, width, compare.default_exchanges(n, width, exchanges))
    )
    is_below = [
        logic.rearrange_private_bits(below, (5, n), operator.itemgetter(i), n) for i in range(5)
    ]
    first, second = _activation_residual_arguments(party, residual, is_below, flat)
    terms = [(part.plan, [a]) for part, a in zip(residual.parts, (first, second), strict=True)]
    y = gated.relu_minus_terms(party, "gelu", is_below[2], flat, terms)
    return y.map(lambda a: tensor_ops.reshape(a, shape))


def _activation_residual_arguments(
    party: Party, residual: ActivationResidual, is_below: list[MaskedBits], x: Shared
) -> tuple[Shared, Shared]:
    """Return min(|x|, S) and max(|x| - S, 0) where |x| < 2S, else 0; both shifted by their centers.

    Rounds: 1 online, 2 in total. Bits sent: D 576, E1, E2 128 per element each.
    """
    # [-2S, -S), [-S, 0), [0, S), [S, 2S)
    far_left, left, right, far_right = (
        logic.xor_bits(a, b) for a, b in itertools.pairwise(is_below)
    )
    if isinstance(party, CostParty):
        n = x.shape.num_elements()
        arguments = party.count_exchange([2, n], 576 * n, *is_below, x, scale=x.fractional_bits)
        return arguments.map(operator.itemgetter(0)), arguments.map(operator.itemgetter(1))
    injection = convert.list_injection_slots()
    s = party.site(
        "gelu_parts",
        residual.step,
        dealer=x.dealer,
        slots={
            **dict.fromkeys(range(4), injection[0]),
            4: slots.declare_dealt(),
            5: slots.declare_exchanged(),
        },
    )
    shape = tensor_ops.dynamic_shape(x.any)
    dealt = [
        convert.inject_shares(s, bits, x, 2 * i, i)
        for i, bits in enumerate((right, left, far_right, far_left))
    ]
    is_far = convert.b2a_shares(s, logic.xor_bits(far_left, far_right), shape, 8, 4)
    share = None
    if not s.is_dealer:
        a, b, c, d = dealt
        edge = is_far * residual.step
        share = tf.stack([a - b + edge, c - d - edge])
    arguments = masked.exchange_masked(
        s, share, tf.concat([[2], shape], 0), 9, 5, scale=x.fractional_bits
    )
    arguments = arithmetic.add_constant(
        arguments, np.array([[-part.center] for part in residual.parts], np.int64)
    )
    first, second = (arguments.map(operator.itemgetter(i)) for i in range(2))
    return first, second


# ---- the slope, for gradients


slope = gated.Slope("gelu_slope", _gelu_slope, 5)
