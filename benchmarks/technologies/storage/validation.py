"""Validation of the prediction by a real network under CKKS with weights read at a set rate.

The file is in the page cache, so the token bucket limits the rate, not the disk.  Keys and input
are in memory: the validation covers the overlap of reading and computing.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.homomorphic import model as weights
from tfe_bench.benchmarks.technologies.homomorphic.network import (
    EncryptedNetwork,
    choose_network_parameters,
)
from tfe_bench.benchmarks.technologies.homomorphic.parties import (
    Client,
    Server,
    Setting,
    Values,
)
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.benchmarks.technologies.storage import measured, program_order
from tfe_bench.benchmarks.technologies.storage.device import GIGA
from tfe_bench.benchmarks.technologies.storage.model import Costs
from tfe_bench.benchmarks.technologies.storage.projections import TECHNOLOGY, VALIDATION
from tfe_bench.benchmarks.technologies.storage.streaming import PlaintextReader

# Devices have 1 to 8 GB/s; at lower rates reading determines this network's time.
RATES: Final = (0.05, 0.1, 0.2, 1.0, 2.0, 4.0, 8.0)
_AHEAD: Final = 1 << 27
_SEED: Final = 13


@dataclass(frozen=True)
class InferenceStage:
    """A part of a run.

    Attributes:
        size: bytes that it reads.
        seconds: computing time.
    """

    size: int
    seconds: float


class StorageValidation:
    """A client, a server and a file of encoded weights.

    Args:
        degree: N.
        folder: the folder of the file.

    Raises:
        ConfigError: the library is not installed.
    """

    def __init__(self, degree: int, folder: Path) -> None:
        setting = Setting(choose_network_parameters(degree))
        self.network = EncryptedNetwork(setting, 1)
        model = weights.made_up_mnist_model(_SEED)
        self._bounds = self.network.bound_products(model)
        client = Client(setting)
        keys = client.evaluation_keys(self.network.steps, relinearization=True)
        self._client, self._server = client, Server(setting, keys)
        picture = np.random.default_rng(_SEED).uniform(0, 1, (1, 28, 28))
        self._input = [client.encrypt(slots) for slots in self.network.pack_pictures(picture)]
        self._expected = model.compute_logits(picture)
        self._chunks = list(self.network.serialize_weights(model))
        self.sizes = [len(chunk) for chunk in self._chunks]
        self.file = folder / "weights"
        self.file.write_bytes(b"".join(self._chunks))

    @property
    def counts(self) -> list[int]:
        """Numbers of plaintexts of the layers that have any."""
        return [layer.plaintexts for layer in self.network.layers if layer.plaintexts]

    def run_inference(self, chunks: Iterable[bytes]) -> tuple[float, Values]:
        """Run one inference; return its seconds and its outputs."""
        started = time.perf_counter()
        result = self.network.run_network(self._server, self._input, chunks, self._bounds)
        took = time.perf_counter() - started
        return took, self.network.unpack_outputs(self._client.decrypt(result), 1)

    def max_error(self, outputs: Values) -> float:
        """Return the largest absolute difference from plaintext."""
        return float(np.abs(outputs - self._expected).max())

    def measure_stages(self) -> list[InferenceStage]:
        """Measure the stages of one run with all weights in memory.

        A stage is the time until the next plaintext is requested. The last stage reads nothing.
        """
        times = [time.perf_counter()]
        self.run_inference(_watch_chunks(self._chunks, times))
        times.append(time.perf_counter())
        spent = (after - before for before, after in itertools.pairwise(times))
        return [
            InferenceStage(size, took) for size, took in zip([*self.sizes, 0], spent, strict=True)
        ]

    def measure_loading(self, repeat: int) -> list[float]:
        """Measure seconds of loading each stage's plaintexts from bytes; costs exclude loading."""
        setting, first = self.network.setting, np.cumsum([0, *self.counts])
        medians = []
        for begin, end in itertools.pairwise(first):
            times = []
            for _ in range(repeat):
                started = time.perf_counter()
                for chunk in self._chunks[begin:end]:
                    setting.load_plaintext(chunk)
                times.append(time.perf_counter() - started)
            medians.append(float(np.median(times)))
        return medians


def _watch_chunks(chunks: Sequence[bytes], times: list[float]) -> Iterator[bytes]:
    """Yield the chunks, and append the time of each request to `times`."""
    for chunk in chunks:
        times.append(time.perf_counter())
        yield chunk


def validate_storage_rates(
    rates: Sequence[float], repeat: int, degree: int, progress: Any = lambda _, __: None
) -> Iterator[Measurement]:
    """Run the network at each rate, and compare the time with the prediction.

    Args:
        rates: the rates in GB/s.
        repeat: number of runs at each rate.
        degree: N.
        progress: receives the finished fraction and a text.

    Raises:
        ConfigError: the library is not installed.
    """
    progress(0.0, "encoding the weights")
    with tempfile.TemporaryDirectory() as folder:
        real = StorageValidation(degree, Path(folder))
        progress(0.2, "measuring the operations")
        counted = _predict_stage_costs(
            real, measured.measure_costs(degree), real.measure_loading(3)
        )
        with PlaintextReader(real.file, real.sizes, _AHEAD) as reader:
            for number, rate in enumerate(rates):
                progress(0.3 + 0.7 * number / len(rates), f"reading at {rate:g} GB/s")
                yield _measure_storage_rate(real, reader, rate, repeat, counted)


def _predict_stage_costs(
    real: StorageValidation, costs: Costs, loading: Sequence[float]
) -> list[InferenceStage]:
    """Predict the stages from counts and costs of operations, without a run."""
    stages: list[InferenceStage] = []
    sizes = iter(np.cumsum([0, *real.counts]))
    begin = next(sizes)
    seconds = 0.0
    for layer in measured.describe_network_layers(real.network).layers:
        operation_seconds = sum(o.count * costs(o.operation, o.level) for o in layer.operations)
        if not layer.weight_bytes:  # a square is computed before the next layer's first weight
            last = stages[-1]
            stages[-1] = InferenceStage(last.size, last.seconds + operation_seconds)
            continue
        end = next(sizes)
        seconds = operation_seconds + loading[len(stages)]
        stages.append(InferenceStage(sum(real.sizes[begin:end]), seconds))
        begin = end
    return stages


def _measure_storage_rate(
    real: StorageValidation,
    reader: PlaintextReader,
    rate: float,
    repeat: int,
    counted: list[InferenceStage],
) -> Measurement:
    times, reading, stages, error = [], [], [], 0.0
    for turn in range(repeat + 1):
        # one after the other, so that other load of the machine affects both equally
        stages.append(real.measure_stages())
        took, outputs = real.run_inference(reader.iterate_pieces(rate * GIGA))
        spent = reader.reading_seconds()
        if turn:  # the first warms up
            times.append(took)
            reading.append(spent)
        error = max(error, real.max_error(outputs))
    seconds = Seconds.from_times(times)
    in_memory = [
        InferenceStage(each[0].size, float(np.median([stage.seconds for stage in each])))
        for each in zip(*stages[1:], strict=True)
    ]
    ours, theirs = (
        program_order.inference_seconds([s.size for s in of], [s.seconds for s in of], rate * GIGA)
        for of in (in_memory, counted)
    )
    return Measurement(
        technology=TECHNOLOGY,
        job=VALIDATION,
        parameters={
            "gigabytes_per_second": rate,
            "weight_bytes": sum(real.sizes),
            **real.network.setting.parameters.as_json(),
        },
        seconds=seconds,
        figures={
            "reached_gigabytes_per_second": sum(real.sizes) / float(np.median(reading)) / GIGA,
            "in_memory_seconds": sum(stage.seconds for stage in in_memory),
            "predicted_seconds": ours,
            "difference": ours / seconds.median - 1,
            "predicted_from_costs_seconds": theirs,
            "difference_from_costs": theirs / seconds.median - 1,
            "max_error": error,
        },
        modeled=("predicted_seconds", "predicted_from_costs_seconds"),
        correct=error <= 0.05,
    )
