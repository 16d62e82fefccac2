"""Conversion of Keras models: graphs of layers, their passes, calibration and verification."""
