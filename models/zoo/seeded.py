"""Seeded weights, calibrated to realistic ranges, for models without available trained weights.

The cost of a private prediction does not depend on the weights.  Its error does, through the ranges
of the activations.  Untrained networks let activations explode or vanish, and give every image
nearly the same logits.  So batch normalization takes its statistics from a few images.  A network
without it is scaled layer by layer to activations of about 1 (Mishkin and Matas, "All you need is a
good init", ICLR 2016).  The last layer is centered on these images.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_IMAGES = 4
_LOGIT_SPREAD = 3.0  # about that of the logits of a trained ResNet50


def generate_synthetic_images(shape: tuple[int, ...], seed: int = 1, count: int = _IMAGES) -> Any:
    """Generate synthetic photographs: smooth patches of color with noise, 0 to 255, float32.

    A network maps pure noise to nearly the same values after a few layers, whatever the seed.
    """
    rng = np.random.default_rng([seed, 20])
    height, width, channels = shape
    coarse = rng.uniform(0, 255, (count, 7, 7, channels))
    rows, columns = (np.linspace(0, 6, n) for n in (height, width))
    smooth = _interpolate_image_axis(_interpolate_image_axis(coarse, rows, 1), columns, 2)
    return np.clip(smooth + rng.normal(0, 12, smooth.shape), 0, 255).astype(np.float32)


def _interpolate_image_axis(values: Any, places: Any, axis: int) -> Any:
    """Interpolate linearly along one axis."""
    low = np.minimum(places.astype(int), values.shape[axis] - 2)
    weight = (places - low).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    return np.take(values, low, axis) * (1 - weight) + np.take(values, low + 1, axis) * weight


def fill_seeded_weights(model: Any, inputs: Any, seed: int = 1) -> None:
    """Set seeded weights, calibrated on `inputs`, in a model that ends in one Dense layer.

    Args:
        model: a Keras model; it must not share layers with another.
        inputs: preprocessed, [n, ...] with n >= 2.
    """
    import keras

    rng = np.random.default_rng([seed, 21])
    normalized = False
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            normalized = True
            continue
        weights = layer.get_weights()
        if weights:
            layer.set_weights([_draw_he_weights(w.shape, layer, rng) for w in weights])
    if normalized:
        _calibrate_batch_norms(model, inputs)
    else:
        _scale_seeded_kernels(model, inputs)
    _center_seeded_logits(model, inputs)


def _draw_he_weights(shape: tuple[int, ...], layer: Any, rng: np.random.Generator) -> Any:
    """Draw kernels from He's normal distribution (depthwise: one input channel); zero biases."""
    import keras

    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    deep = isinstance(layer, keras.layers.DepthwiseConv2D)
    inputs = int(np.prod(shape[:2] if deep else shape[:-1]))
    return (rng.standard_normal(shape, np.float32) * np.sqrt(2 / inputs)).astype(np.float32)


def _calibrate_batch_norms(model: Any, inputs: Any) -> None:
    """Set the moving statistics of every batch normalization to those of its inputs.

    Without momentum, one pass in training mode does so layer by layer.  Each layer normalizes by
    the batch's own statistics, stores them, and outputs the values of a later prediction.
    """
    import keras

    norms = [x for x in model.layers if isinstance(x, keras.layers.BatchNormalization)]
    momenta = [layer.momentum for layer in norms]
    try:
        for layer in norms:
            layer.momentum = 0.0
        model(inputs, training=True)
    finally:
        for layer, momentum in zip(norms, momenta, strict=True):
            layer.momentum = momentum


def _scale_seeded_kernels(model: Any, inputs: Any) -> None:
    """Scale the kernels of a chain so that all activations have a mean square of 1.

    With zero biases and ReLU, a network is homogeneous: one pass gives the factor of every layer.
    """
    import keras

    chain = [layer for layer in model.layers if layer.get_weights()]
    probe = keras.Model(model.inputs[0], [layer.output for layer in chain])
    before = 1.0
    for layer, output in zip(chain, probe(inputs, training=False), strict=True):
        size = float(np.sqrt(np.mean(np.square(output, dtype=np.float64)))) or 1.0
        kernel, *rest = layer.get_weights()
        layer.set_weights([kernel * np.float32(before / size), *rest])
        before = size


def _center_seeded_logits(model: Any, inputs: Any) -> None:
    """Center the last layer on `inputs`, so that different images get different classes."""
    last = model.layers[-1]
    logits = np.asarray(model(inputs, training=False), np.float64)
    kernel, bias = last.get_weights()
    spread = float(np.std(logits - logits.mean(0))) or 1.0
    factor = _LOGIT_SPREAD / spread
    last.set_weights([kernel * np.float32(factor), ((bias - logits.mean(0)) * factor)])
