"""Rescaling and Normalization: public numbers, computed by the owner of the data where they can."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models import scales
from tfe_bench.models.kinds.checks import alone, need, only, real
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import FACTOR_BITS, Gradients, Pass, factored
from tfe_bench.models.kinds.reading import Call, Reader, Unfit, array_of
from tfe_bench.protocols.session.sharing import Shared


def statistics(layer: Any, name: str) -> tuple[Array, Array]:
    """(factor, offset) of a Normalization, float64, one of each or one for each channel.

    Raises:
        Unfit: another axis than the last.
        RangeError: statistics that are NaN, or a negative variance.
    """
    mean, variance = (
        array_of(name, k, w).astype(np.float64)
        for k, w in (("mean", layer.mean), ("variance", layer.variance))
    )
    if any(n != 1 for n in mean.shape[:-1]):
        raise Unfit(f"axis {layer.axis}; only the last is supported, or none")
    if (variance < 0).any():
        raise RangeError(f"Layer {name!r} has a variance that is negative.")
    mean = mean.reshape(-1)
    deviation = np.maximum(np.sqrt(variance.reshape(-1)), 1e-7)  # as Keras has it
    return (deviation, mean) if layer.invert else (1 / deviation, -mean / deviation)


def _numbers(value: Any) -> float | list[float]:
    array = np.asarray(value, np.float64)
    if array.ndim > 1:
        raise Unfit("a number, or one for each channel, is supported")
    return float(array) if array.ndim == 0 else [float(v) for v in array]


class Rescale(Kind):
    """scale x + offset, of public numbers."""

    op = "rescale"
    keras = ("Rescaling", "Normalization")

    def read(self, r: Reader, call: Call) -> str:
        layer = call.layer
        if call.kind == "Normalization":
            return self._read_statistics(r, call)
        options = {"scale": _numbers(layer.scale), "offset": _numbers(layer.offset)}
        return r.emit(call.name, self.op, call.inputs, None, **options)

    def _read_statistics(self, r: Reader, call: Call) -> str:
        """Statistics are weights; before anything else a coarse scale of them, which is public."""
        pair = statistics(call.layer, call.name)
        if r.training:
            r.private.add(call.name)
        if r.training or call.layer.invert:  # (one at the end is parted where it is known to be)
            return r.emit(call.name, self.op, call.inputs, None, **scales.as_options(pair))
        first, then = scales.parted(*pair)
        found = r.emit(call.name, self.op, call.inputs, None, **scales.as_options(first))
        if scales.nothing(then):
            return found
        channels = [np.broadcast_to(v, call.shapes[0][-1:]).copy() for v in then]
        weights: dict[str, Any] = dict(zip(("kernel", "bias"), channels, strict=True))
        return r.emit(r.unique(f"{call.name}/rest"), "affine", [found], weights)

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        x = alone(given, weights)
        only(options, "scale", "offset")
        for value in options.values():
            several = value if isinstance(value, (list, tuple)) else [value]
            fits = all(real(v) for v in several) and len(several) in (1, x[-1])
            need(fits, f"numbers, one or {x[-1]}", value)
        return x

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        scale, offset = np.asarray(x.options["scale"]), np.asarray(x.options["offset"])
        return np.asarray(values[0] * scale + offset)

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        o, f = node.layer.options, p.precision.activation
        offset = np.rint(np.asarray(o["offset"], np.float64) * 2.0**f).astype(np.int64)
        return p.ops.add_public(p.dropped(factored(p.ops, values[0], o["scale"])), offset)

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        return [factored(p.ops, p.settled(g, FACTOR_BITS), node.layer.options["scale"])]
