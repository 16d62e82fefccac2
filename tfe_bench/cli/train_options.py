"""The options of `python -m tfe_bench train`, and their checks before data is read."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfe_bench.cli import common
from tfe_bench.errors import DataError, UsageError, check_range, did_you_mean
from tfe_bench.models.training.train_options import TrainOptions

NETWORKS = ("network-a", "network-b", "network-c", "network-d")
MODELS = ("logistic", "linear", *NETWORKS)
PICTURES = ("mnist", "fashion-mnist")
TARGETS = ("binary", "classes", "number")
# Defaults of --batch and --epochs; the epochs of a table give about _STEPS steps.
_BATCH, _LEAST_BATCH, _EPOCHS, _MOST_EPOCHS, _STEPS = 128, 8, 5, 100, 600
# The target of each built-in model.
LEARNED = {"logistic": "binary", "linear": "number"}


def add_train_options(p: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    p.add_argument(
        "model",
        metavar="MODEL",
        help=f"model: {', '.join(MODELS)}, or a Keras model (FILE.keras)",
    )
    common.add_option(
        p,
        "--optimizer O",
        "optimizer by its name in Keras: sgd, adam, adamw, ... (default: sgd)",
        default="sgd",
    )
    common.add_option(
        p,
        "--learning-rate L",
        "learning rate (default: 0.01 for sgd, with momentum 0.9; else 0.001)",
        type=float,
    )
    _add_training_options(p, "epochs")
    common.add_option(
        p,
        "--batch B",
        "number of rows in a batch (default: 128; fewer for a small table)",
        type=int,
    )
    _add_training_options(p, "steps", "seed")
    data = p.add_argument_group("data")
    common.add_option(
        data,
        "--dataset D",
        "data set: mnist, fashion-mnist, or a table FILE.csv (default: mnist)",
        "--input",
        default="mnist",
    )
    common.add_option(data, "--data-dir FOLDER", "folder of the four IDX files of the pictures")
    common.add_option(
        data,
        "--limit N",
        "largest number of rows to train on, and of rows to test on (default: all)",
        type=int,
    )
    common.add_option(data, "--label COLUMN", "column of a table to predict")
    common.add_option(
        data,
        "--target T",
        "type of the label: binary (logistic), number (linear) or classes (other models)",
    )
    common.add_option(
        data,
        "--features COLUMN",
        "feature columns of a table (default: all except the label)",
        nargs="+",
    )
    common.add_option(
        data, "--drop COLUMN", "columns of a table to leave out", nargs="+", default=[]
    )
    common.add_option(data, "--rows NAME", "owners' data sets to append by rows", nargs="+")
    common.add_option(data, "--columns NAME", "owners' data sets to join by columns", nargs="+")
    common.add_option(data, "--labels NAME", "data set with the labels of --columns")
    _add_training_options(data, "holdout")
    results_group = p.add_argument_group("stored results")
    _add_training_options(results_group, "checkpoint", "checkpoint_every", "restart")
    common.add_option(
        results_group, "--deploy NAME", "store the trained model at the workers under this name"
    )
    common.add_option(
        results_group,
        "--allow CLIENT",
        "client that may use the deployed model, in addition to this one",
        action="append",
        default=[],
    )
    common.add_option(results_group, "--output FILE", "write the trained model to a file (.keras)")
    common.add_option(
        results_group, "--discard", "discard the trained model and print only figures"
    )
    common.add_option(
        results_group,
        "--models FOLDER",
        "folder of the shares of three local workers (default: ~/.local/share/tfe_bench/models)",
    )
    disclosure_group = p.add_argument_group("disclosed values")
    _add_training_options(disclosure_group, "reveal_loss", "guard_every")
    common.add_option(disclosure_group, "--no-plain", "skip the plaintext training for comparison")
    common.add_network_options(p)
    common.add_record_options(
        p, "write a trace of one step for Perfetto or chrome://tracing (.json)"
    )


def _add_training_options(p: argparse._ActionsContainer, *names: str) -> None:
    """Add the options that TrainOptions declares for some of its fields."""
    declared = TrainOptions.command_options()
    for name in names:
        option, more = declared[name], {}
        if option.bounds is not None:
            # (the command chooses the number of epochs)
            default = None if name == "epochs" else getattr(TrainOptions, name)
            more = {"type": int, "default": default}
        common.add_option(p, option.usage, option.about, **more)


def choose_training_defaults(arguments: argparse.Namespace, rows: int | None) -> None:
    """Set the batch size and the epochs if the user does not.

    Args:
        rows: the number of rows of a table; None for pictures.
    """
    if arguments.batch is None:
        sixteenth = 1 << max(0, (rows or _BATCH * 16) // 16).bit_length() >> 1
        arguments.batch = min(_BATCH, max(_LEAST_BATCH, sixteenth))
    if arguments.epochs is None:
        steps = _EPOCHS if rows is None else -(-_STEPS // max(1, rows // arguments.batch))
        arguments.epochs = min(_MOST_EPOCHS, max(_EPOCHS, steps))


def check_train_options(arguments: argparse.Namespace) -> None:
    """Reject invalid options before data is read.

    Raises:
        UsageError: an option is invalid, or options contradict each other.
        DataError: the file of the model does not exist.
    """
    from tfe_bench.models.training import optimizers

    if arguments.model not in MODELS and not arguments.model.endswith(".keras"):
        raise UsageError(
            f"Unknown model {arguments.model!r}.{did_you_mean(arguments.model, MODELS)} "
            f"Known: {', '.join(MODELS)}, or a .keras file.",
            code="unknown-name",
            operation="MODEL",
            received=arguments.model,
            expected=", ".join(MODELS),
        )
    optimizers.optimizer_from_name(arguments.optimizer)
    rate = arguments.learning_rate
    if rate is not None and not 0 < rate <= 100:
        raise UsageError(
            f"Expected a number above 0 and at most 100 in --learning-rate. Received: {rate}.",
            code="number-out-of-range",
            operation="--learning-rate",
            received=rate,
        )
    declared = (option for option in TrainOptions.command_options().values())
    bounds = {
        option.argument_name: option.bounds for option in declared if option.bounds is not None
    }
    for name, (low, high) in {**bounds, "batch": (1, 1 << 14), "limit": (1, None)}.items():
        if getattr(arguments, name) is not None:
            check_range(f"--{name}", getattr(arguments, name), low, high)
    table = arguments.dataset.endswith(".csv")
    if not table and arguments.dataset not in PICTURES:
        raise UsageError(
            f"Expected mnist, fashion-mnist or a .csv file in --dataset. Received: "
            f"{arguments.dataset!r}."
            f"{did_you_mean(arguments.dataset, PICTURES)}",
            code="unknown-name",
            operation="--dataset",
            received=arguments.dataset,
            expected=", ".join(PICTURES),
        )
    owners = [arguments.rows, arguments.columns]
    if all(owners) or (arguments.labels is not None) != (arguments.columns is not None):
        raise UsageError(
            "Expected owners' data sets as --rows NAME NAME, or as --columns NAME NAME with "
            "--labels NAME. Received: another combination.",
            code="exactly-one-required",
            operation="--rows",
        )
    if table and arguments.label is None and not any(owners):
        raise UsageError(
            f"A table requires --label COLUMN. Received: {arguments.dataset!r} without --label.",
            code="missing-argument",
            operation="--label",
        )
    if arguments.model == "linear" and not table and not any(owners):
        raise UsageError(
            "linear learns a column of numbers. Received: pictures. "
            "Use --dataset FILE.csv --label COLUMN.",
            code="missing-argument",
            operation="--dataset",
        )
    if arguments.model in NETWORKS and table:
        raise UsageError(
            f"{arguments.model} learns pictures of 28 x 28. Received: a table. Use logistic, "
            "linear or a .keras file.",
            code="shape-mismatch",
            operation="--dataset",
            received="a table",
        )
    if arguments.holdout and not any(owners):
        raise UsageError(
            "--holdout requires --rows or --columns. Received: neither.",
            code="option-requires-option",
            operation="--holdout",
            expected="--rows or --columns",
        )
    if (arguments.restart or arguments.every != 100) and arguments.checkpoint is None:
        raise UsageError(
            "--every and --restart require --checkpoint NAME. Received: no --checkpoint.",
            code="option-requires-option",
            operation="--every",
            expected="--checkpoint",
        )
    if arguments.allow and arguments.deploy is None:
        raise UsageError(
            "--allow requires --deploy NAME. Received: no --deploy.",
            code="option-requires-option",
            operation="--allow",
            expected="--deploy",
        )
    if arguments.cluster is not None and arguments.models is not None:
        raise UsageError(
            "--models is for three local workers. Received: --cluster. Remove one of them.",
            code="conflicting-options",
            operation="--models",
            received="--cluster",
        )
    if arguments.output is not None:
        if arguments.deploy is not None:
            raise UsageError(
                "A deployed model stays at the workers. Received: --deploy and --output. "
                "Remove one of them.",
                code="conflicting-options",
                operation="--output",
                received="--deploy",
            )
        folder = arguments.output.parent
        if arguments.output.suffix != ".keras" or not folder.is_dir():
            raise UsageError(
                "Expected a .keras file in an existing folder in --output. "
                f"Received: {str(arguments.output)!r}.",
                code="unsupported-file-type",
                operation="--output",
                received=arguments.output,
            )
    table = table and not any(owners)
    if not table and (arguments.features or arguments.drop):
        raise UsageError(
            "--features and --drop name columns of a table (--dataset FILE.csv). "
            "Received: no table.",
            code="option-not-applicable",
            operation="--features",
            received=arguments.dataset,
        )
    if arguments.target is not None and (any(owners) or not table):
        raise UsageError(
            "--target is for the label of a table (--dataset FILE.csv). Received: no table. Owners "
            "state the target of their data (`provide --target`).",
            code="option-not-applicable",
            operation="--target",
            received=arguments.dataset,
        )
    if arguments.target is not None and arguments.target not in TARGETS:
        raise UsageError(
            f"Expected {', '.join(TARGETS)} in --target. Received: {arguments.target!r}."
            f"{did_you_mean(arguments.target, TARGETS)}",
            code="unknown-name",
            operation="--target",
            received=arguments.target,
            expected=", ".join(TARGETS),
        )
    fixed = LEARNED.get(arguments.model)
    if arguments.target is not None and fixed not in (None, arguments.target):
        other = next((m for m, t in LEARNED.items() if t == arguments.target), "a .keras file")
        raise UsageError(
            f"{arguments.model} learns --target {fixed}. Received: {arguments.target!r}, which is "
            f"for {other}.",
            code="target-mismatch",
            operation="--target",
            received=arguments.target,
            expected=fixed,
        )
    if arguments.model.endswith(".keras") and not Path(arguments.model).is_file():
        raise DataError(
            f"Expected an existing file. Received: {arguments.model!r}.",
            code="file-not-found",
            operation="MODEL",
            received=arguments.model,
        )
    common.check_run_options(arguments)
    destinations = [arguments.output, arguments.deploy, arguments.checkpoint]
    if arguments.discard == any(v is not None for v in destinations):
        raise UsageError(
            "--discard keeps no model. Received: --output, --deploy or --checkpoint too."
            if arguments.discard
            else "The trained model would be lost. Write it (--output FILE.keras), keep it at the "
            "workers (--deploy NAME), or keep its shares (--checkpoint NAME); --discard prints "
            "only the figures.",
            code="conflicting-options" if arguments.discard else "missing-argument",
            operation="--discard",
        )
