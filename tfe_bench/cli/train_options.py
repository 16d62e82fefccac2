"""The options of `python -m tfe_bench train`, and their checks before anything is read."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfe_bench.cli import common
from tfe_bench.errors import DataError, UsageError, check_range, did_you_mean

NETWORKS = ("network-a", "network-b", "network-c", "network-d")
MODELS = ("logistic", "linear", *NETWORKS)
PICTURES = ("mnist", "fashion-mnist")
TARGETS = ("binary", "classes", "number")
# Rows of a step and epochs, where none are given; a table has as many epochs as make so many steps.
_BATCH, _LEAST_BATCH, _EPOCHS, _MOST_EPOCHS, _STEPS = 128, 8, 5, 100, 600
# What a model of ours learns.
LEARNED = {"logistic": "binary", "linear": "number"}


def add_train_options(p: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    p.add_argument(
        "model",
        metavar="MODEL",
        help=f"{', '.join(MODELS)}, or a Keras model (FILE.keras)",
    )
    common.add_option(p, "--optimizer O", "a name of Keras' (sgd): adam, adamw, ...", default="sgd")
    common.add_option(
        p,
        "--learning-rate L",
        "default 0.01 for sgd (with momentum 0.9), 0.001 for the others",
        type=float,
    )
    common.add_option(p, "--epochs E", "default 5; of a table as many as make 600 steps", type=int)
    common.add_option(p, "--batch B", "rows of a step, 128; of a small table fewer", type=int)
    common.add_option(p, "--steps N", "end after so many steps, to see what they cost", type=int)
    p.add_argument("--seed", type=int, default=1, help="of weights and the order of rows (1)")
    data = p.add_argument_group("data")
    common.add_option(
        data,
        "--dataset D",
        "mnist (default), fashion-mnist, or a table: FILE.csv",
        "--input",
        default="mnist",
    )
    common.add_option(data, "--data-dir FOLDER", "the four IDX files of the pictures")
    common.add_option(data, "--limit N", "no more than the first N rows, and N to test", type=int)
    common.add_option(data, "--label COLUMN", "of a table: what is to be learned")
    common.add_option(
        data,
        "--target T",
        "what the label is: binary (logistic), number (linear) or classes (other models)",
    )
    common.add_option(data, "--features COLUMN", "of a table: what is learned from", nargs="+")
    common.add_option(data, "--drop COLUMN", "of a table: what is left out", nargs="+", default=[])
    common.add_option(data, "--rows NAME", "owners' data sets, one below other", nargs="+")
    common.add_option(data, "--columns NAME", "owners' data sets, side by side", nargs="+")
    common.add_option(data, "--labels NAME", "the data set with the labels of --columns")
    common.add_option(
        data, "--holdout N", "owners' rows to test on, not to learn", type=int, default=0
    )
    kept = p.add_argument_group("what is kept")
    common.add_option(
        kept, "--checkpoint NAME", "keep each worker's shares under this name, and go on from there"
    )
    common.add_option(kept, "--every N", "steps between (100)", type=int, default=100)
    common.add_option(kept, "--restart", "forget the checkpoint first")
    common.add_option(kept, "--deploy NAME", "keep the trained model at the workers")
    common.add_option(
        kept, "--allow CLIENT", "who may use it, besides", action="append", default=[]
    )
    common.add_option(kept, "--output FILE", "write the model (.keras)")
    common.add_option(kept, "--discard", "keep no model: what counts are the figures")
    common.add_option(kept, "--models FOLDER", "where three local workers keep their shares")
    told = p.add_argument_group("what is told")
    common.add_option(told, "--reveal-loss", "publish the mean loss of each epoch")
    common.add_option(
        told,
        "--guard N",
        "look every N steps whether weights diverge: tells the workers one bit each time",
        type=int,
        default=0,
    )
    common.add_option(told, "--no-plain", "leave out the plaintext run beside it")
    common.add_network_options(p)
    common.add_record_options(p, "write where one step's time went")


def choose_defaults(arguments: argparse.Namespace, rows: int | None) -> None:
    """Set the batch and the epochs where the user gives none.

    Args:
        rows: of a table; None for pictures.
    """
    if arguments.batch is None:
        sixteenth = 1 << max(0, (rows or _BATCH * 16) // 16).bit_length() >> 1
        arguments.batch = min(_BATCH, max(_LEAST_BATCH, sixteenth))
    if arguments.epochs is None:
        steps = _EPOCHS if rows is None else -(-_STEPS // max(1, rows // arguments.batch))
        arguments.epochs = min(_MOST_EPOCHS, max(_EPOCHS, steps))


def check_train_options(arguments: argparse.Namespace) -> None:
    """Reject invalid options, before anything is read."""
    from tfe_bench.models.training import optimizers

    if arguments.model not in MODELS and not arguments.model.endswith(".keras"):
        raise UsageError(
            f"There is no model {arguments.model!r} to train."
            f"{did_you_mean(arguments.model, MODELS)} Known: {', '.join(MODELS)}, or a .keras file."
        )
    optimizers.from_name(arguments.optimizer)
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
        ("steps", 1, None),
        ("limit", 1, None),
    ):
        if getattr(arguments, name) is not None:
            check_range(f"--{name}", getattr(arguments, name), low, high)
    table = arguments.dataset.endswith(".csv")
    if not table and arguments.dataset not in PICTURES:
        raise UsageError(
            f"--dataset is mnist, fashion-mnist or a .csv file. Received: {arguments.dataset!r}."
            f"{did_you_mean(arguments.dataset, PICTURES)}"
        )
    owners = [arguments.rows, arguments.columns]
    if all(owners) or (arguments.labels is not None) != (arguments.columns is not None):
        raise UsageError(
            "Owners' data sets are --rows NAME NAME, or --columns NAME NAME with --labels NAME."
        )
    if table and arguments.label is None and not any(owners):
        raise UsageError(f"--label COLUMN says what is to be learned of {arguments.dataset!r}.")
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
    table = table and not any(owners)
    if not table and (arguments.features or arguments.drop):
        raise UsageError("--features and --drop name columns of a table: --dataset FILE.csv.")
    if arguments.target is not None and (any(owners) or not table):
        raise UsageError(
            "--target says what the label of a table is: --dataset FILE.csv. Owners say it of "
            "theirs (`provide --target`)."
        )
    if arguments.target is not None and arguments.target not in TARGETS:
        raise UsageError(
            f"A target is {', '.join(TARGETS)}. Received: {arguments.target!r}."
            f"{did_you_mean(arguments.target, TARGETS)}"
        )
    fixed = LEARNED.get(arguments.model)
    if arguments.target is not None and fixed not in (None, arguments.target):
        other = next((m for m, t in LEARNED.items() if t == arguments.target), "a .keras file")
        raise UsageError(
            f"{arguments.model} learns --target {fixed}. Received: {arguments.target!r}, which is "
            f"for {other}."
        )
    if arguments.model.endswith(".keras") and not Path(arguments.model).is_file():
        raise DataError(f"There is no file {arguments.model!r}.")
    common.check_run_options(arguments)
    kept = [arguments.output, arguments.deploy, arguments.checkpoint]
    if arguments.discard == any(v is not None for v in kept):
        raise UsageError(
            "--discard keeps no model. Received: --output, --deploy or --checkpoint besides."
            if arguments.discard
            else "The trained model would be lost. Write it (--output FILE.keras), keep it at the "
            "workers (--deploy NAME), or its shares (--checkpoint NAME); --discard is for who "
            "wants the figures alone."
        )
