"""Measurement of LeNet-5 with an encrypted first layer: times, accuracy and leakage."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.functional import convolution, leakage, lenet, scheme
from tfe_bench.benchmarks.technologies.functional.convolution import PIXELS
from tfe_bench.benchmarks.technologies.functional.curve import Numbers, Table
from tfe_bench.benchmarks.technologies.functional.leakage import Leakage
from tfe_bench.benchmarks.technologies.functional.lenet import BATCH, INPUT_BITS, LeNetPhases
from tfe_bench.benchmarks.technologies.functional.measuring import (
    SECURITY_BITS,
    median_or_zero,
    peak_process_memory,
    time_call,
)
from tfe_bench.benchmarks.technologies.functional.published import read_training
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.models.datasets import mnist
from tfe_bench.models.datasets.mnist import Mnist

DELTA_BITS: Final = 8
PICTURES: Final = 5
FEW_KEYS: Final = 128
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False, repr=False)
class _Setting:
    """Network, encryptor, server and data of one measurement."""

    net: lenet.LeNet
    server: lenet.LeNetServer
    encryptor: scheme.Encryptor
    digits: Mnist
    batches: int
    say: Say


def measure_training(
    *,
    batches: int,
    threads: int,
    allowed: bool,
    scheme_name: str = "selective",
    data: str | os.PathLike[str] | None = None,
    epochs: float = 1.0,
    table_bits: int = 20,
    say: Say = lambda _: None,
) -> Measurement:
    """Train in the clear, then on encrypted batches, and attack the server's results.

    Args:
        batches: batches of 64 pictures for training, and as many for testing.
        threads: threads at work.
        allowed: continue if the keys reveal the pictures.
        scheme_name: one of `scheme.SCHEMES`.
        data: the folder of MNIST's files, or None for Keras' download.
        epochs: epochs of the preceding training in the clear, 0 to 1.
        table_bits: base-2 logarithm of the number of steps of the table of logarithms.
        say: callback for progress messages.

    Raises:
        PolicyError: the keys reveal the pictures, and `allowed` is not set.
        DataError: MNIST is missing.
    """
    say("reading MNIST")
    digits = mnist.load(data)
    net = lenet.LeNet()
    weights, _ = net.quantized_layer
    # Any filters without zeros have this rank, so it is known before encryption.
    key_leakage = Leakage(
        leakage.compute_leakage_rank(convolution.forward_function_key_rows(weights)), PIXELS
    )
    leakage.check_leakage(key_leakage, allowed)
    sample_count = max(BATCH, int(len(digits.train_images) * epochs))
    plain = net.train_epoch(
        digits.train_images[:sample_count], digits.train_labels[:sample_count], say
    )
    setup, authority = time_call(lambda: scheme.setup(scheme_name, PIXELS))
    encryptor = scheme.Encryptor(authority.public, INPUT_BITS, threads)
    server = lenet.LeNetServer(authority, Table(table_bits), threads)
    setting = _Setting(net, server, encryptor, digits, batches, say)
    runs, right = _train_encrypted(setting)
    accuracy = _test_encrypted_accuracy(setting)
    say("solving for the pictures")
    weights, _ = net.quantized_layer
    shown = lenet.flatten_pictures(digits.test_images[:PICTURES])
    attack = _attack_messages(convolution.forward_function_key_rows(weights), shown)
    few = np.random.default_rng(1).integers(-127, 128, (FEW_KEYS, PIXELS))
    attack_few = _attack_messages(scheme.as_weight_rows(few), shown)
    in_epoch = len(digits.train_images) // BATCH
    per_batch = median_or_zero([each.training for each in runs])
    encrypt = median_or_zero([each.encrypt for each in runs]) / BATCH
    plain_epoch = plain * len(digits.train_images) / sample_count
    key_leakage = Leakage(key_leakage.rank, PIXELS, leakage.recovered_value_fraction(attack, shown))
    figures: dict[str, Any] = {
        "setup_seconds": setup,
        "encrypt_seconds": encrypt,
        "batch_seconds": per_batch,
        "encrypt_all_hours": encrypt * len(digits.train_images) / 3600,
        "epoch_hours": per_batch * in_epoch / 3600,
        "plain_epoch_hours": plain_epoch / 3600,
        "slowdown": per_batch * in_epoch / plain_epoch,
        **accuracy,
        "key_rank": key_leakage.rank,
        "message_length": key_leakage.length,
        "pixels_recovered": key_leakage.exact,
        "few_keys": FEW_KEYS,
        "few_keys_pixels_recovered": leakage.recovered_value_fraction(attack_few, shown),
        "leakage": f"the first layer's outputs, in the clear, to the server; {key_leakage}",
        "bytes_up": (PIXELS + scheme.HEADS[scheme_name]) * 32 * BATCH,
        "peak_memory_bytes": peak_process_memory(),
        "published_hours": [
            [row["framework"], row["as_printed_enc"], row["as_printed_train"]]
            for row in read_training()
        ],
        "pictures": {
            "original": _pixels_as_hex(shown),
            "all keys": _pixels_as_hex(attack),
            f"{FEW_KEYS} keys": _pixels_as_hex(attack_few),
        },
    }
    modeled = ["encrypt_all_hours", "epoch_hours", "slowdown"]
    return Measurement(
        technology="functional",
        job="LeNet-5 training",
        parameters={
            **{"batch": BATCH, "batches": batches, "epochs": epochs, "scheme": scheme_name},
            **{"group": "ristretto255", "security_bits": SECURITY_BITS, "table_bits": table_bits},
            **{"threads": threads, "phases": [each.seconds for each in runs]},
        },
        seconds=Seconds.from_times([each.encrypt + each.training for each in runs]),
        figures=figures,
        modeled=tuple(modeled if epochs == 1 else [*modeled, "plain_epoch_hours"]),
        correct=right,
    )


def _train_encrypted(on: _Setting) -> tuple[list[LeNetPhases], bool]:
    """Train on encrypted batches and check each against the same whole numbers in the clear."""
    net, server, digits = on.net, on.server, on.digits
    runs, right = [], True
    order = net.draw_batches(len(digits.train_images))
    for i in range(on.batches):
        on.say(f"training on encrypted pictures: batch {i + 1} of {on.batches}")
        chosen = next(order)
        messages = lenet.flatten_pictures(digits.train_images[chosen])
        labels = digits.train_labels[chosen]
        phases = LeNetPhases()
        sent = on.encryptor.encrypt(messages, server.threads)
        phases.add_phase("encrypt")
        weights, scale = net.quantized_layer
        results = server.evaluate_layer(sent, weights, phases)
        phases.start_clock()
        delta, rest = net.compute_gradients(results, scale, labels)
        whole, unit = convolution.quantize_values(delta, DELTA_BITS)
        phases.add_phase("clear")
        sums = server.evaluate_gradient(sent, whole, phases)
        phases.start_clock()
        kernel = sums.sum(0).reshape(convolution.KERNEL, convolution.KERNEL, convolution.FILTERS)
        net.update_weights(rest, kernel * (unit / 255), delta)
        phases.add_phase("clear")
        runs.append(phases)
        right &= bool((results == lenet.lenet_layer_in_clear(messages, weights)).all())
        right &= bool((sums == lenet.gradient_in_clear(messages, whole)).all())
    return runs, right


def _test_encrypted_accuracy(on: _Setting) -> dict[str, Any]:
    """Measure accuracy on encrypted test pictures, and on all of them with whole numbers."""
    net, server, digits = on.net, on.server, on.digits
    weights, scale = net.quantized_layer
    count = min(on.batches * BATCH, len(digits.test_images))
    images, labels = digits.test_images, digits.test_labels
    messages = lenet.flatten_pictures(images)
    private = []
    for at in range(0, count, BATCH):
        on.say(f"testing on encrypted pictures: {at} of {count}")
        sent = on.encryptor.encrypt(messages[at : min(at + BATCH, count)], server.threads)
        private.append(
            net.finish_logits(server.evaluate_layer(sent, weights, LeNetPhases()), scale)
        )
    plain = net.compute_logits(images).argmax(1)
    whole = np.concatenate(
        [
            net.finish_logits(
                lenet.lenet_layer_in_clear(messages[at : at + 500], weights), scale
            ).argmax(1)
            for at in range(0, len(messages), 500)
        ]
    )
    guessed = np.concatenate(private).argmax(1)
    return {
        "tested": count,
        "accuracy": float((guessed == labels[:count]).mean()),
        "accuracy_in_the_clear": float((plain[:count] == labels[:count]).mean()),
        "test_accuracy_of_whole_numbers": float((whole == labels).mean()),
        "test_accuracy_in_the_clear": float((plain == labels).mean()),
    }


def _attack_messages(rows: Any, messages: Numbers) -> convolution.Reals:
    dense = rows.to_dense().astype(np.float64)
    return leakage.reconstruct_messages(rows, np.rint(messages @ dense.T).astype(np.int64))


def _pixels_as_hex(pictures: Any) -> list[str]:
    """Format pixels, clipped to a byte, as hexadecimal digits."""
    return [bytes(np.clip(np.rint(p), 0, 255).astype(np.uint8)).hex() for p in pictures]
