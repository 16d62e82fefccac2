"""The program "train": steps of private training on a client's rows or on rows of data owners.

The workers see the recipe, the order of the rows (by number) and the current step.  Scores and
weights go to the client that submitted the job, or the weights stay as a deployed model.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.cluster import profiles, stored_shares, tracing
from tfe_bench.cluster.barrier import wait_at_worker_barrier
from tfe_bench.cluster.jobs import FUNCTION_GROWTH, GROWTH, Context, InputSpec, Program, Size
from tfe_bench.cluster.store import ShareStore
from tfe_bench.cluster.stored import CHECKPOINTS, Sources
from tfe_bench.cluster.timing import run_metered
from tfe_bench.errors import RangeError
from tfe_bench.models.datasets import sources
from tfe_bench.models.layers.base import registry
from tfe_bench.models.training import deploying, evaluate, state, step
from tfe_bench.models.training.checkpoint import Checkpoints
from tfe_bench.models.training.data_loader import DataLoader, take_training_rows
from tfe_bench.models.training.training_job import (
    RANGE,
    TrainingJob,
    training_state_name,
    weight_snapshot_name,
)
from tfe_bench.protocols.ring import arithmetic, shapes, truncation
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.openings import Opening
from tfe_bench.protocols.session.sharing import Shared

# Number of rows evaluated at once: at most this, and at most as many as keep the largest value
# below this number of elements.
_MAX_TESTED, _MAX_ELEMENTS = 1000, 6_000_000
_SCORE_PREFIX = "score/"
# Largest number of parts of a training with separate flags for values that left their range.
_MAX_RANGE_FLAGS = 1000
# Fractional bits of a revealed mean loss.
_LOSS_BITS = 16
MEAN_LOSSES = "mean losses"


def parse_training(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> TrainingJob:
    """Parse the job of a training, and check its inputs.

    Raises:
        UsageError, DataError: a parameter or an input is invalid; the text names it.
    """
    job = TrainingJob.from_header(parameters)
    job.check_inputs(inputs)
    if job.deploy is not None:
        deploying.check_trained_model(job.recipe, job.deploy)
    return job


def permit_training(
    client: str, store: ShareStore, job: TrainingJob, _: Sequence[InputSpec]
) -> None:
    """Reject a client that may not use the data, or may not store the results.

    Raises:
        UsageError, PolicyError: as ShareStore.get_facts and ShareStore.permit_writing; or the data
            does not fit.
    """
    if job.source is not None:
        job.check_schema(sources.check_permitted_datasets(job.source, store, client))
    if job.deploy is not None:
        store.permit_writing(job.deploy["name"], client, job.deploy["replace"])
    if job.saving is not None:
        # raises PolicyError if the operator stores no checkpoints
        store.for_kind(CHECKPOINTS[0]).list_names()


def required_programs(job: TrainingJob) -> Sequence[str]:
    """Return the program that the job runs at the end: "deploy" for a trained model that stays."""
    return () if job.deploy is None else ("deploy",)


def kept_names(job: TrainingJob) -> Sequence[str]:
    """Return the names of the data sets, and of the deployed model."""
    names = [] if job.source is None else list(job.source.names)
    return names if job.deploy is None else [*names, job.deploy["name"]]


def estimate_training_size(
    client: str, store: ShareStore, job: TrainingJob, inputs: Sequence[InputSpec]
) -> Size:
    """Estimate the words of all rows, a batch's values, test rows or weights; and openings."""
    recipe = job.recipe
    graph = recipe.graph
    largest = max(math.prod(shape) for shape in graph.shapes.values())
    curved = [x.name for x in graph.layers if registry.get_layer_kind(x.op).is_memory_heavy]
    smooth = max(math.prod(graph.shapes[name]) for name in (*graph.outputs, *curved))
    weights = max((w.size for w in graph.weight_arrays().values()), default=0)
    features = max(math.prod(recipe.input_shape), math.prod(recipe.output_shape))
    words = max(
        GROWTH * max(recipe.batch * largest, _test_batch_size(job) * largest),
        FUNCTION_GROWTH * max(recipe.batch, _test_batch_size(job)) * smooth,
        (FUNCTION_GROWTH if recipe.optimizer.compares_weights else GROWTH) * weights,
        (job.rows + job.holdout) * features,
    )
    return Size(words, openings=_count_training_openings(job))


def _count_training_openings(job: TrainingJob) -> tuple[Opening, ...]:
    """Return what a training that starts at its first step and runs to its last one opens."""
    steps, openings = job.total_steps, []
    if job.reveal_loss:
        epochs = -(-steps // max(1, job.steps_per_epoch))
        openings.append(Opening(MEAN_LOSSES, epochs, 64 * epochs))
    if job.guard:
        intervals = [job.guard] if job.saving is None else [job.guard, job.saving.every]
        checks = sum(
            done == steps or any(done % interval == 0 for interval in intervals)
            for done in range(1, steps + 1)
        )
        openings.append(Opening(evaluate.WEIGHT_CHECKS, checks, checks))
    return tuple(opening for opening in openings if opening.count)


def _test_batch_size(job: TrainingJob) -> int:
    """Return the number of rows that are evaluated at once."""
    largest = max((math.prod(shape) for shape in job.recipe.graph.shapes.values()), default=1)
    limit = max(1, min(_MAX_TESTED, _MAX_ELEMENTS // largest))
    return min(limit, job.test + job.holdout)


def run_training(context: Context) -> dict[str, Shared]:
    """Train, evaluate after each epoch, and return scores and weights."""
    return _TrainingRun(context).run_job()


class _TrainingRun:
    """One training job at one worker."""

    def __init__(self, context: Context) -> None:
        self._context, self._party = context, context.party
        self._job: TrainingJob = context.request
        self._recipe = self._job.recipe
        self._setting = step.tune_setting(
            self._recipe, profiles.get_profile(self._job.profile).plan
        )
        self._checkpoints: Checkpoints | None = None
        self._sources: Sources = frozenset()
        self._scores: dict[int, Shared] = {}
        self._losses: list[float] = []
        self._has_ended = False
        self._snapshots: list[dict[str, Shared]] = []
        self._loss_sum: Shared | None = None
        self._range_flags: dict[int, Shared] = {}
        self._loss_steps = 0
        self._step_seconds: list[float] = []
        self._cpu_seconds: list[float] = []
        self._measured_step: dict[str, Any] = {}
        self._other_seconds = {
            "evaluate_seconds": 0.0,
            "checkpoint_seconds": 0.0,
            "input_seconds": 0.0,
        }

    def run_job(self) -> dict[str, Shared]:
        """Run the whole job."""
        about = (json.dumps(self._context.parameters["recipe"], sort_keys=True), self._job.profile)
        job = self._job
        with self._party.kept_graphs(("train", *about, job.reveal_loss, job.watch)):
            return self._run_steps()

    def _run_steps(self) -> dict[str, Shared]:
        context, job, party = self._context, self._job, self._party
        self._keys = [spec.key for spec in state.list_training_state_specs(self._recipe)]
        first_step = 0
        store = (
            stored_shares.require_share_store(context)
            if job.source or job.saving or job.deploy
            else None
        )
        if store is not None:
            self._sources = sources.derive_training_sources(job.source, store, context.client)
        self._state = {
            key: context.inputs.pop(training_state_name(i)) for i, key in enumerate(self._keys)
        }
        if job.saving is not None:
            first_step = self._resume_checkpoint()
        self._loader = DataLoader(context, job)
        # the available rows are a chunk or all rows
        self._step_function = party.function(self._step_graph, dynamic=(1, 2))
        done = first_step
        while done < job.total_steps and not self._has_ended:
            self._run_step(done)
            done += 1
            if done % job.steps_per_epoch == 0 or done == job.total_steps:
                self._end_epoch(done)
            saves = self._checkpoints is not None and (
                done % (job.saving.every if job.saving else 1) == 0 or done == job.total_steps
            )
            last = done == job.total_steps or self._has_ended
            looks = job.guard and (done % job.guard == 0 or saves or last)
            if looks:
                self._check_divergence(done)
            if saves:
                self._save_checkpoint(done)
        if not job.total_steps and job.test:
            self._evaluate_test_rows(0)
        self._record_measurements(first_step, done)
        return self._build_outputs()

    # ---- initial state

    def _resume_checkpoint(self) -> int:
        job, saving = self._job, self._job.saving
        assert saving is not None
        store = stored_shares.require_share_store(self._context)
        checkpoints = Checkpoints(
            self._party,
            store,
            saving.name,
            self._context.client,
            job.checkpoint_facts(),
            self._sources,
        )
        self._checkpoints = checkpoints
        if saving.restart:
            checkpoints.remove_files()
        latest = checkpoints.load_latest()
        if latest is None:
            self._save_checkpoint(0)
            return 0
        begun, values = latest
        # Fresh masks for values that continue in this session.
        fresh = stored_shares.refresh_stored_shares(self._party, values)
        self._state = {key: fresh[training_state_name(i)] for i, key in enumerate(self._keys)}
        for key, value in fresh.items():
            if key.startswith(_SCORE_PREFIX):
                self._scores[int(key.removeprefix(_SCORE_PREFIX))] = value
            if key == RANGE:
                self._range_flags[begun] = value
        self._context.progress(0.0, f"going on from step {begun}")
        return begun

    # ---- steps

    def _step_graph(
        self,
        training_state: dict[str, Shared],
        x: Shared,
        y: Shared,
        rows: Any,
        public: dict[str, Any],
    ) -> tuple[dict[str, Shared], Shared | None, Shared | None]:
        batch, job = (take_training_rows(x, rows), take_training_rows(y, rows)), self._job
        range_flags: dict[str, Shared] | None = {} if job.watch else None
        about = (
            self._party,
            self._recipe,
            self._setting,
            training_state,
            *batch,
            public,
            job.reveal_loss,
        )
        result, loss = step.run_step(*about, range_flags, job.watch)
        return result, loss, shapes.concat(list(range_flags.values()), 0) if range_flags else None

    def _run_step(self, number: int) -> None:
        job, party = self._job, self._party
        wait = time.perf_counter()
        x, y, rows = self._loader.load_batch(number)
        self._other_seconds["input_seconds"] += time.perf_counter() - wait
        public = step.public_values(self._recipe, number)

        def run_function() -> Any:
            return self._step_function(self._state, x, y, rows, public)

        cpu, started = time.process_time(), time.perf_counter()
        # The first step is traced; the bytes of a step are measured at the next one.
        if self._measured_step or (not self._step_seconds and number + 1 < job.total_steps):
            self._state, loss, range_flags = run_function()
            seconds = time.perf_counter() - started
        else:
            (self._state, loss, range_flags), self._measured_step = run_metered(party, run_function)
            seconds = self._measured_step["breakdown"]["run"]
        self._step_seconds.append(seconds)
        self._cpu_seconds.append(time.process_time() - cpu)
        if loss is not None:
            self._loss_sum = (
                loss if self._loss_sum is None else arithmetic.add(self._loss_sum, loss)
            )
            self._loss_steps += 1
        if range_flags is not None:
            every = -(-job.total_steps // _MAX_RANGE_FLAGS)
            end = min((number // every + 1) * every, job.total_steps)
            old = self._range_flags.get(end)
            self._range_flags[end] = (
                range_flags if old is None else arithmetic.add(old, range_flags)
            )
        self._report_progress(number + 1)

    def _report_progress(self, done: int) -> None:
        job = self._job
        per = job.steps_per_epoch
        epoch, within = divmod(done - 1, per)
        recent = sorted(self._step_seconds[-25:])
        seconds = recent[len(recent) // 2]
        text = f"epoch {job.first + epoch + 1} of {job.epochs}, step {within + 1} of {per}, "
        text += f"{1000 * seconds:.3g} ms per batch"
        if self._losses:
            text += f", loss {self._losses[-1]:.4f}"
        self._context.progress(done / job.total_steps, text)

    def _end_epoch(self, done: int) -> None:
        if self._loss_sum is not None:
            self._losses.append(self._reveal_loss(self._loss_sum))
            self._loss_sum, self._loss_steps = None, 0
            rule, epoch = self._job.stopping, (done - 1) // self._job.steps_per_epoch
            if rule is not None:
                self._has_ended = rule.should_stop(self._job.first + epoch, self._losses[-1])
        if self._loader.test_rows is not None:
            self._evaluate_test_rows(done)
        if self._job.snapshots:
            self._snapshots.append({key: self._state[key] for key in self._recipe.order})

    def _reveal_loss(self, total: Shared) -> float:
        """Reveal the mean loss of an epoch (or since the checkpoint), as its client requested."""
        party, recipe = self._party, self._recipe
        rows = self._loss_steps * recipe.batch
        answers = rows * recipe.loss.count_terms(recipe.output_shape)
        # The mean with _LOSS_BITS, not the sum with all its bits; deterministic rounding, as a
        # worker could relate a random carry to the dropped bits.
        drop = total.fractional_bits - _LOSS_BITS + answers.bit_length() - 1
        drop = min(drop, truncation.MAX_DROPPED_BITS)
        published = party.cached_function(
            ("loss", drop),
            lambda: (
                lambda v: io.reveal(
                    party, truncation.truncate(party, v, drop, "exact"), what=MEAN_LOSSES
                )
            ),
        )
        value = float(np.asarray(published(total))) * 2.0 ** (drop - total.fractional_bits)
        return step.mean_training_loss(recipe, value, rows)

    def _evaluate_test_rows(self, done: int) -> None:
        """Compute the score on the test rows; it stays private."""
        assert self._loader.test_rows is not None
        started = time.perf_counter()
        x, y = self._loader.test_rows
        count = int(x.shape[0])
        size = _test_batch_size(self._job)
        party, recipe, setting = self._party, self._recipe, self._setting
        scored = party.cached_function(
            "score",
            lambda: (
                lambda held, a, b: evaluate.score_evaluation_batch(
                    party, recipe, setting, held, a, b
                )
            ),
        )
        total: Shared | None = None
        for begin in range(0, count, size):
            cut = [v.map(lambda a, b=begin: a[b : b + size]) for v in (x, y)]
            part = scored(self._state, *cut)
            total = part if total is None else arithmetic.add(total, part)
        assert total is not None
        self._scores[done] = total
        self._other_seconds["evaluate_seconds"] += time.perf_counter() - started

    # ---- checkpoints and divergence

    def _save_checkpoint(self, done: int) -> None:
        assert self._checkpoints is not None
        started = time.perf_counter()
        values = {training_state_name(i): self._state[key] for i, key in enumerate(self._keys)}
        values.update({f"{_SCORE_PREFIX}{after}": value for after, value in self._scores.items()})
        if self._range_flags:
            values[RANGE] = functools.reduce(arithmetic.add, self._range_flags.values())
        self._checkpoints.save_step(done, values)
        self._other_seconds["checkpoint_seconds"] += time.perf_counter() - started

    def _check_divergence(self, done: int) -> None:
        """End a training whose weights have left their range; that bit alone becomes public."""
        party = self._party
        looked = party.cached_function(
            "look", lambda: lambda w: evaluate.detect_weight_overflow(party, w)
        )
        weights = [self._state[key] for key in state.list_trained_keys(self._recipe)]
        if not int(np.asarray(looked(weights))):
            return
        last = self._checkpoints.last_step if self._checkpoints is not None else None
        saving = self._job.saving
        advice = (
            f"The last good checkpoint is {saving.name!r}, step {last}: continue with a lower "
            "learning rate."
            if saving is not None and last is not None
            else "Train from the start with a lower learning rate, and store checkpoints."
        )
        raise RangeError(
            f"The training diverges: at step {done} weights left |w| < "
            f"{evaluate.LARGEST_WEIGHT:g}, the limit of fixed point. {advice}",
            code="training-diverged",
            received=done,
        )

    # ---- outputs

    def _build_outputs(self) -> dict[str, Shared]:
        job = self._job
        leaving: dict[str, Shared] = {}
        weights = state.select_final_weights(job.recipe, self._state)
        if job.deploy is not None:
            deploying.store_trained_model(
                self._context, job.recipe, job.deploy, weights, self._sources
            )
        elif job.total_steps:
            numbered = {key: i for i, key in enumerate(self._keys)}
            leaving = {training_state_name(numbered[k]): v for k, v in weights.items()}
            # the weights after the last epoch are outputs anyway
            for epoch, snapshot in enumerate(self._snapshots[:-1]):
                leaving |= {
                    weight_snapshot_name(epoch, numbered[k]): v for k, v in snapshot.items()
                }
        if self._scores:
            several = [self._scores[after] for after in sorted(self._scores)]
            leaving["scores"] = shapes.stack(several, 0)
        if self._range_flags:
            leaving[RANGE] = shapes.stack(list(self._range_flags.values()), 0)
        return stored_shares.refresh_stored_shares(self._party, leaving) if leaving else {}

    def _record_measurements(self, first_step: int, done: int) -> None:
        party, context, job = self._party, self._context, self._job
        measured = self._measured_step
        # The first step includes tracing.
        timed = self._step_seconds[1:] if len(self._step_seconds) > 1 else self._step_seconds
        context.measurements.update(
            measured,
            seconds=[round(t, 6) for t in timed],
            cpu_seconds=[sum(self._cpu_seconds[-len(timed) :]) / len(timed)] if timed else [],
            build_seconds=party.build_seconds,
            trace_seconds=party.build_seconds,
            variant=f"planned for {self._setting.profile}",
            first_step=first_step,
            steps=done,
            scored=sorted(self._scores),
            losses=self._losses,
            watched=list(self._range_flags),
            **self._other_seconds,
        )
        if job.trace and measured:
            number = min(done, job.total_steps) - 1

            def run_function() -> Any:
                public = step.public_values(self._recipe, number)
                x, y, rows = self._loader.load_batch(number)
                return self._step_function(self._state, x, y, rows, public)

            context.progress(1.0, "tracing")
            _, context.measurements["trace"] = tracing.trace_worker_run(party, run_function)
        wait_at_worker_barrier(party)


PROGRAM = Program(
    "train",
    run_training,
    parse_training,
    "trains a private model on private data",
    permit=permit_training,
    late=True,
    needs=required_programs,
    kept_names=kept_names,
    size=estimate_training_size,
)
