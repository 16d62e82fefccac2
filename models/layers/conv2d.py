"""Convolutions of images, and the base class of depthwise and grouped ones."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape
from tfe_bench.models.layers.linear import (
    BilinearMaps,
    TrainableWeightedProduct,
    collect_layer_weights,
)
from tfe_bench.protocols.ring import conv, conv_gradients
from tfe_bench.protocols.ring.products import BilinearMap
from tfe_bench.protocols.session import tensor_ops

# Groups are convolved sequentially.
_MOST_GROUPS = 1024


def check_conv_windows(options: Options) -> None:
    """Check the strides, dilations and padding of a convolution."""
    L.read_pair(options, "strides")
    L.read_pair(options, "dilations")
    padding = options["padding"]
    fits = padding in ("SAME", "VALID") or L.is_padding(padding)
    L.check_value(fits, 'padding "SAME" or "VALID"', padding)


class Convolution(TrainableWeightedProduct):
    """A kernel that slides over images.

    Attributes:
        depthwise: whether each channel has its own outputs.
        window_options: the options that define the windows.
        pads_images: whether its padding applies to its input.
    """

    depthwise: ClassVar[bool]
    pads_images: ClassVar[bool] = True
    window_options: ClassVar[tuple[str, ...]] = ("strides", "padding", "dilations")

    def infer_kernel_product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        L.check_image(x)
        L.check_options(options, *self.window_options)
        check_conv_windows(options)
        L.check_value(
            len(kernel) == 4 and kernel[2] == x[2], f"a kernel for {x[2]} channels", list(kernel)
        )
        windows = L.parse_layer_windows(options)
        fits = windows.padding == "SAME" or all(
            windows.free_extent(a, x[a], kernel[a]) >= 0 for a in (0, 1)
        )
        L.check_value(fits, "a kernel no larger than the padded image", [list(x), list(kernel)])
        height, width = (int(windows.window_count(a, x[a], kernel[a])) for a in (0, 1))
        return height, width, kernel[2] * kernel[3] if self.depthwise else kernel[3]

    def multiply_plaintext_kernel(self, x: Array, kernel: Array, options: Options) -> Array:
        total: Any = 0.0
        for i, j, cell in L.iterate_window_cells(x, kernel.shape[:2], options):
            total = total + self.cell_product(cell, kernel[i, j], options)
        return np.asarray(total)

    def cell_product(self, cell: Array, kernel: Array, options: Options) -> Array:
        """Compute the products of one cell of all windows."""
        raise NotImplementedError

    def get_bilinear_map(self, options: Options) -> BilinearMap:
        return self.get_convolution_map(options)

    def get_convolution_map(self, options: Options) -> BilinearMap:
        """Return the convolution of images on shares."""
        windows = L.parse_layer_windows(options)
        return lambda a, b: conv.convolve_ring_elements(a, b, windows, self.depthwise)

    def has_no_padding(self, x: L.LayerSpec) -> bool:
        padding = x.options["padding"]
        ones = set(x.weights["kernel"].shape[:-2]) == {1}
        return bool(padding == "VALID" or (padding == "SAME" and ones))

    def build_bilinear_maps(self, node: L.PlacedLayer, x: Shape) -> BilinearMaps:
        kernel = tuple(int(n) for n in node.layer.weights["kernel"].shape)
        return self.build_convolution_maps(node.layer.options, x[1:], kernel)

    def build_convolution_maps(self, options: Options, x: Shape, kernel: Shape) -> BilinearMaps:
        """Build the maps for images of a shape, without the batch."""
        windows = L.parse_layer_windows(options)
        return BilinearMaps(
            self.get_convolution_map(options),
            conv_gradients.kernel_gradient(windows, kernel, self.depthwise),
            conv_gradients.input_gradient(windows, x, self.depthwise),
        )


def read_conv_window_options(call: L.LayerCall) -> dict[str, Any]:
    """Read the window options of a Keras convolution."""
    layer = call.layer
    if layer.padding not in ("same", "valid", "causal"):
        raise L.UnsupportedLayer(f"padding {layer.padding!r}")
    dilations = [int(n) for n in layer.dilation_rate]
    padding: Any = layer.padding.upper()
    if padding == "CAUSAL":
        padding = [[(int(layer.kernel_size[0]) - 1) * dilations[0], 0]]
    strides = [int(n) for n in layer.strides]
    return {"strides": strides, "padding": padding, "dilations": dilations}


def convert_separable_conv(r: L.Reader, call: L.LayerCall, op: str) -> str:
    """Add a depthwise convolution followed by a pointwise one."""
    layer, options = call.layer, read_conv_window_options(call)
    axes = len(options["strides"])
    first = r.make_unique(f"{call.name}/depthwise")
    kernel = {"kernel": layer.depthwise_kernel}
    r.add_layer(first, f"depthwise_{op}", call.inputs, kernel, **options)
    ones = {"strides": [1] * axes, "padding": "VALID", "dilations": [1] * axes}
    return r.add_layer(
        call.name, op, [first], collect_layer_weights(call, layer.pointwise_kernel), **ones
    )


class Conv2D(Convolution):
    """The convolution of images with a kernel."""

    op = "conv2d"
    keras_layers = ("Conv2D", "SeparableConv2D")
    depthwise = False
    mixes_channels = True

    @L.accept_channels_first
    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        if call.class_name.startswith("Separable"):
            return convert_separable_conv(r, call, self.op)
        options, weights = (
            read_conv_window_options(call),
            collect_layer_weights(call, call.layer.kernel),
        )
        if call.layer.groups == 1:
            return r.add_layer(call.name, self.op, call.inputs, weights, **options)
        groups = int(call.layer.groups)
        options["groups"] = groups
        return r.add_layer(call.name, f"grouped_{self.op}", call.inputs, weights, **options)

    def cell_product(self, cell: Array, kernel: Array, options: Options) -> Array:
        return np.asarray(cell @ kernel)


class DepthwiseConv2D(Convolution):
    """The convolution of each channel with its own kernels."""

    op = "depthwise_conv2d"
    keras_layers = ("DepthwiseConv2D",)
    depthwise = True

    @L.accept_channels_first
    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        weights = collect_layer_weights(call, call.layer.kernel)
        return r.add_layer(
            call.name, self.op, call.inputs, weights, **read_conv_window_options(call)
        )

    def cell_product(self, cell: Array, kernel: Array, options: Options) -> Array:
        products = cell[..., None] * kernel
        return products.reshape(*products.shape[:3], -1)

    def scale_kernel(self, kernel: Array, factor: Array) -> Array:
        return kernel * factor.reshape(kernel.shape[-2:])


class GroupedConv2D(Convolution):
    """Convolutions of equal groups of the channels, concatenated.

    The groups are split and joined within the bilinear map: one exchange, as for any convolution,
    and as many weights as in Keras (a kernel with zeros in between would have `groups` times as
    many, and take `groups` times the products).
    """

    op = "grouped_conv2d"
    depthwise = False
    window_options = (*Convolution.window_options, "groups")

    def infer_kernel_product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        groups = options.get("groups")
        fits = isinstance(groups, int) and L.is_whole(groups) and groups <= _MOST_GROUPS
        L.check_value(fits, f"1 to {_MOST_GROUPS} groups", groups)
        assert isinstance(groups, int)
        even = len(kernel) > 0 and x[-1] % groups == kernel[-1] % groups == 0
        L.check_value(even, f"channels in {groups} equal parts", [list(x), list(kernel)])
        return super().infer_kernel_product_shape((*x[:-1], x[-1] // groups), options, kernel)

    def cell_product(self, cell: Array, kernel: Array, options: Options) -> Array:
        groups = options["groups"]
        parts = zip(np.split(cell, groups, -1), np.split(kernel, groups, -1), strict=True)
        return np.concatenate([part @ kernel_part for part, kernel_part in parts], -1)

    def get_convolution_map(self, options: Options) -> BilinearMap:
        return split_conv_groups(super().get_convolution_map(options), options["groups"])

    def build_convolution_maps(self, options: Options, x: Shape, kernel: Shape) -> BilinearMaps:
        groups = options["groups"]
        part, kernel_part = (*x[:-1], x[-1] // groups), (*kernel[:-1], kernel[-1] // groups)
        maps = super().build_convolution_maps(options, part, kernel_part)
        return BilinearMaps(
            maps.forward,
            split_conv_groups(maps.kernel, groups),
            split_conv_groups(maps.image, groups),
        )


def split_conv_groups(two: BilinearMap, groups: int) -> BilinearMap:
    """Apply a map to each group of channels, the last axis of all three, and join the results."""

    def select_channel_group(several: list[Any], i: int) -> list[Any]:
        sizes = [int(a.shape[-1]) // groups for a in several]
        return [a[..., i * n : (i + 1) * n] for a, n in zip(several, sizes, strict=True)]

    def apply_map_by_channel_group(a: list[Any], b: list[Any]) -> Any:
        return tensor_ops.concat(
            [two(select_channel_group(a, i), select_channel_group(b, i)) for i in range(groups)], -1
        )

    return apply_map_by_channel_group
