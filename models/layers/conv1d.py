"""Convolutions of rows [steps, channels], as those of images of height 1."""

from __future__ import annotations

from typing import Any

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape
from tfe_bench.models.layers.conv2d import Conv2D, Convolution, DepthwiseConv2D, GroupedConv2D
from tfe_bench.models.layers.linear import BilinearMaps
from tfe_bench.protocols.ring.products import BilinearMap
from tfe_bench.protocols.session import tensor_ops


def lift_conv1d_options(options: Options) -> Options:
    """Convert the options of windows of rows to those of images of height 1.

    Raises:
        InvalidOption: the options are not for one axis.
    """
    lifted = dict(options)
    for name in ("strides", "dilations"):
        value = options.get(name)
        fits = isinstance(value, (list, tuple)) and len(value) == 1 and L.is_whole(value[0])
        L.check_value(fits, f"{name} as one positive integer", value)
        assert value is not None
        lifted[name] = [1, value[0]]
    if "size" in options:
        size = options["size"]
        L.check_value(
            isinstance(size, (list, tuple)) and len(size) == 1, "size as one integer", size
        )
        lifted["size"] = [1, *size]
    padding = options.get("padding")
    if not isinstance(padding, str):
        L.check_value(
            L.is_padding(padding, 1), 'padding "SAME", "VALID" or ((before, behind),)', padding
        )
        assert padding is not None
        lifted["padding"] = [[0, 0], *padding]
    return lifted


def lift_conv1d_shape(shape: Shape) -> Shape:
    """Return the shape of rows as images of height 1.

    Raises:
        InvalidOption: the shape is not that of rows.
    """
    L.check_value(len(shape) == 2, "rows [steps, channels]", list(shape))
    return (1, *shape)


def lower_conv2d_to_rows(two: BilinearMap, axes: tuple[int, int, int]) -> BilinearMap:
    """Convert a map of images and kernels to a map of rows.

    Args:
        axes: the axis of the height in both operands and in the output.
    """
    left_axis, right_axis, output_axis = axes

    def apply_map_to_rows(a: list[Any], b: list[Any]) -> Any:
        lifted = (
            [tensor_ops.expand_dims(t, left_axis) for t in a],
            [tensor_ops.expand_dims(t, right_axis) for t in b],
        )
        return tensor_ops.squeeze(two(*lifted), [output_axis])

    return apply_map_to_rows


class RowConvolution(Convolution):
    """A mixin that applies a convolution of images to rows; it precedes the base in the MRO.

    Kernels are [width, channels, filters].
    """

    def infer_kernel_product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        L.check_value(len(kernel) == 3, "a kernel [width, channels, filters]", list(kernel))
        return super().infer_kernel_product_shape(
            lift_conv1d_shape(x), lift_conv1d_options(options), (1, *kernel)
        )[1:]

    def multiply_plaintext_kernel(self, x: Array, kernel: Array, options: Options) -> Array:
        return super().multiply_plaintext_kernel(
            x[:, None], kernel[None], lift_conv1d_options(options)
        )[:, 0]

    def get_bilinear_map(self, options: Options) -> BilinearMap:
        return lower_conv2d_to_rows(
            self.get_convolution_map(lift_conv1d_options(options)), (1, 0, 1)
        )

    def build_bilinear_maps(self, node: L.PlacedLayer, x: Shape) -> BilinearMaps:
        kernel = (1, *(int(n) for n in node.layer.weights["kernel"].shape))
        maps = self.build_convolution_maps(
            lift_conv1d_options(node.layer.options), (1, *x[1:]), kernel
        )
        return BilinearMaps(
            lower_conv2d_to_rows(maps.forward, (1, 0, 1)),
            lower_conv2d_to_rows(maps.kernel, (1, 1, 0)),
            lower_conv2d_to_rows(maps.image, (1, 0, 1)),
        )


class Conv1D(RowConvolution, Conv2D):
    """The convolution of rows with a kernel."""

    op = "conv1d"
    keras_layers = ("Conv1D", "SeparableConv1D")


class DepthwiseConv1D(RowConvolution, DepthwiseConv2D):
    """The convolution of each channel of rows with its own kernels."""

    op = "depthwise_conv1d"
    keras_layers = ("DepthwiseConv1D",)


class GroupedConv1D(RowConvolution, GroupedConv2D):
    """Convolutions of equal groups of the channels of rows, concatenated."""

    op = "grouped_conv1d"
