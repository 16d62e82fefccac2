"""Factors and a shift for each channel, the affine part of normalizations and PReLUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape
from tfe_bench.models.layers.linear import BilinearMaps, TrainableWeightedProduct
from tfe_bench.protocols.ring.products import BilinearMap, sum_elementwise_products
from tfe_bench.protocols.session import tensor_ops


class Affine(TrainableWeightedProduct):
    """x * kernel + bias."""

    op = "affine"

    def infer_kernel_product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        """Infer the shape of a factor for each channel, or for each place but along axes of 1."""
        L.check_options(options)
        places = len(kernel) == len(x) and all(k in (1, n) for k, n in zip(kernel, x, strict=True))
        L.check_value(places or kernel == (x[-1],), f"a factor [{x[-1]}]", list(kernel))
        return x

    def multiply_plaintext_kernel(self, x: Array, kernel: Array, options: Options) -> Array:
        return np.asarray(x * kernel)

    def get_bilinear_map(self, options: Options) -> BilinearMap:
        return sum_elementwise_products

    def build_bilinear_maps(self, node: L.PlacedLayer, x: Shape) -> BilinearMaps:
        kernel_shape = tuple(int(n) for n in node.layer.weights["kernel"].shape)
        full_shape = (1,) * (len(x) - len(kernel_shape)) + kernel_shape
        axes = [i for i, n in enumerate(full_shape) if n == 1]

        def compute_factor_gradient(a: list[Any], b: list[Any]) -> Any:
            return tensor_ops.reshape(
                tensor_ops.reduce_sum(sum_elementwise_products(a, b), axes), kernel_shape
            )

        return BilinearMaps(
            sum_elementwise_products, compute_factor_gradient, sum_elementwise_products
        )
