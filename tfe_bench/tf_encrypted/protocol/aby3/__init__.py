"""ABY3 by tf-encrypted's names."""

from __future__ import annotations

from tfe_bench.tf_encrypted.protocol.aby3.aby3 import ABY3
from tfe_bench.tf_encrypted.protocol.aby3.tensors import (
    ABY3Constant,
    ABY3PrivateTensor,
    ABY3PrivateVariable,
    ABY3PublicTensor,
    ABY3PublicVariable,
    ABY3Tensor,
    ShareType,
)

__all__ = [
    "ABY3",
    "ABY3Constant",
    "ABY3PrivateTensor",
    "ABY3PrivateVariable",
    "ABY3PublicTensor",
    "ABY3PublicVariable",
    "ABY3Tensor",
    "ShareType",
]
