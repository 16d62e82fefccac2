"""The weights of a plan as ring elements: the model owner's inputs, one for each array."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.errors import RangeError
from tfe_bench.models.graph import Array, Layer
from tfe_bench.models.ranges import Plan
from tfe_bench.protocols.ring import rotation
from tfe_bench.protocols.session import seeded
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.seeded import Seeded
from tfe_bench.protocols.session.sharing import Shared

# An encoded weight stays below 2^62.
LARGEST = 2.0**62
# Weights that are encoded at a time.
_BLOCK = 1 << 18


@dataclass(frozen=True, eq=False)
class Part:
    """One array of weights.

    Attributes:
        keys: by which layers find it: several, if they share it.
        layer: that has it, the first.
        name: of the layer's: of a sum "bias", or "kernel" with the number of its term.
        shape, fractional_bits: public.
        negated: whether it is of a subtracted term.
    """

    keys: tuple[str, ...]
    layer: Layer
    name: str
    shape: tuple[int, ...]
    fractional_bits: int
    negated: bool = False

    @property
    def key(self) -> str:
        """By which the first layer finds it."""
        return self.keys[0]


def parts(plan: Plan) -> Iterator[Part]:
    """The arrays of a plan, in their order; what layers share at one scale once."""
    found: dict[tuple[int, int, bool], Part] = {}
    for layer in plan.graph.layers:
        for name in sorted(layer.weights):
            weights, negated = layer.weights[name], False
            bits = plan.weight_bits(layer, name)
            if name != "bias" and "terms" in layer.options:
                negated = layer.options["terms"][int(name.removeprefix("kernel"))]["sign"] < 0
            key, same = f"{layer.name}/{name}", (id(weights), bits, negated)
            if same in found:
                found[same] = replace(found[same], keys=(*found[same].keys, key))
            else:
                shape = tuple(int(n) for n in weights.shape)
                found[same] = Part((key,), layer, name, shape, bits, negated)
    yield from found.values()


def encode(plan: Plan) -> list[Array]:
    """The arrays as ring elements, int64; kernels of subtracted terms are negated.

    Raises:
        RangeError: a weight is too large for its scale; the layer is named.
    """
    found = []
    for part in parts(plan):
        check(part)
        found.append(encoded(part))
    return found


def check(part: Part) -> None:
    """Refuses weights that do not fit their scale.

    Raises:
        RangeError: naming the layer.
    """
    largest = max((float(np.abs(block).max()) for block in _blocks(part)), default=0.0)
    if largest * 2.0**part.fractional_bits >= LARGEST:
        raise RangeError(
            f"Layer {part.layer.name!r} has weights {part.name!r} up to {largest:g}, too large for "
            f"{part.fractional_bits} fractional bits."
        )


def encoded(part: Part) -> Array:
    """An array as ring elements, int64; the kernel of a subtracted term is negated."""
    scale = 2.0**part.fractional_bits * (-1 if part.negated else 1)
    found, begin = np.empty(math.prod(part.shape), np.int64), 0
    for block in _blocks(part):
        found[begin : begin + block.size] = np.rint(block * scale)
        begin += block.size
    return found.reshape(part.shape)


def _blocks(part: Part) -> Iterator[Array]:
    """The weights in float64, some at a time: all of a table would be twice what it is."""
    flat = np.asarray(part.layer.weights[part.name]).reshape(-1)
    for begin in range(0, flat.size, _BLOCK):
        yield np.asarray(flat[begin : begin + _BLOCK], np.float64)


def by_key(plan: Plan, given: Mapping[str, Shared]) -> dict[str, Shared | Seeded]:
    """The private arrays as layers find them, from those by `input_name`, as these are held."""
    found: dict[str, Shared | Seeded] = {}
    for i, part in enumerate(parts(plan)):
        found.update(dict.fromkeys(part.keys, seeded.of(given, input_name(i))))
    return found


class Made(Mapping[str, Shared]):
    """Weights as a pass over a model wants them: masks that are held as seeds are made there.

    Args:
        own: as `by_key` gives them.
        dealer: as whose they are named.

    Attributes:
        given: the values that the layer takes whose turn it is; a mask is made once the value is
            there that it is multiplied by.
    """

    def __init__(self, party: Party, own: Mapping[str, Shared | Seeded], dealer: int) -> None:
        self._party, self._own, self._dealer = party, own, dealer
        self.given: Sequence[Shared] = ()

    def __getitem__(self, key: str) -> Shared:
        number = key.rpartition("/kernel")[2]  # (of the term, in a sum)
        first = int(number) if number.isdecimal() and int(number) < len(self.given) else 0
        found = seeded.expanded(self._own[key], self.given[first : first + 1])
        return rotation.named(self._party, found, self._dealer)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def input_name(number: int) -> str:
    """Of an array as an input of a job."""
    return f"weights{number}"


def specs(plan: Plan) -> list[InputSpec]:
    """What a plan's weights are as inputs of a job."""
    return [
        InputSpec(input_name(i), part.shape, part.fractional_bits)
        for i, part in enumerate(parts(plan))
    ]
