"""Masks: as inputs, as arguments, and attached by Keras to the output of an Embedding."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.models.test_norm_ranges import run_plan
from tests.refusals import Matching, raises
from tfe_bench.errors import DataError, UsageError
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.inference import execute
from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.models.layers.base.layer import LayerSpec

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
K: Any = keras.ops
WORDS, STEPS, WIDTH = 7, 5, 6


def word_input() -> Any:
    return keras.Input((STEPS,), dtype="int32", name="words")


def step_input(name: str = "x", count: int = STEPS) -> Any:
    return keras.Input((count, WIDTH), name=name)


def mask_input(*shape: int, dtype: str = "bool") -> Any:
    return keras.Input(shape, dtype=dtype, name="mask")


def embed_padded() -> tuple[Any, Any]:
    token_ids = word_input()
    return token_ids, L.Embedding(WORDS, WIDTH, mask_zero=True)(token_ids)


def attention_blocks(dropout: float, join: Callable[[Any, Any], Any]) -> Any:
    """Return two attentions; Keras masks the second if the mask of the first one remains."""
    token_ids, x = embed_padded()
    y = join(x, L.MultiHeadAttention(2, 3, dropout=dropout)(x, x))
    y = L.Dropout(0.1)(L.LayerNormalization()(y))
    y = L.MultiHeadAttention(2, 3)(y, y, use_causal_mask=True)
    return keras.Model(token_ids, [L.GlobalAveragePooling1D()(y), y])


def given_as(dtype: str) -> Any:
    x, own = step_input(), mask_input(STEPS, dtype=dtype)
    y = L.MultiHeadAttention(2, 3)(x, x, attention_mask=own[:, None, :])
    return keras.Model([x, own], [y, L.GlobalAveragePooling1D(keepdims=True)(y, mask=own)])


def for_each_query() -> Any:
    x, own = step_input(), mask_input(STEPS, STEPS)
    y = L.MultiHeadAttention(2, 3)(x, x, attention_mask=own, use_causal_mask=True)
    return keras.Model([x, own], y)


def public_mask() -> Any:
    x, keep = step_input(), np.tri(STEPS)[:, ::-1].T[None] > 0
    return keras.Model(x, L.MultiHeadAttention(2, 3)(x, x, attention_mask=keep))


def of_others() -> Any:
    x, other, own = step_input(), step_input("other", 4), mask_input(4)
    y = L.MultiHeadAttention(2, 3)(x, other, key=other * 0.5, value_mask=own, key_mask=own)
    y = L.MultiHeadAttention(2, 3)(y, y, key_mask=np.array([[1, 1, 0, 1, 0]]))
    return keras.Model([x, other, own], y)


def computed_mask() -> Any:
    token_ids = word_input()
    x = L.Embedding(WORDS, WIDTH)(token_ids)
    some = K.logical_and(K.not_equal(token_ids, 3), K.logical_not(K.equal(token_ids, 5)))
    some = K.cast(K.logical_or(some, K.equal(token_ids, 1)), "int32")
    return keras.Model(token_ids, L.MultiHeadAttention(2, 3)(x, x, attention_mask=some[:, None, :]))


def attention_model() -> Any:
    token_ids, x = embed_padded()
    other = step_input()
    y = L.Attention()([x, x])
    return keras.Model([token_ids, other], L.Add()([y, L.Attention()([other, y])]))


def carried_masks() -> Any:
    """Return layers that propagate masks, and a nested model."""
    token_ids, x = embed_padded()
    x = L.BatchNormalization()(L.TimeDistributed(L.Dense(WIDTH, activation="relu"))(x))
    x = L.Average()([x, L.ReLU()(x)])
    inner = keras.Sequential([step_input(), L.Dense(4), L.GlobalAveragePooling1D()])
    return keras.Model(token_ids, [inner(x), L.GlobalAveragePooling1D()(x)])


def two_masks() -> Any:
    """Return different masks; the mask of an Add is 1 where either is."""
    token_ids, other = word_input(), keras.Input((STEPS,), dtype="int32", name="others")
    both = [L.Embedding(WORDS, WIDTH, mask_zero=True)(each) for each in (token_ids, other)]
    return keras.Model([token_ids, other], L.GlobalAveragePooling1D()(L.Add()(both)))


def masking_model() -> Any:
    x = step_input()
    return keras.Model(x, L.GlobalAveragePooling1D()(L.Masking(0.0)(x)))


MODELS: dict[str, Callable[[], Any]] = {
    "lost by an Add": lambda: attention_blocks(0.0, lambda x, y: L.Add()([x, y])),
    "dropout": lambda: attention_blocks(0.1, lambda x, y: y),
    "no dropout": lambda: attention_blocks(0.0, lambda x, y: y),
    "float": lambda: given_as("float32"),
    "int": lambda: given_as("int32"),
    "bool": lambda: given_as("bool"),
    "for each query": for_each_query,
    "public": public_mask,
    "of others": of_others,
    "computed": computed_mask,
    "attention": attention_model,
    "carried": carried_masks,
    "two": two_masks,
    "masking": masking_model,
}


PRIVATE = ("for each query", "public", "attention", "masking")


def draw_inputs(model: Any, rng: np.random.Generator, count: int = 3) -> dict[str, Any]:
    arrays = {}
    for tensor in model.inputs:
        shape = (count, *tensor.shape[1:])
        x: Any = rng.normal(0, 0.5, shape)
        if tensor.name in ("words", "others"):
            x = rng.integers(0, WORDS, shape)
            x[0, 3:], x[:, 0] = 0, 1
        elif tensor.name == "mask":
            x = rng.integers(0, 2, shape)
            x[..., 0] = 1
        else:
            x[0, 2] = 0
        arrays[tensor.name] = x
    return arrays


def make_model(name: str, rng: np.random.Generator) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[name]()
    for w in model.weights:
        if "kernel" not in w.path and "variance" not in w.path:
            w.assign(rng.normal(0.2, 0.2, w.shape))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_masks_count_as_in_keras(name: str, rng: np.random.Generator) -> None:
    model = make_model(name, rng)
    arrays = draw_inputs(model, rng)
    private = convert(model, samples=arrays)
    outputs = model([arrays[t.name] for t in model.inputs], training=False)
    expected = [np.asarray(y) for y in (outputs if isinstance(outputs, list) else [outputs])]
    plain = private.plain(arrays)
    for got, want in zip(plain if len(expected) > 1 else [plain], expected, strict=True):
        assert np.abs(got - want).max() < 2e-6
    if name in PRIVATE:
        value, flags, _ = run_plan(private.plan, arrays)
        assert not flags.any()
        assert np.abs(value - expected[0]).max() < 2.0**-9


@pytest.mark.parametrize("count", [3, 200])
def test_a_mean_of_steps_is_right_to_two_ulp_and_none_is_flagged(
    count: int, rng: np.random.Generator
) -> None:
    shapes: dict[str, tuple[int, ...]] = {"x": (count, 2), "mask": (count,)}
    layer = LayerSpec("a", "masked_mean", ("x", "mask"))
    private = convert(Graph("m", shapes, (layer,), ("a",), masks=("mask",)), ranges=32.0)
    shown = np.arange(count) < np.array([[0], [1], [count - 1], [count]])
    arrays = {"x": rng.normal(3, 4, (4, count, 2)), "mask": shown}
    value, flags, _ = run_plan(private.plan, arrays)
    assert flags.tolist() == [True, False, False, False]
    assert np.abs(value - private.plain(arrays))[1:].max() < 2 * 2.0**-16
    header = private.plan.to_header()
    for row in ([16, 7, 0], [16, 25, 0], [15, 24, 0]):
        with raises(UsageError, "invalid-plan", operation="a"):
            execute.check_executable_plan(ModelPlan.from_header({**header, "numbers": {"a": row}}))


def test_a_mask_s_header_and_values(rng: np.random.Generator) -> None:
    private = convert(for_each_query())
    header = private.plan.to_header()
    again = PrivateModel(ModelPlan.from_header(header), private.bounds, True)
    assert again.graph.masks == ("mask",)
    arrays = {"x": rng.normal(size=(2, STEPS, WIDTH)), "mask": np.ones((2, STEPS, STEPS), bool)}
    again.shared_inputs(arrays)
    for wrong, many in ((0.5, 50), (2, 50), (-1, 50), (np.nan, 50)):
        with raises(UsageError, "invalid-mask", operation="mask", received=many):
            again.shared_inputs(arrays | {"mask": np.full((2, STEPS, STEPS), wrong)})
    for masks in (["other"], ["x", "mask", "y"], 3):
        with pytest.raises((UsageError, DataError)):
            Graph.from_header(header["graph"] | {"masks": masks})


def test_a_stranger_s_public_mask_is_checked() -> None:
    header = convert(public_mask()).plan.to_header()["graph"]
    layer = next(x for x in header["layers"] if x["op"] == "attend")
    assert layer["options"]["keys"] == ["1", "3", "7", "f", "1f"]
    for keys in (
        ["1"],
        ["1"] * 4 + ["0"],
        ["1"] * 4 + ["40"],
        ["1"] * 4 + ["-1"],
        [1] * 5,
        "11111",
    ):
        layer["options"]["keys"] = keys
        with pytest.raises((UsageError, DataError)):
            Graph.from_header(header)


def without_warnings(make: Callable[[Any], Any]) -> Any:
    token_ids, x = embed_padded()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return keras.Model(token_ids, make(x))


REFUSED: list[tuple[str, Callable[[], Any]]] = [
    (
        r"Flatten .*drops the mask.*keras\.ops\.copy",
        lambda: without_warnings(lambda x: L.Flatten()(x)),
    ),
    ("Conv1D .*drops the mask", lambda: without_warnings(lambda x: L.Conv1D(2, 2)(x))),
    ("Dot .*with a mask", lambda: without_warnings(lambda x: L.Dot(2)([x, x]))),
    ("Maximum .*with a mask", lambda: without_warnings(lambda x: L.Maximum()([x, x]))),
    ("Concatenate .*with a mask", lambda: without_warnings(lambda x: L.Concatenate()([x, x]))),
    ("MultiHeadAttention .*query_mask=", lambda: attached_mask(query_mask=True)),
    ("multiply them to one", lambda: attached_mask(attention_mask=True, also=np.tri(STEPS))),
    ("attends to nothing", lambda: attached_mask(also=np.zeros((1, STEPS, STEPS)))),
    ("public numbers", lambda: attached_mask(also=np.full((1, STEPS, STEPS), 0.5))),
    ("a mask that the model computes by 'relu'", lambda: attached_mask(result=lambda m: K.relu(m))),
]


def attached_mask(also: Any = None, result: Any = None, **named: bool) -> Any:
    x, own = step_input(), mask_input(STEPS, dtype="float32")
    inputs: dict[str, Any] = {k: own for k in named}
    if "attention_mask" in named:
        inputs = {"value_mask": own, "attention_mask": also}
    elif result is not None:
        inputs = {"value_mask": result(own)}
    elif also is not None:
        inputs = {"attention_mask": also}
    y = L.MultiHeadAttention(2, 3)(x, x, **inputs)
    return keras.Model([x, own], L.Add()([y, K.expand_dims(own, -1) * x]))


@pytest.mark.parametrize(("said", "make"), REFUSED)
def test_a_mask_that_cannot_be_held_is_refused(said: str, make: Callable[[], Any]) -> None:
    with raises(UsageError, "unsupported-layer", received=Matching(said)):
        convert(make())
