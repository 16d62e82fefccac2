"""`python -m tfe_bench deploy|models`: models that three workers store."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, stored_objects
from tfe_bench.cli.data import files
from tfe_bench.errors import DataError, UsageError

if TYPE_CHECKING:
    from tfe_bench.models.convert.tables import Table
    from tfe_bench.models.inference.private import PrivateModel
    from tfe_bench.models.inference.service import DeployedModel


def _add_deploy_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "model",
        metavar="MODEL",
        help="a .keras file, or the name of a model of the zoo, such as resnet50",
    )
    common.add_option(
        p, "--name NAME", "name of the deployed model: letters, digits, - and _", required=True
    )
    common.add_option(
        p,
        "--allow CLIENT",
        "client that may use the model in addition to its owner, * for all; may be repeated",
        action="append",
        default=[],
    )
    common.add_option(p, "--replace", "replace a model of this name")
    common.add_option(
        p,
        "--samples FILE",
        "public sample inputs for calibration (.npy, [n, ...], or .npz with arrays by name)",
    )
    common.add_option(
        p,
        "--tokens N",
        "length of texts in tokens, if the model does not fix it (default for the zoo: 128)",
        type=int,
    )
    common.add_option(
        p,
        "--preprocessing WAY",
        "preprocessing of pictures: caffe (ResNet50, VGG19), tf (ResNet50V2, MobileNetV2), "
        "torch (DenseNet121), unit (0 to 1) or none",
    )
    common.add_option(
        p,
        "--weights W",
        "weights of a model of the zoo: imagenet, a path, or seeded (default: seeded)",
        default="seeded",
    )
    common.add_option(
        p,
        "--activations HOW",
        "activations: exact, or series with errors up to 2^-10 and a quarter of the bytes "
        "(default: exact)",
        default="exact",
    )
    common.add_option(
        p,
        "--ahead N",
        "number of predictions, up to 64, for which the workers make the correlated randomness "
        "before they are requested (default: 0)",
        type=int,
        default=0,
    )
    common.add_option(
        p,
        "--ahead-batch N",
        "number of samples of each of these predictions (default: 1)",
        type=int,
        default=1,
    )
    stored_objects.add_service_options(p, "models")


def _add_models_options(p: argparse.ArgumentParser) -> None:
    common.add_option(p, "--remove NAME", "remove a model of this client instead of listing")
    stored_objects.add_service_options(p, "models")


# ---- deploy


def run_deploy(arguments: argparse.Namespace) -> int:
    """Store shares of a Keras model at three workers.

    Converts a Keras model, shares its weights among three workers and stores the shares under a
    name. No worker sees a weight. Without --cluster, three local workers store the shares in one
    folder, for evaluation only.
    """
    from tfe_bench.cluster.stored import check_client_names, check_name
    from tfe_bench.models.inference import service

    common.quiet_tensorflow()
    check_name(arguments.name)
    check_client_names(arguments.allow)
    _check_ahead_options(arguments)
    model = arguments.model if arguments.model.endswith(".keras") else None
    files.check_data_files_exist(model, arguments.samples)
    with common.command_progress_bar(arguments) as bar:
        if arguments.cluster is not None and not arguments.replace:
            with stored_objects.open_stored_object_service(
                arguments, bar
            ) as cluster:  # before slow steps
                _check_new_model_name(cluster, arguments.name)
        bar.show_text("converting the model")
        private, way, source, table = _convert_model(arguments)
        with stored_objects.open_stored_object_service(arguments, bar) as cluster:
            started = time.perf_counter()
            service.deploy(
                *(cluster, private, arguments.name, arguments.allow, arguments.replace),
                *(way, bar.update, table, arguments.ahead, arguments.ahead_batch),
            )
            seconds = time.perf_counter() - started
    summary = {
        "name": arguments.name,
        "model": private.name,
        "weights": source,
        "parameters": private.graph.weight_count,
        "calibrated": private.calibrated,
        "rescaled": private.rescaled,
        "clients": arguments.allow,
        "preprocessing": way,
        "ahead": arguments.ahead,
        "seconds": seconds,
    }
    if arguments.json:
        print(json.dumps(summary))
        return 0
    print(f"{arguments.name}: {private.graph.weight_count:,} weights shared in {seconds:.1f} s")
    print(f"may be used by {stored_objects.describe_permitted_clients(arguments.allow)}")
    if not private.calibrated:
        print("ranges: assumed, |v| < 2^14 in every layer; --samples FILE takes them from inputs")
    if arguments.ahead:
        print(f"the workers make material for {arguments.ahead} predictions while they are idle")
    if private.rescaled:
        print(f"fewer fractional bits for the range in: {', '.join(private.rescaled)}")
    return 0


def _check_ahead_options(arguments: argparse.Namespace) -> None:
    """Reject material for workers that end with the command, and numbers out of range."""
    from tfe_bench.cluster.spool import MAX_ENTRIES
    from tfe_bench.models.inference.ahead_setting import MAX_BATCH

    for option, least, largest in (("ahead", 0, MAX_ENTRIES), ("ahead_batch", 1, MAX_BATCH)):
        value = getattr(arguments, option)
        if not least <= value <= largest:
            name = "--" + option.replace("_", "-")
            raise UsageError(
                f"Expected {least} to {largest} as {name}. Received: {value}.",
                code="number-out-of-range",
                operation=name,
                received=value,
                expected=f"{least} to {largest}",
            )
    if arguments.ahead and arguments.cluster is None:
        raise UsageError(
            "Material ahead of time lasts as long as its workers run. Received: --ahead without "
            "--cluster, whose workers end with this command. Name a cluster with --cluster.",
            code="option-not-applicable",
            operation="--ahead",
            received="--ahead without --cluster",
        )


def _check_new_model_name(cluster: Any, name: str) -> None:
    for row in cluster.stored():
        if row["name"] == name and row["owner"] == cluster.identity:
            raise UsageError(
                f"Expected a new name in --name. Received: {name!r}, the name of a model of yours. "
                "Choose another --name, or add --replace.",
                code="name-in-use",
                operation="--name",
                received=name,
            )


def _convert_model(
    arguments: argparse.Namespace,
) -> tuple[PrivateModel, str | None, str, Table | None]:
    """Return the model, its preprocessing, the source of its weights, and its table."""
    from tfe_bench.cli.data import arrays
    from tfe_bench.models import zoo
    from tfe_bench.models.convert import tables
    from tfe_bench.models.inference import images
    from tfe_bench.models.inference.private import convert

    way = arguments.preprocessing
    how = {"activations": arguments.activations}
    samples = None if arguments.samples is None else arrays.read_named_arrays(arguments.samples)
    table = None
    if arguments.model in zoo.list_models():
        entry = zoo.find_model(arguments.model)
        if not entry.is_text and arguments.tokens is not None:
            raise UsageError(
                f"--tokens requires a model of texts. Received: {entry.title}.",
                code="option-not-applicable",
                operation="--tokens",
                received=entry.title,
            )
        if entry.is_text and way is not None:
            raise UsageError(
                f"--preprocessing requires a model of pictures. Received: {entry.title}.",
                code="option-not-applicable",
                operation="--preprocessing",
                received=entry.title,
            )
        tokens = zoo.TOKENS if arguments.tokens is None else arguments.tokens
        built = zoo.build(arguments.model, arguments.weights, tokens=tokens)
        way = way or (None if entry.is_text else entry.preprocessing)
        shown = zoo.samples(entry, tokens=tokens) if samples is None else samples
        private, source = convert(built.keras, shown, **how), built.weights
    elif Path(arguments.model).suffix != ".keras" and not Path(arguments.model).exists():
        zoo.find_model(arguments.model)  # raises an error with the known names
        raise AssertionError("unreachable")
    else:
        private = convert(arguments.model, samples, length=arguments.tokens, **how)
        source = Path(arguments.model).name
        table = tables.load_table(arguments.model)
    if way is not None:
        shapes = list(private.graph.inputs.values())
        images.check_preprocessing(way, images.picture_shape(shapes[0])[2])
    return private, way, source, table


# ---- models


def run_models(arguments: argparse.Namespace) -> int:
    """List the deployed models that this client may use.

    Lists the models that three workers store and that this client may use.
    """
    from tfe_bench.models.inference import service

    with (
        common.command_progress_bar(arguments) as bar,
        stored_objects.open_stored_object_service(arguments, bar) as cluster,
    ):
        if arguments.remove is not None:
            service.undeploy(cluster, arguments.remove)
            rows = None
        else:
            rows = service.list_deployed(cluster)
    if rows is None:
        return stored_objects.report_removed_object(arguments)
    columns = {
        "inputs": lambda row: (
            "(of another version: deploy it again)"
            if row["inputs"] is None
            else ", ".join("x".join(map(str, s)) for s in row["inputs"].values())
        ),
        "weights": lambda row: "" if row["parameters"] is None else f"{row['parameters']:,}",
        "pictures": lambda row: row["preprocessing"] or "",
    }
    facts = [_deployed_model_facts(model) for model in rows]
    if any(row["ahead"] for row in facts):
        columns["ahead"] = lambda row: f"{row['ready']} of {row['ahead']}" if row["ahead"] else ""
    return stored_objects.print_stored_objects(arguments, facts, "model", columns)


def _deployed_model_facts(model: DeployedModel) -> dict[str, Any]:
    """Return the row of a model; inputs and parameters are None if this version cannot read it."""
    inputs: dict[str, list[int]] | None = None
    parameters: int | None = None
    with contextlib.suppress(DataError, UsageError):
        graph = model.private.graph
        inputs = {name: list(shape) for name, shape in graph.inputs.items()}
        parameters = graph.weight_count
    return {
        **stored_objects.common_stored_facts(model),
        "inputs": inputs,
        "parameters": parameters,
        "preprocessing": model.preprocessing,
        "ahead": None if model.ahead_setting is None else model.ahead_setting["entries"],
        "ready": model.ready,
    }


COMMANDS = {
    "deploy": (_add_deploy_options, run_deploy),
    "models": (_add_models_options, run_models),
}
