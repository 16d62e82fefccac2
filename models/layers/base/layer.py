"""A layer as data, and its place in a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.models.layers.base import renamed

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Options = Mapping[str, Any]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True, eq=False)
class LayerSpec:
    """One layer of a model.

    Attributes:
        name: unique in its graph.
        op: the kind (Kind.op).
        inputs: names of earlier layers or of the graph's inputs.
        options: public settings, as JSON values.
        weights: arrays of real numbers by name.
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
    """The fixed-point format of a layer.

    Attributes:
        fraction: fractional bits of its output.
        scale: for a sum, those of the products before truncation; for a factor, its own.
        bits: bits of its comparisons.
        low: for a non-negative value, 2^low is the smallest value planned for, 0 for none; for a
            recurrent layer, the ring units that its inputs may reach.
        reach: for a sum, |v| < 2^(reach - 1) ring units of its scale for all inputs within their
            limits (limits.reached); 0: unknown.
    """

    fraction: int
    scale: int = 0
    bits: int = 0
    low: int = 0
    reach: int = 0

    def to_row(self) -> list[int]:
        """Return the fields as a JSON list."""
        fields = [self.fraction, self.scale, self.bits, self.low, self.reach]
        while len(fields) > 3 and not fields[-1]:
            fields.pop()
        return fields


@dataclass(frozen=True, eq=False)
class PlacedLayer:
    """A layer at its place in a model, with the layers that a training step fuses with it.

    Attributes:
        layer: the first layer.
        numbers: its fixed-point format.
        shape: shape of its output, without the batch.
        input_shapes: shapes of its inputs, without the batch.
        input_scales: fractional bits of its inputs.
        output: name of the value that the node produces.
        pool: a following max pooling that is fused, or the layer itself, or None.
        activation: a ReLU after them (or between: both orders are the same), or None.
        is_output: whether the value is the model's output.
        used_bits: low bits of the value that later layers use; its ring is Z_2^used_bits or larger.
        round_bits: bits sent by all three workers for a sample that take as long as one more round.
        is_range_checked: whether a value outside its range is detected.
        input_limits: limits of its inputs in ring units, if range-checked and all are known.
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
        """True if a max pooling or a ReLU is fused with it."""
        return self.pool is not None or self.activation is not None

    def align_limits(self, limits: list[int]) -> list[int]:
        """Convert limits of the inputs in ring units to the scale of the output."""
        fraction = self.numbers.fraction
        pairs = zip(limits, self.input_scales, strict=True)
        return [limit << max(0, fraction - scale) for limit, scale in pairs]


renamed.accept_deprecated_attributes(PlacedLayer, renamed.NODE)

if not TYPE_CHECKING:  # (type checkers accept the new names alone)
    __getattr__ = renamed.find_deprecated_names(
        __name__,
        globals(),
        Layer="LayerSpec",
        Numbers="FixedPointFormat",
        Node="PlacedLayer",
    )
