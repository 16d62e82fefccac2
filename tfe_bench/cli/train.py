"""`python -m tfe_bench train`: private training of a model, its cost and accuracy."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, job_record, stored_objects, train_options
from tfe_bench.cli.train_options import NETWORKS, PICTURES
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.benchmarks.records import Record
    from tfe_bench.cluster.requests import JobResult, LateInput, PrivateInput
    from tfe_bench.models.convert.tables import Table
    from tfe_bench.models.datasets.readers import Rows
    from tfe_bench.models.datasets.sources import CombinedSchema, DatasetRef
    from tfe_bench.models.training.examples import TrainingExamples
    from tfe_bench.models.training.history import History
    from tfe_bench.models.training.trainable import Trainable
    from tfe_bench.models.training.training_job import TrainingJob

# As published: SGD with learning rate 0.01 and momentum 0.9, Adam and AMSGrad with 0.001.
_MOMENTUM = 0.9
# Largest difference of private and plaintext accuracy: both depend on randomness.
_TOLERANCE = 0.02
_MOST_TIMES = 255


def _add_train_options(p: argparse.ArgumentParser) -> None:
    train_options.add_train_options(p)
    p.set_defaults(repeat=1)


@dataclass(frozen=True, eq=False)
class _TrainingTask:
    """The model to train, and its rows.

    Attributes:
        private: the model on scaled columns.
        train: this client's rows to train on; None with owners' data.
        test: this client's rows to test on; None with owners' data.
        dataset: the name of the data set, for the record.
        table: columns, scales and target of the rows; None for pictures, or if no owner states
            them.
    """

    private: Trainable
    train: Rows | None
    test: Rows | None
    dataset: str
    table: Table | None


def run_train(arguments: argparse.Namespace) -> int:
    """Train a model on private data.

    Shares the weights of a model, rows and labels among three workers, which train the model
    without seeing any of them. Compares the result with the same training in plaintext. Rows come
    from this client or from data owners (see `provide`).
    """
    common.quiet_tensorflow()
    train_options.check_train_options(arguments)
    with common.command_progress_bar(arguments) as bar:
        bar.show_text("reading the data")
        user_model = _UserKerasModel.read_file(arguments.model)
        train, test = _read_training_rows(arguments, user_model)
        if train is not None:  # without a shuffle, chunks of sorted rows would be learned in order
            train = _shuffle_training_rows(train, arguments.seed)
        bar.show_text("building the model")
        needed = any(v is not None for v in (arguments.checkpoint, arguments.deploy))
        needed = needed or arguments.rows is not None or arguments.columns is not None
        if arguments.cluster is None and (needed or arguments.models is not None):
            arguments.keep = arguments.models or stored_objects.local_workers_folder()
        bar.show_text("starting the workers")
        with contextlib.ExitStack() as stack:
            if train is not None:
                task = _build_training_task(arguments, user_model, train, test, None)
                job, inputs = _build_training_job(arguments, task, None)
                cluster = stack.enter_context(common.open_cluster(arguments, bar))
            else:
                from tfe_bench.models.datasets import sources

                cluster = stack.enter_context(common.open_cluster(arguments, bar))
                names: Any = arguments.rows or arguments.columns
                datasets = sources.resolve_datasets(cluster, names, arguments.labels)
                task = _build_training_task(arguments, user_model, None, None, datasets[1])
                job, inputs = _build_training_job(arguments, task, datasets)
            history = task.private.run(cluster, job, inputs, bar.update)
        if not history.result.measured[0]["seconds"]:
            return _report_completed_training(arguments, task, history)
        plain = None
        if task.train is not None and not arguments.no_plain:
            plain = _train_in_plaintext(
                task, job, history, lambda f: bar.update(f, "training in plaintext")
            )
    return _report_training(arguments, _TrainingOutcome(task, job, history, plain), cluster)


def _report_completed_training(
    arguments: argparse.Namespace, task: _TrainingTask, history: History
) -> int:
    message = (
        f"The training {arguments.checkpoint!r} is complete: {history.steps} steps. --restart "
        "starts again, more --epochs continue."
    )
    _write_trained_models(arguments, task, history)
    if arguments.json:
        print(json.dumps({"complete": True, "steps": history.steps, **history.history}))
    else:
        print(message)
        for name, values in history.history.items():
            print(f"{name}: {', '.join(f'{v:.4f}' for v in values)}")
    return 0


# ---- models and rows


@dataclass(frozen=True, eq=False)
class _UserKerasModel:
    """A user's model and its columns.

    Attributes:
        model: the Keras model to train; None for a built-in model.
        table: columns and scales of the rows of an earlier training.
        raw: whether the model scales its columns itself.
    """

    model: Any = None
    table: Table | None = None
    raw: bool = False

    @classmethod
    def read_file(cls, name: str) -> _UserKerasModel:
        """Read the model of a .keras file.

        Raises:
            DataError: the file cannot be read.
            UsageError: the model cannot be trained.
        """
        if not name.endswith(".keras"):
            return cls()
        from tfe_bench.models.convert import from_keras, tables
        from tfe_bench.models.training import recipe

        model, table = from_keras.load_model(name), tables.load_table(name)
        if table is None:
            return cls(model, None, recipe.scales_model_inputs(model))
        if table.scale is not None or table.unit is not None:
            model = tables.find_scaled_model(model)
        return cls(model, table)


def _read_training_rows(
    arguments: argparse.Namespace, user_model: _UserKerasModel
) -> tuple[Rows | None, Rows | None]:
    """Return this client's rows to train on and to test on; None with owners' data.

    Raises:
        UsageError: options contradict the columns of the model.
    """
    from tfe_bench.models.datasets import readers as datasets

    if arguments.rows is not None or arguments.columns is not None:
        return None, None
    if arguments.dataset in PICTURES:
        target = "binary" if arguments.model == "logistic" else "classes"
        pair = datasets.load_digits(arguments.dataset, arguments.data_dir, target)
        return _limit_training_rows(arguments.limit, *pair)
    target = arguments.target or train_options.LEARNED.get(arguments.model, "classes")
    if user_model.table is not None:
        if arguments.features or arguments.drop or arguments.target is not None:
            raise UsageError(
                f"{arguments.model!r} determines the columns and the target. Received: --features, "
                "--drop or --target. Remove them.",
                code="conflicting-options",
                operation="--features",
                received=arguments.model,
            )
        target = user_model.table.target
    rows = datasets.table(
        arguments.dataset,
        arguments.label,
        target,
        standardize=not user_model.raw,
        columns=arguments.features,
        drop=arguments.drop,
        like=user_model.table,
    )
    return _limit_training_rows(
        arguments.limit, *datasets.split_training_rows(rows, arguments.seed)
    )


def _shuffle_training_rows(rows: Rows, seed: int) -> Rows:
    from tfe_bench.models.layers.base.public_randomness import draw_epoch_permutation
    from tfe_bench.models.training.examples import SHUFFLED

    return rows.take(draw_epoch_permutation(seed, SHUFFLED, len(rows)))


def _limit_training_rows(limit: int | None, train: Rows, test: Rows) -> tuple[Rows, Rows]:
    return (train, test) if limit is None else (train.take(slice(limit)), test.take(slice(limit)))


def _build_training_task(
    arguments: argparse.Namespace,
    user_model: _UserKerasModel,
    train: Rows | None,
    test: Rows | None,
    joined: CombinedSchema | None,
) -> _TrainingTask:
    from tfe_bench.models.training.trainable import trainable

    if joined is not None:
        shape, target, table = joined.x, joined.target, joined.table
        if user_model.table is not None and (
            table is None
            or dataclasses.replace(table, logits=user_model.table.logits) != user_model.table
        ):
            raise UsageError(
                f"Expected the columns, classes and scales of {arguments.model!r}. Received: "
                "owners' data with other ones.",
                code="columns-differ",
                received=arguments.model,
            )
    else:
        assert train is not None and train.x is not None
        shape, target, table = tuple(train.x.shape[1:]), train.target, train.table
    model, loss = _build_training_model(arguments, user_model.model, shape, target)
    if tuple(model.input_shape[1:]) != shape:
        raise UsageError(
            f"Expected rows of shape {list(model.input_shape[1:])} for the model. Received: rows "
            f"of shape {list(shape)}.",
            code="shape-mismatch",
            received=list(shape),
            expected=list(model.input_shape[1:]),
        )
    if table is not None:
        table = dataclasses.replace(table, logits=not isinstance(loss, str))
    private = trainable(model)
    private.compile(_build_training_optimizer(arguments), loss, seed=arguments.seed)
    name = "owners" if train is None else arguments.dataset
    return _TrainingTask(private, train, test, Path(name).name, table)


def _build_training_model(
    arguments: argparse.Namespace, user_model: Any, shape: tuple[int, ...], target: str
) -> tuple[Any, Any]:
    """Return the Keras model and its loss: by name if the model ends in a softmax or sigmoid.

    Raises:
        UsageError: the model learns another target.
    """
    import keras

    from tfe_bench.models import zoo
    from tfe_bench.models.training.losses import get_loss
    from tfe_bench.models.training.recipe import Recipe

    losses = {
        "binary": "binary_crossentropy",
        "classes": "sparse_categorical_crossentropy",
        "number": "mean_squared_error",
    }
    loss = get_loss(losses[target])
    if arguments.model in NETWORKS:
        return zoo.build(arguments.model, seed=arguments.seed).keras, loss
    if user_model is None:
        learned = train_options.LEARNED[arguments.model]
        if target != learned:
            raise UsageError(
                f"{arguments.model} learns {'numbers' if learned == 'number' else 'two classes'}. "
                f"Received: data with the target {target!r}.",
                code="target-mismatch",
                operation="--target",
                received=target,
                expected=learned,
            )
        start = keras.initializers.GlorotUniform(seed=1000 * arguments.seed)
        layers: list[Any] = [keras.Input(shape)]
        if len(shape) > 1:
            layers.append(keras.layers.Flatten())
        layers.append(keras.layers.Dense(1, kernel_initializer=start))
        return keras.Sequential(layers, name=arguments.model), loss
    if int(user_model.output_shape[-1]) == 1 and target == "classes":
        loss = get_loss(losses["binary"])
    try:  # a model that ends in softmax or sigmoid, as is usual in Keras
        Recipe.build(user_model, loss=loss.name)
    except UsageError:
        return user_model, loss
    return user_model, loss.name


def _build_training_optimizer(arguments: argparse.Namespace) -> Any:
    from tfe_bench.models.training import optimizers
    from tfe_bench.models.training.optimizers.sgd import Sgd

    chosen = optimizers.optimizer_from_name(arguments.optimizer)
    if isinstance(chosen, Sgd):
        chosen = dataclasses.replace(chosen, momentum=_MOMENTUM)
    return chosen.build_keras_optimizer(arguments.learning_rate or chosen.usual_rate)


def _build_training_job(
    arguments: argparse.Namespace,
    task: _TrainingTask,
    datasets: tuple[DatasetRef, CombinedSchema] | None,
) -> tuple[TrainingJob, dict[str, PrivateInput | LateInput]]:
    """Return the job and its inputs."""
    from tfe_bench.cluster import profiles
    from tfe_bench.models.training import deploying, magnitudes
    from tfe_bench.models.training.job_builder import build_training_job
    from tfe_bench.models.training.train_options import TrainOptions

    source, count = None, 0 if task.train is None else len(task.train)
    if datasets is not None:
        source, joined = datasets
        count = joined.rows - arguments.holdout
    train_options.choose_training_defaults(
        arguments, None if arguments.dataset in PICTURES and not source else count
    )
    recipe = task.private.recipe(arguments.batch)
    if task.train is not None:
        plain_rows = (task.train.x, _training_label_column(task.train))
        recipe = magnitudes.plan_exponents(recipe, task.private.keras, *plain_rows, arguments.seed)
    deploy = None
    if arguments.deploy is not None:
        deploy = deploying.trained_model_parameters(
            task.private.keras, arguments.deploy, arguments.allow, table=task.table
        )
    profile, trace = profiles.get_profile(arguments.profile).name, arguments.trace is not None
    options = TrainOptions.select_options({**vars(arguments), "profile": profile, "trace": trace})
    test = 0 if task.test is None else len(task.test)
    job = build_training_job(recipe, options, count, test, source, deploy)
    return job, task.private.inputs(
        job, _to_training_examples(task.train), _to_training_examples(task.test)
    )


def _to_training_examples(rows: Rows | None) -> TrainingExamples | None:
    from tfe_bench.models.training.examples import TrainingExamples

    return None if rows is None else TrainingExamples(rows.x, _training_label_column(rows))


def _training_label_column(rows: Rows) -> Any:
    assert rows.y is not None
    return rows.y if rows.target == "classes" else rows.y[:, None]


# ---- comparison with plaintext


def _train_in_plaintext(
    task: _TrainingTask, job: TrainingJob, history: History, heard: Any
) -> list[float]:
    """Return the scores of the same training in plaintext, one per private score."""
    import numpy as np

    from tfe_bench.models.training.plaintext import PlaintextTwin

    assert task.train is not None and task.test is not None
    features, tested = task.train.x, task.test.x
    assert features is not None and tested is not None
    start = task.private.initial_model()
    twin = PlaintextTwin(start, job.recipe)
    targets = job.recipe.encode_labels(_training_label_column(task.train))
    right = job.recipe.encode_labels(_training_label_column(task.test))
    scored = {int(step) for step in history.result.measured[0]["scored"]}
    scores = []
    for step in range(job.total_steps):
        rows = job.batch_rows(step)
        twin.train_step(features[rows], targets[rows])
        if step % 20 == 0:
            heard(step / job.total_steps)
        if step + 1 in scored:
            if not job.recipe.loss.counts_answers:
                outputs = np.asarray(twin.model.predict(tested, verbose=0))
                scores.append(float(((outputs - right) ** 2).mean()))
            else:
                scores.append(twin.count_correct(tested, right) / right[..., 0].size)
    return scores


# ---- records and output


@dataclass(frozen=True, eq=False)
class _TrainingOutcome:
    """The task, job, history and plaintext scores of a training."""

    task: _TrainingTask
    job: TrainingJob
    history: History
    plain: list[float] | None


def _report_training(arguments: argparse.Namespace, done: _TrainingOutcome, cluster: Any) -> int:
    from rich.console import Console

    from tfe_bench.benchmarks import table

    result = done.history.result
    if done.job.chunk:  # later chunks are shared during the training
        result.share_seconds = max(m["input_seconds"] for m in result.measured)
    record = _training_record(arguments, done, cluster)
    job_record.write_job_trace(arguments, "train", result)
    _write_trained_models(arguments, done.task, done.history)
    job_record.keep_job_record(arguments, record)
    if not arguments.json:
        table.print_record(record, Console())
        table.print_learning(record, Console())
    return 1 if record.correct is False else 0


def _training_record(arguments: argparse.Namespace, done: _TrainingOutcome, cluster: Any) -> Record:
    from tfe_bench.cluster import profiles
    from tfe_bench.models.training.step import count_step_messages

    job, history, plain = done.job, done.history, done.plain
    measured = history.result.measured[0]
    scores = next((v for k, v in history.history.items() if k.startswith("val_")), [])
    squared = "val_mse" in history.history
    correct = None
    if plain and scores:
        last, theirs = scores[-1], plain[-1]
        bound = theirs * 1.05 + 1e-3 if squared else theirs - _TOLERANCE
        correct = last <= bound if squared else last >= bound
    learning: dict[str, Any] = {
        "score": "mse" if squared else "accuracy",
        "epochs": [step / job.steps_per_epoch for step in measured["scored"]],
        "private": scores,
        "plain": plain,
        "samples": job.test or job.holdout,
        "loss": history.history.get("loss"),
        "batches": len(measured["seconds"]),
    }
    if squared and done.task.table is not None and done.task.table.unit is not None and scores:
        [factor] = done.task.table.unit.factor
        learning["root_error"] = scores[-1] ** 0.5 / abs(factor)  # in the unit of the label
    option_names = ("optimizer", "batch", "epochs", "steps")
    parameters = {
        "model": Path(arguments.model).name,
        **{name: getattr(arguments, name) for name in option_names},
        "rows": job.rows,
        **({} if done.task.table is None else {"steps": job.total_steps}),
        "dataset": done.task.dataset,
        "seed": arguments.seed,
    }
    if arguments.learning_rate is not None:
        parameters["learning_rate"] = arguments.learning_rate
    if history.first_step:
        parameters["from_step"] = history.first_step
    bits = job.recipe.numbers.activation
    outcome = job_record.JobOutcome(parameters, correct, None, bits, agreement=learning)
    plan = profiles.get_profile(job.profile).plan
    messages = count_step_messages(job.recipe, plan, job.reveal_loss, job.watch)
    return job_record.make_record(
        "train", arguments, cluster, _thin_batch_times(history.result), outcome, messages
    )


def _thin_batch_times(result: JobResult) -> JobResult:
    """Reduce thousands of batch times to quantiles: fastest, slowest, median."""
    from tfe_bench.benchmarks.prediction import measured_run_seconds

    times = sorted(measured_run_seconds(result.measured))
    if len(times) <= _MOST_TIMES:
        return result
    last = _MOST_TIMES - 1
    thinned = [times[round(i * (len(times) - 1) / last)] for i in range(_MOST_TIMES)]
    measured = [{**m, "seconds": thinned} for m in result.measured]
    return dataclasses.replace(result, measured=measured)


def _write_trained_models(
    arguments: argparse.Namespace, task: _TrainingTask, history: History
) -> None:
    if arguments.output is None or history.model is None:
        return
    from tfe_bench.models.convert import tables

    table = task.table
    model = history.model if table is None else table.in_units(history.model)
    tables.save_with_table(model, table, arguments.output)


COMMANDS = {"train": (_add_train_options, run_train)}
