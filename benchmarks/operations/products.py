"""Sums, products and convolutions.

Products are at twice the scale; entries truncate them, as a program would, unless they say else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfe_bench.benchmarks.operations.catalogue import (
    FRACTIONAL_BITS,
    ULP,
    Array,
    Arrays,
    Inputs,
    Options,
    Run,
    Shape,
    Shares,
    Tolerance,
    call,
    log_uniform,
    register,
    same_shapes,
    ulps,
    uniform,
)
from tfe_bench.cluster.jobs import GROWTH
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import pool, relu
from tfe_bench.protocols.ring import arithmetic, conv, reductions, truncation
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

_KERNEL = 3
_POOL = 2


# ---- elementwise


def _factors(*names: str) -> Inputs:
    """Reals of any magnitude whose products stay below 2^28."""

    def inputs(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
        return {name: log_uniform(rng, 2.0**-16, 2.0**14, size, signed=True) for name in names}

    return inputs


register(
    name="mul",
    about="x * y, truncated",
    size=(1 << 18,),
    shapes=same_shapes("x", "y"),
    inputs=_factors("x", "y"),
    run=call(arithmetic.mul, "x", "y", truncated=True),
    reference=lambda x, _: x["x"] * x["y"],
    tolerance=ulps(1),
    variant="dealer form, T3",
)


register(
    name="square",
    about="x * x, truncated",
    size=(1 << 18,),
    inputs=_factors("x"),
    run=call(reductions.square, truncated=True),
    reference=lambda x, _: x["x"] ** 2,
    tolerance=ulps(1),
    variant="dealer form, T3",
)


register(
    name="truncate",
    about="drops 16 of 32 fractional bits",
    size=(1 << 18,),
    inputs=lambda size, rng: {"x": log_uniform(rng, 2.0**-32, 2.0**29.9, size, signed=True)},
    input_bits=2 * FRACTIONAL_BITS,
    run=lambda party, x, _: truncation.truncate(party, x["x"], FRACTIONAL_BITS),
    reference=lambda x, _: x["x"],
    tolerance=ulps(1),
    variant="T3",
)


# ---- reductions


register(
    name="reduce_sum",
    about="sum of each row",
    size=(1024, 256),
    inputs=uniform(-1e6, 1e6),
    run=lambda _, x, __: reductions.reduce_sum(x["x"], axis=-1),
    reference=lambda x, _: np.sum(x["x"], axis=-1),
    tolerance=None,
    integers=True,
    variant="local",
    per_input=True,
)


def _mean_error(inputs: Arrays, exact: Array) -> Array:
    """Of reduce_mean: one ulp, and the rounding of 1 / count where that is no power of 2."""
    count = inputs["x"].shape[-1]
    rounding = 0.0 if count & (count - 1) == 0 else count * 2.0 ** -(reductions.RECIPROCAL_BITS + 1)
    return np.asarray(ULP + np.abs(exact) * rounding)


register(
    name="reduce_mean",
    about="mean of each row",
    size=(1024, 256),
    inputs=uniform(-1e4, 1e4),
    run=call(reductions.reduce_mean, axis=-1),
    reference=lambda x, _: np.mean(x["x"], axis=-1),
    tolerance=Tolerance(_mean_error),
    variant="T3",
    per_input=True,
)


# ---- matrices


def _matrices(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
    return {name: rng.uniform(-10, 10, shape) for name, shape in _factor_shapes(size).items()}


def _factor_shapes(size: Shape) -> dict[str, Shape]:
    m, k, n = size
    return {"x": (m, k), "y": (k, n)}


def _product_size(shapes: Sequence[Shape]) -> Shape:
    if [len(s) for s in shapes] != [2, 2] or shapes[0][1] != shapes[1][0]:
        raise UsageError(f"matmul wants matrices [m, k] and [k, n]. Received: {list(shapes)}.")
    return (*shapes[0], shapes[1][1])


def _product_words(size: Shape, options: Options) -> int:
    m, k, n = size
    return max(GROWTH * m * n, m * k, k * n)


register(
    name="matmul",
    about="[m, k] @ [k, n], truncated; the size is m x k x n",
    size=(128, 128, 128),
    shapes=_factor_shapes,
    size_of=_product_size,
    inputs=_matrices,
    run=call(arithmetic.matmul, "x", "y", truncated=True),
    reference=lambda x, _: x["x"] @ x["y"],
    tolerance=ulps(1),
    variant="dealer form, T3",
    most=_product_words,
    shrinks=(0, 1, 2),
)


# ---- images


def _kernels(multiplier: int | None) -> Callable[[Shape], dict[str, Shape]]:
    """Shapes of images and a 3x3 kernel: to as many channels, or depthwise."""

    def shapes(size: Shape) -> dict[str, Shape]:
        channels = size[3]
        return {"x": size, "w": (_KERNEL, _KERNEL, channels, multiplier or channels)}

    return shapes


def _images(shapes: Callable[[Shape], dict[str, Shape]]) -> Inputs:
    def inputs(size: Shape, rng: np.random.Generator) -> dict[str, Array]:
        found = shapes(size)
        return {"x": rng.uniform(-8, 8, found["x"]), "w": rng.uniform(-1, 1, found["w"])}

    return inputs


def _patches(x: Array) -> Array:
    """[n, h, w, channels, 3, 3]: what a 3x3 kernel sees, zeros around the image."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, (_KERNEL, _KERNEL), axis=(1, 2))


def _exact_conv2d(x: Arrays, options: Options) -> Array:
    return np.asarray(np.tensordot(_patches(x["x"]), x["w"], axes=([4, 5, 3], [0, 1, 2])))


def _exact_depthwise(x: Arrays, options: Options) -> Array:
    return np.asarray(np.einsum("nhwcab,abc->nhwc", _patches(x["x"]), x["w"][..., 0]))


def _same(convolution: Callable[..., Shared]) -> Run:
    return call(convolution, "x", "w", truncated=True, padding="SAME")


def _conv2d_relu(party: Party, x: Shares, options: Options) -> Shared:
    windows = conv.Windows.of("conv2d", 1, "SAME")
    small = relu.truncated_product(
        party,
        x["x"],
        x["w"],
        FRACTIONAL_BITS,
        two=lambda a, b: conv.convolve(a, b, windows),
    )
    return relu.relu(party, small)


for _name, _about, _multiplier, _run, _exact, _variant in (
    ("conv2d", "3x3 kernel, truncated", None, _same(conv.conv2d), _exact_conv2d, "dealer form, T3"),
    (
        "depthwise_conv2d",
        "3x3 kernels, truncated",
        1,
        _same(conv.depthwise_conv2d),
        _exact_depthwise,
        "dealer form",
    ),
    (
        "conv2d_relu",
        "3x3 kernel, truncation and ReLU fused",
        None,
        _conv2d_relu,
        lambda x, options: np.maximum(_exact_conv2d(x, options), 0),
        "dealer form, T4, LUT-msb 31 bits",
    ),
):
    register(
        name=_name,
        about=_about,
        size=(1, 56, 56, 64),
        shapes=_kernels(_multiplier),
        inputs=_images(_kernels(_multiplier)),
        run=_run,
        reference=_exact,
        tolerance=ulps(1),
        variant=_variant,
        shrinks=(1, 2),
    )


def _windows(x: Array) -> Array:
    """[n, h / 2, w / 2, channels, 2, 2]: the cells of each 2x2 window."""
    view = np.lib.stride_tricks.sliding_window_view(x, (_POOL, _POOL), axis=(1, 2))
    return view[:, ::_POOL, ::_POOL]


register(
    name="max_pool",
    about="largest of each 2x2 window",
    size=(1, 56, 56, 64),
    inputs=uniform(-8000, 8000),
    run=call(pool.max_pool2d, ksize=_POOL, strides=_POOL),
    reference=lambda x, _: _windows(x["x"]).max(axis=(4, 5)),
    tolerance=None,
    variant="LUT-msb 31 bits, injection",
    shrinks=(1, 2),
    least=(1, _POOL, _POOL, 1),
)


register(
    name="avg_pool",
    about="mean of each 2x2 window",
    size=(1, 112, 112, 64),
    inputs=uniform(-1e4, 1e4),
    run=call(reductions.avg_pool, ksize=_POOL),
    reference=lambda x, _: _windows(x["x"]).mean(axis=(4, 5)),
    tolerance=ulps(1),
    variant="T3",
    shrinks=(1, 2),
    least=(1, _POOL, _POOL, 1),
)
