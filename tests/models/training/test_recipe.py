"""Recipes are public, complete and checked: from Keras, as headers, and from untrusted clients."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import numpy as np
import pytest

from tests.refusals import Matching, raises
from tfe_bench.errors import DataError, RangeError, UsageError
from tfe_bench.models.inference.private import convert
from tfe_bench.models.layers.base import public_randomness as shuffling
from tfe_bench.models.layers.base.operations import ProtocolSetting
from tfe_bench.models.training import plaintext, state, step
from tfe_bench.models.training.recipe import Recipe

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
L2: Any = keras.regularizers.L2


def small_model(*last: Any) -> Any:
    hidden = L.Dense(6, activation="relu")
    return keras.Sequential([L.Input((4,)), hidden, *(last or [L.Dense(3, activation="softmax")])])


def make_recipe(**options: Any) -> Recipe:
    return Recipe.build(small_model(), "adam", "sparse_categorical_crossentropy", 8, **options)


def test_a_header_holds_all_but_the_weights() -> None:
    first = make_recipe(seed=7)
    header = json.loads(json.dumps(first.to_header()))
    again = Recipe.from_header(header)
    assert (
        again.to_header() == first.to_header() and again.compute_digest() == first.compute_digest()
    )
    assert again.seed == 7 and again.optimizer == first.optimizer and again.order == first.order
    assert state.list_training_state_specs(again) == state.list_training_state_specs(first)
    assert not any(a.any() for a in again.graph.weight_arrays().values())
    cost = step.step_cost(first, ProtocolSetting())
    assert step.step_cost(again, ProtocolSetting()) == cost
    assert 8 * sum(step.count_step_messages(first, "local").sent_by_party) == cost.total
    assert "parameters" in repr(first) and "0.0" not in repr(first)


def test_states_and_weights_are_in_the_order_of_keras() -> None:
    model = small_model(L.BatchNormalization(), L.Dense(3, activation="softmax"))
    built = Recipe.build(model, "sgd", "sparse_categorical_crossentropy", 8)
    first = state.build_initial_training_state(built)
    for got, want in zip(state.to_keras_weights(built, first), model.get_weights(), strict=True):
        assert np.array_equal(got, want)
    adam = make_recipe()
    keys = [s.key for s in state.list_training_state_specs(adam)]
    assert len(keys) == 3 * len(adam.order) and keys[: len(adam.order)] == list(adam.order)
    assert all(not state.build_initial_training_state(adam)[k].any() for k in keys if ":" in k)
    with raises(UsageError, "shape-mismatch", received=None):
        state.build_initial_training_state(adam, {})


def test_frozen_layers_stay_and_have_no_state() -> None:
    model = small_model()
    model.layers[0].trainable = False
    built = Recipe.build(model, "adam", "sparse_categorical_crossentropy", 8)
    keys = {s.key for s in state.list_training_state_specs(built)}
    name = model.layers[0].name
    assert built.frozen == {f"{name}/kernel", f"{name}/bias"}
    assert f"{name}/kernel" in keys and f"{name}/kernel:m" not in keys
    assert (
        step.step_cost(built, ProtocolSetting()).dealer
        < step.step_cost(make_recipe(), ProtocolSetting()).dealer
    )


def test_headers_of_strangers_are_checked() -> None:
    header = make_recipe().to_header()
    for path, value in (
        (("format",), 1),
        (("batch",), 0),
        (("batch",), "8"),
        (("batch",), 1 << 20),
        (("seed",), -1),
        (("numbers",), [16, 24, 20]),
        (("numbers",), [16, 24, 20, 40]),
        (("numbers",), None),
        (("order",), ["a"]),
        (("order",), 3),
        (("frozen",), ["nothing/kernel"]),
        (("loss",), "hinge"),
        (("loss",), {"name": "huber", "delta": -1}),
        (("loss",), []),
        (("penalties",), {"nothing/kernel": [0.0, 0.1]}),
        (("penalties",), {"dense/kernel": [0.0]}),
        (("penalties",), []),
        (("optimizer",), None),
        (("optimizer", "name"), "rmsprop"),
        (("optimizer", "beta_2"), 1.0),
        (("optimizer", "momentum"), float("nan")),
        (("optimizer", "nesterov"), 1),
        (("optimizer", "decay"), 1),
        (("optimizer", "schedule"), {"kind": "linear"}),
        (("optimizer", "schedule"), {"kind": ["constant"]}),
        (("optimizer", "schedule"), {"kind": "constant", "rate": -1.0}),
        (("optimizer", "schedule"), {"kind": "constant", "rate": 0.1, "more": 1}),
        (("optimizer", "schedule"), {"kind": "piecewise", "boundaries": [2, 1], "values": [1.0]}),
        (("graph", "layers"), []),
        (("graph", "outputs"), ["elsewhere"]),
        (("graph", "inputs"), {"a": [4], "b": [4]}),
    ):
        bad = copy.deepcopy(header)
        inner = bad
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises((DataError, UsageError)):
            Recipe.from_header(bad)
            raise AssertionError(f"{path} {value}")
    nothings: list[Any] = [None, [], {}, "recipe"]
    for nothing in nothings:
        with pytest.raises(DataError):
            Recipe.from_header(nothing)
    bad = copy.deepcopy(header)
    bad["graph"]["layers"][-1]["op"] = "code"
    with raises(UsageError, "unknown-name", received="code"):
        Recipe.from_header(bad)


def test_layers_that_cannot_be_trained_are_named() -> None:
    image = L.Input((6, 6, 2))
    for layers, text in (
        ([L.Input((12, 12, 1)), L.GlobalMaxPooling2D(), L.Dense(2)], "128 cells"),
        ([image, L.GroupNormalization(2, scale=False)], "a beta without gamma"),
        ([L.Input((4, 6)), L.EinsumDense("abc,cde->abde", (4, 2, 3))], "abc,cde->abde"),
        ([image, L.LayerNormalization(axis=(1, 2))], "other axes than the last"),
        ([image, L.Flatten(), L.Dense(2, kernel_regularizer="orthogonal_regularizer")], "Orthog"),
        ([image, L.Flatten(), L.Dense(2, activity_regularizer="l2")], "activity_regularizer"),
        ([image, L.Flatten(), L.Dense(2, bias_constraint="non_neg")], "bias_constraint"),
        ([image, L.MaxPooling2D(6, 1, "same"), L.MaxPooling2D(12, 1, "same")], "128 cells"),
        ([L.Input((4,)), L.Dropout(0.5, noise_shape=(None, 1)), L.Dense(2)], "noise_shape"),
    ):
        with raises(UsageError, "unsupported-layer", "too-large", names=(text,)):
            Recipe.build(keras.Sequential(layers), "sgd", "mse")
    strong = keras.Sequential([image, L.Flatten(), L.Dense(2, kernel_regularizer=L2(1.5))])
    with raises(UsageError, "number-out-of-range", operation="penalties"):
        Recipe.build(strong, "sgd", "mse")
    shared, x = L.Dense(4), keras.Input((4,))
    with raises(UsageError, "unsupported-layer", received=Matching("used twice")):
        Recipe.build(keras.Model(x, shared(shared(x))), "sgd", "mse")
    two = keras.Model(x, [L.Dense(1)(x), L.Dense(1)(x)])
    with raises(UsageError, "wrong-number-of-values", operation="model"):
        Recipe.build(two, "sgd", "mse")
    with raises(UsageError, "shape-mismatch", operation="categorical_crossentropy", received=[1]):
        logits = keras.losses.CategoricalCrossentropy(from_logits=True)
        Recipe.build(small_model(L.Dense(1)), "sgd", logits)


def test_a_model_has_one_input_and_one_output() -> None:
    a, b = L.Input((3,)), L.Input((3,))
    several = (
        keras.Model([a, b], L.Dense(1)(L.Add()([a, b]))),
        keras.Model(a, [L.Dense(1)(a)] * 2),
    )
    for model in several:
        with raises(UsageError, "wrong-number-of-values", operation="model"):
            Recipe.build(model, "sgd", "mse")


def test_labels_are_checked_without_being_told() -> None:
    built = make_recipe()
    assert np.array_equal(built.encode_labels([0, 2]), [[1, 0, 0], [0, 0, 1]])
    assert np.array_equal(built.encode_labels([[1.0]]), [[0, 1, 0]])
    for labels, text in (
        ([0, 3], "1 of 2.*row 1"),
        ([0.5, 1], "row 0"),
        ([np.nan, 1], "row 0"),
        ([-1, 1], "row 0"),
    ):
        with raises(RangeError, "invalid-label", expected="classes 0 to 2") as refusal:
            built.encode_labels(labels)
        assert re.search(text, str(refusal.value))
        assert "-1" not in str(refusal.value) and "nan" not in str(refusal.value)
    with raises(UsageError, "shape-mismatch", operation="labels", received=[3, 3]):
        built.encode_labels(np.eye(3))
    hot = Recipe.build(small_model(), "sgd", "categorical_crossentropy")
    assert hot.encode_labels(np.eye(3)).shape == (3, 3)
    for bad in (np.ones((2, 3)), np.full((1, 3), 1 / 2)):
        with raises(RangeError, "invalid-label", expected="one-hot rows"):
            hot.encode_labels(bad)
    with raises(UsageError, "shape-mismatch", operation="labels", received=[2]):
        hot.encode_labels([0, 1])
    binary = Recipe.build(
        small_model(L.Dense(1, activation="sigmoid")), "sgd", "binary_crossentropy"
    )
    assert binary.encode_labels([0, 1]).shape == (2, 1)
    with raises(RangeError, "invalid-label", operation="labels of alice"):
        binary.encode_labels([0, 2], "labels of alice")
    with raises(UsageError, "not-a-number", operation="labels"):
        binary.encode_labels(["yes"])


def test_rescaling_of_the_input_is_left_to_its_owner() -> None:
    scaled = keras.Sequential([L.Input((2, 2)), L.Rescaling(1 / 255, 0.5), L.Flatten(), L.Dense(1)])
    built = Recipe.build(scaled, "sgd", "mse")
    assert [x.op for x in built.graph.layers] == ["flatten", "dense"]
    assert np.allclose(built.encode_features(np.full((1, 2, 2), 51.0)), 0.7)
    assert not Recipe.from_header(
        built.to_header()
    ).graph.scaling  # (the owner of the rows keeps the scaling)
    with raises(UsageError, "shape-mismatch"):
        built.encode_features(np.ones((1, 4)))


def test_orders_are_permutations_that_all_hosts_draw_alike() -> None:
    rows = shuffling.draw_epoch_batches(5, 0, 1000, 64)
    assert rows.shape == (15, 64) and len(set(rows.reshape(-1))) == 15 * 64
    assert not np.array_equal(rows, shuffling.draw_epoch_batches(5, 1, 1000, 64))
    assert shuffling.draw_epoch_batches(5, 0, 63, 64).shape == (0, 64)
    # (fixed values: another host or version must not differ)
    assert shuffling.draw_epoch_permutation(1, 0, 8).tolist() == [3, 7, 0, 2, 4, 6, 1, 5]
    kept = shuffling.draw_dropout_mask(1, 2, "dropout", 100_000, 0.3)
    assert abs(kept.mean() - 0.7) < 0.01
    assert not np.array_equal(kept, shuffling.draw_dropout_mask(1, 3, "dropout", 100_000, 0.3))
    assert shuffling.draw_dropout_mask(1, 2, "a", 100, 0.0).all()
    noise = shuffling.draw_layer_noise(1, 2, "noise", 100_000) / 2.0**16
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02
    assert shuffling.draw_layer_noise(1, 0, "noise", 3).tolist() == [-68528, -37867, -18398]


def test_the_plaintext_twin_learns_and_leaves_the_model_alone(rng: np.random.Generator) -> None:
    x = rng.normal(0, 1, (200, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)
    model = small_model(L.Dropout(0.1), L.Dense(3, activation="softmax"))
    before = model.get_weights()
    built = Recipe.build(model, keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", 20)
    heard: list[int] = []
    shares, weights = plaintext.train_plaintext(
        model, built, x, y, 12, 1, (x, y), lambda epoch, share: heard.append(epoch)
    )
    assert heard == list(range(12)) and shares[-1] > 0.7
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert any((a != b).any() for a, b in zip(before, weights, strict=True))
    again, _ = plaintext.train_plaintext(model, built, x, y, 12, 1, (x, y))
    assert again == shares


def test_a_setting_is_of_a_known_profile() -> None:
    with raises(UsageError, "unknown-name", operation="profile", received="dsl"):
        ProtocolSetting("dsl")


def test_the_graph_of_a_training_predicts_as_its_model(rng: np.random.Generator) -> None:
    layers = [L.BatchNormalization(), L.ReLU(), L.Dropout(0.5), L.Dense(2)]
    model = keras.Sequential([L.Input((4,)), L.Dense(3), *layers])
    for variable in model.weights:
        variable.assign(rng.uniform(0.2, 1, variable.shape))
    built = Recipe.build(model, "sgd", "mse")
    x = rng.normal(0, 1, (20, 4)).astype(np.float32)
    private = convert(built.graph, samples=x)
    assert np.abs(private.plain(x) - model.predict(x, verbose=0)).max() < 1e-5
    kept = {x.op for x in private.graph.layers}
    assert not kept & {"dropout", "batch_norm"}
