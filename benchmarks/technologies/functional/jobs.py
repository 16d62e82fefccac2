"""Functional encryption on the jobs of the comparison of all technologies."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.functional import convolution, leakage, lenet, scheme
from tfe_bench.benchmarks.technologies.functional.curve import Table
from tfe_bench.benchmarks.technologies.functional.measuring import (
    SECURITY_BITS,
    measure_inner_products,
    median_or_zero,
    peak_process_memory,
    time_call,
)
from tfe_bench.benchmarks.technologies.functional.sweep import SweepCell
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.models.datasets import mnist

LENGTH: Final = 784
UNITS: Final = 128
# 784 * 255 * 127 < 2^25
_RESULT_BITS: Final = 26


def count_processors() -> int:
    """Count the processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _measure_functional_dense(
    job: str, outputs: int, batch: int, table_bits: int, repeat: int
) -> Measurement:
    rng = np.random.default_rng(1)
    messages = rng.integers(0, 256, (batch, LENGTH))
    weights = rng.integers(-127, 128, (outputs, LENGTH))
    cell = SweepCell(
        length=LENGTH,
        result_bits=_RESULT_BITS,
        batch=batch,
        outputs=outputs,
        threads=count_processors(),
        table_bits=table_bits,
    )
    return measure_inner_products(cell, (messages, weights), 8, job, repeat=repeat)


def run_functional_product(quick: bool = False) -> Measurement:
    """Measure J1: one inner product of 784 values of 8 bits, encrypted under existing keys."""
    return _measure_functional_dense("J1", 1, 1, 16 if quick else 20, 2 if quick else 5)


def run_functional_dense(batch: int, quick: bool = False) -> Measurement:
    """Measure J2: a dense layer 784 -> 128, values and weights of 8 bits.

    Args:
        batch: messages, 1 to 1024.
        quick: a smaller table and fewer repetitions.
    """
    return _measure_functional_dense("J2", UNITS, batch, 16 if quick else 20, 1 if quick else 3)


def run_functional_network(
    quick: bool = False, data: str | os.PathLike[str] | None = None, batch: int = lenet.BATCH
) -> Measurement:
    """Measure J3: LeNet-5's forward pass on a batch of MNIST's test pictures.

    The server evaluates the first layer under encryption and the other layers in the clear.  The
    network is trained in the clear: one epoch, or a quarter of one if quick.

    Args:
        quick: shorter training and one repetition.
        data: the folder of MNIST's files, or None for Keras' download.
        batch: pictures, 1 to 1024.

    Raises:
        DataError: MNIST is missing.
    """
    digits = mnist.load(data)
    net = lenet.LeNet()
    some = len(digits.train_images) // (4 if quick else 1)
    net.train_epoch(digits.train_images[:some], digits.train_labels[:some])
    weights, scale = net.quantized_layer
    images, labels = digits.test_images[:batch], digits.test_labels[:batch]
    messages = lenet.flatten_pictures(images)
    setup, authority = time_call(lambda: scheme.setup("selective", convolution.PIXELS))
    encryptor = scheme.Encryptor(authority.public, lenet.INPUT_BITS, count_processors())
    server = lenet.LeNetServer(authority, Table(20), count_processors())

    def once() -> tuple[lenet.LeNetPhases, int, Any, Any]:
        phases = lenet.LeNetPhases()
        sent = encryptor.encrypt(messages, count_processors())
        phases.add_phase("encrypt")
        results = server.evaluate_layer(sent, weights, phases)
        phases.start_clock()
        logits = net.finish_logits(results, scale)
        phases.add_phase("clear")
        return phases, sent.nbytes, results, logits

    runs, sent_bytes, results, logits = zip(
        *(once() for _ in range(1 if quick else 3)), strict=True
    )
    rows = convolution.forward_function_key_rows(weights)
    key_leakage = leakage.Leakage(leakage.compute_leakage_rank(rows), convolution.PIXELS)
    totals = [each.encrypt + each.training for each in runs]
    in_clear = net.compute_logits(digits.test_images)
    figures: dict[str, Any] = {
        "setup_seconds": setup,
        "encrypt_seconds": median_or_zero([each.encrypt for each in runs]) / batch,
        "throughput_per_second": batch / median_or_zero(totals),
        "key_bytes": len(rows) * 32,
        "bytes_up": sent_bytes[0],
        "bytes_down": 0,
        "rounds": 1,
        "peak_memory_bytes": peak_process_memory(),
        "key_rank": key_leakage.rank,
        "leakage": f"the first layer's outputs, in the clear, to the server; {key_leakage}",
        "accuracy": float((logits[0].argmax(1) == labels).mean()),
        "accuracy_in_the_clear": float((in_clear[:batch].argmax(1) == labels).mean()),
        "test_accuracy_in_the_clear": float((in_clear.argmax(1) == digits.test_labels).mean()),
    }
    due = lenet.lenet_layer_in_clear(messages, weights)
    return Measurement(
        technology="functional",
        job="J3",
        parameters={
            **{
                "network": "LeNet-5",
                "batch": batch,
                "scheme": "selective",
                "threads": count_processors(),
            },
            **{"group": "ristretto255", "security_bits": SECURITY_BITS, "table_bits": 20},
            "phases": [each.seconds for each in runs],
        },
        seconds=Seconds.from_times(totals),
        figures=figures,
        correct=all(bool((each == due).all()) for each in results),
    )
