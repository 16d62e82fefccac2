"""The two gradients of a matrix product, as bilinear maps of ring elements (conv_gradients')."""

from __future__ import annotations

from typing import Any

from tfe_bench.protocols.ring import arithmetic


def _turned(a: list[Any]) -> list[Any]:
    import tensorflow as tf

    # (one row or column lies in memory as it does the other way round)
    return [
        tf.reshape(v, v.shape[::-1]) if 1 in v.shape else tf.linalg.matrix_transpose(v) for v in a
    ]


def kernel_gradient(x: list[Any], g: list[Any]) -> Any:
    """The sum of x^T g over the pairs, or of (g^T x)^T where that turns fewer elements over."""
    rows, inputs = x[0].shape
    outputs = g[0].shape[1]
    if outputs * (rows + inputs) >= rows * inputs:
        return arithmetic.matrix_product(_turned(x), g)
    return _turned([arithmetic.matrix_product(_turned(g), x)])[0]


def input_gradient(g: list[Any], w: list[Any]) -> Any:
    """The sum of g w^T over the pairs."""
    return arithmetic.matrix_product(g, _turned(w))
