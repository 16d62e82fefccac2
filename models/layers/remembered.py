"""The key-value cache of decoding: keys and values of all positions so far, as shares.

Decoding derives these layers from the model's own (decoding.py), for one position at a time. The
position is public and is an input of the graph: one graph serves all positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.attend import DotProductAttention
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.session import tensor_ops
from tfe_bench.protocols.session.sharing import Shared

# Key in ForwardContext.public: the position of the step, from 0.
POSITION = "position"


class DecodingKind(L.Kind):
    """A kind for one position, which does not occur in predictions."""

    @property
    def can_predict(self) -> bool:
        return False


class KeyValueCache(DecodingKind):
    """Rows [..., bucket, depth], with the row of a position replaced. Local."""

    op = "remember"

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_weights(weights)
        L.check_options(options)
        L.check_value(len(input_shapes) == 2, "rows and a row", len(input_shapes))
        rows, row = input_shapes
        fits = len(rows) == len(row) >= 2 and (*rows[:-2], 1, rows[-1]) == row
        L.check_value(fits, "[..., bucket, depth] and [..., 1, depth]", [list(rows), list(row)])
        return rows

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        return max(input_limits)

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        rows, row = values
        here = _one_hot_position(p.public[POSITION], node.shape[-2])
        kept_rows = p.ops.mul_public(rows, 1 - here)
        return p.ops.add(kept_rows, p.ops.mul_public(row, here))


class CachedAttention(DotProductAttention, DecodingKind):
    """Attention of one query to the keys up to its position."""

    op = "attend_remembered"

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        output_shape = super().infer_shape(input_shapes, options, weights)
        L.check_value(
            len(input_shapes) == 3 and output_shape[-2] == 1,
            "one query and no mask",
            list(map(list, input_shapes)),
        )
        return output_shape

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        raise NotImplementedError

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        return self._run_attention(p, node, values, last=p.public[POSITION])


def _one_hot_position(position: Any, count: int) -> Any:
    """Return int64 [count, 1] with a 1 at a position."""
    positions = np.arange(count)[:, None]
    if not tensor_ops.is_tensor(position):
        return (positions == int(position)).astype(np.int64)
    return tf.cast(positions == tf.cast(position, tf.int64), tf.int64)
