"""Keras models as data, and their private execution."""
