"""Homomorphic inference on computational storage devices that hold the weights: a projection."""
