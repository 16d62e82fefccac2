"""Token numbers as a model's input: looked up in private tables, attended to, and refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.models.test_norm_ranges import run_plan
from tests.refusals import Matching, raises
from tfe_bench.errors import UsageError
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.inference.private import PrivateModel, convert

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
WORDS, LENGTH = 11, 5


def sentence_model() -> Any:
    """Build a block of an encoder over words and their segments."""
    words = keras.Input((LENGTH,), dtype="int32", name="words")
    segments = keras.Input((LENGTH,), name="segments")
    x = L.Add()([L.Embedding(WORDS, 6)(words), L.Embedding(2, 6)(segments)])
    x = L.LayerNormalization()(x)
    x = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(2, 3)(x, x)]))
    y = L.Dense(6)(L.Dense(8, activation="gelu")(x))
    x = L.LayerNormalization()(L.Add()([x, y]))
    return keras.Model([words, segments], L.Dense(3)(L.GlobalAveragePooling1D()(x)))


def draw_inputs(rng: np.random.Generator, count: int = 3) -> dict[str, Any]:
    words = rng.integers(0, WORDS, (count, LENGTH))
    words[0, :2] = 0, WORDS - 1
    return {"words": words, "segments": rng.integers(0, 2, (count, LENGTH))}


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_model_of_tokens_gives_what_keras_gives(
    calibrated: bool, rng: np.random.Generator
) -> None:
    model, arrays = sentence_model(), draw_inputs(rng)
    private = convert(model, samples=arrays if calibrated else None)
    assert private.bounds == {"words": 1.0, "segments": 1.0}
    expected = np.asarray(model([arrays["words"], arrays["segments"]], training=False))
    assert np.abs(private.plain(arrays) - expected).max() < 2e-5
    value, _, _ = run_plan(private.plan, arrays)
    assert np.abs(value - expected).max() < 2.0**-8


def test_a_header_says_which_inputs_are_tokens(rng: np.random.Generator) -> None:
    private = convert(sentence_model())
    header = private.plan.to_header()
    again = PrivateModel(ModelPlan.from_header(header), private.bounds, True)
    assert again.graph.tokens == {"words": WORDS, "segments": 2}
    shared = again.shared_inputs(draw_inputs(rng))
    assert [p.shape for p in shared.values()] == [(3, LENGTH, WORDS), (3, LENGTH, 2)]
    for wrong in ({"words": 4}, {"other": 2}, {"words": True}):
        with raises(UsageError, "invalid-graph", operation="tokens"):
            Graph.from_header(header["graph"] | {"tokens": wrong})


WRONG: list[tuple[str, tuple[str, ...], Callable[[Any], Any]]] = [
    (
        "number-out-of-range",
        ("1 of 15",),
        lambda w: np.where(np.arange(15).reshape(3, 5) == 7, -1, w),
    ),
    ("number-out-of-range", ("15 of 15",), lambda w: w + WORDS),
    ("number-out-of-range", ("15 of 15",), lambda w: w + 2**40),
    ("wrong-type", ("float64",), lambda w: w * 1.0),
    ("wrong-type", ("bool",), lambda w: w > 2),
    ("shape-mismatch", ("[batch, 5]",), lambda w: w[:, :4]),
    ("shape-mismatch", ("[batch, 5, 11]",), lambda w: w[0]),
    ("shape-mismatch", ("[batch, 5, 11]", "[0, 5, 11]"), lambda w: w[:0]),
    ("invalid-tokens", (), lambda w: np.zeros((3, LENGTH, WORDS))),
    ("invalid-tokens", (), lambda w: np.full((3, LENGTH, WORDS), 1 / WORDS)),
]


@pytest.fixture(scope="module")
def private() -> PrivateModel:
    return convert(sentence_model())


@pytest.mark.parametrize(("code", "facts", "change"), WRONG)
def test_what_are_no_tokens_is_refused_without_naming_one(
    private: PrivateModel,
    code: str,
    facts: tuple[str, ...],
    change: Callable[[Any], Any],
    rng: np.random.Generator,
) -> None:
    arrays = draw_inputs(rng)
    with raises(UsageError, code, operation="words", names=facts):
        private.shared_inputs(arrays | {"words": change(arrays["words"])})


def of_numbers(make: Callable[[Any], Any]) -> Any:
    x = keras.Input((LENGTH,), dtype="int32")
    return keras.Model(x, make(x))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda x: L.Add()([L.Embedding(5, 1)(x), L.Reshape((5, 1))(x)]), "tables alone"),
        (lambda x: L.Add()([L.Embedding(5, 3)(x), L.Embedding(6, 3)(x)]), "another table has 5"),
        (lambda x: L.Embedding(5, 3)(keras.ops.add(x, 1)), "numbers that the model computes"),
    ],
)
def test_tables_of_other_numbers_are_refused(make: Callable[[Any], Any], said: str) -> None:
    with raises(UsageError, "unsupported-layer", received=Matching(said)):
        convert(of_numbers(make))


def of_any_length(nested: bool) -> Any:
    """Build a model of texts of unspecified length, alone or nested."""
    words = keras.Input((None,), dtype="int32", name="words")
    x = L.Embedding(WORDS, 6)(words)
    x = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(2, 3)(x, x)]))
    inner = keras.Model(words, L.Dense(4, activation="relu")(x))
    if not nested:
        return keras.Model(words, L.GlobalAveragePooling1D()(inner.output))
    outer = keras.Input((None,), dtype="int32", name="words")
    return keras.Model(outer, L.GlobalAveragePooling1D()(inner(outer)))


@pytest.mark.parametrize("nested", [False, True])
def test_a_length_is_given_where_the_model_leaves_it_open(
    nested: bool, rng: np.random.Generator
) -> None:
    model = of_any_length(nested)
    for length in (1, 7):
        private = convert(model, shapes={"words": (length,)})
        words = rng.integers(0, WORDS, (2, length))
        expected = np.asarray(model(words, training=False))
        assert np.abs(private.plain(words) - expected).max() < 2e-5
    wrong: list[tuple[Any, str, str]] = [
        ({}, "unknown-input-size", "convert(model, shapes={'words': (128,)})"),
        ({"word": (7,)}, "unknown-name", "'word'"),
        ({"words": (7, 2)}, "shape-mismatch", "[None]"),
        ({"words": (0,)}, "shape-mismatch", "[None]"),
        ({"words": 7}, "shape-mismatch", "[None]"),
    ]
    for shapes, code, fact in wrong:
        with raises(UsageError, code, names=(fact,)):
            convert(model, shapes=shapes)
    with raises(UsageError, "shape-mismatch"):
        convert(sentence_model(), shapes={"words": (4,)})
