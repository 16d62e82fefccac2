"""Batch normalization in training mode, forward and backward, with running statistics.

y = gamma (x - mean) rstd + beta, rstd = 1 / sqrt(var + epsilon), mean and variance over all axes
but the last. With A = gamma rstd, T = sum dy (x - mean) and count M:

    dx = A dy - B (x - mean) - K,   B = A rstd^2 T / M,   K = A sum(dy) / M,
    dgamma = rstd T,   dbeta = sum dy.

There are few factors per channel, so one-round products with wide operands compute them
(protocols/functions/small_product.py); only squares, T and the two sums over images involve every
element.
Source: Ioffe and Szegedy, ICML 2015; Keras' formulas (biased variance).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import roots, small_product
from tfe_bench.protocols.ring import arithmetic, checks, shapes, truncation
from tfe_bench.protocols.ring.products import BilinearShareProduct, exchange_sum
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

FACTOR = 24
"""Fractional bits of gamma, beta, the variance, rstd and the factors A."""
VARIANCE_BITS = 44
GAMMA_BITS = 7  # |gamma| < 2^7
PRECISION = 16  # bits of precision of the root
_ROOT = 20  # fractional bits of the public factor that removes the count's part from the root
_COUNT = 12  # bits of 1/M
_SUM = 60  # bits of T and of sums of gradients
RUNNING_BITS = 20  # fractional bits of the public momentum
MIN_RECIPROCAL_BITS = 7  # fewest significant bits of 1/M in the mean


@dataclass(frozen=True)
class BatchNormPlan:
    """The public parameters of a layer: number of elements per channel, scales and bits.

    Attributes:
        count: M.
        fraction: of x.
        shift: floor(log2 M); the variance is held times M / 2^shift.
        epsilon: in units of 2^-40.
        mean_bits: e of the public reciprocal round(2^e / M).
    """

    count: int
    fraction: int
    shift: int
    epsilon: int
    mean_bits: int

    @property
    def variance_scale(self) -> Fraction:
        """M / 2^shift, from 1 to below 2."""
        return Fraction(self.count, 1 << self.shift)

    @property
    def rstd_bits(self) -> int:
        """The exponent of a bound of rstd: rstd < 2^rstd_bits."""
        return max(1, (((1 << 40) // self.epsilon).bit_length() + 1) // 2)

    @property
    def slope_bits(self) -> int:
        """Fractional bits of A rstd^2, such that it has 47 bits."""
        return min(FACTOR, 46 - GAMMA_BITS - 3 * self.rstd_bits)

    @property
    def root_factor(self) -> int:
        """round(2^_ROOT sqrt(M / 2^shift)), by integer arithmetic."""
        squared = int(self.variance_scale * (1 << (2 * _ROOT + 2)))
        return (math.isqrt(squared) + 1) // 2

    def count_reciprocal(self, bits: int) -> int:
        """Return round(2^bits / M)."""
        return ((2 << bits) + self.count) // (2 * self.count)


def plan_batch_norm(
    count: int, fraction: int = 16, epsilon: float = 1e-3, bits: int = 31
) -> BatchNormPlan:
    """Return the public parameters of a layer.

    Args:
        count: elements per channel, at least 2.
        bits: |x| < 2^(bits - 1) ring units.

    Raises:
        UsageError: epsilon is outside 1e-5 .. 1, the scale is outside 13 .. 24, count is outside 2
            .. 2^24, or count and bits together leave no bits for 1/M.
    """
    if count == 1:
        raise UsageError(
            "Batch normalization expects at least 2 elements of each channel. Received: "
            "a batch of one row, with one. Use larger batches, such as batch_size=32.",
            code="number-out-of-range",
            operation="batch_norm",
            received=1,
            expected="at least 2",
        )
    is_valid = isinstance(count, int) and 2 <= count <= 1 << 24 and 13 <= fraction <= 24
    if not is_valid or not 1e-5 <= epsilon <= 1 or not fraction < bits <= 40:
        raise UsageError(
            "Batch normalization expects 2 to 2^24 elements per channel, epsilon from "
            "1e-5 to 1, 13 to 24 fractional bits and values of up to 40 bits. Received: "
            f"count={count!r}, epsilon={epsilon!r}, {fraction} of {bits} bits.",
            code="number-out-of-range",
            operation="batch_norm",
            received=f"count={count!r}, epsilon={epsilon!r}, {fraction} of {bits} bits",
        )
    max_bits = 62 - MIN_RECIPROCAL_BITS - (count.bit_length() - 1)
    if bits > max_bits:
        raise UsageError(
            f"Batch normalization of {count} elements per channel expects values of at "
            f"most {max_bits} bits. Received: bits={bits}.",
            code="too-large",
            operation="batch_norm",
            received=bits,
            expected=max_bits,
        )
    return BatchNormPlan(count, fraction, count.bit_length() - 1, round(epsilon * 2**40), 62 - bits)


@dataclass(frozen=True, eq=False)
class NormalizedBatch:
    """Results of the forward pass for the output, the backward pass and the statistics.

    Attributes:
        centered: x - mean, at x's scale.
        factor: A = gamma rstd per channel, FACTOR bits.
        rstd: per channel, FACTOR bits.
        slope: A rstd^2 per channel, plan.slope_bits bits.
        mean: per channel, at x's scale.
        variance: var M / 2^shift per channel, FACTOR bits.
    """

    plan: BatchNormPlan
    centered: Shared
    factor: Shared
    rstd: Shared
    slope: Shared
    mean: Shared
    variance: Shared


def _sum_per_channel(a: list[Any], b: list[Any]) -> Any:
    """Sum paired elementwise products over all axes but the last."""
    total = None
    for p, q in zip(a, b, strict=True):
        part = tensor_ops.reduce_sum(p * q, axis=list(range(len(p.shape) - 1)))
        total = part if total is None else total + part
    return total


def _channel_sums(x: Shared) -> Shared:
    return x.map(lambda a: tensor_ops.reduce_sum(a, axis=list(range(len(a.shape) - 1))))


def _channel_correlation(party: Party, name: str, x: Shared, y: Shared) -> Shared:
    """Compute sum x y per channel; 1 round."""
    return exchange_sum(party, name, [BilinearShareProduct(x, y, _sum_per_channel)], len(x.shape))


def _stack_batch_statistics(a: Shared, b: Shared) -> Shared:
    """Return [a, b], at a's scale."""
    return shapes.stack([a, replace(b, fractional_bits=a.fractional_bits)])


def _scale_batch_norm_value(x: Shared, factor: int, bits: int) -> Shared:
    """Multiply x by a public factor that has `bits` fractional bits. Local."""
    return arithmetic.mul_public(x, np.int64(factor), bits)


def _channel_count(name: str, x: Any) -> int:
    """Check x, and return its number of elements per channel."""
    sizes = checks.check_known_shape(name, checks.check_private_64bit_tensor(name, x))
    if len(sizes) < 2:
        raise UsageError(
            f"{name} expects two axes or more, the channels last. Received: {x.shape}.",
            code="rank-mismatch",
            operation=name,
            received=x.shape,
        )
    return math.prod(sizes[:-1])


def normalize_batch(
    party: Party, x: Shared, gamma: Shared, *, epsilon: float = 1e-3, bits: int = 31
) -> NormalizedBatch:
    """Compute the statistics of a batch and the factors that normalize it.

    Args:
        x: [..., channels] over Z_2^64 with 13 to 24 fractional bits f.
        gamma: [channels], 24 fractional bits, |gamma| < 2^7.
        bits: |x| < 2^(bits - 1) ring units.

    Domain: sum over a channel of (x - mean)^2 below 2^(62 - 2f), variance below 2^19.
    Error of A: relative 2^-13 and 1 ulp if the variance is far above 2^-24 / epsilon.
    Rounds: 1 (mean) + 1 (squares) + 1 (truncation) + 9 (root) + 1 (A; the slope takes 1 more, for
    which only the backward pass waits).
    Raises:
        UsageError: shapes, scales or rings do not fit.
    """
    count = _channel_count("normalize", x)
    plan = plan_batch_norm(count, x.fractional_bits, epsilon, bits)
    _check_channels("gamma", gamma, x)
    sums = _scale_batch_norm_value(
        _channel_sums(x), plan.count_reciprocal(plan.mean_bits), plan.mean_bits
    )
    mean = truncation.truncate(party, sums, plan.mean_bits)
    centered = arithmetic.sub(x, mean)
    squares = _channel_correlation(party, "squares", centered, centered)
    # Drop the bits of the squares beyond those of the variance.
    truncated_squares = truncation.truncate(party, squares, plan.shift + 2 * plan.fraction - FACTOR)
    # Its ring elements are those of var M / 2^shift with FACTOR fractional bits.
    variance = replace(truncated_squares, fractional_bits=FACTOR)
    offset = int(plan.epsilon * plan.variance_scale / (1 << (40 - FACTOR)) + Fraction(1, 2))
    raised_variance = arithmetic.add_constant(variance, offset)
    root = _scale_batch_norm_value(
        roots.rsqrt(party, raised_variance, VARIANCE_BITS, PRECISION), plan.root_factor, _ROOT
    )
    rstd = truncation.truncate(party, root, _ROOT)
    root_width = FACTOR + _ROOT + plan.rstd_bits + 2
    factor = small_product.multiply_small(
        party, [(gamma, FACTOR + GAMMA_BITS + 1), (root, root_width)], FACTOR + _ROOT
    )
    rstd_width = FACTOR + plan.rstd_bits + 2
    slope = small_product.multiply_small(
        party,
        [(factor, rstd_width + GAMMA_BITS), (rstd, rstd_width), (rstd, rstd_width)],
        3 * FACTOR - plan.slope_bits,
    )
    return NormalizedBatch(plan, centered, factor, rstd, slope, mean, variance)


def _check_channels(name: str, value: Any, x: Shared) -> None:
    is_valid = isinstance(value, Shared) and value.shape.is_compatible_with([x.shape[-1]])
    if not is_valid or value.fractional_bits != FACTOR or value.dealer != x.dealer:
        raise UsageError(
            f"Batch normalization expects {name} of {x.shape[-1]} channels with {FACTOR} "
            f"fractional bits and dealer {x.dealer}. Received: {value!r}.",
            code="shape-mismatch",
            operation="batch_norm",
            received=repr(value),
            expected=f"{name} of {x.shape[-1]} channels",
        )


def apply_normalization(party: Party, normalized: NormalizedBatch, beta: Shared) -> Shared:
    """Compute y = A (x - mean) + beta at x's scale.

    The sum before its truncation is that of Product(centered, factor, elementwise) with
    `beta_addend(normalized, beta)`: products.exchange_truncated_sum passes it to a ReLU in one
    round.

    Error: below 1 ulp in addition to that of A. Rounds: 2.
    """
    y = arithmetic.mul(party, normalized.centered, normalized.factor)
    y = arithmetic.add(y, beta_addend(normalized, beta))
    return truncation.truncate(party, y, FACTOR)


def beta_addend(normalized: NormalizedBatch, beta: Shared) -> Shared:
    """Return beta at the scale of A (x - mean). Local."""
    _check_channels("beta", beta, normalized.centered)
    f = normalized.centered.fractional_bits
    return replace(beta.map(lambda a: tensor_ops.left_shift(a, f)), fractional_bits=FACTOR + f)


@dataclass(frozen=True, eq=False)
class BatchNormGradients:
    """Gradients of a batch normalization.

    Attributes:
        x: with FACTOR bits more than dy, truncated together with the preceding layer's gradient.
        gamma: at the sum of x's and dy's scales.
        beta: at dy's scale.
    """

    x: Shared
    gamma: Shared
    beta: Shared


def batch_norm_gradients(
    party: Party, normalized: NormalizedBatch, dy: Shared
) -> BatchNormGradients:
    """Compute the gradients of x, gamma and beta.

    Args:
        dy: of y, over Z_2^64 with its own scale h.

    Domain: |T|, |sum dy| < 2^59 ring units; |dx| < 2^(62 - h - 24).
    Error: of dx, 2^-11 of B (x - mean) and K, and a few ulp of A times dy.
    Rounds: 3 online, 4 in total.
    Raises:
        UsageError: dy does not fit x.
    """
    plan, x = normalized.plan, normalized.centered
    checks.check_private_64bit_tensor("backward", dy)
    checks.check_fractional_bits_range("backward", dy, 1, 24)
    if not dy.shape.is_compatible_with(x.shape) or dy.dealer != x.dealer:
        raise UsageError(
            f"backward expects the gradient of {x!r}. Received: {dy!r}.",
            code="dealer-mismatch" if dy.dealer != x.dealer else "shape-mismatch",
            operation="backward",
            received=repr(dy),
            expected=repr(x),
        )
    beta = _channel_sums(dy)
    correlation = _channel_correlation(party, "correlation", dy, x)
    scales = _batch_norm_gradient_scales(plan, dy.fractional_bits)
    count_factor = plan.count_reciprocal(scales.count)
    rstd_width = FACTOR + plan.rstd_bits + 2
    offset = small_product.multiply_small(
        party,
        [
            (beta, _SUM),
            (
                _scale_batch_norm_value(normalized.factor, count_factor, scales.count),
                scales.factor_bits,
            ),
        ],
        scales.count,
    )
    slope = small_product.multiply_small(
        party,
        [
            (correlation, _SUM),
            (_scale_batch_norm_value(normalized.slope, count_factor, scales.count), _SUM),
        ],
        scales.drop,
    )
    gamma = small_product.multiply_small(
        party, [(correlation, _SUM), (normalized.rstd, rstd_width)], FACTOR
    )

    def sum_gradient_terms(a: list[Any], b: list[Any]) -> Any:
        total = None
        for p, q in zip(a, b, strict=True):
            part = p[0] * q[0] + p[1] * q[1]
            total = part if total is None else total + part
        return total

    terms, factors = (
        _stack_batch_statistics(dy, x),
        _stack_batch_statistics(normalized.factor, arithmetic.neg(slope)),
    )
    gradient_sum = exchange_sum(
        party, "batch_norm_gradient", [BilinearShareProduct(terms, factors, sum_gradient_terms)]
    )
    gradient_sum = replace(gradient_sum, fractional_bits=dy.fractional_bits + FACTOR)
    return BatchNormGradients(arithmetic.sub(gradient_sum, offset), gamma, beta)


@dataclass(frozen=True)
class _BatchNormGradientScales:
    count: int  # fractional bits of 1/M
    drop: int  # dropped bits of the product B, which has h + FACTOR - f
    factor_bits: int


def _batch_norm_gradient_scales(plan: BatchNormPlan, h: int) -> _BatchNormGradientScales:
    count = plan.shift + _COUNT
    drop = h + plan.fraction + plan.slope_bits + count - (h + FACTOR - plan.fraction)
    return _BatchNormGradientScales(
        count, drop, FACTOR + plan.rstd_bits + 2 + GAMMA_BITS + _COUNT + 1
    )


def update_running(
    party: Party,
    normalized: NormalizedBatch,
    mean: Shared,
    variance: Shared,
    momentum: float = 0.99,
) -> tuple[Shared, Shared]:
    """Update the running mean and variance: momentum times the old ones plus the batch's remainder.

    Args:
        mean, variance: [channels], 24 fractional bits.
        momentum: public; held with 20 fractional bits.

    Error: below 1 ulp of 2^-24; of the added part 2^-20 / (1 - momentum) and that of the mean.
    Rounds: 1.
    Raises:
        UsageError: shapes or scales do not fit, or the momentum is outside 0 .. 1.
    """

    plan = normalized.plan
    if not 0 <= momentum <= 1:
        raise UsageError(
            f"running expects a momentum from 0 to 1. Received: {momentum!r}.",
            code="number-out-of-range",
            operation="running",
            received=momentum,
            expected="0 to 1",
        )
    _check_channels("a running mean", mean, normalized.centered)
    _check_channels("a running variance", variance, normalized.centered)
    old_weight = round(momentum * 2**RUNNING_BITS)
    batch_weight = (1 << RUNNING_BITS) - old_weight
    extra_bits = FACTOR - plan.fraction
    variance_weight = int(batch_weight / plan.variance_scale + Fraction(1, 2))
    parts = [
        (mean, normalized.mean, batch_weight << extra_bits),
        (variance, normalized.variance, variance_weight),
    ]
    updated = [
        arithmetic.add(
            _scale_batch_norm_value(old, old_weight, RUNNING_BITS),
            replace(
                _scale_batch_norm_value(batch, factor, 0), fractional_bits=FACTOR + RUNNING_BITS
            ),
        )
        for old, batch, factor in parts
    ]
    statistics = truncation.truncate(party, _stack_batch_statistics(*updated), RUNNING_BITS)
    return statistics.map(lambda a: tensor_ops.strided_slice(a, 0)), statistics.map(
        lambda a: tensor_ops.strided_slice(a, 1)
    )
