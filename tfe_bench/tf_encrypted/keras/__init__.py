"""tf-encrypted's Keras on private tensors: layers with gradients, losses, optimizers."""

from __future__ import annotations

from tfe_bench.tf_encrypted.keras import (
    activations,
    datasets,
    engine,
    layers,
    losses,
    models,
    optimizers,
)
from tfe_bench.tf_encrypted.keras.models import Sequential

__all__ = [
    "Sequential",
    "activations",
    "datasets",
    "engine",
    "layers",
    "losses",
    "models",
    "optimizers",
]
