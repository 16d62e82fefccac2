"""`python -m tfe_bench generate` with a user's model, deployed or in a .keras file."""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

from tfe_bench.cli import common, stored_objects
from tfe_bench.errors import UsageError, check_range, did_you_mean

_SAMPLES, _SEED = 16, 24
_NUMBERS = re.compile(r"\s*\d+([\s,]+\d+)*[\s,]*", re.ASCII)


def continue_prompt(arguments: argparse.Namespace) -> int:
    """Continue a prompt with a deployed model, or with a model that is shared for this run.

    Raises:
        UsageError: an option is invalid or missing.
    """
    import numpy as np

    from tfe_bench.models.convert import from_keras
    from tfe_bench.models.inference import generation
    from tfe_bench.models.inference.private import convert
    from tfe_bench.models.zoo import texts as zoo

    for option in ("tokens", "record", "trace"):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} is for the measured models gpt2 and gpt2-tiny. Received: "
                f"{arguments.model!r}. Remove the option.",
                code="option-not-applicable",
                operation=f"--{option}",
                received=arguments.model,
            )
    check_range("--new", arguments.new, 1, 1 << 16)
    if arguments.prompt is None:
        hint = did_you_mean(arguments.model, zoo.list_language_models())
        raise UsageError(
            "A deployed model or a .keras file requires --prompt: token numbers, or a text. "
            f"Received: {arguments.model!r} without one.{hint}",
            code="missing-argument",
            operation="--prompt",
            received=arguments.model,
        )
    is_local_file = arguments.model.endswith(".keras")
    model = from_keras.load_model(arguments.model) if is_local_file else None
    tokenizer = _find_tokenizer(model if arguments.tokenizer is None else None, arguments.tokenizer)
    prompt = _encode_prompt(arguments.prompt, tokenizer)
    prompts = np.tile(np.array(prompt), (arguments.texts, 1))
    with common.command_progress_bar(arguments) as bar:
        private_model: Any = arguments.model
        if model is not None:
            bar.show_text("converting the model")
            length = len(prompt) + arguments.new
            private_model = convert(model, _random_token_inputs(model, length), length=length)
        with stored_objects.open_stored_object_service(arguments, bar) as cluster:
            started = time.perf_counter()
            generated_tokens = generation.generate(
                *(cluster, private_model, prompts, arguments.new),
                temperature=arguments.temperature,
                positions=arguments.positions,
                progress=bar.update,
                check_range=arguments.check_range,
            )
            seconds = time.perf_counter() - started
    written = (
        [_decode_tokens(tokenizer, row) for row in generated_tokens]
        if tokenizer is not None
        else None
    )
    summary = {"model": arguments.model, "tokens": generated_tokens.tolist(), "texts": written}
    if arguments.json:
        print(json.dumps({**summary, "seconds": seconds}))
        return 0
    for i, row in enumerate(generated_tokens.tolist()):
        print(written[i] if written is not None else ",".join(map(str, row)))
    print(f"{arguments.new} tokens in {seconds:.2f} s")
    return 0


def _random_token_inputs(model: Any, length: int) -> dict[str, Any]:
    """Return texts of random tokens for calibration: the private prompt is not used for it."""
    import numpy as np

    from tfe_bench.models.convert import from_keras

    graph, rng = (
        from_keras.read_keras_model(model, length=length).graph,
        np.random.default_rng(_SEED),
    )
    inputs: dict[str, Any] = {}
    for name, shape in graph.inputs.items():
        if name in graph.tokens:
            inputs[name] = rng.integers(0, shape[-1], (_SAMPLES, *shape[:-1]))
        else:
            inputs[name] = np.ones((_SAMPLES, *shape))
    return inputs


def _find_tokenizer(model: Any, file: Path | None) -> Any:
    """Return the tokenizer of a model's preprocessor, None if it has none.

    Raises:
        UsageError: the model of a file has no tokenizer.
    """
    from tfe_bench.models.convert import from_keras

    of = model if file is None else from_keras.load_model(file)
    tokenizer = getattr(getattr(of, "preprocessor", None), "tokenizer", None)
    if file is not None and tokenizer is None:
        raise UsageError(
            "Expected a .keras file of a model with a preprocessor in --tokenizer. "
            f"Received: {file.name!r}.",
            code="tokenizer-missing",
            operation="--tokenizer",
            received=file.name,
        )
    return tokenizer


def _encode_prompt(prompt: str, tokenizer: Any) -> list[int]:
    """Return the token numbers of a prompt.

    Raises:
        UsageError: the prompt is a text and there is no tokenizer. The error omits the text.
    """
    import numpy as np

    if _NUMBERS.fullmatch(prompt):
        return [int(word) for word in prompt.replace(",", " ").split()]
    if tokenizer is None:
        raise UsageError(
            "Expected token numbers in --prompt, such as 464,3290,318, without a tokenizer. "
            f"Received: a text of {len(prompt)} characters. Add --tokenizer FILE, a .keras file "
            "whose model has a preprocessor.",
            code="tokenizer-missing",
            operation="--prompt",
        )
    return [int(n) for n in np.asarray(tokenizer(prompt)).reshape(-1)]


def _decode_tokens(tokenizer: Any, tokens: Any) -> str:
    text = tokenizer.detokenize(tokens)
    text = text.numpy() if hasattr(text, "numpy") else text
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
