"""The base class of layers."""

from __future__ import annotations

from tfe_bench.tf_encrypted.keras.engine.base_layer import Layer

__all__ = ["Layer"]
