"""`python -m tfe_bench generate`: private text generation with a known model, and its cost."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from tfe_bench.cli import common, job_record, stored_objects, text_generation
from tfe_bench.errors import UsageError, check_range

if TYPE_CHECKING:
    from tfe_bench.models.inference.private import PrivateModel

# Largest distance of the surprise of drawn tokens from its expectation, in standard deviations.
_SURPRISE = 8.0
# Largest gap between the largest logit and a chosen one, in standard deviations of all logits.
_TOLERANCE = 0.05
# Fractional bits of all values: more bits change no token and cost rounds.
_BITS = 12
# Offset of the seed, so that measured prompts differ from the texts of the calibration.
_SEED = 1000


def _add_generate_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "model",
        metavar="MODEL",
        help="model: gpt2 or gpt2-tiny to measure, a .keras file, or the name of a deployed model",
    )
    common.add_option(
        p, "--tokens N", "length of a random prompt in tokens (default: 64)", type=int
    )
    common.add_option(
        p,
        "--prompt NUMBERS",
        "prompt as token numbers, such as 464,3290,318, or as a text if there is a tokenizer",
    )
    common.add_option(
        p,
        "--tokenizer FILE",
        "a .keras file whose preprocessor tokenizes texts, for a deployed model",
    )
    common.add_option(
        p, "--positions NAME", "name of the model's input of positions, if it has one"
    )
    common.add_option(
        p,
        "--models FOLDER",
        "folder of the models of three local workers (default: ~/.local/share/tfe_bench/models)",
    )
    common.add_option(p, "--new N", "number of new tokens (default: 8)", type=int, default=8)
    common.add_option(
        p, "--texts N", "number of texts in a batch (default: 1)", type=int, default=1
    )
    about = "temperature, 0 to 8: draw by softmax(logits / T); 0 takes the likeliest (default: 0)"
    common.add_option(p, "--temperature T", about, type=float, default=0.0)
    p.add_argument(
        "--seed", type=int, default=1, help="seed of weights and random prompts (default: 1)"
    )
    common.add_check_range_option(p)
    common.add_run_options(p, 1)


def run_generate(arguments: argparse.Namespace) -> int:
    """Generate text privately with a language model.

    Shares the weights of a language model and a prompt among three workers. They compute or draw
    one token after the other, and no worker sees a weight or a token. gpt2 and gpt2-tiny are
    compared with plaintext Keras, and the cost is printed. A deployed model or a model of a .keras
    file continues the prompt.
    """
    import numpy as np

    from tfe_bench.benchmarks import error_metrics
    from tfe_bench.cluster import profiles
    from tfe_bench.models.inference import decoding, generation
    from tfe_bench.models.inference.private import convert
    from tfe_bench.models.zoo import texts
    from tfe_bench.protocols.order import gumbel

    common.quiet_tensorflow()
    warm = gumbel.check_gumbel_temperature(arguments.temperature)
    if _is_user_language_model(arguments):
        return text_generation.continue_prompt(arguments)
    for option in ("tokenizer", "positions", "models"):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} requires a deployed model or a .keras file. Received: "
                f"{arguments.model!r}. Remove the option or choose another model.",
                code="option-not-applicable",
                operation=f"--{option}",
                received=arguments.model,
            )
    entry = texts.find_language_model(arguments.model)
    prompt = _random_text_prompt(arguments, entry.vocabulary)
    check_range("--new", arguments.new, 1, entry.context)
    check_range("--seed", arguments.seed, 0)
    common.check_run_options(arguments)
    count = prompt.shape[1]
    length = count + arguments.new
    if length > entry.context:
        raise UsageError(
            f"{arguments.model} has {entry.context} positions. Received: a prompt of {count} "
            f"tokens and --new {arguments.new}.",
            code="too-large",
            operation="--new",
            received=length,
            expected=entry.context,
        )
    with common.command_progress_bar(arguments) as bar:
        bar.show_text("building the model")
        model = texts.build_language_model(arguments.model, length, arguments.seed)
        parameters = int(model.count_params())
        bar.show_text("converting the model")
        private = convert(
            model,
            texts.generate_texts(arguments.model, length, arguments.seed),
            fractional_bits=_BITS,
            activations="series",
        )
        del model  # keep a large model in memory only once
        job_parameters, inputs = generation.build_generation_request(
            *(private, prompt, arguments.new, None, arguments.profile, arguments.check_range),
            temperature=warm,
        )
        job_parameters |= {**common.timing_loop_parameters(arguments), "warm_up": 1}
        inputs = {**private.shared_weights(), **inputs}
        bar.show_text("starting the workers")
        with common.open_cluster(arguments, bar) as cluster:
            result = cluster.run("generate", job_parameters, inputs, bar.update)
        new_tokens = generation.read_generated_tokens(private, result)
        bar.show_text("comparing with plaintext")
        written = np.concatenate([prompt, new_tokens], 1)
        top1, worst = _compare_generated_tokens(private, written, count)
        drawn = _token_surprise_deviations(private, written, count, warm) if warm else 0.0
    d, network = (
        decoding.TokenDecoding.from_plan(private.plan),
        profiles.get_profile(arguments.profile).plan,
    )
    outcome = job_record.JobOutcome(
        {
            "model": entry.title,
            "weights": f"seeded (seed {arguments.seed})",
            "parameters": parameters,
            "batch": len(prompt),
            "tokens": count,
            "new": arguments.new,
            **common.describe_range_check(
                job_parameters["check_range"],
                lambda on: decoding.build_decoding_predictions(
                    d, count, arguments.new, network, len(prompt), on
                ),
            ),
            **({"temperature": warm} if warm else {}),
            "prompt": "given" if arguments.prompt else f"made up (seed {arguments.seed + _SEED})",
        },
        drawn <= _SURPRISE if warm else worst <= _TOLERANCE,
        None if warm else worst,
        private.fractional_bits,
        agreement={"samples": new_tokens.size, "top1": top1},
        error=None if warm else error_metrics.error_to_json(error_metrics.RANGE, worst),
    )
    return job_record.report_job_result(
        f"generate {entry.name}", arguments, cluster, result, outcome
    )


def _is_user_language_model(arguments: argparse.Namespace) -> bool:
    """Return True for a user's model: in a file, or deployed at existing workers."""
    from tfe_bench.models.zoo import texts

    if arguments.model in texts.list_language_models():
        return False
    has_store = arguments.cluster is not None or arguments.models is not None
    return (
        has_store
        or arguments.model.endswith(".keras")
        or stored_objects.local_workers_folder().is_dir()
    )


def _random_text_prompt(arguments: argparse.Namespace, vocabulary: int) -> Any:
    """Return the prompt of the command line, or draw random ones: [texts, tokens]."""
    import numpy as np

    if arguments.prompt is not None and arguments.tokens is not None:
        raise UsageError(
            "--tokens is for random prompts. Received: --prompt and --tokens. Remove one of them.",
            code="conflicting-options",
            operation="--tokens",
            received="--prompt",
        )
    check_range("--texts", arguments.texts, 1, 64)
    if arguments.prompt is None:
        tokens = 64 if arguments.tokens is None else arguments.tokens
        check_range("--tokens", tokens, 1)
        rng = np.random.default_rng([arguments.seed + _SEED, 24])
        return rng.integers(0, vocabulary, (arguments.texts, tokens))
    words = arguments.prompt.replace(",", " ").split()
    if not words or not all(word.isdecimal() and int(word) < vocabulary for word in words):
        raise UsageError(  # (the text never shows which words are wrong: the prompt is private)
            f"Expected token numbers from 0 to {vocabulary - 1} in --prompt, such as 464,3290,318. "
            f"Received: {len(words)} words, and not all are such numbers.",
            code="malformed-option",
            operation="--prompt",
        )
    return np.tile(np.array([int(word) for word in words]), (arguments.texts, 1))


def _compare_generated_tokens(private: PrivateModel, texts: Any, first: int) -> tuple[float, float]:
    """Compare generated tokens with the plaintext model after the same text.

    Returns:
        (fraction of equal tokens, largest distance of a chosen logit from the largest logit in
        standard deviations of all logits)
    """
    import numpy as np

    same, worst = [], 0.0
    for text in texts:
        logits = np.asarray(private.plain(text[None]))[0, first - 1 : -1]
        chosen = np.take_along_axis(logits, text[first:, None], 1)[:, 0]
        same += (logits.argmax(1) == text[first:]).tolist()
        worst = max(worst, float(((logits.max(1) - chosen) / logits.std(1)).max()))
    return float(np.mean(same)), worst


def _token_surprise_deviations(
    private: PrivateModel, texts: Any, first: int, temperature: float
) -> float:
    """Return the surprise of drawn tokens minus its expectation, in standard deviations.

    A token of probability p has the surprise -log p; the mean surprise is the entropy.
    """
    import numpy as np

    observed, expected, variance = 0.0, 0.0, 0.0
    for text in texts:
        logits = np.asarray(private.plain(text[None]), np.float64)[0, first - 1 : -1] / temperature
        logits -= logits.max(1, keepdims=True)
        surprise = np.log(np.exp(logits).sum(1, keepdims=True)) - logits
        p = np.exp(-surprise)
        entropy = (p * surprise).sum(1)
        observed += float(np.take_along_axis(surprise, text[first:, None], 1).sum())
        expected += float(entropy.sum())
        variance += float((p * (surprise - entropy[:, None]) ** 2).sum())
    return abs(observed - expected) / max(math.sqrt(variance), 1e-6 * max(expected, 1.0))


COMMANDS = {"generate": (_add_generate_options, run_generate)}
