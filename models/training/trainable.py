"""Private training of Keras models: `trainable` and `Trainable`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster.client import Client
from tfe_bench.cluster.requests import JobResult, LateInput, PrivateInput, private_input_spec
from tfe_bench.cluster.stored import check_name
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.datasets import sources
from tfe_bench.models.training import keras_arguments
from tfe_bench.models.training.examples import (
    TrainingExamples,
    check_counts,
    check_training_labels,
    combine_weights,
    share_examples,
    split_validation,
    with_weight_bound,
)
from tfe_bench.models.training.history import (
    History,
    build_training_history,
    check_ranges,
    evaluation_score_name,
    print_epochs,
)
from tfe_bench.models.training.job_builder import build_training_job
from tfe_bench.models.training.losses import read_keras_loss
from tfe_bench.models.training.progress import (
    Progress,
    check_training_verbosity,
    show_training_progress,
)
from tfe_bench.models.training.train_options import TrainOptions
from tfe_bench.models.training.training_job import (
    TrainingJob,
    training_state_name,
    weight_snapshot_name,
)
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.models.training.callbacks import TrainingCallbacks
    from tfe_bench.models.training.recipe import Recipe

# Rows of a step, the default of Keras.
DEFAULT_BATCH = 32
# Largest initial weight: far below the limit of fixed point.
_LARGEST_WEIGHT = 2.0**10


class Trainable:
    """A model that three workers train without seeing its weights or its training data.

    Attributes:
        keras: the Keras model (or the path of one, or a Graph) as passed; `fit` writes trained
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
        """Set how the model is trained; nothing leaves this process.

        Args:
            optimizer: keras.optimizers.SGD or Adam with their schedules, or "sgd", "adam",
                "amsgrad" with the defaults of Keras.
            loss: a Keras loss or its name, as in Keras: the name of a cross-entropy means that the
                model ends in softmax or sigmoid, from_logits=True that it does not.
            metrics: ["accuracy"] for classes, ["mse"] for numbers: computed on the validation rows
                of `fit`, as "val_accuracy" or "val_mse"; `fit` then requires such rows.
            seed: seed of Dropout's masks, which are public.
            other: remaining Keras arguments, at their defaults only (None or False).

        Raises:
            UsageError: private training does not support a layer, the optimizer, the loss, a metric
                or an argument; the text names everything that is not supported.
        """
        from tfe_bench.models.layers.base.operations import ProtocolSetting
        from tfe_bench.models.training import step
        from tfe_bench.models.training.recipe import Recipe

        keras_arguments.reject_keras_arguments(
            "compile",
            other,
            keras_arguments.UNSUPPORTED_COMPILE,
            ("optimizer", "loss", "metrics", "seed"),
        )
        recipe = Recipe.build(self.keras, optimizer, loss, seed=seed)
        step.step_cost(recipe, ProtocolSetting())  # runs every layer once with a cost party
        requested_metrics = keras_arguments.parse_keras_metrics(metrics, recipe.loss)
        self._compiled, self._metrics = (optimizer, loss, seed), requested_metrics

    def initial_model(self) -> Any:
        """Return the Keras model with the weights at which the last training began."""
        from tfe_bench.models.training import reader

        return reader.copy_keras_model(self._keras_model(), self._start)

    def _keras_model(self) -> Any:
        """Return the Keras model; load it first if it was passed as a file."""
        from tfe_bench.models.convert import from_keras

        if isinstance(self.keras, (str, Path)):
            self.keras = from_keras.load_model(self.keras)
        return self.keras

    def recipe(self, batch_size: int = DEFAULT_BATCH) -> Recipe:
        """Return the public description of the training.

        Raises:
            UsageError: the model was not compiled.
        """
        from tfe_bench.models.training.recipe import Recipe

        if self._compiled is None:
            raise UsageError(
                "Compile the model first: private.compile(optimizer, loss).", code="not-compiled"
            )
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
        """Train on private rows of this client, or on rows that owners provided.

        The arguments up to initial_epoch are those of Keras, with the same order and meaning.

        Args:
            cluster: a LocalCluster, a Cluster or a Client.
            x, y: features and labels as in Keras; omitted with rows_of or columns_of.
            batch_size: rows of a step; None: 32.  Rows that do not fill a batch at the end of an
                epoch are left out of it.
            epochs: the epoch before which training ends, as in Keras. Each epoch passes all rows in
                its own order from `seed`, which is public.
            verbose: "auto" or 1 shows a bar in a terminal or a notebook, 2 prints a line for each
                epoch after the training, 0 shows nothing.
            callbacks: Keras' callbacks, called after the training with the known values of each
                epoch (training/callbacks.py). LearningRateScheduler acts during training, and so
                does EarlyStopping(monitor="loss") with reveal_loss.
            validation_split: the last part of x and y, used for evaluation instead of training.
            validation_data: (x, y) for evaluation after each epoch: this client alone learns the
                number of right answers.
            shuffle: False keeps the order of the rows in every epoch.
            class_weight, sample_weight: weights of classes and samples; private as labels are.
            initial_epoch: number of the first epoch.
            steps: total number of steps after which training ends.
            rows_of: names of data sets whose rows are combined (horizontal split).
            columns_of: names of data sets whose columns are combined (vertical split).
            labels_of: the data set with the labels, for columns_of.
            holdout: number of rows of these data sets that are used for evaluation instead of
                training.
            checkpoint: a name under which the workers store their shares every `checkpoint_every`
                steps; the same call of fit later continues from there.
            restart: whether to delete the checkpoint first.
            deploy: stores the trained model at the workers under this name, for this client and
                those in `deploy_for`; its weights do not leave the workers.
            reveal_loss: makes the mean loss of each epoch public; by default no loss is revealed.
            guard_every: number of steps between checks whether the weights diverge; each check
                reveals one bit to the workers; 0 never checks.
            check_range: whether to check that values stay in their range, which this client alone
                learns; None: if it costs less than 3% of the bytes, or 4 KB a step.
            prefetch: shares large data in chunks: the first epoch trains on one chunk while the
                next is sent; False shares all data first.
            profile: the network profile for which protocols plan; None: the cluster's.
            progress: callback for a fraction and a text (epoch, step, time per batch), in place of
                a bar.
            other: remaining Keras arguments, at their defaults only.

        Returns:
            The history; the model has the trained weights (unless they were deployed).

        Raises:
            UsageError, DataError: arguments, shapes, labels or callbacks are invalid.
            RangeError: values are NaN or too large, or the training diverges.
            ConfigError: a checkpoint is not complete at all workers.
            PolicyError: an owner or an operator does not permit the training.
        """
        options = TrainOptions.select_options(
            {**locals(), "profile": profile or cluster.profile.name}
        )
        from tfe_bench.models.training import magnitudes
        from tfe_bench.models.training.callbacks import TrainingCallbacks

        keras_arguments.reject_keras_arguments(
            "fit",
            other,
            keras_arguments.UNSUPPORTED_FIT,
            list(inspect.signature(self.fit).parameters)[:-1],
        )
        check_training_verbosity(verbose)
        recipe = self.recipe(DEFAULT_BATCH if batch_size is None else batch_size)
        source, rows, joined = None, 0, None
        has_weights = class_weight is not None or sample_weight is not None
        keras_arguments.check_fit_rows(
            *(x, y, rows_of, columns_of, labels_of, has_weights or bool(validation_split))
        )
        if rows_of is not None or columns_of is not None:
            source, joined = sources.resolve_datasets(
                cluster, rows_of or columns_of or (), labels_of
            )
            check_training_labels(joined, recipe.loss)
            rows = joined.rows - holdout
        train = test = None
        if source is None:
            check_counts(x, y)
            train = TrainingExamples(np.asarray(x), np.asarray(y))
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
            keras_arguments.check_validation_data(validation_data)
            check_counts(*validation_data)
            test = TrainingExamples(*validation_data)
        if self._metrics and test is None and not holdout:
            raise UsageError(
                "Metrics require validation rows. Received: metrics without such rows. Pass "
                "validation_split or validation_data (holdout for owners' rows), or omit "
                "metrics.",
                code="missing-argument",
                operation="metrics",
            )
        log_names = ["loss"] if reveal_loss else []
        log_names += [evaluation_score_name(recipe)] if test is not None or holdout else []
        callback_plan = TrainingCallbacks.from_keras(callbacks, [*log_names, "learning_rate"])
        keras_arguments.check_callbacks(callback_plan, checkpoint, deploy)
        if deploy_for:
            cluster.check_members(deploy_for)
        if type(epochs) is int and type(initial_epoch) is int:
            recipe = callback_plan.apply_schedule(
                recipe, initial_epoch, epochs, rows // recipe.batch
            )
        job = build_training_job(
            recipe,
            options,
            rows,
            0 if test is None else len(test.x),
            source,
            None if deploy is None else self._deployment_parameters(deploy, deploy_for, joined),
            callback_plan.stopping,
            callback_plan.snapshots,
        )
        inputs = self.inputs(job, train, test, scatter=shuffle)
        with show_training_progress(0 if progress is not None else verbose) as bar:
            history = self.run(cluster, job, inputs, progress or bar, callback_plan)
        history.table = None if joined is None else joined.table
        self._deployed = deploy
        if verbose == 2 or (verbose == 1 and bar is None and progress is None):
            print_epochs(history, epochs)
        return history

    def predict(self, x: Any, batch_size: int | None = None, verbose: Any = 0) -> Any:
        """Return outputs of the local model for x in plaintext; nothing is sent.

        For private predictions, use `tfe_bench.convert` and `cluster.predict`.

        Raises:
            UsageError: the trained weights are not in this process, or the model does not accept x.
        """
        if self._deployed is not None:
            raise UsageError(
                "The trained weights are at the workers. Use "
                f"cluster.predict({self._deployed!r}, x).",
                code="weights-at-workers",
                operation=self._deployed,
            )
        from tfe_bench.models.convert import from_keras, plaintext

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
        """Return the accuracy (or mean squared error) of the local model on private rows.

        Raises:
            UsageError, RangeError: as `fit`.
        """
        recipe = self.recipe()
        check_counts(x, y)
        job = TrainingJob(recipe, 0, 0, 0, profile=profile or cluster.profile.name, test=len(x))
        history = self.run(cluster, job, self.inputs(job, None, TrainingExamples(x, y)), progress)
        [value] = next(iter(history.history.values()))
        return value

    def inputs(
        self,
        job: TrainingJob,
        train: TrainingExamples | None,
        test: TrainingExamples | None,
        scatter: bool = False,
    ) -> dict[str, PrivateInput | LateInput]:
        """Return the inputs of a job: the initial weights and this client's rows.

        Args:
            train, test: rows for training and for evaluation; None for owners' rows.
            scatter: shuffle the rows by the seed before they are split into chunks.

        Raises:
            UsageError, RangeError: rows or weights are invalid.
        """
        state = self._state_inputs(job.recipe)
        return {**state, **share_examples(job, train, test, scatter)}

    def run(
        self,
        cluster: Client,
        job: TrainingJob,
        inputs: Mapping[str, PrivateInput | LateInput],
        progress: Progress | None = None,
        callbacks: TrainingCallbacks | None = None,
    ) -> History:
        """Run a job that `fit` or a command has built."""
        job.check_inputs([private_input_spec(name, value) for name, value in inputs.items()])
        bits, ring = cluster.config.fractional_bits, cluster.config.ring
        if bits != job.recipe.numbers.activation or ring != 64:
            raise UsageError(
                f"Training requires {job.recipe.numbers.activation} fractional bits over Z_2^64. "
                f"Received: a cluster with {bits} over Z_2^{ring}. Use another cluster.",
                code="ring-mismatch",
                operation="cluster",
                received=ring,
                expected=64,
            )
        result = cluster.run("train", job.to_header(), inputs, progress)
        check_ranges(job, result)
        history = build_training_history(job, result)
        if job.total_steps and job.deploy is None:
            history.model = self._keras_model()
            self._start = history.model.get_weights()
        if callbacks is not None and callbacks.deferred:
            self._run_callbacks(callbacks, job, result, history)
        elif history.model is not None:
            self._load_weights(job.recipe, result)
        return history

    # ---- internal

    def _state_inputs(self, recipe: Recipe) -> dict[str, PrivateInput]:
        """Return the initial state of the training as inputs of the job."""
        from tfe_bench.models.training import state

        arrays, inputs = state.build_initial_training_state(recipe), {}
        for i, spec in enumerate(state.list_training_state_specs(recipe)):
            array = arrays[spec.key]
            if not np.abs(array).max(initial=0.0) < _LARGEST_WEIGHT:
                raise RangeError(
                    f"The initial weights {spec.key!r} are NaN or exceed {_LARGEST_WEIGHT:g}.",
                    code="value-out-of-range",
                    operation=spec.key,
                    expected=_LARGEST_WEIGHT,
                )
            inputs[training_state_name(i)] = PrivateInput(
                np.rint(array * 2.0**spec.fractional_bits).astype(np.int64), spec.fractional_bits
            )
        return inputs

    def _deployment_parameters(
        self, name: str, clients: Sequence[str], joined: sources.CombinedSchema | None
    ) -> dict[str, Any]:
        from tfe_bench.models.training import deploying

        table = None
        if joined is not None and joined.table is not None:
            assert self._compiled is not None
            table = replace(joined.table, logits=read_keras_loss(self._compiled[1])[1])
        return deploying.trained_model_parameters(
            self.keras, check_name(name), clients, table=table
        )

    def _run_callbacks(
        self, callbacks: TrainingCallbacks, job: TrainingJob, result: JobResult, history: History
    ) -> None:
        """Run the callbacks; they may end the training at an earlier epoch."""
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
            load_weights(last_epoch)  # the workers' result is kept
            raise
        if completed <= last_epoch:  # a callback stopped the training
            if not job.snapshots:  # no callback uses weights: load the final weights
                load_weights(last_epoch)
            history.epoch = history.epoch[:completed]
            history.history = {k: v[:completed] for k, v in history.history.items()}
            history.steps = min(history.steps, completed * job.steps_per_epoch)

    def _load_weights(self, recipe: Recipe, result: JobResult, epoch: int | None = None) -> None:
        """Load trained weights into the Keras model: the final weights, or those after an epoch."""
        from tfe_bench.models.training import reader, state

        arrays = {}
        for i, spec in enumerate(state.list_training_state_specs(recipe)):
            name = training_state_name(i) if epoch is None else weight_snapshot_name(epoch, i)
            if name in result.outputs:
                decoded = FixedPoint(spec.fractional_bits).decode(result.outputs[name])
                arrays[spec.key] = np.asarray(decoded).reshape(spec.shape)
        weights = state.to_keras_weights(recipe, arrays)
        model = self._keras_model()
        for variable, array in zip(reader.list_weight_variables(model), weights, strict=True):
            variable.assign(array)

    def __repr__(self) -> str:
        name = getattr(self.keras, "name", self.keras)
        return f"Trainable({name!r}, compiled={self._compiled is not None})"


def trainable(model: Any) -> Trainable:
    """Prepare a Keras model for training on private data; nothing is sent yet.

    Args:
        model: a Keras 3 Sequential or functional model, or the path of a .keras file.

    Training starts from its weights: they are the client's secret, as are the trained weights.
    """
    return Trainable(model)
