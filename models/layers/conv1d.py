"""Convolutions of rows [steps, channels]: those of images of height 1."""

from __future__ import annotations

from typing import Any

from tfe_bench.models.kinds.checks import need, pads, whole
from tfe_bench.models.kinds.layer import Array, Node, Options, Shape
from tfe_bench.models.layers.conv2d import Conv2D, Convolution, DepthwiseConv2D, GroupedConv2D
from tfe_bench.models.layers.linear import Maps
from tfe_bench.protocols.ring.products import Two
from tfe_bench.protocols.session import local


def as_images(options: Options) -> Options:
    """The options of windows of rows as those of windows of images of height 1.

    Raises:
        Bad: they are not of one axis.
    """
    lifted = dict(options)
    for name in ("strides", "dilations"):
        value = options.get(name)
        fits = isinstance(value, (list, tuple)) and len(value) == 1 and whole(value[0])
        need(fits, f"{name} as one positive integer", value)
        assert value is not None
        lifted[name] = [1, value[0]]
    if "size" in options:
        size = options["size"]
        need(isinstance(size, (list, tuple)) and len(size) == 1, "size as one integer", size)
        lifted["size"] = [1, *size]
    padding = options.get("padding")
    if not isinstance(padding, str):
        need(pads(padding, 1), 'padding "SAME", "VALID" or ((before, behind),)', padding)
        assert padding is not None
        lifted["padding"] = [[0, 0], *padding]
    return lifted


def row_image(shape: Shape) -> Shape:
    """The shape of images of height 1, of rows.

    Raises:
        Bad: these are no rows.
    """
    need(len(shape) == 2, "rows [steps, channels]", list(shape))
    return (1, *shape)


def on_rows(two: Two, axes: tuple[int, int, int]) -> Two:
    """A map of images and kernels as one of rows.

    Args:
        axes: the height's in both operands and in the value.
    """
    left, right, found = axes

    def mapped(a: list[Any], b: list[Any]) -> Any:
        lifted = [local.expand_dims(t, left) for t in a], [local.expand_dims(t, right) for t in b]
        return local.squeeze(two(*lifted), [found])

    return mapped


class OfRows(Convolution):
    """A convolution of images, before it in the order of methods, made one of rows.

    Kernels are [width, channels, filters].
    """

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        need(len(kernel) == 3, "a kernel [width, channels, filters]", list(kernel))
        return super().product_shape(row_image(x), as_images(options), (1, *kernel))[1:]

    def multiplied(self, x: Array, kernel: Array, options: Options) -> Array:
        return super().multiplied(x[:, None], kernel[None], as_images(options))[:, 0]

    def bilinear(self, options: Options) -> Two:
        return on_rows(self.product(as_images(options)), (1, 0, 1))

    def maps(self, node: Node, x: Shape) -> Maps:
        kernel = (1, *(int(n) for n in node.layer.weights["kernel"].shape))
        maps = self.windowed_maps(as_images(node.layer.options), (1, *x[1:]), kernel)
        return Maps(
            on_rows(maps.forward, (1, 0, 1)),
            on_rows(maps.kernel, (1, 1, 0)),
            on_rows(maps.image, (1, 0, 1)),
        )


class Conv1D(OfRows, Conv2D):
    """The convolution of rows with a kernel."""

    op = "conv1d"
    keras = ("Conv1D", "SeparableConv1D")


class DepthwiseConv1D(OfRows, DepthwiseConv2D):
    """The convolution of each channel of rows with kernels of its own."""

    op = "depthwise_conv1d"
    keras = ("DepthwiseConv1D",)


class GroupedConv1D(OfRows, GroupedConv2D):
    """Convolutions of as many parts of the channels of rows, next to each other."""

    op = "grouped_conv1d"
