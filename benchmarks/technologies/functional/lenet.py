"""LeNet-5 with the first layer on encrypted pictures and the other layers in the clear.

This follows published systems of functional encryption.  The data's owner encrypts its pictures
once, and the key authority derives a key for each window of each filter.  The server decrypts the
first layer's outputs, continues in the clear, and requests further keys for the gradient of the
filters.  Pixels have 8 bits; weights and gradients are rounded to 8 bits and a scale.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.technologies.functional import convolution, scheme
from tfe_bench.benchmarks.technologies.functional.convolution import Reals
from tfe_bench.benchmarks.technologies.functional.curve import (
    Numbers,
    Table,
    decode_curve_elements,
    run_parts_in_threads,
)
from tfe_bench.benchmarks.technologies.functional.scheme import Ciphertexts, MasterKey
from tfe_bench.lazy_tensorflow import tf

BATCH: Final = 64
INPUT_BITS: Final = 8
Say = Callable[[str], None]


def flatten_pictures(images: Any) -> Numbers:
    """Flatten pictures uint8 [n, 28, 28] to messages, int64 [n, 784]."""
    return np.asarray(images, np.int64).reshape(len(images), -1)


class LeNet:
    """LeNet-5 (LeCun et al., 1998) with rectifiers: first convolution, and the other layers.

    Args:
        seed: seed of the initial weights and of the order of pictures.
    """

    def __init__(self, seed: int = 1) -> None:
        import keras

        keras.utils.set_random_seed(seed)
        layers = keras.layers
        self.first = layers.Conv2D(convolution.FILTERS, convolution.KERNEL, padding="same")
        self.first.build((None, convolution.SIDE, convolution.SIDE, 1))
        self.rest = keras.Sequential(
            [
                keras.Input((convolution.SIDE, convolution.SIDE, convolution.FILTERS)),
                layers.ReLU(),
                layers.AveragePooling2D(2),
                layers.Conv2D(16, convolution.KERNEL, activation="relu"),
                layers.AveragePooling2D(2),
                layers.Flatten(),
                layers.Dense(120, activation="relu"),
                layers.Dense(84, activation="relu"),
                layers.Dense(10),
            ]
        )
        self._optimizer = keras.optimizers.Adam(1e-3)
        self._optimizer.build([*self.rest.trainable_variables, *self.first.trainable_variables])
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._order = np.random.default_rng(seed)
        self._step: Any = None

    def draw_batches(self, count: int) -> Iterator[Any]:
        """Yield indices of pictures in a random order, BATCH at a time."""
        order = self._order.permutation(count)
        for at in range(0, count - BATCH + 1, BATCH):
            yield order[at : at + BATCH]

    def train_epoch(self, images: Any, labels: Any, say: Say = lambda _: None) -> float:
        """Train one epoch in the clear; return its seconds."""
        if self._step is None:
            variables = [*self.rest.trainable_variables, *self.first.trainable_variables]

            def step(x: Any, y: Any) -> None:
                with tf.GradientTape() as tape:
                    loss = self._loss(y, self.rest(self.first(x), training=True))
                self._optimizer.apply(tape.gradient(loss, variables), variables)

            self._step = tf.function(step, reduce_retracing=True)
        scaled = np.asarray(images, np.float32)[..., None] / 255
        start = time.perf_counter()
        total = len(images) // BATCH
        for i, chosen in enumerate(self.draw_batches(len(images))):
            self._step(tf.constant(scaled[chosen]), tf.constant(labels[chosen]))
            if i % 50 == 0:
                say(f"training in the clear: batch {i} of {total}")
        return time.perf_counter() - start

    @property
    def quantized_layer(self) -> tuple[Numbers, float]:
        """First layer's weights as whole numbers [5, 5, filters], and their scale."""
        return convolution.quantize_values(np.asarray(self.first.kernel)[:, :, 0, :])

    def compute_logits(self, images: Any) -> Reals:
        """Compute logits in the clear, in floating point."""
        scaled = np.asarray(images, np.float32)[..., None] / 255
        parts = [
            np.asarray(self.rest(self.first(scaled[at : at + 500])))
            for at in range(0, len(scaled), 500)
        ]
        return np.concatenate(parts).astype(np.float64)

    def rescale_activations(self, results: Numbers, scale: float) -> Any:
        """Convert whole numbers [n, 4704] to activations float32 [n, 28, 28, filters]."""
        shape = (-1, convolution.SIDE, convolution.SIDE, convolution.FILTERS)
        values = results.reshape(shape) * (scale / 255) + np.asarray(self.first.bias)
        return values.astype(np.float32)

    def finish_logits(self, results: Numbers, scale: float) -> Reals:
        """Compute logits from the first layer's outputs."""
        return np.asarray(self.rest(self.rescale_activations(results, scale)), np.float64)

    def compute_gradients(
        self, results: Numbers, scale: float, labels: Any
    ) -> tuple[Reals, list[Any]]:
        """Compute the loss's gradient by the first layer's outputs and by the other variables."""
        activations = tf.constant(self.rescale_activations(results, scale))
        with tf.GradientTape() as tape:
            tape.watch(activations)
            loss = self._loss(labels, self.rest(activations, training=True))
        variables = self.rest.trainable_variables
        delta, rest = tape.gradient(loss, [activations, variables])
        return np.asarray(delta, np.float64), list(rest)

    def update_weights(self, rest: list[Any], kernel: Reals, delta: Reals) -> None:
        """Apply one optimizer step; the gradient of the bias needs no pixels."""
        gradients = [kernel[:, :, None, :].astype(np.float32), delta.sum((0, 1, 2))]
        variables = [*self.rest.trainable_variables, *self.first.trainable_variables]
        self._optimizer.apply([*rest, *gradients], variables)


class LeNetPhases:
    """Seconds by phase of one batch."""

    def __init__(self) -> None:
        names = ("encrypt", "derive", "decode", "evaluate", "logarithms", "clear")
        self.seconds: dict[str, float] = dict.fromkeys(names, 0.0)
        self.start_clock()

    def start_clock(self) -> None:
        """Start the clock."""
        self._since = time.perf_counter()

    def add_phase(self, name: str) -> None:
        """Add the time since the last call to a phase."""
        now = time.perf_counter()
        self.seconds[name] += now - self._since
        self._since = now

    @property
    def encrypt(self) -> float:
        """Seconds of encryption, which happens once."""
        return self.seconds["encrypt"]

    @property
    def training(self) -> float:
        """Seconds of all phases but encryption."""
        return sum(self.seconds.values()) - self.encrypt


class LeNetServer:
    """Server that decrypts the first layer and its gradient.

    Args:
        authority: key authority that derives its keys.
        table: table of logarithms.
        threads: threads that the pictures are split among.
    """

    def __init__(self, authority: MasterKey, table: Table, threads: int) -> None:
        self.authority, self.table, self.threads = authority, table, threads

    def evaluate_layer(
        self, ciphertexts: Ciphertexts, weights: Numbers, phases: LeNetPhases
    ) -> Numbers:
        """Decrypt the first layer's outputs [batch, 4704]."""
        phases.start_clock()
        keys = self.authority.derive(convolution.forward_function_key_rows(weights))
        phases.add_phase("derive")
        return self._evaluate_keys(ciphertexts, [keys] * len(ciphertexts), phases)

    def evaluate_gradient(
        self, ciphertexts: Ciphertexts, delta: Numbers, phases: LeNetPhases
    ) -> Numbers:
        """Decrypt sums of pixels times delta [batch, 28, 28, filters] by picture: [batch, 150]."""
        phases.start_clock()
        keys = [
            self.authority.derive(convolution.gradient_function_key_rows(each)) for each in delta
        ]
        phases.add_phase("derive")
        return self._evaluate_keys(ciphertexts, keys, phases)

    def _evaluate_keys(
        self, ciphertexts: Ciphertexts, keys: list[scheme.FunctionKeys], phases: LeNetPhases
    ) -> Numbers:
        bound = max(scheme.bound_for(INPUT_BITS, each.rows) for each in keys)
        for each in keys:
            scheme.check_matching_keys(ciphertexts, each)
        size = len(ciphertexts)
        points: list[Any] = [None] * size
        phases.start_clock()

        def unpack(begin: int, end: int) -> None:
            for i in range(begin, end):
                points[i] = decode_curve_elements(ciphertexts.elements[i])

        def evaluate(begin: int, end: int) -> None:
            for i in range(begin, end):
                points[i] = scheme.evaluate_function_keys(points[i], keys[i])

        run_parts_in_threads(size, self.threads, unpack)
        phases.add_phase("decode")
        run_parts_in_threads(size, self.threads, evaluate)
        phases.add_phase("evaluate")
        logarithms = self.table.find_logarithms(np.concatenate(points), bound, self.threads)
        phases.add_phase("logarithms")
        return logarithms.reshape(size, -1)


def lenet_layer_in_clear(messages: Numbers, weights: Numbers) -> Numbers:
    """Compute the expected result of `Server.evaluate_layer`."""
    rows = convolution.forward_function_key_rows(weights).to_dense()
    return (messages.astype(np.float64) @ rows.T.astype(np.float64)).astype(np.int64)


def gradient_in_clear(messages: Numbers, delta: Numbers) -> Numbers:
    """Compute the expected result of `Server.evaluate_gradient`."""
    return np.stack(
        [
            convolution.gradient_function_key_rows(d).to_dense() @ x
            for x, d in zip(messages, delta, strict=True)
        ]
    )
