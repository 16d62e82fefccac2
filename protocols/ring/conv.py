"""Convolutions of private images, with TensorFlow's names and windows.

Images are [n, h, w, channels], kernels [h, w, channels, filters]. Products have
the dealer form of products.py: a convolution is bilinear, so D
deals conv(lam_x, lam_w) and each evaluator convolves two pairs in one pass.
Scales add up and no bits are truncated here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.ring import arithmetic, checks, products
from tfe_bench.protocols.ring.products import BilinearShareProduct
from tfe_bench.protocols.session import ops, tensor_ops
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Pair = int | Sequence[int]
# Most cells of all windows along an axis whose positions are listed.
MAX_WINDOW_CELLS = 1 << 22


def parse_window_pair(operation: str, noun: str, value: Any) -> tuple[int, int]:
    """Return a pair from a number for both axes, a pair, or TensorFlow's list for all four axes.

    Raises:
        UsageError: anything else, or a number below 1.
    """
    numbers = list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value, value]
    if len(numbers) == 4 and numbers[0] == numbers[3] == 1:
        numbers = numbers[1:3]
    are_integers = all(
        isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in numbers
    )
    if len(numbers) != 2 or not are_integers or min(numbers) < 1:
        raise UsageError(
            f"{operation} expects {noun} as an integer of at least 1, or a pair (height, width). "
            f"Received: {value!r}.",
            code="invalid-pair",
            operation=operation,
            received=value,
        )
    return int(numbers[0]), int(numbers[1])


@dataclass(frozen=True)
class Windows:
    """Positions of a kernel's windows on an image, by TensorFlow's rules.

    Attributes:
        strides, dilations: (height, width).
        padding: "SAME", "VALID" or "EXPLICIT".
        pads: top, bottom, left, right; zeros unless the padding is explicit.
    """

    strides: tuple[int, int] = (1, 1)
    padding: str = "VALID"
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @classmethod
    def from_arguments(
        cls, operation: str, strides: Pair, padding: Any, dilations: Pair = 1
    ) -> Windows:
        """Return windows from a layer's arguments.

        Args:
            operation: name of the operation, for errors.
            strides, dilations: an integer, a pair, or [1, height, width, 1].
            padding: "SAME", "VALID", or explicit ((top, bottom), (left, right)), also with the
                pairs (0, 0) of TensorFlow around it.

        Raises:
            UsageError: anything else.
        """
        steps = parse_window_pair(operation, "strides", strides)
        spread = parse_window_pair(operation, "dilations", dilations)
        if isinstance(padding, str):
            if padding.upper() in ("SAME", "VALID"):
                return cls(steps, padding.upper(), spread)
        else:
            try:
                pairs = np.asarray(padding)
            except (TypeError, ValueError):
                pairs = np.zeros(0)
            if pairs.shape == (4, 2) and not pairs[[0, 3]].any():
                pairs = pairs[1:3]
            if pairs.shape == (2, 2) and pairs.dtype.kind in "iu" and (pairs >= 0).all():
                top, bottom, left, right = (int(p) for p in pairs.flat)
                return cls(steps, "EXPLICIT", spread, (top, bottom, left, right))
        raise UsageError(
            f'{operation} expects padding "SAME", "VALID" or ((top, bottom), (left, right)). '
            f"Received: {padding!r}.",
            code="invalid-padding",
            operation=operation,
            received=padding,
        )

    def free_extent(self, axis: int, image: Any, kernel: Any) -> Any:
        """Return by how much a window can move along axis 0 or 1; below 0 if it does not fit."""
        before, after = self.pads[2 * axis : 2 * axis + 2]
        return image + before + after - (kernel - 1) * self.dilations[axis] - 1

    def window_count(self, axis: int, image: Any, kernel: Any) -> Any:
        """Return the number of windows along axis 0 or 1, of integers or of integer tensors."""
        stride = self.strides[axis]
        if self.padding == "SAME":
            return (image + stride - 1) // stride
        return self.free_extent(axis, image, kernel) // stride + 1

    def check_cell_count(self, name: str, image: Sequence[int], kernel: Sequence[int]) -> None:
        """Reject windows with too many cells to list one by one, also for an empty batch.

        Raises:
            UsageError: more than MAX_WINDOW_CELLS cells of windows along an axis.
        """
        for axis in range(2):
            if self.window_count(axis, image[axis], kernel[axis]) * kernel[axis] > MAX_WINDOW_CELLS:
                raise UsageError(
                    f"{name} expects at most {MAX_WINDOW_CELLS} cells of windows along an axis. "
                    "Received: "
                    f"{tuple(kernel)} windows on images of {tuple(image)}. Split the images.",
                    code="too-large",
                    operation=name,
                    received=f"{tuple(kernel)} on {tuple(image)}",
                )

    def padding_before(self, axis: int, image: int, kernel: int) -> int:
        """Return the number of zeros before the first cell along axis 0 or 1."""
        if self.padding != "SAME":
            return self.pads[2 * axis]
        reach = (kernel - 1) * self.dilations[axis] + 1
        last = (self.window_count(axis, image, kernel) - 1) * self.strides[axis]
        return max(int(last) + reach - image, 0) // 2

    def cell_positions(self, axis: int, image: int, kernel: int) -> tuple[tuple[int, ...], ...]:
        """Return for each cell of a window along axis 0 or 1 its position in each window.

        Positions outside of the image repeat one inside of it, so that they change no maximum.
        """
        count = max(int(self.window_count(axis, image, kernel)), 0)
        before = self.padding_before(axis, image, kernel) if count else 0
        starts = [i * self.strides[axis] - before for i in range(count)]
        return tuple(
            tuple(min(max(start + cell, max(start, 0)), image - 1) for start in starts)
            for cell in range(kernel)
        )

    @property
    def kernel_attributes(self) -> dict[str, Any]:
        """Attributes of the op RingConv2D and of its gradients."""
        return {
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "padding": self.padding,
            "pads": list(self.pads),
        }


def check_conv_shapes(operation: str, x: Any, w: Any, windows: Windows) -> None:
    """Raise UsageError if the known parts of the shapes of images and kernel do not fit."""
    if x.rank != 4 or w.rank != 4:
        raise UsageError(
            f"{operation} expects images [n, h, w, channels] and a kernel [h, w, channels, "
            "filters]. "
            f"Received: {x} and {w}. Reshape or expand_dims them.",
            code="rank-mismatch",
            operation=operation,
            received=f"{x}, {w}",
        )
    if x[3] is not None and w[2] is not None and x[3] != w[2]:
        raise UsageError(
            f"{operation} expects a kernel for as many channels as the images have. Received: "
            f"{x.as_list()} and {w.as_list()}.",
            code="channel-mismatch",
            operation=operation,
            received=f"{x.as_list()}, {w.as_list()}",
        )
    for axis in range(2):
        image, kernel = x[1 + axis], w[axis]
        if windows.padding == "SAME" or image is None or kernel is None:
            continue
        if windows.free_extent(axis, image, kernel) < 0:
            raise UsageError(
                f"{operation} expects a kernel no larger than the padded image. Received: "
                f"{x.as_list()} and {w.as_list()} with {windows}. Pad more.",
                code="window-too-large",
                operation=operation,
                received=f"{x.as_list()}, {w.as_list()}",
            )


def pooling_positions(
    name: str, shape: Any, ksize: Pair, strides: Pair, padding: str
) -> tuple[list[int], tuple[int, int], list[tuple[tuple[int, ...], ...]]]:
    """Return image shape, window size and both `Windows.cell_positions` of a max pooling.

    Raises:
        UsageError: sizes that are unknown or do not fit.
    """
    known = shape.as_list() if getattr(shape, "rank", None) is not None else shape
    if not isinstance(known, (list, tuple)) or len(known) != 4 or None in known:
        raise UsageError(
            f"{name} expects [batch, height, width, channels]. Received: {known}.",
            code="rank-mismatch",
            operation=name,
            received=known,
        )
    if padding not in ("VALID", "SAME"):
        raise UsageError(
            f'{name} expects padding "VALID" or "SAME". Received: {padding!r}.',
            code="invalid-padding",
            operation=name,
            received=padding,
        )
    kernel = parse_window_pair(name, "ksize", ksize)
    windows = Windows.from_arguments(name, strides, padding)
    image = [int(n) for n in known]
    windows.check_cell_count(name, image[1:3], kernel)
    positions = [windows.cell_positions(axis, image[1 + axis], kernel[axis]) for axis in range(2)]
    if not all(len(cells[0]) for cells in positions):
        raise UsageError(
            f"{name} expects windows no larger than the image. Received: windows {kernel} on "
            f"{image[1:3]}.",
            code="window-too-large",
            operation=name,
            received=f"{kernel} on {image[1:3]}",
        )
    return image, kernel, positions


def list_tensor_sizes(a: Any) -> list[Any]:
    """Return the sizes of a tensor, as integers where they are known."""
    if a.shape.is_fully_defined():
        return list(a.shape.as_list())
    dynamic = tf.shape(a, out_type=tf.int64)
    return [dynamic[i] if d is None else d for i, d in enumerate(a.shape.as_list())]


def convolve_ring_elements(
    a: list[Any], b: list[Any], windows: Windows, depthwise: bool = False
) -> Any:
    """Return the sum of the convolutions of paired tensors over Z_2^64, public or not. Local.

    Combined kernels (`tensor_ops.combine_terms`) are not stored, as in
    `products.sum_matrix_products`.
    """
    if not (tensor_ops.is_concrete(a[0]) and tensor_ops.is_concrete(b[0])):
        n, *image, _ = a[0].shape
        *kernel, channels, filters = b[0].shape
        size = [windows.window_count(i, image[i], kernel[i]) for i in range(2)]
        shape = [n, *size, channels * filters if depthwise else filters]
        products_per_output = math.prod(kernel) * (1 if depthwise else channels)
        return tensor_ops.symbolic_result(
            shape, *a, *b, work=math.prod(shape) * products_per_output
        )
    terms = tensor_ops.get_combined_terms(b[0]) if len(b) == 1 and not depthwise else None
    if terms is not None:
        return ops.module().tfe_bench_conv_combined(
            x=a[0], bits=products.count_read_bits(), **terms, **windows.kernel_attributes
        )
    return ops.module().tfe_bench_ring_conv2d(
        a=a,
        b=b,
        bits=products.count_read_bits(),
        depthwise=depthwise,
        **windows.kernel_attributes,
    )


def conv2d(
    party: Party,
    x: Shared,
    w: Shared,
    strides: Pair = 1,
    padding: Any = "VALID",
    dilations: Pair = 1,
    depthwise: bool = False,
) -> Shared:
    """Convolve private images with a private kernel, as tf.nn.conv2d.

    The scales add up (truncate afterwards).

    y[n, i, j, f] = sum over a, b, c of
                    x[n, i stride - top + a dilation, j stride - left + b dilation, c] w[a, b, c,
                    f]

    Args:
        x: images [n, h, w, channels].
        w: kernel [h, w, channels, filters].
        strides, padding, dilations: as in `Windows.from_arguments`.
        depthwise: each channel with kernels of its own, [h, w, channels, multiplier]; the output
            has channels * multiplier channels.

    Domain: exact over Z_2^64; the sums must fit 63 bits at the scale of the product.
    Rounds: 1 online (2 total). Bits sent: D, E1, E2 64 per output element each.
    Raises:
        UsageError: the operands or the windows do not fit each other.
    """
    name = "depthwise_conv2d" if depthwise else "conv2d"
    checks.check_factors(name, x, w)
    windows = Windows.from_arguments(name, strides, padding, dilations)
    check_conv_shapes(name, x.shape, w.shape, windows)
    product = BilinearShareProduct(
        x, w, lambda a, b: convolve_ring_elements(a, b, windows, depthwise)
    )
    return products.exchange_sum(party, name, [product], windows)


def conv2d_public(
    x: Shared,
    ring: Any,
    strides: Pair = 1,
    padding: Any = "VALID",
    dilations: Pair = 1,
    fractional_bits: int = 0,
    depthwise: bool = False,
) -> Shared:
    """Convolve as `conv2d` with a public kernel of ring elements that has `fractional_bits`. Local.

    Raises:
        UsageError: the operands or the windows do not fit each other.
    """
    name = "depthwise_conv2d_public" if depthwise else "conv2d_public"
    checks.check_private_word_tensor(name, x)
    kernel = arithmetic.to_ring_tensor(name, ring)
    windows = Windows.from_arguments(name, strides, padding, dilations)
    check_conv_shapes(name, x.shape, tensor_ops.static_shape(kernel), windows)
    y = x.map(lambda a: convolve_ring_elements([a], [kernel], windows, depthwise))
    return replace(y, fractional_bits=x.fractional_bits + fractional_bits)


depthwise_conv2d = functools.partial(conv2d, depthwise=True)
depthwise_conv2d_public = functools.partial(conv2d_public, depthwise=True)
