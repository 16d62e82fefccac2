"""Cells of recurrent layers, and the fixed point in which they are computed, which is public."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tfe_bench.protocols.nn import series
from tfe_bench.protocols.nn.series import BENDS, HELD
from tfe_bench.protocols.ring import compare, products

# Kinds of cells, with the number of their gates (and candidates), and of their states.  "gru"
# resets behind the product with U, "gru_before" before it.
GATES: Final = {"lstm": 4, "gru": 3, "gru_before": 3, "simple": 1}
STATES: Final = {"lstm": 2, "gru": 1, "gru_before": 1, "simple": 1}
# Of gates; of candidates and states.  "ramp" is min(max(v, 0), 1).
GATE_FUNCTIONS: Final = ("sigmoid", "ramp")
FUNCTIONS: Final = ("tanh", "sigmoid", "relu", "linear")
_UNBOUNDED: Final = ("relu", "linear")
MOST_STEPS: Final = 1024
# Fractional bits of states: the fewest, with which a step's rounding does not show in a hundred.
FEWEST_BITS: Final = {True: 13, False: 16}  # by whether there are series
MOST_BITS: Final = {True: 13, False: 20}
# What a gate, or a candidate, and their products are below.
_GATE: Final = 1 + 2.0**-10
_ONE: Final = 1.01


@dataclass(frozen=True)
class Cell:
    """What is computed in each step.

    Attributes:
        kind: of GATES.
        activation, gate: of FUNCTIONS and GATE_FUNCTIONS.
        series: whether sigmoid and tanh are.
    """

    kind: str
    activation: str = "tanh"
    gate: str = "sigmoid"
    series: bool = False

    @property
    def bounded(self) -> bool:
        """Whether states have a bound whatever comes."""
        return self.activation not in _UNBOUNDED

    def reach(self, steps: int, start: float) -> tuple[float, float]:
        """(c, h): largest |memory| and |output| after so many steps of a bounded cell.

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
class Rings:
    """The fixed point of a layer: of each value v its fractional bits, and k with |v| < 2^(k-1).

    Attributes:
        fraction: of states.
        scale: of products with weights.
        z, c, h: k of sums before gates, of memories and of outputs.
    """

    cell: Cell
    fraction: int
    scale: int
    z: int
    c: int
    h: int

    @property
    def drop(self) -> int:
        """What sums drop."""
        return self.scale - self.fraction

    def _ring(self, bits: int, series_of: bool = True) -> int:
        """Room for a lift, and for what series want."""
        bends = (BENDS["sigmoid"], HELD) if self.cell.series and series_of else ()
        # (of twice a value too, which has one fractional bit less)
        least = [
            series.least_ring(b, self.fraction - i, 1 << (bits - 1)) for b in bends for i in (0, 1)
        ]
        return max([bits + 1, *least])

    @property
    def sums(self) -> int:
        """The ring of sums before gates."""
        return self._ring(self.z)

    @property
    def memories(self) -> int:
        """The ring of an LSTM's memory."""
        return self._ring(self.c)

    @property
    def outputs(self) -> int:
        """The ring of outputs."""
        return self._ring(self.h, False)

    @property
    def factor(self) -> int:
        """The smallest ring of what a sum of products with weights reads."""
        return self.drop + self.sums

    @property
    def kept(self) -> int:
        """The smallest ring of what an LSTM's memory is made of."""
        return self.fraction + self.memories

    @property
    def told(self) -> int:
        """The smallest ring of what outputs are made of."""
        return self.fraction + self.outputs

    @property
    def fits(self) -> bool:
        """Whether all of that fits words, and comparisons."""
        f, s = self.fraction, self.cell.series
        return (
            FEWEST_BITS[s] <= f <= MOST_BITS[s]
            and self.scale >= 2 * f
            and self.drop >= 1
            and min(self.z, self.c, self.h) >= f + 1
            and max(self.factor, self.kept, self.told) <= products.RING
            and max(self.z, self.c, self.h) <= compare.MOST_AT_ONCE - 4
        )


def rings(
    cell: Cell, fraction: int, scale: int, bits: int, steps: int, initial: bool = False
) -> Rings:
    """The fixed point that follows from a few numbers.

    Args:
        bits: |v| < 2^(bits-1) ring units for sums before gates, for initial states, and of cells
            that have no bounds for all states.
        initial: whether there are initial states.
    """
    if not cell.bounded:
        return Rings(cell, fraction, scale, bits, bits, bits)
    start = 2.0 ** (bits - 1 - fraction) if initial else 0.0
    c, h = (
        fraction + 1 + max(0, math.ceil(math.log2(max(v, 1.0)))) for v in cell.reach(steps, start)
    )
    return Rings(cell, fraction, scale, bits, c, h)
