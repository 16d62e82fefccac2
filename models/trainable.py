"""From a Keras model to private training: `trainable`, and what it gives."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import JobResult, LateInput, PrivateInput, input_spec
from tfe_bench.cluster.stored import check_name
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models import keras_arguments, sources
from tfe_bench.models.history import History, build_history, check_ranges, print_epochs, score_name
from tfe_bench.models.progress import Progress, check_verbose, show_progress
from tfe_bench.models.rows import (
    Examples,
    check_counts,
    choose_chunk,
    combine_weights,
    share_examples,
    split_validation,
    with_weight_bound,
)
from tfe_bench.models.training.losses import read_keras_loss
from tfe_bench.models.training_job import (
    CheckpointOptions,
    TrainingJob,
    choose_range_checks,
    snapshot_name,
    state_name,
)
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.models.training.callbacks import Callbacks
    from tfe_bench.models.training.recipe import Recipe

# Rows of a step, as Keras has it.
DEFAULT_BATCH = 32
# What an evaluation tells: of classes, and of numbers.
_METRICS = (
    (
        "accuracy",
        "acc",
        "binary_accuracy",
        "categorical_accuracy",
        "sparse_categorical_accuracy",
    ),
    ("mse", "MSE", "mean_squared_error"),
)
# A weight starts within this, and so far from where fixed point ends.
_LARGEST_WEIGHT = 2.0**10


class Trainable:
    """A model that three workers train without seeing it, or what it learns from.

    Attributes:
        keras: the Keras model (or path of one, or a Graph) as it was given; `fit` puts trained
            weights back into a Keras model.
    """

    def __init__(self, model: Any) -> None:
        self.keras = model
        self._start: Any = None
        self._compiled: tuple[Any, Any, int] | None = None
        self._metrics: list[Any] = []
        self._deployed: str | None = None

    def compile(
        self,
        optimizer: Any = "sgd",
        loss: Any = None,
        *,
        metrics: Any = None,
        seed: int = 0,
        **other: Any,
    ) -> None:
        """Says how the model is trained; nothing leaves this process.

        Args:
            optimizer: keras.optimizers.SGD or Adam with their schedules, or "sgd", "adam",
                "amsgrad" with Keras' defaults.
            loss: a Keras loss or its name, as in Keras: a name of a cross-entropy means that the
                model ends in softmax or sigmoid, from_logits=True that it does not.
            metrics: ["accuracy"] of classes, ["mse"] of numbers: of the rows that `fit` validates
                on, as "val_accuracy" or "val_mse"; it then wants such rows.
            seed: of Dropout's masks, which are public.
            other: of Keras' further arguments those that say nothing (None or False).

        Raises:
            UsageError: layers, an optimizer, a loss, metrics or arguments that private training
                does not have; all that is not supported is named.
        """
        from tfe_bench.models.kinds.operations import Setting
        from tfe_bench.models.training import step
        from tfe_bench.models.training.recipe import Recipe

        keras_arguments.reject_arguments(
            "compile",
            other,
            keras_arguments.UNSUPPORTED_COMPILE,
            ("optimizer", "loss", "metrics", "seed"),
        )
        recipe = Recipe.build(self.keras, optimizer, loss, seed=seed)
        step.step_cost(recipe, Setting())  # every layer runs once, with a party that counts
        requested_metrics = [metrics] if isinstance(metrics, str) else list(metrics or ())
        metric_names = _METRICS[not recipe.loss.counts_answers]
        if any(not isinstance(m, str) or m not in metric_names for m in requested_metrics):
            raise UsageError(
                f"An evaluation with {recipe.loss.name} tells {metric_names[0]}. Received: metrics "
                f"{str(requested_metrics)[:80]}."
            )
        self._compiled, self._metrics = (optimizer, loss, seed), requested_metrics

    def initial_model(self) -> Any:
        """The Keras model with the weights that the last training began with."""
        from tfe_bench.models.training import reader

        return reader.copy_model(self._keras_model(), self._start)

    def _keras_model(self) -> Any:
        """The Keras model, read if it was given as a file."""
        from tfe_bench.models import from_keras

        if isinstance(self.keras, (str, Path)):
            self.keras = from_keras.load_model(self.keras)
        return self.keras

    def recipe(self, batch_size: int = DEFAULT_BATCH) -> Recipe:
        """What is public about the training.

        Raises:
            UsageError: the model was not compiled.
        """
        from tfe_bench.models.training.recipe import Recipe

        if self._compiled is None:
            raise UsageError("Compile the model first: private.compile(optimizer, loss).")
        optimizer, loss, seed = self._compiled
        return Recipe.build(self.keras, optimizer, loss, batch_size, seed)

    def fit(
        self,
        cluster: Client,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: tuple[Any, Any] | None = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        *,
        steps: int | None = None,
        rows_of: Sequence[str] | None = None,
        columns_of: Sequence[str] | None = None,
        labels_of: str | None = None,
        holdout: int = 0,
        seed: int = 1,
        checkpoint: str | None = None,
        checkpoint_every: int = 100,
        restart: bool = False,
        deploy: str | None = None,
        deploy_for: Sequence[str] = (),
        reveal_loss: bool = False,
        guard_every: int = 0,
        check_range: bool | None = None,
        prefetch: bool = True,
        profile: str | None = None,
        progress: Progress | None = None,
        **other: Any,
    ) -> History:
        """Trains on private rows, this client's own or those that owners provided.

        The arguments up to initial_epoch are Keras' own, in their order and with their meaning.

        Args:
            cluster: a LocalCluster, a Cluster or a Client.
            x, y: features and labels as Keras takes them; left out with rows_of or columns_of.
            batch_size: rows of a step; None: 32.  Rows that fill no batch at an epoch's end are
                left out of it.
            epochs: the epoch to end before, as Keras counts them; each goes through all rows, in
                an order of its own from `seed`, which is public.
            verbose: "auto" or 1 shows a bar in a terminal or a notebook, 2 a line for each epoch
                when all is over, 0 nothing.
            callbacks: Keras' callbacks, called when the training is over with what is known of
                each epoch (training/callbacks.py); LearningRateScheduler acts in time, and
                EarlyStopping(monitor="loss") does with reveal_loss.
            validation_split: the last part of x and y, to evaluate on instead of to train on.
            validation_data: (x, y) to evaluate on after each epoch: this client alone learns how
                many answers are right.
            shuffle: False takes the rows as they come in every epoch.
            class_weight, sample_weight: what samples count; private as labels are.
            initial_epoch: the number of the first epoch.
            steps: ends the training after so many steps in all.
            rows_of: names of data sets whose rows are put together (horizontal split).
            columns_of: names of data sets whose columns are put together (vertical split).
            labels_of: the data set with the labels, with columns_of.
            holdout: rows of these data sets to evaluate on instead of to train on.
            checkpoint: a name under which the workers keep their shares every `checkpoint_every`
                steps, and go on from when the same fit is asked for again.
            restart: forgets the checkpoint first.
            deploy: keeps the trained model at the workers under this name, for this client and
                those in `deploy_for`; its weights do not leave them.
            reveal_loss: makes the mean loss of each epoch public; else none is.
            guard_every: looks every so many steps whether the weights diverge, which tells the
                workers one bit each time; 0 never looks.
            check_range: whether to check that values stay in their range, which this client alone
                learns; None: as far as it costs less than 3% of the bytes, or 4 KB a step.
            prefetch: shares large data in chunks, of which the first epoch trains on one while the
                next is on its way; False shares all of it first.
            profile: the network that protocols plan for; None: the cluster's.
            progress: hears a fraction and a text (epoch, step, time per batch) in place of a bar.
            other: Keras' further arguments, as far as they say nothing.

        Returns:
            The history; the model has the trained weights (unless they were deployed).

        Raises:
            UsageError, DataError: arguments, shapes, labels or callbacks that do not fit.
            RangeError: NaN, numbers too large, or a training that diverges.
            ConfigError: a checkpoint that is not whole at all workers.
            PolicyError: an owner or an operator does not permit it.
        """
        from tfe_bench.models.training import magnitudes
        from tfe_bench.models.training.callbacks import Callbacks

        keras_arguments.reject_arguments(
            "fit",
            other,
            keras_arguments.UNSUPPORTED_FIT,
            list(inspect.signature(self.fit).parameters)[:-1],
        )
        check_verbose(verbose)
        recipe = self.recipe(DEFAULT_BATCH if batch_size is None else batch_size)
        source, rows, joined = None, 0, None
        has_weights = class_weight is not None or sample_weight is not None
        if rows_of is not None or columns_of is not None:
            if x is not None or y is not None or (rows_of is not None) == (columns_of is not None):
                raise UsageError("fit takes x and y, or rows_of, or columns_of with labels_of.")
            if columns_of is not None and labels_of is None:
                raise UsageError("columns_of goes with labels_of: who has the labels.")
            if has_weights or validation_split:
                raise UsageError(
                    "class_weight, sample_weight and validation_split are for x and y. Of owners' "
                    "rows holdout=N are kept to evaluate on."
                )
            source, joined = sources.resolve_datasets(
                cluster, rows_of or columns_of or (), labels_of
            )
            sources.check_target(joined, recipe.loss)
            rows = joined.rows - holdout
        elif x is None or y is None:
            raise UsageError("fit takes x and y, or rows_of, or columns_of with labels_of.")
        train = test = None
        if source is None:
            check_counts(x, y)
            train = Examples(np.asarray(x), np.asarray(y))
            if has_weights:
                weights = combine_weights(recipe, train.y, sample_weight, class_weight)
                train, recipe = train._replace(weights=weights), with_weight_bound(recipe, weights)
            if validation_split and validation_data is None:
                train, test = split_validation(train, validation_split)
            rows = len(train.x)
            recipe = magnitudes.plan_exponents(
                recipe, self._keras_model(), *train[:2], seed, train.weights
            )
        if validation_data is not None:
            if not isinstance(validation_data, (tuple, list)) or len(validation_data) != 2:
                raise UsageError("validation_data is (x, y): what is told of it has no weights.")
            check_counts(*validation_data)
            test = Examples(*validation_data)
        if self._metrics and test is None and not holdout:
            raise UsageError(
                "metrics are computed of rows to validate on. Received: metrics without such rows. "
                "Use validation_split or validation_data (holdout of owners' rows), or leave "
                "metrics out."
            )
        log_names = ["loss"] if reveal_loss else []
        log_names += [score_name(recipe)] if test is not None or holdout else []
        callback_plan = Callbacks.from_keras(callbacks, [*log_names, "learning_rate"])
        if callback_plan.deferred and checkpoint is not None:
            raise UsageError(
                "A training with a checkpoint is in several jobs, and callbacks are called for "
                "one. Received: both. LearningRateScheduler alone goes with it."
            )
        if deploy_for:
            cluster.check_members(deploy_for)
        if callback_plan.snapshots and deploy is not None:
            raise UsageError("Callbacks that take weights go with weights that leave: no deploy.")
        if type(epochs) is int and type(initial_epoch) is int:
            recipe = callback_plan.apply_schedule(
                recipe, initial_epoch, epochs, rows // recipe.batch
            )
        profile = profile or cluster.profile.name
        job = TrainingJob(
            recipe,
            epochs,
            rows,
            seed,
            profile=profile,
            steps=steps,
            test=0 if test is None else len(test.x),
            source=source,
            holdout=holdout,
            saving=None
            if checkpoint is None
            else CheckpointOptions(checkpoint, checkpoint_every, restart),
            deploy=None
            if deploy is None
            else self._deployment_parameters(deploy, deploy_for, joined),
            guard=guard_every,
            reveal_loss=reveal_loss,
            chunk=choose_chunk(recipe, rows) if train is not None and prefetch else 0,
            first=initial_epoch,
            shuffle=shuffle,
            stopping=callback_plan.stopping,
            snapshots=callback_plan.snapshots,
            watch=choose_range_checks(recipe, profile, reveal_loss, check_range),
        )
        inputs = self.inputs(job, train, test, scatter=shuffle)
        with show_progress(0 if progress is not None else verbose) as bar:
            history = self.run(cluster, job, inputs, progress or bar, callback_plan)
        history.table = None if joined is None else joined.table
        self._deployed = deploy
        if verbose == 2 or (verbose == 1 and bar is None and progress is None):
            print_epochs(history, epochs)
        return history

    def predict(self, x: Any, batch_size: int | None = None, verbose: Any = 0) -> Any:
        """What the model as it is here says of x, in the clear: nothing is sent.

        For private predictions there are `tfe_bench.convert` and `cluster.predict`.

        Raises:
            UsageError: the trained weights are not here, or the model does not take x.
        """
        if self._deployed is not None:
            raise UsageError(
                f"The trained weights stayed at the workers. Ask them: "
                f"cluster.predict({self._deployed!r}, x)."
            )
        from tfe_bench.models import from_keras, plaintext

        model = self._keras_model()
        images = plaintext.check_model_inputs(from_keras.from_keras(model), x)
        input_arrays = list(images.values())
        model_inputs = input_arrays if len(input_arrays) > 1 else input_arrays[0]
        return model.predict(model_inputs, batch_size=batch_size, verbose=verbose)

    def evaluate(
        self,
        cluster: Client,
        x: Any,
        y: Any,
        *,
        profile: str | None = None,
        progress: Progress | None = None,
    ) -> float:
        """The accuracy (or mean squared error) on private rows, for the model as it is here.

        Raises:
            UsageError, RangeError: as `fit`.
        """
        recipe = self.recipe()
        check_counts(x, y)
        job = TrainingJob(recipe, 0, 0, 0, profile=profile or cluster.profile.name, test=len(x))
        history = self.run(cluster, job, self.inputs(job, None, Examples(x, y)), progress)
        [value] = next(iter(history.history.values()))
        return value

    def inputs(
        self, job: TrainingJob, train: Examples | None, test: Examples | None, scatter: bool = False
    ) -> dict[str, PrivateInput | LateInput]:
        """The inputs of a job: the weights that it begins with, and this client's rows.

        Args:
            train, test: to learn from and to evaluate on; None of owners' rows.
            scatter: share chunks of rows in another order than they are given, by the seed.

        Raises:
            UsageError, RangeError: rows or weights that do not fit.
        """
        state = self._state_inputs(job.recipe)
        return {**state, **share_examples(job, train, test, scatter)}

    def run(
        self,
        cluster: Client,
        job: TrainingJob,
        inputs: Mapping[str, PrivateInput | LateInput],
        progress: Progress | None = None,
        callbacks: Callbacks | None = None,
    ) -> History:
        """Runs a job that `fit` or a command has put together."""
        job.check_inputs([input_spec(name, value) for name, value in inputs.items()])
        bits, ring = cluster.config.fractional_bits, cluster.config.ring
        if bits != job.recipe.numbers.activation or ring != 64:
            raise UsageError(
                f"Training has {job.recipe.numbers.activation} fractional bits over Z_2^64 and "
                f"the cluster {bits} over Z_2^{ring}. Use another cluster."
            )
        result = cluster.run("train", job.header(), inputs, progress)
        check_ranges(job, result)
        history = build_history(job, result)
        if job.total_steps and job.deploy is None:
            history.model = self._keras_model()
            self._start = history.model.get_weights()
        if callbacks is not None and callbacks.deferred:
            self._run_callbacks(callbacks, job, result, history)
        elif history.model is not None:
            self._load_weights(job.recipe, result)
        return history

    # ---- inside

    def _state_inputs(self, recipe: Recipe) -> dict[str, PrivateInput]:
        """What training begins with, as inputs of the job."""
        from tfe_bench.models.training import state

        arrays, inputs = state.build_initial_state(recipe), {}
        for i, spec in enumerate(state.list_specs(recipe)):
            array = arrays[spec.key]
            if not np.abs(array).max(initial=0.0) < _LARGEST_WEIGHT:
                raise RangeError(
                    f"The weights {spec.key!r} begin with NaN or with more than "
                    f"{_LARGEST_WEIGHT:g}."
                )
            inputs[state_name(i)] = PrivateInput(
                np.rint(array * 2.0**spec.fractional_bits).astype(np.int64), spec.fractional_bits
            )
        return inputs

    def _deployment_parameters(
        self, name: str, clients: Sequence[str], joined: sources.CombinedSchema | None
    ) -> dict[str, Any]:
        from tfe_bench.models import deploying

        table = None
        if joined is not None and joined.table is not None:
            assert self._compiled is not None
            table = replace(joined.table, logits=read_keras_loss(self._compiled[1])[1])
        return deploying.trained_model_parameters(
            self.keras, check_name(name), clients, table=table
        )

    def _run_callbacks(
        self, callbacks: Callbacks, job: TrainingJob, result: JobResult, history: History
    ) -> None:
        """Calls the callbacks; they may say that training was over earlier."""
        model, last_epoch = self._keras_model(), len(history.epoch) - 1

        def load_weights(place: int) -> None:
            if history.model is not None and (place == last_epoch or job.snapshots):
                self._load_weights(job.recipe, result, None if place == last_epoch else place)

        logs = [
            {name: values[place] for name, values in history.history.items()}
            for place in range(last_epoch + 1)
        ]
        params = {"epochs": job.epochs, "steps": job.steps_per_epoch, "verbose": 0}
        try:
            completed = callbacks.replay_callbacks(
                model, job.recipe, history.epoch, logs, load_weights, params
            )
        except BaseException:
            load_weights(last_epoch)  # what the workers have done is not lost with it
            raise
        if completed <= last_epoch:  # one of them ended it there
            if not job.snapshots:  # none that takes weights: those that there are
                load_weights(last_epoch)
            history.epoch = history.epoch[:completed]
            history.history = {k: v[:completed] for k, v in history.history.items()}
            history.steps = min(history.steps, completed * job.steps_per_epoch)

    def _load_weights(self, recipe: Recipe, result: JobResult, epoch: int | None = None) -> None:
        """Puts trained weights into the Keras model: the last, or those after an epoch."""
        from tfe_bench.models.training import reader, state

        arrays = {}
        for i, spec in enumerate(state.list_specs(recipe)):
            name = state_name(i) if epoch is None else snapshot_name(epoch, i)
            if name in result.outputs:
                decoded = FixedPoint(spec.fractional_bits).decode(result.outputs[name])
                arrays[spec.key] = np.asarray(decoded).reshape(spec.shape)
        weights = state.to_keras_weights(recipe, arrays)
        model = self._keras_model()
        for variable, array in zip(reader.list_variables(model), weights, strict=True):
            variable.assign(array)

    def __repr__(self) -> str:
        name = getattr(self.keras, "name", self.keras)
        return f"Trainable({name!r}, compiled={self._compiled is not None})"


def trainable(model: Any) -> Trainable:
    """A Keras model, to be trained on private data; nothing is sent yet.

    Args:
        model: a Keras 3 Sequential or functional model, or the path of a .keras file.

    Its weights are where training begins: the client's secret, as what becomes of them is.
    """
    return Trainable(model)
