"""Public parameters of one training job, as its client submits them and the workers check them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.schema import (
    Header,
    Rule,
    checked_field,
    choice_field,
    declare_field,
    flag_field,
    header_rule,
    integer_field,
    integer_rule,
    mapping_rule,
    optional_rule,
)
from tfe_bench.cluster.stored import check_name
from tfe_bench.csv_file import MAX_ROWS
from tfe_bench.errors import UsageError
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
class CheckpointOptions(Header, subject="The options of checkpoints", is_complete=True):
    """Options of a training's checkpoints.

    Attributes:
        name: name at the workers.
        every: number of steps between checkpoints.
        restart: whether to delete existing checkpoints.
    """

    name: str = declare_field(Rule(lambda name: check_name(name, "A checkpoint's name")))
    every: int = integer_field(1, MAX_STEPS, default=100)
    restart: bool = flag_field(default=False)

    def __post_init__(self) -> None:
        self.check_fields()


@dataclass(frozen=True, eq=False)
class TrainingJob(Header, subject="A training", writes_defaults=True):
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

    recipe: Recipe = declare_field(header_rule(Recipe))
    epochs: int = integer_field(0, MAX_EPOCHS)
    rows: int = integer_field(0, MAX_ROWS)
    seed: int = integer_field(0, (1 << 63) - 1)
    _: KW_ONLY
    profile: str = choice_field(profiles.PROFILES, default="local")
    steps: int | None = declare_field(optional_rule(integer_rule(1, MAX_STEPS)), None)
    test: int = integer_field(0, MAX_ROWS, default=0)
    source: DatasetRef | None = declare_field(optional_rule(header_rule(DatasetRef)), None)
    holdout: int = integer_field(0, MAX_ROWS, default=0)
    saving: CheckpointOptions | None = declare_field(
        optional_rule(header_rule(CheckpointOptions)), None
    )
    deploy: Mapping[str, Any] | None = declare_field(
        optional_rule(mapping_rule(Rule(lambda value: value), 1 << 10)), None
    )
    guard: int = integer_field(0, MAX_STEPS, default=0)
    reveal_loss: bool = flag_field(default=False)
    trace: bool = flag_field(default=False)
    chunk: int = integer_field(0, MAX_ROWS, default=0)
    first: int = checked_field(default=0)
    shuffle: bool = flag_field(default=True)
    stopping: EarlyStoppingRule | None = declare_field(
        optional_rule(header_rule(EarlyStoppingRule)), None
    )
    snapshots: bool = flag_field(default=False)
    watch: str = choice_field((step.NOTHING, step.VALUES, step.ALL), default=step.NOTHING)
    _orders: dict[int, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.check_fields()
        last = max(0, self.epochs - 1)
        if type(self.first) is not int or not 0 <= self.first <= last:
            raise UsageError(
                f"Expected an integer from 0 to {last} as initial_epoch. Received: "
                f"{str(self.first)[:80]}.",
                code="number-out-of-range",
                operation="initial_epoch",
                received=self.first,
            )
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
        header = super().to_header()
        return {
            name: value
            for name, value in header.items()
            if name not in _OPTIONAL_FIELDS or value != getattr(TrainingJob, name)
        }

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
