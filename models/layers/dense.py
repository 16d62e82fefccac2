"""Dense: a matrix product along the last axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape
from tfe_bench.models.layers.linear import (
    BilinearMaps,
    TrainableWeightedProduct,
    collect_layer_weights,
)
from tfe_bench.protocols.ring import matmul_gradients
from tfe_bench.protocols.ring.products import BilinearMap, sum_matrix_products
from tfe_bench.protocols.session import tensor_ops

_MAPS = BilinearMaps(
    sum_matrix_products, matmul_gradients.kernel_gradient, matmul_gradients.input_gradient
)


def _multiply_by_transposed_kernel(a: list[Any], b: list[Any]) -> Any:
    """Return x W^T of shares."""
    transposed_shares = [
        tensor_ops.transpose(share, [1, 0]) for share in a
    ]  # (x is much smaller than a table)
    return tensor_ops.transpose(sum_matrix_products(b, transposed_shares), [1, 0])


class Dense(TrainableWeightedProduct):
    """x @ kernel + bias; with the option `transposed` x @ kernel^T, for a shared table."""

    op = "dense"
    keras_layers = ("Dense",)
    mixes_channels = True

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        r.add_layer(call.name, self.op, call.inputs, collect_layer_weights(call, call.layer.kernel))
        return r.add_layer_activation(call.layer, call.name)

    def infer_kernel_product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        L.check_options({k: v for k, v in options.items() if k != "transposed"})
        L.check_value(
            options.get("transposed", True) is True, "transposed as true, or not", options
        )
        L.check_value(len(kernel) == 2, "a matrix", list(kernel))
        depth, units = kernel[::-1] if "transposed" in options else kernel
        L.check_value(
            depth == x[-1], f"a kernel of {x[-1]} rows (transposed: columns)", list(kernel)
        )
        return (*x[:-1], units)

    def multiply_plaintext_kernel(self, x: Array, kernel: Array, options: Options) -> Array:
        return np.asarray(x @ (kernel.T if "transposed" in options else kernel))

    def get_bilinear_map(self, options: Options) -> BilinearMap:
        return _multiply_by_transposed_kernel if "transposed" in options else sum_matrix_products

    def explain_untrainable(self, x: L.LayerSpec, input_shapes: list[Shape]) -> str:
        return "a transposed product" if "transposed" in x.options else ""

    def build_bilinear_maps(self, node: L.PlacedLayer, x: Shape) -> BilinearMaps:
        return _MAPS

    def flatten_shape(self, shape: Shape) -> Shape:
        return (math.prod(shape[:-1]), shape[-1])  # matrix products have rank 2
