"""Rings by their width: labels of tensors, which here all have 64-bit words or bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfe_bench.errors import UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.tf_encrypted.tensor.fixed import (
    FixedpointConfig,
    fixed64,
    fixed64_heuristic,
    fixed64_ni,
)

__all__ = ["FixedpointConfig", "factories", "fixed64", "fixed64_heuristic", "fixed64_ni"]


@dataclass(frozen=True)
class Factory:
    """A ring.

    Attributes:
        nbits: of its elements.
        native_type: of revealed elements.
    """

    nbits: int
    native_type: Any


int1factory = Factory(1, tf.bool)
int8factory = Factory(8, tf.int8)
int16factory = Factory(16, tf.int16)
int32factory = Factory(32, tf.int32)
int64factory = Factory(64, tf.int64)


class _Factories(dict[Any, Factory]):
    def __missing__(self, key: object) -> Factory:
        raise UsageError(
            f"There are rings of 1, 8, 16, 32 and 64 bits. Received: {key!r}.",
            code="unsupported-ring",
            received=key,
        )


factories = _Factories(
    {
        **{0: int1factory, 1: int8factory, 2: int8factory, 4: int8factory, 8: int8factory},
        **{16: int16factory, 32: int32factory, 64: int64factory},
        **{f.native_type: f for f in (int1factory, int8factory, int16factory, int32factory)},
        tf.int64: int64factory,
    }
)
