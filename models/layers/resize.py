"""Resizing, UpSampling2D except nearest, AdaptiveAveragePooling: a public matrix for each axis."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session.sharing import Shared

METHODS = ("nearest", "bilinear", "bicubic", "mean")
# Bound on the elements of a matrix [old size, new size].
_MOST_ELEMENTS = 1 << 22
# Fractional bits of a matrix whose elements are not short binary fractions.
_FACTOR_BITS = 24


def build_resize_matrix(method: str, old: int, new: int) -> Array:
    """Build the matrix from old places to new ones, [new, old], float64.

    Pixel centers lie at halves, and positions outside repeat the last pixel: `half_pixel` of
    TensorFlow's resizing, bicubic with Keys' a = -1/2 at 1024ths of a pixel and no weight outside.
    A mean covers all pixels that a new one touches.
    """
    weights = np.zeros((new, old))
    rows = np.arange(new)
    if method == "mean":
        for i in rows:
            start, stop = i * old // new, -(-(i + 1) * old // new)
            weights[i, start:stop] = 1 / (stop - start)
        return weights
    if method == "nearest":
        weights[rows, (2 * rows + 1) * old // (2 * new)] = 1.0
        return weights
    # exact, as a fraction of 2 new
    place = (2 * rows + 1) * old - new
    low, rest = place // (2 * new), (place % (2 * new)) / (2 * new)
    if method == "bilinear":
        for cell, share in ((low, 1 - rest), (low + 1, rest)):
            np.add.at(weights, (rows, cell.clip(0, old - 1)), share)
        return weights
    rest = np.rint(rest * 1024) / 1024  # as in TensorFlow's table
    for shift in (-1, 0, 1, 2):
        inside = (low + shift >= 0) & (low + shift < old)
        share = _cubic_resize_kernel(np.abs(rest - shift))
        weights[rows[inside], (low + shift)[inside]] += share[inside]
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _cubic_resize_kernel(x: Array) -> Array:
    """Return the cubic kernel of Keys."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _exact_resize_bits(m: Array) -> int | None:
    """Return the fractional bits with which a matrix is exact; None if these are more than 8."""
    return next((k for k in range(9) if np.array_equal(m * 2**k, np.rint(m * 2**k))), None)


class Resize(L.Kind):
    """Images of another size, a linear function of the old pixels."""

    op = "resize"
    keras_layers = (
        "Resizing",
        *("AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D"),
    )

    @L.accept_channels_first
    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, old, new = call.layer, call.shapes[0], call.shape
        if call.class_name == "Resizing":
            aspect = layer.crop_to_aspect_ratio or layer.pad_to_aspect_ratio
            if aspect and old[0] * new[1] != old[1] * new[0]:
                raise L.UnsupportedLayer(
                    "of another aspect ratio, which it would keep; use CenterCrop before it"
                )
            if layer.antialias:
                raise L.UnsupportedLayer("antialias=True")
            return add_resize_layer(r, call, str(layer.interpolation))
        if len(old) == 2:
            row = L.add_reshape_layer(r, call.inputs[0], f"{call.name}/image", (1, *old))
            options = {"size": [1, new[0]], "method": "mean"}
            return L.add_reshape_layer(
                r, r.add_layer(call.name, self.op, [row], None, **options), f"{call.name}/rows", new
            )
        return add_resize_layer(r, call, "mean")

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = L.check_single_input(input_shapes, weights)
        L.check_image(x)
        L.check_options(options, "size", "method")
        size = L.read_pair(options, "size")
        L.check_value(options["method"] in METHODS, f"a method of {METHODS}", options["method"])
        fits = all(old * new <= _MOST_ELEMENTS for old, new in zip(x[:2], size, strict=True))
        L.check_value(fits, f"{_MOST_ELEMENTS} elements of a matrix at most", [list(x), list(size)])
        return (*size, x[2])

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        rows, columns = _build_resize_matrices(x, values[0].shape[1:])
        resized = np.einsum("yh,xw,nhwc->nyxc", rows, columns, values[0], optimize=True)
        return np.asarray(resized)

    # ---- fixed point

    def plan_format(self, planner: L.LayerFormatPlanner, x: L.LayerSpec) -> L.FixedPointFormat:
        f, m = planner.get_input_format(x)
        input_shape = planner.shapes[x.inputs[0]]
        room = L.PRODUCT_BITS - f - max(m, 0) - 1
        exact = sum(_exact_resize_bits(a) or 0 for a in _build_resize_matrices(x, input_shape))
        if room < max(exact, L.FEWEST_WEIGHT_BITS):
            planner.report_unfit(x, f"takes values up to {2.0**m:g}")
        return L.FixedPointFormat(f, max(1, min(_FACTOR_BITS, room)))

    def bound_output(self, node: L.PlacedLayer, input_limits: list[int]) -> int | None:
        sizes = [
            float(np.abs(a).sum(1).max())
            for a in _build_resize_matrices(node.layer, node.input_shapes[0])
        ]
        return math.ceil(node.align_limits(input_limits)[0] * math.prod(sizes) * (1 + 2.0**-10)) + 3

    # ---- private inference

    def forward(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        rows, columns = _build_resize_matrices(node.layer, node.input_shapes[0])
        return _apply_resize_matrices(p, values[0], rows, columns, node.numbers.scale)

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        rows, columns = _build_resize_matrices(node.layer, node.input_shapes[0])
        return _apply_resize_matrices(p, values[0], rows, columns, _FACTOR_BITS)

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Apply the transposed matrices."""
        rows, columns = _build_resize_matrices(node.layer, node.input_shapes[0])
        return [_apply_resize_matrices(p, p.rescale_gradient(g), rows.T, columns.T, _FACTOR_BITS)]


def add_resize_layer(r: L.Reader, call: L.LayerCall, method: str) -> str:
    """Add a resize to the size of a call's output.

    Raises:
        UnsupportedLayer: the method is not supported.
    """
    if method not in METHODS:
        known = ", ".join(METHODS[:-1])
        raise L.UnsupportedLayer(f"interpolation={method!r}; {known} are supported")
    options = {"size": [int(n) for n in call.shape[:2]], "method": method}
    return r.add_layer(call.name, Resize.op, call.inputs, None, **options)


def _build_resize_matrices(x: L.LayerSpec, input_shape: Shape) -> tuple[Array, Array]:
    rows, columns = (
        build_resize_matrix(x.options["method"], old, new)
        for old, new in zip(input_shape[:2], x.options["size"], strict=True)
    )
    return rows, columns


def _apply_resize_matrices(
    p: L.ForwardContext, x: Shared, rows: Array, columns: Array, max_bits: int
) -> Shared:
    """Compute rows . x . columns^T for each channel, at the scale of x.

    If both matrices are short binary fractions, they are exact and the result is truncated once;
    otherwise each matrix is rounded to `max_bits`, and its product is truncated.
    """
    ops, f = p.ops, x.fractional_bits
    exact = [_exact_resize_bits(a) for a in (columns, rows)]
    once = None not in exact and sum(k or 0 for k in exact) <= max_bits
    for axis, (a, k) in enumerate(zip((columns, rows), exact, strict=True)):
        batch, height, width, channels = ops.get_shape(x)
        bits = k if once and k is not None else max_bits
        ring = np.rint(a * 2.0**bits).astype(np.int64)
        old = (batch, height, width * channels) if axis else (batch, height, width, channels)
        new = (*old[:-2], len(a), old[-1])
        x = L.reshape_value(ops, x, old) if axis else x

        def multiply_resize_matrix(v: Shared, ring: Array = ring, bits: int = bits) -> Shared:
            return arithmetic.matmul_public(ring, v, bits)

        x = ops.apply_local(multiply_resize_matrix, x, new)
        x = L.reshape_value(ops, x, (batch, len(a), width, channels)) if axis else x
        if not once:
            x = ops.truncate(x, bits)
    drop = x.fractional_bits - f
    return ops.truncate(x, drop) if drop else x
