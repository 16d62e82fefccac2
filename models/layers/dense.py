"""Dense: a matrix product along the last axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.models.kinds.checks import need, only
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.layers.linear import Maps, Trained, with_bias
from tfe_bench.protocols.ring import matmul_gradients
from tfe_bench.protocols.ring.products import Two, matrix_product
from tfe_bench.protocols.session import local

_MAPS = Maps(matrix_product, matmul_gradients.kernel_gradient, matmul_gradients.input_gradient)


def _transposed(a: list[Any], b: list[Any]) -> Any:
    """x W^T of shares."""
    turned = [local.transpose(each, [1, 0]) for each in a]  # (much less than a table)
    return local.transpose(matrix_product(b, turned), [1, 0])


class Dense(Trained):
    """x @ kernel + bias; with the option `transposed` x @ kernel^T, of a table that is shared."""

    op = "dense"
    keras = ("Dense",)
    mixes = True

    def read(self, r: Reader, call: Call) -> str:
        r.emit(call.name, self.op, call.inputs, with_bias(call, call.layer.kernel))
        return r.activated(call.layer, call.name)

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        only({k: v for k, v in options.items() if k != "transposed"})
        need(options.get("transposed", True) is True, "transposed as true, or not", options)
        need(len(kernel) == 2, "a matrix", list(kernel))
        depth, units = kernel[::-1] if "transposed" in options else kernel
        need(depth == x[-1], f"a kernel of {x[-1]} rows (transposed: columns)", list(kernel))
        return (*x[:-1], units)

    def multiplied(self, x: Array, kernel: Array, options: Options) -> Array:
        return np.asarray(x @ (kernel.T if "transposed" in options else kernel))

    def bilinear(self, options: Options) -> Two:
        return _transposed if "transposed" in options else matrix_product

    def untrained(self, x: Layer, given: list[Shape]) -> str:
        return "a transposed product" if "transposed" in x.options else ""

    def maps(self, node: Node, x: Shape) -> Maps:
        return _MAPS

    def rows(self, shape: Shape) -> Shape:
        return (math.prod(shape[:-1]), shape[-1])  # matrix products are of rank 2
