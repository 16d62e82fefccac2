"""Public facts about the elements of a private array: kind, shape and scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

FIXED, INT, BITS = "fixed", "int", "bits"
KINDS = (FIXED, INT, BITS)
# Kind of a stored leaf of decimals, whose scale is their digits: the plan begins with its
# conversion to fixed point.
DECIMAL = "decimal"


@dataclass(frozen=True)
class ArraySpec:
    """Public facts about a private value: kind, shape and scale of its elements."""

    kind: str
    shape: tuple[int, ...]
    scale: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)
