"""One layer as data, and where it stands in a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Options = Mapping[str, Any]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True, eq=False)
class LayerSpec:
    """One step of a model.

    Attributes:
        name: unique in its graph.
        op: the kind (Kind.op).
        inputs: names of layers before it, or of the graph's inputs.
        options: public settings, as JSON holds them.
        weights: arrays of reals by name.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    options: Options = field(default_factory=dict)
    weights: Mapping[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = {name: list(w.shape) for name, w in self.weights.items()}
        return f"Layer({self.name!r}, {self.op}, inputs={list(self.inputs)}, weights={shapes})"


@dataclass(frozen=True)
class FixedPointFormat:
    """The fixed point of a layer.

    Attributes:
        fraction: fractional bits of its value.
        scale: of a sum, those of the products before truncation; of a factor, its own.
        bits: of its comparisons.
        low: of a value that is not negative, 2^low is the least planned for, 0 for none; of a
            recurrent layer, units that what comes to it may reach.
        reach: of a sum, |v| < 2^(reach - 1) ring units of its scale whatever comes to it within its
            limits (limits.reached); 0: unknown.
    """

    fraction: int
    scale: int = 0
    bits: int = 0
    low: int = 0
    reach: int = 0

    def to_row(self) -> list[int]:
        """As JSON holds it."""
        fields = [self.fraction, self.scale, self.bits, self.low, self.reach]
        while len(fields) > 3 and not fields[-1]:
            fields.pop()
        return fields


@dataclass(frozen=True, eq=False)
class PlacedLayer:
    """A layer where it stands in a model, with what a training step runs together with it.

    Attributes:
        layer: the first one.
        numbers: its fixed point.
        shape: of its value, without the batch.
        given: shapes of its inputs, without the batch.
        scales: fractional bits of its inputs.
        output: name of the value that the node gives.
        pool: a max pooling behind it that runs with it, or the layer itself, or None.
        activation: a ReLU behind them (or between: both orders are the same), or None.
        last: whether that is the model's output.
        wide: the bits of the value that are read by who takes it; it is of Z_2^wide, or of more.
        round_bits: sent by all three for a sample, that take as long as one more round.
        watched: whether it is found out if its value leaves its range.
        limits: of its inputs in ring units, where that is so and all are known.
    """

    layer: LayerSpec
    numbers: FixedPointFormat
    shape: Shape
    input_shapes: tuple[Shape, ...]
    input_scales: tuple[int, ...]
    output: str
    pool: LayerSpec | None = None
    activation: LayerSpec | None = None
    is_output: bool = False
    used_bits: int = 64
    round_bits: int = 0
    is_range_checked: bool = False
    input_limits: tuple[int, ...] = ()

    @property
    def has_fused(self) -> bool:
        """Whether a max pooling or a ReLU runs with it."""
        return self.pool is not None or self.activation is not None

    def align_limits(self, limits: list[int]) -> list[int]:
        """Limits of the inputs in ring units, at the scale of the value."""
        fraction = self.numbers.fraction
        pairs = zip(limits, self.input_scales, strict=True)
        return [limit << max(0, fraction - scale) for limit, scale in pairs]
