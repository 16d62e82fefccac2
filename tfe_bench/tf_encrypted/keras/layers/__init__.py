"""Layers with gradients."""

from __future__ import annotations

from tfe_bench.tf_encrypted.keras.engine.input_layer import Input
from tfe_bench.tf_encrypted.keras.layers.convolutional import Conv2D, DepthwiseConv2D
from tfe_bench.tf_encrypted.keras.layers.core import Activation, Dense, Flatten, ReLU, Reshape
from tfe_bench.tf_encrypted.keras.layers.normalization import BatchNormalization
from tfe_bench.tf_encrypted.keras.layers.pooling import (
    AveragePooling2D,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    MaxPooling2D,
)

__all__ = [
    "Activation",
    "AveragePooling2D",
    "BatchNormalization",
    "Conv2D",
    "Dense",
    "DepthwiseConv2D",
    "Flatten",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling2D",
    "Input",
    "MaxPooling2D",
    "ReLU",
    "Reshape",
]
