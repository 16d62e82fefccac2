"""Conversion returns no model whose values differ from Keras'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.refusals import Matching, raises
from tfe_bench import trainable
from tfe_bench.errors import UsageError
from tfe_bench.models.convert import optimize
from tfe_bench.models.convert.graph import replace_layers
from tfe_bench.models.inference.private import convert
from tfe_bench.models.layers import conv2d, rearrange

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers


def nested_model() -> Any:
    """Return a model with a nested model."""
    inner = keras.Sequential([L.Input((4, 4, 2)), L.Conv2D(3, 3, name="inside")], name="inner")
    layers = [L.Permute((2, 1, 3), name="turn"), inner, L.ReLU(name="bend"), L.Flatten()]
    return keras.Sequential([L.Input((4, 4, 2)), *layers, L.Dense(2, name="last")], name="net")


def same_shape(self: Any, r: Any, call: Any) -> Any:
    return r.add_layer(call.name, "reshape", call.inputs, None, shape=list(call.shape))


def turned(self: Any, cell: Any, kernel: Any, options: Any) -> Any:
    return cell @ kernel[:, ::-1]


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "layer"),
    [
        pytest.param(
            rearrange.Permute,
            "convert_layer",
            same_shape,
            "turn",
            id="Permute-read-same_shape-turn",
        ),
        (conv2d.Conv2D, "cell_product", turned, "inner/inside"),
    ],
)
@pytest.mark.parametrize("use", [convert, lambda m: trainable(m).compile("sgd", "mse")])
def test_the_first_layer_that_differs_is_named(
    owner: Any, name: str, wrong: Any, layer: str, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(nested_model())
    monkeypatch.setattr(owner, name, wrong)
    # a nested model counts as one layer
    layer_name = "inner/inside" if "/" in layer else layer
    with raises(
        UsageError, "conversion-mismatch", operation="net", names=(f"layer '{layer_name}'",)
    ):
        use(nested_model())


def test_a_wrong_pass_of_optimization_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def less_of_it(graph: Any) -> Any:
        halved = [
            replace(x, weights={k: w / 2 for k, w in x.weights.items()}) for x in graph.layers
        ]
        return replace_layers(graph, halved)

    monkeypatch.setattr(optimize, "PASSES", (less_of_it, *optimize.PASSES))
    with raises(
        UsageError, "conversion-mismatch", operation="net", received=Matching("after optimization")
    ):
        convert(nested_model())


@pytest.mark.parametrize("kind", ["float64", "mixed_float16", "mixed_bfloat16"])
def test_models_of_any_precision_pass(kind: str) -> None:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(kind)
    try:
        assert convert(nested_model()).graph.layers
    finally:
        keras.config.set_dtype_policy(before)


def test_what_keras_itself_rounds_away_is_no_difference() -> None:
    """Use a variance of 1e-11, which amplifies single precision; each layer alone is correct."""
    keras.utils.set_random_seed(2)
    normal = L.BatchNormalization(epsilon=1e-12, name="large")
    dense = L.Dense(3, bias_initializer=keras.initializers.Constant(3.0))
    model = keras.Sequential([L.Input((4,)), dense, normal, L.Dense(2)])
    normal.set_weights([np.ones(3), np.zeros(3), np.full(3, 3.0), np.full(3, 1e-11)])
    private = convert(model, ranges=1e5)
    x = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32) * 1e-3
    assert not np.allclose(private.plain(x), model(x), rtol=1e-4)


def test_numbers_are_tried_that_are_like_the_samples() -> None:
    """Use exp(100 + x): infinite in single precision, but not on values like the samples."""
    x = keras.Input((3,))
    model = keras.Model(x, keras.ops.relu(x - 100) * 0.5)
    assert convert(model, samples=np.full((2, 3), 101.0)).plain([[102.0] * 3]).tolist() == [[1] * 3]


def test_outputs_keep_their_names() -> None:
    x, z = keras.Input((3,), name="x"), keras.Input((3,), name="z")
    model = keras.Model({"x": x, "z": z}, {"sum": x + z, "apart": L.Dense(2)(x), "also": x * z})
    private = convert(model)
    arrays = {"z": np.ones((2, 3)), "x": np.full((2, 3), 2.0)}
    outputs, expected = private.plain(arrays), model.predict(arrays, verbose=0)
    assert set(outputs) == set(expected) == {"sum", "apart", "also"}
    assert all(np.allclose(outputs[k], expected[k], atol=1e-6) for k in expected)
    header = private.graph.to_header()
    again = type(private.graph).from_header(header, private.graph.weight_arrays())
    assert again.labels == private.graph.labels and again.digest() == private.graph.digest()
    for labels in (("one",), ("one", "two", "three", "one"), ("one", "two", "two")):
        with raises(UsageError, "invalid-graph", operation="labels"):
            replace_layers(private.graph, private.graph.layers, labels=labels)
    with raises(UsageError, "multiple-outputs"):
        private.agreement(arrays, outputs)
