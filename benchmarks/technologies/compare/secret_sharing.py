"""The jobs by secret sharing: three workers of this project on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tfe_bench.benchmarks import prediction
from tfe_bench.benchmarks.records import Seconds
from tfe_bench.benchmarks.technologies.compare import networks, tasks
from tfe_bench.benchmarks.technologies.compare.cells import (
    NOTHING,
    Cost,
    Protection,
    Traffic,
    build_cell,
)
from tfe_bench.benchmarks.technologies.compare.networks import Networks
from tfe_bench.benchmarks.technologies.compare.plaintext import (
    TIMED_STEPS,
    evaluate_elementary,
    scale_to_epoch_cost,
)
from tfe_bench.benchmarks.technologies.compare.tasks import (
    ComparedTask,
    ComparisonEffort,
    ComparisonInputs,
)
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.cluster.requests import AnyInput, JobResult, PrivateInput

TECHNOLOGY: Final = "secret-sharing"
PROTECTION: Final = Protection(
    parties=3,
    adversary="semi-honest, one of three",
    learns="the client alone learns the result; inputs, weights and results are shared",
    leakage=NOTHING,
    trust="three-servers",
    security_bits=128,  # of AES, which generates the masks
)
# Up: a masked word for each of two evaluators. Down: their words, and the dealer's two masks.
_UP_WORDS: Final = 2
_DOWN_WORDS: Final = 4
_WORD: Final = 8
# Tolerances for fixed point with 16 fractional bits, whose errors accumulate in sums.
_TOLERANCE: Final = 2e-3
_LOGITS_TOLERANCE: Final = 1e-2


class SecretSharing:
    """Secret sharing by three workers.

    Args:
        cluster: runs the jobs.
        effort, inputs, models: the same for all technologies.
    """

    def __init__(
        self, cluster: Any, effort: ComparisonEffort, inputs: ComparisonInputs, models: Networks
    ) -> None:
        self._cluster, self._effort = cluster, effort
        self._inputs, self._networks = inputs, models

    def measure_task(self, task: ComparedTask) -> Measurement:
        """Measure one task."""
        measure_job = getattr(self, f"_measure_{task.job.lower()}")
        cost: Cost = measure_job(task)
        return build_cell(TECHNOLOGY, task, PROTECTION, cost)

    def _run_program(
        self, program: str, parameters: Mapping[str, Any], inputs: Mapping[str, AnyInput]
    ) -> JobResult:
        timing = {"repeat": self._effort.repeat, "warm_up": 1}
        result: JobResult = self._cluster.run(program, {**parameters, **timing}, dict(inputs))
        return result

    def _measure_j1(self, task: ComparedTask) -> Cost:
        return self._measure_product(task, 1)

    def _measure_j2(self, task: ComparedTask) -> Cost:
        return self._measure_product(task, tasks.OUTPUTS)

    def _measure_product(self, task: ComparedTask, outputs: int) -> Cost:
        x, w = self._inputs.draw_vectors(task.batch), self._inputs.draw_weights(outputs)
        shared = {"x": PrivateInput(x), "y": PrivateInput(w)}
        result = self._run_program("matmul", {}, shared)
        right = bool(np.array_equal(result.outputs["product"], x @ w))
        return _build_secret_sharing_cost(
            result, x.size, task.batch * outputs, right, {"max_error": 0.0 if right else 1.0}
        )

    def _measure_j3(self, task: ComparedTask) -> Cost:
        from tfe_bench.models.inference.private import convert

        count = max(task.batch, self._effort.images) if task.batch > 1 else 1
        pictures, labels = self._networks.load_test(count)
        private = convert(self._networks.keras_inference(), self._networks.load_sample())
        weights = private.shared_weights()
        samples = pictures[: task.batch, :, :, None]
        parameters = private.parameters("local", task.batch)
        result = self._run_program(
            "predict", parameters, {**weights, **private.shared_inputs(samples)}
        )
        outputs = private.decode(result)
        plain = self._networks.inference_model.compute_logits(pictures[: task.batch])
        error = float(np.abs(outputs - plain).max())
        more: dict[str, Any] = {"max_error": error}
        if count > task.batch:
            rest = self._cluster.run(
                "predict",
                {**parameters, "repeat": 1, "warm_up": 0},
                {**weights, **private.shared_inputs(pictures[..., None])},
            )
            outputs = private.decode(rest)
            plain = self._networks.inference_model.compute_logits(pictures)
        if task.batch > 1:
            more["accuracy"] = float(np.mean(outputs.argmax(1) == labels))
            more["accuracy_plain"] = float(np.mean(plain.argmax(1) == labels))
            more["accuracy_images"] = count
        right = error <= _LOGITS_TOLERANCE * float(np.ptp(plain))
        return _build_secret_sharing_cost(result, samples.size, task.batch * 10, right, more)

    def _measure_j4(self, task: ComparedTask) -> Cost:
        from tfe_bench.protocols.session.fixedpoint import FixedPoint

        name = task.variant.partition(" ")[0]
        x = self._inputs.draw_reals(task.batch)
        shape = (-1, 8) if name == "softmax" else (-1,)
        ring = FixedPoint(16).encode(x.reshape(shape))
        result = self._run_program("operation", {"operation": name}, {"x": PrivateInput(ring, 16)})
        decoded = FixedPoint(result.fractional_bits["result"]).decode(result.outputs["result"])
        exact = evaluate_elementary(task, x).reshape(decoded.shape)
        errors = np.abs(decoded - exact) / np.maximum(1, np.abs(exact))
        worst = float(errors.max())
        return _build_secret_sharing_cost(
            result, x.size, x.size, worst <= _TOLERANCE, {"max_error": worst}
        )

    def _measure_j5(self, task: ComparedTask) -> Cost:
        x, y = self._networks.logistic_rows()
        whole = len(x) // task.batch
        measured_batches = min(whole, self._effort.steps or whole)
        model = self._networks.build_logistic()
        cost = self._measure_training(task, model, x, y, measured_batches, (x.size, whole))
        if measured_batches == whole:
            right = self._networks.logistic_accuracy(model)
            cost = replace(cost, more={**cost.more, "accuracy": right})
        return scale_to_epoch_cost(task, cost, measured_batches, whole)

    def _measure_j6(self, task: ComparedTask) -> Cost:
        keys = self._inputs.draw_keys(task.batch)
        if task.variant.startswith("max"):
            # differences of compared values must fit into the ring
            row = {"x": PrivateInput(keys.reshape(1, -1) >> 2)}
            result = self._run_program("operation", {"operation": "max"}, row)
            right = int(result.outputs["result"].reshape(-1)[0]) == int((keys >> 2).max())
            return _build_secret_sharing_cost(result, keys.size, 1, right, {})
        result = self._run_program("sort", {}, {"keys": PrivateInput(keys)})
        right = bool(np.array_equal(result.outputs["keys"], np.sort(keys)))
        return _build_secret_sharing_cost(result, keys.size, 2 * keys.size, right, {})

    def _measure_j7(self, task: ComparedTask) -> Cost:
        steps = self._effort.steps or TIMED_STEPS
        x, y = self._networks.training_rows(task.batch * steps)
        one = (x[: task.batch].size, 1)
        return self._measure_training(task, self._networks.build_trained(), x, y, steps, one)

    def _measure_training(
        self,
        task: ComparedTask,
        model: Any,
        x: Any,
        y: Any,
        measured_batches: int,
        size: tuple[int, int],
    ) -> Cost:
        """Measure steps of a private training, after a first one that builds the graph.

        Args:
            measured_batches: number of measured steps.
            size: number of elements that a client shares, and number of steps of the task.
        """
        from tfe_bench.models.training.trainable import trainable

        private = trainable(model)
        private.compile(
            networks.build_compared_optimizer(), networks.build_compared_loss(task.job == "J5")
        )
        used = slice(task.batch * (measured_batches + 1))
        history = private.fit(
            self._cluster, x[used], y[used], task.batch, 2, 0, steps=measured_batches + 1, seed=1
        )
        return _build_secret_sharing_cost(history.result, size[0], 0, None, {}, steps=size[1])


def _build_secret_sharing_cost(
    result: JobResult,
    up: int,
    down: int,
    correct: bool | None,
    more: Mapping[str, Any],
    steps: int | None = None,
) -> Cost:
    """Return the cost of a job.

    Args:
        up, down: number of elements that a client shares and receives.
        steps: number of steps of a training, each with the messages of the counted one; None for
            other jobs.
    """
    measured = result.measured
    times = prediction.measured_run_seconds(measured)
    median = float(np.median(times))
    forecast = prediction.predict_run_times(measured, "local", median)
    # The breakdown of the time is known for the last run alone.  The last step of a training also
    # ends it, so it does not represent the others: all of their time counts as computation.
    computing = forecast["compute_seconds"] if steps is None else median * steps
    repetitions = steps or 1
    sent = [sum(m["frames"]) for m in measured]
    peak = max(int(m["peak_memory"]) for m in measured)
    return Cost(
        seconds=Seconds.from_times(times),
        compute=computing,
        traffic=Traffic(
            up=_UP_WORDS * _WORD * up,
            down=_DOWN_WORDS * _WORD * down,
            between=max(sent) * repetitions,
            total=(_UP_WORDS * up + _DOWN_WORDS * down) * _WORD + sum(sent) * repetitions,
            rounds=forecast["rounds"] * repetitions + 2,
        ),
        correct=correct,
        more={
            "setup_seconds": max(float(m["build_seconds"]) for m in measured),
            "share_seconds": result.share_seconds,
            "memory_bytes": peak,
            "key_bytes": 0,
            **more,
        },
        parameters={"protocol": str(measured[0]["variant"]), "ring_bits": 64},
    )
