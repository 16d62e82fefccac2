"""Models for measurements: four MNIST networks, five of keras.applications, and transformers."""

from tfe_bench.models.zoo.catalogue import (
    TOKENS,
    Entry,
    Model,
    build,
    find_model,
    list_models,
    samples,
)

__all__ = ["TOKENS", "Entry", "Model", "build", "find_model", "list_models", "samples"]
