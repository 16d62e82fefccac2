"""Small language models, and texts that three simulated parties generate with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.models.inference import request as requests
from tfe_bench.models.inference import weights
from tfe_bench.models.inference.decoding import TokenDecoding
from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.models.inference.programs import generate as program
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Array = np.ndarray[Any, Any]
WORDS, LENGTH, PROMPT, NEW = 11, 8, 4, 3


def decoder_model(rng: np.random.Generator, places: bool = False, norm: bool = True) -> Any:
    """Build a block of a decoder, with a table of positions or an input of their numbers."""
    words = keras.Input((LENGTH,), dtype="int32", name="words")
    numbers = keras.Input((LENGTH,), dtype="int32", name="places")
    x = L.Embedding(WORDS, 6)(words)
    if places:
        x = L.Add()([x, L.Embedding(LENGTH + 2, 6)(numbers)])
    else:
        x = keras.ops.add(x, rng.normal(0, 1, (1, LENGTH, 6)).astype(np.float32))
    y = L.LayerNormalization()(x) if norm else x
    x = L.Add()([x, L.MultiHeadAttention(2, 3)(y, y, use_causal_mask=True)])
    x = L.Add()([x, L.Dense(6)(L.Dense(7, activation="relu")(x))])
    logits = L.Dense(WORDS, activation="softmax" if places else None)(x)
    model = keras.Model([words, numbers] if places else words, logits)
    for variable in model.weights:
        # without a norm, widely spread scores may lie too far apart
        variable.assign(rng.normal(0, 0.6 if norm else 0.3, variable.shape))
    return model


def inputs_of(model: Any, texts: Array) -> Any:
    numbers = np.tile(np.arange(LENGTH), (len(texts), 1))
    return [texts, numbers] if len(model.inputs) > 1 else texts


def convert_writer(model: Any, rng: np.random.Generator) -> PrivateModel:
    return convert(model, samples=inputs_of(model, rng.integers(0, WORDS, (16, LENGTH))))


def generate_greedily(model: Any, prompt: Sequence[int], tokens: int) -> tuple[list[int], float]:
    """Return the continuation of Keras, and the smallest gap of its two best tokens."""
    text, least = list(prompt), np.inf
    for _ in range(tokens):
        padded = np.zeros((1, LENGTH), np.int32)
        padded[0, : len(text)] = text
        values = np.asarray(model(inputs_of(model, padded), training=False))[0, len(text) - 1]
        logits = np.log(values) if len(model.inputs) > 1 else values
        second, first = np.sort(logits)[-2:]
        least = min(least, (first - second) / logits.std())
        text.append(int(logits.argmax()))
    return text[len(prompt) :], float(least)


def order_of(
    private: PrivateModel, texts: int, prompt: int, tokens: int, **more: Any
) -> requests.GenerationSetting:
    spec = InputSpec(
        requests.PROMPT,
        (texts, prompt, WORDS),
        private.plan.fraction_of(
            TokenDecoding.from_plan(private.plan, more.get("positions")).token_input
        ),
    )
    request = requests.GenerateRequest(
        plan=private.plan, **{"tokens": tokens, "check_range": True, **more}
    )
    return requests.GenerationSetting.from_request(request, spec)


def run_parties(
    private: PrivateModel,
    texts: Array,
    run: Callable[
        [Callable[[requests.GenerationSetting], program.PrivateTextGenerator], Shared], Any
    ],
    **options: Any,
) -> Simulation:
    """Return the results of three parties from one-hot rows of texts, with the weights present."""
    parts = list(weights.weight_parts(private.plan))
    (name,) = (n for n in private.graph.tokens if n == "words")
    bits = private.plan.fraction_of(name)

    def started(party: Party, rows: Shared, *arrays: Shared) -> Any:
        own: dict[str, Shared] = {}
        for part, w in zip(parts, arrays, strict=True):
            own |= dict.fromkeys(part.keys, replace(w, fractional_bits=part.fractional_bits))
        generator = lambda order: program.PrivateTextGenerator(party, order, own)  # noqa: E731
        return run(generator, replace(rows, fractional_bits=bits))

    rows = np.eye(WORDS, dtype=np.int64)[texts] << bits
    return simulate(started, rows, *weights.encode_weights(private.plan), **options)
