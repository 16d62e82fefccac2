"""`python -m tfe_bench resnet50|infer`: private predictions of public models, and their cost."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, job_record
from tfe_bench.errors import UsageError, check_range

if TYPE_CHECKING:
    from tfe_bench.models.convert.calibration import ModelPlan
    from tfe_bench.models.datasets.mnist import Mnist
    from tfe_bench.models.zoo import Entry

# Relative to the range of the plaintext outputs.
_TOLERANCE = 1e-2
# Fractional bits.
_BITS, _TRANSFORMER_BITS = 16, 12
_SAME = 0.998
_MOST_BATCH = 10_000
# A batch within these numbers of samples and of ring elements in its largest value is predicted at
# once; a larger one in slices: of 32 samples of VGG16, more of small networks, fewer of large ones.
_AT_ONCE = 1024
_SLICE, _SLICE_ELEMENTS = 32, 1 << 22
# Offset of the seed, so that measured inputs differ from those of calibration and weights.
_SEED = 1000


def _add_resnet50_options(p: argparse.ArgumentParser) -> None:
    _add_zoo_model_options(p)
    p.set_defaults(model="resnet50")


def _add_infer_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL", help="name of a model of the zoo, such as vgg19")
    common.add_option(
        p,
        "--data-dir FOLDER",
        "folder of MNIST (IDX files), to predict its test images (default: generated images)",
    )
    common.add_option(
        p,
        "--train EPOCHS",
        "number of epochs to train first in plaintext, on --data-dir (default: 0)",
        type=int,
        default=0,
    )
    common.add_option(
        p, "--tokens N", "length of a text in tokens, for models of texts (default: 128)", type=int
    )
    _add_zoo_model_options(p)


def _add_zoo_model_options(p: argparse.ArgumentParser) -> None:
    common.add_image_option(p, " (default: generated pictures)")
    common.add_option(
        p,
        "--weights W",
        "weights: imagenet (downloaded once), a weights file (.h5), or seeded: random, "
        "calibrated, with the same cost (default: seeded)",
        default="seeded",
    )
    common.add_option(
        p,
        "--batch N",
        "number of samples in one prediction; a large batch runs 32 or fewer at a time "
        "(default: 1)",
        type=int,
    )
    common.add_option(
        p,
        "--activations HOW",
        "activations: exact, or series with errors up to 2^-10 and a quarter of the bytes "
        "(default: series for transformers, else exact)",
    )
    common.add_option(
        p,
        "--fractional-bits F",
        "fractional bits of values, 8 to 20 (default: 12 for transformers, else 16)",
        type=int,
    )
    p.add_argument(
        "--seed", type=int, default=1, help="seed of generated weights and inputs (default: 1)"
    )
    common.add_check_range_option(p)
    common.add_run_options(p, 3)


def run_resnet50(arguments: argparse.Namespace) -> int:
    """Predict privately with ResNet50.

    Shares the weights of ResNet50 and a picture among three workers, which predict without seeing
    either. Compares the outputs with plaintext Keras and prints the cost.
    """
    import numpy as np

    from tfe_bench.benchmarks import error_metrics
    from tfe_bench.cluster import profiles
    from tfe_bench.models import zoo
    from tfe_bench.models.inference import execute, images
    from tfe_bench.models.inference.agreement import compare_outputs
    from tfe_bench.models.inference.private import check_activations, convert
    from tfe_bench.models.zoo import training, transformers

    common.quiet_tensorflow()
    entry = zoo.find_model(arguments.model)
    batch = max(1, len(arguments.image)) if arguments.batch is None else arguments.batch
    if not max(1, len(arguments.image)) <= batch <= _MOST_BATCH:
        raise UsageError(
            f"Expected a --batch from 1 to {_MOST_BATCH}, not below the number of pictures. "
            f"Received: {batch} and {len(arguments.image)} pictures.",
            code="number-out-of-range",
            operation="--batch",
            received=batch,
        )
    epochs, folder = getattr(arguments, "train", 0), getattr(arguments, "data_dir", None)
    if not 0 <= epochs <= 1000 or (epochs and folder is None):
        raise UsageError(
            f"Expected 0 to 1000 epochs in --train, with --data-dir. Received: {epochs}"
            f"{'' if folder is not None else ' and no --data-dir'}.",
            code="number-out-of-range",
            operation="--train",
            received=epochs,
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
    digits = None if folder is None else _load_mnist_digits(folder, arguments, entry, batch)
    if digits is None:
        sample_inputs, shown = _generate_network_inputs(arguments, entry, batch, tokens)
    else:
        test = digits.test_images[:batch, :, :, None]
        sample_inputs, shown = images.prepare_pixels(test, entry.preprocessing), "MNIST test"
    with common.command_progress_bar(arguments) as bar:
        bar.show_text("building the model")
        built = zoo.build(arguments.model, arguments.weights, arguments.seed, tokens)
        samples = zoo.samples(entry, arguments.seed, tokens=tokens)
        if digits is not None:
            public = digits.train_images[:64, :, :, None]
            samples = images.prepare_pixels(public, entry.preprocessing)
        if digits is not None and epochs:
            bar.show_text("training")
            built = training.train_mnist_network(built, digits, epochs, arguments.seed)
        bar.show_text("converting the model")
        plain = np.asarray(built.keras(sample_inputs, training=False), np.float64)
        private = convert(built.keras, samples, activations=how, fractional_bits=bits)
        weights = built.weights
        del built  # keep a large model in memory only once
        at_once = choose_slice(private.plan, batch)
        predict_parameters = private.parameters(arguments.profile, at_once, arguments.check_range)
        parameters = {
            **predict_parameters,
            **common.timing_loop_parameters(arguments),
            "warm_up": 1,
        }
        inputs = {**private.shared_weights(), **private.shared_inputs(sample_inputs)}
        bar.show_text("starting the workers")
        with common.open_cluster(arguments, bar) as cluster:
            result = cluster.run("predict", parameters, inputs, bar.update)
    outputs = private.decode(result)
    agreement = compare_outputs(plain, outputs)
    # Among thousands of samples, two logits of some may differ by rounding only.
    least = 1.0 if batch < _AT_ONCE else _SAME
    correct = agreement.top1 >= least and agreement.relative_error <= _TOLERANCE
    labeled = {}
    if digits is not None:
        labels = digits.test_labels[:batch]
        labeled = {
            "accuracy": training.prediction_accuracy(outputs, labels),
            "plain_accuracy": training.prediction_accuracy(plain, labels),
        }
    outcome = job_record.JobOutcome(
        {
            "model": entry.title,
            "weights": weights,
            "parameters": entry.parameters,
            "batch": batch,
            **({"at_once": at_once} if at_once < batch else {}),
            **({"tokens": tokens, "texts": shown} if entry.is_text else {"images": shown}),
            **({"activations": how} if how != "exact" else {}),
            **common.describe_range_check(
                predict_parameters["check_range"],
                lambda on: [execute.tune_prediction(private.plan, network, at_once, on)],
            ),
        },
        correct,
        agreement.largest_error,
        private.fractional_bits,
        agreement={
            "top1": agreement.top1,
            "top5": agreement.top5,
            "largest_error": agreement.largest_error,
            "relative_error": agreement.relative_error,
            "samples": agreement.samples,
            **labeled,
        },
        error=error_metrics.error_to_json(error_metrics.RANGE, agreement.relative_error),
    )
    return job_record.report_job_result(entry.name, arguments, cluster, result, outcome)


def run_infer(arguments: argparse.Namespace) -> int:
    """Predict privately with another model of the zoo.

    Works like resnet50, for resnet50v2, vgg19, densenet121, mobilenetv2, the MNIST networks
    network-a, network-b, network-c and network-d, vgg16-cifar, and the transformers bert-tiny,
    bert-base and vit-b16. With --batch, prints the samples per second and per core-second.
    """
    return run_resnet50(arguments)


def choose_slice(plan: ModelPlan, batch: int) -> int:
    """Return the number of a batch's samples that pass the model at once, which bounds memory."""
    from tfe_bench.models.inference.request import MAX_ELEMENTS, default_batch

    largest = max(math.prod(shape) for shape in plan.graph.shapes.values())
    if batch <= _AT_ONCE and batch * largest <= MAX_ELEMENTS:
        return batch
    usual = default_batch(plan)
    if usual >= _SLICE:
        return min(batch, 1 << usual.bit_length() - 1)
    return min(batch, _SLICE, max(1, _SLICE_ELEMENTS // largest))


def _load_mnist_digits(
    folder: Path, arguments: argparse.Namespace, entry: Entry, batch: int
) -> Mnist:
    """Return MNIST if the network takes its pictures.

    Raises:
        UsageError: the network takes other inputs, or the batch is too large.
    """
    from tfe_bench.models.datasets import mnist

    if entry.input_shape != (28, 28, 1) or arguments.image:
        raise UsageError(
            "--data-dir requires an MNIST network and no --image. Received: another model, or "
            "--image.",
            code="option-not-applicable",
            operation="--data-dir",
        )
    digits = mnist.load(folder)
    if len(digits.test_labels) < batch:
        raise UsageError(
            f"Expected at most {len(digits.test_labels)} in --batch, the number of test images. "
            f"Received: {batch}.",
            code="number-out-of-range",
            operation="--batch",
            received=batch,
        )
    return digits


def _choose_text_length(arguments: argparse.Namespace, entry: Entry) -> int:
    """Return the length of a text in tokens.

    Raises:
        UsageError: an option does not fit the model.
    """
    from tfe_bench.models.zoo import catalogue

    requested = getattr(arguments, "tokens", None)
    if requested is not None and not entry.is_text:
        raise UsageError(
            f"--tokens requires a model of texts. Received: {entry.title}.",
            code="option-not-applicable",
            operation="--tokens",
            received=entry.title,
        )
    if arguments.image and entry.is_text:
        raise UsageError(
            f"--image requires a model of pictures. Received: {entry.title}.",
            code="option-not-applicable",
            operation="--image",
            received=entry.title,
        )
    tokens = catalogue.TOKENS if requested is None else int(requested)
    catalogue.check_text_length(entry, tokens)
    return tokens


def _generate_network_inputs(
    arguments: argparse.Namespace, entry: Entry, batch: int, tokens: int
) -> tuple[Any, str]:
    """Return the prepared inputs, and their description for the record."""
    import numpy as np

    from tfe_bench.models import zoo
    from tfe_bench.models.inference import images

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
