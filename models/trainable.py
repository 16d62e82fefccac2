"""From a Keras model to private training: `trainable`, and what it gives."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster.store import check_name
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models import sources
from tfe_bench.models.order import Order, Saving, state_name
from tfe_bench.models.rows import (
    check_counts,
    check_rows,
    chunk_of,
    late_rows,
    shared_rows,
    shuffled,
)
from tfe_bench.protocols.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.cluster.client import JobResult, LateInput, PrivateInput
    from tfe_bench.models.training.recipe import Recipe

Progress = Callable[[float, str], None]
TRAIN = "train"
# A weight starts within this, and so far from where fixed point ends.
_LARGEST_WEIGHT = 2.0**10


@dataclass(eq=False)
class History:
    """What became of a training, as Keras' History says it.

    Attributes:
        history: lists with one entry for each evaluation: "val_accuracy" (or "val_mse"), and
            "loss" where it was revealed.
        epoch: the epochs, counted from 0, that the evaluations follow.
        model: the Keras model with the trained weights; None if they stayed at the workers.
        seconds_per_batch: median over this job's steps, None if it ran none.
        first_step, steps: where this job began (0, or the checkpoint's step), and where it ended.
        result: of the job: what it cost.
    """

    history: dict[str, list[float]]
    epoch: list[int]
    model: Any
    seconds_per_batch: float | None
    first_step: int
    steps: int
    result: JobResult = field(repr=False)


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

    def compile(self, optimizer: Any = "sgd", loss: Any = None, *, seed: int = 0) -> None:
        """Says how the model is trained; nothing leaves this process.

        Args:
            optimizer: keras.optimizers.SGD or Adam with their schedules, or "sgd", "adam",
                "amsgrad" with Keras' defaults.
            loss: a Keras loss or its name, as in Keras: a name of a cross-entropy means that the
                model ends in softmax or sigmoid, from_logits=True that it does not.
            seed: of Dropout's masks, which are public.

        Raises:
            UsageError: layers, an optimizer or a loss that private training does not have; all
                that is not supported is named.
        """
        from tfe_bench.models.training.recipe import Recipe

        Recipe.build(self.keras, optimizer, loss, seed=seed)
        self._compiled = (optimizer, loss, seed)

    def initial_model(self) -> Any:
        """The Keras model with the weights that the last training began with."""
        import keras

        if isinstance(self.keras, str) or not hasattr(self.keras, "set_weights"):
            self.keras = keras.saving.load_model(self.keras, compile=False)
        found = keras.models.clone_model(self.keras)
        found.set_weights(self.keras.get_weights() if self._start is None else self._start)
        return found

    def recipe(self, batch_size: int = 128) -> Recipe:
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
        *,
        epochs: int = 1,
        batch_size: int = 128,
        validation_data: tuple[Any, Any] | None = None,
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
    ) -> History:
        """Trains on private rows, this client's own or those that owners provided.

        Args:
            cluster: a LocalCluster, a Cluster or a Client.
            x, y: features and labels as Keras takes them; left out with rows_of or columns_of.
            epochs: through all rows, each in an order of its own from `seed`, which is public.
                Rows that fill no batch at an epoch's end are left out of it.
            batch_size: rows of a step.
            validation_data: (x, y) to evaluate on after each epoch: this client alone learns how
                many answers are right.
            steps: ends the training earlier.
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
            progress: hears a fraction and a text: epoch, step, time per batch.

        Returns:
            The history; the model has the trained weights (unless they were deployed).

        Raises:
            UsageError, DataError: arguments, shapes or labels that do not fit.
            RangeError: NaN, numbers too large, or a training that diverges.
            ConfigError: a checkpoint that is not whole at all workers.
            PolicyError: an owner or an operator does not permit it.
        """
        recipe = self.recipe(batch_size)
        client = getattr(cluster, "client", cluster)
        source, rows = None, 0
        if rows_of is not None or columns_of is not None:
            if x is not None or y is not None or (rows_of is not None) == (columns_of is not None):
                raise UsageError("fit takes x and y, or rows_of, or columns_of with labels_of.")
            if columns_of is not None and labels_of is None:
                raise UsageError("columns_of goes with labels_of: who has the labels.")
            source, joined = sources.source_of(client, rows_of or columns_of or (), labels_of)
            rows = joined.rows - holdout
        elif x is None or y is None:
            raise UsageError("fit takes x and y, or rows_of, or columns_of with labels_of.")
        inputs: dict[str, PrivateInput | LateInput] = {**self.state_inputs(recipe)}
        chunk = 0
        if source is None:
            check_counts(x, y)
            rows, chunk = len(x), chunk_of(recipe, len(x)) if prefetch else 0
            if not chunk:
                inputs.update(shared_rows(recipe, x, y))
        if validation_data is not None:
            inputs.update(shared_rows(recipe, *validation_data, prefix="test_"))
        if chunk:
            check_rows(recipe, np.asarray(x), np.asarray(y))
            inputs.update(late_rows(recipe, *shuffled(seed, x, y), chunk))
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
            None if deploy is None else self._deployment(deploy, deploy_for),
            guard_every,
            reveal_loss,
            chunk=chunk,
        )
        return self.run(cluster, order, inputs, progress)

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
        return self._history(order, result)

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

    def _deployment(self, name: str, clients: Sequence[str]) -> dict[str, Any]:
        from tfe_bench.models import deploying

        return deploying.parameters(self.keras, check_name(name), clients)

    def _history(self, order: Order, result: JobResult) -> History:
        measured = result.measured[0]
        recipe = order.recipe
        scored = [int(step) for step in measured["scored"]]
        found: dict[str, list[float]] = {}
        if "scores" in result.outputs:
            values = FixedPoint(result.fractional_bits["scores"]).decode(result.outputs["scores"])
            tested = order.test or order.holdout
            name = "val_mse" if recipe.loss.name == "mean_squared_error" else "val_accuracy"
            samples = tested * int(np.prod(recipe.output_shape)) if name == "val_mse" else tested
            found[name] = [float(v) / samples for v in np.asarray(values).reshape(-1)]
        if measured["losses"]:
            found["loss"] = [float(v) for v in measured["losses"]]
        times = [max(turn) for turn in zip(*(m["seconds"] for m in result.measured), strict=True)]
        per = order.steps_per_epoch or 1
        model = None
        if order.total and order.deploy is None:
            model = self._take(recipe, result)
        return History(
            found,
            [max(0, (step - 1) // per) for step in scored],
            model,
            float(np.median(times)) if times else None,
            int(measured["first_step"]),
            int(measured["steps"]),
            result,
        )

    def _take(self, recipe: Recipe, result: JobResult) -> Any:
        """Puts trained weights into the Keras model."""
        from tfe_bench.models.training import state

        arrays = {}
        for i, spec in enumerate(state.specs(recipe)):
            if state_name(i) in result.outputs:
                decoded = FixedPoint(spec.fractional_bits).decode(result.outputs[state_name(i)])
                arrays[spec.key] = np.asarray(decoded).reshape(spec.shape)
        weights = state.trained(recipe, arrays)
        if isinstance(self.keras, str) or not hasattr(self.keras, "set_weights"):
            import keras

            self.keras = keras.saving.load_model(self.keras, compile=False)
        self._start = self.keras.get_weights()
        self.keras.set_weights(weights)
        return self.keras

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


def _profile(cluster: Any) -> str:
    return cluster.profile.name if hasattr(cluster, "profile") else "local"


def _spec(name: str, value: PrivateInput | LateInput) -> Any:
    from tfe_bench.cluster.client import LateInput
    from tfe_bench.cluster.jobs import InputSpec

    late = isinstance(value, LateInput)
    return InputSpec(name, value.shape, value.fractional_bits, value.limbs, late)
