"""Gradients of convolutions: bilinear maps for sums of private products
(products.BilinearShareProduct).

With y = conv(x, w) and d the gradient of y, dx is the transposed convolution of d with w, and dw
is patches(x)^T . d. Both are bilinear, so they are products like the convolution itself: the
dealer deals the map of the masks, each evaluator maps two pairs in one pass, the sum is exchanged
once. Scales add up and no bits are truncated here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring.conv import Windows
from tfe_bench.protocols.ring.products import BilinearMap
from tfe_bench.protocols.session import ops, tensor_ops


def _list_conv_shape(shape: Any) -> list[Any]:
    return shape.as_list() if hasattr(shape, "as_list") else list(shape)


def _static_image_sizes(
    name: str, noun: str, shape: Sequence[Any], axes: slice, ranks: tuple[int, ...]
) -> Any:
    """Return height and width within a static shape.

    Raises:
        UsageError: another rank, or a size that is not known.
    """
    sizes = _list_conv_shape(shape)
    selected = sizes[axes] if len(sizes) in ranks else []
    if len(selected) != 2 or not all(isinstance(n, int) and n >= 0 for n in selected):
        raise UsageError(
            f"{name} expects {noun} with known height and width. Received: {sizes}.",
            code="unknown-shape",
            operation=name,
            received=sizes,
        )
    return [int(n) for n in selected]


def _check_gradient_size(
    name: str, windows: Windows, size: Sequence[int], kernel: Any, out: Any
) -> None:
    """Reject a gradient whose known sizes differ from the convolution's output."""
    for axis in range(2):
        if kernel[axis] is None or out[axis] is None:
            continue
        expected = windows.window_count(axis, size[axis], kernel[axis])
        if expected != out[axis]:
            raise UsageError(
                f"{name} expects a gradient of the convolution's output size along axis "
                f"{1 + axis}, {expected}. Received: {out[axis]} with {windows}.",
                code="shape-mismatch",
                operation=name,
                received=out[axis],
                expected=expected,
            )


def input_gradient(
    windows: Windows, image_shape: Sequence[Any], depthwise: bool = False
) -> BilinearMap:
    """Return the map (d, w) -> dx, the gradient of a convolution's images.

    dx[n, y, x, c] = sum of d[n, i, j, f] w[a, b, c, f] over all i, j, a, b, f with
                     y = i stride - top + a dilation and x = j stride - left + b dilation

    Args:
        windows: windows of the convolution (`Windows.from_arguments`).
        image_shape: shape of its images, [height, width, channels], with or without the batch.
        depthwise: the convolution is `depthwise_conv2d`.

    The map takes d [n, height', width', filters] and w [h, w, channels, filters], as lists of equal
    length, public or not, and returns the sum. Local; exact over Z_2^64.
    Raises:
        UsageError: height and width are not known; from the map, operands that do not fit.
    """
    name = "input_gradient"
    size = _static_image_sizes(
        name, "an image", _list_conv_shape(image_shape)[-3:], slice(0, 2), (3,)
    )

    def bilinear(d: list[Any], w: list[Any]) -> Any:
        _check_ranks(name, d, w)
        _check_gradient_size(name, windows, size, w[0].shape[:2], d[0].shape[1:3])
        if not (tensor_ops.is_concrete(d[0]) and tensor_ops.is_concrete(w[0])):
            work = math.prod(d[0].shape) * math.prod(w[0].shape[: 2 if depthwise else 3])
            return tensor_ops.symbolic_result(
                [d[0].shape[0], *size, w[0].shape[2]], *d, *w, work=work
            )
        return ops.module().tfe_bench_ring_conv2d_input_gradient(
            a=d, b=w, size=size, depthwise=depthwise, **windows.kernel_attributes
        )

    return bilinear


def kernel_gradient(
    windows: Windows, kernel_shape: Sequence[Any], depthwise: bool = False
) -> BilinearMap:
    """Return the map (x, d) -> dw, the gradient of a convolution's kernel.

    dw[a, b, c, f] = sum of x[n, y, x, c] d[n, i, j, f] over all n, i, j, with
                     y = i stride - top + a dilation and x = j stride - left + b dilation

    Args:
        windows: windows of the convolution (`Windows.from_arguments`).
        kernel_shape: shape of its kernel, [height, width, channels, filters].
        depthwise: the convolution is `depthwise_conv2d`.

    The map takes x [n, height, width, channels] and d [n, height', width', filters], as lists of
    equal length, public or not, and returns the sum. Local; exact over Z_2^64.
    Raises:
        UsageError: height and width are not known; from the map, operands that do not fit.
    """
    name = "kernel_gradient"
    size = _static_image_sizes(name, "a kernel", kernel_shape, slice(0, 2), (4,))

    def bilinear(x: list[Any], d: list[Any]) -> Any:
        _check_ranks(name, x, d)
        for axis in range(2):
            if x[0].shape[1 + axis] is not None:
                image = [x[0].shape[1 + axis]] * 2
                out = [None, None]
                out[axis] = d[0].shape[1 + axis]
                _check_gradient_size(name, windows, image, size, out)
        if not (tensor_ops.is_concrete(x[0]) and tensor_ops.is_concrete(d[0])):
            channels, filters = x[0].shape[3], d[0].shape[3]
            last = [channels, filters // channels if depthwise else filters]
            work = math.prod(d[0].shape) * math.prod(size) * (1 if depthwise else channels)
            return tensor_ops.symbolic_result([*size, *last], *x, *d, work=work)
        return ops.module().tfe_bench_ring_conv2d_kernel_gradient(
            a=x, b=d, size=size, depthwise=depthwise, **windows.kernel_attributes
        )

    return bilinear


def _check_ranks(name: str, a: list[Any], b: list[Any]) -> None:
    shapes = [tensor_ops.static_shape(t) for t in (*a, *b)]
    if any(s.rank not in (4, None) for s in shapes):
        raise UsageError(
            f"{name} expects tensors of rank 4. Received: {[str(s) for s in shapes]}.",
            code="rank-mismatch",
            operation=name,
            received=", ".join(str(s) for s in shapes),
        )
