"""Conv3D: a convolution of images whose channels are the depths under one window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape
from tfe_bench.models.layers.conv2d import Conv2D, read_conv_window_options
from tfe_bench.models.layers.linear import (
    BilinearMaps,
    TrainableWeightedProduct,
    collect_layer_weights,
)
from tfe_bench.protocols.ring import conv, conv_gradients
from tfe_bench.protocols.ring.products import BilinearMap
from tfe_bench.protocols.session import tensor_ops

_IMAGES = Conv2D()


class Conv3D(TrainableWeightedProduct):
    """The convolution of volumes [depth, height, width, channels] with a kernel."""

    op = "conv3d"
    keras_layers = ("Conv3D",)

    @L.accept_channels_first
    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        if call.layer.groups != 1:
            raise L.UnsupportedLayer(
                f"groups={call.layer.groups}; only 1 is supported in three dimensions"
            )
        weights = collect_layer_weights(call, call.layer.kernel)
        return r.add_layer(
            call.name, self.op, call.inputs, weights, **read_conv_window_options(call)
        )

    def infer_kernel_product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        L.check_value(len(x) == 4, "volumes [depth, height, width, channels]", list(x))
        L.check_value(
            len(kernel) == 5 and kernel[3] == x[3], f"a kernel for {x[3]} channels", list(kernel)
        )
        L.check_options(options, "strides", "padding", "dilations")
        for name in ("strides", "dilations"):
            value = options[name]
            fits = (
                isinstance(value, (list, tuple)) and len(value) == 3 and all(map(L.is_whole, value))
            )
            L.check_value(fits, f"{name} as three positive integers", value)
        L.check_value(
            options["padding"] in ("SAME", "VALID"), 'padding "SAME" or "VALID"', options["padding"]
        )
        depths = _IMAGES.infer_kernel_product_shape(
            (x[0], 1, 1), _conv_depth_options(options), (kernel[0], 1, 1, 1)
        )[0]
        flat = (*x[1:3], kernel[0] * x[3])
        image = (*kernel[1:3], kernel[0] * x[3], kernel[4])
        return (
            depths,
            *_IMAGES.infer_kernel_product_shape(flat, _conv_plane_options(options), image),
        )

    def multiply_plaintext_kernel(self, x: Array, kernel: Array, options: Options) -> Array:
        places, pads = _list_conv_depths(x.shape[1], kernel.shape[0], options)
        padded = np.pad(x, [(0, 0), pads, *[(0, 0)] * 3])[:, places]  # [n, depth', cells, ...]
        images = [
            _IMAGES.multiply_plaintext_kernel(
                np.moveaxis(padded[:, i], 1, -2).reshape(len(x), *x.shape[2:4], -1),
                np.moveaxis(kernel, 0, 2).reshape(*kernel.shape[1:3], -1, kernel.shape[4]),
                _conv_plane_options(options),
            )
            for i in range(len(places))
        ]
        return np.stack(images, 1)

    def get_bilinear_map(self, options: Options) -> BilinearMap:
        windows = L.parse_layer_windows(_conv_plane_options(options))

        def convolve_volumes(a: list[Any], b: list[Any]) -> Any:
            flattened = _FlattenedVolumes.from_shapes(a[0].shape, b[0].shape, options)
            images, kernels = (
                [flattened.stack_images(v) for v in a],
                [flattened.flatten_kernel(v) for v in b],
            )
            return flattened.images_to_volumes(
                conv.convolve_ring_elements(images, kernels, windows)
            )

        return convolve_volumes

    def build_bilinear_maps(self, node: L.PlacedLayer, x: Shape) -> BilinearMaps:
        options = node.layer.options
        kernel = tuple(int(n) for n in node.layer.weights["kernel"].shape)
        flattened, windows = (
            _FlattenedVolumes.from_shapes(x, kernel, options),
            L.parse_layer_windows(_conv_plane_options(options)),
        )
        of_kernel = conv_gradients.kernel_gradient(windows, flattened.flat_kernel)
        of_image = conv_gradients.input_gradient(windows, flattened.flat_image)

        def compute_kernel_gradient(a: list[Any], g: list[Any]) -> Any:
            gradient = of_kernel(
                [flattened.stack_images(v) for v in a], [flattened.volumes_to_images(v) for v in g]
            )
            return flattened.unflatten_kernel(gradient)

        def compute_volume_gradient(g: list[Any], w: list[Any]) -> Any:
            return flattened.unstack_images(
                of_image(
                    [flattened.volumes_to_images(v) for v in g],
                    [flattened.flatten_kernel(v) for v in w],
                )
            )

        return BilinearMaps(
            self.get_bilinear_map(options), compute_kernel_gradient, compute_volume_gradient
        )


@dataclass(frozen=True, eq=False)
class _FlattenedVolumes:
    """Volumes as images: one image for each window along the depth, with its cells as channels.

    Attributes:
        volumes: shape of the volumes, with the batch.
        cube: shape of the kernel.
        places: the depths under each window, [windows, cells], of the volume padded by `pads`.
    """

    volumes: Shape
    cube: Shape
    places: Array
    pads: tuple[int, int]

    @classmethod
    def from_shapes(
        cls, volumes: Sequence[Any], cube: Sequence[Any], options: Options
    ) -> _FlattenedVolumes:
        x, kernel = (tuple(int(n) for n in shape) for shape in (volumes, cube))
        return cls(x, kernel, *_list_conv_depths(x[1], kernel[0], options))

    @property
    def flat_image(self) -> Shape:
        """Shape of all images."""
        n, _, height, width, channels = self.volumes
        return (n * len(self.places), height, width, self.cube[0] * channels)

    @property
    def flat_kernel(self) -> Shape:
        """Shape of the images' kernel."""
        cells, height, width, channels, filters = self.cube
        return (height, width, cells * channels, filters)

    def stack_images(self, v: Any) -> Any:
        """Convert volumes to images."""
        v = tensor_ops.gather(tensor_ops.pad(v, [(0, 0), self.pads, *[(0, 0)] * 3]), self.places, 1)
        return tensor_ops.reshape(tensor_ops.transpose(v, [0, 1, 3, 4, 2, 5]), self.flat_image)

    def unstack_images(self, v: Any) -> Any:
        """Convert the gradient of the images to that of the volumes."""
        n, depth, height, width, channels = self.volumes
        count, cells = self.places.shape
        v = tensor_ops.reshape(v, [n, count, height, width, cells, channels])
        v = tensor_ops.transpose(v, [1, 4, 0, 2, 3, 5])
        whole = [depth + sum(self.pads), n, height, width, channels]
        v = tensor_ops.scatter_nd(v, self.places[..., None], whole)
        v = tensor_ops.slice(v, [self.pads[0], 0, 0, 0, 0], [depth, *whole[1:]])
        return tensor_ops.transpose(v, [1, 0, 2, 3, 4])

    def flatten_kernel(self, v: Any) -> Any:
        """Convert the kernel to that of the images."""
        return tensor_ops.reshape(tensor_ops.transpose(v, [1, 2, 0, 3, 4]), self.flat_kernel)

    def unflatten_kernel(self, v: Any) -> Any:
        """Convert the gradient of the images' kernel to that of the kernel."""
        cells, height, width, channels, filters = self.cube
        v = tensor_ops.reshape(v, [height, width, cells, channels, filters])
        return tensor_ops.transpose(v, [2, 0, 1, 3, 4])

    def images_to_volumes(self, y: Any) -> Any:
        """Convert output images to volumes."""
        sizes = [int(size) for size in y.shape[1:]]
        return tensor_ops.reshape(y, [self.volumes[0], len(self.places), *sizes])

    def volumes_to_images(self, g: Any) -> Any:
        """Convert output volumes to images."""
        sizes = [int(size) for size in g.shape[2:]]
        return tensor_ops.reshape(g, [self.volumes[0] * len(self.places), *sizes])


def _conv_depth_options(options: Options) -> dict[str, Any]:
    """Return the options of the windows along the depth."""
    one = {name: [options[name][0], 1] for name in ("strides", "dilations")}
    return {**one, "padding": options["padding"]}


def _conv_plane_options(options: Options) -> dict[str, Any]:
    """Return the options of the windows along height and width."""
    two = {name: list(options[name][1:]) for name in ("strides", "dilations")}
    return {**two, "padding": options["padding"]}


def _list_conv_depths(depth: int, cells: int, options: Options) -> tuple[Array, tuple[int, int]]:
    """List the depths under each window, [windows, cells], and the zero padding at both ends."""
    windows = L.parse_layer_windows(_conv_depth_options(options))
    count = int(windows.window_count(0, depth, cells))
    before = int(windows.padding_before(0, depth, cells))
    places = np.arange(count)[:, None] * windows.strides[0]
    places = places + np.arange(cells) * windows.dilations[0]
    return places, (before, max(0, int(places.max()) + 1 - before - depth))
