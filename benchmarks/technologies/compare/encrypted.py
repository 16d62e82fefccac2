"""The jobs under homomorphic encryption, and a projection of its network to a storage device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tfe_bench.benchmarks.technologies.compare.cells import (
    NOTHING,
    Cost,
    Protection,
    Traffic,
    build_cell,
    figures_of_technology_job,
    unsupported_technology_cell,
)
from tfe_bench.benchmarks.technologies.compare.networks import Networks
from tfe_bench.benchmarks.technologies.compare.tasks import (
    ComparedTask,
    ComparisonEffort,
    ComparisonInputs,
)
from tfe_bench.benchmarks.technologies.homomorphic import jobs
from tfe_bench.benchmarks.technologies.libraries import import_library
from tfe_bench.benchmarks.technologies.measurement import Measurement
from tfe_bench.benchmarks.technologies.storage import device as devices
from tfe_bench.benchmarks.technologies.storage import measured, program_order
from tfe_bench.benchmarks.technologies.storage import model as models

HOMOMORPHIC, STORAGE = "homomorphic", "storage"
_LEARNS: Final = "the client alone learns the result; the server keeps its weights"
_DEVICE: Final = "csd"
_QUESTION_AND_ANSWER: Final = 2


def _describe_protection(parameters: Mapping[str, Any]) -> Protection:
    return Protection(
        parties=1,
        adversary="semi-honest server",
        learns=_LEARNS,
        leakage=NOTHING,
        trust="one-server",
        security_bits=int(parameters["security_bits"]),
    )


class Homomorphic:
    """Homomorphic encryption: a client with a key, and a server that computes on ciphertexts.

    Args:
        effort, inputs, models: the same for all technologies.

    Raises:
        ConfigError: the library is not installed.
    """

    def __init__(
        self, effort: ComparisonEffort, inputs: ComparisonInputs, models: Networks
    ) -> None:
        import_library("seal", "Homomorphic encryption")
        self._effort, self._inputs, self._networks = effort, inputs, models
        self._known: dict[ComparedTask, Measurement] = {}

    def measure_task(self, task: ComparedTask) -> Measurement:
        """Measure one task."""
        if (reason := _homomorphic_obstacle(task)) is not None:
            return unsupported_technology_cell(HOMOMORPHIC, task, reason)
        measurement = self.measure_job(task)
        cost = Cost(
            seconds=measurement.seconds,
            traffic=measure_traffic(measurement),
            correct=measurement.correct,
            more=_read_homomorphic_figures(measurement),
            parameters=measurement.parameters,
        )
        return build_cell(HOMOMORPHIC, task, _describe_protection(measurement.parameters), cost)

    def measure_job(self, task: ComparedTask) -> Measurement:
        """Run the homomorphic benchmark of a task; a repeated call returns the first result."""
        if task not in self._known:
            self._known[task] = self._run_task(task)
        return self._known[task]

    def _run_task(self, task: ComparedTask) -> Measurement:
        quick = self._effort.steps is not None
        if task.job == "J1":
            return jobs.run_homomorphic_product(quick)
        if task.job == "J2":
            return jobs.run_homomorphic_dense(task.batch, quick)
        if task.job == "J3":
            trained, folder = self._networks.inference_model, self._inputs.folder
            return jobs.run_homomorphic_network(task.batch, quick, folder=folder, trained=trained)
        return jobs.run_polynomial(task.variant.partition(" ")[0], quick)


def _homomorphic_obstacle(task: ComparedTask) -> str | None:
    name = task.variant.partition(" ")[0]
    return jobs.NOT_SUPPORTED.get(name) or jobs.NOT_SUPPORTED.get(task.job)


def measure_traffic(measurement: Measurement) -> Traffic:
    """Return the traffic of one request and one response."""
    return Traffic(
        up=int(measurement.figures["bytes_up"]),
        down=int(measurement.figures["bytes_down"]),
        rounds=_QUESTION_AND_ANSWER,
    )


def _read_homomorphic_figures(measurement: Measurement) -> dict[str, Any]:
    figures = figures_of_technology_job(measurement)
    if "n" in measurement.parameters:  # all slots of a ciphertext are computed
        figures["computed_values"] = measurement.parameters["n"]
    return figures


class Storage:
    """The network of J3 on a computational storage device: a projection.

    Costs of operations are measured on this machine and divided by the speedup in the device's
    profile. The device reads weights and keys again for every ciphertext.
    """

    def __init__(self, homomorphic: Homomorphic) -> None:
        self._homomorphic = homomorphic
        self._costs: models.Costs | None = None

    def measure_task(self, task: ComparedTask) -> Measurement:
        """Measure one task."""
        if task.job != "J3":
            reason = (
                "A storage device helps where weights are too many for memory: it is projected "
                "for the network (J3) alone."
            )
            return unsupported_technology_cell(STORAGE, task, reason)
        job = self._homomorphic.measure_job(task)
        degree, images = int(job.parameters["degree"]), int(job.figures["images_per_ciphertext"])
        if self._costs is None:
            self._costs = measured.measure_costs(degree)
        model, device = measured.build_cnn(degree, images), devices.load_device(_DEVICE)
        compute = models.device_compute_seconds(model, device, self._costs)
        sizes = [layer.bytes for layer in model.layers]
        run_seconds = program_order.inference_seconds(sizes, compute, device.shared_device_rate(1))
        runs = math.ceil(task.batch / images)
        client = float(job.figures["encrypt_seconds"]) + float(job.figures["decrypt_seconds"])
        cost = Cost(
            seconds=None,
            latency=client + runs * run_seconds,
            traffic=measure_traffic(job),
            more={
                "key_bytes": round(model.key_bytes),
                "device_seconds": runs * run_seconds,
                "client_seconds": client,
                "device": device.name,
                "speedup": device.speedup["all"],
            },
            modeled=("latency_seconds", "samples_per_second", "device_seconds"),
            parameters={**job.parameters, "device": device.name},
        )
        return build_cell(STORAGE, task, _describe_protection(job.parameters), cost)
