"""Homomorphic inference where the weights lie: a projection for computational storage devices."""
