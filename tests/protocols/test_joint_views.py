"""All messages that each party receives, together, disclose nothing: see joint_views.py.

A new protocol needs a row in ROWS, which names its sites (otherwise the last test fails), and a
separate fault in FAULTS of test_joint_faults.py, which the check catches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.protocols.gated import FUNCTIONS
from tests.protocols.joint_tables import (
    K,
    compare_shuffled,
    permute_and_back,
    reshape_shares,
    share_and_exchange,
    sign_bits,
    sum_by_codes,
)
from tests.protocols.joint_views import Row, check_row
from tests.protocols.viewed import sum_products
from tfe_bench.protocols.functions import (
    bit_planes,
    error_function,
    exp2,
    exp_select,
    exponential,
    harmonics,
    logarithm,
    piecewise,
    polynomial,
    reciprocal,
    trigonometry,
)
from tfe_bench.protocols.nn import (
    activations,
    adaptive,
    batch_norm,
    cells,
    cross_entropy,
    linear,
    pool_gradient,
    recurrent,
    relu,
)
from tfe_bench.protocols.order import extremes, row_maximum, sort, winner
from tfe_bench.protocols.ring import (
    arithmetic,
    backward,
    compare,
    conv,
    convert,
    logic,
    products,
    range_check,
    reductions,
    refresh,
    rotation,
    rss,
    small_ring,
    truncation,
    wide_arithmetic,
)
from tfe_bench.protocols.session import io, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

SMALL = 19  # bits of the small rings


# Two harmonics, of period 4.
SHORT = harmonics.Series(2, 1, (1000, 40_000, -9000, 3000, 20_000))


def noisy_product(party: Party, x: Shared, y: Shared) -> Any:
    """Compute a product with the dealer's addend."""
    import tensorflow as tf

    own = tf.constant([5, -7, 1 << 16], tf.int64) if party.index == x.dealer else None
    terms = [products.BilinearShareProduct(x, y, products.sum_elementwise_products)]
    return products.exchange_truncated_sum(party, "truncated_sum", terms, None, 16, SMALL, 0, own)[
        0
    ]


def recurrent_steps(party: Party, x: Shared, y: Shared) -> Shared:
    """Compute three steps of a layer of one unit, with a mask."""
    cell = cells.RecurrentCell("simple", series=True)
    numbers = cells.derive_recurrent_format(cell, 13, 26, 16, 3)
    samples = reshape_shares(x, 1, 1, 1).map(lambda a: tensor_ops.tile(a, [1, 3, 1]))
    weights = [recurrent.RecurrentWeights(reshape_shares(x, 1, 1), reshape_shares(y, 1, 1))]
    mask = reshape_shares(replace(y, fractional_bits=0), 1, 1).map(
        lambda a: tensor_ops.tile(a, [1, 3])
    )
    return recurrent.run_recurrent(party, cell, samples, weights, numbers, mask=mask).output


def shrink_ring(party: Party, x: Shared) -> Shared:
    return truncation.truncate_reduce(party, x, 16, SMALL)


def owned_inputs(party: Party, x: Shared, y: Shared) -> Any:
    import tensorflow as tf

    known = tf.constant([5, -7, 0], tf.int64)
    return [io.share_input(party, p, known if party.index == p else None, (3,)) for p in range(3)]


def open_product(party: Party, x: Shared, y: Shared) -> Any:
    """Open a product for each reader, in the whole ring and in a small one."""
    z = arithmetic.mul(party, x, y)
    values = [z, small_ring.reduce_ring(z, 8)]
    return [io.reveal(party, v, to) for v in values for to in (None, 0, 1, 2)]


def checked_relu(party: Party, x: Shared, y: Shared) -> Any:
    """Compute a ReLU of a sum, and one flag for values that left their range."""
    watch = range_check.RangeMonitor(party, 1, x.dealer)
    product = products.BilinearShareProduct(
        reshape_shares(x, 1, -1), reshape_shares(y, 1, -1), products.sum_elementwise_products
    )
    narrow, u = products.exchange_truncated_sum(
        party, "truncated_sum", [product], None, 16, SMALL, 40
    )
    beside = linear.monitored_lift(party, watch, narrow, u, 24, SMALL, SMALL - 1)
    linear.monitor_range(party, watch, x, 40)
    return relu.relu(party, beside), watch.compute_flag()


def powers_and_sum(party: Party, x: Shared, y: Shared) -> Any:
    """Compute powers of two and their sum."""
    t = small_ring.reduce_ring(x, exp2.exponent_ring_bits(x.fractional_bits))
    return exp2.exp2(party, t, 14, 38, lambda a: tensor_ops.reshape(a, [1, -1]))


def convolve_images(party: Party, x: Shared, y: Shared) -> Any:
    image, kernel = reshape_shares(x, 1, 2, 2, 1), reshape_shares(y, 2, 2, 1, 1)
    return conv.conv2d(party, image, kernel), conv.depthwise_conv2d(party, image, kernel)


def adaptive_update(party: Party, x: Shared, y: Shared) -> Any:
    """Compute both stages of an update and its root, with few bits to save time."""
    import tensorflow as tf

    scheme = adaptive._build_scheme()
    (coarse, fine), (first, second) = scheme.stages, scheme.factors

    def bits(stage: Any) -> MaskedBits:
        return sign_bits(party, y.map(lambda a: tf.tile(a, [64 * len(stage.cuts)])))

    c, u = adaptive._select_variance_segment(party, x, None, bits(coarse), coarse, first, 0)
    drop = adaptive._NORMAL - adaptive._UNITS
    c, u = adaptive._select_variance_segment(party, c, u, bits(fine), fine, second, drop)
    plan = adaptive._fit_reciprocal_root().plan
    return u, polynomial.evaluate_polynomial(party, "adaptive_root", plan, [c], adaptive._ROOT_BITS)


def labeled_product(party: Party, x: Shared, y: Shared) -> Any:
    """Compute a product as in the loss."""
    import tensorflow as tf

    def along(a: list[Any], b: list[Any]) -> Any:
        return sum(tf.reduce_sum(p * q, axis=0) for p, q in zip(a, b, strict=True))

    x, y = reshape_shares(x, 2, 1), reshape_shares(y, 2, 1)
    return products.exchange_sum(party, "label", [products.BilinearShareProduct(x, y, along)])


def normalize_rows(party: Party, x: Shared, y: Shared) -> Any:
    """Compute the correlations and the gradient of a batch normalization of two rows."""
    import tensorflow as tf

    column, gradient = reshape_shares(x, -1, 1), reshape_shares(y, -1, 1)
    of_channel = replace(y.map(lambda a: tf.identity(a[:1])), fractional_bits=batch_norm.FACTOR)
    held = batch_norm.NormalizedBatch(batch_norm.plan_batch_norm(2), column, *[of_channel] * 5)
    squares = batch_norm._channel_correlation(party, "squares", column, column)
    return squares, batch_norm.batch_norm_gradients(party, held, gradient).x


def unpool_windows(party: Party, x: Shared, y: Shared) -> Any:
    """Compute the gradient of two windows of two cells."""
    import tensorflow as tf

    g = pool_gradient.pooling_window_geometry("unpool", [1, 2, 2, 1], (1, 2), (1, 2))
    count = tf.constant(len(g.order) * g.padded_windows, tf.int64)
    bits = sign_bits(party, x.map(lambda a: tf.tile(a, [len(g.order) * g.padded_windows // 2])))
    choice = pool_gradient.PoolChoice(replace(bits, n=count), g, False)
    return pool_gradient.unpool_gradient(party, choice, reshape_shares(y, 1, 2, 1, 1), 13)


def reuse_shares(party: Party, x: Shared, y: Shared) -> Any:
    """Use the same shares in two graph calls, like a model's weights in two jobs."""
    times = party.cached_function("kept", lambda: lambda a, b: arithmetic.mul(party, a, b))
    return [times(x, y) for _ in range(2)]


ROWS: dict[str, Row] = {
    "input": Row(owned_inputs, ("input",)),
    "reveal": Row(open_product, ("reveal",), publishes=True),
    "mul": Row(lambda p, x, y: arithmetic.mul(p, x, y), ("mul",)),
    "matmul": Row(
        lambda p, x, y: arithmetic.matmul(p, reshape_shares(x, 2, 2), reshape_shares(y, 2, 2)),
        ("matmul",),
        n=4,
    ),
    "square": Row(lambda p, x, y: reductions.square(p, x), ("square",)),
    "rss_mul": Row(lambda p, x, y: rss.mul_replicated(p, x, y), ("rss_mul",)),
    "conv": Row(convolve_images, ("conv2d", "depthwise_conv2d"), n=4),
    "truncate_safe": Row(lambda p, x, y: truncation.truncate(p, x, 13), ("truncate_safe",)),
    "truncate_probable": Row(
        lambda p, x, y: truncation.truncate(p, x, 13, "probable"), ("truncate_probable",)
    ),
    "truncate_reduce": Row(lambda p, x, y: shrink_ring(p, x), ("truncate_reduce",)),
    "truncated_product": Row(
        lambda p, x, y: relu.truncated_product(
            p, x, y, 16, SMALL, products.sum_elementwise_products, arithmetic.add(x, y)
        ),
        ("truncated_product",),
    ),
    "sums": Row(lambda p, x, y: sum_products(p, x, y, SMALL), ("product_sum", "truncated_sum")),
    "noisy": Row(noisy_product, ("truncated_sum",)),
    "watched": Row(
        checked_relu, ("watch", "watch_zero", "watch_flag", "truncated_sum", "extend_small"), n=2
    ),
    "in_range": Row(lambda p, x, y: range_check.in_range(p, x, K), ("all_of",), n=1),
    "truncate_exact": Row(
        lambda p, x, y: io.reveal(p, truncation.truncate(p, x, 5, "exact")),
        ("truncate_safe", "b2a"),
        publishes=True,
    ),
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
        lambda p, x, y: convert.mask_bits(p, compare.msb(p, x, 16, 3)), ("msb", "mask_bits")
    ),
    "msb_top": Row(
        lambda p, x, y: convert.mask_bits(p, compare.msb(p, x, 9, 2, absorb=False)), ("msb",)
    ),
    "reveal_bits": Row(
        lambda p, x, y: io.reveal_bits(p, compare.msb(p, x, 9, 2)),
        ("reveal_bits",),
        publishes=True,
    ),
    "b2a": Row(lambda p, x, y: convert.b2a(p, sign_bits(p, x)), ("b2a",)),
    "inject": Row(lambda p, x, y: convert.inject(p, sign_bits(p, x), y), ("inject",)),
    "inject_wide": Row(
        lambda p, x, y: convert.inject(p, sign_bits(p, x), convert.extend_to_wide(p, y, 1)),
        ("extend", "inject"),
        n=1,
    ),
    "inject_small": Row(
        lambda p, x, y: convert.inject(p, sign_bits(p, x), shrink_ring(p, y), extend_ring=True),
        ("inject",),
    ),
    "inject_truncated": Row(
        lambda p, x, y: backward.inject_truncated(p, sign_bits(p, x), y, 13), ("inject_truncated",)
    ),
    "all_of": Row(
        lambda p, x, y: convert.mask_bits(
            p,
            logic.and_bits(
                p, [sign_bits(p, x), sign_bits(p, y), logic.invert_bits(sign_bits(p, x))]
            ),
        ),
        ("all_of",),
    ),
    "select": Row(
        lambda p, x, y: small_ring.select(p, sign_bits(p, x), shrink_ring(p, x), shrink_ring(p, y)),
        ("select",),
    ),
    "extend_small": Row(
        lambda p, x, y: small_ring.lift_signed(p, shrink_ring(p, x)), ("extend_small",)
    ),
    "extend_some": Row(
        lambda p, x, y: small_ring.lift_with_shares(p, shrink_ring(p, x), 30, 50)[0],
        ("extend_small",),
    ),
    "refresh": Row(
        lambda p, x, y: refresh.refresh(p, arithmetic.add(x, refresh.refresh(p, x))), ("refresh",)
    ),
    "refresh_wide": Row(lambda p, x, y: refresh.refresh(p, x), ("refresh",), limbs=2),
    "shuffle": Row(compare_shuffled, ("shuffle",), n=2),
    "rearranged": Row(permute_and_back, ("order", "shuffle", "undo"), n=2),
    "rearranged, the end of it": Row(partial(permute_and_back, begin=1), ("undo",), n=2),
    "dense": Row(sum_by_codes, ("dense_sums", "dense_totals"), n=2, whole=True),
    "bits": Row(share_and_exchange, ("split_bits", "exchange_bits", "b2a")),
    "weighed": Row(
        lambda p, x, y: bit_planes.sum_weighted_planes(p, sign_bits(p, x), np.array([1, -2]), [1]),
        ("weighed",),
        n=2,
    ),
    "sort": Row(
        lambda p, x, y: sort.sort(p, x, algorithm="all-pairs", full_range=False),
        ("shuffle", "reveal_bits"),
        n=2,
        whole=True,
        slow=True,
    ),
    "kept": Row(reuse_shares, ("mul",), whole=True),
    "relu": Row(lambda p, x, y: relu.relu(p, x), ("inject",), n=1, slow=True),
    "argmax": Row(
        lambda p, x, y: extremes._find_extreme(
            p, reshape_shares(x, 2, 1), "all-pairs", 4, 1, index=True
        ),
        ("pick", "index"),
        n=2,
    ),
    "renamed": Row(
        lambda p, x, y: [
            convert.inject(p, sign_bits(p, a), arithmetic.mul(p, a, a))
            for a in (rotation.relabel_dealer(p, x, (x.dealer + turn) % 3) for turn in (1, 2))
        ],
        ("inject",),
        n=1,
    ),
    "handed": Row(
        lambda p, x, y: [
            arithmetic.mul(p, a, a)
            for a in (rotation.refresh_for_dealer(p, x, (x.dealer + turn) % 3) for turn in (1, 2))
        ],
        ("refresh", "mul"),
        n=2,
    ),
    "exp_one_round": Row(
        lambda p, x, y: exponential.exp(p, x, "one-round"), ("exp_one_round",), fractional_bits=16
    ),
    "exp2": Row(powers_and_sum, ("exp2",), n=2, fractional_bits=12),
    "row_maximum": Row(
        lambda p, x, y: row_maximum.row_maximum(
            p, small_ring.reduce_ring(x, K), np.array([1, 2]), K
        ),
        ("pick_small", "all_of"),
    ),
    "winner": Row(
        lambda p, x, y: winner.argmax_one_hot(
            p, reshape_shares(small_ring.reduce_ring(x, K), 1, -1)
        ),
        ("b2a",),
    ),
    "exp_prime": Row(
        lambda p, x, y: exponential.exp(p, x, "prime"), ("exp_prime",), fractional_bits=16
    ),
    "exp_clamp": Row(
        lambda p, x, y: exponential.exp(p, x, "one-round", "low"),
        ("exp_clamp",),
        n=1,
        fractional_bits=16,
    ),
    "exp_pade": Row(
        lambda p, x, y: exponential.exp(p, x, "pade"), ("pade_factors",), n=1, fractional_bits=4
    ),
    "select_exp": Row(
        lambda p, x, y: exp_select.select_exp(p, sign_bits(p, x), y),
        ("select_exp",),
        fractional_bits=16,
    ),
    "sigmoid": Row(
        lambda p, x, y: activations.sigmoid(p, x, bits=16),
        ("magnitude", "sigmoid", "sigmoid_tail"),
        n=1,
        fractional_bits=8,
    ),
    **{name: row for each in FUNCTIONS.values() for name, row in each.joint_view_rows().items()},
    "softmax": Row(
        lambda p, x, y: activations.softmax(p, reshape_shares(x, 1, 2), -1, bits=16),
        ("softmax_mantissa", "normalize", "product"),
        n=2,
        fractional_bits=8,
    ),
    "softmax_for_gradient": Row(
        lambda p, x, y: cross_entropy.softmax_for_gradient(p, reshape_shares(x, 1, 2), bits=24),
        ("below_largest", "softmax_inverse", "softmax_series"),
        n=2,
        fractional_bits=26,
    ),
    "softmax_and_loss": Row(
        lambda p, x, y: cross_entropy.softmax_and_loss(
            p, reshape_shares(x, 1, 2), replace(reshape_shares(y, 1, 2), fractional_bits=0)
        ),
        ("label", "log"),
        n=2,
        fractional_bits=20,
        slow=True,
    ),
    "label": Row(labeled_product, ("label",), n=2),
    "log": Row(
        lambda p, x, y: logarithm.log(p, x, bits=3), ("log", "normalize"), n=1, fractional_bits=2
    ),
    "reciprocal": Row(
        lambda p, x, y: reciprocal.reciprocal(p, x, bits=8),
        ("mantissa", "product", "normalize"),
        n=1,
        fractional_bits=6,
        slow=True,
    ),
    "reciprocal_of_a_few_binades": Row(
        lambda p, x, y: reciprocal.reciprocal_in(p, x, 1.0, 4.0),
        ("mantissa", "product", "normalize"),
        n=1,
        fractional_bits=8,
    ),
    "reciprocal_in": Row(
        lambda p, x, y: reciprocal.reciprocal_in(p, x, 1.0, 2.0),
        ("reciprocal_in",),
        fractional_bits=12,
    ),
    "polyval": Row(
        lambda p, x, y: polynomial.polyval(p, [1.0, -0.5, 0.25], x, 20),
        ("polyval",),
        fractional_bits=12,
    ),
    "erf": Row(
        lambda p, x, y: error_function.fit_erf(12).first.evaluate(p, "erf", x),
        ("erf",),
        n=1,
        fractional_bits=12,
    ),
    "sine": Row(
        lambda p, x, y: trigonometry._fit_quarter_sine(4).evaluate(p, "sine", x), ("sine",), n=1
    ),
    "atan": Row(
        lambda p, x, y: trigonometry._fit_arctangent(8).evaluate(p, "atan", x),
        ("atan",),
        n=1,
        fractional_bits=8,
    ),
    "harmonics": Row(
        lambda p, x, y: harmonics.evaluate_series(p, "harmonics", SHORT, x, 12, 16),
        ("harmonics",),
        n=1,
        fractional_bits=12,
    ),
    # (three steps; a loop runs two of them)
    "recurrent": Row(
        recurrent_steps,
        ("truncated_sum", "harmonics", "pick_small", "extend_small"),
        n=1,
        fractional_bits=13,
    ),
    "logistic": Row(
        lambda p, x, y: piecewise.logistic(p, x, bits=28), ("logistic",), n=1, fractional_bits=20
    ),
    "lifted_product": Row(
        lambda p, x, y: adaptive.lifted_product(p, x, shrink_ring(p, y)), ("lifted_product",)
    ),
    "adaptive": Row(adaptive_update, ("adaptive_select", "adaptive_root"), n=1),
    "update": Row(
        lambda p, x, y: adaptive.scale_by_root(p, x, replace(y, fractional_bits=40)),
        ("adaptive_select", "adaptive_root", "lifted_product"),
        n=1,
        slow=True,
    ),
    "batch_norm": Row(
        normalize_rows,
        ("squares", "correlation", "batch_norm_gradient"),
        n=2,
        fractional_bits=16,
    ),
    "unpool": Row(unpool_windows, ("unpool",), n=2),
}
EDGES = (0, 1, 63, 64, 65)
# Rows whose protocols take any number of elements.
SCALABLE = (
    *("mul", "rss_mul", "truncate_safe", "truncate_reduce", "truncated_product", "sums", "msb"),
    *("wide_mul", "wide_truncate_safe", "reveal_bits", "b2a", "inject", "inject_small", "select"),
    *("inject_truncated", "all_of", "extend_small", "refresh", "exp_one_round", "select_exp"),
    *("lifted_product", "polyval", "extend_some"),
)


def assert_simulatable(row: Row, dealer: int, n: int | None = None) -> None:
    outcome = check_row(row, dealer, n)
    assert set(row.sites) <= outcome.names
    assert n == 0 or sum(outcome.regions) > 0
    assert outcome.unexplained == ([], [], [])


@pytest.mark.parametrize(
    ("name", "dealt_by"),  # (conftest keeps only one value of parameters called `dealer`)
    [
        pytest.param(name, d, marks=[pytest.mark.slow] * (row.slow or d != i % 3))
        for i, (name, row) in enumerate(ROWS.items())
        for d in range(3)
    ],
)
def test_all_that_a_party_receives_is_simulatable_together(name: str, dealt_by: int) -> None:
    assert_simulatable(ROWS[name], dealt_by)


@pytest.mark.parametrize(
    ("name", "n"),
    [
        pytest.param(name, n, marks=[] if name == "inject_small" else [pytest.mark.slow])
        for name in SCALABLE
        for n in EDGES
    ],
)
def test_no_size_makes_it_otherwise(name: str, n: int) -> None:
    assert_simulatable(ROWS[name], n % 3, n)
