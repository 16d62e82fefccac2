"""Functional encryption on the jobs that all technologies are compared on."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.functional import convolution, leakage, lenet, scheme
from tfe_bench.benchmarks.technologies.functional.curve import Table
from tfe_bench.benchmarks.technologies.functional.measuring import (
    SECURITY_BITS,
    Cell,
    inner_products,
    median,
    peak_memory,
    timed,
)
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.models import mnist

LENGTH: Final = 784
UNITS: Final = 128
# 784 * 255 * 127 < 2^25
_RESULT_BITS: Final = 26


def threads() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _dense(job: str, outputs: int, batch: int, table_bits: int, repeat: int) -> Measurement:
    rng = np.random.default_rng(1)
    messages = rng.integers(0, 256, (batch, LENGTH))
    weights = rng.integers(-127, 128, (outputs, LENGTH))
    cell = Cell(
        length=LENGTH,
        result_bits=_RESULT_BITS,
        batch=batch,
        outputs=outputs,
        threads=threads(),
        table_bits=table_bits,
    )
    return inner_products(cell, (messages, weights), 8, job, repeat=repeat)


def inner_product(quick: bool = False) -> Measurement:
    """J1: one inner product of 784 values of 8 bits, encrypted under keys that exist."""
    return _dense("J1", 1, 1, 16 if quick else 20, 2 if quick else 5)


def dense(batch: int, quick: bool = False) -> Measurement:
    """J2: 784 -> 128, values and weights of 8 bits.

    Args:
        batch: messages, 1 to 1024.
    """
    return _dense("J2", UNITS, batch, 16 if quick else 20, 1 if quick else 3)


def network(
    quick: bool = False, data: str | os.PathLike[str] | None = None, batch: int = lenet.BATCH
) -> Measurement:
    """J3: LeNet-5's forward pass on a batch of MNIST's test pictures.

    The first layer is under encryption, the rest in the clear at the server.  It has been trained
    in the clear: one epoch, or a fourth of one if quick.

    Args:
        data: the folder of MNIST's files, or None to have keras get it.
        batch: pictures, 1 to 1024.

    Raises:
        DataError: there is no MNIST.
    """
    digits = mnist.load(data)
    net = lenet.Network()
    some = len(digits.train_images) // (4 if quick else 1)
    net.train(digits.train_images[:some], digits.train_labels[:some])
    weights, scale = net.quantized
    images, labels = digits.test_images[:batch], digits.test_labels[:batch]
    messages = lenet.pixels(images)
    setup, authority = timed(lambda: scheme.setup("selective", convolution.PIXELS))
    encryptor = scheme.Encryptor(authority.public, lenet.INPUT_BITS, threads())
    server = lenet.Server(authority, Table(20), threads())

    def once() -> tuple[lenet.Phases, int, Any, Any]:
        phases = lenet.Phases()
        sent = encryptor.encrypt(messages, threads())
        phases.add("encrypt")
        results = server.forward(sent, weights, phases)
        phases.start()
        logits = net.finish(results, scale)
        phases.add("clear")
        return phases, sent.nbytes, results, logits

    runs, sent_bytes, results, logits = zip(
        *(once() for _ in range(1 if quick else 3)), strict=True
    )
    rows = convolution.forward_rows(weights)
    found = leakage.Leakage(leakage.rank(rows), convolution.PIXELS)
    totals = [each.encrypt + each.training for each in runs]
    in_clear = net.logits(digits.test_images)
    figures: dict[str, Any] = {
        "setup_seconds": setup,
        "encrypt_seconds": median([each.encrypt for each in runs]) / batch,
        "throughput_per_second": batch / median(totals),
        "key_bytes": len(rows) * 32,
        "bytes_up": sent_bytes[0],
        "bytes_down": 0,
        "rounds": 1,
        "peak_memory_bytes": peak_memory(),
        "key_rank": found.rank,
        "leakage": f"the first layer's outputs, in the clear, to the server; {found}",
        "accuracy": float((logits[0].argmax(1) == labels).mean()),
        "accuracy_in_the_clear": float((in_clear[:batch].argmax(1) == labels).mean()),
        "test_accuracy_in_the_clear": float((in_clear.argmax(1) == digits.test_labels).mean()),
    }
    due = lenet.in_clear(messages, weights)
    return Measurement(
        technology="functional",
        job="J3",
        parameters={
            **{"network": "LeNet-5", "batch": batch, "scheme": "selective", "threads": threads()},
            **{"group": "ristretto255", "security_bits": SECURITY_BITS, "table_bits": 20},
            "phases": [each.seconds for each in runs],
        },
        seconds=Seconds.from_times(totals),
        figures=figures,
        correct=all(bool((each == due).all()) for each in results),
    )
