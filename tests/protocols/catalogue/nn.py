"""Protocols of protocols/nn but those of tests/protocols/gated, which have modules of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.protocols.entry import LOOSE, Entry, reshape_shares, shrink_ring, sign_bits
from tests.protocols.seeded import merge_masks, one_turn_for_all
from tfe_bench.protocols.functions import polynomial
from tfe_bench.protocols.nn import (
    activations,
    adaptive,
    batch_norm,
    cells,
    cross_entropy,
    pool_gradient,
    recurrent,
    relu,
)
from tfe_bench.protocols.ring import products
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared


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


def adaptive_update(party: Party, x: Shared, y: Shared) -> Any:
    """Compute both stages of an update and its root, with few bits to save time."""
    scheme = adaptive._build_scheme()
    (coarse, fine), (first, second) = scheme.stages, scheme.factors

    def bits(stage: Any) -> MaskedBits:
        return sign_bits(party, y.map(lambda a: tensor_ops.tile(a, [64 * len(stage.cuts)])))

    c, u = adaptive._select_variance_segment(party, x, None, bits(coarse), coarse, first, 0)
    drop = adaptive._NORMAL - adaptive._UNITS
    c, u = adaptive._select_variance_segment(party, c, u, bits(fine), fine, second, drop)
    plan = adaptive._fit_reciprocal_root().plan
    return u, polynomial.evaluate_polynomial(party, "adaptive_root", plan, [c], adaptive._ROOT_BITS)


def update_direction(party: Party, x: Shared, y: Shared) -> Any:
    """Compute a direction of an adaptive optimizer; its results for such values are arbitrary."""
    return adaptive.scale_by_root(party, x, replace(y, fractional_bits=40))


def labeled_product(party: Party, x: Shared, y: Shared) -> Any:
    """Compute a product as in the loss."""

    def along(a: list[Any], b: list[Any]) -> Any:
        return sum(tensor_ops.reduce_sum(p * q, [0]) for p, q in zip(a, b, strict=True))

    x, y = reshape_shares(x, 2, 1), reshape_shares(y, 2, 1)
    return products.exchange_sum(party, "label", [products.BilinearShareProduct(x, y, along)])


def normalize_rows(party: Party, x: Shared, y: Shared) -> Any:
    """Compute the correlations and the gradient of a batch normalization of two rows."""
    column, gradient = reshape_shares(x, -1, 1), reshape_shares(y, -1, 1)
    of_channel = replace(y.map(lambda a: a[:1]), fractional_bits=batch_norm.FACTOR)
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


ENTRIES: dict[str, Entry] = {
    "relu": Entry(
        lambda p, x, y: relu.relu(p, x),
        ("inject",),
        n=1,
        slow=True,
        many=lambda p, x, y, _: relu.relu(p, x),
    ),
    "small_relu": Entry(None, many=lambda p, x, y, _: relu.relu(p, shrink_ring(p, x, LOOSE))),
    "sigmoid": Entry(
        lambda p, x, y: activations.sigmoid(p, x, bits=16),
        ("magnitude", "sigmoid", "sigmoid_tail"),
        n=1,
        fractional_bits=8,
    ),
    "softmax": Entry(
        lambda p, x, y: activations.softmax(p, reshape_shares(x, 1, 2), -1, bits=16),
        ("softmax_mantissa", "normalize", "product"),
        n=2,
        fractional_bits=8,
    ),
    "softmax_for_gradient": Entry(
        lambda p, x, y: cross_entropy.softmax_for_gradient(p, reshape_shares(x, 1, 2), bits=24),
        ("below_largest", "softmax_inverse", "softmax_series"),
        n=2,
        fractional_bits=26,
    ),
    "softmax_and_loss": Entry(
        lambda p, x, y: cross_entropy.softmax_and_loss(
            p, reshape_shares(x, 1, 2), replace(reshape_shares(y, 1, 2), fractional_bits=0)
        ),
        ("label", "log"),
        n=2,
        fractional_bits=20,
        slow=True,
    ),
    "label": Entry(labeled_product, ("label",), n=2),
    # (three steps; a loop runs two of them)
    "recurrent": Entry(
        recurrent_steps,
        ("truncated_sum", "harmonics", "pick_small", "extend_small"),
        n=1,
        fractional_bits=13,
        faults={"turns of a loop share a sum's masks": one_turn_for_all("truncated_sum")},
    ),
    "lifted_product": Entry(
        lambda p, x, y: adaptive.lifted_product(p, x, shrink_ring(p, y)),
        ("lifted_product",),
        scalable=True,
        many=lambda p, x, y, _: adaptive.lifted_product(p, x, shrink_ring(p, y, LOOSE)),
    ),
    "adaptive": Entry(
        adaptive_update,
        ("adaptive_select", "adaptive_root"),
        n=1,
        faults={
            "an update exchanges twice under one mask": merge_masks("adaptive_select", {4: 3}),
        },
    ),
    "update": Entry(
        update_direction,
        ("adaptive_select", "adaptive_root", "lifted_product"),
        n=1,
        slow=True,
        many=lambda p, x, y, _: update_direction(p, x, y),
    ),
    "batch_norm": Entry(
        normalize_rows,
        ("squares", "correlation", "batch_norm_gradient"),
        n=2,
        fractional_bits=16,
    ),
    "unpool": Entry(
        unpool_windows,
        ("unpool",),
        n=2,
        counted=False,
        faults={
            "a pool's gradient exchanges under a dealt mask": merge_masks("unpool", {5: 0}),
        },
    ),
}
