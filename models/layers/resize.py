"""Resizing, UpSampling2D but the nearest, AdaptiveAveragePooling: a public matrix for each axis."""

from __future__ import annotations

import math

import numpy as np

from tfe_bench.models.kinds.checks import alone, image, need, only, pair
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Numbers, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, reshaped
from tfe_bench.models.kinds.planning import FEWEST_WEIGHT_BITS, PRODUCT_BITS, Planner
from tfe_bench.models.kinds.reading import Call, Reader, Unfit
from tfe_bench.models.kinds.turning import channels_last
from tfe_bench.models.kinds.turning import reshaped as in_shape
from tfe_bench.protocols.ring import arithmetic
from tfe_bench.protocols.session.sharing import Shared

METHODS = ("nearest", "bilinear", "bicubic", "mean")
# Matrices are of old sizes by new ones, all of whose elements are listed.
_MOST_ELEMENTS = 1 << 22
# Of a matrix whose numbers are no short binary fractions.
_FACTOR_BITS = 24


def matrix(method: str, old: int, new: int) -> Array:
    """What new places are of old ones, [new, old], float64.

    The centers of pixels lie at halves, and what lies outside is the last pixel: `half_pixel` of
    TensorFlow's resizing, bicubic with Keys' a = -1/2 at 1024ths of a pixel and no weight outside.
    A mean is that of all pixels that a new one touches.
    """
    found = np.zeros((new, old))
    rows = np.arange(new)
    if method == "mean":
        for i in rows:
            start, stop = i * old // new, -(-(i + 1) * old // new)
            found[i, start:stop] = 1 / (stop - start)
        return found
    if method == "nearest":
        found[rows, (2 * rows + 1) * old // (2 * new)] = 1.0
        return found
    # exactly, as a fraction of 2 new
    place = (2 * rows + 1) * old - new
    low, rest = place // (2 * new), (place % (2 * new)) / (2 * new)
    if method == "bilinear":
        for cell, share in ((low, 1 - rest), (low + 1, rest)):
            np.add.at(found, (rows, cell.clip(0, old - 1)), share)
        return found
    rest = np.rint(rest * 1024) / 1024  # as TensorFlow has them in a table
    for shift in (-1, 0, 1, 2):
        inside = (low + shift >= 0) & (low + shift < old)
        share = _keys(np.abs(rest - shift))
        found[rows[inside], (low + shift)[inside]] += share[inside]
    return np.asarray(found / found.sum(1, keepdims=True))


def _keys(x: Array) -> Array:
    """The cubic kernel."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _exact_bits(m: Array) -> int | None:
    """Fractional bits of which a matrix wants no more; None where it wants many."""
    return next((k for k in range(9) if np.array_equal(m * 2**k, np.rint(m * 2**k))), None)


class Resize(Kind):
    """Images of another size, linearly in the old pixels."""

    op = "resize"
    keras = (
        "Resizing",
        *("AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D"),
    )

    @channels_last
    def read(self, r: Reader, call: Call) -> str:
        layer, old, new = call.layer, call.shapes[0], call.shape
        if call.kind == "Resizing":
            aspect = layer.crop_to_aspect_ratio or layer.pad_to_aspect_ratio
            if aspect and old[0] * new[1] != old[1] * new[0]:
                raise Unfit("of another aspect ratio, which it keeps; use CenterCrop before it")
            if layer.antialias:
                raise Unfit("antialias=True")
            return emit(r, call, str(layer.interpolation))
        if len(old) == 2:
            row = in_shape(r, call.inputs[0], f"{call.name}/image", (1, *old))
            options = {"size": [1, new[0]], "method": "mean"}
            return in_shape(
                r, r.emit(call.name, self.op, [row], None, **options), f"{call.name}/rows", new
            )
        return emit(r, call, "mean")

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        image(x)
        only(options, "size", "method")
        size = pair(options, "size")
        need(options["method"] in METHODS, f"a method of {METHODS}", options["method"])
        fits = all(old * new <= _MOST_ELEMENTS for old, new in zip(x[:2], size, strict=True))
        need(fits, f"{_MOST_ELEMENTS} elements of a matrix at most", [list(x), list(size)])
        return (*size, x[2])

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        rows, columns = _matrices(x, values[0].shape[1:])
        found = np.einsum("yh,xw,nhwc->nyxc", rows, columns, values[0], optimize=True)
        return np.asarray(found)

    # ---- in fixed point

    def numbers(self, planner: Planner, x: Layer) -> Numbers:
        f, m = planner.most(x)
        given = planner.shapes[x.inputs[0]]
        room = PRODUCT_BITS - f - max(m, 0) - 1
        exact = sum(_exact_bits(a) or 0 for a in _matrices(x, given))
        if room < max(exact, FEWEST_WEIGHT_BITS):
            planner.lost(x, f"takes values up to {2.0**m:g}")
        return Numbers(f, max(1, min(_FACTOR_BITS, room)))

    def limit(self, node: Node, given: list[int]) -> int | None:
        sizes = [float(np.abs(a).sum(1).max()) for a in _matrices(node.layer, node.given[0])]
        return math.ceil(node.moved(given)[0] * math.prod(sizes) * (1 + 2.0**-10)) + 3

    # ---- in private

    def forward(self, p: Pass, node: Node, *values: Shared) -> Shared:
        rows, columns = _matrices(node.layer, node.given[0])
        return _mapped(p, values[0], rows, columns, node.numbers.scale)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        rows, columns = _matrices(node.layer, node.given[0])
        return _mapped(p, values[0], rows, columns, _FACTOR_BITS)

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """The same by the transposed matrices."""
        rows, columns = _matrices(node.layer, node.given[0])
        return [_mapped(p, p.settled(g), rows.T, columns.T, _FACTOR_BITS)]


def emit(r: Reader, call: Call, method: str) -> str:
    """Writes images of the size of a call's value.

    Raises:
        Unfit: a method that there is none for.
    """
    if method not in METHODS:
        known = ", ".join(METHODS[:-1])
        raise Unfit(f"interpolation={method!r}; {known} are supported")
    options = {"size": [int(n) for n in call.shape[:2]], "method": method}
    return r.emit(call.name, Resize.op, call.inputs, None, **options)


def _matrices(x: Layer, given: Shape) -> tuple[Array, Array]:
    rows, columns = (
        matrix(x.options["method"], old, new)
        for old, new in zip(given[:2], x.options["size"], strict=True)
    )
    return rows, columns


def _mapped(p: Pass, x: Shared, rows: Array, columns: Array, most: int) -> Shared:
    """rows . x . columns^T for each channel, at the scale of x.

    Short binary fractions of both matrices are exact and truncated once; otherwise each matrix is
    rounded to `most` bits, and what it gives is truncated.
    """
    ops, f = p.ops, x.fractional_bits
    exact = [_exact_bits(a) for a in (columns, rows)]
    once = None not in exact and sum(k or 0 for k in exact) <= most
    for axis, (a, k) in enumerate(zip((columns, rows), exact, strict=True)):
        batch, height, width, channels = ops.shape(x)
        bits = k if once and k is not None else most
        ring = np.rint(a * 2.0**bits).astype(np.int64)
        old = (batch, height, width * channels) if axis else (batch, height, width, channels)
        new = (*old[:-2], len(a), old[-1])
        x = reshaped(ops, x, old) if axis else x

        def product(v: Shared, ring: Array = ring, bits: int = bits) -> Shared:
            return arithmetic.matmul_public(ring, v, bits)

        x = ops.map(product, x, new)
        x = reshaped(ops, x, (batch, len(a), width, channels)) if axis else x
        if not once:
            x = ops.truncate(x, bits)
    drop = x.fractional_bits - f
    return ops.truncate(x, drop) if drop else x
