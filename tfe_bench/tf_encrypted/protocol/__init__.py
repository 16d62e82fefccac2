"""Protocols by tf-encrypted's names: ABY3's on replicated shares runs for all of them."""

from __future__ import annotations

import warnings
from typing import Any

from tfe_bench.tf_encrypted.protocol.aby3 import ABY3
from tfe_bench.tf_encrypted.protocol.protocol import (
    Protocol,
    TFEPrivateTensor,
    TFEPrivateVariable,
    TFEPublicTensor,
    TFEPublicVariable,
    TFETensor,
    TFEVariable,
    function,
    memoize,
)

__all__ = [
    "ABY3",
    "Pond",
    "Protocol",
    "SecureNN",
    "TFEPrivateTensor",
    "TFEPrivateVariable",
    "TFEPublicTensor",
    "TFEPublicVariable",
    "TFETensor",
    "TFEVariable",
    "function",
    "memoize",
]


class _Named(ABY3):
    """ABY3 under another name, with a warning."""

    def __init__(self, *servers: Any, **named: Any) -> None:
        warnings.warn(
            f"{type(self).__name__}: three-party replicated secret sharing as in ABY3 runs instead "
            "(docs/from_tf_encrypted.md).",
            stacklevel=2,
        )
        super().__init__(fixedpoint_config=named.get("fixedpoint_config"))


class Pond(_Named):
    """tf-encrypted's two-server protocol with a helper, by name."""


class SecureNN(_Named):
    """tf-encrypted's SecureNN, by name."""
