"""Conv3D: a convolution of images, of which the depths under one window are channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.models.kinds.checks import need, only, whole
from tfe_bench.models.kinds.layer import Array, Options, Shape
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.turning import channels_last
from tfe_bench.models.kinds.windows import windows_of
from tfe_bench.models.layers.conv2d import Conv2D, read_windows
from tfe_bench.models.layers.linear import Linear, with_bias
from tfe_bench.protocols.ring import conv
from tfe_bench.protocols.ring.products import Two
from tfe_bench.protocols.session import local

_IMAGES = Conv2D()


class Conv3D(Linear):
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
            n, depth, height, width, channels = (int(size) for size in a[0].shape)
            cells, *sizes, _, filters = (int(size) for size in b[0].shape)
            places, pads = _depths(depth, cells, options)
            flat = [n * len(places), height, width, cells * channels]

            def image(v: Any) -> Any:
                v = local.pad(v, [(0, 0), pads, (0, 0), (0, 0), (0, 0)])
                v = local.gather(v, places, 1)
                return local.reshape(local.transpose(v, [0, 1, 3, 4, 2, 5]), flat)

            def kernel(v: Any) -> Any:
                v = local.transpose(v, [1, 2, 0, 3, 4])
                return local.reshape(v, [*sizes, cells * channels, filters])

            y = conv.convolve([image(v) for v in a], [kernel(v) for v in b], windows)
            return local.reshape(y, [n, len(places), *(int(size) for size in y.shape[1:])])

        return two


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
