"""The jobs by functional encryption: an authority's keys reveal inner products to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tfe_bench.benchmarks.technologies.compare import cells
from tfe_bench.benchmarks.technologies.compare.tasks import (
    LENGTH,
    ComparedTask,
    ComparisonEffort,
    ComparisonInputs,
)
from tfe_bench.benchmarks.technologies.functional import jobs, training
from tfe_bench.benchmarks.technologies.functional.curve_library import load_curve_library
from tfe_bench.benchmarks.technologies.measurement import Measurement

TECHNOLOGY: Final = "functional"
# Epochs of plaintext training before the measured step; a full epoch would not change the time.
_BEFORE: Final = 0.02
_BATCHES: Final = 2

NOT_SUPPORTED: Final[Mapping[str, str]] = {
    "J4": (
        "Keys are for inner products: a function that is not linear can only be computed by the "
        "server on a result that it sees, which then protects nothing."
    ),
    "J5": (
        "Each step takes keys for other weights, and a key works on every row: those of 784 steps, "
        "which is before the second epoch ends, show all rows. J7 has what a step costs."
    ),
    "J6": "Comparisons are not linear, and what decides them would be in the clear.",
}


class Functional:
    """Functional encryption: one server that holds keys of an authority.

    Raises:
        OpsMissing: the curve cannot be compiled.
    """

    def __init__(self, effort: ComparisonEffort, inputs: ComparisonInputs) -> None:
        load_curve_library()
        self._effort, self._inputs = effort, inputs

    def measure_task(self, task: ComparedTask) -> Measurement:
        """Measure one task."""
        if (reason := NOT_SUPPORTED.get(task.job)) is not None:
            return cells.unsupported_technology_cell(TECHNOLOGY, task, reason)
        measurement = self._run_task(task)
        cost = cells.Cost(
            seconds=measurement.seconds,
            # the server obtains the results: it returns nothing
            traffic=cells.Traffic(up=int(measurement.figures["bytes_up"]), down=0, rounds=1),
            correct=measurement.correct,
            more=_read_functional_figures(task, measurement),
            parameters={k: v for k, v in measurement.parameters.items() if k != "phases"},
        )
        return cells.build_cell(TECHNOLOGY, task, _describe_protection(measurement), cost)

    def _run_task(self, task: ComparedTask) -> Measurement:
        quick, folder = self._effort.steps is not None, self._inputs.folder
        if task.job == "J1":
            return jobs.run_functional_product(quick)
        if task.job == "J2":
            return jobs.run_functional_dense(task.batch, quick)
        if task.job == "J3":
            return jobs.run_functional_network(quick, folder, task.batch)
        return training.measure_training(
            batches=1 if quick else _BATCHES,
            threads=jobs.count_processors(),
            allowed=True,
            data=folder,
            epochs=_BEFORE,
        )


def _describe_protection(measurement: Measurement) -> cells.Protection:
    everything = int(measurement.figures["key_rank"]) >= LENGTH
    return cells.Protection(
        parties=2,
        adversary="semi-honest server that does not collude with the authority",
        learns=(
            "the server learns the first layer's outputs, and from them the inputs"
            if everything
            else "the server learns the results; the authority could decrypt everything"
        ),
        leakage=cells.INPUTS if everything else cells.RESULTS,
        trust="key-authority",
        security_bits=int(measurement.parameters["security_bits"]),
    )


def _read_functional_figures(task: ComparedTask, measurement: Measurement) -> dict[str, Any]:
    rank = int(measurement.figures["key_rank"])
    figures = {
        **cells.figures_of_technology_job(measurement),
        "key_rank": rank,
        "key_rank_over_length": rank / LENGTH,
    }
    del figures["memory_bytes"]  # it includes all other work of this process
    if task.job == "J7":  # the training has hardly begun
        figures = {
            name: value for name, value in figures.items() if not name.startswith("accuracy")
        }
    return figures
