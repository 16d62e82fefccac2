"""What decoding does step by step: keys and values of the positions so far, as shares.

These layers are made of a model's own (decoding.py), for one position at a time.  The position is
public and known when the graph runs: one graph is for all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.models.kinds.checks import held, need, only
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.layers.attend import Attend
from tfe_bench.protocols.session import local
from tfe_bench.protocols.session.sharing import Shared

# Of Pass.public: the position of the step, from 0.
POSITION = "position"


class Stepped(Kind):
    """A kind for one position, which predictions lack."""

    @property
    def predicts(self) -> bool:
        return False


class Remember(Stepped):
    """Rows [..., bucket, depth], with the one of a position in its place.  Local."""

    op = "remember"

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        held(weights)
        only(options)
        need(len(given) == 2, "rows and a row", len(given))
        rows, row = given
        fits = len(rows) == len(row) >= 2 and (*rows[:-2], 1, rows[-1]) == row
        need(fits, "[..., bucket, depth] and [..., 1, depth]", [list(rows), list(row)])
        return rows

    def limit(self, node: Node, given: list[int]) -> int | None:
        return max(given)

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        rows, row = values
        here = _one_hot(p.public[POSITION], node.shape[-2])
        kept = p.ops.times(rows, 1 - here)
        return p.ops.add(kept, p.ops.times(row, here))


class AttendRemembered(Attend, Stepped):
    """Attention of one query to the keys up to its position."""

    op = "attend_remembered"

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        found = super().shape(given, options, weights)
        need(len(given) == 3 and found[-2] == 1, "one query and no mask", list(map(list, given)))
        return found

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        raise NotImplementedError

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        return self._attended(p, node, values, last=p.public[POSITION])


def _one_hot(position: Any, count: int) -> Any:
    """int64 [count, 1] with a 1 at a position."""
    own = np.arange(count)[:, None]
    if not local.is_tensor(position):
        return (own == int(position)).astype(np.int64)
    import tensorflow as tf

    return tf.cast(own == tf.cast(position, tf.int64), tf.int64)
