"""`python -m tfe_bench train`: private training of a model, its cost and its accuracy."""

from __future__ import annotations

import argparse
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common
from tfe_bench.errors import DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    from tfe_bench.benchmarks.records import Record
    from tfe_bench.models.datasets import Rows
    from tfe_bench.models.order import Order
    from tfe_bench.models.trainable import History, Trainable

NETWORKS = ("network-a", "network-b", "network-c", "network-d")
MODELS = ("logistic", "linear", *NETWORKS)
OPTIMIZERS = ("sgd", "amsgrad", "adam")
# As published: SGD 0.01 with momentum 0.9, Adam and AMSGrad 0.001.
_RATES = {"sgd": 0.01, "amsgrad": 0.001, "adam": 0.001}
_MOMENTUM = 0.9
_PICTURES = ("mnist", "fashion-mnist")
# By which private and plaintext answers may differ: both have chance in them.
_TOLERANCE = 0.02


def add_parser(commands: Any) -> None:
    """Adds the command."""
    p = commands.add_parser(
        "train",
        help="train a model on private data",
        description="Shares a model's weights, rows and labels among three workers, which train "
        "the model without any of them seeing one, and compares with the same training in "
        "plaintext. Rows come from this client or from data owners (see `provide`).",
    )
    p.add_argument(
        "model",
        metavar="MODEL",
        help=f"{', '.join(MODELS)}, or a Keras model (FILE.keras)",
    )
    p.add_argument("--optimizer", default="sgd", metavar="O", help="sgd (default), amsgrad or adam")
    p.add_argument(
        "--learning-rate",
        type=float,
        metavar="L",
        help="default 0.01 for sgd (with momentum 0.9), 0.001 for the others",
    )
    p.add_argument("--epochs", type=int, default=5, metavar="E", help="default 5")
    p.add_argument("--batch", type=int, default=128, metavar="B", help="rows of a step, 128")
    p.add_argument(
        "--steps", type=int, metavar="N", help="end after so many steps, to see what they cost"
    )
    p.add_argument("--seed", type=int, default=1, help="of weights and the order of rows (1)")
    data = p.add_argument_group("data")
    data.add_argument(
        "--dataset",
        default="mnist",
        metavar="D",
        help="mnist (default), fashion-mnist, or a table: FILE.csv",
    )
    data.add_argument(
        "--data-dir", type=Path, metavar="FOLDER", help="the four IDX files of the pictures"
    )
    data.add_argument(
        "--limit", type=int, metavar="N", help="no more than the first N rows, and N to test"
    )
    data.add_argument("--label", metavar="COLUMN", help="of a table: what is to be learnt")
    data.add_argument(
        "--rows", nargs="+", metavar="NAME", help="owners' data sets, one below other"
    )
    data.add_argument(
        "--columns", nargs="+", metavar="NAME", help="owners' data sets, side by side"
    )
    data.add_argument("--labels", metavar="NAME", help="the data set with the labels of --columns")
    data.add_argument(
        "--holdout", type=int, default=0, metavar="N", help="owners' rows to test on, not to learn"
    )
    kept = p.add_argument_group("what is kept")
    kept.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="keep each worker's shares under this name, and go on from there",
    )
    kept.add_argument("--every", type=int, default=100, metavar="N", help="steps between (100)")
    kept.add_argument("--restart", action="store_true", help="forget the checkpoint first")
    kept.add_argument("--deploy", metavar="NAME", help="keep the trained model at the workers")
    kept.add_argument(
        "--allow", action="append", default=[], metavar="CLIENT", help="who may use it, besides"
    )
    kept.add_argument("--output", type=Path, metavar="FILE", help="write the model (.keras)")
    kept.add_argument(
        "--models", type=Path, metavar="FOLDER", help="where three local workers keep their shares"
    )
    told = p.add_argument_group("what is told")
    told.add_argument(
        "--reveal-loss", action="store_true", help="publish the mean loss of each epoch"
    )
    told.add_argument(
        "--guard",
        type=int,
        default=0,
        metavar="N",
        help="look every N steps whether weights diverge: tells the workers one bit each time",
    )
    told.add_argument(
        "--no-plain", action="store_true", help="leave out the plaintext run beside it"
    )
    common.add_network_options(p)
    p.add_argument("--json", action="store_true", help="print the record as JSON, nothing else")
    p.add_argument("--record", type=Path, metavar="FILE", help="append the record to a .jsonl file")
    p.add_argument("--trace", type=Path, metavar="FILE", help="write where one step's time went")
    p.set_defaults(run=run, repeat=1)


@dataclass(frozen=True, eq=False)
class _Task:
    """What is trained on what."""

    private: Trainable
    train: Rows | None
    test: Rows | None
    dataset: str


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    common.quiet_tensorflow()
    _check(arguments)
    with common.progress_bar(arguments) as bar:
        bar.say("reading the data")
        train, test = _rows(arguments)
        if train is not None:  # in chunks, sorted rows would be learnt one after the other
            train = _shuffled(train, arguments.seed)
        bar.say("building the model")
        needed = any(v is not None for v in (arguments.checkpoint, arguments.deploy))
        needed = needed or arguments.rows is not None or arguments.columns is not None
        if arguments.cluster is None and (needed or arguments.models is not None):
            from tfe_bench.cli.service import local_folder

            arguments.keep = arguments.models or local_folder()
        bar.say("starting the workers")
        if arguments.rows is None and arguments.columns is None:
            task = _task(arguments, train, test, None)
            order, inputs = _order(arguments, task, None)
            with common.open_cluster(arguments, bar) as cluster:
                history = task.private.run(cluster, order, inputs, bar.update)
        else:
            with common.open_cluster(arguments, bar) as cluster:
                from tfe_bench.models import owners

                names = arguments.rows or arguments.columns
                found = owners.source_of(cluster.client, names, arguments.labels)
                task = _task(arguments, None, None, found[1])
                order, inputs = _order(arguments, task, found)
                history = task.private.run(cluster, order, inputs, bar.update)
        if not history.result.measured[0]["seconds"]:
            return _was_complete(arguments, history)
        plain = None
        if task.train is not None and not arguments.no_plain:
            plain = _plain(task, order, history, lambda f: bar.update(f, "training in plaintext"))
    return _tell(arguments, task, order, history, plain, cluster)


def _was_complete(arguments: argparse.Namespace, history: History) -> int:
    said = (
        f"The training {arguments.checkpoint!r} is complete: {history.steps} steps. --restart "
        "trains anew, more --epochs go on."
    )
    _write(arguments, history)
    if not arguments.json:
        print(said)
        for name, values in history.history.items():
            print(f"{name}: {', '.join(f'{v:.4f}' for v in values)}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuses what does not fit, before anything is read."""
    if arguments.model not in MODELS and not arguments.model.endswith(".keras"):
        raise UsageError(
            f"There is no model {arguments.model!r} to train."
            f"{did_you_mean(arguments.model, MODELS)} Known: {', '.join(MODELS)}, or a .keras file."
        )
    if arguments.optimizer not in OPTIMIZERS:
        raise UsageError(
            f"Optimizers are {', '.join(OPTIMIZERS)}. Received: {arguments.optimizer!r}."
            f"{did_you_mean(arguments.optimizer, OPTIMIZERS)}"
        )
    rate = arguments.learning_rate
    if rate is not None and not 0 < rate <= 100:
        raise UsageError(f"--learning-rate is above 0 and at most 100. Received: {rate}.")
    for name, low, high in (
        ("epochs", 1, 100_000),
        ("batch", 1, 1 << 14),
        ("every", 1, 10**9),
        ("seed", 0, 1 << 31),
        ("holdout", 0, 10**8),
        ("guard", 0, 10**9),
    ):
        if not low <= getattr(arguments, name) <= high:
            raise UsageError(f"--{name} is {low} to {high}. Received: {getattr(arguments, name)}.")
    if arguments.steps is not None and arguments.steps < 1:
        raise UsageError(f"--steps is 1 or more. Received: {arguments.steps}.")
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError(f"--limit is 1 or more. Received: {arguments.limit}.")
    table = arguments.dataset.endswith(".csv")
    if not table and arguments.dataset not in _PICTURES:
        raise UsageError(
            f"--dataset is mnist, fashion-mnist or a .csv file. Received: {arguments.dataset!r}."
            f"{did_you_mean(arguments.dataset, _PICTURES)}"
        )
    owners = [arguments.rows, arguments.columns]
    if all(owners) or (arguments.labels is not None) != (arguments.columns is not None):
        raise UsageError(
            "Owners' data sets are --rows NAME NAME, or --columns NAME NAME with --labels NAME."
        )
    if table and arguments.label is None and not any(owners):
        raise UsageError(f"--label COLUMN says what is to be learnt of {arguments.dataset!r}.")
    if arguments.model == "linear" and not table and not any(owners):
        raise UsageError("linear learns a column of numbers: --dataset FILE.csv --label COLUMN.")
    if arguments.model in NETWORKS and table:
        raise UsageError(
            f"{arguments.model} learns pictures of 28 x 28. Tables are for logistic, linear, or a "
            ".keras file."
        )
    if arguments.holdout and not any(owners):
        raise UsageError("--holdout goes with --rows or --columns.")
    if (arguments.restart or arguments.every != 100) and arguments.checkpoint is None:
        raise UsageError("--every and --restart go with --checkpoint NAME.")
    if arguments.allow and arguments.deploy is None:
        raise UsageError("--allow goes with --deploy NAME.")
    if arguments.cluster is not None and arguments.models is not None:
        raise UsageError("--models is for three local workers. Received: --cluster.")
    if arguments.output is not None:
        if arguments.deploy is not None:
            raise UsageError("A model that is deployed stays at the workers. Received: --output.")
        folder = arguments.output.parent
        if arguments.output.suffix != ".keras" or not folder.is_dir():
            raise UsageError("--output is a .keras file in a folder that exists.")
    if arguments.model.endswith(".keras") and not Path(arguments.model).is_file():
        raise DataError(f"There is no file {arguments.model!r}.")
    common.check_run_options(arguments)


# ---- what is trained on what


def _rows(arguments: argparse.Namespace) -> tuple[Rows | None, Rows | None]:
    """This client's rows: to train on and to test; none with owners' data."""
    from tfe_bench.models import datasets

    if arguments.rows is not None or arguments.columns is not None:
        return None, None
    if arguments.dataset in _PICTURES:
        target = "binary" if arguments.model == "logistic" else "classes"
        pair = datasets.digits(arguments.dataset, arguments.data_dir, target)
        return _limited(arguments.limit, *pair)
    target = {"logistic": "binary", "linear": "number"}.get(arguments.model, "classes")
    rows = datasets.table(arguments.dataset, arguments.label, target)
    return _limited(arguments.limit, *datasets.parted(rows, arguments.seed))


def _shuffled(rows: Rows, seed: int) -> Rows:
    from tfe_bench.models.order import SHUFFLED
    from tfe_bench.models.training.order import permutation

    return rows.take(permutation(seed, SHUFFLED, len(rows)))


def _limited(most: int | None, train: Rows, test: Rows) -> tuple[Rows, Rows]:
    return (train, test) if most is None else (train.take(slice(most)), test.take(slice(most)))


def _task(
    arguments: argparse.Namespace, train: Rows | None, test: Rows | None, joined: Any
) -> _Task:
    from tfe_bench.models.trainable import trainable

    if train is not None and train.x is not None:
        shape, target, outputs = train.x.shape[1:], train.target, train.classes
    else:
        shape, target, outputs = joined.x, joined.target, joined.y[-1]
    model, loss = _model(arguments, tuple(shape), target, outputs)
    private = trainable(model)
    private.compile(_optimizer(arguments), loss, seed=arguments.seed)
    name = arguments.dataset if train is not None else "owners"
    return _Task(private, train, test, Path(name).name)


def _model(
    arguments: argparse.Namespace, shape: tuple[int, ...], target: str, outputs: int
) -> tuple[Any, Any]:
    """The Keras model and its loss."""
    import keras

    from tfe_bench.models import zoo
    from tfe_bench.models.training.losses import Loss
    from tfe_bench.models.training.recipe import Recipe

    losses = {
        "binary": "binary_crossentropy",
        "classes": "sparse_categorical_crossentropy",
        "number": "mean_squared_error",
    }
    loss = Loss(losses[target])
    if arguments.model in NETWORKS:
        return zoo.build(arguments.model, seed=arguments.seed).keras, loss
    if arguments.model in ("logistic", "linear"):
        wanted = "number" if arguments.model == "linear" else "binary"
        if target != wanted:
            raise UsageError(
                f"{arguments.model} learns {'numbers' if wanted == 'number' else 'two classes'}. "
                f"Received: data with the target {target!r}."
            )
        start = keras.initializers.GlorotUniform(seed=1000 * arguments.seed)
        layers: list[Any] = [keras.Input(shape)]
        if len(shape) > 1:
            layers.append(keras.layers.Flatten())
        layers.append(keras.layers.Dense(1, kernel_initializer=start))
        return keras.Sequential(layers, name=arguments.model), loss
    try:
        model = keras.saving.load_model(arguments.model, compile=False)
    except Exception as error:  # keras's, of many kinds
        raise DataError(
            f"{arguments.model!r} is no Keras model that can be read. Received: "
            f"{type(error).__name__}."
        ) from error
    if int(model.output_shape[-1]) == 1 and target == "classes":
        loss = Loss(losses["binary"])
    del outputs
    try:  # a model that ends in softmax or sigmoid, as users of Keras write it
        Recipe.build(model, loss=loss.name)
    except UsageError:
        return model, loss
    return model, loss.name


def _optimizer(arguments: argparse.Namespace) -> Any:
    import keras

    rate = arguments.learning_rate or _RATES[arguments.optimizer]
    if arguments.optimizer == "sgd":
        return keras.optimizers.SGD(rate, momentum=_MOMENTUM)
    return keras.optimizers.Adam(rate, amsgrad=arguments.optimizer == "amsgrad")


def _order(arguments: argparse.Namespace, task: _Task, found: Any) -> tuple[Order, dict[str, Any]]:
    """The job and its inputs."""
    from tfe_bench.cluster import profiles
    from tfe_bench.models import deploying
    from tfe_bench.models.order import Order, Saving
    from tfe_bench.models.trainable import check_rows, chunk_of, late_rows, shared_rows

    recipe = task.private.recipe(arguments.batch)
    inputs: dict[str, Any] = {**task.private.state_inputs(recipe)}
    source, count = None, 0
    if found is not None:
        source, joined = found
        count = joined.rows - arguments.holdout
    chunk = 0
    if task.train is not None:
        count, chunk = len(task.train), chunk_of(recipe, len(task.train))
        if not chunk:
            inputs.update(shared_rows(recipe, task.train.x, _labels(task.train)))
    if task.test is not None:
        inputs.update(shared_rows(recipe, task.test.x, _labels(task.test), "test_"))
    if task.train is not None and chunk:
        check_rows(recipe, task.train.x, _labels(task.train))
        inputs.update(late_rows(recipe, task.train.x, _labels(task.train), chunk))
    saving = None
    if arguments.checkpoint is not None:
        saving = Saving(arguments.checkpoint, arguments.every, arguments.restart)
    deploy = None
    if arguments.deploy is not None:
        deploy = deploying.parameters(task.private.keras, arguments.deploy, arguments.allow)
    order = Order(
        recipe,
        arguments.epochs,
        count,
        arguments.seed,
        uuid.uuid4().hex,
        profiles.get(arguments.profile).name,
        arguments.steps,
        len(task.test) if task.test is not None else 0,
        source,
        arguments.holdout,
        saving,
        deploy,
        arguments.guard,
        arguments.reveal_loss,
        arguments.trace is not None,
        chunk,
    )
    return order, inputs


def _labels(rows: Rows) -> Any:
    assert rows.y is not None
    return rows.y if rows.target == "classes" else rows.y[:, None]


# ---- beside plaintext


def _plain(task: _Task, order: Order, history: History, heard: Any) -> list[float]:
    """The score of the same training in the open, after each of the private one's scores."""
    import numpy as np

    from tfe_bench.models.training.plain import Twin

    assert task.train is not None and task.test is not None
    features, tested = task.train.x, task.test.x
    assert features is not None and tested is not None
    start = task.private.initial_model()
    twin = Twin(start, order.recipe)
    targets = order.recipe.targets(_labels(task.train))
    right = order.recipe.targets(_labels(task.test))
    scored = {int(step) for step in history.result.measured[0]["scored"]}
    found = []
    for step in range(order.total):
        rows = order.batch_rows(step)
        twin.step(features[rows], targets[rows])
        if step % 20 == 0:
            heard(step / order.total)
        if step + 1 in scored:
            if order.recipe.loss.name == "mean_squared_error":
                outputs = np.asarray(twin.model.predict(tested, verbose=0))
                found.append(float(((outputs - right) ** 2).mean()))
            else:
                found.append(twin.correct(tested, right) / right[..., 0].size)
    return found


# ---- what is told


def _tell(
    arguments: argparse.Namespace,
    task: _Task,
    order: Order,
    history: History,
    plain: list[float] | None,
    cluster: Any,
) -> int:
    from rich.console import Console

    from tfe_bench.benchmarks import table

    if order.chunk:  # the rest of the sharing held nothing up
        history.result.share_seconds = max(m["input_seconds"] for m in history.result.measured)
    record = _record(arguments, task, order, history, plain, cluster)
    if arguments.trace is not None:
        from tfe_bench.benchmarks import trace_file

        traces = [m["trace"] for m in history.result.measured]
        trace_file.write(arguments.trace, [("train", traces)])
    _write(arguments, history)
    common.keep(arguments, record)
    if not arguments.json:
        table.render(record, Console())
        table.render_learning(record, Console())
    return 1 if record.correct is False else 0


def _record(
    arguments: argparse.Namespace,
    task: _Task,
    order: Order,
    history: History,
    plain: list[float] | None,
    cluster: Any,
) -> Record:
    scores = next((v for k, v in history.history.items() if k.startswith("val_")), [])
    squared = "val_mse" in history.history
    correct = None
    if plain and scores:
        last, theirs = scores[-1], plain[-1]
        bound = theirs * 1.05 + 1e-3 if squared else theirs - _TOLERANCE
        correct = last <= bound if squared else last >= bound
    learning: dict[str, Any] = {
        "score": "mse" if squared else "accuracy",
        "epochs": [step / order.steps_per_epoch for step in history.result.measured[0]["scored"]],
        "private": scores,
        "plain": plain,
        "samples": order.test or order.holdout,
        "loss": history.history.get("loss"),
    }
    parameters = {
        "model": Path(arguments.model).name,
        "optimizer": arguments.optimizer,
        "batch": arguments.batch,
        "epochs": arguments.epochs,
        "steps": arguments.steps,
        "rows": order.rows,
        "dataset": task.dataset,
        "seed": arguments.seed,
    }
    if arguments.learning_rate is not None:
        parameters["learning_rate"] = arguments.learning_rate
    if history.first_step:
        parameters["from_step"] = history.first_step
    return common.make_record(
        "train",
        arguments,
        cluster,
        history.result,
        parameters,
        correct,
        None,
        order.recipe.numbers.activation,
        agreement=learning,
    )


def _write(arguments: argparse.Namespace, history: History) -> None:
    if arguments.output is None or history.model is None:
        return
    import os

    before = os.umask(0o077)  # what it learnt from is private
    try:
        history.model.save(arguments.output)
    finally:
        os.umask(before)
