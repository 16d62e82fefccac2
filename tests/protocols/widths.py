"""Parameters of an operation for the test of widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.protocols.operands import Array, F


@dataclass(frozen=True)
class Row:
    """One operation.

    Attributes:
        least, most: the accepted widths.
        inputs: (width, rng) -> its private operands, ring elements.
        run: (party, width, *operands) -> private numbers or bits.
        right: (width, *operands) -> the expected result in ring units: floats, or exact integers.
        off: (right) -> the documented error of floats, in ring units.
        some: widths that are tested by default; if empty, the least and the greatest.
        fraction: fractional bits of the operands.
        refused: widths that it refuses.
    """

    least: int
    most: int
    inputs: Callable[[int, np.random.Generator], list[Array]]
    run: Callable[..., Any]
    right: Callable[..., Array]
    off: Callable[[Array], Any] = lambda right: 0
    some: tuple[int, ...] = ()
    fraction: int = F
    refused: tuple[int, ...] = (1, 65)
