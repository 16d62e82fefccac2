"""Cells of recurrent layers, and their public fixed-point formats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tfe_bench.protocols.nn import series
from tfe_bench.protocols.nn.series import ACTIVATIONS, MEMORY_GATE
from tfe_bench.protocols.ring import compare, products

# Kinds of cells, with the number of their gates (and candidates), and of their states. "gru" resets
# after the product with U, "gru_before" before it.
GATES: Final = {"lstm": 4, "gru": 3, "gru_before": 3, "simple": 1}
STATES: Final = {"lstm": 2, "gru": 1, "gru_before": 1, "simple": 1}
# Activations of gates, and of candidates and states. "ramp" is min(max(v, 0), 1).
GATE_FUNCTIONS: Final = ("sigmoid", "ramp")
FUNCTIONS: Final = ("tanh", "sigmoid", "relu", "linear")
_UNBOUNDED: Final = ("relu", "linear")
MAX_STEPS: Final = 1024
# Fewest fractional bits of states: the rounding of a step is invisible after a hundred steps.
MIN_BITS: Final = {True: 13, False: 16}  # keys: True with series
MAX_BITS: Final = {True: 13, False: 20}
# Upper bounds of a gate, and of a candidate and their products.
_GATE: Final = 1 + 2.0**-10
_ONE: Final = 1.01


@dataclass(frozen=True)
class RecurrentCell:
    """The computation of each step.

    Attributes:
        kind: of GATES.
        activation, gate: of FUNCTIONS and GATE_FUNCTIONS.
        series: True: sigmoid and tanh are series.
    """

    kind: str
    activation: str = "tanh"
    gate: str = "sigmoid"
    series: bool = False

    @property
    def is_bounded(self) -> bool:
        """True if states have a bound for any input."""
        return self.activation not in _UNBOUNDED

    def state_bounds(self, steps: int, start: float) -> tuple[float, float]:
        """Return (c, h): largest |memory| and |output| after a number of steps of a bounded cell.

        Args:
            start: the largest |initial state|.
        """
        growth = _GATE**steps
        if self.kind == "lstm":
            return start * growth + _ONE * (growth - 1) / (_GATE - 1), max(_ONE, start)
        if self.kind == "simple":
            return 0.0, max(_ONE, start)
        return 0.0, growth * (max(_ONE, start) + steps * 2.0**-9)


@dataclass(frozen=True)
class RecurrentFormat:
    """The format of a layer: fractional bits, and k with |v| < 2^(k-1) for each value v.

    Attributes:
        fraction: of states.
        scale: of products with weights.
        z, c, h: k of sums before gates, of memories and of outputs.
    """

    cell: RecurrentCell
    fraction: int
    scale: int
    z: int
    c: int
    h: int

    @property
    def dropped_bits(self) -> int:
        """Fractional bits that sums drop."""
        return self.scale - self.fraction

    def _ring_width(self, bits: int, has_series: bool = True) -> int:
        """Return a ring with room for a lift, and for the series."""
        activations = (
            (ACTIVATIONS["sigmoid"], MEMORY_GATE) if self.cell.series and has_series else ()
        )
        # Twice a value has one fractional bit less, and is an argument too.
        min_rings = [
            series.min_activation_ring(b, self.fraction - i, 1 << (bits - 1))
            for b in activations
            for i in (0, 1)
        ]
        return max([bits + 1, *min_rings])

    @property
    def sum_ring(self) -> int:
        """Ring of sums before gates."""
        return self._ring_width(self.z)

    @property
    def memory_ring(self) -> int:
        """Ring of an LSTM's memory."""
        return self._ring_width(self.c)

    @property
    def output_ring(self) -> int:
        """Ring of outputs."""
        return self._ring_width(self.h, False)

    @property
    def factor_ring(self) -> int:
        """Smallest ring of the factors in a sum of products with weights."""
        return self.dropped_bits + self.sum_ring

    @property
    def memory_factor_ring(self) -> int:
        """Smallest ring of the factors of an LSTM's memory."""
        return self.fraction + self.memory_ring

    @property
    def output_factor_ring(self) -> int:
        """Smallest ring of the factors of outputs."""
        return self.fraction + self.output_ring

    @property
    def is_valid(self) -> bool:
        """True if all of these fit words and comparisons."""
        f, s = self.fraction, self.cell.series
        return (
            MIN_BITS[s] <= f <= MAX_BITS[s]
            and self.scale >= 2 * f
            and self.dropped_bits >= 1
            and min(self.z, self.c, self.h) >= f + 1
            and max(self.factor_ring, self.memory_factor_ring, self.output_factor_ring)
            <= products.RING
            and max(self.z, self.c, self.h) <= compare.MAX_SINGLE_EXCHANGE_BITS - 4
        )


def derive_recurrent_format(
    cell: RecurrentCell, fraction: int, scale: int, bits: int, steps: int, has_initial: bool = False
) -> RecurrentFormat:
    """Derive the fixed-point format of a layer.

    Args:
        bits: |v| < 2^(bits-1) ring units for sums before gates and initial states, and for all
            states of cells without bounds.
        has_initial: True: the layer gets initial states.
    """
    if not cell.is_bounded:
        return RecurrentFormat(cell, fraction, scale, bits, bits, bits)
    start = 2.0 ** (bits - 1 - fraction) if has_initial else 0.0
    c, h = (
        fraction + 1 + max(0, math.ceil(math.log2(max(v, 1.0))))
        for v in cell.state_bounds(steps, start)
    )
    return RecurrentFormat(cell, fraction, scale, bits, c, h)
