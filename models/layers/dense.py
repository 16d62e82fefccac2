"""Dense: a matrix product along the last axis."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.models.kinds.checks import need, only
from tfe_bench.models.kinds.layer import Array, Node, Options, Shape
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.layers.linear import Maps, Trained, with_bias
from tfe_bench.protocols.ring import matmul_gradients
from tfe_bench.protocols.ring.products import Two, matrix_product

_MAPS = Maps(matrix_product, matmul_gradients.kernel_gradient, matmul_gradients.input_gradient)


class Dense(Trained):
    """x @ kernel + bias."""

    op = "dense"
    keras = ("Dense",)
    mixes = True

    def read(self, r: Reader, call: Call) -> str:
        r.emit(call.name, self.op, call.inputs, with_bias(call, call.layer.kernel))
        return r.activated(call.layer, call.name)

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        only(options)
        need(len(kernel) == 2 and kernel[0] == x[-1], f"a kernel [{x[-1]}, units]", list(kernel))
        return (*x[:-1], kernel[1])

    def multiplied(self, x: Array, kernel: Array, options: Options) -> Array:
        return np.asarray(x @ kernel)

    def bilinear(self, options: Options) -> Two:
        return matrix_product

    def maps(self, node: Node, x: Shape) -> Maps:
        return _MAPS

    def rows(self, shape: Shape) -> Shape:
        return (math.prod(shape[:-1]), shape[-1])  # matrix products are of rank 2
