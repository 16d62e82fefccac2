"""Convolutions, and what depthwise ones share with them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.kinds.checks import image, need, only, pads, pair
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape
from tfe_bench.models.kinds.reading import Call, Reader, Unfit, channels_last
from tfe_bench.models.kinds.windows import cells, windows_of
from tfe_bench.models.layers.linear import Maps, Trained, with_bias
from tfe_bench.protocols.ring import conv, conv_gradients
from tfe_bench.protocols.ring.products import Two


class Convolution(Trained):
    """A kernel that slides over images.

    Attributes:
        depthwise: whether each channel has outputs of its own.
    """

    depthwise: ClassVar[bool]

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        image(x)
        only(options, "strides", "padding", "dilations")
        pair(options, "strides")
        pair(options, "dilations")
        padding = options["padding"]
        need(padding in ("SAME", "VALID") or pads(padding), 'padding "SAME" or "VALID"', padding)
        need(len(kernel) == 4 and kernel[2] == x[2], f"a kernel for {x[2]} channels", list(kernel))
        windows = windows_of(options)
        fits = windows.padding == "SAME" or all(
            windows.room(a, x[a], kernel[a]) >= 0 for a in (0, 1)
        )
        need(fits, "a kernel no larger than the padded image", [list(x), list(kernel)])
        height, width = (int(windows.size(a, x[a], kernel[a])) for a in (0, 1))
        return height, width, kernel[2] * kernel[3] if self.depthwise else kernel[3]

    def multiplied(self, x: Array, kernel: Array, options: Options) -> Array:
        total: Any = 0.0
        for i, j, cell in cells(x, kernel.shape[:2], options):
            total = total + self.cell_product(cell, kernel[i, j])
        return np.asarray(total)

    def cell_product(self, cell: Array, kernel: Array) -> Array:
        """The products of one cell of all windows."""
        raise NotImplementedError

    def bilinear(self, options: Options) -> Two:
        windows = windows_of(options)
        return lambda a, b: conv.convolve(a, b, windows, self.depthwise)

    def pads_nothing(self, x: Layer) -> bool:
        padding = x.options["padding"]
        ones = x.weights["kernel"].shape[:2] == (1, 1)
        return bool(padding == "VALID" or (padding == "SAME" and ones))

    def maps(self, node: Node, x: Shape) -> Maps:
        windows = windows_of(node.layer.options)
        kernel = tuple(int(n) for n in node.layer.weights["kernel"].shape)
        return Maps(
            self.bilinear(node.layer.options),
            conv_gradients.kernel_gradient(windows, kernel, self.depthwise),
            conv_gradients.input_gradient(windows, x[1:], self.depthwise),
        )


def read_windows(call: Call) -> dict[str, Any]:
    """The options of a convolution of Keras."""
    layer = call.layer
    channels_last(layer)
    if getattr(layer, "groups", 1) != 1:
        raise Unfit(f"groups={layer.groups}; only 1 is supported")
    if layer.padding not in ("same", "valid"):
        raise Unfit(f"padding {layer.padding!r}")
    return {
        "strides": [int(n) for n in layer.strides],
        "padding": layer.padding.upper(),
        "dilations": [int(n) for n in layer.dilation_rate],
    }


class Conv2D(Convolution):
    """The convolution of images with a kernel."""

    op = "conv2d"
    keras = ("Conv2D", "SeparableConv2D")
    depthwise = False
    mixes = True

    def read(self, r: Reader, call: Call) -> str:
        options, layer = read_windows(call), call.layer
        if call.kind == "SeparableConv2D":
            first = r.unique(f"{call.name}/depthwise")
            weights = {"kernel": layer.depthwise_kernel}
            r.emit(first, "depthwise_conv2d", call.inputs, weights, **options)
            ones = {"strides": [1, 1], "padding": "VALID", "dilations": [1, 1]}
            own = with_bias(call, layer.pointwise_kernel)
            r.emit(call.name, self.op, [first], own, **ones)
        else:
            r.emit(call.name, self.op, call.inputs, with_bias(call, layer.kernel), **options)
        return r.activated(layer, call.name)

    def cell_product(self, cell: Array, kernel: Array) -> Array:
        return np.asarray(cell @ kernel)


class DepthwiseConv2D(Convolution):
    """The convolution of each channel with kernels of its own."""

    op = "depthwise_conv2d"
    keras = ("DepthwiseConv2D",)
    depthwise = True

    def read(self, r: Reader, call: Call) -> str:
        weights = with_bias(call, call.layer.kernel)
        r.emit(call.name, self.op, call.inputs, weights, **read_windows(call))
        return r.activated(call.layer, call.name)

    def cell_product(self, cell: Array, kernel: Array) -> Array:
        each = cell[..., None] * kernel
        return each.reshape(*each.shape[:3], -1)

    def multiplications(self, kernel: Shape, shape: Shape) -> int:
        return math.prod(shape) * math.prod(kernel[:2])

    def scaled(self, kernel: Array, factor: Array) -> Array:
        return kernel * factor.reshape(kernel.shape[2:])
