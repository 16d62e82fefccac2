"""Models and prompts that text generation refuses, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.models.writers import LENGTH, WORDS, L, convert_writer, decoder_model, keras
from tests.refusals import Matching, raises
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.inference import generation, weights
from tfe_bench.models.inference import request as requests
from tfe_bench.models.inference.decoding import TokenDecoding
from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.models.inference.programs import generate as program
from tfe_bench.models.inference.request import RANGE


def causal_attention(x: Any) -> Any:
    return L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)


MIXED: list[tuple[str, Callable[[Any], Any]]] = [
    (r"attend' .*behind its own", lambda x: L.MultiHeadAttention(2, 3)(x, x)),
    ("global_average", lambda x: L.Dense(LENGTH)(L.GlobalAveragePooling1D()(causal_attention(x)))),
    ("conv1d.*several positions", lambda x: L.Conv1D(6, 3, padding="causal")(causal_attention(x))),
    ("statistic of several", lambda x: L.LayerNormalization(axis=[1, 2])(causal_attention(x))),
    (
        "flatten|several positions",
        lambda x: L.Reshape((LENGTH, 6))(L.Flatten()(causal_attention(x))),
    ),
    ("behind each other", lambda x: L.Concatenate(axis=1)([causal_attention(x), x])),
    ("several positions", lambda x: L.Dense(LENGTH)(L.Permute((2, 1))(causal_attention(x)))),
    ("sum over positions", lambda x: L.Softmax(axis=1)(causal_attention(x))),
    ("some positions|drops", lambda x: causal_attention(x)[:, -1:]),
    ("repeats", lambda x: L.UpSampling1D(2)(causal_attention(x))),
]


@pytest.mark.parametrize(("said", "make"), MIXED)
def test_layers_that_mix_positions_are_refused_by_name(
    said: str, make: Callable[[Any], Any], rng: np.random.Generator
) -> None:
    words = keras.Input((LENGTH,), dtype="int32", name="words")
    model = keras.Model(words, L.Dense(WORDS)(make(L.Embedding(WORDS, 6)(words))))
    with raises(UsageError, "unsupported-model", received=Matching(said)):
        TokenDecoding.from_plan(convert(model).plan)


def other_outputs() -> list[tuple[str, Any]]:
    words = keras.Input((LENGTH,), dtype="int32", name="words")
    x = causal_attention(L.Embedding(WORDS, 6)(words))
    logits = L.Dense(WORDS)(x)
    real = keras.Input((LENGTH, 6), name="real")
    return [
        ("inputs are 'words', 'real'", keras.Model([words, real], L.Add()([x, real]))),
        ("outputs is 2", keras.Model(words, [logits, x])),
        ("logits of 11 tokens", keras.Model(words, L.Dense(WORDS + 1)(x))),
        ("Dense layer without activation", keras.Model(words, L.Dense(WORDS, "relu")(x))),
        ("Dense layer without activation", keras.Model(words, L.ReLU()(L.Dense(WORDS)(x)))),
        ("inputs are 'real'", keras.Model(real, L.Dense(WORDS)(real))),
    ]


def test_models_that_give_no_logits_are_refused() -> None:
    for reason, model in other_outputs():
        with raises(UsageError, "unsupported-model", received=Matching(reason)):
            TokenDecoding.from_plan(convert(model).plan)


def test_positions_are_named_or_refused(rng: np.random.Generator) -> None:
    plan = convert_writer(decoder_model(rng, places=True), rng).plan
    assert TokenDecoding.from_plan(plan, "places").token_input == "words"
    for positions, code, said in (
        (None, "unsupported-model", "inputs are 'words', 'places'"),
        ("place", "unknown-name", "place"),
        ("words", "unsupported-model", "logits of 10 tokens"),
    ):
        with raises(UsageError, code, received=Matching(said)):
            TokenDecoding.from_plan(plan, positions)


@pytest.fixture(scope="module")
def private() -> PrivateModel:
    rng = np.random.default_rng(3)
    return convert_writer(decoder_model(rng, norm=False), rng)


TEXTS: list[tuple[str, str, Any, Any]] = [
    ("empty-input", "prompt", [], 2),
    ("empty-input", "prompt", np.zeros((2, 0), np.int64), 2),
    ("number-out-of-range", "1 to 64", np.zeros((0, 3), np.int64), 2),
    ("number-out-of-range", "1 to 64", np.zeros((65, 3), np.int64), 2),
    ("number-out-of-range", "1 of 3", [1, 2, WORDS], 2),
    ("number-out-of-range", "2 of 3", [-1, 2, -(2**62)], 2),
    ("wrong-type", "float64", [1.0, 2.0], 2),
    ("wrong-type", "bool", [True, False], 2),
    ("wrong-type", "shape", "text", 2),
    ("wrong-type", "[1, 1, 1]", [[[1]]], 2),
    ("too-large", "7 tokens", [1] * 7, 2),
    ("too-large", "8 positions", [1] * 9, 1),
    ("number-out-of-range", "0", [1, 2], 0),
    ("number-out-of-range", "-1", [1, 2], -1),
    ("number-out-of-range", "1.0", [1, 2], 1.0),
    ("number-out-of-range", "True", [1, 2], True),
]


@pytest.mark.parametrize(("code", "fact", "prompt", "tokens"), TEXTS)
def test_texts_that_do_not_fit_are_refused(
    private: PrivateModel, code: str, fact: str, prompt: Any, tokens: Any
) -> None:
    with raises(UsageError, code, names=(fact,)):
        generation.build_generation_request(private, prompt, tokens, None)


def test_a_range_that_was_left_withholds_the_text(private: PrivateModel) -> None:
    from tfe_bench.cluster.requests import JobResult

    bits = {requests.TOKENS: 16, RANGE: 0}
    outputs = {requests.TOKENS: np.array([[3], [4]]) << 16, RANGE: np.zeros((2, 1), int)}
    assert generation.read_generated_tokens(private, JobResult(outputs, bits)).tolist() == [
        [3],
        [4],
    ]
    outputs[RANGE] = np.array([[0], [-5]])
    with raises(RangeError, "left-planned-range"):
        generation.read_generated_tokens(private, JobResult(outputs, bits))


def test_orders_that_do_not_fit_are_refused(private: PrivateModel) -> None:
    request, specs = generation.build_generation_request(private, [1, 2], 2, None)
    owned = weights.weight_specs(private.plan)
    text = InputSpec(requests.PROMPT, specs[requests.PROMPT].shape, 16)
    program.PROGRAM.admit(request, [*owned, text])
    wrong: list[tuple[str, str, dict[str, Any], list[InputSpec]]] = [
        ("number-out-of-range", "tokens", {"tokens": 0}, [text]),
        ("too-large", "tokens", {"tokens": 7}, [text]),
        ("unknown-name", "positions", {"positions": "words2"}, [text]),
        ("wrong-type", "positions", {"positions": 3}, [text]),
        ("wrong-type", "check_range", {"check_range": 1}, [text]),
        ("number-out-of-range", "temperature", {"temperature": -1.0}, [text]),
        ("number-out-of-range", "temperature", {"temperature": "warm"}, [text]),
        ("unknown-option", "generate", {"token": 1}, [text]),
        ("unexpected-inputs", "generate", {}, []),
        ("unexpected-inputs", "generate", {}, [text, replace(text, name="more")]),
        ("unexpected-inputs", "prompt", {}, [InputSpec("text", text.shape, 16)]),
        ("unexpected-inputs", "prompt", {}, [InputSpec(requests.PROMPT, (1, 2, WORDS + 1), 16)]),
        ("unexpected-inputs", "prompt", {}, [InputSpec(requests.PROMPT, (2, WORDS), 16)]),
        ("unexpected-inputs", "prompt", {}, [InputSpec(requests.PROMPT, (0, 2, WORDS), 16)]),
        ("empty-input", "prompt", {}, [InputSpec(requests.PROMPT, (1, 0, WORDS), 16)]),
        ("unexpected-inputs", "prompt", {}, [InputSpec(requests.PROMPT, (1, 2, WORDS), 15)]),
        ("too-large", "tokens", {}, [InputSpec(requests.PROMPT, (1, 8, WORDS), 16)]),
    ]
    for code, operation, changed, inputs in wrong:
        with raises(UsageError, code, operation=operation):
            program.PROGRAM.admit({**request, **changed}, [*owned, *inputs])
