"""A factor and a shift for each channel: what is left of normalizations and rescalings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.models.kinds.checks import need, only
from tfe_bench.models.kinds.layer import Array, Node, Options, Shape
from tfe_bench.models.layers.linear import Maps, Trained
from tfe_bench.protocols.ring.products import Two, elementwise
from tfe_bench.protocols.session import local


class Affine(Trained):
    """x * kernel + bias."""

    op = "affine"

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        only(options)
        need(kernel == (x[-1],), f"a factor [{x[-1]}]", list(kernel))
        return x

    def multiplied(self, x: Array, kernel: Array, options: Options) -> Array:
        return np.asarray(x * kernel)

    def bilinear(self, options: Options) -> Two:
        return elementwise

    def maps(self, node: Node, x: Shape) -> Maps:
        axes = list(range(len(x) - 1))

        def kernel(a: list[Any], b: list[Any]) -> Any:
            return local.reduce_sum(elementwise(a, b), axes)

        return Maps(elementwise, kernel, elementwise)

    def multiplications(self, kernel: Shape, shape: Shape, given: Shape) -> int:
        return math.prod(shape)
