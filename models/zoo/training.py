"""Plaintext training of the MNIST networks, so that private predictions have correct answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfe_bench.models.datasets.mnist import Mnist
from tfe_bench.models.zoo.catalogue import Model

_BATCH = 128
_LEARNING_RATE = 1e-3


def train_mnist_network(model: Model, data: Mnist, epochs: int = 1, seed: int = 1) -> Model:
    """Train a network in place, with Adam on batches of 128; deterministic for a seed.

    Args:
        model: a model of pictures of 28 x 28.
        epochs: 1 or more.

    Returns:
        The model, with a description of its weights.
    """
    import keras

    from tfe_bench.models.inference import images

    # Shuffled here: Keras would use a generator that the whole process shares.
    order = np.random.default_rng([seed, 22]).permutation(len(data.train_labels))
    network = model.keras
    network.compile(
        optimizer=keras.optimizers.Adam(_LEARNING_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    network.fit(
        images.prepare_pixels(data.train_images[order, :, :, None], model.entry.preprocessing),
        data.train_labels[order],
        batch_size=_BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )
    return Model(model.entry, network, f"trained, {epochs} epochs (seed {seed})")


def prediction_accuracy(outputs: Any, labels: Any) -> float:
    """Return the fraction of samples whose largest output is that of their label."""
    return float(np.mean(np.asarray(outputs).argmax(1) == labels))
