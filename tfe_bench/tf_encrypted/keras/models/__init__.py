"""Models of layers."""

from __future__ import annotations

from tfe_bench.tf_encrypted.keras.models.base_model import BaseModel
from tfe_bench.tf_encrypted.keras.models.sequential import (
    Sequential,
    clone_model,
    model_from_config,
)

__all__ = ["BaseModel", "Sequential", "clone_model", "model_from_config"]
