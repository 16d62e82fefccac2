"""The weights of a plan as ring elements: the model owner's inputs, one for each array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.errors import RangeError
from tfe_bench.models.graph import Array, Layer
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.session.sharing import Shared

# An encoded weight stays below 2^62.
LARGEST = 2.0**62


@dataclass(frozen=True, eq=False)
class Part:
    """One array of weights.

    Attributes:
        layer: that has it.
        name: "bias", or "kernel" with the number of its term.
        shape, fractional_bits: public.
    """

    layer: Layer
    name: str
    shape: tuple[int, ...]
    fractional_bits: int

    @property
    def key(self) -> str:
        """By which layers find it."""
        return f"{self.layer.name}/{self.name}"

    @property
    def term(self) -> int | None:
        """The number of a kernel's term."""
        return None if self.name == "bias" else int(self.name.removeprefix("kernel"))


def parts(plan: Plan) -> Iterator[Part]:
    """The arrays of a plan, in their order."""
    for layer in plan.graph.layers:
        for name in sorted(layer.weights):
            shape = tuple(int(n) for n in layer.weights[name].shape)
            bits = plan.numbers[layer.name].scale
            if name != "bias":
                bits = plan.weight_bits(layer, int(name.removeprefix("kernel")))
            yield Part(layer, name, shape, bits)


def encode(plan: Plan) -> list[Array]:
    """The arrays as ring elements, int64; kernels of subtracted terms are negated.

    Raises:
        RangeError: a weight is too large for its scale; the layer is named.
    """
    found = []
    for part in parts(plan):
        weights = np.asarray(part.layer.weights[part.name], np.float64)
        values = weights * 2.0**part.fractional_bits
        if np.abs(values).max(initial=0.0) >= LARGEST:
            raise RangeError(
                f"Layer {part.layer.name!r} has weights {part.name!r} up to "
                f"{np.abs(weights).max():g}, too large for {part.fractional_bits} fractional bits."
            )
        if part.term is not None and part.layer.options["terms"][part.term]["sign"] < 0:
            values = -values
        found.append(np.rint(values).astype(np.int64))
    return found


def by_key(plan: Plan, given: Mapping[str, Shared]) -> dict[str, Shared]:
    """The private arrays as layers find them, from those by `input_name`."""
    return {part.key: given[input_name(i)] for i, part in enumerate(parts(plan))}


def input_name(number: int) -> str:
    """Of an array as an input of a job."""
    return f"weights{number}"


def specs(plan: Plan) -> list[InputSpec]:
    """What a plan's weights are as inputs of a job."""
    return [
        InputSpec(input_name(i), part.shape, part.fractional_bits)
        for i, part in enumerate(parts(plan))
    ]
