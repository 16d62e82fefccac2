"""Windows that slide over images: their options, where they lie, and their cells in the clear."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tfe_bench.models.kinds.checks import alone, image, need, only, pair
from tfe_bench.models.kinds.kind import Kind
from tfe_bench.models.kinds.layer import Array, Options, Shape, Shapes
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.turning import channels_last, reshaped, turned
from tfe_bench.protocols.ring.conv import Windows


def windows_of(options: Options) -> Windows:
    """Where a convolution's or a pooling's windows lie."""
    return Windows.of(
        "conv2d", options["strides"], options["padding"], options.get("dilations", [1, 1])
    )


class Windowed(Kind):
    """Something of each window of an image."""

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        layer = call.layer
        if call.kind.startswith("Adaptive"):
            old, new = call.shapes[0][:-1], call.shape[:-1]
            if any(n % k for n, k in zip(old, new, strict=True)):
                raise Unfit(f"parts {list(new)} of {list(old)} that are not equal")
            sizes = [n // k for n, k in zip(old, new, strict=True)]
            return self.read_windows(r, call, sizes, sizes, "VALID")
        return self.read_windows(r, call, layer.pool_size, layer.strides, layer.padding.upper())

    def read_windows(
        self, r: Reader, call: Call, sizes: Sequence[int], strides: Sequence[int], padding: str
    ) -> str:
        """Writes windows over rows, images or volumes: one pooling, or two one after the other."""
        name, shape, (given,) = call.name, call.shapes[0], call.inputs
        ksize, steps = [int(n) for n in sizes], [int(n) for n in strides]

        def pool(name: str, given: str, first: int, axes: int) -> str:
            options: dict[str, list[int]] = {}
            for key, several in (("ksize", ksize), ("strides", steps)):
                options[key] = [1] * (2 - axes) + several[first : first + axes]
            return r.emit(name, self.op, [given], None, **options, padding=padding)

        if len(shape) == 3:
            return pool(name, given, 0, 2)
        if len(shape) == 2:
            image = reshaped(r, given, f"{name}/image", (1, *shape))
            return reshaped(r, pool(name, image, 0, 1), f"{name}/rows", call.shape)
        # heights and widths of every depth, then the depths of every place
        depth, height, width, channels = shape
        new_depth, new_height, new_width, _ = call.shape
        behind = turned(r, given, f"{name}/depth_behind", [2, 3, 1, 4])
        flat = reshaped(r, behind, f"{name}/images", (height, width, depth * channels))
        flat = pool(r.unique(f"{name}/images_pooled"), flat, 1, 2)
        places = new_height * new_width
        rows = reshaped(r, flat, f"{name}/depths", (places, depth, channels))
        rows = pool(name, rows, 0, 1)
        whole = (new_height, new_width, new_depth, channels)
        found = reshaped(r, rows, f"{name}/volume", whole)
        return turned(r, found, f"{name}/depth_first", [3, 1, 2, 4])

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        image(x)
        only(options, "ksize", "strides", "padding")
        kernel, _ = pair(options, "ksize"), pair(options, "strides")
        same = options["padding"] == "SAME"
        need(same or options["padding"] == "VALID", 'padding "SAME" or "VALID"', options["padding"])
        windows = windows_of(options)
        # Each cell of a window is listed: those outside of the image are no use.
        fits = all(k <= (2 * n + 1 if same else n) for k, n in zip(kernel, x[:2], strict=True))
        need(
            fits,
            "windows no larger than the image (SAME: than twice the image and 1)",
            [list(kernel), list(x)],
        )
        height, width = (int(windows.size(a, x[a], kernel[a])) for a in (0, 1))
        return height, width, x[2]


class Overall(Kind):
    """Something of each channel of an image."""

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        keepdims, shape = bool(call.layer.keepdims), call.shapes[0]
        if len(shape) == 3:
            return r.emit(call.name, self.op, call.inputs, None, keepdims=keepdims)
        places = (shape[0], math.prod(shape[1:-1]), shape[-1])
        image = reshaped(r, call.inputs[0], f"{call.name}/image", places)
        found = r.emit(call.name, self.op, [image], None, keepdims=False)
        return reshaped(r, found, f"{call.name}/kept", call.shape) if keepdims else found

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        image(x)
        only(options, "keepdims")
        need(isinstance(options["keepdims"], bool), "keepdims", options["keepdims"])
        return (1, 1, x[2]) if options["keepdims"] else (x[2],)


def cells(
    x: Array, kernel: Sequence[int], options: Options, outside: float = 0.0
) -> Iterator[tuple[int, int, Array]]:
    """For each cell of a window, its values under all windows, [batch, height, width, channels].

    (In NumPy, one shift after the other: TensorFlow's convolutions of float64 differ by host.)
    """
    windows = windows_of(options)
    pads, sizes = [], []
    for axis in (0, 1):
        extent, size = x.shape[1 + axis], kernel[axis]
        count = int(windows.size(axis, extent, size))
        before = int(windows.before(axis, extent, size))
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


def window_sums(x: Array, options: Options) -> Array:
    """The sum of each window's cells."""
    return np.asarray(sum(cell for _, _, cell in cells(x, options["ksize"], options)))
