"""`python -m tfe_bench generate` with a user's model: deployed, or in a .keras file."""

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
    """Continue a prompt with a deployed model, or with one that is shared for this run."""
    import numpy as np

    from tfe_bench.models import from_keras, generation
    from tfe_bench.models.private import convert
    from tfe_bench.models.zoo import texts as zoo

    for option in ("tokens", "record", "trace"):
        if getattr(arguments, option) is not None:
            raise UsageError(
                f"--{option} goes with gpt2 and gpt2-tiny, which are measured. Received: "
                f"{arguments.model!r}, which writes. Leave it out."
            )
    check_range("--new", arguments.new, 1, 1 << 16)
    if arguments.prompt is None:
        hint = did_you_mean(arguments.model, zoo.list_language_models())
        raise UsageError(
            "A deployed model or a .keras file takes --prompt: numbers of tokens, or a text. "
            f"Received: {arguments.model!r} without one.{hint}"
        )
    own = arguments.model.endswith(".keras")
    model = from_keras.load_model(arguments.model) if own else None
    tokenizer = _find_tokenizer(model if arguments.tokenizer is None else None, arguments.tokenizer)
    prompt = _encode_prompt(arguments.prompt, tokenizer)
    prompts = np.tile(np.array(prompt), (arguments.texts, 1))
    with common.progress_bar(arguments) as bar:
        asked: Any = arguments.model
        if model is not None:
            bar.show_text("converting the model")
            length = len(prompt) + arguments.new
            asked = convert(model, _random_inputs(model, length), length=length)
        with stored_objects.open_service(arguments, bar) as cluster:
            started = time.perf_counter()
            found = generation.generate(
                *(cluster, asked, prompts, arguments.new),
                temperature=arguments.temperature,
                positions=arguments.positions,
                progress=bar.update,
                check_range=arguments.check_range,
            )
            seconds = time.perf_counter() - started
    written = [_decode_tokens(tokenizer, row) for row in found] if tokenizer is not None else None
    told = {"model": arguments.model, "tokens": found.tolist(), "texts": written}
    if arguments.json:
        print(json.dumps({**told, "seconds": seconds}))
        return 0
    for i, row in enumerate(found.tolist()):
        print(written[i] if written is not None else ",".join(map(str, row)))
    print(f"{arguments.new} tokens in {seconds:.2f} s")
    return 0


def _random_inputs(model: Any, length: int) -> dict[str, Any]:
    """Return texts of random tokens for calibration: the private prompt is not used for it."""
    import numpy as np

    from tfe_bench.models import from_keras

    graph, rng = from_keras.read_model(model, length=length).graph, np.random.default_rng(_SEED)
    found: dict[str, Any] = {}
    for name, shape in graph.inputs.items():
        if name in graph.tokens:
            found[name] = rng.integers(0, shape[-1], (_SAMPLES, *shape[:-1]))
        else:
            found[name] = np.ones((_SAMPLES, *shape))
    return found


def _find_tokenizer(model: Any, file: Path | None) -> Any:
    """Return the tokenizer of a model's preprocessor, None if it has none.

    Raises:
        UsageError: the model of a file has none.
    """
    from tfe_bench.models import from_keras

    of = model if file is None else from_keras.load_model(file)
    found = getattr(getattr(of, "preprocessor", None), "tokenizer", None)
    if file is not None and found is None:
        raise UsageError(
            f"--tokenizer is a .keras file of a model with a preprocessor. Received: {file.name!r}."
        )
    return found


def _encode_prompt(prompt: str, tokenizer: Any) -> list[int]:
    """Return the token numbers of a prompt.

    Raises:
        UsageError: it is a text, and nothing makes numbers of it; the text is not in the error.
    """
    import numpy as np

    if _NUMBERS.fullmatch(prompt):
        return [int(word) for word in prompt.replace(",", " ").split()]
    if tokenizer is None:
        raise UsageError(
            "--prompt is numbers of tokens, as 464,3290,318, where no tokenizer is there. "
            f"Received: a text of {len(prompt)} characters. Add --tokenizer FILE, a .keras file "
            "whose model has a preprocessor."
        )
    return [int(n) for n in np.asarray(tokenizer(prompt)).reshape(-1)]


def _decode_tokens(tokenizer: Any, tokens: Any) -> str:
    found = tokenizer.detokenize(tokens)
    found = found.numpy() if hasattr(found, "numpy") else found
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)
