"""Windows that slide over images: their options, their positions, and their cells in plaintext."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tfe_bench.models.layers.base.checks import (
    check_image,
    check_options,
    check_single_input,
    check_value,
    read_pair,
)
from tfe_bench.models.layers.base.kind import Kind
from tfe_bench.models.layers.base.layer import Array, Options, Shape, Shapes
from tfe_bench.models.layers.base.layout import (
    accept_channels_first,
    add_reshape_layer,
    add_transpose_layer,
)
from tfe_bench.models.layers.base.reading import LayerCall, Reader, UnsupportedLayer
from tfe_bench.protocols.ring.conv import Windows


def parse_layer_windows(options: Options) -> Windows:
    """Parse the windows of a convolution or a pooling."""
    return Windows.from_arguments(
        "conv2d", options["strides"], options["padding"], options.get("dilations", [1, 1])
    )


class WindowPooling(Kind):
    """A kind that reduces each window of an image."""

    @accept_channels_first
    def convert_layer(self, r: Reader, call: LayerCall) -> str:
        layer = call.layer
        if call.class_name.startswith("Adaptive"):
            old, new = call.shapes[0][:-1], call.shape[:-1]
            if any(n % k for n, k in zip(old, new, strict=True)):
                raise UnsupportedLayer(f"parts {list(new)} of {list(old)} that are not equal")
            sizes = [n // k for n, k in zip(old, new, strict=True)]
            return self.convert_windows(r, call, sizes, sizes, "VALID")
        return self.convert_windows(r, call, layer.pool_size, layer.strides, layer.padding.upper())

    def convert_windows(
        self, r: Reader, call: LayerCall, sizes: Sequence[int], strides: Sequence[int], padding: str
    ) -> str:
        """Add pooling over windows of rows, images or volumes: one pooling, or two in sequence."""
        name, shape, (input_name,) = call.name, call.shapes[0], call.inputs
        ksize, steps = [int(n) for n in sizes], [int(n) for n in strides]

        def add_pooling_layer(name: str, input_name: str, first: int, axes: int) -> str:
            options: dict[str, list[int]] = {}
            for key, several in (("ksize", ksize), ("strides", steps)):
                options[key] = [1] * (2 - axes) + several[first : first + axes]
            return r.add_layer(name, self.op, [input_name], None, **options, padding=padding)

        if len(shape) == 3:
            return add_pooling_layer(name, input_name, 0, 2)
        if len(shape) == 2:
            image = add_reshape_layer(r, input_name, f"{name}/image", (1, *shape))
            return add_reshape_layer(
                r, add_pooling_layer(name, image, 0, 1), f"{name}/rows", call.shape
            )
        # pool height and width for every depth, then the depth for every position
        depth, height, width, channels = shape
        new_depth, new_height, new_width, _ = call.shape
        depth_last = add_transpose_layer(r, input_name, f"{name}/depth_behind", [2, 3, 1, 4])
        flat = add_reshape_layer(r, depth_last, f"{name}/images", (height, width, depth * channels))
        flat = add_pooling_layer(r.make_unique(f"{name}/images_pooled"), flat, 1, 2)
        places = new_height * new_width
        rows = add_reshape_layer(r, flat, f"{name}/depths", (places, depth, channels))
        rows = add_pooling_layer(name, rows, 0, 1)
        whole = (new_height, new_width, new_depth, channels)
        volume = add_reshape_layer(r, rows, f"{name}/volume", whole)
        return add_transpose_layer(r, volume, f"{name}/depth_first", [3, 1, 2, 4])

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = check_single_input(input_shapes, weights)
        check_image(x)
        check_options(options, "ksize", "strides", "padding")
        kernel, _ = read_pair(options, "ksize"), read_pair(options, "strides")
        same = options["padding"] == "SAME"
        check_value(
            same or options["padding"] == "VALID", 'padding "SAME" or "VALID"', options["padding"]
        )
        windows = parse_layer_windows(options)
        # Each cell of a window is listed; cells outside of the image are useless.
        fits = all(k <= (2 * n + 1 if same else n) for k, n in zip(kernel, x[:2], strict=True))
        check_value(
            fits,
            "windows no larger than the image (SAME: than twice the image and 1)",
            [list(kernel), list(x)],
        )
        height, width = (int(windows.window_count(a, x[a], kernel[a])) for a in (0, 1))
        return height, width, x[2]


class GlobalPooling(Kind):
    """A kind that reduces each channel of an image."""

    @accept_channels_first
    def convert_layer(self, r: Reader, call: LayerCall) -> str:
        keepdims, shape = bool(call.layer.keepdims), call.shapes[0]
        if len(shape) == 3:
            return r.add_layer(call.name, self.op, call.inputs, None, keepdims=keepdims)
        places = (shape[0], math.prod(shape[1:-1]), shape[-1])
        image = add_reshape_layer(r, call.inputs[0], f"{call.name}/image", places)
        pooled = r.add_layer(call.name, self.op, [image], None, keepdims=False)
        return add_reshape_layer(r, pooled, f"{call.name}/kept", call.shape) if keepdims else pooled

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = check_single_input(input_shapes, weights)
        check_image(x)
        check_options(options, "keepdims")
        check_value(isinstance(options["keepdims"], bool), "keepdims", options["keepdims"])
        return (1, 1, x[2]) if options["keepdims"] else (x[2],)


def iterate_window_cells(
    x: Array, kernel: Sequence[int], options: Options, outside: float = 0.0
) -> Iterator[tuple[int, int, Array]]:
    """Yield each cell of a window with its values in all windows.

    The values are [batch, height, width, channels].

    (In NumPy, one shift after the other: TensorFlow's float64 convolutions differ by host.)
    """
    windows = parse_layer_windows(options)
    pads, sizes = [], []
    for axis in (0, 1):
        extent, size = x.shape[1 + axis], kernel[axis]
        count = int(windows.window_count(axis, extent, size))
        before = int(windows.padding_before(axis, extent, size))
        reach = (count - 1) * windows.strides[axis] + (size - 1) * windows.dilations[axis] + 1
        pads.append((before, max(0, reach - before - extent)))
        sizes.append(count)
    padded = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=outside)
    (high, wide), (down, right) = windows.strides, windows.dilations
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * down, j * right
            rows = slice(top, top + (sizes[0] - 1) * high + 1, high)
            yield i, j, padded[:, rows, left : left + (sizes[1] - 1) * wide + 1 : wide]


def sum_window_cells(x: Array, options: Options) -> Array:
    """Sum the cells of each window."""
    return np.asarray(
        sum(cell for _, _, cell in iterate_window_cells(x, options["ksize"], options))
    )
