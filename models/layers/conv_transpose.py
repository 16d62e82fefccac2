"""Conv2DTranspose and Conv1DTranspose: a convolution's gradient by its images, as a layer."""

from __future__ import annotations

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape
from tfe_bench.models.layers.conv1d import RowConvolution
from tfe_bench.models.layers.conv2d import Convolution, check_conv_windows, read_conv_window_options
from tfe_bench.models.layers.linear import BilinearMaps, collect_layer_weights
from tfe_bench.protocols.ring import conv, conv_gradients
from tfe_bench.protocols.ring.products import BilinearMap


class TransposedConvolution(Convolution):
    """A layer that spreads each value with a kernel [height, width, filters, channels].

    It is the gradient (d, kernel) -> dx of a convolution. The convolution's images have the size of
    the layer's output, an option; the convolution's output has the size of the layer's input.
    """

    depthwise = False
    pads_images = False
    window_options = (*Convolution.window_options, "size")

    def infer_kernel_product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        L.check_image(x)
        L.check_options(options, *self.window_options)
        size = L.read_pair(options, "size")
        fits = len(kernel) == 4 and kernel[3] == x[2]
        L.check_value(fits, f"a kernel of {x[2]} channels in its last axis", list(kernel))
        check_conv_windows(options)
        windows = L.parse_layer_windows(options)
        convolved_size = tuple(int(windows.window_count(a, size[a], kernel[a])) for a in (0, 1))
        L.check_value(
            convolved_size == x[:2], "a size from which a convolution produces the input's", [*size]
        )
        return (*size, kernel[2])

    def multiply_plaintext_kernel(self, x: Array, kernel: Array, options: Options) -> Array:
        windows, size = L.parse_layer_windows(options), options["size"]
        befores, reaches = [], []
        for axis in (0, 1):
            befores.append(int(windows.padding_before(axis, size[axis], kernel.shape[axis])))
            span = (x.shape[1 + axis] - 1) * windows.strides[axis]
            span += (kernel.shape[axis] - 1) * windows.dilations[axis] + 1
            reaches.append(max(span, befores[axis] + size[axis]))
        padded = np.zeros((len(x), *reaches, kernel.shape[2]))
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
            padded[:, places[0], places[1]] += x @ kernel[i, j].T
        (top_pad, left_pad), (height, width) = befores, size
        return padded[:, top_pad : top_pad + height, left_pad : left_pad + width]

    def get_convolution_map(self, options: Options) -> BilinearMap:
        # (the kernel determines the images' channels; the 1 is ignored)
        return conv_gradients.input_gradient(L.parse_layer_windows(options), (*options["size"], 1))

    def build_convolution_maps(self, options: Options, x: Shape, kernel: Shape) -> BilinearMaps:
        windows = L.parse_layer_windows(options)
        of_kernel = conv_gradients.kernel_gradient(windows, kernel)
        return BilinearMaps(
            self.get_convolution_map(options),
            lambda x, g: of_kernel(g, x),
            lambda g, w: conv.convolve_ring_elements(g, w, windows),
        )

    def scale_kernel(self, kernel: Array, factor: Array) -> Array:
        return kernel * factor[:, None]


class Conv2DTranspose(TransposedConvolution):
    """A convolution's gradient by its images."""

    op = "conv2d_transpose"
    keras_layers = ("Conv2DTranspose",)

    @L.accept_channels_first
    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        options = {**read_conv_window_options(call), "size": [int(n) for n in call.shape[:-1]]}
        return r.add_layer(
            call.name,
            self.op,
            call.inputs,
            collect_layer_weights(call, call.layer.kernel),
            **options,
        )


class Conv1DTranspose(RowConvolution, Conv2DTranspose):
    """A convolution's gradient by its rows."""

    op = "conv1d_transpose"
    keras_layers = ("Conv1DTranspose",)
