"""Scaled dot-product attention: softmax(Q K^T c) V; only the result is computed with 64 bits.

    s  = Q K^T c log2(e)           Z_2^(f+9), opened once: 512 units of the base 2 are a period
    m  ~ the largest of a row      order/row_maximum.py, on quarters of a unit
    e  = 2^(s - m)                 functions/exp2.py, and its row sums S, in one round
    O  = (e V) (1 / S)             divided after the product: one value per query and channel

Scores may be large: only the distance between the scores of one row matters (`spread`), as maxima
and powers are right modulo the period. The maximum is accurate to a quarter: S is between 2^-1/2
and 2^1/4 times the number of keys for any scores, so 1 / S has a public range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.functions import exp2, reciprocal
from tfe_bench.protocols.order import row_maximum
from tfe_bench.protocols.ring import arithmetic, compare, products, shapes, small_ring
from tfe_bench.protocols.ring.checks import (
    check_known_shape,
    check_private_64bit_tensor,
    check_private_word_tensor,
    is_integer_between,
)
from tfe_bench.protocols.ring.products import BilinearShareProduct
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# Fractional bits of scores, of their powers, and of 1 / S for one key.
SCORE_BITS: Final = 12
WEIGHT_BITS: Final = 14
_INVERSE_BITS: Final = 13
# The maximum is computed on quarters; its error is at most two of them.
_COARSE_BITS: Final = 2
# Units of the base 2: t = s - m is at least -spread - 1/2.
MAX_UNITS: Final = int(-exp2.LOW) - 2
# S is in [0.7, 1.2 keys], apart from rounding.
_LOW, _HIGH = 0.6, 1.3
# With this many keys 1 / S has as many bits as a reciprocal may have.
MAX_KEYS: Final = 1024
# With a private mask, a masked key keeps a weight of 2^-13 over the number of keys.
_MASKED_UNITS: Final = 13
# Significant bits of the public factor, and the fewest that are accepted.
_FACTOR_BITS: Final = 14
_MIN_FACTOR_BITS: Final = 8


def max_attention_score_spread(keys: int, private_mask: bool) -> int:
    """Return the largest spread of a row's scores, in units of the base 2 (ln 2 of Keras' scores).

    A private mask lowers scores by the spread and more, which uses half of the window.
    """
    if not private_mask:
        return MAX_UNITS
    return (MAX_UNITS - _attention_mask_units(0, keys)) // 2


def max_attention_value_bits(keys: int) -> int:
    """Return the largest `bits` of values whose products with weights and 1 / S fit a word."""
    sums = math.ceil(math.log2(_HIGH * keys))
    return products.RING - max(WEIGHT_BITS, _INVERSE_BITS) - sums - 2


def _attention_mask_units(units: int, keys: int) -> int:
    """Return the units by which a private mask lowers the scores of a key."""
    return units + _MASKED_UNITS + (keys - 1).bit_length()


def attention(
    party: Party,
    query: Shared,
    key: Shared,
    value: Shared,
    *,
    scale: float | None = None,
    mask: Shared | npt.ArrayLike | None = None,
    causal: bool = False,
    last: Any = None,
    spread: float | None = None,
    bits: int = compare.LAYER_BITS,
    profile: str = "local",
    monitor: RangeMonitor | None = None,
    to: int = 64,
) -> Shared:
    """Compute softmax(scale Q K^T) V over the keys, [..., queries, channels], at V's scale.

    Args:
        query, key, value: [..., queries, depth], [..., keys, depth] and [..., keys, channels], with
            the same leading axes, over Z_2^64 or rings of `read_bits`.
        scale: public and positive; None: 1 / sqrt(depth). With ln 2 no factor is multiplied, and
            scores are those of the base 2: for a query whose weights contain log2(e) / sqrt(depth).
        mask: the keys that a query attends to, broadcast to [..., queries, keys]: public truth
            values (at least one key per row; masked scores cost nothing), or private numbers 0 and
            1. A row whose private mask is 0 throughout attends as if it had no mask.
        causal: True: query i attends to keys up to i only.
        last: public, an integer or an int64 scalar that is known when the graph runs, from 0: keys
            behind it are not attended to, whatever they hold. It excludes mask and causal.
        spread: upper bound of the distance between two scores of a row (including scores that a
            private mask hides), in units of the softmax; None: the largest possible, ln 2
            `max_attention_score_spread`. A smaller bound makes comparisons cheaper. A row that
            exceeds it is wrong.
        bits: |value| < 2^(bits-1) ring units.
        profile: network profile.
        monitor: records the sums of rows that leave the range that `MAX_UNITS` implies. A larger
            spread does so, except a spread of 250 to 265 units of the base 2 or above 320.
        to: ring of the result, if only its low bits are read; the result may have a larger ring.

    Error: of a weight a factor of 1 +- 2^-11 and 2^-14 / S; of the result 3 ulp in addition.
    Rounds: 4 for each level of the maximum, and 10 (5 of them for 1 / S; 9 from 1024 keys on).
    Raises:
        UsageError: shapes, scales or masks do not fit, or the spread is too large.
    """
    plan = _plan_attention(query, key, value, scale, mask, causal, last, spread, bits)
    query, key, value = (replace(x, bits=0) for x in (query, key, value))
    if 0 in plan.scores or 0 in value.shape.as_list():
        return _empty_attention_result(value, plan)
    comparison_bits, t_bits = plan.coarse_bits, exp2.exponent_ring_bits(SCORE_BITS)
    scores = _compute_scores(party, query, key, mask, plan, t_bits)
    dropped_bits = SCORE_BITS - _COARSE_BITS
    coarse = row_maximum.coarsen_for_maximum(scores, dropped_bits)
    row_maxima = row_maximum.row_maximum(party, coarse, plan.lengths, comparison_bits, profile)
    row_maxima = row_maxima.map(lambda a: tensor_ops.left_shift(plan.spread_rows(a), dropped_bits))
    row_maxima = replace(row_maxima, bits=t_bits, fractional_bits=SCORE_BITS)
    t = arithmetic.sub(scores, row_maxima)
    powers, total = exp2.exp2(
        party, t, WEIGHT_BITS, WEIGHT_BITS + plan.sum_bits, plan.scatter_scores
    )
    if monitor is not None:
        low, high = (round(v * (1 << WEIGHT_BITS)) for v in (_LOW, _HIGH * plan.scores[-1]))
        monitor.record_range(total, low, high)
    return _attention_weighted_mean(party, powers, total, value, plan, bits, to)


def attention_read_bits(
    query_bits: int, key_bits: int, depth: int, keys: int, bits: int, scale: float | None = None
) -> tuple[int, int]:
    """Return how many low bits of queries and keys, and of values, `attention` reads.

    Args:
        query_bits, key_bits: their fractional bits.
        bits, scale: as for `attention`.
    """
    factor_bits = _attention_score_factor(query_bits, key_bits, scale, depth)[1]
    drop = query_bits + key_bits + factor_bits - SCORE_BITS
    return drop + exp2.exponent_ring_bits(SCORE_BITS), WEIGHT_BITS + _attention_sum_bits(bits, keys)


def _attention_sum_bits(bits: int, keys: int) -> int:
    """Return the ring of the products of weights and values."""
    return bits + math.ceil(math.log2(_HIGH * keys)) + 2


@dataclass(frozen=True, eq=False)
class _AttentionPlan:
    """The public parameters of one call.

    Attributes:
        scores: their shape.
        keep: positions of the computed scores, in row-major order; None: all.
        rows: the row of each computed score (empty for all); lengths: computed scores of each row.
        factor, factor_bits: the multiplier of the product, and its fractional bits.
        coarse_bits: of comparisons of coarse scores.
        mask_units: units that a private mask subtracts.
        sum_bits: ring of the products with the values.
        inverse_bits: fractional bits of 1 / S.
        visible_keys: for `last`, the key whose score replaces that of each key, and the bits of
            visible keys.
    """

    scores: tuple[int, ...]
    keep: npt.NDArray[np.int64] | None
    rows: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    factor: int
    factor_bits: int
    coarse_bits: int
    mask_units: int
    sum_bits: int
    inverse_bits: int
    visible_keys: tuple[Any, Any] | None

    def take_scores(self, a: Any) -> Any:
        """Select the computed scores from a tensor of the scores' shape. Local."""
        if self.visible_keys is not None:  # no maximum is hidden
            a = tensor_ops.gather(a, self.visible_keys[0], axis=len(self.scores) - 1)
        flat_scores = tensor_ops.reshape(a, [-1])
        return flat_scores if self.keep is None else tensor_ops.gather(flat_scores, self.keep)

    def spread_rows(self, a: Any) -> Any:
        """Repeat a value of each row for each of its computed scores. Local."""
        if self.keep is not None:
            return tensor_ops.gather(a, self.rows)
        # The graph contains no large index.
        return tensor_ops.reshape(tensor_ops.tile(a[:, None], [1, self.scores[-1]]), [-1])

    def scatter_scores(self, a: Any) -> Any:
        """Return computed scores to the scores' shape, 0 elsewhere. Local."""
        if self.keep is not None:
            a = tensor_ops.scatter_nd(a, self.keep[:, None], [math.prod(self.scores)])
        a = tensor_ops.reshape(a, self.scores)
        return a if self.visible_keys is None else a * self.visible_keys[1]


def _visible_keys(last: Any, keys: int) -> tuple[Any, Any]:
    """Return for keys up to `last` themselves and 1, for keys behind it the key `last` and 0."""
    key_indices = np.arange(keys)
    if not tensor_ops.is_tensor(last):
        return np.minimum(key_indices, int(last)), (key_indices <= int(last)).astype(np.int64)
    last = tf.cast(last, tf.int64)
    return tf.minimum(key_indices, last), tf.cast(key_indices <= last, tf.int64)


def _plan_attention(
    query: Shared,
    key: Shared,
    value: Shared,
    scale: float | None,
    mask: Shared | npt.ArrayLike | None,
    causal: bool,
    last: Any,
    spread: float | None,
    bits: int,
) -> _AttentionPlan:
    q, k, v = (
        check_known_shape("attention", check_private_word_tensor("attention", x))
        for x in (query, key, value)
    )
    fits = min(map(len, (q, k, v))) >= 2 and q[:-2] == k[:-2] == v[:-2]
    if not (fits and q[-1] == k[-1] and k[-2] == v[-2] and q[-1] > 0):
        raise UsageError(
            "attention expects queries [..., n, depth], keys [..., m, depth] and values "
            f"[..., m, channels] with the same leading axes. Received: {q}, {k} and {v}.",
            code="shape-mismatch",
            operation="attention",
            received=f"{q}, {k} and {v}",
        )
    scores, keys = (*q[:-1], k[-2]), k[-2]
    if not 1 <= keys <= MAX_KEYS:
        raise UsageError(
            f"attention expects 1 to {MAX_KEYS} keys. Received: {keys}. Attend to blocks of keys.",
            code="number-out-of-range",
            operation="keys",
            received=keys,
            expected=f"1 to {MAX_KEYS}",
        )
    if last is not None and (causal or mask is not None):
        raise UsageError(
            "attention accepts one of mask, causal and last. Received: last and another one.",
            code="conflicting-options",
            operation="attention",
        )
    if last is not None and not (
        tensor_ops.is_tensor(last) or is_integer_between(last, 0, keys - 1)
    ):
        raise UsageError(
            f"attention expects last from 0 to {keys - 1}. Received: {last!r}.",
            code="index-out-of-range",
            operation="last",
            received=last,
            expected=f"0 to {keys - 1}",
        )
    is_mask_private = isinstance(mask, Shared)
    keep = _attended_scores(scores, None if is_mask_private else mask, causal)
    lengths = keep.reshape([-1, keys]).sum(1)
    if keep.size and not lengths.all():
        raise UsageError(
            "attention expects a mask with at least one key for each query. Received: a "
            "public mask with a row of zeros. Let such a query attend to any key, and "
            "ignore its result.",
            code="empty-mask-row",
            operation="mask",
        )
    attends_all = bool(keep.all())
    factor, factor_bits = _attention_score_factor(
        query.fractional_bits, key.fractional_bits, scale, q[-1]
    )
    units = _attention_spread_units(spread, keys, is_mask_private)
    mask_units = _attention_mask_units(units, keys) if is_mask_private else 0
    max_distance = (units + mask_units << _COARSE_BITS) + 3
    sum_bits = _attention_sum_bits(bits, keys)
    inverse_bits = _INVERSE_BITS + math.ceil(math.log2(_HIGH * keys))
    value_limit = max_attention_value_bits(keys)
    if not 2 <= bits <= value_limit or value.fractional_bits > 30:
        raise UsageError(
            f"attention to {keys} keys expects values of 2 to {value_limit} bits, at "
            f"most 30 of them fractional. Received: bits={bits} and {value!r}.",
            code="number-out-of-range",
            operation="bits",
            received=f"bits={bits} and {value!r}",
            expected=f"2 to {value_limit}",
        )
    score_bits, value_bits = attention_read_bits(
        query.fractional_bits, key.fractional_bits, q[-1], keys, bits, scale
    )
    if min(query.ring_bits, key.ring_bits) < score_bits or value.ring_bits < value_bits:
        raise UsageError(
            f"attention reads {score_bits} bits of queries and keys and {value_bits} "
            f"bits of values. Received: {query!r}, {key!r} and {value!r}.",
            code="unsupported-ring",
            operation="attention",
            received=f"{query!r}, {key!r} and {value!r}",
        )
    return _AttentionPlan(
        scores,
        None if attends_all else np.flatnonzero(keep),
        np.repeat(np.arange(lengths.size), 0 if attends_all else lengths),
        lengths.astype(np.int64),
        factor,
        factor_bits,
        max_distance.bit_length() + 1,
        mask_units,
        sum_bits,
        inverse_bits,
        None if last is None else _visible_keys(last, keys),
    )


def _attended_scores(
    scores: Sequence[int], mask: npt.ArrayLike | None, causal: bool
) -> npt.NDArray[np.bool_]:
    """Return which scores are computed."""
    keep = np.ones(scores, bool)
    if causal:
        keep &= np.tri(*scores[-2:], dtype=np.bool_)
    if mask is None:
        return keep
    if tensor_ops.is_tensor(mask):
        raise UsageError(
            "attention expects a public mask that is known while the graph is built. "
            "Received: a tensor. Use a numpy array.",
            code="not-static",
            operation="mask",
        )
    mask_array = np.asarray(mask)
    if not np.isin(mask_array, (0, 1)).all():
        raise UsageError(
            "attention expects a mask of truth values. Received: other values. Use mask "
            "> 0, or add a bias to the scores by other means.",
            code="unsupported-type",
            operation="mask",
        )
    return keep & _broadcast_mask(mask_array.astype(bool), scores)


def _broadcast_mask(
    mask_array: npt.NDArray[np.bool_], scores: Sequence[int]
) -> npt.NDArray[np.bool_]:
    try:
        return np.broadcast_to(mask_array, scores)
    except ValueError:
        raise UsageError(
            f"attention expects a mask that broadcasts to its scores {list(scores)}. "
            f"Received: shape {list(mask_array.shape)}.",
            code="shape-mismatch",
            operation="mask",
            received=list(mask_array.shape),
            expected=list(scores),
        ) from None


def _attention_score_factor(
    query_bits: int, key_bits: int, scale: float | None, depth: int
) -> tuple[int, int]:
    """Return scale log2(e) as an integer, and its fractional bits."""
    if scale is None:
        scale = 1 / math.sqrt(depth)
    is_real = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if not (is_real and math.isfinite(scale) and scale > 0):
        raise UsageError(
            f"attention expects a positive scale. Received: {scale!r}.",
            code="number-out-of-range",
            operation="scale",
            received=scale,
            expected="a positive number",
        )
    binary_scale = scale / math.log(2)
    operand_bits = query_bits + key_bits
    available_bits = products.RING - exp2.exponent_ring_bits(SCORE_BITS) + SCORE_BITS - operand_bits
    exponent = math.frexp(binary_scale)[1]
    bits = 0 if abs(binary_scale - 1) < 2.0**-20 else min(_FACTOR_BITS - exponent, available_bits)
    significant_bits = bits + exponent if bits else _FACTOR_BITS
    if (
        bits > available_bits
        or significant_bits < _MIN_FACTOR_BITS
        or operand_bits + bits <= SCORE_BITS
    ):
        raise UsageError(
            f"attention expects queries and keys with {SCORE_BITS + 1} to "
            f"{available_bits + operand_bits} fractional bits together, including those "
            f"of its scale. Received: {query_bits} and {key_bits}, and a scale of "
            f"{scale!r}.",
            code="unsupported-scale",
            operation="attention",
            received=f"{query_bits} and {key_bits}, scale {scale!r}",
        )
    return round(binary_scale * 2.0**bits), bits


def _attention_spread_units(spread: float | None, keys: int, is_mask_private: bool) -> int:
    """Return the spread in units of the base 2, rounded up."""
    limit = max_attention_score_spread(keys, is_mask_private)
    if spread is None:
        return limit
    is_real = isinstance(spread, (int, float)) and not isinstance(spread, bool)
    if not (is_real and 0 < spread <= limit * math.log(2)):
        raise UsageError(
            "attention expects a spread of a row's scores up to "
            f"{limit * math.log(2):.1f} ({limit} units of the base "
            f"2){' with a private mask' if is_mask_private else ''}. Received: "
            f"{spread!r}. Scale queries down, or use matmul and softmax.",
            code="number-out-of-range",
            operation="spread",
            received=spread,
            expected=f"up to {limit * math.log(2):.1f}",
        )
    return min(limit, math.ceil(spread / math.log(2)))


def _empty_attention_result(value: Shared, plan: _AttentionPlan) -> Shared:
    """Return the result without elements."""
    shape = [*plan.scores[:-1], int(value.shape[-1])]
    return value.map(lambda a: tensor_ops.zeros_like(tensor_ops.reshape(a[..., :0, :], [0]))).map(
        lambda a: tensor_ops.reshape(a, shape)
    )


def _compute_scores(
    party: Party, query: Shared, key: Shared, mask: Any, plan: _AttentionPlan, ring: int
) -> Shared:
    """Compute the required scores modulo 2^ring; 1 round."""
    query = arithmetic.mul_public(query, np.int64(plan.factor), plan.factor_bits)
    rank = len(plan.scores)
    order = [*range(rank - 2), rank - 1, rank - 2]
    product = BilinearShareProduct(
        query,
        key.map(lambda a: tensor_ops.transpose(a, order)),
        lambda a, b: plan.take_scores(products.sum_matrix_products(a, b)),
    )
    addend = _attention_mask_addend(mask, plan, product.scale) if isinstance(mask, Shared) else None
    drop = product.scale - SCORE_BITS
    return products.exchange_truncated_sum(party, "truncated_sum", [product], addend, drop, ring)[0]


def _attention_mask_addend(mask: Shared, plan: _AttentionPlan, scale: int) -> Shared:
    """Return (mask - 1) times the units that a mask subtracts, for each score."""
    shape = check_known_shape("attention", check_private_64bit_tensor("attention", mask))
    _broadcast_mask(np.empty(shape, bool), plan.scores)
    extra_bits = scale - mask.fractional_bits
    if extra_bits < 0:
        raise UsageError(
            f"attention expects a mask of at most {scale} fractional bits. Received: {mask!r}.",
            code="unsupported-scale",
            operation="mask",
            received=repr(mask),
            expected=f"at most {scale}",
        )
    scaled_mask = arithmetic.mul_public(mask, np.int64(plan.mask_units << extra_bits), extra_bits)
    scaled_mask = arithmetic.add_constant(scaled_mask, -(plan.mask_units << scale))
    return shapes.broadcast_to(scaled_mask, list(plan.scores)).map(plan.take_scores)


def _attention_weighted_mean(
    party: Party,
    powers: Shared,
    total: Shared,
    value: Shared,
    plan: _AttentionPlan,
    bits: int,
    to: int,
) -> Shared:
    """Compute (e V) / S over Z_2^to."""
    low, high = _LOW, _HIGH * plan.scores[-1]
    extra_bits = plan.inverse_bits - WEIGHT_BITS
    rescaled_total = replace(
        total.map(lambda a: tensor_ops.left_shift(a, extra_bits)), fractional_bits=plan.inverse_bits
    )
    inverse = reciprocal.reciprocal_in(party, rescaled_total, low, high, _INVERSE_BITS)
    # The weights are right modulo 2^(drop+k), which suffices for the product.
    weights = replace(powers.map(plan.scatter_scores), bits=0)
    product = BilinearShareProduct(weights, value, products.sum_matrix_products)
    z, _ = products.exchange_truncated_sum(
        party, "truncated_sum", [product], None, WEIGHT_BITS, plan.sum_bits
    )
    width = plan.inverse_bits + bits + 2
    if width > plan.sum_bits:
        z = small_ring.lift_signed(party, z, width)
    product = BilinearShareProduct(
        replace(z, bits=0),
        inverse.map(lambda a: tensor_ops.strided_slice(a, np.s_[..., None])),
        products.sum_elementwise_products,
    )
    y, _ = products.exchange_truncated_sum(
        party, "truncated_sum", [product], None, plan.inverse_bits, bits + 2
    )
    return small_ring.lift_signed(party, y, to) if y.ring_bits < to else y
