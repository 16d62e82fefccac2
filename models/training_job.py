"""What is public about one training job, as its client orders it and the workers check it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

import numpy as np

from tfe_bench.cluster import profiles
from tfe_bench.cluster.jobs import InputSpec, check_known
from tfe_bench.cluster.stored import check_name
from tfe_bench.errors import UsageError, check_one_of
from tfe_bench.models.csv_file import MAX_ROWS
from tfe_bench.models.datasets import Array
from tfe_bench.models.sources import CombinedSchema, DatasetRef
from tfe_bench.models.training import step
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.shuffling import draw_batches, draw_permutation
from tfe_bench.models.training.state import list_specs
from tfe_bench.models.training.stopping import Stopping

MAX_CHUNKS = 1 << 14
MAX_EPOCHS, MAX_STEPS = 100_000, 10**9
# Of all epochs together, 8 bytes each.
MAX_SNAPSHOT_WORDS = 1 << 24
# In place of an epoch, for the draw of rows that none trains on; rows.SHUFFLED is -2, and chunks
# have -3 and below.
_HELD_OUT = -1
# The job's output that says where values left their range.
RANGE = "range"
_CHECKPOINT_NAME = "A checkpoint's name"
# Fields of an order that are told where they say something.
_OPTIONAL_FIELDS = ("first", "shuffle", "stopping", "snapshots", "watch")
# Fields that a checkpoint and the training that goes on from it have in common.
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
)
_CHECKPOINT_FIELDS += ("watch",)


@dataclass(frozen=True)
class CheckpointOptions:
    """Checkpoints of a training.

    Attributes:
        name: at the workers.
        every: steps from one to the next.
        restart: whether to forget those that there are.
    """

    name: str
    every: int = 100
    restart: bool = False

    def header(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One training job.

    Attributes:
        recipe: model, loss, optimizer, batch.
        epochs: through all rows; 0 evaluates alone.
        rows: to train on.
        seed: of the order of the rows, the same as in plaintext: public.
        profile: the network that protocols plan for.
        steps: at which training ends before its epochs do; None for no such end.
        test: rows to evaluate on, sent by the client; 0 for none.
        source: data that owners have provided; None where the client sends it.
        holdout: rows of the source that are kept for evaluation.
        saving: checkpoints; None for none.
        deploy: parameters of the program "deploy" for the trained model: it stays at the workers.
            None: its weights go to the client.
        guard: steps from one look whether weights left their range to the next; 0 never looks.
            Each look tells the workers one bit.
        reveal_loss: whether the mean loss of each epoch becomes public.
        watch: which values are checked to stay in their range, for the client alone (step.ALL).
        trace: whether one more step is watched closely.
        chunk: rows that the client sends at once, a multiple of the batch; the first epoch takes
            them as they come, while the next ones are shared.  0: all before the first step.
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
    stopping: Stopping | None = None
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
                raise UsageError(f"{name} is true or false. Received: {getattr(self, name)!r}.")
        check_one_of("watch is", self.watch, (step.NOTHING, step.VALUES, step.ALL))
        if not isinstance(self.profile, str):
            raise UsageError(f"A profile is a name. Received: {str(self.profile)[:80]!r}.")
        profiles.get_profile(self.profile)
        if self.epochs and self.rows < self.recipe.batch:
            raise UsageError(
                f"There are fewer rows than one batch. Received: {self.rows} rows and batches of "
                f"{self.recipe.batch}."
            )
        if self.chunk and (self.chunk % self.recipe.batch or self.source is not None):
            raise UsageError(
                f"A chunk of a client's rows is a multiple of the batch. Received: {self.chunk}."
            )
        if self.chunk and self.rows > MAX_CHUNKS * self.chunk:
            raise UsageError(
                f"Rows come in at most {MAX_CHUNKS} chunks. Received: {self.rows} rows in chunks "
                f"of {self.chunk}."
            )
        if self.stopping is not None and (not self.reveal_loss or self.saving is not None):
            raise UsageError(
                "Training ends early by the loss, if that is revealed (reveal_loss=True), and "
                "without a checkpoint, which does not remember it."
            )
        if self.snapshots and (self.deploy is not None or self.saving is not None):
            raise UsageError(
                "The weights after each epoch leave trainings without deploy and without a "
                "checkpoint."
            )
        if self.snapshots and self.recipe.optimizer.use_ema:
            raise UsageError(
                "Callbacks that look at the weights after each epoch do not go with an optimizer "
                "that averages them (use_ema=True): the averages come at the end."
            )
        words = (self.epochs - self.first) * self.recipe.graph.weight_count
        if self.snapshots and words > MAX_SNAPSHOT_WORDS:
            raise UsageError(
                f"The weights after each epoch are at most {MAX_SNAPSHOT_WORDS} numbers. Received: "
                f"{words}. Train fewer epochs at a time (initial_epoch)."
            )
        if self.recipe.weighted and (self.source is not None or self.reveal_loss):
            raise UsageError(
                "Weights of samples go with a client's own rows, and with a loss that is not "
                "revealed: that loss knows no weights."
            )
        if self.source is not None and self.recipe.graph.scaling:  # (known to the client alone)
            raise UsageError(
                "The model begins with a Rescaling or Normalization, which the owner of the rows "
                "computes; owners' rows are as they provided them. Train the layers behind it."
            )
        if self.holdout and self.source is None:
            raise UsageError("Rows are held out of what owners provide. Send test rows instead.")
        if self.saving is not None:
            check_name(self.saving.name, _CHECKPOINT_NAME)
            _check_integer("every", self.saving.every, 1, MAX_STEPS)
            if type(self.saving.restart) is not bool:
                raise UsageError("restart is true or false.")

    # ---- steps

    @property
    def steps_per_epoch(self) -> int:
        """Full batches of an epoch; the rows that are left over come in the next one's order."""
        return self.rows // self.recipe.batch

    @property
    def total_steps(self) -> int:
        """Steps of the training."""
        whole = (self.epochs - self.first) * self.steps_per_epoch
        return whole if self.steps is None else min(whole, self.steps)

    def batch_rows(self, step: int) -> Array:
        """Indices of the rows of a step (from 0): public, the same at all workers."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch not in self._orders:
            self._orders.clear()
            size = self.recipe.batch
            if epoch or not self.chunk:
                named = epoch + self.first
                self._orders[epoch] = draw_batches(self.seed, named, self.rows, size, self.shuffle)
            else:
                parts = [
                    b.start + draw_batches(self.seed, -3 - number, len(b), size, self.shuffle)
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
        """Indices (to train on, to test) of a source's rows: public."""
        order = draw_permutation(self.seed, _HELD_OUT, self.rows + self.holdout)
        return np.sort(order[self.holdout :]), np.sort(order[: self.holdout])

    # ---- as data

    def header(self) -> dict[str, Any]:
        """As JSON holds it."""
        header = {}
        for job_field in fields(self):
            value = getattr(self, job_field.name)
            if job_field.init and (
                job_field.name not in _OPTIONAL_FIELDS or value != job_field.default
            ):
                convert = getattr(value, "to_header", None) or getattr(value, "header", None)
                header[job_field.name] = value if convert is None else convert()
        return header

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> TrainingJob:
        """The job of a header, which may come from a stranger.

        Raises:
            UsageError, DataError: it is none.
        """
        known_names = [job_field.name for job_field in fields(cls) if job_field.init]
        check_known("train", header, known_names)
        for name in ("recipe", "epochs", "rows", "seed"):
            if name not in header:
                raise UsageError(f"train wants {name!r}.")
        options = dict(header)
        recipe = Recipe.from_header(options.pop("recipe"))
        source, saving = options.pop("source", None), options.pop("saving", None)
        if saving is not None:
            if not isinstance(saving, Mapping) or set(saving) != {"name", "every", "restart"}:
                raise UsageError('Checkpoints have "name", "every" and "restart".')
            saving = CheckpointOptions(**saving)
        deploy = options.get("deploy")
        if deploy is not None and not isinstance(deploy, Mapping):
            raise UsageError("deploy holds the parameters of the program deploy.")
        stopping = options.pop("stopping", None)
        return cls(
            recipe,
            stopping=None if stopping is None else Stopping.from_header(stopping),
            source=None if source is None else DatasetRef.from_header(source),
            saving=saving,
            **options,
        )

    def checkpoint_facts(self) -> dict[str, Any]:
        """Facts that a checkpoint and the training that goes on from it have in common.

        The learning rates are not among them: who has diverged goes on with lower ones.
        """
        facts = {k: v for k, v in self.header().items() if k in _CHECKPOINT_FIELDS}
        recipe = _anonymize_recipe(facts["recipe"])
        optimizer = {k: v for k, v in recipe["optimizer"].items() if k != "schedule"}
        return {**facts, "recipe": {**recipe, "optimizer": optimizer}}

    def expected_inputs(self) -> list[InputSpec]:
        """The inputs of the job."""
        recipe, numbers = self.recipe, self.recipe.numbers
        specs_list = [
            InputSpec(state_name(i), spec.shape, spec.fractional_bits)
            for i, spec in enumerate(list_specs(recipe))
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
        """Refuses inputs that are not those of the job.

        Raises:
            UsageError: naming the first one.
        """
        expected = self.expected_inputs()
        for received, expected_input in zip(inputs, expected, strict=False):
            if received != expected_input:
                raise UsageError(
                    f"The input {expected_input.name!r} is {list(expected_input.shape)} with {expected_input.fractional_bits} "
                    f"fractional bits. Received: {received.name!r}, {list(received.shape)} with "
                    f"{received.fractional_bits}."
                )
        if len(inputs) != len(expected):
            raise UsageError(f"This job has {len(expected)} inputs. Received: {len(inputs)}.")

    def check_schema(self, schema: CombinedSchema) -> None:
        """Refuses owners' data that the model does not take.

        Raises:
            UsageError: naming what does not fit.
        """
        if schema.rows != self.rows + self.holdout:
            raise UsageError(
                f"The owners have provided {schema.rows} rows. Received: an order for {self.rows} "
                f"and {self.holdout} to test. Ask again."
            )
        if (schema.x, schema.y) != (self.recipe.input_shape, self.recipe.output_shape):
            raise UsageError(
                f"The model takes features {list(self.recipe.input_shape)} and labels "
                f"{list(self.recipe.output_shape)} of each row. Received: owners' data with "
                f"{list(schema.x)} and {list(schema.y)}."
            )

    def check_scales(self, x: int, y: int) -> None:
        """Refuses owners' data at another scale.

        Raises:
            UsageError: its fractional bits are not the recipe's.
        """
        numbers = self.recipe.numbers
        if (x, y) != (numbers.activation, numbers.gradient):
            raise UsageError(
                f"Features have {numbers.activation} and labels {numbers.gradient} fractional "
                f"bits. Received: owners' data with {x} and {y}. They provide it again (--replace)."
            )


def choose_range_checks(recipe: Recipe, profile: str, loss: bool, requested: bool | None) -> str:
    """Which values of a training are checked.

    Args:
        wanted: all of them or none; None: as far as that costs little (step.watchable).

    Raises:
        UsageError: wanted is something else, or an unknown profile.
    """
    if requested is None:
        return step.choose_range_checks(
            recipe, step.tune_setting(recipe, profiles.get_profile(profile).plan), loss
        )
    if type(requested) is not bool:
        raise UsageError(f"check_range is None, True or False. Received: {requested!r}.")
    return step.ALL if requested else step.NOTHING


def _anonymize_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's header without names: Keras numbers those of layers anew for every model."""
    graph = recipe["graph"]
    known_names = [
        *(name for name, _ in graph["inputs"]),
        *(row["name"] for row in graph["layers"]),
    ]
    number = {name: f"#{i}" for i, name in enumerate(known_names)}

    def anonymize_key(text: str) -> str:
        layer, _, weight = text.rpartition("/")
        return f"{number[layer]}/{weight}"

    layers = [
        {**row, "name": number[row["name"]], "inputs": [number[i] for i in row["inputs"]]}
        for row in graph["layers"]
    ]
    shapes = [shape for _, shape in graph["inputs"]]
    outputs = [number[name] for name in graph["outputs"]]
    nameless = {k: v for k, v in graph.items() if k != "name"}
    optimizer = recipe["optimizer"]
    return {
        **recipe,
        "optimizer": {
            **optimizer,
            "undecayed": sorted(anonymize_key(k) for k in optimizer["undecayed"]),
        },
        "graph": {**nameless, "inputs": shapes, "outputs": outputs, "layers": layers},
        "order": [anonymize_key(k) for k in recipe["order"]],
        "frozen": sorted(anonymize_key(k) for k in recipe["frozen"]),
        **{
            name: dict(sorted((anonymize_key(k), v) for k, v in recipe[name].items()))
            for name in ("penalties", "exponents")
        },
    }


def state_name(number: int) -> str:
    """Of an array of the state, as an input and an output of the job."""
    return f"state{number}"


def snapshot_name(epoch: int, number: int) -> str:
    """Of an array of the weights after an epoch of the job (from 0), as its output."""
    return f"epoch{epoch}/{state_name(number)}"


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise UsageError(f"{name} is an integer from {low} to {high}. Received: {value!r}.")
