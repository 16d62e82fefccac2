"""The gradients of a matrix product, as bilinear maps of ring elements (as in conv_gradients)."""

from __future__ import annotations

from typing import Any

from tfe_bench.protocols.ring import products
from tfe_bench.protocols.session import tensor_ops


def _transpose_gradient_matrices(a: list[Any]) -> list[Any]:
    # (a single row or column has the same memory layout as its transpose)
    return [
        tensor_ops.reshape(v, v.shape[::-1]) if 1 in v.shape else tensor_ops.transpose(v, [1, 0])
        for v in a
    ]


def kernel_gradient(x: list[Any], g: list[Any]) -> Any:
    """Return the sum of x^T g over the pairs, or (g^T x)^T where that transposes fewer elements."""
    rows, inputs = x[0].shape
    outputs = g[0].shape[1]
    if outputs * (rows + inputs) >= rows * inputs:
        return products.sum_matrix_products(_transpose_gradient_matrices(x), g)
    return _transpose_gradient_matrices(
        [products.sum_matrix_products(_transpose_gradient_matrices(g), x)]
    )[0]


def input_gradient(g: list[Any], w: list[Any]) -> Any:
    """Return the sum of g w^T over the pairs."""
    return products.sum_matrix_products(g, _transpose_gradient_matrices(w))
