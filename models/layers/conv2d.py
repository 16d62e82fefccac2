"""Convolutions of images, and what depthwise and grouped ones share with them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.kinds.checks import image, need, only, pads, pair, whole
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.turning import channels_last
from tfe_bench.models.kinds.windows import cells, windows_of
from tfe_bench.models.layers.linear import Maps, Trained, with_bias
from tfe_bench.protocols.ring import conv, conv_gradients
from tfe_bench.protocols.ring.products import Two
from tfe_bench.protocols.session import local

# Groups are convolved one after the other.
_MOST_GROUPS = 1024


class Convolution(Trained):
    """A kernel that slides over images.

    Attributes:
        depthwise: whether each channel has outputs of its own.
        windowed: the options that say where its windows lie.
        pads_images: whether its padding is of what it takes.
    """

    depthwise: ClassVar[bool]
    pads_images: ClassVar[bool] = True
    windowed: ClassVar[tuple[str, ...]] = ("strides", "padding", "dilations")

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        image(x)
        only(options, *self.windowed)
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
            total = total + self.cell_product(cell, kernel[i, j], options)
        return np.asarray(total)

    def cell_product(self, cell: Array, kernel: Array, options: Options) -> Array:
        """The products of one cell of all windows."""
        raise NotImplementedError

    def bilinear(self, options: Options) -> Two:
        return self.product(options)

    def product(self, options: Options) -> Two:
        """The convolution of images on shares."""
        windows = windows_of(options)
        return lambda a, b: conv.convolve(a, b, windows, self.depthwise)

    def pads_nothing(self, x: Layer) -> bool:
        padding = x.options["padding"]
        ones = set(x.weights["kernel"].shape[:-2]) == {1}
        return bool(padding == "VALID" or (padding == "SAME" and ones))

    def maps(self, node: Node, x: Shape) -> Maps:
        kernel = tuple(int(n) for n in node.layer.weights["kernel"].shape)
        return self.windowed_maps(node.layer.options, x[1:], kernel)

    def windowed_maps(self, options: Options, x: Shape, kernel: Shape) -> Maps:
        """The maps for images of a shape, without the batch."""
        windows = windows_of(options)
        return Maps(
            self.product(options),
            conv_gradients.kernel_gradient(windows, kernel, self.depthwise),
            conv_gradients.input_gradient(windows, x, self.depthwise),
        )


def read_windows(call: Call) -> dict[str, Any]:
    """The options of a convolution of Keras."""
    layer = call.layer
    if layer.padding not in ("same", "valid", "causal"):
        raise Unfit(f"padding {layer.padding!r}")
    dilations = [int(n) for n in layer.dilation_rate]
    padding: Any = layer.padding.upper()
    if padding == "CAUSAL":
        padding = [[(int(layer.kernel_size[0]) - 1) * dilations[0], 0]]
    strides = [int(n) for n in layer.strides]
    return {"strides": strides, "padding": padding, "dilations": dilations}


def read_separable(r: Reader, call: Call, op: str) -> str:
    """A depthwise convolution, and a pointwise one behind it."""
    layer, options = call.layer, read_windows(call)
    axes = len(options["strides"])
    first = r.unique(f"{call.name}/depthwise")
    kernel = {"kernel": layer.depthwise_kernel}
    r.emit(first, f"depthwise_{op}", call.inputs, kernel, **options)
    ones = {"strides": [1] * axes, "padding": "VALID", "dilations": [1] * axes}
    return r.emit(call.name, op, [first], with_bias(call, layer.pointwise_kernel), **ones)


class Conv2D(Convolution):
    """The convolution of images with a kernel."""

    op = "conv2d"
    keras = ("Conv2D", "SeparableConv2D")
    depthwise = False
    mixes = True

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        if call.kind.startswith("Separable"):
            return read_separable(r, call, self.op)
        options, weights = read_windows(call), with_bias(call, call.layer.kernel)
        if call.layer.groups == 1:
            return r.emit(call.name, self.op, call.inputs, weights, **options)
        groups = int(call.layer.groups)
        options["groups"] = groups
        return r.emit(call.name, f"grouped_{self.op}", call.inputs, weights, **options)

    def cell_product(self, cell: Array, kernel: Array, options: Options) -> Array:
        return np.asarray(cell @ kernel)


class DepthwiseConv2D(Convolution):
    """The convolution of each channel with kernels of its own."""

    op = "depthwise_conv2d"
    keras = ("DepthwiseConv2D",)
    depthwise = True

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        weights = with_bias(call, call.layer.kernel)
        return r.emit(call.name, self.op, call.inputs, weights, **read_windows(call))

    def cell_product(self, cell: Array, kernel: Array, options: Options) -> Array:
        each = cell[..., None] * kernel
        return each.reshape(*each.shape[:3], -1)

    def scaled(self, kernel: Array, factor: Array) -> Array:
        return kernel * factor.reshape(kernel.shape[-2:])


class GroupedConv2D(Convolution):
    """Convolutions of as many parts of the channels, next to each other.

    The parts are cut and joined within the bilinear map: one exchange, as of any convolution, and
    no weight more than Keras has (a kernel with zeros in between would have `groups` times as many,
    and take as many times the products).
    """

    op = "grouped_conv2d"
    depthwise = False
    windowed = (*Convolution.windowed, "groups")

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        groups = options.get("groups")
        fits = isinstance(groups, int) and whole(groups) and groups <= _MOST_GROUPS
        need(fits, f"1 to {_MOST_GROUPS} groups", groups)
        assert isinstance(groups, int)
        even = len(kernel) > 0 and x[-1] % groups == kernel[-1] % groups == 0
        need(even, f"channels in {groups} equal parts", [list(x), list(kernel)])
        return super().product_shape((*x[:-1], x[-1] // groups), options, kernel)

    def cell_product(self, cell: Array, kernel: Array, options: Options) -> Array:
        groups = options["groups"]
        parts = zip(np.split(cell, groups, -1), np.split(kernel, groups, -1), strict=True)
        return np.concatenate([part @ own for part, own in parts], -1)

    def product(self, options: Options) -> Two:
        return by_groups(super().product(options), options["groups"])

    def windowed_maps(self, options: Options, x: Shape, kernel: Shape) -> Maps:
        groups = options["groups"]
        part, own = (*x[:-1], x[-1] // groups), (*kernel[:-1], kernel[-1] // groups)
        maps = super().windowed_maps(options, part, own)
        return Maps(maps.forward, by_groups(maps.kernel, groups), by_groups(maps.image, groups))


def by_groups(two: Two, groups: int) -> Two:
    """The map of each group's channels, the last axis of all three, joined."""

    def cut(several: list[Any], i: int) -> list[Any]:
        sizes = [int(a.shape[-1]) // groups for a in several]
        return [a[..., i * n : (i + 1) * n] for a, n in zip(several, sizes, strict=True)]

    def joined(a: list[Any], b: list[Any]) -> Any:
        return local.concat([two(cut(a, i), cut(b, i)) for i in range(groups)], -1)

    return joined
