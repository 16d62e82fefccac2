"""Names for annotations: shapes, axes, and operands next to a private value."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session.sharing import Key, Operand, Public

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import numpy as np

__all__ = ["Axes", "Key", "Operand", "Public", "Shape"]

Shape: TypeAlias = "Sequence[int | tf.Tensor] | tf.TensorShape | tf.Tensor"
Axes: TypeAlias = "int | np.integer[Any] | Sequence[int] | None"  # one, several or all axes
