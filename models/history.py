"""What became of a training, in Keras' words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster.requests import JobResult
from tfe_bench.models.training_job import TrainingJob
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.models.tables import Table
    from tfe_bench.models.training.recipe import Recipe


@dataclass(eq=False)
class History:
    """What became of a training, as Keras' History says it.

    Attributes:
        history: lists with one entry for each epoch: "learning_rate", "val_accuracy" (or "val_mse")
            where it was evaluated, and "loss" where it was revealed (of this job's epochs).
        epoch: these epochs, counted from 0.
        model: the Keras model with the trained weights; None if they stayed at the workers.
        seconds_per_batch: median over this job's steps, None if it ran none.
        first_step, steps: where this job began (0, or the checkpoint's step), and where it ended.
        result: of the job: what it cost.
        table: of owners' rows: their columns, scales and classes; None where they did not say.
            `table.in_units(model)` takes the columns as they were.
    """

    history: dict[str, list[float]]
    epoch: list[int]
    model: Any
    seconds_per_batch: float | None
    first_step: int
    steps: int
    result: JobResult = field(repr=False)
    table: Table | None = None


def history_of(job: TrainingJob, result: JobResult) -> History:
    """What a job has told of its training; the model is not there yet."""
    measured = result.measured[0]
    recipe, done = job.recipe, int(measured["steps"])
    per = job.steps_per_epoch or 1
    scored = [int(step) for step in measured["scored"]]
    ends = [*range(per, done + 1, per), *([done] if done % per else [])]
    found: dict[str, list[float]] = {}
    if "scores" in result.outputs:
        ends = scored
        values = FixedPoint(result.fractional_bits["scores"]).decode(result.outputs["scores"])
        tested = job.test or job.holdout
        name = score_name(recipe)
        samples = tested * int(np.prod(recipe.output_shape)) if name == "val_mse" else tested
        found[name] = [float(v) / samples for v in np.asarray(values).reshape(-1)]
    if measured["losses"]:
        found["loss"] = [float(v) for v in measured["losses"]]
    if job.total:
        rates = recipe.optimizer.schedule
        found["learning_rate"] = [float(rates.rate(max(0, step - 1))) for step in ends]
    times = [max(turn) for turn in zip(*(m["seconds"] for m in result.measured), strict=True)]
    return History(
        found,
        [job.first + max(0, (step - 1) // per) for step in ends],
        None,
        float(np.median(times)) if times else None,
        int(measured["first_step"]),
        done,
        result,
    )


def score_name(recipe: Recipe) -> str:
    """What an evaluation is called in a history."""
    return "val_accuracy" if recipe.loss.counted else "val_mse"


def print_epochs(history: History, epochs: int) -> None:
    """A line for each epoch, as Keras prints them."""
    for place, epoch in enumerate(history.epoch):
        told = [f"{k}: {v[place]:.4g}" for k, v in history.history.items() if place < len(v)]
        print(f"Epoch {epoch + 1}/{epochs} - {' - '.join(told)}")
