"""`python -m tfe_bench resnet50|infer`: private predictions of a known network, and their cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli.common import (
    add_run_options,
    check_run_options,
    harness_parameters,
    open_cluster,
    progress_bar,
    quiet_tensorflow,
    report,
)
from tfe_bench.errors import UsageError

if TYPE_CHECKING:
    from tfe_bench.models.zoo import Entry

# Of the plaintext outputs' range.
_TOLERANCE = 1e-2
_MOST_BATCH = 1024
# Pictures that are measured are not those from which ranges and seeded weights are taken.
_SEED = 1000


def add_parser(commands: Any) -> None:
    """Adds the two commands."""
    p = commands.add_parser(
        "resnet50",
        help="predict privately with ResNet50",
        description="Shares ResNet50's weights and a picture among three workers, predicts "
        "without any worker seeing either, compares with plaintext Keras and prints what it cost.",
    )
    _add_options(p)
    p.set_defaults(run=run, model="resnet50")

    p = commands.add_parser(
        "infer",
        help="predict privately with another network of the zoo",
        description="As resnet50, for resnet50v2, vgg19, densenet121, mobilenetv2, or one of the "
        "MNIST networks network-a, network-b, network-c, network-d.",
    )
    p.add_argument("model", metavar="MODEL", help="a name of the zoo")
    p.add_argument(
        "--data-dir",
        type=Path,
        metavar="FOLDER",
        help="test images of MNIST (IDX files) for an MNIST network, instead of made-up ones",
    )
    _add_options(p)
    p.set_defaults(run=run)


def _add_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--image",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a picture (JPEG, PNG, GIF, BMP), may be repeated; without one they are made up",
    )
    p.add_argument(
        "--weights",
        default="seeded",
        metavar="W",
        help="imagenet (downloaded once), the path of a weights file (.h5), or seeded: made up, "
        "calibrated, of the same cost (default)",
    )
    p.add_argument("--batch", type=int, metavar="N", help="pictures in one prediction (default 1)")
    p.add_argument("--seed", type=int, default=1, help="of what is made up (default 1)")
    add_run_options(p, 3)


def run(arguments: argparse.Namespace) -> int:
    """Runs a command."""
    import numpy as np

    from tfe_bench.models import zoo
    from tfe_bench.models.agreement import agreement
    from tfe_bench.models.private import convert

    quiet_tensorflow()
    entry = zoo.find(arguments.model)
    batch = max(1, len(arguments.image)) if arguments.batch is None else arguments.batch
    if not max(1, len(arguments.image)) <= batch <= _MOST_BATCH:
        raise UsageError(
            f"--batch is 1 to {_MOST_BATCH} and no less than the pictures. Received: {batch} and "
            f"{len(arguments.image)} pictures."
        )
    if arguments.seed < 0:
        raise UsageError(f"--seed is 0 or more. Received: {arguments.seed}.")
    check_run_options(arguments)
    given, shown = _pictures(arguments, entry, batch)
    with progress_bar(arguments) as bar:
        bar.say("building the model")
        built = zoo.build(arguments.model, arguments.weights, arguments.seed)
        plain = np.asarray(built.keras(given, training=False), np.float64)
        private = convert(built.keras, zoo.samples(entry, arguments.seed))
        parameters = {**private.parameters(arguments.profile, batch), **_harness(arguments)}
        inputs = {"weights": private.shared_weights(), **private.shared_inputs(given)}
        bar.say("starting the workers")
        with open_cluster(arguments, bar) as cluster:
            result = cluster.run("predict", parameters, inputs, bar.update)
    found = agreement(plain, private.decode(result))
    correct = found.top1 == 1 and found.relative_error <= _TOLERANCE
    report(
        entry.name,
        arguments,
        cluster,
        result,
        {
            "model": entry.title,
            "weights": built.weights,
            "parameters": entry.parameters,
            "batch": batch,
            "images": shown,
        },
        correct,
        found.largest_error,
        private.fractional_bits,
        agreement={
            "top1": found.top1,
            "top5": found.top5,
            "largest_error": found.largest_error,
            "relative_error": found.relative_error,
            "samples": found.samples,
        },
    )
    return 0 if correct else 1


def _harness(arguments: argparse.Namespace) -> dict[str, Any]:
    return {**harness_parameters(arguments), "warm_up": 1}


def _pictures(arguments: argparse.Namespace, entry: Entry, batch: int) -> tuple[Any, str]:
    """The prepared inputs, and what the record says of them."""
    import numpy as np

    from tfe_bench.models import images, mnist, zoo

    folder = getattr(arguments, "data_dir", None)
    if folder is not None:
        if entry.classes != 10 or arguments.image:
            raise UsageError("--data-dir goes with an MNIST network, without --image.")
        digits = mnist.load(folder).test_images[:batch, :, :, None]
        if len(digits) < batch:
            raise UsageError(f"--batch is at most {len(digits)} here. Received: {batch}.")
        return images.prepare(digits, entry.preprocessing), "MNIST test"
    rows = [images.load(path, entry.input_shape, entry.preprocessing) for path in arguments.image]
    words = [path.name for path in arguments.image]
    if made_up := batch - len(rows):
        rows.append(zoo.samples(entry, arguments.seed + _SEED, made_up))
        words.append(f"{made_up} made up (seed {arguments.seed + _SEED})")
    return np.concatenate(rows), ", ".join(words)
