"""Inputs of the workloads and their results in plaintext; every script uses the same ones.

A script runs in a baseline's environment, so that this module needs NumPy alone.
"""

from __future__ import annotations

import importlib
import itertools
from typing import Any

# Rows of 10 values for softmax; network A: 784 pixels, two layers of 128, 10 classes.
CLASSES = 10
SIZES = (784, 128, 128, CLASSES)
RATE, MOMENTUM = 0.01, 0.9


def make_inputs(workload: str, n: int, key_bits: int) -> list[Any]:
    """Return the private inputs, as arrays.

    Args:
        n: as in a request.
        key_bits: keys of a sort are signed numbers of one bit more.
    """
    numpy: Any = importlib.import_module("numpy")
    rng = numpy.random.default_rng(1)
    if workload == "sort":
        return [rng.integers(-(2**key_bits), 2**key_bits, n)]
    if workload == "max":
        return [rng.uniform(-100, 100, (n, 4))]
    if workload == "matmul":
        return [rng.uniform(-10, 10, (n, n)) for _ in range(2)]
    if workload == "softmax":
        return [rng.uniform(-8, 8, (n, CLASSES))]
    if workload == "train":
        images = rng.integers(0, 256, (n, SIZES[0])) / 255.0
        labels = numpy.eye(CLASSES)[rng.integers(0, CLASSES, n)]
        weights = []
        for rows, columns in itertools.pairwise(SIZES):
            limit = numpy.sqrt(6 / (rows + columns))
            weights += [rng.uniform(-limit, limit, (rows, columns)), numpy.zeros(columns)]
        return [images, labels, *weights]
    return [rng.uniform(-100, 100, n)]


def compute_results(workload: str, inputs: list[Any]) -> list[Any]:
    """Return the results in plaintext."""
    numpy: Any = importlib.import_module("numpy")
    x = inputs[0]
    if workload == "sort":
        return [numpy.sort(x)]
    if workload == "max":
        return [x.max(axis=1)]
    if workload == "matmul":
        return [x @ inputs[1]]
    if workload == "softmax":
        powers = numpy.exp(x - x.max(axis=1, keepdims=True))
        return [powers / powers.sum(axis=1, keepdims=True)]
    if workload == "train":
        images, labels, *weights = inputs
        return step_weights(numpy, images, labels, weights, [0.0] * len(weights))[0]
    return [numpy.maximum(x, 0)]


def step_weights(
    library: Any, images: Any, labels: Any, weights: list[Any], velocities: list[Any]
) -> tuple[list[Any], list[Any]]:
    """Return weights and velocities after a step of network A by SGD with momentum.

    Args:
        library: NumPy, or a module with its functions.
        weights: kernel and bias of each layer.
    """
    values = [images]
    for kernel, bias in zip(weights[0:4:2], weights[1:4:2], strict=True):
        values.append(library.maximum(values[-1] @ kernel + bias, 0))
    logits = values[-1] @ weights[4] + weights[5]
    powers = library.exp(logits - logits.max(axis=1, keepdims=True))
    error = (powers / powers.sum(axis=1, keepdims=True) - labels) / len(images)
    gradients: list[Any] = []
    for value, kernel in zip(reversed(values), reversed(weights[0::2]), strict=True):
        gradients = [value.T @ error, error.sum(axis=0), *gradients]
        error = (error @ kernel.T) * (value > 0)
    new_velocities = [MOMENTUM * v - RATE * g for v, g in zip(velocities, gradients, strict=True)]
    return [w + v for w, v in zip(weights, new_velocities, strict=True)], new_velocities


def results_agree(workload: str, results: list[Any], expected: list[Any], error: float) -> bool:
    """Return True if all results are within an error; of a product within n terms' errors.

    Args:
        error: of one value, absolute.
    """
    numpy: Any = importlib.import_module("numpy")
    if workload == "matmul":
        error = error * 10 * len(expected[0])
    if workload == "train":
        error = min(error, 5e-4)  # a fraction of what a step changes
    if workload == "softmax":
        error = max(error, 1e-2)  # exponentials are approximated
    return len(results) == len(expected) and all(
        bool(numpy.allclose(r, e, rtol=0, atol=error))
        for r, e in zip(results, expected, strict=True)
    )
