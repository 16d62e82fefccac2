"""Sigmoid, tanh and softmax, accurate over the whole range of layer values (|v| < 2^14 at f = 16).

All of them use the one-round exponential of a non-positive argument, where it is most exact, and a
one-round polynomial.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import (
    approximation,
    exponential,
    logarithm,
    normalize,
    polynomial,
    power,
    reciprocal,
    small_product,
)
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import (
    arithmetic,
    checks,
    compare,
    convert,
    logic,
    masked,
    truncation,
)
from tfe_bench.protocols.ring.checks import check_fractional_bits_range, check_private_64bit_tensor
from tfe_bench.protocols.session import slices, slots, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

# Fractional bits of exponentials in intermediate steps, so that their rounding does not affect
# results.
INNER_BITS = 24
# Beyond this margin sigmoid is 0 or 1 to within half an ulp, and the softmax of a class is
# negligible.
_MARGIN = 1.5


def _exponential_cutoff_units(f: int, classes: int = 1) -> int:
    """Return the argument (ring units at f) from which e^-x of all classes counts as 0."""
    return math.ceil((f + _MARGIN + (classes - 1).bit_length()) * math.log(2)) << f


def saturation_units(f: int) -> int:
    """Return the argument (ring units) compared by sigmoid: beyond it e^-|x| counts as 0."""
    return _exponential_cutoff_units(f) + (1 << f)


def _check_activation_input(name: str, x: Any) -> int:
    check_fractional_bits_range(name, check_private_64bit_tensor(name, x, known=True), 8, 20)
    return int(x.fractional_bits)


# ---- sigmoid


def _sigmoid_tail(t: Decimal) -> Decimal:
    return t / (1 + t)


@functools.cache
def _fit_sigmoid_tail(f: int) -> polynomial.FittedPolynomial:
    """Fit t / (1 + t) on [0, 1] for t with INNER_BITS, in a small ring."""
    polynomial_fit = approximation.fit_approximation(
        _sigmoid_tail, Decimal(0), Decimal(1), INNER_BITS, Decimal(2) ** -(f + 3), False
    )
    # The value is at most 1/2 plus a rounding error; one bit holds the sign.
    return polynomial.fit_polynomial(
        polynomial_fit, f, bits=polynomial_fit.limit.bit_length() + 2, out_bits=f + 2
    )


def sigmoid(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """Compute 1 / (1 + e^-x), error below 2 ulp, for every |x| < 2^(bits-1) ring units.

    With t = e^-|x| it is 1 - t / (1 + t) for x >= 0 and t / (1 + t) for x < 0: three comparisons
    (with 0 and with the bounds beyond which it is 0 or 1) select the case.

    Args:
        exchanges: of the comparisons; None: 1 for few elements, 2 for many.

    Rounds: exchanges + 5 online, exchanges + 6 in total.
    """
    f = _check_activation_input("sigmoid", x)
    return _scaled_logistic(party, x, f, f, bits, exchanges)


def tanh(
    party: Party, x: Shared, bits: int = compare.LAYER_BITS, exchanges: int | None = None
) -> Shared:
    """Compute tanh(x) = 2 sigmoid(2x) - 1, error below 2 ulp, for |x| < 2^(bits-1) ring units.

    Rounds and bits: as `sigmoid` with one fractional bit more.
    """
    f = _check_activation_input("tanh", x)
    # Twice the value is the same ring element with one fractional bit less.
    doubled = replace(x, fractional_bits=f - 1)
    y = _scaled_logistic(party, doubled, f - 1, f + 1, bits, exchanges)
    doubled_sigmoid = replace(y, fractional_bits=f)  # 2 sigmoid
    return arithmetic.add_public(doubled_sigmoid, np.int64(-(1 << f)))


@dataclass(frozen=True)
class SigmoidParts:
    """The components of sigmoid: t / (1 + t), t = e^-|x|, and the bits that select it.

    Attributes:
        left, right: [-T <= x < 0] and [0 <= x < T], where sigmoid is 0 or 1 beyond T.
        negative: [x < 0].
        magnitude: |x| in (-T, T), else 0.
        tail: t / (1 + t) of the magnitude, in a ring of two bits more than its fractional ones.
    """

    left: MaskedBits
    right: MaskedBits
    negative: MaskedBits
    magnitude: Shared
    tail: Shared


def sigmoid_parts(
    party: Party, x: Shared, f_out: int, bits: int, exchanges: int | None = None
) -> SigmoidParts:
    """Compute the components of sigmoid for |x| < 2^(bits-1) ring units.

    Args:
        x: of one axis.
        f_out: fractional bits of the tail, up to 21.

    Rounds: exchanges + 4 online, exchanges + 5 in total.
    """
    n, f = x.shape.num_elements(), x.fractional_bits
    knot = saturation_units(f)
    # [x < -T], [x < 0], [x < T]
    shifts = np.array([[knot], [0], [-knot]], np.int64)
    shifted = replace(
        x.map(lambda a: tensor_ops.tile(a[None], [3, 1])),
        m=None if x.m is None else x.m[None] + shifts,
    )
    width = compare.comparison_bits_with_constant(bits, knot)
    count = compare.default_exchanges(n, width, exchanges)
    nested_bits = convert.mask_bits(party, compare.msb(party, shifted, width, count))
    is_below_range, negative, is_below_end = (
        logic.rearrange_private_bits(nested_bits, (3, n), operator.itemgetter(i), n)
        for i in range(3)
    )
    left, right = logic.xor_bits(is_below_range, negative), logic.xor_bits(negative, is_below_end)
    # Outside (-T, T) the magnitude is 0, so the exponential never leaves its range.
    magnitude = _select_activation_magnitude(party, left, right, x, f)
    t = exp_nonpositive(party, arithmetic.neg(magnitude))
    tail = _fit_sigmoid_tail(f_out).evaluate(party, "sigmoid_tail", t)
    return SigmoidParts(left, right, negative, magnitude, tail)


@slices.slice_elementwise
def _scaled_logistic(
    party: Party, x: Shared, f: int, f_out: int, bits: int, exchanges: int | None
) -> Shared:
    shape = x.shape.as_list()
    sigmoid_halves = sigmoid_parts(
        party, x.map(lambda a: tensor_ops.reshape(a, [-1])), f_out, bits, exchanges
    )
    result = _combine_sigmoid_halves(
        party,
        sigmoid_halves.left,
        sigmoid_halves.right,
        sigmoid_halves.negative,
        sigmoid_halves.tail,
        f,
    )
    return result.map(lambda v: tensor_ops.reshape(v, shape))


def _select_activation_magnitude(
    party: Party, left: MaskedBits, right: MaskedBits, x: Shared, f: int
) -> Shared:
    """Return right x - left x.

    Rounds: 1 online, 2 in total. Bits sent: D 256, E1, E2 64 per element each.
    """
    injection = convert.list_injection_slots()
    s = party.site(
        "magnitude",
        f,
        dealer=x.dealer,
        slots={0: injection[0], 1: injection[0], 2: slots.declare_exchanged()},
    )
    a, b = convert.inject_shares(s, right, x, 0, 0), convert.inject_shares(s, left, x, 2, 1)
    share = None if s.is_dealer else a - b
    return masked.exchange_masked(s, share, tensor_ops.dynamic_shape(x.any), 4, 2, scale=f)


def _combine_sigmoid_halves(
    party: Party, left: MaskedBits, right: MaskedBits, negative: MaskedBits, h: Shared, f: int
) -> Shared:
    """Return (1 - negative) + left h - right h over Z_2^64, for h of a small ring, in one exchange.

    Rounds: 1 online, 2 in total. Bits sent: D those of two injections and 64, E1, E2 64 per element
    each.
    """
    f_out = h.fractional_bits
    injection = convert.list_injection_slots(ring_bits=h.ring_bits)
    s = party.site(
        "sigmoid",
        f,
        dealer=h.dealer,
        slots={
            0: injection[0],
            1: injection[0],
            2: slots.declare_dealt(),
            3: slots.declare_exchanged(),
        },
    )
    shape = tensor_ops.dynamic_shape(h.any)
    a = convert.inject_shares(s, left, h, 0, 0, extend_ring=True)
    b = convert.inject_shares(s, right, h, 5, 1, extend_ring=True)
    c = convert.b2a_shares(s, logic.invert_bits(negative), shape, 10, 2)
    share = None if s.is_dealer else a - b + c * (1 << f_out)
    return masked.exchange_masked(s, share, shape, 11, 3, scale=f_out)


def exp_nonpositive(party: Party, x: Shared, f: int = INNER_BITS) -> Shared:
    """Compute e^x for -107 < x <= 0, with f fractional bits, at least those of x.

    Rounds and bits: those of exponential.exp.
    """
    return exponential.exp(party, _raise_activation_scale(x, f), softmax=True)


def _raise_activation_scale(x: Shared, f: int = INNER_BITS) -> Shared:
    """Return the same value with f fractional bits. Local."""
    extra_bits = f - x.fractional_bits
    return replace(x.map(lambda a: tensor_ops.left_shift(a, extra_bits)), fractional_bits=f)


# ---- softmax

# Largest number of classes: the sum of their exponentials must fit.
MAX_CLASSES = 1 << 16
_SOFTMAX_PRECISION = 19


@functools.cache
def _plan_softmax_denominator(classes: int) -> power.PowerPlan:
    """Plan 1 / S for 1 <= S <= classes with INNER_BITS fractional bits."""
    top = INNER_BITS + classes.bit_length()
    return reciprocal.plan_reciprocal(INNER_BITS, INNER_BITS, top, _SOFTMAX_PRECISION)


def softmax(
    party: Party,
    x: Shared,
    axis: int = -1,
    *,
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = None,
    profile: str = "local",
) -> Shared:
    """Compute e^x_i / sum_j e^x_j along an axis, error below 2 ulp.

    Stable for all logits |x| < 2^(bits-1) ring units: the largest is subtracted first, and values
    so low that all of them together add less than an ulp to the sum count as 0.

    Rounds: 12 for up to 10 classes compared all at once with exchanges 1.
    Raises:
        UsageError: the axis is invalid, or there are no or more than 65536 classes.
    """
    f = _check_activation_input("softmax", x)

    def softmax_columns(party: Party, x: Shared, classes: int) -> Shared:
        _, e, total = _softmax_exponentials(party, x, f, classes, bits, exchanges, profile)
        p = _plan_softmax_denominator(classes)
        c, u = normalize.normalize_to_mantissa(
            party, total, p.scheme, p.mantissa.center, p.factor.table
        )
        mantissa = p.mantissa
        g = polynomial.evaluate_polynomial(
            party, "softmax_mantissa", mantissa.plan, [c], mantissa.fractional
        )
        pair = ((g, mantissa.bits), (u, p.factor.table.bits + 1))
        factors = [(_repeat_classes(factor, classes), width) for factor, width in pair]
        y = small_product.multiply_small(
            party, [*factors, (e, INNER_BITS + 3)], _dropped_bits(p, f)
        )
        return replace(y, fractional_bits=f)

    return _apply_softmax_along_axis(party, "softmax", x, axis, 1 << f, softmax_columns)


def log_softmax(
    party: Party,
    x: Shared,
    axis: int = -1,
    *,
    bits: int = compare.LAYER_BITS,
    exchanges: int | None = None,
    profile: str = "local",
) -> Shared:
    """Compute x_i - log sum_j e^x_j along an axis, error below 2 ulp and 2^-19.

    Arguments and errors: as `softmax`.
    Rounds: those of the maximum, exchanges + 3, and 9.
    """
    f = _check_activation_input("log_softmax", x)

    def log_softmax_columns(party: Party, x: Shared, classes: int) -> Shared:
        shifted, _, total = _softmax_exponentials(party, x, f, classes, bits, exchanges, profile)
        log = logarithm.log(party, total, INNER_BITS + classes.bit_length())
        log = truncation.truncate(party, log, INNER_BITS - f)
        return arithmetic.sub(shifted, log.map(lambda a: tensor_ops.strided_slice(a, None)))

    return _apply_softmax_along_axis(party, "log_softmax", x, axis, 0, log_softmax_columns)


def _apply_softmax_along_axis(
    party: Party,
    name: str,
    x: Shared,
    axis: int,
    single_value: int,
    function: Callable[[Party, Shared, int], Shared],
) -> Shared:
    """Apply a function of columns [classes, rows] along an axis; along the last one in slices.

    Args:
        single_value: its value for one class, in ring units.
    """
    shape = x.shape.as_list()
    axis = checks.normalize_axis(name, axis, len(shape))
    classes = shape[axis]
    if not 1 <= classes <= MAX_CLASSES:
        raise UsageError(
            f"{name} expects 1 to {MAX_CLASSES} classes. Received: {classes}.",
            code="number-out-of-range",
            operation=name,
            received=classes,
            expected=f"1 to {MAX_CLASSES}",
        )
    if classes == 1 or 0 in shape:
        return arithmetic.add_public(x.map(lambda a: 0 * a), np.int64(single_value))

    def apply_along_axis(party: Party, x: Shared) -> Shared:
        shape = x.shape.as_list()  # (of a slice: [rows, classes])
        axis_of_x = min(axis, len(shape) - 1)
        order = [axis_of_x, *(i for i in range(len(shape)) if i != axis_of_x)]
        inverse_order = [order.index(i) for i in range(len(shape))]
        moved_shape = [shape[i] for i in order]
        columns = x.map(lambda a: tensor_ops.reshape(tensor_ops.transpose(a, order), [classes, -1]))
        y = function(party, columns, classes)
        return y.map(
            lambda a: tensor_ops.transpose(tensor_ops.reshape(a, moved_shape), inverse_order)
        )

    if axis < len(shape) - 1:
        return apply_along_axis(party, x)
    return slices.map_slices(party, apply_along_axis, [x], row_axes=1)


def _softmax_exponentials(
    party: Party,
    x: Shared,
    f: int,
    classes: int,
    bits: int,
    exchanges: int | None,
    profile: str,
) -> tuple[Shared, Shared, Shared]:
    """Return x minus the largest of its column, e^ of it, and the sum of these with INNER_BITS."""
    rows = int(x.shape[1])
    cutoff = _exponential_cutoff_units(f, classes)
    width = compare.comparison_bits_with_constant(bits + 1, cutoff)
    count = compare.default_exchanges(rows * classes, width, exchanges)
    if extremes.choose_extreme_method("auto", rows, classes, profile, bits + 1) == "all-pairs":
        hot = extremes.argmax_bits(party, x, bits + 1, count)
        largest = extremes.sum_one_hot_selected(party, hot, x)
    else:
        largest = extremes.reduce_max(party, x, 0, bits=bits + 1, method="tree", exchanges=count)
    shifted = arithmetic.sub(x, largest.map(lambda a: tensor_ops.strided_slice(a, None)))
    raised = arithmetic.add_public(shifted, np.int64(cutoff))
    is_negligible = convert.mask_bits(party, compare.msb(party, raised, width, count))
    e = convert.inject(party, is_negligible, exp_nonpositive(party, shifted), negated=True)
    return shifted, e, e.map(lambda a: tensor_ops.reduce_sum(a, axis=0))


def _repeat_classes(x: Shared, classes: int) -> Shared:
    """Repeat a value for each class."""
    return x.map(lambda v: tensor_ops.tile(v[None], [classes, 1]))


def _dropped_bits(p: power.PowerPlan, f: int) -> int:
    return p.dropped_mantissa_bits + 2 * INNER_BITS - f
