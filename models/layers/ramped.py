"""Hard SiLU, which is also called hard swish, and sparse plus."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tfe_bench.models.kinds.kind import Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node
from tfe_bench.models.kinds.passes import Pass
from tfe_bench.models.layers.smooth import Beside
from tfe_bench.protocols.nn import ramped
from tfe_bench.protocols.session.sharing import Shared


class HardSilu(Beside):
    """x min(max(x + 3, 0), 6) / 6."""

    op = "hard_silu"
    functions = ("hard_silu",)
    fractions = (8, 20)
    wide = False
    ramp: ClassVar[ramped.Ramp] = ramped.HARD_SILU

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(v * np.clip(v + 3, 0, 6) / 6)

    def limit(self, node: Node, given: list[int]) -> int | None:
        return node.moved(given)[0] + (1 << node.numbers.fraction) + 2

    def both(self, p: Pass, node: Node, x: Shared) -> tuple[Shared, Shared]:
        return p.ops.call(ramped.ramped, x, self.ramp, node.numbers.bits)


class SparsePlus(HardSilu):
    """0 up to -1, x from 1 on, (x + 1)^2 / 4 between."""

    op = "sparse_plus"
    functions = ("sparse_plus",)
    ramp = ramped.SPARSE_PLUS

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        (v,) = values
        return np.asarray(np.maximum(v - 1, 0) + np.clip(v + 1, 0, 2) ** 2 / 4)
