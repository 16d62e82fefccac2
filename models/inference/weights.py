"""The weights of a plan as ring elements: inputs of the model owner, one for each array."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.errors import RangeError
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import Array, LayerSpec
from tfe_bench.protocols.ring import rotation
from tfe_bench.protocols.session import seeded
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

# Encoded weights stay below 2^62.
MAX_ENCODED = 2.0**62
# Number of weights that are encoded at a time.
_BLOCK_WEIGHTS = 1 << 18


@dataclass(frozen=True, eq=False)
class WeightPart:
    """One array of weights.

    Attributes:
        keys: keys by which layers find it: several, if they share it.
        layer: the first layer that has it.
        name: name in that layer: for a sum "bias", or "kernel" with the number of its term.
        shape, fractional_bits: public shape and scale.
        negated: whether it belongs to a subtracted term.
    """

    keys: tuple[str, ...]
    layer: LayerSpec
    name: str
    shape: tuple[int, ...]
    fractional_bits: int
    negated: bool = False

    @property
    def first_key(self) -> str:
        """Key by which the first layer finds it."""
        return self.keys[0]


def weight_parts(plan: ModelPlan) -> Iterator[WeightPart]:
    """Yield the arrays of a plan in order; arrays that layers share at one scale appear once."""
    parts_by_array: dict[tuple[int, int, bool], WeightPart] = {}
    for layer in plan.graph.layers:
        for name in sorted(layer.weights):
            weights, negated = layer.weights[name], False
            bits = plan.weight_bits(layer, name)
            if name != "bias" and "terms" in layer.options:
                negated = layer.options["terms"][int(name.removeprefix("kernel"))]["sign"] < 0
            key, array_key = f"{layer.name}/{name}", (id(weights), bits, negated)
            if array_key in parts_by_array:
                parts_by_array[array_key] = replace(
                    parts_by_array[array_key], keys=(*parts_by_array[array_key].keys, key)
                )
            else:
                shape = tuple(int(n) for n in weights.shape)
                parts_by_array[array_key] = WeightPart((key,), layer, name, shape, bits, negated)
    yield from parts_by_array.values()


def encode_weights(plan: ModelPlan) -> list[Array]:
    """Encode the arrays as ring elements, int64; kernels of subtracted terms are negated.

    Raises:
        RangeError: a weight is too large for its scale; the text names the layer.
    """
    arrays = []
    for part in weight_parts(plan):
        check_weight_magnitude(part)
        arrays.append(encode_weight_part(part))
    return arrays


def check_weight_magnitude(part: WeightPart) -> None:
    """Reject weights that are too large for their scale.

    Raises:
        RangeError: a weight is too large; the text names the layer.
    """
    largest = max(
        (float(np.abs(block).max()) for block in _iterate_weight_blocks(part)), default=0.0
    )
    if largest * 2.0**part.fractional_bits >= MAX_ENCODED:
        raise RangeError(
            f"Layer {part.layer.name!r} has weights {part.name!r} up to {largest:g}, too large "
            f"for {part.fractional_bits} fractional bits.",
            code="value-out-of-range",
            operation=part.layer.name,
            received=part.name,
        )


def encode_weight_part(part: WeightPart) -> Array:
    """Encode an array as ring elements, int64; the kernel of a subtracted term is negated."""
    scale = 2.0**part.fractional_bits * (-1 if part.negated else 1)
    ring_elements, begin = np.empty(math.prod(part.shape), np.int64), 0
    for block in _iterate_weight_blocks(part):
        ring_elements[begin : begin + block.size] = np.rint(block * scale)
        begin += block.size
    return ring_elements.reshape(part.shape)


def _iterate_weight_blocks(part: WeightPart) -> Iterator[Array]:
    """Yield the weights in float64 block by block: a whole table would take twice its memory."""
    flat = np.asarray(part.layer.weights[part.name]).reshape(-1)
    for begin in range(0, flat.size, _BLOCK_WEIGHTS):
        yield np.asarray(flat[begin : begin + _BLOCK_WEIGHTS], np.float64)


def map_weights_by_key(plan: ModelPlan, inputs: Mapping[str, Shared]) -> dict[str, Shared | Seeded]:
    """Return the private arrays by the keys of layers, from the inputs by `weight_input_name`."""
    weights_by_key: dict[str, Shared | Seeded] = {}
    for i, part in enumerate(weight_parts(plan)):
        weights_by_key.update(
            dict.fromkeys(part.keys, seeded.get_seeded_input(inputs, weight_input_name(i)))
        )
    return weights_by_key


class ExpandedWeights(Mapping[str, Shared]):
    """The weights for a pass over a model: masks held as seeds are expanded on access.

    Args:
        model_weights: the weights from `map_weights_by_key`.
        dealer: the dealer to whom the weights are assigned.

    Attributes:
        layer_inputs: the input values of the current layer; a mask is expanded after the value that
            is multiplied by it.
    """

    def __init__(
        self, party: Party, model_weights: Mapping[str, Shared | Seeded], dealer: int
    ) -> None:
        self._party, self._weights, self._dealer = party, model_weights, dealer
        self.layer_inputs: Sequence[Shared] = ()

    def __getitem__(self, key: str) -> Shared:
        number = key.rpartition("/kernel")[2]  # number of the term in a sum
        first = int(number) if number.isdecimal() and int(number) < len(self.layer_inputs) else 0
        weight = seeded.expand_masks(self._weights[key], self.layer_inputs[first : first + 1])
        return rotation.relabel_dealer(self._party, weight, self._dealer)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def weight_input_name(number: int) -> str:
    """Return the name of an array as an input of a job."""
    return f"weights{number}"


def weight_specs(plan: ModelPlan) -> list[InputSpec]:
    """Return a plan's weights as input specifications of a job."""
    return [
        InputSpec(weight_input_name(i), part.shape, part.fractional_bits)
        for i, part in enumerate(weight_parts(plan))
    ]
