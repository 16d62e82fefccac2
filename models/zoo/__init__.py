"""Models to measure: four MNIST networks, five of keras.applications, and transformers."""

from tfe_bench.models.zoo.catalogue import TOKENS, Entry, Model, build, find, names, samples

__all__ = ["TOKENS", "Entry", "Model", "build", "find", "names", "samples"]
