"""`python -m tfe_bench resnet50|infer`: private predictions of a known model, and their cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common
from tfe_bench.errors import UsageError, check_range

if TYPE_CHECKING:
    from tfe_bench.models.mnist import Mnist
    from tfe_bench.models.zoo import Entry

# Of the plaintext outputs' range.
_TOLERANCE = 1e-2
# Fractional bits.
_BITS, _TRANSFORMER_BITS = 16, 12
_SAME = 0.998
_MOST_BATCH = 10_000
# Larger batches go through the model in parts.
_AT_ONCE = 1024
# What is measured is not that from which ranges and seeded weights are taken.
_SEED = 1000


def _add_resnet50_options(p: argparse.ArgumentParser) -> None:
    _add_model_options(p)
    p.set_defaults(model="resnet50")


def _add_infer_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL", help="a name of the zoo")
    common.add_option(
        p,
        "--data-dir FOLDER",
        "test images of MNIST (IDX files) for an MNIST network, instead of made-up ones",
    )
    common.add_option(
        p,
        "--train EPOCHS",
        "train the network on the images of --data-dir first, in plaintext",
        type=int,
        default=0,
    )
    common.add_option(
        p, "--tokens N", "length of a text, of models that take texts (128)", type=int
    )
    _add_model_options(p)


def _add_model_options(p: argparse.ArgumentParser) -> None:
    common.add_image_option(p, "; without one they are made up")
    common.add_option(
        p,
        "--weights W",
        "imagenet (downloaded once), the path of a weights file (.h5), or seeded: made up, "
        "calibrated, of the same cost (default)",
        default="seeded",
    )
    common.add_option(p, "--batch N", "samples in one prediction (default 1)", type=int)
    common.add_option(
        p,
        "--activations HOW",
        "exact, or series: off by up to 2^-10, for a quarter of the bytes (default: series of "
        "transformers, else exact)",
    )
    common.add_option(
        p,
        "--fractional-bits F",
        "of values, 8 to 20 (default: 12 of transformers, else 16)",
        type=int,
    )
    p.add_argument("--seed", type=int, default=1, help="of what is made up (default 1)")
    common.add_check_range(p)
    common.add_run_options(p, 3)


def run_resnet50(arguments: argparse.Namespace) -> int:
    """Predict privately with ResNet50.

    Shares ResNet50's weights and a picture among three workers, predicts without any worker
    seeing either, compares with plaintext Keras and prints what it cost.
    """
    import numpy as np

    from tfe_bench.benchmarks import error_metrics
    from tfe_bench.cluster import profiles
    from tfe_bench.models import execute, images, zoo
    from tfe_bench.models.agreement import compare_outputs
    from tfe_bench.models.private import check_activations, convert
    from tfe_bench.models.programs.predict import default_batch
    from tfe_bench.models.zoo import training, transformers

    common.quiet_tensorflow()
    entry = zoo.find_model(arguments.model)
    batch = max(1, len(arguments.image)) if arguments.batch is None else arguments.batch
    if not max(1, len(arguments.image)) <= batch <= _MOST_BATCH:
        raise UsageError(
            f"--batch is 1 to {_MOST_BATCH} and no less than the pictures. Received: {batch} and "
            f"{len(arguments.image)} pictures."
        )
    epochs, folder = getattr(arguments, "train", 0), getattr(arguments, "data_dir", None)
    if not 0 <= epochs <= 1000 or (epochs and folder is None):
        raise UsageError(
            f"--train is 0 to 1000 and goes with --data-dir. Received: {epochs}"
            f"{'' if folder is not None else ' and no --data-dir'}."
        )
    check_range("--seed", arguments.seed, 0)
    tokens = _choose_text_length(arguments, entry)
    transformer = entry.name in transformers.SIZES
    how = arguments.activations or ("series" if transformer else "exact")
    bits = arguments.fractional_bits
    bits = bits if bits is not None else _TRANSFORMER_BITS if transformer else _BITS
    check_activations(how)
    network = profiles.get_profile(arguments.profile).plan
    common.check_run_options(arguments)
    digits = None if folder is None else _load_digits(folder, arguments, entry, batch)
    if digits is None:
        given, shown = _generate_inputs(arguments, entry, batch, tokens)
    else:
        test = digits.test_images[:batch, :, :, None]
        given, shown = images.prepare_pixels(test, entry.preprocessing), "MNIST test"
    with common.progress_bar(arguments) as bar:
        bar.show_text("building the model")
        built = zoo.build(arguments.model, arguments.weights, arguments.seed, tokens)
        samples = zoo.samples(entry, arguments.seed, tokens=tokens)
        if digits is not None:
            public = digits.train_images[:64, :, :, None]
            samples = images.prepare_pixels(public, entry.preprocessing)
        if digits is not None and epochs:
            bar.show_text("training")
            built = training.train_network(built, digits, epochs, arguments.seed)
        bar.show_text("converting the model")
        plain = np.asarray(built.keras(given, training=False), np.float64)
        private = convert(built.keras, samples, activations=how, fractional_bits=bits)
        weights = built.weights
        del built  # a large model need not be there twice
        at_once = batch if batch <= _AT_ONCE else None
        asked = private.parameters(arguments.profile, at_once, arguments.check_range)
        parameters = {**asked, **common.harness_parameters(arguments), "warm_up": 1}
        inputs = {**private.shared_weights(), **private.shared_inputs(given)}
        bar.show_text("starting the workers")
        with common.open_cluster(arguments, bar) as cluster:
            result = cluster.run("predict", parameters, inputs, bar.update)
    outputs = private.decode(result)
    part = min(batch, at_once or default_batch(private.plan))
    found = compare_outputs(plain, outputs)
    # Where thousands are compared, two logits of some may be equal but for rounding.
    least = 1.0 if batch < _AT_ONCE else _SAME
    correct = found.top1 >= least and found.relative_error <= _TOLERANCE
    labeled = {}
    if digits is not None:
        labels = digits.test_labels[:batch]
        labeled = {
            "accuracy": training.accuracy(outputs, labels),
            "plain_accuracy": training.accuracy(plain, labels),
        }
    told = common.JobOutcome(
        {
            "model": entry.title,
            "weights": weights,
            "parameters": entry.parameters,
            "batch": batch,
            **({"tokens": tokens, "texts": shown} if entry.is_text else {"images": shown}),
            **({"activations": how} if how != "exact" else {}),
            **common.describe_range_check(
                asked["check_range"],
                lambda on: [execute.tune_prediction(private.plan, network, part, on)],
            ),
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
            **labeled,
        },
        error=error_metrics.error_to_json(error_metrics.RANGE, found.relative_error),
    )
    return common.report_result(entry.name, arguments, cluster, result, told)


def run_infer(arguments: argparse.Namespace) -> int:
    """Predict privately with another model of the zoo.

    As resnet50, for resnet50v2, vgg19, densenet121, mobilenetv2, one of the MNIST networks
    network-a, network-b, network-c, network-d, or a transformer: bert-tiny, bert-base, vit-b16.
    """
    return run_resnet50(arguments)


def _load_digits(folder: Path, arguments: argparse.Namespace, entry: Entry, batch: int) -> Mnist:
    """Return MNIST, if the network takes it."""
    from tfe_bench.models import mnist

    if entry.classes != 10 or arguments.image or entry.is_text:
        raise UsageError("--data-dir goes with an MNIST network, without --image.")
    found = mnist.load(folder)
    if len(found.test_labels) < batch:
        raise UsageError(f"--batch is at most {len(found.test_labels)} here. Received: {batch}.")
    return found


def _choose_text_length(arguments: argparse.Namespace, entry: Entry) -> int:
    """Return the length of a text in tokens."""
    from tfe_bench.models.zoo import catalogue

    said = getattr(arguments, "tokens", None)
    if said is not None and not entry.is_text:
        raise UsageError(f"--tokens goes with a model of texts. Received: {entry.title}.")
    if arguments.image and entry.is_text:
        raise UsageError(f"--image goes with a model of pictures. Received: {entry.title}.")
    tokens = catalogue.TOKENS if said is None else int(said)
    catalogue.check_tokens(entry, tokens)
    return tokens


def _generate_inputs(
    arguments: argparse.Namespace, entry: Entry, batch: int, tokens: int
) -> tuple[Any, str]:
    """Return the prepared inputs, and their description for the record."""
    import numpy as np

    from tfe_bench.models import images, zoo

    if entry.is_text:
        seed = arguments.seed + _SEED
        return zoo.samples(entry, seed, batch, tokens), f"{batch} made up (seed {seed})"
    rows = [
        images.load_picture(path, entry.input_shape, entry.preprocessing)
        for path in arguments.image
    ]
    words = [path.name for path in arguments.image]
    if made_up := batch - len(rows):
        rows.append(zoo.samples(entry, arguments.seed + _SEED, made_up))
        words.append(f"{made_up} made up (seed {arguments.seed + _SEED})")
    return np.concatenate(rows), ", ".join(words)


COMMANDS = {
    "resnet50": (_add_resnet50_options, run_resnet50),
    "infer": (_add_infer_options, run_infer),
}
