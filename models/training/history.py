"""History of a private training in the terms of Keras."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.cluster.requests import JobResult
from tfe_bench.errors import RangeError
from tfe_bench.models.training import step
from tfe_bench.models.training.evaluate import LARGEST_WEIGHT
from tfe_bench.models.training.state import list_training_state_specs
from tfe_bench.models.training.training_job import RANGE, TrainingJob, training_state_name
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.models.convert.tables import Table
    from tfe_bench.models.training.recipe import Recipe


@dataclass(eq=False)
class History:
    """History of a training, as Keras' History.

    Attributes:
        history: lists with one entry for each epoch: "learning_rate", "val_accuracy" (or "val_mse")
            if it was evaluated, and "loss" if it was revealed (for this job's epochs).
        epoch: numbers of these epochs, from 0.
        model: the Keras model with the trained weights; None if they stayed at the workers.
        seconds_per_batch: median over this job's steps, None without steps.
        first_step, steps: step at which this job began (0, or the checkpoint's step), and at which
            it ended.
        checked: values whose range was checked: "gradients" (with their squares, and the values of
            layers), "values" of layers alone, or "" for none.
        result: result of the job, with its cost.
        table: columns, scales and classes of the owners' rows; None if the owners stated none.
            `table.in_units(model)` returns a model that accepts unscaled columns.
    """

    history: dict[str, list[float]]
    epoch: list[int]
    model: Any
    seconds_per_batch: float | None
    first_step: int
    steps: int
    result: JobResult = field(repr=False)
    table: Table | None = None
    checked: str = ""


def build_training_history(job: TrainingJob, result: JobResult) -> History:
    """Build the history of a job without its model."""
    measured = result.measured[0]
    recipe, end_step = job.recipe, int(measured["steps"])
    steps_per_epoch = job.steps_per_epoch or 1
    scored = [int(number) for number in measured["scored"]]
    ends = [
        *range(steps_per_epoch, end_step + 1, steps_per_epoch),
        *([end_step] if end_step % steps_per_epoch else []),
    ]
    metrics: dict[str, list[float]] = {}
    if "scores" in result.outputs:
        ends = scored
        values = FixedPoint(result.fractional_bits["scores"]).decode(result.outputs["scores"])
        tested = job.test or job.holdout
        name = evaluation_score_name(recipe)
        samples = tested * int(np.prod(recipe.output_shape)) if name == "val_mse" else tested
        metrics[name] = [float(v) / samples for v in np.asarray(values).reshape(-1)]
    if measured["losses"]:
        metrics["loss"] = [float(v) for v in measured["losses"]]
    if job.total_steps:
        rates = recipe.optimizer.schedule
        metrics["learning_rate"] = [float(rates.compute_rate(max(0, end - 1))) for end in ends]
    times = [max(turn) for turn in zip(*(m["seconds"] for m in result.measured), strict=True)]
    return History(
        metrics,
        [job.first + max(0, (end - 1) // steps_per_epoch) for end in ends],
        None,
        float(np.median(times)) if times else None,
        int(measured["first_step"]),
        end_step,
        result,
        checked=job.watch,
    )


def check_ranges(job: TrainingJob, result: JobResult) -> None:
    """Reject the result of a training in which a value left its range.

    Raises:
        RangeError: a value left its range; the text names the values and the step.
    """
    recipe, measured = job.recipe, result.measured[0]
    removal_hint = (
        f" Remove the model {job.deploy['name']!r} that it has deployed." if job.deploy else ""
    )
    advice = f"Use a lower learning rate, or scale features and labels.{removal_hint}"
    flags, ends = result.outputs.get(RANGE), measured["watched"]
    if flags is not None and np.any(flags):
        setting = step.tune_setting(recipe, profiles.get_profile(job.profile).plan)
        names = step.list_step_range_checks(recipe, setting, job.reveal_loss, job.watch)
        out_of_range = np.asarray(flags).reshape(len(ends), len(names)) != 0
        first = int(np.flatnonzero(out_of_range.any(1))[0])
        begin = (ends[first - 1] if first else 0) + 1
        at = f"in step {begin}" if begin >= ends[first] else f"in steps {begin} to {ends[first]}"
        name = names[int(np.flatnonzero(out_of_range[first])[0])]
        subject = "gradients of" if name in recipe.order else "values of layer"
        raise RangeError(
            f"A value of the training left the range of fixed point {at}, first the {subject} "
            f"{name!r}. {advice}",
            code="left-planned-range",
            operation=name,
        )
    for i, spec in enumerate(list_training_state_specs(recipe)):
        array = result.outputs.get(training_state_name(i))
        if array is not None:
            size = np.abs(FixedPoint(spec.fractional_bits).decode(array)).max(initial=0.0)
            if not size < LARGEST_WEIGHT:
                raise RangeError(
                    f"The training diverges: weights {spec.key!r} left |w| < {LARGEST_WEIGHT:g} "
                    f"by step {measured['steps']}. {advice}",
                    code="training-diverged",
                    operation=spec.key,
                    received=measured["steps"],
                )


def evaluation_score_name(recipe: Recipe) -> str:
    """Return the name of the evaluation score in a history."""
    return "val_accuracy" if recipe.loss.counts_answers else "val_mse"


def print_epochs(history: History, epochs: int) -> None:
    """Print a line for each epoch, as Keras does."""
    for place, epoch in enumerate(history.epoch):
        entries = [f"{k}: {v[place]:.4g}" for k, v in history.history.items() if place < len(v)]
        print(f"Epoch {epoch + 1}/{epochs} - {' - '.join(entries)}")
