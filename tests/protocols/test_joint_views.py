"""What each party receives, all of it together, says nothing: see joint_views.py.

A new protocol needs a line in ROWS (the last test but one fails without it) and a fault that is
caught (FAULTS).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.protocols.joint_views import Row, check, explain
from tfe_bench.models import linear
from tfe_bench.protocols import (
    activations,
    adaptive,
    arithmetic,
    backward,
    batch_norm,
    compare,
    conv,
    convert,
    cross_entropy,
    exp_select,
    exponential,
    extremes,
    io,
    logarithm,
    logic,
    normalize,
    piecewise,
    polynomial,
    pool_gradient,
    product,
    reciprocal,
    reductions,
    refresh,
    relational,
    relu,
    rotation,
    rss,
    shuffle,
    small_ring,
    sort,
    truncation,
    wide_arithmetic,
)
from tfe_bench.protocols.party import Party, Site
from tfe_bench.protocols.sharing import MaskedBits, Shared

K = 5  # bits of the comparisons that only feed other protocols
SMALL = 19  # bits of the small rings


def shaped(x: Shared, *shape: int) -> Shared:
    import tensorflow as tf

    return x.map(lambda a: tf.reshape(a, shape))


def signs(party: Party, x: Shared) -> MaskedBits:
    return convert.open_bits(party, compare.msb(party, x, K, 1))


def small(party: Party, x: Shared) -> Shared:
    return truncation.truncate_reduce(party, x, 16, SMALL)


def owned(party: Party, x: Shared, y: Shared) -> Any:
    import tensorflow as tf

    known = tf.constant([5, -7, 0], tf.int64)
    return [io.input_by(party, p, known if party.index == p else None, (3,)) for p in range(3)]


def published(party: Party, x: Shared, y: Shared) -> Any:
    """A product for each reader, in the whole ring, in a small one and in two words."""
    z = arithmetic.mul(party, x, y)
    wide = convert.extend(party, arithmetic.mul(party, x, x), 4)
    values = [z, small_ring.reduced(z, 8), wide]
    return [io.reveal(party, v, to) for v in values for to in (None, 0, 1, 2)]


def shuffled(party: Party, x: Shared, y: Shared) -> Any:
    """The secret order shows in nothing but the bits, and they in nothing at all."""
    columns = shuffle.shuffle(party, [shaped(c, 1, -1) for c in (x, y)])
    first, second = (columns[0].map(lambda a, i=i: a[0, i : i + 1]) for i in (0, 1))
    return io.reveal_bits(party, compare.msb(party, arithmetic.sub(first, second), K, 1))


def sums(party: Party, x: Shared, y: Shared) -> Any:
    products = [linear.Product(x, y, linear.elementwise), linear.Product(y, y, linear.elementwise)]
    addend = arithmetic.add(x, y)
    return linear.product_sum(party, products, addend), linear.truncated_sum(
        party, products, addend, 16, SMALL
    )


def convolved(party: Party, x: Shared, y: Shared) -> Any:
    image, kernel = shaped(x, 1, 2, 2, 1), shaped(y, 2, 2, 1, 1)
    return conv.conv2d(party, image, kernel), conv.depthwise_conv2d(party, image, kernel)


def normalised(party: Party, x: Shared, y: Shared) -> Any:
    """The correlations and the gradient of a batch normalisation of two rows."""
    import tensorflow as tf

    column, gradient = shaped(x, -1, 1), shaped(y, -1, 1)
    of_channel = replace(y.map(lambda a: tf.identity(a[:1])), fractional_bits=batch_norm.FACTOR)
    held = batch_norm.Normalised(batch_norm.numbers(2), column, *[of_channel] * 5)
    squares = batch_norm._correlation(party, "squares", column, column)
    return squares, batch_norm.backward(party, held, gradient).x


def routed(party: Party, x: Shared, y: Shared) -> Any:
    """The gradient of two windows of two cells."""
    import tensorflow as tf

    g = pool_gradient.geometry("route", [1, 2, 2, 1], (1, 2), (1, 2))
    count = tf.constant(len(g.order) * g.width, tf.int64)
    bits = signs(party, x.map(lambda a: tf.tile(a, [len(g.order) * g.width // 2])))
    choice = pool_gradient.Choice(replace(bits, n=count), g, False)
    return pool_gradient.route(party, choice, shaped(y, 1, 2, 1, 1), 13)


ROWS: dict[str, Row] = {
    "input": Row(owned, ("input",)),
    "reveal": Row(published, ("reveal", "extend"), n=1, publishes=True),
    "mul": Row(lambda p, x, y: arithmetic.mul(p, x, y), ("mul",)),
    "matmul": Row(
        lambda p, x, y: arithmetic.matmul(p, shaped(x, 2, 2), shaped(y, 2, 2)), ("matmul",), n=4
    ),
    "square": Row(lambda p, x, y: reductions.square(p, x), ("square",)),
    "rss_mul": Row(lambda p, x, y: rss.mul(p, x, y), ("rss_mul",)),
    "conv": Row(convolved, ("conv2d", "depthwise_conv2d"), n=4),
    "truncate_safe": Row(lambda p, x, y: truncation.truncate(p, x, 13), ("truncate_safe",)),
    "truncate_probable": Row(
        lambda p, x, y: truncation.truncate(p, x, 13, "probable"), ("truncate_probable",)
    ),
    "truncate_reduce": Row(lambda p, x, y: small(p, x), ("truncate_reduce",)),
    "truncated_product": Row(
        lambda p, x, y: relu.truncated_product(
            p, x, y, 16, SMALL, arithmetic._elementwise, arithmetic.add(x, y)
        ),
        ("truncated_product",),
    ),
    "sums": Row(sums, ("product_sum", "truncated_sum")),
    "wide_mul": Row(lambda p, x, y: wide_arithmetic.mul(p, x, y), ("wide_mul",), limbs=2),
    "wide_truncate_safe": Row(
        lambda p, x, y: wide_arithmetic.truncate(p, x, 13, "safe"),
        ("wide_truncate_safe",),
        limbs=2,
    ),
    "wide_truncate_probable": Row(
        lambda p, x, y: wide_arithmetic.truncate(p, x, 13, "probable"),
        ("wide_truncate_probable",),
        limbs=2,
    ),
    "msb": Row(
        lambda p, x, y: convert.open_bits(p, compare.msb(p, x, 16, 3)), ("msb", "open_bits")
    ),
    "msb_top": Row(
        lambda p, x, y: convert.open_bits(p, compare.msb(p, x, 9, 2, absorb=False)), ("msb",)
    ),
    "reveal_bits": Row(
        lambda p, x, y: io.reveal_bits(p, compare.msb(p, x, 9, 2)),
        ("reveal_bits",),
        publishes=True,
    ),
    "b2a": Row(lambda p, x, y: convert.b2a(p, signs(p, x)), ("b2a",)),
    "inject": Row(lambda p, x, y: convert.inject(p, signs(p, x), y), ("inject",)),
    "inject_wide": Row(
        lambda p, x, y: convert.inject(p, signs(p, x), convert.extend(p, y, 1)), ("inject",), n=1
    ),
    "inject_small": Row(
        lambda p, x, y: convert.inject(p, signs(p, x), small(p, y), extend_ring=True), ("inject",)
    ),
    "inject_truncated": Row(
        lambda p, x, y: backward.inject_truncated(p, signs(p, x), y, 13), ("inject_truncated",)
    ),
    "all_of": Row(
        lambda p, x, y: convert.open_bits(
            p, logic.all_of(p, [signs(p, x), signs(p, y), logic.invert(signs(p, x))])
        ),
        ("all_of",),
    ),
    "select": Row(
        lambda p, x, y: small_ring.select(p, signs(p, x), small(p, x), small(p, y)), ("select",)
    ),
    "extend_small": Row(lambda p, x, y: small_ring.lift(p, small(p, x)), ("extend_small",)),
    "refresh": Row(
        lambda p, x, y: refresh.refresh(p, arithmetic.add(x, refresh.refresh(p, x))), ("refresh",)
    ),
    "refresh_wide": Row(lambda p, x, y: refresh.refresh(p, x), ("refresh",), limbs=2),
    "shuffle": Row(shuffled, ("shuffle",), n=2),
    "argmax": Row(
        lambda p, x, y: extremes._extreme(
            p, "argmax", shaped(x, 2, 1), 0, False, 4, "all-pairs", "local", 1, index=True
        ),
        ("pick", "index"),
        n=2,
    ),
    "renamed": Row(
        lambda p, x, y: [
            convert.inject(p, signs(p, a), arithmetic.mul(p, a, a))
            for a in (rotation.named(p, x, (x.dealer + turn) % 3) for turn in (1, 2))
        ],
        ("inject",),
        n=1,
    ),
    "exp_one_round": Row(
        lambda p, x, y: exponential.exp(p, x, "one-round"), ("exp_one_round",), fractional_bits=16
    ),
    "exp_prime": Row(
        lambda p, x, y: exponential.exp(p, x, "prime"), ("exp_prime",), fractional_bits=16
    ),
    "exp_clamp": Row(
        lambda p, x, y: exponential.exp(p, x, "one-round", "both"),
        ("exp_clamp",),
        n=1,
        fractional_bits=16,
    ),
    "exp_pade": Row(
        lambda p, x, y: exponential.exp(p, x, "pade"), ("pade_factors",), n=1, fractional_bits=16
    ),
    "select_exp": Row(
        lambda p, x, y: exp_select.select_exp(p, signs(p, x), y),
        ("select_exp",),
        fractional_bits=16,
    ),
    "sigmoid": Row(
        lambda p, x, y: activations.sigmoid(p, x, bits=20),
        ("magnitude", "sigmoid", "sigmoid_tail"),
        n=1,
        fractional_bits=16,
    ),
    "softmax": Row(
        lambda p, x, y: activations.softmax(p, shaped(x, 1, 2), -1, bits=20),
        ("softmax_mantissa", "normalize", "product"),
        n=2,
        fractional_bits=16,
    ),
    "softmax_and_loss": Row(
        lambda p, x, y: cross_entropy.softmax_and_loss(
            p, shaped(x, 1, 2), replace(shaped(y, 1, 2), fractional_bits=0)
        ),
        ("below_largest", "softmax_inverse", "softmax_series", "label"),
        n=2,
        fractional_bits=20,
    ),
    "log": Row(
        lambda p, x, y: logarithm.log(p, x, bits=8), ("log", "normalize"), n=1, fractional_bits=4
    ),
    "reciprocal": Row(
        lambda p, x, y: reciprocal.reciprocal(p, x, bits=8),
        ("mantissa", "product", "normalize"),
        n=1,
        fractional_bits=6,
    ),
    "reciprocal_in": Row(
        lambda p, x, y: reciprocal.reciprocal_in(p, x, 1.0, 2.0), ("reciprocal_in",),
        fractional_bits=12,
    ),
    "polyval": Row(
        lambda p, x, y: polynomial.polyval(p, [1.0, -0.5, 0.25], x, 20),
        ("polyval",),
        fractional_bits=12,
    ),
    "logistic": Row(
        lambda p, x, y: piecewise.logistic(p, x, bits=28), ("logistic",), n=1, fractional_bits=20
    ),
    "lifted_product": Row(
        lambda p, x, y: adaptive.lifted_product(p, x, small(p, y)), ("lifted_product",)
    ),
    "direction": Row(
        lambda p, x, y: adaptive.direction(p, x, replace(y, fractional_bits=40)),
        ("adaptive_select", "adaptive_root", "lifted_product"),
        n=1,
    ),
    "batch_norm": Row(
        normalised,
        ("squares", "correlation", "batch_norm_gradient"),
        n=2,
        fractional_bits=16,
    ),
    "route": Row(routed, ("route",), n=2),
}
