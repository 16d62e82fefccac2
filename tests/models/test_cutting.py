"""Skipping unused rows: they are not computed, and the others keep their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.models.test_norm_ranges import run_plan
from tfe_bench.models.inference.private import convert

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
STEPS, WIDTH = 5, 6


def transformer_block(x: Any, first: bool = False, **named: Any) -> Any:
    """Build a block of a transformer, with its norms behind or in front."""
    y = L.LayerNormalization()(x) if first else x
    y = L.Add()([x, L.MultiHeadAttention(2, 3)(y, y, **named)])
    y = y if first else L.LayerNormalization()(y)
    z = L.LayerNormalization()(y) if first else y
    z = L.Add()([y, L.Dense(WIDTH)(L.Dense(8, activation="gelu")(z))])
    return z if first else L.LayerNormalization()(z)


def model_of(make: Callable[[Any], Any], *more: Any) -> Any:
    x = keras.Input((STEPS, WIDTH), name="x")
    return keras.Model([x, *more], make(transformer_block(x)))


def masked_model() -> Any:
    each = keras.Input((STEPS, STEPS), dtype="bool", name="each")
    return model_of(lambda x: transformer_block(x, attention_mask=each)[:, 2:4], each)


def position_model() -> Any:
    return model_of(
        lambda x: (x + np.linspace(0, 3, STEPS * WIDTH).reshape(STEPS, WIDTH))[:, 1:3] * 2
    )


PUBLIC = np.tri(STEPS)[::-1, ::-1][None].copy()
# A model, and the largest number of queries of its last attention afterwards.
MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "first": (lambda: model_of(lambda x: transformer_block(x)[:, 0]), 1),
    "first, norms first": (
        lambda: model_of(lambda x: L.Dense(3)(transformer_block(x, True)[:, 0])),
        1,
    ),
    "some": (lambda: model_of(lambda x: transformer_block(x)[:, 1:3]), 2),
    "masked": (masked_model, 2),
    "public mask": (
        lambda: model_of(lambda x: transformer_block(x, attention_mask=PUBLIC)[:, 2:]),
        3,
    ),
    "causal": (lambda: model_of(lambda x: transformer_block(x, use_causal_mask=True)[:, :2]), 2),
    "causal, the last": (
        lambda: model_of(lambda x: transformer_block(x, use_causal_mask=True)[:, -1]),
        STEPS,
    ),
    "channels": (lambda: model_of(lambda x: transformer_block(x)[:, :, 1:3]), STEPS),
    "both": (lambda: model_of(lambda x: transformer_block(x)[:, 1:4, 2:]), 3),
    "taken whole too": (
        lambda: model_of(lambda x: L.Add()([x[:, :1], transformer_block(x)])),
        STEPS,
    ),
    "twice": (lambda: model_of(lambda x: L.Concatenate()([y := transformer_block(x)[:, 0], y])), 1),
    "two parts": (lambda: model_of(lambda x: take_parts(transformer_block(x))), STEPS),
    "places": (position_model, 2),
}


def take_parts(x: Any) -> Any:
    return L.Concatenate()([x[:, 0], x[:, 3]])


def draw_inputs(model: Any, rng: np.random.Generator) -> dict[str, Any]:
    arrays: dict[str, Any] = {"x": rng.normal(0, 0.3, (2, STEPS, WIDTH))}
    if len(model.inputs) > 1:
        arrays["each"] = rng.integers(0, 2, (2, STEPS, STEPS)) | np.eye(STEPS, dtype=int)
    return arrays


@pytest.mark.parametrize("name", MODELS)
def test_what_is_left_is_what_it_was(name: str, rng: np.random.Generator) -> None:
    make, most = MODELS[name]
    model = make()
    for w in model.weights:
        if "kernel" not in w.path:
            w.assign(w + rng.normal(0, 0.1, w.shape))
    arrays = draw_inputs(model, rng)
    private = convert(model, samples=arrays)
    outputs = model([arrays[t.name] for t in model.inputs], training=False)
    assert np.abs(private.plain(arrays) - np.asarray(outputs)).max() < 1e-5
    attends = [x for x in private.graph.layers if x.op == "attend"]
    assert private.graph.shapes[attends[-1].name][-2] == most


def test_numbers_that_stand_beside_rows_are_cut_with_them() -> None:
    private = convert(position_model())
    (own,) = (x for x in private.graph.layers if x.op == "offset")
    assert own.weights["bias"].shape == (2, WIDTH)


def test_a_norm_goes_into_queries_keys_and_values_unless_they_share_weights() -> None:
    x, dense = keras.Input((STEPS, WIDTH)), L.Dense(3)
    y = L.LayerNormalization()(x)
    for more, left in (([L.Dense(3)(y), L.Dense(3)(y)], 0), ([dense(y), dense(y)], 1)):
        private = convert(keras.Model(x, L.Add()([*more, L.Dense(3)(y)])))
        assert sum(row.kind == "affine" for row in private.summary().rows) == left


@pytest.mark.parametrize("private", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_part_costs_less_and_is_private(private: bool, rng: np.random.Generator) -> None:
    models = model_of(transformer_block), MODELS["first"][0]()
    whole, part = (convert(model, samples=draw_inputs(model, rng)) for model in models)
    assert part.summary().cost.total < 0.75 * whole.summary().cost.total
    if private:
        arrays = draw_inputs(models[1], rng)
        value, flags, _ = run_plan(part.plan, arrays)
        assert not flags.any()
        assert np.abs(value - part.plain(arrays)).max() < 2.0**-8
