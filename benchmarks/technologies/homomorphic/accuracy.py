"""Accuracy of the encrypted network on many pictures, spread over processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.homomorphic import jobs, processes
from tfe_bench.benchmarks.technologies.homomorphic import model as plaintext
from tfe_bench.benchmarks.technologies.homomorphic import network as encrypted
from tfe_bench.benchmarks.technologies.homomorphic.model import MnistModel
from tfe_bench.benchmarks.technologies.homomorphic.parameters import Parameters
from tfe_bench.benchmarks.technologies.homomorphic.parties import Values
from tfe_bench.benchmarks.technologies.libraries import import_library
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.errors import UsageError, check_range

_GROUPS: Final = 2  # ciphertexts of pictures that a process receives at a time

Tell = Callable[[float, str], None]


class AccuracyWorker:
    """A client and a server in one process, called with pictures."""

    def __init__(self, parameters: Parameters, trained: MnistModel, images: int) -> None:
        self._job = jobs.NetworkRun(parameters, trained, images)
        self._told = [0, 0]

    def __call__(self, pictures: Values) -> dict[str, Any]:
        """Return outputs [n, 10], seconds of each part, bytes, and the peak memory so far."""
        job = self._job
        logits = job.compute_logits(pictures)
        sent = [now - before for now, before in zip(job.run.sent, self._told, strict=True)]
        self._told = list(job.run.sent)
        parts = {name: times[-1] for name, times in job.run.parts.items() if name != "setup"}
        return {
            "logits": logits,
            "parts": parts,
            "sent": sent,
            "setup": job.run.parts["setup"][0],
            "key_bytes": job.keys.size,
            "memory": processes.peak_process_memory(),
        }


def measure_encrypted_accuracy(
    count: int,
    tell: Tell,
    *,
    folder: Path | None = None,
    trained: MnistModel | None = None,
    degree: int = 16384,
    seed: int = plaintext.SEED,
) -> Measurement:
    """Measure accuracy and cost of the network on the first `count` pictures of the test set.

    Args:
        count: number of pictures.
        tell: callback for the progress: a fraction from 0 to 1, and a text.
        folder: folder of MNIST's files; None for Keras' download.
        trained: a model; None to train one first, from `seed`.
        degree: N.
        seed: seed of the training.

    Raises:
        UsageError: the test set has fewer pictures, or the degree is not supported.
        DataError: MNIST is missing.
        ConfigError: the library is not installed.
        ClusterError: a process ended unexpectedly.
    """
    from tfe_bench.models.datasets import mnist

    import_library("seal", "Homomorphic encryption")
    parameters = encrypted.choose_network_parameters(degree)
    data = mnist.load(folder)
    check_range("The number of pictures", count, 1, len(data.test_labels))
    started = time.perf_counter()
    if trained is None:
        tell(0.0, f"training (seed {seed})")
        trained = plaintext.train_model(folder, seed)
    training = time.perf_counter() - started
    pictures = data.test_images[:count].astype(np.float64) / 255
    labels = data.test_labels[:count]
    images = jobs.images_per_ciphertext(parameters, count)
    step = images * _GROUPS
    items = [pictures[i : i + step] for i in range(0, count, step)]
    workers = min(len(os.sched_getaffinity(0)), len(items))
    started, done = time.perf_counter(), 0
    results: dict[int, dict[str, Any]] = {}
    tell(0.0, "making keys")
    for index, result in processes.run_spread(
        AccuracyWorker, (parameters, trained, images), items, workers
    ):
        results[index] = result
        done += len(items[index])
        tell(done / count, f"{done} of {count} encrypted pictures")
    whole = time.perf_counter() - started
    if len(results) != len(items):
        raise UsageError(
            f"Expected {len(items)} results. Received: {len(results)}. Run the measurement again.",
            code="results-missing",
            received=len(results),
            expected=len(items),
        )
    logits = np.concatenate([results[i]["logits"] for i in range(len(items))])
    expected = trained.compute_logits(pictures)
    error = float(np.abs(logits - expected).max())
    chosen, plain = logits.argmax(axis=1), expected.argmax(axis=1)
    setup = max(each["setup"] for each in results.values())
    parts = {
        f"{part}_seconds_per_picture": sum(f["parts"][part] for f in results.values()) / count
        for part in ("encrypt", "evaluate", "decrypt")
    }
    return Measurement(
        technology="homomorphic",
        job="network accuracy",
        parameters={
            "images": count,
            "seed": seed,
            "epochs": plaintext.EPOCHS,
            "processes": workers,
            **parameters.as_json(),
        },
        seconds=Seconds.from_times([whole]),
        figures={
            "training_seconds": training,
            "setup_seconds": setup,
            **parts,
            "bytes_up": sum(f["sent"][0] for f in results.values()),
            "bytes_down": sum(f["sent"][1] for f in results.values()),
            "key_bytes": results[0]["key_bytes"],
            "rounds": 1,
            "leakage": jobs.LEAKAGE,
            "images_per_ciphertext": images,
            "throughput_per_second": count / max(1e-9, whole - setup),
            "peak_memory_bytes": max(f["memory"] for f in results.values()),
            "max_abs_error": error,
            "accuracy": float((chosen == labels).mean()),
            "accuracy_plaintext": float((plain == labels).mean()),
            "agreement": float((chosen == plain).mean()),
        },
        correct=error <= jobs.NETWORK_ERROR,
    )
