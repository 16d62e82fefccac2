"""From a Keras model to private training: `trainable`, and what it gives."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster.store import check_name
from tfe_bench.errors import RangeError, UsageError, did_you_mean
from tfe_bench.models import sources
from tfe_bench.models.order import Order, Saving, snapshot_name, state_name
from tfe_bench.models.progress import Progress, check_verbose, shown
from tfe_bench.models.rows import (
    check_counts,
    check_rows,
    chunk_of,
    late_rows,
    sample_weights,
    shared_rows,
    shuffled,
    split,
    weighted,
)
from tfe_bench.models.training.losses import SQUARED, of_keras
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.cluster.client import JobResult, LateInput, PrivateInput
    from tfe_bench.models.tables import Table
    from tfe_bench.models.training.callbacks import Callbacks
    from tfe_bench.models.training.recipe import Recipe

TRAIN = "train"
# Rows of a step, as Keras has it.
BATCH = 32
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
# Keras' arguments that are not taken: what says nothing, and what to use instead.
_NO_FIT: Mapping[str, tuple[Any, str]] = {
    "steps_per_epoch": (None, "an epoch goes through all rows; steps=N ends the training earlier"),
    "validation_steps": (None, "all of validation_data is evaluated on"),
    "validation_batch_size": (None, "the workers cut validation_data as they have room"),
    "validation_freq": (1, "validation_data is evaluated on after every epoch"),
}
_NO_COMPILE: Mapping[str, tuple[Any, str]] = {
    "loss_weights": (None, "a model that is trained has one output"),
    "weighted_metrics": (None, "an evaluation has no weights"),
    "run_eagerly": (False, "the workers run graphs"),
    "steps_per_execution": (1, "the workers take one step after the other"),
    "jit_compile": ("auto", "the workers run graphs"),
    "auto_scale_loss": (True, "gradients are of one fixed point"),
}
# A weight starts within this, and so far from where fixed point ends.
_LARGEST_WEIGHT = 2.0**10


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
            metrics: what an evaluation tells anyway: ["accuracy"] of classes, ["mse"] of numbers.
            seed: of Dropout's masks, which are public.
            other: of Keras' further arguments those that say nothing (None or False).

        Raises:
            UsageError: layers, an optimizer, a loss, metrics or arguments that private training
                does not have; all that is not supported is named.
        """
        from tfe_bench.models.training.recipe import Recipe

        _refuse("compile", other, _NO_COMPILE, ("optimizer", "loss", "metrics", "seed"))
        recipe = Recipe.build(self.keras, optimizer, loss, seed=seed)
        several = [metrics] if isinstance(metrics, str) else list(metrics or ())
        told = _METRICS[recipe.loss.name == SQUARED]
        if any(not isinstance(m, str) or m not in told for m in several):
            raise UsageError(
                f"An evaluation with {recipe.loss.name} tells {told[0]}. Received: metrics "
                f"{str(several)[:80]}."
            )
        self._compiled = (optimizer, loss, seed)

    def initial_model(self) -> Any:
        """The Keras model with the weights that the last training began with."""
        from tfe_bench.models.training import reader

        return reader.copied(self._model(), self._start)

    def _model(self) -> Any:
        """The Keras model, read if it was given as a file."""
        from tfe_bench.models import from_keras

        if isinstance(self.keras, (str, Path)):
            self.keras = from_keras.load(self.keras)
        return self.keras

    def recipe(self, batch_size: int = BATCH) -> Recipe:
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
        cluster: Any,
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
        from tfe_bench.models.training.callbacks import Callbacks

        _refuse("fit", other, _NO_FIT, list(inspect.signature(self.fit).parameters)[:-1])
        check_verbose(verbose)
        recipe = self.recipe(BATCH if batch_size is None else batch_size)
        client = getattr(cluster, "client", cluster)
        source, rows, joined = None, 0, None
        weighs = class_weight is not None or sample_weight is not None
        if rows_of is not None or columns_of is not None:
            if x is not None or y is not None or (rows_of is not None) == (columns_of is not None):
                raise UsageError("fit takes x and y, or rows_of, or columns_of with labels_of.")
            if columns_of is not None and labels_of is None:
                raise UsageError("columns_of goes with labels_of: who has the labels.")
            if weighs or validation_split:
                raise UsageError(
                    "class_weight, sample_weight and validation_split are for x and y. Of owners' "
                    "rows holdout=N are kept to evaluate on."
                )
            source, joined = sources.source_of(client, rows_of or columns_of or (), labels_of)
            rows = joined.rows - holdout
        elif x is None or y is None:
            raise UsageError("fit takes x and y, or rows_of, or columns_of with labels_of.")
        inputs: dict[str, PrivateInput | LateInput] = {**self.state_inputs(recipe)}
        chunk, weights = 0, None
        if source is None:
            check_counts(x, y)
            x, y = np.asarray(x), np.asarray(y)
            if weighs:
                weights = sample_weights(recipe, y, sample_weight, class_weight)
                recipe = weighted(recipe, weights)
            if validation_split and validation_data is None:
                x, y, weights, validation_data = split(x, y, validation_split, weights)
            rows, chunk = len(x), chunk_of(recipe, len(x)) if prefetch else 0
            if not chunk:
                inputs.update(shared_rows(recipe, x, y, weights=weights))
        if validation_data is not None:
            if not isinstance(validation_data, (tuple, list)) or len(validation_data) != 2:
                raise UsageError("validation_data is (x, y): what is told of it has no weights.")
            inputs.update(shared_rows(recipe, *validation_data, prefix="test_"))
        if chunk:
            check_rows(recipe, x, y)
            held = (x, y) if weights is None else (x, y, weights)
            if shuffle:
                held = shuffled(seed, *held)
            inputs.update(late_rows(recipe, *held[:2], chunk, *held[2:]))
        known = ["loss"] if reveal_loss else []
        known += [_score(recipe)] if validation_data is not None or holdout else []
        asked = Callbacks.of(callbacks, [*known, "learning_rate"])
        if asked.later and checkpoint is not None:
            raise UsageError(
                "A training with a checkpoint is in several jobs, and callbacks are called for "
                "one. Received: both. LearningRateScheduler alone goes with it."
            )
        if asked.snapshots and deploy is not None:
            raise UsageError("Callbacks that take weights go with weights that leave: no deploy.")
        if type(epochs) is int and type(initial_epoch) is int:
            recipe = asked.scheduled(recipe, initial_epoch, epochs, rows // recipe.batch)
        order = Order(
            recipe,
            epochs,
            rows,
            seed,
            uuid.uuid4().hex,
            profile or _profile(cluster),
            steps,
            inputs["test_x"].shape[0] if "test_x" in inputs else 0,
            source,
            holdout,
            None if checkpoint is None else Saving(checkpoint, checkpoint_every, restart),
            None if deploy is None else self._deployment(deploy, deploy_for, joined),
            guard_every,
            reveal_loss,
            chunk=chunk,
            first=initial_epoch,
            shuffle=shuffle,
            stopping=asked.stopping,
            snapshots=asked.snapshots,
        )
        with shown(0 if progress is not None else verbose) as bar:
            history = self.run(cluster, order, inputs, progress or bar, asked)
        history.table = None if joined is None else joined.table
        self._deployed = deploy
        if verbose == 2 or (verbose == 1 and bar is None and progress is None):
            _print_epochs(history, epochs)
        return history

    def predict(self, x: Any, batch_size: int | None = None, verbose: Any = 0) -> Any:
        """What the model as it is here says of x, in the open: nothing is sent.

        For private predictions there are `tfe_bench.convert` and `cluster.predict`.

        Raises:
            UsageError: the trained weights are not here, or the model does not take x.
        """
        if self._deployed is not None:
            raise UsageError(
                f"The trained weights stayed at the workers. Ask them: "
                f"cluster.predict({self._deployed!r}, x)."
            )
        from tfe_bench.models import from_keras, plain

        model = self._model()
        images = plain.check_images(from_keras.from_keras(model), x)
        given = list(images.values())
        several = given if len(given) > 1 else given[0]
        return model.predict(several, batch_size=batch_size, verbose=verbose)

    def evaluate(
        self,
        cluster: Any,
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
        inputs: dict[str, PrivateInput | LateInput] = {
            **self.state_inputs(recipe),
            **shared_rows(recipe, x, y, "test_"),
        }
        rows = inputs["test_x"].shape[0]
        name = profile or _profile(cluster)
        order = Order(recipe, 0, 0, 0, uuid.uuid4().hex, name, test=rows)
        found = self.run(cluster, order, inputs, progress)
        [value] = next(iter(found.history.values()))
        return value

    def run(
        self,
        cluster: Any,
        order: Order,
        inputs: dict[str, PrivateInput | LateInput],
        progress: Progress | None = None,
        callbacks: Callbacks | None = None,
    ) -> History:
        """Runs a job that `fit` or a command has put together."""
        order.check_inputs([_spec(name, value) for name, value in inputs.items()])
        client = getattr(cluster, "client", cluster)
        bits = client.config.fractional_bits
        if bits != order.recipe.numbers.activation or client.config.ring != 64:
            raise UsageError(
                f"Training has {order.recipe.numbers.activation} fractional bits over Z_2^64 and "
                f"the cluster {bits} over Z_2^{client.config.ring}. Use another cluster."
            )
        result = cluster.run(TRAIN, order.header(), inputs, progress)
        history = self._history(order, result)
        if order.total and order.deploy is None:
            history.model = self._model()
            self._start = history.model.get_weights()
        if callbacks is not None and callbacks.later:
            self._call(callbacks, order, result, history)
        elif history.model is not None:
            self._take(order.recipe, result)
        return history

    # ---- inside

    def state_inputs(self, recipe: Recipe) -> dict[str, PrivateInput]:
        """What training begins with, as inputs of the job."""
        from tfe_bench.cluster.client import PrivateInput
        from tfe_bench.models.training import state

        arrays, found = state.initial(recipe), {}
        for i, spec in enumerate(state.specs(recipe)):
            array = arrays[spec.key]
            if not np.abs(array).max(initial=0.0) < _LARGEST_WEIGHT:
                raise RangeError(
                    f"The weights {spec.key!r} begin with NaN or with more than "
                    f"{_LARGEST_WEIGHT:g}."
                )
            found[state_name(i)] = PrivateInput(
                np.rint(array * 2.0**spec.fractional_bits).astype(np.int64), spec.fractional_bits
            )
        return found

    def _deployment(
        self, name: str, clients: Sequence[str], joined: sources.Joined | None
    ) -> dict[str, Any]:
        from tfe_bench.models import deploying

        table = None
        if joined is not None and joined.table is not None:
            assert self._compiled is not None
            table = replace(joined.table, logits=of_keras(self._compiled[1])[1])
        return deploying.parameters(self.keras, check_name(name), clients, table=table)

    def _history(self, order: Order, result: JobResult) -> History:
        measured = result.measured[0]
        recipe, done = order.recipe, int(measured["steps"])
        per = order.steps_per_epoch or 1
        scored = [int(step) for step in measured["scored"]]
        ends = [*range(per, done + 1, per), *([done] if done % per else [])]
        found: dict[str, list[float]] = {}
        if "scores" in result.outputs:
            ends = scored
            values = FixedPoint(result.fractional_bits["scores"]).decode(result.outputs["scores"])
            tested = order.test or order.holdout
            name = _score(recipe)
            samples = tested * int(np.prod(recipe.output_shape)) if name == "val_mse" else tested
            found[name] = [float(v) / samples for v in np.asarray(values).reshape(-1)]
        if measured["losses"]:
            found["loss"] = [float(v) for v in measured["losses"]]
        if order.total:
            rates = recipe.optimizer.schedule
            found["learning_rate"] = [float(rates.rate(max(0, step - 1))) for step in ends]
        times = [max(turn) for turn in zip(*(m["seconds"] for m in result.measured), strict=True)]
        return History(
            found,
            [order.first + max(0, (step - 1) // per) for step in ends],
            None,
            float(np.median(times)) if times else None,
            int(measured["first_step"]),
            done,
            result,
        )

    def _call(
        self, callbacks: Callbacks, order: Order, result: JobResult, history: History
    ) -> None:
        """Calls the callbacks; they may say that training was over earlier."""
        model, last = self._model(), len(history.epoch) - 1

        def put(place: int) -> None:
            if history.model is not None and (place == last or order.snapshots):
                self._take(order.recipe, result, None if place == last else place)

        logs = [
            {name: values[place] for name, values in history.history.items()}
            for place in range(last + 1)
        ]
        params = {"epochs": order.epochs, "steps": order.steps_per_epoch, "verbose": 0}
        try:
            passed = callbacks.called(model, order.recipe, history.epoch, logs, put, params)
        except BaseException:
            put(last)  # what the workers have done is not lost with it
            raise
        if passed <= last:  # one of them ended it there
            if not order.snapshots:  # none that takes weights: those that there are
                put(last)
            history.epoch = history.epoch[:passed]
            history.history = {k: v[:passed] for k, v in history.history.items()}
            history.steps = min(history.steps, passed * order.steps_per_epoch)

    def _take(self, recipe: Recipe, result: JobResult, epoch: int | None = None) -> None:
        """Puts trained weights into the Keras model: the last, or those after an epoch."""
        from tfe_bench.models.training import reader, state

        arrays = {}
        for i, spec in enumerate(state.specs(recipe)):
            name = state_name(i) if epoch is None else snapshot_name(epoch, i)
            if name in result.outputs:
                decoded = FixedPoint(spec.fractional_bits).decode(result.outputs[name])
                arrays[spec.key] = np.asarray(decoded).reshape(spec.shape)
        weights = state.trained(recipe, arrays)
        model = self._model()
        for variable, array in zip(reader.variables(model), weights, strict=True):
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


def _refuse(
    what: str, given: Mapping[str, Any], no: Mapping[str, tuple[Any, str]], known: Sequence[str]
) -> None:
    """Refuses arguments that are unknown, or Keras' and not taken.

    Raises:
        UsageError: naming the first one, and what to use.
    """
    for name, value in given.items():
        if name not in no:
            raise UsageError(f"{what} takes no argument {name!r}.{did_you_mean(name, known)}")
        nothing, why = no[name]
        if value is not None and value != nothing:
            raise UsageError(f"{what} takes no {name}: {why}.")


def _score(recipe: Recipe) -> str:
    return "val_mse" if recipe.loss.name == SQUARED else "val_accuracy"


def _print_epochs(history: History, epochs: int) -> None:
    """A line for each epoch, as Keras prints them."""
    for place, epoch in enumerate(history.epoch):
        told = [f"{k}: {v[place]:.4g}" for k, v in history.history.items() if place < len(v)]
        print(f"Epoch {epoch + 1}/{epochs} - {' - '.join(told)}")


def _profile(cluster: Any) -> str:
    return cluster.profile.name if hasattr(cluster, "profile") else "local"


def _spec(name: str, value: PrivateInput | LateInput) -> Any:
    from tfe_bench.cluster.client import LateInput
    from tfe_bench.cluster.jobs import InputSpec

    late = isinstance(value, LateInput)
    return InputSpec(name, value.shape, value.fractional_bits, value.limbs, late)
