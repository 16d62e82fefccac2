"""Costs of the compared jobs under homomorphic encryption.

One client with the secret key, one server, one round: the client sends ciphertexts, the server
answers with ciphertexts.  Every job runs in its own process, to measure its peak memory; every
result is decrypted and compared with plaintext.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.homomorphic import model as plaintext
from tfe_bench.benchmarks.technologies.homomorphic import network as encrypted
from tfe_bench.benchmarks.technologies.homomorphic import polynomials, processes
from tfe_bench.benchmarks.technologies.homomorphic.linear import Dense
from tfe_bench.benchmarks.technologies.homomorphic.model import MnistModel
from tfe_bench.benchmarks.technologies.homomorphic.network import EncryptedNetwork
from tfe_bench.benchmarks.technologies.homomorphic.parameters import Parameters
from tfe_bench.benchmarks.technologies.homomorphic.parties import (
    Client,
    Encrypted,
    EvaluationKeys,
    Server,
    Setting,
    Values,
)
from tfe_bench.benchmarks.technologies.homomorphic.polynomials import Approximation
from tfe_bench.benchmarks.technologies.libraries import import_library
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.errors import check_range

LENGTH: Final = 784
OUTPUTS: Final = 128
_SEED: Final = 13
_REPEAT: Final = 7
_QUICK: Final = 3
_FEW: Final = 4  # pictures that a ciphertext of N = 8192 holds
MOST_BATCH: Final = 4096

# 152 bits at N = 8192: 192 bits of security; the special prime is the largest by far.
LINEAR: Final = Parameters("CKKS", 8192, (52, 40, 60), 40)
# The largest accepted error: arithmetic is approximate.
LINEAR_ERROR: Final = 1e-4
POLYNOMIAL_ERROR: Final = 1e-4  # on top of the approximation's own
NETWORK_ERROR: Final = 0.05  # of logits, which differ by several units

LEAKAGE: Final = (
    "Nothing to the server. Only the client decrypts; results reveal information about the "
    "weights, and spare slots hold partial sums of them. A decrypted result must not be sent back "
    "to the server: its error leaks information about the key."
)

NOT_SUPPORTED: Final[Mapping[str, str]] = {
    "softmax": (
        "Softmax divides by a sum: a reciprocal over the sum's whole range takes a polynomial "
        "deeper than levels without bootstrapping allow, and its maximum a comparison."
    ),
    "J5": (
        "A logistic regression's epoch updates encrypted weights in every batch, each several "
        "levels deep: after two or three batches no prime is left, and this library has no "
        "bootstrapping, which would refresh them."
    ),
    "J6": (
        "Sorting and maxima compare, and a comparison is no polynomial of small degree: exact ones "
        "take bits under encryption (TFHE), approximate ones dozens of levels."
    ),
    "J7": (
        "A training step of the network is as deep as forward and backward pass together, and "
        "every step continues from encrypted weights: it takes bootstrapping, which this library "
        "has not."
    ),
}


def _run_job_in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    import_library("seal", "Homomorphic encryption")
    return processes.run_in_separate_process(function, *arguments)


class HomomorphicRun:
    """Timed parts of one job: the setup once, then the parts of each run."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}
        self.sent = [0, 0]

    def time_part(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and keep its time."""
        started = time.perf_counter()
        result = function(*arguments)
        self.parts.setdefault(part, []).append(time.perf_counter() - started)
        return result

    def count_sent(self, direction: int, ciphertexts: Sequence[Encrypted]) -> None:
        """Count the bytes of ciphertexts sent up (0) or down (1)."""
        self.sent[direction] += sum(int(c.handle.save_size()) for c in ciphertexts)

    def compute_figures(self, runs: int, values: int) -> dict[str, Any]:
        """Compute medians and bytes of one run with `values` results."""
        totals = self.list_totals(runs)
        median = Seconds.from_times(totals).median
        return {
            "setup_seconds": sum(self.parts["setup"]),
            **{
                f"{part}_seconds": float(np.median(self.parts[part][-runs:]))
                for part in ("encrypt", "evaluate", "decrypt")
            },
            "bytes_up": self.sent[0] // (runs + 1),
            "bytes_down": self.sent[1] // (runs + 1),
            "rounds": 1,
            "leakage": LEAKAGE,
            "throughput_per_second": values / median,
            "peak_memory_bytes": processes.peak_process_memory(),
        }

    def list_totals(self, runs: int) -> list[float]:
        """List the seconds of each run but the warm-up."""
        parts = (self.parts[part][-runs:] for part in ("encrypt", "evaluate", "decrypt"))
        return [sum(each) for each in zip(*parts, strict=True)]


def run_homomorphic_product(quick: bool = False) -> Measurement:
    """Measure J1: the inner product of an encrypted vector of 784 values and the server's vector.

    Raises:
        ConfigError: the library is not installed.
    """
    return _measure_linear("inner product", 1, 1, quick)


def run_homomorphic_dense(batch: int = 1, quick: bool = False) -> Measurement:
    """Measure J2: a dense layer 784 -> 128 on a batch of encrypted vectors.

    Raises:
        UsageError: the batch is not from 1 to 4096.
        ConfigError: the library is not installed.
    """
    return _measure_linear("dense", OUTPUTS, batch, quick)


def _measure_linear(job: str, outputs: int, batch: int, quick: bool) -> Measurement:
    check_range("The batch", batch, 1, MOST_BATCH)
    repeat = _QUICK if quick else _REPEAT
    seconds, figures, correct = _run_job_in_process(_run_linear, outputs, batch, repeat)
    parameters = {"shape": [outputs, LENGTH], "batch": batch, "seed": _SEED}
    return Measurement(
        technology="homomorphic",
        job=job,
        parameters={**parameters, **LINEAR.as_json()},
        seconds=Seconds.from_times(seconds),
        figures=figures,
        correct=correct,
    )


def homomorphic_linear_inputs(outputs: int, batch: int) -> tuple[Values, Values]:
    """Draw weights [outputs, 784] and vectors [batch, 784] of the linear jobs."""
    rng = np.random.default_rng(_SEED)
    weights = rng.normal(0, 1 / np.sqrt(LENGTH), (outputs, LENGTH))
    return weights, rng.uniform(0, 1, (batch, LENGTH))


def _run_linear(outputs: int, batch: int, repeat: int) -> tuple[list[float], Any, bool]:
    weights, vectors = homomorphic_linear_inputs(outputs, batch)
    run = HomomorphicRun()

    def prepare() -> tuple[Setting, Client, Dense, EvaluationKeys]:
        setting = Setting(LINEAR)
        client, layer = Client(setting), Dense(setting, weights, batch)
        return setting, client, layer, client.evaluation_keys(layer.product.steps)

    setting, client, layer, keys = run.time_part("setup", prepare)
    server = Server(setting, keys)
    decrypted = np.zeros((0, 0))
    for _ in range(repeat + 1):
        sent = run.time_part("encrypt", lambda: [client.encrypt(v) for v in layer.pack(vectors)])
        run.count_sent(0, sent)
        back = run.time_part("evaluate", lambda sent=sent: [layer.run(server, x) for x in sent])
        run.count_sent(1, back)
        decrypted = run.time_part(
            "decrypt",
            lambda back=back: layer.unpack([client.decrypt(y) for y in back], batch),
        )
    error = float(np.abs(decrypted - vectors @ weights.T).max())
    layout = layer.product.layout
    figures = {
        **run.compute_figures(repeat, batch),
        "key_bytes": keys.size,
        "rotation_keys": len(keys.steps),
        "plaintext_bytes": layer.plaintext_bytes,
        "images_per_ciphertext": layout.images,
        "copies_per_image": layout.copies,
        "max_abs_error": error,
    }
    return run.list_totals(repeat), figures, error <= LINEAR_ERROR


def run_polynomial(function: str, quick: bool = False) -> Measurement:
    """Measure J4: sigmoid or exp of 4096 encrypted values, by a polynomial of degree 7 on a range.

    Raises:
        UsageError: the function is not one of these.
        ConfigError: the library is not installed.
    """
    approximation = Approximation.fit_function(function)
    repeat = _QUICK if quick else _REPEAT
    seconds, figures, correct = _run_job_in_process(_run_polynomial, function, repeat)
    parameters = {
        "degree_of_polynomial": polynomials.DEGREE,
        "range": [approximation.low, approximation.high],
        "n": polynomials.PARAMETERS.slots,
        "seed": _SEED,
    }
    return Measurement(
        technology="homomorphic",
        job=function,
        parameters={**parameters, **polynomials.PARAMETERS.as_json()},
        seconds=Seconds.from_times(seconds),
        figures=figures,
        correct=correct,
    )


def _run_polynomial(function: str, repeat: int) -> tuple[list[float], Any, bool]:
    approximation = Approximation.fit_function(function)
    exact = polynomials.FUNCTIONS[function][0]
    count = polynomials.PARAMETERS.slots
    values = np.random.default_rng(_SEED).uniform(approximation.low, approximation.high, count)
    values[:2] = approximation.low, approximation.high
    run = HomomorphicRun()

    def prepare() -> tuple[Setting, Client, EvaluationKeys]:
        setting = Setting(polynomials.PARAMETERS)
        client = Client(setting)
        return setting, client, client.evaluation_keys(relinearization=True)

    setting, client, keys = run.time_part("setup", prepare)
    server = Server(setting, keys)
    decrypted = values
    for _ in range(repeat + 1):
        sent = run.time_part(
            "encrypt", lambda: client.encrypt(approximation.normalize_values(values))
        )
        run.count_sent(0, [sent])
        back = run.time_part(
            "evaluate", polynomials.evaluate_polynomial, server, sent, approximation.coefficients
        )
        run.count_sent(1, [back])
        decrypted = run.time_part("decrypt", client.decrypt, back)
    encryption_error = float(np.abs(decrypted - approximation(values)).max())
    figures = {
        **run.compute_figures(repeat, count),
        "key_bytes": keys.size,
        "approximation_error": approximation.error,
        "encryption_error": encryption_error,
        "max_abs_error": float(np.abs(decrypted - exact(values)).max()),
    }
    return run.list_totals(repeat), figures, encryption_error <= POLYNOMIAL_ERROR


def run_homomorphic_network(
    batch: int = 1,
    quick: bool = False,
    *,
    folder: Path | None = None,
    trained: MnistModel | None = None,
    degree: int | None = None,
) -> Measurement:
    """Measure J3: the MNIST network on a batch of encrypted pictures, in one process.

    Args:
        batch: pictures of the test set, from its start.
        quick: fewer repetitions.
        folder: folder of MNIST's files; None for Keras' download.
        trained: a model, so that several batches share one training; None to train one first.
        degree: N, 8192 or 16384; by default the degree of least latency for up to four pictures,
            and for more the degree with eight pictures in a ciphertext.

    Raises:
        UsageError: the batch or degree is not supported.
        DataError: MNIST is missing.
        ConfigError: the library is not installed.
    """
    from tfe_bench.models.datasets import mnist

    check_range("The batch", batch, 1, MOST_BATCH)
    parameters = encrypted.choose_network_parameters(degree or (8192 if batch <= _FEW else 16384))
    data = mnist.load(folder)
    trained = trained or plaintext.train_model(folder)
    pictures = data.test_images[:batch].astype(np.float64) / 255
    repeat = 1 if batch > 1 and quick else _QUICK
    seconds, figures, correct = _run_job_in_process(
        _run_encrypted_network, parameters, trained, pictures, data.test_labels[:batch], repeat
    )
    return Measurement(
        technology="homomorphic",
        job="network",
        parameters={"batch": len(pictures), "seed": plaintext.SEED, **parameters.as_json()},
        seconds=Seconds.from_times(seconds),
        figures=figures,
        correct=correct,
    )


class NetworkRun:
    """A client and a server with the network, in one process.

    Args:
        parameters: as from `network.choose_network_parameters`.
        trained: the model.
        images: pictures in a ciphertext.
    """

    def __init__(self, parameters: Parameters, trained: MnistModel, images: int) -> None:
        self.run = HomomorphicRun()
        self.run.time_part("setup", self._prepare_network, parameters, trained, images)

    def _prepare_network(self, parameters: Parameters, trained: MnistModel, images: int) -> None:
        setting = Setting(parameters)
        self.network = EncryptedNetwork(setting, images)
        self._bounds = self.network.bound_products(trained)
        self._weights = list(self.network.encode_weights(trained))
        self.client = Client(setting)
        self.keys = self.client.evaluation_keys(self.network.steps, relinearization=True)
        self._server = Server(setting, self.keys)

    def compute_logits(self, pictures: Values) -> Values:
        """Compute the outputs [n, 10] of pictures [n, 28, 28], group by group."""
        run, net, images = self.run, self.network, self.network.images
        groups = [pictures[i : i + images] for i in range(0, len(pictures), images)]
        parts = {"encrypt": 0.0, "evaluate": 0.0, "decrypt": 0.0}
        group_logits = []
        for group in groups:
            group_run = HomomorphicRun()
            sent = group_run.time_part(
                "encrypt", lambda g=group: [*map(self.client.encrypt, net.pack_pictures(g))]
            )
            run.count_sent(0, sent)
            back = group_run.time_part(
                "evaluate", net.run_network, self._server, sent, self._weights, self._bounds
            )
            run.count_sent(1, [back])
            slots = group_run.time_part("decrypt", self.client.decrypt, back)
            group_logits.append(net.unpack_outputs(slots, len(group)))
            for part in parts:
                parts[part] += group_run.parts[part][0]
        for part, seconds in parts.items():
            run.parts.setdefault(part, []).append(seconds)
        return np.concatenate(group_logits)


def images_per_ciphertext(parameters: Parameters, batch: int) -> int:
    """Return the pictures in a ciphertext: as many as fit, at most the batch."""
    return min(parameters.slots // 1024, 1 << (batch - 1).bit_length())


def _run_encrypted_network(
    parameters: Parameters, trained: MnistModel, pictures: Values, labels: Any, repeat: int
) -> tuple[list[float], Any, bool]:
    job = NetworkRun(parameters, trained, images_per_ciphertext(parameters, len(pictures)))
    logits = np.zeros((0, 0))
    for _ in range(repeat + 1):
        logits = job.compute_logits(pictures)
    expected = trained.compute_logits(pictures)
    error = float(np.abs(logits - expected).max())
    agree = logits.argmax(axis=1) == expected.argmax(axis=1)
    figures = {
        **job.run.compute_figures(repeat, len(pictures)),
        "key_bytes": job.keys.size,
        "images_per_ciphertext": job.network.images,
        "max_abs_error": error,
        "accuracy": float((logits.argmax(axis=1) == labels).mean()),
        "accuracy_plaintext": float((expected.argmax(axis=1) == labels).mean()),
        "agreement": float(agree.mean()),
    }
    return job.run.list_totals(repeat), figures, error <= NETWORK_ERROR
