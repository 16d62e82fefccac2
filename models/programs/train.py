"""The program "train": steps of private training, on a client's rows or on those of data owners.

What the workers see: the recipe, the order of the rows (by number), the step they are at.  Scores
and weights leave for the client that ordered the job, or stay here as a deployed model.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfe_bench.cluster import profiles, tracing
from tfe_bench.cluster.barrier import begin_together
from tfe_bench.cluster.jobs import FUNCTION_GROWTH, GROWTH, Context, InputSpec, Program
from tfe_bench.cluster.store import Store
from tfe_bench.cluster.stored import CHECKPOINTS, Sources
from tfe_bench.cluster.timing import metered
from tfe_bench.errors import RangeError
from tfe_bench.models import deploying, kept, sources
from tfe_bench.models.checkpoint import Checkpoints
from tfe_bench.models.feed import Feed, take
from tfe_bench.models.kinds import registry
from tfe_bench.models.training import evaluate, state, step
from tfe_bench.models.training_job import RANGE, TrainingJob, snapshot_name, state_name
from tfe_bench.protocols.ring import arithmetic, shapes, truncation
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.sharing import Shared

# Rows that are evaluated at once: no more, and no more than keep the largest value to so many.
_MOST_TESTED, _MOST_ELEMENTS = 1000, 6_000_000
_SCORE = "score/"
# Parts of a training that are told apart where a value left its range.
_MOST_LEFT = 1000
# Fractional bits of a mean loss that becomes public.
_LOSS_BITS = 16


def check(parameters: Mapping[str, Any], inputs: Sequence[InputSpec]) -> None:
    """Refuses what is no training.

    Raises:
        UsageError, DataError: naming what does not fit.
    """
    job = TrainingJob.of(parameters)
    job.check_inputs(inputs)
    if job.deploy is not None:
        deploying.check(job.recipe, job.deploy)


def permit(
    client: str, store: Store, parameters: Mapping[str, Any], _: Sequence[InputSpec]
) -> None:
    """Refuses a client that may not use the data, or not keep what it wants to be kept.

    Raises:
        UsageError, PolicyError: as Store.facts and Store.permit_writing; data that does not fit.
    """
    job = TrainingJob.of(parameters)
    if job.source is not None:
        job.check_joined(sources.permitted(job.source, store, client))
    if job.deploy is not None:
        store.permit_writing(job.deploy["name"], client, job.deploy["replace"])
    if job.saving is not None:
        store.of(CHECKPOINTS[0]).names()  # PolicyError where the operator keeps nothing


def needs(parameters: Mapping[str, Any]) -> Sequence[str]:
    """The program whose work is done at the end: a trained model that stays is a deployed one."""
    return () if parameters.get("deploy") is None else ("deploy",)


def kept_names(parameters: Mapping[str, Any]) -> Sequence[str]:
    """The data that owners have provided, and the model that is kept."""
    job = TrainingJob.of(parameters)
    names = [] if job.source is None else list(job.source.names)
    return names if job.deploy is None else [*names, job.deploy["name"]]


def size(
    client: str, store: Store, parameters: Mapping[str, Any], inputs: Sequence[InputSpec]
) -> int:
    """Words of all rows, or of what is made of a batch of them, of test rows or of weights."""
    job = TrainingJob.of(parameters)
    recipe = job.recipe
    graph = recipe.graph
    largest = max(math.prod(shape) for shape in graph.shapes.values())
    curved = [x.name for x in graph.layers if registry.find(x.op).heavy]
    smooth = max(math.prod(graph.shapes[name]) for name in (*graph.outputs, *curved))
    weights = max((w.size for w in graph.arrays().values()), default=0)
    features = max(math.prod(recipe.input_shape), math.prod(recipe.output_shape))
    return max(
        GROWTH * max(recipe.batch * largest, _tested(job) * largest),
        FUNCTION_GROWTH * max(recipe.batch, _tested(job)) * smooth,
        (FUNCTION_GROWTH if recipe.optimizer.heavy else GROWTH) * weights,
        (job.rows + job.holdout) * features,
    )


def _tested(job: TrainingJob) -> int:
    """Rows that are evaluated at once."""
    largest = max((math.prod(shape) for shape in job.recipe.graph.shapes.values()), default=1)
    most = max(1, min(_MOST_TESTED, _MOST_ELEMENTS // largest))
    return min(most, job.test + job.holdout)


def run(context: Context) -> dict[str, Shared]:
    """Trains, evaluates after each epoch, and hands over scores and weights."""
    return _Training(context).run()


class _Training:
    """One job at one worker."""

    def __init__(self, context: Context) -> None:
        self._context, self._party = context, context.party
        self._job = TrainingJob.of(context.parameters)
        self._recipe = self._job.recipe
        self._setting = step.tuned(self._recipe, profiles.get(self._job.profile).plan)
        self._checkpoints: Checkpoints | None = None
        self._sources: Sources = frozenset()
        self._scores: dict[int, Shared] = {}
        self._losses: list[float] = []
        self._ended = False
        self._snapshots: list[dict[str, Shared]] = []
        self._loss: Shared | None = None
        self._left: dict[int, Shared] = {}
        self._since = 0
        self._times: list[float] = []
        self._cpu: list[float] = []
        self._metered: dict[str, Any] = {}
        self._other = {"evaluate_seconds": 0.0, "checkpoint_seconds": 0.0, "input_seconds": 0.0}

    def run(self) -> dict[str, Shared]:
        """The whole job."""
        about = (json.dumps(self._context.parameters["recipe"], sort_keys=True), self._job.profile)
        job = self._job
        with self._party.kept_graphs(("train", *about, job.reveal_loss, job.watch)):
            return self._run()

    def _run(self) -> dict[str, Shared]:
        context, job, party = self._context, self._job, self._party
        self._keys = [spec.key for spec in state.specs(self._recipe)]
        begun = 0
        store = kept.store_of(context) if job.source or job.saving or job.deploy else None
        if store is not None:
            self._sources = sources.derived(job.source, store, context.client)
        self._state = {key: context.inputs.pop(state_name(i)) for i, key in enumerate(self._keys)}
        if job.saving is not None:
            begun = self._resume()
        self._feed = Feed(context, job)
        # (rows that are there may be a chunk of them, or all)
        self._function = party.function(self._graph, dynamic=(1, 2))
        done = begun
        while done < job.total and not self._ended:
            self._step(done)
            done += 1
            if done % job.steps_per_epoch == 0 or done == job.total:
                self._end_epoch(done)
            saves = self._checkpoints is not None and (
                done % (job.saving.every if job.saving else 1) == 0 or done == job.total
            )
            last = done == job.total or self._ended
            looks = job.guard and (done % job.guard == 0 or saves or last)
            if looks:
                self._look(done)
            if saves:
                self._save(done)
        if not job.total and job.test:
            self._evaluate(0)
        self._measure(begun, done)
        return self._outputs()

    # ---- what it starts from

    def _resume(self) -> int:
        job, saving = self._job, self._job.saving
        assert saving is not None
        store = kept.store_of(self._context)
        found = Checkpoints(
            self._party, store, saving.name, self._context.client, job.what(), self._sources
        )
        self._checkpoints = found
        if saving.restart:
            found.forget()
        latest = found.latest()
        if latest is None:
            self._save(0)
            return 0
        begun, values = latest
        # Masks of its own for what goes on in this session.
        fresh = kept.refreshed(self._party, values)
        self._state = {key: fresh[state_name(i)] for i, key in enumerate(self._keys)}
        for key, value in fresh.items():
            if key.startswith(_SCORE):
                self._scores[int(key.removeprefix(_SCORE))] = value
            if key == RANGE:
                self._left[begun] = value
        self._context.progress(0.0, f"going on from step {begun}")
        return begun

    # ---- steps

    def _graph(
        self, held: dict[str, Shared], x: Shared, y: Shared, rows: Any, public: dict[str, Any]
    ) -> tuple[dict[str, Shared], Shared | None, Shared | None]:
        batch, job = (take(x, rows), take(y, rows)), self._job
        left: dict[str, Shared] | None = {} if job.watch else None
        about = (self._party, self._recipe, self._setting, held, *batch, public, job.reveal_loss)
        result, loss = step.step(*about, left, job.watch)
        return result, loss, shapes.concat(list(left.values()), 0) if left else None

    def _step(self, number: int) -> None:
        job, party = self._job, self._party
        wait = time.perf_counter()
        x, y, rows = self._feed.batch(number)
        self._other["input_seconds"] += time.perf_counter() - wait
        public = step.public_values(self._recipe, number)

        def once() -> Any:
            return self._function(self._state, x, y, rows, public)

        cpu, started = time.process_time(), time.perf_counter()
        # The first is traced; what one sends is counted at the next.
        if self._metered or (not self._times and number + 1 < job.total):
            self._state, loss, left = once()
            took = time.perf_counter() - started
        else:
            (self._state, loss, left), self._metered = metered(party, once)
            took = self._metered["breakdown"]["run"]
        self._times.append(took)
        self._cpu.append(time.process_time() - cpu)
        if loss is not None:
            self._loss = loss if self._loss is None else arithmetic.add(self._loss, loss)
            self._since += 1
        if left is not None:
            every = -(-job.total // _MOST_LEFT)
            end = min((number // every + 1) * every, job.total)
            old = self._left.get(end)
            self._left[end] = left if old is None else arithmetic.add(old, left)
        self._tell(number + 1)

    def _tell(self, done: int) -> None:
        job = self._job
        per = job.steps_per_epoch
        epoch, within = divmod(done - 1, per)
        recent = sorted(self._times[-25:])
        seconds = recent[len(recent) // 2]
        text = f"epoch {job.first + epoch + 1} of {job.epochs}, step {within + 1} of {per}, "
        text += f"{1000 * seconds:.3g} ms per batch"
        if self._losses:
            text += f", loss {self._losses[-1]:.4f}"
        self._context.progress(done / job.total, text)

    def _end_epoch(self, done: int) -> None:
        if self._loss is not None:
            self._losses.append(self._revealed_loss(self._loss))
            self._loss, self._since = None, 0
            rule, epoch = self._job.stopping, (done - 1) // self._job.steps_per_epoch
            if rule is not None:
                self._ended = rule.ends(self._job.first + epoch, self._losses[-1])
        if self._feed.test is not None:
            self._evaluate(done)
        if self._job.snapshots:
            self._snapshots.append({key: self._state[key] for key in self._recipe.order})

    def _revealed_loss(self, total: Shared) -> float:
        """The mean loss of an epoch (since the checkpoint), which its client wants to be public."""
        party, recipe = self._party, self._recipe
        rows = self._since * recipe.batch
        answers = rows * recipe.loss.terms(recipe.output_shape)
        # The mean with _LOSS_BITS, not the sum with all its bits; rounded by no coin that a worker
        # could relate to what is dropped.
        drop = total.fractional_bits - _LOSS_BITS + answers.bit_length() - 1
        drop = min(drop, truncation.MOST_DROPPED)
        published = party.cached_function(
            ("loss", drop),
            lambda: lambda v: io.reveal(party, truncation.truncate(party, v, drop, "exact")),
        )
        value = float(np.asarray(published(total))) * 2.0 ** (drop - total.fractional_bits)
        return step.mean_loss(recipe, value, rows)

    def _evaluate(self, done: int) -> None:
        """The score on the test rows; it stays private."""
        assert self._feed.test is not None
        started = time.perf_counter()
        x, y = self._feed.test
        count = int(x.shape[0])
        size = _tested(self._job)
        party, recipe, setting = self._party, self._recipe, self._setting
        scored = party.cached_function(
            "score", lambda: lambda held, a, b: evaluate.score(party, recipe, setting, held, a, b)
        )
        total: Shared | None = None
        for begin in range(0, count, size):
            cut = [v.map(lambda a, b=begin: a[b : b + size]) for v in (x, y)]
            part = scored(self._state, *cut)
            total = part if total is None else arithmetic.add(total, part)
        assert total is not None
        self._scores[done] = total
        self._other["evaluate_seconds"] += time.perf_counter() - started

    # ---- what is kept, and looked at

    def _save(self, done: int) -> None:
        assert self._checkpoints is not None
        started = time.perf_counter()
        values = {state_name(i): self._state[key] for i, key in enumerate(self._keys)}
        values.update({f"{_SCORE}{after}": value for after, value in self._scores.items()})
        if self._left:
            values[RANGE] = functools.reduce(arithmetic.add, self._left.values())
        self._checkpoints.save(done, values)
        self._other["checkpoint_seconds"] += time.perf_counter() - started

    def _look(self, done: int) -> None:
        """Ends a training whose weights have left their range; publishes that bit alone."""
        party = self._party
        looked = party.cached_function("look", lambda: lambda w: evaluate.weights_left(party, w))
        weights = [self._state[key] for key in state.learned(self._recipe)]
        if not int(np.asarray(looked(weights))):
            return
        last = self._checkpoints.last if self._checkpoints is not None else None
        saving = self._job.saving
        back = (
            f"The last good checkpoint is {saving.name!r}, step {last}: go on from it with a lower "
            "learning rate."
            if saving is not None and last is not None
            else "Train anew with a lower learning rate, and with checkpoints to go back to."
        )
        raise RangeError(
            f"The training diverges: at step {done} weights have left |w| < "
            f"{evaluate.LARGEST_WEIGHT:g}, which fixed point holds. {back}"
        )

    # ---- what leaves

    def _outputs(self) -> dict[str, Shared]:
        job = self._job
        leaving: dict[str, Shared] = {}
        weights = state.final(job.recipe, self._state)
        if job.deploy is not None:
            deploying.deploy(self._context, job.recipe, job.deploy, weights, self._sources)
        elif job.total:
            numbered = {key: i for i, key in enumerate(self._keys)}
            leaving = {state_name(numbered[k]): v for k, v in weights.items()}
            # (those after the last epoch are what leaves anyway)
            for epoch, held in enumerate(self._snapshots[:-1]):
                leaving |= {snapshot_name(epoch, numbered[k]): v for k, v in held.items()}
        if self._scores:
            several = [self._scores[after] for after in sorted(self._scores)]
            leaving["scores"] = shapes.stack(several, 0)
        if self._left:
            leaving[RANGE] = shapes.stack(list(self._left.values()), 0)
        return kept.refreshed(self._party, leaving) if leaving else {}

    def _measure(self, begun: int, done: int) -> None:
        party, context, job = self._party, self._context, self._job
        measured = self._metered
        # The first step is traced as well.
        timed = self._times[1:] if len(self._times) > 1 else self._times
        context.measurements.update(
            measured,
            seconds=[round(t, 6) for t in timed],
            cpu_seconds=[sum(self._cpu[-len(timed) :]) / len(timed)] if timed else [],
            build_seconds=party.build_seconds,
            trace_seconds=party.build_seconds,
            variant=f"planned for {self._setting.profile}",
            first_step=begun,
            steps=done,
            scored=sorted(self._scores),
            losses=self._losses,
            watched=list(self._left),
            **self._other,
        )
        if job.trace and measured:
            number = min(done, job.total) - 1

            def once() -> Any:
                public = step.public_values(self._recipe, number)
                x, y, rows = self._feed.batch(number)
                return self._function(self._state, x, y, rows, public)

            context.progress(1.0, "tracing")
            _, context.measurements["trace"] = tracing.watched(party, once)
        begin_together(party)


PROGRAM = Program(
    "train",
    run,
    check,
    "trains a private model on private data",
    permit=permit,
    late=True,
    needs=needs,
    kept_names=kept_names,
    size=size,
)
