"""Operands at the edges of a width, and results of operations on them in plaintext."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.protocols.functions import error_function, piecewise
from tfe_bench.protocols.nn import (
    activations,
    batch_norm,
    cross_entropy,
    pool_gradient,
)
from tfe_bench.protocols.ring import shapes
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
F = 16
ONE = 1 << F
ENCODED = 1 << 62  # ring units of all values that can be encoded
LIMITS = (-3, 5)  # limits of clip_by_value and of capped_relu, in ring units
KNOT = piecewise.EDGE << F
DROP = 7
ROWS = 24  # rows of logits


# ---- operands


def draw_below(top: int, rng: np.random.Generator, constants: Iterable[int] = ()) -> Array:
    """Return ring elements with |x| < top: edges, 0, powers of two, neighbors of constants."""
    top = min(top, ENCODED)
    near = {0, top // 2, top - 1, top - 2, *(1 << k for k in range(62)), *map(abs, constants)}
    near |= {e + d for e in near for d in (-1, 1)}
    edges = sorted(s * e for e in near for s in (-1, 1) if 0 <= e < top)
    return np.concatenate([np.array(edges, np.int64), rng.integers(1 - top, top, 16)])


def draw_signed(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return ring elements with |x| < 2^(bits-1)."""
    return [draw_below(1 << (bits - 1), rng)]


def draw_magnitudes(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return ring elements with |x| < 2^bits."""
    return [draw_below(1 << bits, rng)]


def draw_halves(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return ring elements with |x| < 2^(bits-2)."""
    return [draw_below(1 << (bits - 2), rng)]


def draw_pairs(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return x and y, encoded, with |x - y| < 2^(bits-1)."""
    top = min(1 << (bits - 1), 2 * ENCODED - 2)
    apart = [s * d for d in (0, 1, 2, top // 2, top - 2, top - 1) if d < top for s in (-1, 1)]
    apart += [int(d) for d in rng.integers(1 - top, top, 16)]
    y = [-(d // 2) for d in apart]
    return [np.array([a + b for a, b in zip(apart, y, strict=True)]), np.array(y)]


def draw_clipped(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return ring elements whose distance from both limits is below 2^(bits-1)."""
    low, high = LIMITS
    top = 1 << (bits - 1)
    x = draw_below(top, rng, [low, high, top + low, top - high])
    return [x[np.maximum(np.abs(x - low), np.abs(x - high)) < min(top, ENCODED)]]


def draw_rows(width: int) -> Callable[[int, np.random.Generator], list[Array]]:
    """Return [n, width], encoded, whose differences along a row are below 2^(bits-1)."""

    def draw(bits: int, rng: np.random.Generator) -> list[Array]:
        top = min(1 << (bits - 1), 2 * ENCODED - 2)
        picks = [p % top for p in (0, 1, top // 2, top - 2, top - 1)]
        every = [[picks[i] for i in rng.integers(0, 5, width)] for _ in range(40)]
        every += [[picks[i] for i in (0, *[4] * (width - 1))], [picks[4]] * width]
        every += [[int(v) for v in rng.integers(0, top, width)] for _ in range(8)]
        return [np.array([[v - top // 2 for v in row] for row in every])]

    return draw


def draw_logits(
    classes: int, f: int, less: int = 0
) -> Callable[[int, np.random.Generator], list[Array]]:
    """Return [ROWS, classes], |x| < 2^(bits-1) - less 2^f: edges, and where a class vanishes."""

    def draw(bits: int, rng: np.random.Generator) -> list[Array]:
        top = (1 << (bits - 1)) - (less << f)
        x = rng.choice(
            draw_below(top, rng, [activations._exponential_cutoff_units(f, classes)]),
            (ROWS, classes),
        )
        x[0], x[1], x[2], x[3] = top - 1, 1 - top, 1 - top, 0
        x[2, -1] = top - 1
        few = min(top, 3 << f)
        x[4:10] = rng.integers(1 - few, few, (6, classes))
        return [x]

    return draw


def draw_labeled(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return logits of 5 classes, and a one-hot row of labels for each of them."""
    (x,) = draw_logits(5, F, cross_entropy.CUTOFF)(bits, rng)
    return [x, np.eye(5, dtype=np.int64)[rng.integers(0, 5, ROWS)] << F]


def draw_quotients(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return x and y with |x|, |x / y| < 2^30 ring units and |y| < 2^bits."""
    y = draw_below(1 << bits, rng)
    most = np.minimum(2.0**30 - 1, np.abs(y) * 2.0**-F * (2.0**30 - 2)).astype(np.int64)
    return [most * rng.choice([-1, 1], y.size), y]


def draw_dividends(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return x and y with |x| < 2^30, 0 < |y| < 2^bits and |x / y| < 2^21."""
    y = draw_below(1 << bits, rng)
    y = y[y != 0]
    top = np.minimum(2.0**30 - 1, np.abs(y) * (2.0**21 - 1)).astype(np.int64)
    x = np.where(rng.random(y.size) < 0.5, top, rng.integers(0, top + 1))
    return [x * rng.choice([-1, 1], y.size), y]


def draw_points(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return two coordinates with |x| < 2^(bits-1)."""
    x = draw_below(1 << (bits - 1), rng)
    return [x, rng.permutation(x)]


def close_to(*edges: int) -> Callable[[int, np.random.Generator], list[Array]]:
    """Return ring elements whose distance from each edge is below 2^(bits-1)."""

    def draw(bits: int, rng: np.random.Generator) -> list[Array]:
        top = 1 << (bits - 1)
        x = draw_below(top, rng, [*edges, *(top + e for e in edges)])
        far = np.max([np.abs(x - e) for e in edges], axis=0)
        return [x[far < min(top, ENCODED)]]

    return draw


def erf_edges(f: int) -> Callable[[int, np.random.Generator], list[Array]]:
    """Return |x| < 2^(bits-1) at the edges of erf: between its polynomials, and where it is 1."""
    step = error_function.fit_erf(f).step
    return lambda bits, rng: [draw_below(1 << (bits - 1), rng, [step, 2 * step])]


def draw_multiplied(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return x and 1 with |x| <= 2^(bits-1+DROP) - 2^DROP."""
    x = draw_below((((1 << (bits - 1)) - 1) << DROP) + 1, rng)
    return [x, np.ones_like(x)]


def draw_four(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return [n, 4] with |x| < 2^(bits-2)."""
    return [rng.choice(draw_below(1 << (bits - 2), rng), (40, 4))]


def draw_channels(bits: int, rng: np.random.Generator) -> list[Array]:
    """Return [8, 4] with |x| < 2^(bits-1), whose columns vary no more than the variance may."""
    top = (1 << (bits - 1)) - 1
    spread = min(top // 2, 8 * ONE)
    x = rng.integers(-spread, spread + 1, (8, 4))
    return [x + np.array([spread - top, top - spread, 0, 0])]


def activation_edges(f: int) -> list[int]:
    """Return the points where sigmoid and tanh, a sigmoid with a fractional bit less, compare."""
    return [
        e
        for g in (f, f - 1)
        for e in (
            activations._exponential_cutoff_units(g),
            activations._exponential_cutoff_units(g) + (1 << g),
        )
    ]


# ---- expected results, and calls


def sigmoid(v: Array) -> Array:
    t = np.exp(-np.abs(v))
    return np.asarray(np.where(v >= 0, 1, t) / (1 + t))


def normal_cdf(v: Array) -> Array:
    """Compute the normal distribution function, by its complement."""
    return np.asarray(np.vectorize(math.erfc, [float])(-v / math.sqrt(2)) / 2)


def softmax(v: Array) -> Array:
    e = np.exp(v - v.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def log_softmax(v: Array) -> Array:
    d = v - v.max(-1, keepdims=True)
    return np.asarray(d - np.log(np.exp(d).sum(-1, keepdims=True)))


def cross_entropy_loss(bits: int, x: Array, y: Array) -> Array:
    v = x / ONE
    log = np.log(np.exp(v - v.max(-1, keepdims=True)).sum(-1)) + v.max(-1)
    return np.asarray((log - (v * y / ONE).sum(-1)).sum() * 2.0**cross_entropy.INNER)


def within_ulp(count: float) -> Callable[[Array], Any]:
    return lambda right: count


def within_relative(part: float, count: float) -> Callable[[Array], Any]:
    return lambda right: np.abs(right) * part + count


def plain_inverse(x: Array) -> Array:
    return np.where(x == 0, 0, ONE / np.where(x == 0, 1, x / ONE))


def of_positive(function: Callable[[Array], Array], otherwise: float = 0.0) -> Callable[..., Array]:
    def right(bits: int, x: Array) -> Array:
        return np.where(x > 0, function(np.where(x > 0, x, ONE) / ONE) * ONE, otherwise)

    return right


def plain_quotient(bits: int, x: Array, y: Array) -> Array:
    return np.where(y == 0, 0, x / np.where(y == 0, 1, y) * ONE)


def plain_maximum(bits: int, x: Array) -> Array:
    return np.asarray(x.max(-1))


# ---- operations called with them


def window_images(x: Shared) -> Shared:
    """Return windows of 4 as images of one channel."""
    return shapes.reshape(x, [-1, 2, 2, 1])


def flatten_shares(x: Shared) -> Shared:
    return shapes.reshape(x, [-1])


def pool_windows(p: Party, bits: int, x: Shared, relu: bool) -> Shared:
    pooled_values = pool_gradient.max_pool2d_with_choice(
        p, window_images(x), 2, 2, relu=relu, bits=bits
    )
    return flatten_shares(pooled_values[0])


def normalize_columns(p: Party, bits: int, x: Shared) -> Shared:
    gamma = replace(x.map(lambda a: a[0] * 0), fractional_bits=batch_norm.FACTOR)
    return batch_norm.normalize_batch(p, x, gamma, bits=bits).centered
