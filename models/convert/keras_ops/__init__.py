"""Conversion of operations on Keras tensors (x + y, keras.ops.*) to layers of the same kinds.

A reader is a function registered under the names of the classes behind keras.ops. Importing the
modules of this package registers them (models/layers/base/calls.py).
"""
