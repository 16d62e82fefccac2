"""The jobs without any protection, as the baseline of the comparison."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.compare import networks, tasks
from tfe_bench.benchmarks.technologies.compare.cells import (
    INPUTS,
    Cost,
    Protection,
    Traffic,
    build_cell,
    time_technology_task,
)
from tfe_bench.benchmarks.technologies.compare.networks import Networks
from tfe_bench.benchmarks.technologies.compare.tasks import (
    ComparedTask,
    ComparisonEffort,
    ComparisonInputs,
)
from tfe_bench.benchmarks.technologies.measurement import Measurement

# Timed batches of a training step, for jobs without an epoch.
TIMED_STEPS: Final = 8
TECHNOLOGY: Final = "plaintext"
PROTECTION: Final = Protection(
    parties=1,
    adversary="none: the server is believed",
    learns="the server learns inputs and results",
    leakage=INPUTS,
    trust="",
    security_bits=None,
)


class Plaintext:
    """A server that receives all data in plaintext.

    Args:
        effort, inputs, models: the same for all technologies.
    """

    def __init__(
        self, effort: ComparisonEffort, inputs: ComparisonInputs, models: Networks
    ) -> None:
        self._effort, self._inputs, self._networks = effort, inputs, models

    def measure_task(self, task: ComparedTask) -> Measurement:
        """Measure one task."""
        measure_job = getattr(self, f"_measure_{task.job.lower()}")
        cost: Cost = measure_job(task)
        return build_cell(TECHNOLOGY, task, PROTECTION, cost)

    def _measure_j1(self, task: ComparedTask) -> Cost:
        return self._measure_product(task, 1)

    def _measure_j2(self, task: ComparedTask) -> Cost:
        return self._measure_product(task, tasks.OUTPUTS)

    def _measure_product(self, task: ComparedTask, outputs: int) -> Cost:
        # BLAS has no integers; sums of 784 8-bit products are exact in double precision
        x = self._inputs.draw_vectors(task.batch).astype(np.float64)
        w = self._inputs.draw_weights(outputs).astype(np.float64)
        seconds, product = time_technology_task(lambda: x @ w, self._effort.repeat)
        exact = self._inputs.draw_vectors(task.batch) @ self._inputs.draw_weights(outputs)
        return _build_plaintext_cost(
            seconds, x.size, 4 * product.size, np.array_equal(product, exact), "numpy"
        )

    def _measure_j3(self, task: ComparedTask) -> Cost:
        network = self._networks.inference_model
        pictures, labels = self._networks.load_test(max(task.batch, self._effort.images))
        batch = pictures[: task.batch]
        seconds, outputs = time_technology_task(
            lambda: network.compute_logits(batch), self._effort.repeat
        )
        right = float(np.mean(network.compute_logits(pictures).argmax(1) == labels))
        more = {"accuracy": right, "accuracy_images": len(labels)}
        return _build_plaintext_cost(seconds, batch.size, 4 * outputs.size, None, "numpy", more)

    def _measure_j4(self, task: ComparedTask) -> Cost:
        x = self._inputs.draw_reals(task.batch)
        seconds, result = time_technology_task(
            lambda: evaluate_elementary(task, x), self._effort.repeat
        )
        return _build_plaintext_cost(seconds, 8 * x.size, 8 * result.size, None, "numpy")

    def _measure_j5(self, task: ComparedTask) -> Cost:
        x, y = self._networks.logistic_rows()
        return self._measure_training(task, self._networks.build_logistic(), x, y)

    def _measure_j6(self, task: ComparedTask) -> Cost:
        keys = self._inputs.draw_keys(task.batch)
        largest = task.variant.startswith("max")
        seconds, result = time_technology_task(
            (lambda: keys.max(keepdims=True)) if largest else (lambda: np.sort(keys)),
            self._effort.repeat,
        )
        return _build_plaintext_cost(seconds, keys.nbytes, result.nbytes, None, "numpy")

    def _measure_j7(self, task: ComparedTask) -> Cost:
        x, y = self._networks.training_rows(task.batch * TIMED_STEPS)
        return self._measure_training(task, self._networks.build_trained(), x, y)

    def _measure_training(self, task: ComparedTask, model: Any, x: Any, y: Any) -> Cost:
        """Measure training steps in Keras: an epoch or a part of it in J5, one step in J7."""
        model.compile(
            optimizer=networks.build_compared_optimizer(),
            loss=networks.build_compared_loss(task.job == "J5"),
        )
        whole = len(x) // task.batch
        measured_batches = min(whole, self._effort.steps or whole)
        times = []
        for step in range(measured_batches + 1):
            begin = (step % measured_batches) * task.batch
            rows = slice(begin, begin + task.batch)
            started = time.perf_counter()
            model.train_on_batch(x[rows], y[rows])
            times.append(time.perf_counter() - started)
        seconds = Seconds.from_times(times[1:])  # the first builds the graph
        epoch = task.job == "J5"
        size = int(np.prod(x.shape[1:])) * task.batch * (whole if epoch else 1)
        more = {}
        if epoch and measured_batches == whole:
            more["accuracy"] = self._networks.logistic_accuracy(model)
        cost = _build_plaintext_cost(seconds, size, 0, None, "Keras", more)
        return scale_to_epoch_cost(task, cost, measured_batches, whole) if epoch else cost


def scale_to_epoch_cost(task: ComparedTask, cost: Cost, measured_batches: int, whole: int) -> Cost:
    """Return the cost of an epoch of `whole` batches from `measured_batches` timed ones."""
    assert cost.seconds is not None, "batches were timed"
    all_measured = measured_batches == whole
    latency = sum(cost.seconds.all) if all_measured else cost.seconds.median * whole
    more = {**cost.more, "samples_per_second": whole * task.batch / latency}
    if all_measured:
        return replace(cost, latency=latency, more=more)
    more["extrapolated"] = f"{whole} batches, of which {measured_batches} were measured"
    modeled = (*cost.modeled, "latency_seconds", "samples_per_second")
    return replace(cost, latency=latency, more=more, modeled=modeled)


def evaluate_elementary(task: ComparedTask, x: tasks.Array) -> tasks.Array:
    """Compute exp, sigmoid, or softmax of rows of 8, in float64."""
    if task.variant.startswith("exp"):
        return np.exp(x)
    if task.variant.startswith("sigmoid"):
        return 1 / (1 + np.exp(-x))
    e = np.exp(x.reshape(-1, 8))
    probabilities: tasks.Array = e / e.sum(axis=1, keepdims=True)
    return probabilities


def _build_plaintext_cost(
    seconds: Seconds,
    up: int,
    down: int,
    correct: bool | None,
    by: str,
    more: dict[str, Any] | None = None,
) -> Cost:
    """Return the cost of one request and its response.

    Args:
        up, down: bytes that the client sends and receives; pictures and vectors have one byte
            per value.
        by: the library that computes.
    """
    return Cost(
        seconds=seconds,
        traffic=Traffic(up=int(up), down=int(down), rounds=2),
        correct=correct,
        more=more or {},
        parameters={"by": by},
    )
