"""Names for what annotations speak of: shapes, axes, and what stands beside a private value."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import EllipsisType
    from typing import Any

    import numpy as np
    import numpy.typing as npt
    import tensorflow as tf

    from tfe_bench.protocols.session.sharing import MaskedBits, Shared

Shape: TypeAlias = "Sequence[int | tf.Tensor] | tf.TensorShape | tf.Tensor"
Axes: TypeAlias = "int | np.integer[Any] | Sequence[int] | None"  # one, several or all
Key: TypeAlias = "int | np.integer[Any] | slice | EllipsisType | None"  # of an axis, in x[key]

Public: TypeAlias = "npt.ArrayLike | tf.Tensor"
Operand: TypeAlias = "Shared | MaskedBits | Public"
