"""The weights of a plan as one vector of ring elements, and its parts again at the workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError
from tfe_bench.models.graph import Array, Layer
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.sharing import Shared

# An encoded weight stays below 2^62.
LARGEST = 2.0**62


def parts(plan: Plan) -> Iterator[tuple[Layer, str, tuple[int, ...], int]]:
    """(layer, name, shape, fractional bits) of every weight, in the order of the vector."""
    for layer in plan.graph.layers:
        for name in sorted(layer.weights):
            if name == "bias":
                bits = plan.numbers[layer.name].scale
            else:
                bits = plan.weight_bits(layer, int(name.removeprefix("kernel")))
            yield layer, name, tuple(int(n) for n in layer.weights[name].shape), bits


def count(plan: Plan) -> int:
    """Length of the vector."""
    return sum(math.prod(shape) for _, _, shape, _ in parts(plan))


def encode(plan: Plan) -> Array:
    """The vector, int64; kernels of subtracted terms are negated.

    Raises:
        RangeError: a weight is too large for its scale; the layer is named.
    """
    found = np.zeros(count(plan), np.int64)
    begin = 0
    for layer, name, shape, bits in parts(plan):
        values = np.asarray(layer.weights[name], np.float64) * 2.0**bits
        if np.abs(values).max(initial=0.0) >= LARGEST:
            raise RangeError(
                f"Layer {layer.name!r} has weights {name!r} up to "
                f"{np.abs(layer.weights[name]).max():g}, too large for {bits} fractional bits."
            )
        if name != "bias" and layer.options["terms"][int(name.removeprefix("kernel"))]["sign"] < 0:
            values = -values
        size = math.prod(shape)
        found[begin : begin + size] = np.rint(values).astype(np.int64).reshape(-1)
        begin += size
    return found


def split(plan: Plan, vector: Shared) -> dict[str, Shared]:
    """The weights by "layer/name", with their shapes and scales.  Local."""
    import tensorflow as tf

    found: dict[str, Shared] = {}
    begin = 0
    for layer, name, shape, bits in parts(plan):
        size = math.prod(shape)

        def cut(a: Any, begin: int = begin, size: int = size, shape: Any = shape) -> Any:
            return tf.reshape(a[begin : begin + size], shape)

        found[f"{layer.name}/{name}"] = replace(vector.map(cut), fractional_bits=bits)
        begin += size
    return found
