"""Conv2DTranspose and Conv1DTranspose: a convolution's gradient by its images, as a layer."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.kinds.checks import image, need, only, pads, pair
from tfe_bench.models.kinds.layer import Array, Options, Shape
from tfe_bench.models.kinds.reading import Call, Reader
from tfe_bench.models.kinds.turning import channels_last
from tfe_bench.models.kinds.windows import windows_of
from tfe_bench.models.layers.conv1d import OfRows
from tfe_bench.models.layers.conv2d import Convolution, read_windows
from tfe_bench.models.layers.linear import Maps, with_bias
from tfe_bench.protocols.ring import conv, conv_gradients
from tfe_bench.protocols.ring.products import Two


class Transposed(Convolution):
    """What spreads each value with a kernel [height, width, filters, channels].

    It is the gradient (d, kernel) -> dx of a convolution whose images are of the size that the
    layer gives, an option, and whose value is of the size that it takes.
    """

    depthwise = False
    pads_images = False
    windowed = (*Convolution.windowed, "size")

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        image(x)
        only(options, *self.windowed)
        size = pair(options, "size")
        fits = len(kernel) == 4 and kernel[3] == x[2]
        need(fits, f"a kernel of {x[2]} channels in its last axis", list(kernel))
        pair(options, "strides")
        pair(options, "dilations")
        padding = options["padding"]
        need(padding in ("SAME", "VALID") or pads(padding), 'padding "SAME" or "VALID"', padding)
        windows = windows_of(options)
        back = tuple(int(windows.size(a, size[a], kernel[a])) for a in (0, 1))
        need(back == x[:2], "a size of which a convolution makes its input's", [*size])
        return (*size, kernel[2])

    def multiplied(self, x: Array, kernel: Array, options: Options) -> Array:
        windows, size = windows_of(options), options["size"]
        befores, reaches = [], []
        for axis in (0, 1):
            befores.append(int(windows.before(axis, size[axis], kernel.shape[axis])))
            span = (x.shape[1 + axis] - 1) * windows.strides[axis]
            span += (kernel.shape[axis] - 1) * windows.dilations[axis] + 1
            reaches.append(max(span, befores[axis] + size[axis]))
        found = np.zeros((len(x), *reaches, kernel.shape[2]))
        for i, j in np.ndindex(*kernel.shape[:2]):
            places = [
                slice(start, start + (n - 1) * stride + 1, stride)
                for start, n, stride in zip(
                    (i * windows.dilations[0], j * windows.dilations[1]),
                    x.shape[1:3],
                    windows.strides,
                    strict=True,
                )
            ]
            found[:, places[0], places[1]] += x @ kernel[i, j].T
        (top, left), (height, width) = befores, size
        return found[:, top : top + height, left : left + width]

    def product(self, options: Options) -> Two:
        # (the images' channels are the kernel's, whatever stands here)
        return conv_gradients.input_gradient(windows_of(options), (*options["size"], 1))

    def windowed_maps(self, options: Options, x: Shape, kernel: Shape) -> Maps:
        windows = windows_of(options)
        of_kernel = conv_gradients.kernel_gradient(windows, kernel)
        return Maps(
            self.product(options),
            lambda x, g: of_kernel(g, x),
            lambda g, w: conv.convolve(g, w, windows),
        )

    def scaled(self, kernel: Array, factor: Array) -> Array:
        return kernel * factor[:, None]


class Conv2DTranspose(Transposed):
    """A convolution's gradient by its images."""

    op = "conv2d_transpose"
    keras = ("Conv2DTranspose",)

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        options = {**read_windows(call), "size": [int(n) for n in call.shape[:-1]]}
        return r.emit(
            call.name, self.op, call.inputs, with_bias(call, call.layer.kernel), **options
        )


class Conv1DTranspose(OfRows, Conv2DTranspose):
    """A convolution's gradient by its rows."""

    op = "conv1d_transpose"
    keras = ("Conv1DTranspose",)
