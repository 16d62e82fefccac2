"""Conv3D: a convolution of images, of which the depths under one window are channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfe_bench.models.kinds.checks import need, only, whole
from tfe_bench.models.kinds.layer import Array, Node, Options, Shape
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.turning import channels_last
from tfe_bench.models.kinds.windows import windows_of
from tfe_bench.models.layers.conv2d import Conv2D, read_windows
from tfe_bench.models.layers.linear import Maps, Trained, with_bias
from tfe_bench.protocols.ring import conv, conv_gradients
from tfe_bench.protocols.ring.products import Two
from tfe_bench.protocols.session import local

_IMAGES = Conv2D()


class Conv3D(Trained):
    """The convolution of volumes [depth, height, width, channels] with a kernel."""

    op = "conv3d"
    keras = ("Conv3D",)

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        if call.layer.groups != 1:
            raise Unfit(f"groups={call.layer.groups}; only 1 is supported in three dimensions")
        weights = with_bias(call, call.layer.kernel)
        return r.emit(call.name, self.op, call.inputs, weights, **read_windows(call))

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        need(len(x) == 4, "volumes [depth, height, width, channels]", list(x))
        need(len(kernel) == 5 and kernel[3] == x[3], f"a kernel for {x[3]} channels", list(kernel))
        only(options, "strides", "padding", "dilations")
        for name in ("strides", "dilations"):
            value = options[name]
            fits = isinstance(value, (list, tuple)) and len(value) == 3 and all(map(whole, value))
            need(fits, f"{name} as three positive integers", value)
        need(
            options["padding"] in ("SAME", "VALID"), 'padding "SAME" or "VALID"', options["padding"]
        )
        depths = _IMAGES.product_shape((x[0], 1, 1), _deep(options), (kernel[0], 1, 1, 1))[0]
        flat = (*x[1:3], kernel[0] * x[3])
        image = (*kernel[1:3], kernel[0] * x[3], kernel[4])
        return (depths, *_IMAGES.product_shape(flat, _flat(options), image))

    def multiplied(self, x: Array, kernel: Array, options: Options) -> Array:
        places, pads = _depths(x.shape[1], kernel.shape[0], options)
        padded = np.pad(x, [(0, 0), pads, *[(0, 0)] * 3])[:, places]  # [n, depth', cells, ...]
        found = [
            _IMAGES.multiplied(
                np.moveaxis(padded[:, i], 1, -2).reshape(len(x), *x.shape[2:4], -1),
                np.moveaxis(kernel, 0, 2).reshape(*kernel.shape[1:3], -1, kernel.shape[4]),
                _flat(options),
            )
            for i in range(len(places))
        ]
        return np.stack(found, 1)

    def bilinear(self, options: Options) -> Two:
        windows = windows_of(_flat(options))

        def two(a: list[Any], b: list[Any]) -> Any:
            own = _Flattened.of(a[0].shape, b[0].shape, options)
            images, kernels = [own.image(v) for v in a], [own.kernel(v) for v in b]
            return own.volume(conv.convolve(images, kernels, windows))

        return two

    def maps(self, node: Node, x: Shape) -> Maps:
        options = node.layer.options
        kernel = tuple(int(n) for n in node.layer.weights["kernel"].shape)
        own, windows = _Flattened.of(x, kernel, options), windows_of(_flat(options))
        of_kernel = conv_gradients.kernel_gradient(windows, own.flat_kernel)
        of_image = conv_gradients.input_gradient(windows, own.flat_image)

        def kernels(a: list[Any], g: list[Any]) -> Any:
            found = of_kernel([own.image(v) for v in a], [own.images(v) for v in g])
            return own.unkernel(found)

        def images(g: list[Any], w: list[Any]) -> Any:
            return own.unimage(of_image([own.images(v) for v in g], [own.kernel(v) for v in w]))

        return Maps(self.bilinear(options), kernels, images)


@dataclass(frozen=True, eq=False)
class _Flattened:
    """Volumes as images, one for each window along the depth, whose channels are its cells'.

    Attributes:
        volumes: shape, with the batch.
        cube: the kernel's.
        places: the depths under each window, [windows, cells], in what is padded by `pads`.
    """

    volumes: Shape
    cube: Shape
    places: Array
    pads: tuple[int, int]

    @classmethod
    def of(cls, volumes: Sequence[Any], cube: Sequence[Any], options: Options) -> _Flattened:
        x, kernel = (tuple(int(n) for n in shape) for shape in (volumes, cube))
        return cls(x, kernel, *_depths(x[1], kernel[0], options))

    @property
    def flat_image(self) -> Shape:
        """The shape of all images."""
        n, _, height, width, channels = self.volumes
        return (n * len(self.places), height, width, self.cube[0] * channels)

    @property
    def flat_kernel(self) -> Shape:
        """The shape of their kernel."""
        cells, height, width, channels, filters = self.cube
        return (height, width, cells * channels, filters)

    def image(self, v: Any) -> Any:
        """The images of volumes."""
        v = local.gather(local.pad(v, [(0, 0), self.pads, *[(0, 0)] * 3]), self.places, 1)
        return local.reshape(local.transpose(v, [0, 1, 3, 4, 2, 5]), self.flat_image)

    def unimage(self, v: Any) -> Any:
        """The gradient of volumes, of that of their images."""
        n, depth, height, width, channels = self.volumes
        count, cells = self.places.shape
        v = local.reshape(v, [n, count, height, width, cells, channels])
        v = local.transpose(v, [1, 4, 0, 2, 3, 5])
        whole = [depth + sum(self.pads), n, height, width, channels]
        v = local.scatter_nd(v, self.places[..., None], whole)
        v = local.slice(v, [self.pads[0], 0, 0, 0, 0], [depth, *whole[1:]])
        return local.transpose(v, [1, 0, 2, 3, 4])

    def kernel(self, v: Any) -> Any:
        """The kernel of images."""
        return local.reshape(local.transpose(v, [1, 2, 0, 3, 4]), self.flat_kernel)

    def unkernel(self, v: Any) -> Any:
        """The kernel's gradient, of that of the images'."""
        cells, height, width, channels, filters = self.cube
        v = local.reshape(v, [height, width, cells, channels, filters])
        return local.transpose(v, [2, 0, 1, 3, 4])

    def volume(self, y: Any) -> Any:
        """Images as volumes."""
        sizes = [int(size) for size in y.shape[1:]]
        return local.reshape(y, [self.volumes[0], len(self.places), *sizes])

    def images(self, g: Any) -> Any:
        """Volumes as images."""
        sizes = [int(size) for size in g.shape[2:]]
        return local.reshape(g, [self.volumes[0] * len(self.places), *sizes])


def _deep(options: Options) -> dict[str, Any]:
    """The windows along the depth."""
    one = {name: [options[name][0], 1] for name in ("strides", "dilations")}
    return {**one, "padding": options["padding"]}


def _flat(options: Options) -> dict[str, Any]:
    """The windows along height and width."""
    two = {name: list(options[name][1:]) for name in ("strides", "dilations")}
    return {**two, "padding": options["padding"]}


def _depths(depth: int, cells: int, options: Options) -> tuple[Array, tuple[int, int]]:
    """The depths under each window, [windows, cells], and the zeros that go before and behind."""
    windows = windows_of(_deep(options))
    count = int(windows.size(0, depth, cells))
    before = int(windows.before(0, depth, cells))
    places = np.arange(count)[:, None] * windows.strides[0]
    places = places + np.arange(cells) * windows.dilations[0]
    return places, (before, max(0, int(places.max()) + 1 - before - depth))
