"""Public parameters of one training job, as its client submits them and the workers check them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import InputSpec, check_known
from tfe_bench.cluster.schema import Header, checked_field
from tfe_bench.cluster.stored import check_name
from tfe_bench.csv_file import MAX_ROWS
from tfe_bench.errors import UsageError, check_one_of
from tfe_bench.models.datasets.readers import Array
from tfe_bench.models.datasets.sources import CombinedSchema, DatasetRef
from tfe_bench.models.layers.base.public_randomness import (
    draw_epoch_batches,
    draw_epoch_permutation,
)
from tfe_bench.models.training import step
from tfe_bench.models.training.recipe import Recipe, anonymize_training_recipe
from tfe_bench.models.training.state import list_training_state_specs
from tfe_bench.models.training.stopping import EarlyStoppingRule

MAX_CHUNKS = 1 << 14
MAX_EPOCHS, MAX_STEPS = 100_000, 10**9
# Largest number of weights after all epochs together, 8 bytes each.
MAX_SNAPSHOT_WORDS = 1 << 24
# Stands in for the epoch in the draw of held-out rows; rows.SHUFFLED is -2, and chunks have -3 and
# below.
_HELD_OUT = -1
# Output of the job with the flags of values that left their range.
RANGE = "range"
_CHECKPOINT_NAME = "A checkpoint's name"
# Fields that appear in a header unless they have their default.
_OPTIONAL_FIELDS = ("first", "shuffle", "stopping", "snapshots", "watch")
# Fields in which a checkpoint and the training that continues from it agree.
_CHECKPOINT_FIELDS: tuple[str, ...] = (
    "recipe",
    "rows",
    "seed",
    "test",
    "holdout",
    "chunk",
    "source",
    "first",
    "shuffle",
    "watch",
)


@dataclass(frozen=True)
class CheckpointOptions(
    Header, subject="The options of checkpoints", code="invalid-parameters", is_complete=True
):
    """Options of a training's checkpoints.

    Attributes:
        name: name at the workers.
        every: number of steps between checkpoints.
        restart: whether to delete existing checkpoints.
    """

    name: str = checked_field()
    every: int = checked_field(default=100)
    restart: bool = checked_field(default=False)


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One training job.

    Attributes:
        recipe: model, loss, optimizer, batch.
        epochs: passes through all rows; 0 for an evaluation alone.
        rows: number of training rows.
        seed: seed of the order of the rows, as in plaintext; public.
        profile: the network profile for which protocols plan.
        steps: number of steps at which training ends before its epochs do; None for no limit.
        test: number of test rows from the client; 0 for none.
        source: data sets of owners; None if the client sends the rows.
        holdout: number of rows of the data sets that are kept for evaluation.
        saving: options of checkpoints; None for none.
        deploy: parameters of the program "deploy" for the trained model, which stays at the
            workers. None: its weights go to the client.
        guard: number of steps between checks whether weights left their range; 0 never checks. Each
            check reveals one bit to the workers.
        reveal_loss: whether the mean loss of each epoch becomes public.
        watch: values whose range is checked, for the client alone (step.ALL).
        trace: whether one more step is traced.
        chunk: number of rows that the client sends at once, a multiple of the batch. The first
            epoch uses chunks in their order of arrival, while later chunks are shared. 0: all
            before the first step.
    """

    recipe: Recipe
    epochs: int
    rows: int
    seed: int
    _: KW_ONLY
    profile: str = "local"
    steps: int | None = None
    test: int = 0
    source: DatasetRef | None = None
    holdout: int = 0
    saving: CheckpointOptions | None = None
    deploy: Mapping[str, Any] | None = None
    guard: int = 0
    reveal_loss: bool = False
    trace: bool = False
    chunk: int = 0
    first: int = 0
    shuffle: bool = True
    stopping: EarlyStoppingRule | None = None
    snapshots: bool = False
    watch: str = step.NOTHING
    _orders: dict[int, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("epochs", 0, MAX_EPOCHS),
            ("rows", 0 if self.epochs == 0 else 1, MAX_ROWS),
            ("seed", 0, (1 << 63) - 1),
            ("test", 0, MAX_ROWS),
            ("holdout", 0, MAX_ROWS),
            ("guard", 0, MAX_STEPS),
            ("chunk", 0, MAX_ROWS),
        ):
            _check_integer(name, getattr(self, name), low, high)
        _check_integer("initial_epoch", self.first, 0, max(0, self.epochs - 1))
        if self.steps is not None:
            _check_integer("steps", self.steps, 1, MAX_STEPS)
        for name in ("reveal_loss", "trace", "shuffle", "snapshots"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(
                    f"Expected true or false as {name}. Received: {getattr(self, name)!r}.",
                    code="wrong-type",
                    operation=name,
                    received=getattr(self, name),
                )
        check_one_of(
            "watch is", self.watch, (step.NOTHING, step.VALUES, step.ALL), operation="watch"
        )
        if not isinstance(self.profile, str):
            raise UsageError(
                f"Expected a name as profile. Received: {str(self.profile)[:80]!r}.",
                code="wrong-type",
                operation="profile",
                received=str(self.profile)[:80],
            )
        profiles.get_profile(self.profile)
        if self.epochs and self.rows < self.recipe.batch:
            raise UsageError(
                f"Expected at least one batch of rows. Received: {self.rows} rows and batches of "
                f"{self.recipe.batch}.",
                code="too-few-rows",
                operation="rows",
                received=self.rows,
                expected=self.recipe.batch,
            )
        if self.chunk and (self.chunk % self.recipe.batch or self.source is not None):
            raise UsageError(
                "Expected a multiple of the batch as chunk of a client's rows. Received: "
                f"{self.chunk}.",
                code="invalid-chunk",
                operation="chunk",
                received=self.chunk,
            )
        if self.chunk and self.rows > MAX_CHUNKS * self.chunk:
            raise UsageError(
                f"Expected at most {MAX_CHUNKS} chunks. Received: {self.rows} rows in chunks of "
                f"{self.chunk}.",
                code="too-large",
                operation="chunk",
                received=self.chunk,
                expected=MAX_CHUNKS,
            )
        if self.stopping is not None and (not self.reveal_loss or self.saving is not None):
            raise UsageError(
                "Early stopping by the loss requires a revealed loss (reveal_loss=True) and no "
                "checkpoint, as checkpoints do not store its state.",
                code="conflicting-options",
                operation="stopping",
            )
        if self.snapshots and (self.deploy is not None or self.saving is not None):
            raise UsageError(
                "Weights after each epoch are available only without deploy and without a "
                "checkpoint.",
                code="conflicting-options",
                operation="snapshots",
            )
        if self.snapshots and self.recipe.optimizer.use_ema:
            raise UsageError(
                "Callbacks that use the weights after each epoch do not support an optimizer "
                "that averages them (use_ema=True): the averages exist at the end only.",
                code="conflicting-options",
                operation="use_ema",
            )
        words = (self.epochs - self.first) * self.recipe.graph.weight_count
        if self.snapshots and words > MAX_SNAPSHOT_WORDS:
            raise UsageError(
                f"Expected at most {MAX_SNAPSHOT_WORDS} numbers as weights after each epoch. "
                f"Received: {words}. Train fewer epochs at a time (initial_epoch).",
                code="too-large",
                operation="snapshots",
                received=words,
                expected=MAX_SNAPSHOT_WORDS,
            )
        if self.recipe.weighted and (self.source is not None or self.reveal_loss):
            raise UsageError(
                "Weights of samples require a client's own rows and a loss that is not "
                "revealed: the revealed loss is unweighted.",
                code="conflicting-options",
                operation="sample_weight",
            )
        if self.source is not None and self.recipe.graph.scaling:  # known to the client alone
            raise UsageError(
                "The model begins with a Rescaling or Normalization, which the owner of the "
                "rows would compute; owners' rows cannot change. Train the layers behind it.",
                code="unsupported-layer",
                operation="source",
            )
        if self.holdout and self.source is None:
            raise UsageError(
                "holdout requires data sets of owners. Send test rows instead.",
                code="conflicting-options",
                operation="holdout",
            )
        if self.saving is not None:
            check_name(self.saving.name, _CHECKPOINT_NAME)
            _check_integer("every", self.saving.every, 1, MAX_STEPS)
            if type(self.saving.restart) is not bool:
                raise UsageError(
                    "Expected true or false as restart.", code="wrong-type", operation="restart"
                )

    # ---- steps

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches of an epoch; remaining rows appear in the next epoch's order."""
        return self.rows // self.recipe.batch

    @property
    def total_steps(self) -> int:
        """Number of steps of the training."""
        whole = (self.epochs - self.first) * self.steps_per_epoch
        return whole if self.steps is None else min(whole, self.steps)

    def batch_rows(self, step: int) -> Array:
        """Return the row indices of a step (from 0): public, and the same at all workers."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch not in self._orders:
            self._orders.clear()
            size = self.recipe.batch
            if epoch or not self.chunk:
                named = epoch + self.first
                self._orders[epoch] = draw_epoch_batches(
                    self.seed, named, self.rows, size, self.shuffle
                )
            else:
                parts = [
                    b.start + draw_epoch_batches(self.seed, -3 - number, len(b), size, self.shuffle)
                    for number, b in enumerate(self.chunk_ranges)
                ]
                self._orders[epoch] = np.concatenate(parts)
        return np.asarray(self._orders[epoch][within])

    @property
    def chunk_ranges(self) -> list[range]:
        """The rows of each chunk."""
        if not self.chunk:
            return []
        starts = range(0, self.rows, self.chunk)
        return [range(b, min(b + self.chunk, self.rows)) for b in starts]

    def split_holdout(self) -> tuple[Array, Array]:
        """Return the row indices (training, test) of data sets: public."""
        order = draw_epoch_permutation(self.seed, _HELD_OUT, self.rows + self.holdout)
        return np.sort(order[self.holdout :]), np.sort(order[: self.holdout])

    # ---- serialization

    def to_header(self) -> dict[str, Any]:
        """Return the job as JSON."""
        header = {}
        for job_field in fields(self):
            value = getattr(self, job_field.name)
            if job_field.init and (
                job_field.name not in _OPTIONAL_FIELDS or value != job_field.default
            ):
                convert = getattr(value, "to_header", None)
                header[job_field.name] = value if convert is None else convert()
        return header

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> TrainingJob:
        """Read the job of a header from an untrusted source.

        Raises:
            UsageError, DataError: the header is invalid.
        """
        known_names = [job_field.name for job_field in fields(cls) if job_field.init]
        check_known("train", header, known_names)
        for name in ("recipe", "epochs", "rows", "seed"):
            if name not in header:
                raise UsageError(
                    f"The program train requires {name!r}.", code="missing-argument", operation=name
                )
        options = dict(header)
        recipe = Recipe.from_header(options.pop("recipe"))
        source, saving = options.pop("source", None), options.pop("saving", None)
        deploy = options.get("deploy")
        if deploy is not None and not isinstance(deploy, Mapping):
            raise UsageError(
                "Expected the parameters of the program deploy as deploy.",
                code="invalid-parameters",
                operation="deploy",
            )
        stopping = options.pop("stopping", None)
        return cls(
            recipe,
            stopping=None if stopping is None else EarlyStoppingRule.from_header(stopping),
            source=None if source is None else DatasetRef.from_header(source),
            saving=None if saving is None else CheckpointOptions.from_header(saving),
            **options,
        )

    def checkpoint_facts(self) -> dict[str, Any]:
        """Return the facts in which a checkpoint and the training that continues from it agree.

        The learning rates are excluded: a training that diverged continues with lower ones.
        """
        facts = {k: v for k, v in self.to_header().items() if k in _CHECKPOINT_FIELDS}
        recipe = anonymize_training_recipe(facts["recipe"])
        optimizer = {k: v for k, v in recipe["optimizer"].items() if k != "schedule"}
        return {**facts, "recipe": {**recipe, "optimizer": optimizer}}

    def expected_inputs(self) -> list[InputSpec]:
        """Return the expected inputs of the job."""
        recipe, numbers = self.recipe, self.recipe.numbers
        specs_list = [
            InputSpec(training_state_name(i), spec.shape, spec.fractional_bits)
            for i, spec in enumerate(list_training_state_specs(recipe))
        ]

        def add_rows(
            count: int, x: str, y: str, label: tuple[int, ...], late: bool = False
        ) -> None:
            for name, shape, bits in (
                (x, recipe.input_shape, numbers.activation),
                (y, label, numbers.gradient),
            ):
                specs_list.append(InputSpec(name, (count, *shape), bits, late=late))

        if self.source is None and self.rows and not self.chunk:
            add_rows(self.rows, "x", "y", recipe.label_shape)
        if self.test:
            add_rows(self.test, "test_x", "test_y", recipe.output_shape)
        for number, b in enumerate(self.chunk_ranges):
            add_rows(len(b), f"x{number}", f"y{number}", recipe.label_shape, late=True)
        return specs_list

    def check_inputs(self, inputs: Sequence[InputSpec]) -> None:
        """Reject inputs other than those of the job.

        Raises:
            UsageError: an input differs; the text names the first one.
        """
        expected = self.expected_inputs()
        for received, expected_input in zip(inputs, expected, strict=False):
            if received != expected_input:
                raise UsageError(
                    f"Expected the input {expected_input.name!r}: {list(expected_input.shape)} "
                    f"with {expected_input.fractional_bits} fractional bits. Received: "
                    f"{received.name!r}, {list(received.shape)} with {received.fractional_bits}.",
                    code="unexpected-inputs",
                    operation=expected_input.name,
                    received=received.name,
                )
        if len(inputs) != len(expected):
            raise UsageError(
                f"Expected {len(expected)} inputs of this job. Received: {len(inputs)}.",
                code="unexpected-inputs",
                received=len(inputs),
                expected=len(expected),
            )

    def check_schema(self, schema: CombinedSchema) -> None:
        """Reject owners' data that the model does not accept.

        Raises:
            UsageError: rows or shapes differ; the text names the difference.
        """
        if schema.rows != self.rows + self.holdout:
            raise UsageError(
                f"The owners have provided {schema.rows} rows. Received: a job for {self.rows} "
                f"rows and {self.holdout} test rows. Submit it again.",
                code="row-count-mismatch",
                operation="source",
                received=self.rows + self.holdout,
                expected=schema.rows,
            )
        if (schema.x, schema.y) != (self.recipe.input_shape, self.recipe.output_shape):
            raise UsageError(
                f"Expected features {list(self.recipe.input_shape)} and labels "
                f"{list(self.recipe.output_shape)} of each row. Received: owners' data with "
                f"{list(schema.x)} and {list(schema.y)}.",
                code="shape-mismatch",
                operation="source",
                received=[list(schema.x), list(schema.y)],
            )

    def check_scales(self, x: int, y: int) -> None:
        """Reject owners' data at another scale.

        Raises:
            UsageError: its fractional bits differ from the recipe's.
        """
        numbers = self.recipe.numbers
        if (x, y) != (numbers.activation, numbers.gradient):
            raise UsageError(
                f"Expected features with {numbers.activation} and labels with {numbers.gradient} "
                f"fractional bits. Received: owners' data with {x} and {y}. The owners must "
                "provide it again (--replace).",
                code="scale-mismatch",
                operation="source",
                received=[x, y],
                expected=[numbers.activation, numbers.gradient],
            )


def training_state_name(number: int) -> str:
    """Return the name of a state array as an input and an output of the job."""
    return f"state{number}"


def weight_snapshot_name(epoch: int, number: int) -> str:
    """Return the name of a weight array after an epoch of the job (from 0), as its output."""
    return f"epoch{epoch}/{training_state_name(number)}"


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise UsageError(
            f"Expected an integer from {low} to {high} as {name}. Received: {value!r}.",
            code="number-out-of-range",
            operation=name,
            received=value,
        )
