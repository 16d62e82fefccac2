"""A factor and a shift for each channel: what is left of normalizations and rescalings."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.models.kinds.checks import need, only
from tfe_bench.models.kinds.layer import Array, Options, Shape
from tfe_bench.models.layers.linear import Linear
from tfe_bench.protocols.ring.products import Two, elementwise


class Affine(Linear):
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

    def multiplications(self, kernel: Shape, shape: Shape, given: Shape) -> int:
        return math.prod(shape)
