"""Models to measure: the four MNIST networks, and five that keras.applications has."""

from tfe_bench.models.zoo.catalogue import Entry, Model, build, find, names, samples

__all__ = ["Entry", "Model", "build", "find", "names", "samples"]
