"""Softmax for the gradient of the cross-entropy: few rounds rather than full precision.

Training requires p - y to about 2^-12, so every step is as coarse as that permits:

* Comparisons are of the logits with COARSE fractional bits, truncated without a message. The
  maximum found this way is the largest within 3/16, which suffices: softmax does not change when a
  constant is subtracted. The same comparisons, shifted by T, find values so far below another value
  that they count as 0; the exponential is multiplied by that bit in its own round (exp_select.py).
* 1 / S is a polynomial y0 of a coarse S, right to 7%, and three terms of the series of 1 / (1 -
  eps) with eps = 1 - S y0, which is computed exactly in the same round as e_i y0: p_i = e_i y0 (1 +
  eps + eps^2 + eps^3), error eps^4.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.functions import (
    approximation,
    exp_select,
    logarithm,
    normalize,
    polynomial,
)
from tfe_bench.protocols.nn import activations, relu
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import (
    arithmetic,
    backward,
    checks,
    compare,
    convert,
    logic,
    masked,
    shapes,
    truncation,
)
from tfe_bench.protocols.ring.products import BilinearShareProduct, exchange_sum
from tfe_bench.protocols.session import slots, tensor_ops
from tfe_bench.protocols.session.counting import CostParty
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

RESULT_BITS = 20  # fractional bits of the probabilities
LOGIT_BITS = range(16, 41)  # fractional bits of the logits
# Up to this number of classes every pair is compared; above it activations.softmax is used.
MAX_PAIRED = 16
COARSE = 4  # fractional bits of compared logits
CUTOFF = 32  # a class this far below another one counts as 0
INNER = activations.INNER_BITS
# Fractional bits of S for y0, of y0, of e_i y0 and S y0, and of eps in the last polynomial.
_SUM, _INVERSE, _PRODUCT, _EPS = 12, 14, 20, 16
_RELATIVE = Decimal("0.07")  # relative error of y0
_FACTOR_BITS, _EPS_BITS = 22, 14  # e_i y0 < 2, |eps| < 1 / 8
# Scale of the fallback.
_PLAIN = 16
_MAX_PRODUCT = 62  # most bits of a truncated product


def _check_logits(name: str, x: Any, bits: int) -> tuple[int, int]:
    """Check logits, and return their rows and classes."""
    checks.check_private_64bit_tensor(name, x)
    checks.check_fractional_bits_range(name, x, LOGIT_BITS.start, LOGIT_BITS.stop - 1)
    shape = checks.check_known_shape(name, x)
    if not shape:
        raise UsageError(
            f"{name} expects a known shape [..., classes]. Received: {x.shape}.",
            code="rank-mismatch",
            operation=name,
            received=x.shape,
            expected="[..., classes]",
        )
    if not 2 <= shape[-1] <= activations.MAX_CLASSES:
        raise UsageError(
            f"{name} expects 2 to {activations.MAX_CLASSES} classes along the last axis. "
            f"Received: shape {shape}. For one logit of two classes use "
            "piecewise.logistic.",
            code="number-out-of-range",
            operation=name,
            received=shape,
            expected=f"2 to {activations.MAX_CLASSES} classes",
        )
    if not 23 <= bits <= 45:  # fewer bits do not hold logits that differ by CUTOFF
        raise UsageError(
            f"{name} compares 23 to 45 bits. Received: bits={bits!r}.",
            code="number-out-of-range",
            operation=name,
            received=bits,
            expected="23 to 45",
        )
    return math.prod(shape[:-1]), shape[-1]


# ---- comparisons


def _class_and_group_sizes(operands: int) -> list[int]:
    """Return the sizes of ANDs that are combined into one: a single AND for up to 9 operands."""
    if operands <= logic.MAX_AND_INPUTS:
        return [operands]
    count = -(-operands // 4)
    return [operands // count + (k < operands % count) for k in range(count)]


def _and_class_comparisons(party: Party, ones: Any, count: int, n: int, dealer: int) -> MaskedBits:
    """AND 0s and 1s [count, n] over the first axis (masked bits, or beta at D), exchanged again."""
    packed_rows = logic.pack_bits(ones)
    groups = _class_and_group_sizes(count)
    if len(groups) == 1:
        return convert.mask_bits(
            party, logic.and_stacked_bit_rows(party, packed_rows, count, n, dealer)
        )
    parts, start = [], 0
    for group in groups:
        rows = packed_rows[start : start + group]
        group_bits = logic.and_stacked_bit_rows(party, rows, group, n, dealer)
        parts.append(convert.mask_bits(party, group_bits))
        start += group
    return convert.mask_bits(party, logic.and_bits(party, parts))


def _compare_classes(party: Party, x: Shared, bits: int) -> tuple[MaskedBits, MaskedBits]:
    """Return (hot, keep) for x [classes, rows]: each row's largest, and classes not far below.

    Rounds: 3 (4 for more than 10 classes).
    """
    classes, rows = (int(n) for n in x.shape.as_list())
    pair_table = extremes.build_all_pairs_table(classes)
    # [left < right] of all pairs, [left + T < right] in both orders
    ordered = [(i, j) for i in range(classes) for j in range(classes) if i != j]
    shifted_pairs = {pair: len(pair_table.pairs) + k for k, pair in enumerate(ordered)}
    shifted_rivals = [[shifted_pairs[pair] for pair in enumerate(row)] for row in pair_table.rivals]
    all_pairs = [*pair_table.pairs, *ordered]
    coarse = normalize.shift_for_normalization(x, COARSE - x.fractional_bits)
    left, right = (
        coarse.map(lambda a, k=k: tensor_ops.gather(a, [pair[k] for pair in all_pairs]))
        for k in (0, 1)
    )
    shift = np.array([0] * len(pair_table.pairs) + [CUTOFF << COARSE] * len(ordered), np.int64)
    d = arithmetic.add_constant(arithmetic.sub(left, right), shift[:, None])
    less_bits = convert.mask_bits(
        party, compare.msb(party, d, _logit_comparison_bits(bits), exchanges=1)
    )
    ones = tensor_ops.reshape(logic.unpack_bits(less_bits), [len(all_pairs), rows])
    rival_bits = tensor_ops.stack(
        [tensor_ops.gather(ones, pair_table.pair_indices), tensor_ops.gather(ones, shifted_rivals)],
        axis=1,
    )
    if less_bits.masked is not None:
        flips = np.array(pair_table.flips, np.int64)
        rival_bits = tensor_ops.xor(
            rival_bits, np.stack([flips, np.ones_like(flips)], axis=1)[..., None]
        )
    n = 2 * classes * rows
    result = _and_class_comparisons(
        party, tensor_ops.reshape(rival_bits, [classes - 1, n]), classes - 1, n, x.dealer
    )
    size = classes * rows
    halves = logic.pack_bits(tensor_ops.reshape(logic.unpack_bits(result), [2, size]))
    return logic.replace_packed_bit_words(result, halves[0], size), logic.replace_packed_bit_words(
        result, halves[1], size
    )


def _logit_comparison_bits(bits: int) -> int:
    """Return the bits of comparisons of differences at COARSE fractional bits."""
    return bits + 1 - (16 - COARSE)


# ---- exponents


def _subtract_largest(party: Party, x: Shared, hot: MaskedBits) -> Shared:
    """Return x - sum_j hot_j x_j for x [classes, rows], with INNER fractional bits.

    Rounds: 1 online, 2 in total. Bits sent: those of extremes.sum_one_hot_selected; if bits are
    dropped D those of two truncated injections, E1, E2 64 per element each.
    """
    classes, rows = (int(n) for n in x.shape.as_list())
    drop = x.fractional_bits - INNER
    if drop <= 0:
        rescaled = x if drop == 0 else activations._raise_activation_scale(x)
        largest = extremes.sum_one_hot_selected(party, hot, rescaled)
        return arithmetic.sub(rescaled, largest.map(lambda a: tensor_ops.strided_slice(a, None)))
    n = classes * rows
    if isinstance(party, CostParty):
        dealt = convert.bit_injection_dealt_bits(2 * n, ring_bits=64 - drop)
        return party.count_exchange(x.shape, dealt, hot, x, scale=INNER)
    # The values themselves are truncated in the same way: multiplied by bits that are all 1.
    constant = tf.zeros([n], tf.int64) if hot.masked is None else tf.ones([n], tf.int64)
    joined_bits = logic.pack_bits(tf.concat([logic.unpack_bits(hot), constant], 0)[None])[0]
    all_bits = logic.replace_packed_bit_words(hot, joined_bits, 2 * n)
    s = party.site(
        "below_largest",
        drop,
        dealer=x.dealer,
        slots={**convert.list_injection_slots(ring_bits=64 - drop), 1: slots.declare_exchanged()},
    )
    twice = x.map(lambda a: tf.stack([a, a]))
    y = convert.inject_shares(s, all_bits, twice, 0, 0, drop=drop)
    share = None if s.is_dealer else y[1] - tf.reduce_sum(y[0], axis=0)
    shape = tf.constant([classes, rows], tf.int64)
    return masked.exchange_masked(s, share, shape, backward.MASKS, 1, scale=INNER)


# ---- division by the sum


@functools.cache
def _fit_inverse(classes: int) -> polynomial.FittedPolynomial:
    """Fit y0 of S with _SUM fractional bits, over Z_2^64."""
    # The selected maximum is within 3/16 of the true one.
    high = 1 + Decimal(classes - 1) * (Decimal(3) / 16).exp()
    slack = Decimal(1) / 64
    polynomial_fit = approximation.fit_approximation(
        approximation.decimal_reciprocal, 1 - slack, high + slack, _SUM, _RELATIVE
    )
    return polynomial.fit_polynomial(
        polynomial_fit, _INVERSE, bits=(polynomial_fit.limit + 2).bit_length() + 1
    )


@functools.cache
def _plan_softmax_inverse_series() -> polynomial.Plan:
    """Plan q (1 + eps + eps^2 + eps^3), over Z_2^64 with RESULT_BITS."""
    terms = {(1, j): 1 << _EPS * (3 - j) for j in range(4)}
    drop = _PRODUCT + 3 * _EPS - RESULT_BITS
    return polynomial.plan_polynomial((_FACTOR_BITS, _EPS_BITS), terms, drop)


def _divide_by_softmax_sum(party: Party, e: Shared, total: Shared) -> Shared:
    """Compute e_i / S. Rounds: 3 online, 4 in total."""
    classes = int(e.shape[0])
    coarse = normalize.shift_for_normalization(total, _SUM - INNER)
    y0 = _fit_inverse(classes).evaluate(party, "softmax_inverse", coarse)
    factors = shapes.concat([e, total.map(lambda a: tensor_ops.strided_slice(a, None))], 0)
    drop = INNER + _INVERSE - _PRODUCT
    products = relu.truncated_product(
        party,
        factors,
        y0.map(lambda a: tensor_ops.strided_slice(a, None)),
        drop,
        _FACTOR_BITS + 1,
        lambda a, b: functools.reduce(lambda u, v: u + v, map(_multiply_softmax_factors, a, b)),
    )
    q = products.map(lambda a: tensor_ops.strided_slice(a, np.s_[:classes]))
    eps = normalize.shift_for_normalization(products.map(lambda a: -a[classes:]), _EPS - _PRODUCT)
    eps = arithmetic.add_constant(eps, 1 << _EPS)
    eps = eps.map(lambda a: tensor_ops.tile(a, [classes, 1]))
    return polynomial.evaluate_polynomial(
        party, "softmax_series", _plan_softmax_inverse_series(), [q, eps], RESULT_BITS
    )


def _multiply_softmax_factors(a: Any, b: Any) -> Any:
    return a * b


# ---- softmax and loss


def softmax_for_gradient(
    party: Party, logits: Shared, *, bits: int = compare.LAYER_BITS, profile: str = "local"
) -> Shared:
    """Compute softmax e^x_i / sum_j e^x_j along the last axis, with RESULT_BITS over Z_2^64.

    Args:
        logits: [..., classes] with 16 to 40 fractional bits, |x| < 2^(bits - 17) - 32 as reals
            (2^14 by default); 2 classes or more.
        bits: of a comparison at 16 fractional bits, as elsewhere.
        profile: network profile, for the fallback's choice of method.

    Error: below 2^-14 for up to MAX_PAIRED classes; a class more than 32 below another is 0.
    For more classes it is activations.softmax after a truncation, with more rounds.
    Rounds: 8 for up to 10 classes, 9 for up to 16 (one more in total).
    Raises:
        UsageError: ring, scale or shape do not fit, or there are fewer than 2 classes.
    """
    rows, classes = _check_logits("softmax_for_gradient", logits, bits)
    if classes > MAX_PAIRED or rows == 0:
        return _fallback_softmax(party, logits, bits, profile)
    return _softmax_parts(party, logits, bits, rows, classes)[0]


def _softmax_parts(
    party: Party, logits: Shared, bits: int, rows: int, classes: int
) -> tuple[Shared, Shared, Shared]:
    """Return (p in the logits' shape, x - largest [classes, rows], S [rows])."""
    shape = logits.shape.as_list()
    x = logits.map(lambda a: tensor_ops.transpose(tensor_ops.reshape(a, [rows, classes])))
    hot, is_kept = _compare_classes(party, x, bits)
    d = _subtract_largest(party, x, hot)
    e = exp_select.select_exp(party, is_kept, d)
    total = e.map(lambda a: tensor_ops.reduce_sum(a, axis=0))
    p = _divide_by_softmax_sum(party, e, total)
    return p.map(lambda a: tensor_ops.reshape(tensor_ops.transpose(a), shape)), d, total


def _fallback_softmax(party: Party, logits: Shared, bits: int, profile: str) -> Shared:
    x = logits
    if x.fractional_bits > _PLAIN:
        x = truncation.truncate(party, x, x.fractional_bits - _PLAIN)
    p = activations.softmax(party, x, -1, bits=bits, profile=profile)
    extra_bits = RESULT_BITS - _PLAIN
    return replace(
        p.map(lambda a: tensor_ops.left_shift(a, extra_bits)), fractional_bits=RESULT_BITS
    )


def softmax_and_loss(
    party: Party,
    logits: Shared,
    labels: Shared,
    *,
    bits: int = compare.LAYER_BITS,
) -> tuple[Shared, Shared]:
    """Return `softmax_for_gradient` and the private loss: sum of ln S + max - x_label over rows.

    The loss is ln S - sum_i y_i (x_i - max), from intermediate values of the softmax; the logarithm
    runs in the same rounds as p.

    Args:
        labels: private one-hot rows of the logits' shape; whole numbers, or with up to 54 - bits
            fractional bits (23 by default), so that their product with x - max can be truncated.

    Returns:
        p as above, and the loss: a scalar with INNER fractional bits over Z_2^64, error below 2^-17
            per row for any distance of the label's class from the largest.
    Rounds: 13 for up to 10 classes (one more in total).
    Raises:
        UsageError: labels have another shape, ring or dealer, or there are more classes.
    """
    rows, classes = _check_logits("softmax_and_loss", logits, bits)
    if classes > MAX_PAIRED or rows == 0:
        raise UsageError(
            f"softmax_and_loss expects rows of up to {MAX_PAIRED} classes. Received: {logits!r}.",
            code="too-large",
            operation="softmax_and_loss",
            received=repr(logits),
            expected=MAX_PAIRED,
        )
    checks.check_private_pair("softmax_and_loss", logits, labels, same_scale=False)
    max_label_bits = _MAX_PRODUCT - INNER - (bits - 16)
    if labels.shape != logits.shape or not 0 <= labels.fractional_bits <= max_label_bits:
        raise UsageError(
            "softmax_and_loss expects labels of the logits' shape with up to "
            f"{max_label_bits} fractional bits for bits={bits}. Received: {labels!r} for "
            f"{logits!r}.",
            code="shape-mismatch" if labels.shape != logits.shape else "unsupported-scale",
            operation="softmax_and_loss",
            received=repr(labels),
            expected=repr(logits),
        )
    p, d, total = _softmax_parts(party, logits, bits, rows, classes)
    y = labels.map(lambda a: tensor_ops.transpose(tensor_ops.reshape(a, [rows, classes])))

    def sum_loss_over_classes(a: list[Any], b: list[Any]) -> Any:
        return tensor_ops.reduce_sum(
            functools.reduce(lambda u, v: u + v, map(_multiply_softmax_factors, a, b)), axis=0
        )

    label_logit = exchange_sum(party, "label", [BilinearShareProduct(y, d, sum_loss_over_classes)])
    if labels.fractional_bits:
        label_logit = truncation.truncate(party, label_logit, labels.fractional_bits)
    log = logarithm.log(party, total, _softmax_sum_bits(classes))
    loss = arithmetic.sub(log, label_logit)
    return p, loss.map(tensor_ops.reduce_sum)


def _softmax_sum_bits(classes: int) -> int:
    """Return the exponent of a bound: S < 2^this in ring units."""
    return INNER + (2 * classes).bit_length()
