"""The options of `python -m tfe_bench train`, and what they refuse before anything is read."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfe_bench.cli import common
from tfe_bench.errors import DataError, UsageError, did_you_mean
from tfe_bench.models.training import optimizers

NETWORKS = ("network-a", "network-b", "network-c", "network-d")
MODELS = ("logistic", "linear", *NETWORKS)
PICTURES = ("mnist", "fashion-mnist")
TARGETS = ("binary", "classes", "number")
# What a model of ours learns.
LEARNT = {"logistic": "binary", "linear": "number"}


def add(p: argparse.ArgumentParser) -> None:
    """Adds them to the command's parser."""
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
        "--target",
        metavar="T",
        help="what the label is: binary (logistic), number (linear) or classes (other models)",
    )
    data.add_argument(
        "--features", nargs="+", metavar="COLUMN", help="of a table: what is learnt from"
    )
    data.add_argument(
        "--drop", nargs="+", default=[], metavar="COLUMN", help="of a table: what is left out"
    )
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
        "--discard", action="store_true", help="keep no model: what counts are the figures"
    )
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


def check(arguments: argparse.Namespace) -> None:
    """Refuses what does not fit, before anything is read."""
    if arguments.model not in MODELS and not arguments.model.endswith(".keras"):
        raise UsageError(
            f"There is no model {arguments.model!r} to train."
            f"{did_you_mean(arguments.model, MODELS)} Known: {', '.join(MODELS)}, or a .keras file."
        )
    if arguments.optimizer not in optimizers.NAMES:
        raise UsageError(
            f"Optimizers are {', '.join(optimizers.NAMES)}. Received: {arguments.optimizer!r}."
            f"{did_you_mean(arguments.optimizer, optimizers.NAMES)}"
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
    fixed = LEARNT.get(arguments.model)
    if arguments.target is not None and fixed not in (None, arguments.target):
        other = next((m for m, t in LEARNT.items() if t == arguments.target), "a .keras file")
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
