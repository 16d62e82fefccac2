"""The job of a training, from its options: one way for `fit` and for the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfe_bench.cluster import profiles
from tfe_bench.errors import UsageError
from tfe_bench.models.datasets.sources import DatasetRef
from tfe_bench.models.training import step
from tfe_bench.models.training.examples import choose_training_chunk
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.stopping import EarlyStoppingRule
from tfe_bench.models.training.train_options import TrainOptions
from tfe_bench.models.training.training_job import CheckpointOptions, TrainingJob


def build_training_job(
    recipe: Recipe,
    options: TrainOptions,
    rows: int,
    test: int = 0,
    source: DatasetRef | None = None,
    deploy: Mapping[str, Any] | None = None,
    stopping: EarlyStoppingRule | None = None,
    snapshots: bool = False,
) -> TrainingJob:
    """Build the job; TrainingJob explains the arguments.

    Raises:
        UsageError: an option is invalid, or options contradict each other.
    """
    saving = None
    if options.checkpoint is not None:
        saving = CheckpointOptions(options.checkpoint, options.checkpoint_every, options.restart)
    is_chunked = options.prefetch and source is None
    return TrainingJob(
        recipe,
        options.epochs,
        rows,
        options.seed,
        profile=options.profile,
        steps=options.steps,
        test=test,
        source=source,
        holdout=options.holdout,
        saving=saving,
        deploy=deploy,
        guard=options.guard_every,
        reveal_loss=options.reveal_loss,
        trace=options.trace,
        chunk=choose_training_chunk(recipe, rows) if is_chunked else 0,
        first=options.initial_epoch,
        shuffle=options.shuffle,
        stopping=stopping,
        snapshots=snapshots,
        watch=choose_training_range_checks(
            recipe, options.profile, options.reveal_loss, options.check_range
        ),
    )


def choose_training_range_checks(
    recipe: Recipe, profile: str, loss: bool, requested: bool | None
) -> str:
    """Choose the values of a training whose range is checked.

    Args:
        requested: True for all, False for none; None: as far as that costs little
            (step.choose_step_range_checks).

    Raises:
        UsageError: requested has another type, or the profile is unknown.
    """
    if requested is None:
        return step.choose_step_range_checks(
            recipe, step.tune_setting(recipe, profiles.get_profile(profile).plan), loss
        )
    if type(requested) is not bool:
        raise UsageError(
            f"Expected None, True or False as check_range. Received: {requested!r}.",
            code="wrong-type",
            operation="check_range",
            received=requested,
        )
    return step.ALL if requested else step.NOTHING
