"""Sums, products and convolutions.

Products are at twice the scale; entries truncate them, as a program would, unless stated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tfe_bench.benchmarks.operations import catalogue
from tfe_bench.benchmarks.operations.catalogue import Array, Arrays, Options, Shape, call
from tfe_bench.cluster.jobs import GROWTH
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import pool, relu
from tfe_bench.protocols.ring import arithmetic, conv, reductions, truncation
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

_KERNEL = 3
_POOL = 2


# ---- elementwise


def _draw_product_operands(*names: str) -> catalogue.Inputs:
    """Return a generator of reals of any magnitude whose products stay below 2^28."""

    def inputs(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
        return {
            name: catalogue.draw_log_uniform(rng, 2.0**-16, 2.0**14, size, signed=True)
            for name in names
        }

    return inputs


_product = partial(
    catalogue.register, tolerance=catalogue.ulps(1), size=(1 << 18,), variant="dealer form, T3"
)
_product(
    "mul",
    "x * y, truncated",
    call(arithmetic.mul, "x", "y", truncated=True),
    lambda x, _: x["x"] * x["y"],
    shapes=catalogue.same_operand_shapes("x", "y"),
    inputs=_draw_product_operands("x", "y"),
)
_product(
    "square",
    "x * x, truncated",
    call(reductions.square, truncated=True),
    lambda x, _: x["x"] ** 2,
    inputs=_draw_product_operands("x"),
)
_product(
    "truncate",
    "drops 16 of 32 fractional bits",
    lambda party, x, _: truncation.truncate(party, x["x"], catalogue.FRACTIONAL_BITS),
    lambda x, _: x["x"],
    inputs=lambda size, rng: {
        "x": catalogue.draw_log_uniform(rng, 2.0**-32, 2.0**29.9, size, signed=True)
    },
    input_bits=2 * catalogue.FRACTIONAL_BITS,
    variant="T3",
)


# ---- reductions


_reduction = partial(catalogue.register, size=(1024, 256), per_input=True)
_reduction(
    "reduce_sum",
    "sum of each row",
    lambda _, x, __: reductions.reduce_sum(x["x"], axis=-1),
    lambda x, _: np.sum(x["x"], axis=-1),
    tolerance=None,
    inputs=catalogue.uniform(-1e6, 1e6),
    integers=True,
    variant="local",
)


def _mean_error(inputs: Arrays, exact: Array) -> Array:
    """Return the tolerance of reduce_mean.

    One ulp, and the rounding of 1 / count if that is not a power of 2.
    """
    count = inputs["x"].shape[-1]
    rounding = 0.0 if count & (count - 1) == 0 else count * 2.0 ** -(reductions.RECIPROCAL_BITS + 1)
    return np.asarray(catalogue.ULP + np.abs(exact) * rounding)


_reduction(
    "reduce_mean",
    "mean of each row",
    call(reductions.reduce_mean, axis=-1),
    lambda x, _: np.mean(x["x"], axis=-1),
    tolerance=catalogue.Tolerance(_mean_error),
    inputs=catalogue.uniform(-1e4, 1e4),
    variant="T3",
)


# ---- matrices


def _draw_matrix_operands(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    return {
        name: rng.uniform(-10, 10, shape) for name, shape in _matmul_operand_shapes(size).items()
    }


def _matmul_operand_shapes(size: Shape) -> dict[str, Shape]:
    m, k, n = size
    return {"x": (m, k), "y": (k, n)}


def _matmul_operation_size(shapes: Sequence[Shape]) -> Shape:
    if [len(s) for s in shapes] != [2, 2] or shapes[0][1] != shapes[1][0]:
        raise UsageError(
            f"matmul expects matrices [m, k] and [k, n]. Received: {list(shapes)}.",
            code="shape-mismatch",
            operation="matmul",
            received=list(shapes),
        )
    return (*shapes[0], shapes[1][1])


def _matmul_operation_words(size: Shape, options: Options) -> int:
    m, k, n = size
    return max(GROWTH * m * n, m * k, k * n)


_product(
    "matmul",
    "[m, k] @ [k, n], truncated; the size is m x k x n",
    call(arithmetic.matmul, "x", "y", truncated=True),
    lambda x, _: x["x"] @ x["y"],
    size=(128, 128, 128),
    shapes=_matmul_operand_shapes,
    size_of=_matmul_operation_size,
    inputs=_draw_matrix_operands,
    most=_matmul_operation_words,
    shrinks=(0, 1, 2),
)


# ---- images


def _conv2d_operand_shapes(size: Shape) -> dict[str, Shape]:
    """Return the shapes of images and of a 3x3 kernel with the same number of channels."""
    return {"x": size, "w": (_KERNEL, _KERNEL, size[3], size[3])}


def _depthwise_shapes(size: Shape) -> dict[str, Shape]:
    """Return the shapes of images and of a 3x3 kernel per channel."""
    return {"x": size, "w": (_KERNEL, _KERNEL, size[3], 1)}


def _register_convolution(
    name: str,
    about: str,
    run: catalogue.Run,
    reference: catalogue.Reference,
    variant: str,
    shapes: catalogue.Shapes = _conv2d_operand_shapes,
) -> None:
    """Register a convolution of images."""

    def inputs(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
        input_shapes = shapes(size)
        return {
            "x": rng.uniform(-8, 8, input_shapes["x"]),
            "w": rng.uniform(-1, 1, input_shapes["w"]),
        }

    _product(
        *(name, about, run, reference),
        size=(1, 56, 56, 64),
        shapes=shapes,
        inputs=inputs,
        variant=variant,
        shrinks=(1, 2),
    )


def _extract_patches(x: Array) -> Array:
    """Return [n, h, w, channels, 3, 3]: the inputs of a 3x3 kernel, zeros around the image."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, (_KERNEL, _KERNEL), axis=(1, 2))


def _exact_conv2d(x: Arrays, options: Options) -> Array:
    return np.asarray(np.tensordot(_extract_patches(x["x"]), x["w"], axes=([4, 5, 3], [0, 1, 2])))


def _exact_depthwise(x: Arrays, options: Options) -> Array:
    return np.asarray(np.einsum("nhwcab,abc->nhwc", _extract_patches(x["x"]), x["w"][..., 0]))


def _same_convolution(convolution: Callable[..., Shared]) -> catalogue.Run:
    return call(convolution, "x", "w", truncated=True, padding="SAME")


def _conv2d_relu(party: Party, x: catalogue.Shares, options: Options) -> Shared:
    windows = conv.Windows.from_arguments("conv2d", 1, "SAME")
    small = relu.truncated_product(
        party,
        x["x"],
        x["w"],
        catalogue.FRACTIONAL_BITS,
        bilinear=lambda a, b: conv.convolve_ring_elements(a, b, windows),
    )
    return relu.relu(party, small)


_register_convolution(
    *(
        "conv2d",
        "3x3 kernel, truncated",
        _same_convolution(conv.conv2d),
        _exact_conv2d,
        "dealer form, T3",
    )
)
_register_convolution(
    "depthwise_conv2d",
    "3x3 kernels, truncated",
    _same_convolution(conv.depthwise_conv2d),
    _exact_depthwise,
    "dealer form",
    _depthwise_shapes,
)
_register_convolution(
    "conv2d_relu",
    "3x3 kernel, truncation and ReLU fused",
    _conv2d_relu,
    lambda x, options: np.maximum(_exact_conv2d(x, options), 0),
    "dealer form, T4, LUT-msb 31 bits",
)


def _pooling_windows(x: Array) -> Array:
    """Return [n, h / 2, w / 2, channels, 2, 2]: the cells of each 2x2 window."""
    view = np.lib.stride_tricks.sliding_window_view(x, (_POOL, _POOL), axis=(1, 2))
    return view[:, ::_POOL, ::_POOL]


_pooled = partial(catalogue.register, shrinks=(1, 2), least=(1, _POOL, _POOL, 1))
_pooled(
    "max_pool",
    "largest of each 2x2 window",
    call(pool.max_pool2d, ksize=_POOL, strides=_POOL),
    lambda x, _: _pooling_windows(x["x"]).max(axis=(4, 5)),
    tolerance=None,
    size=(1, 56, 56, 64),
    inputs=catalogue.uniform(-8000, 8000),
    variant="LUT-msb 31 bits, injection",
)
_pooled(
    "avg_pool",
    "mean of each 2x2 window",
    call(reductions.avg_pool, ksize=_POOL),
    lambda x, _: _pooling_windows(x["x"]).mean(axis=(4, 5)),
    tolerance=catalogue.ulps(1),
    size=(1, 112, 112, 64),
    inputs=catalogue.uniform(-1e4, 1e4),
    variant="T3",
)
