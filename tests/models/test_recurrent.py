"""Recurrent layers of Keras: their options, states and directions, private and in plaintext."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.models.test_execute import make_case, run_all
from tests.models.test_norm_ranges import run_plan
from tests.refusals import Matching, raises
from tfe_bench.cluster.simulate import assert_costs
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.convert import bound_analysis, plaintext
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import Graph, LayerSpec
from tfe_bench.models.inference import execute
from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.protocols.ring import rotation

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Array = np.ndarray[Any, Any]
STEPS, INPUTS = 4, 3


def model_of(*layers: Any, shape: tuple[int, ...] = (STEPS, INPUTS)) -> Any:
    return keras.Sequential([L.Input(shape), *layers])


def shake_weights(model: Any, rng: np.random.Generator, spread: float = 0.4) -> Any:
    for variable in model.weights:
        variable.assign(rng.normal(0, spread, variable.shape))
    return model


def draw_inputs(model: Any, rng: np.random.Generator, count: int = 2) -> list[Array]:
    return [
        rng.random((count, *t.shape[1:])) < 0.6
        if t.dtype == "bool"
        else rng.normal(0, 1, (count, *t.shape[1:])).astype(np.float32)
        for t in model.inputs
    ]


def of_states() -> Any:
    """Return an encoder whose states start a decoder, and all outputs of layers."""
    x, y = keras.Input((STEPS, INPUTS), name="x"), keras.Input((2, INPUTS), name="y")
    _, h, c = L.LSTM(2, return_state=True)(x)
    decoded = L.LSTM(2, return_sequences=True, return_state=True)(y, initial_state=[h, c])
    both = L.Bidirectional(L.LSTM(2, return_state=True), merge_mode=None)(x)
    every = L.Bidirectional(L.GRU(2, return_sequences=True, return_state=True))(x)
    begun = L.Bidirectional(L.GRU(2), merge_mode="ave")(y, initial_state=[h, every[1]])
    last, state = L.SimpleRNN(2, return_state=True, go_backwards=True)(x)
    flat = [L.Flatten()(t) for t in (*decoded, *both, *every, begun, last, state)]
    return keras.Model([x, y], L.Concatenate()(flat))


def masked_steps(*layers: Any) -> Any:
    """Return steps with a mask from an input; the mask propagates from layer to layer."""
    x, mask = keras.Input((STEPS, INPUTS), name="x"), keras.Input((STEPS,), dtype="bool")
    y = layers[0](x, mask=mask)
    for layer in layers[1:]:
        y = layer(y)
    return keras.Model([x, mask], y)


ALL = {"return_sequences": True}
MODELS: dict[str, Callable[[], Any]] = {
    "lstm": lambda: model_of(L.LSTM(3)),
    "all steps of an lstm": lambda: model_of(L.LSTM(2, **ALL), L.LSTM(2)),
    "lstm backwards": lambda: model_of(L.LSTM(2, go_backwards=True, use_bias=False, **ALL)),
    "lstm of other activations": lambda: model_of(
        L.LSTM(2, activation="sigmoid", recurrent_activation="hard_sigmoid", dropout=0.3)
    ),
    "lstm with relu": lambda: model_of(L.LSTM(2, activation="relu", unit_forget_bias=False)),
    "gru": lambda: model_of(L.GRU(3, recurrent_dropout=0.2, **ALL)),
    "gru that resets before": lambda: model_of(L.GRU(2, reset_after=False, unroll=True)),
    "gru without biases": lambda: model_of(
        L.GRU(2, use_bias=False, recurrent_activation="hard_sigmoid")
    ),
    "simple": lambda: model_of(L.SimpleRNN(3)),
    "simple with relu": lambda: model_of(L.SimpleRNN(3, activation="relu", **ALL), L.Dense(2)),
    "linear": lambda: model_of(L.SimpleRNN(2, activation=None, go_backwards=True)),
    "cells": lambda: model_of(
        L.RNN([L.LSTMCell(2), L.GRUCell(3), L.SimpleRNNCell(2)], go_backwards=True, **ALL)
    ),
    "one cell": lambda: model_of(L.RNN(L.GRUCell(2, reset_after=False))),
    "both, concatenated": lambda: model_of(L.Bidirectional(L.LSTM(2, **ALL))),
    "both, multiplied": lambda: model_of(L.Bidirectional(L.GRU(2, **ALL), merge_mode="mul")),
    "both, averaged": lambda: model_of(L.Bidirectional(L.SimpleRNN(2), merge_mode="ave")),
    "both, added": lambda: model_of(
        L.Bidirectional(L.LSTM(2), merge_mode="sum", backward_layer=L.LSTM(2, go_backwards=True))
    ),
    "states": of_states,
    "masked": lambda: masked_steps(L.LSTM(2)),
    "masked, all steps": lambda: masked_steps(
        L.GRU(2, **ALL), L.SimpleRNN(2, zero_output_for_mask=True, **ALL)
    ),
    "masked, backwards": lambda: masked_steps(
        L.LSTM(2, activation="relu", go_backwards=True, **ALL)
    ),
    "masked, both": lambda: masked_steps(
        L.Bidirectional(L.LSTM(2, **ALL)), L.Bidirectional(L.GRU(2))
    ),
    "masked, cells": lambda: masked_steps(L.RNN([L.LSTMCell(2), L.GRUCell(3, reset_after=False)])),
}
FAST = ("both, concatenated",)
WAYS = [("exact", True), ("series", True), ("exact", False)]


def mark_slow(names: Any, *fast: str) -> list[Any]:
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


def run_private(private: PrivateModel, arrays: Any) -> tuple[Array, Array]:
    """Return the decoded private outputs, and the samples outside of the range."""
    value, flags, _ = run_plan(private.plan, arrays)  # (it compares the cost with the wire)
    (value,) = plaintext.finish_model_outputs(private.graph, [value])
    return value, flags


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_converts_to_what_keras_computes(name: str, rng: np.random.Generator) -> None:
    """Convert it (`convert` compares the values); its header must produce the same plan."""
    model = shake_weights(MODELS[name](), rng)
    arrays = draw_inputs(model, rng)
    private = convert(model)
    got = private.plain(arrays if len(arrays) > 1 else arrays[0])
    want = np.asarray(model(arrays if len(arrays) > 1 else arrays[0], training=False))
    assert np.abs(got - want).max() < 1e-5
    again = ModelPlan.from_header(private.plan.to_header())
    assert again.to_header() == private.plan.to_header()
    execute.check_executable_plan(again)


@pytest.mark.parametrize("name", mark_slow(MODELS, *FAST))
def test_a_private_layer_agrees_with_keras_and_costs_what_is_declared(
    name: str, rng: np.random.Generator
) -> None:
    """Check with samples and without, and with range checks; nothing is flagged."""
    model = shake_weights(MODELS[name](), rng)
    arrays = draw_inputs(model, rng)
    want = np.asarray(model(arrays if len(arrays) > 1 else arrays[0], training=False))
    short = int(rng.integers(3)) if name in FAST else None
    for i, (activations, calibrated) in enumerate(WAYS):
        if short not in (i, None):
            continue
        inputs = dict(zip(convert(model).graph.inputs, arrays, strict=True))
        known: dict[str, Any] = {"samples": inputs} if calibrated else {"ranges": 64.0}
        private = convert(model, **known, activations=activations)
        value, flags = run_private(private, inputs)
        assert not flags.any()
        # (a series has an error of 2^-10 in every gate)
        assert np.abs(value - want).max() < (2.0**-8 if activations == "series" else 2.0**-13)


def of_chance(rng: np.random.Generator) -> Any:
    """Draw one layer or two of any sizes and options."""

    def layer(every: bool) -> Any:
        kind = str(rng.choice(["LSTM", "GRU", "SimpleRNN"]))
        options: dict[str, Any] = {
            "activation": str(rng.choice(["tanh", "sigmoid", "relu", "linear"])),
            "use_bias": bool(rng.integers(2)),
            "return_sequences": every,
        }
        if kind != "SimpleRNN":
            options["recurrent_activation"] = str(rng.choice(["sigmoid", "hard_sigmoid"]))
        if kind == "GRU":
            options["reset_after"] = bool(rng.integers(2))
        way = int(rng.integers(3))
        result = getattr(L, kind)(int(rng.integers(1, 5)), go_backwards=way == 1, **options)
        modes = ["concat", "sum", "mul", "ave"]
        return L.Bidirectional(result, merge_mode=str(rng.choice(modes))) if way == 2 else result

    some = [layer(True) for _ in range(int(rng.integers(2)))]
    shape = (int(rng.integers(1, 6)), int(rng.integers(1, 5)))
    return shake_weights(model_of(*some, layer(bool(rng.integers(2))), shape=shape), rng, 0.3)


@pytest.mark.parametrize("turn", range(6))
def test_options_of_chance_convert(turn: int, rng: np.random.Generator) -> None:
    model = of_chance(rng)
    (arrays,) = draw_inputs(model, rng, int(rng.integers(1, 4)))
    got = convert(model, samples=arrays).plain(arrays)
    assert np.abs(got - np.asarray(model(arrays, training=False))).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(6))
def test_options_of_chance_are_predicted(turn: int, rng: np.random.Generator) -> None:
    model = of_chance(rng)
    (arrays,) = draw_inputs(model, rng, int(rng.integers(1, 4)))
    activations = str(rng.choice(["exact", "series"]))
    private = convert(model, samples=arrays, activations=activations)
    value, flags = run_private(private, {next(iter(private.graph.inputs)): arrays})
    want = np.asarray(model(arrays, training=False))
    near = (2.0**-7 if activations == "series" else 2.0**-12) * max(1.0, np.abs(want).max())
    assert not flags.any() and np.abs(value - want).max() < near


@pytest.mark.slow
def test_three_dealers_take_a_third_each(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that three loops of one graph have separate masks and messages."""
    monkeypatch.setattr(rotation, "is_worthwhile", lambda cost, bits: True)
    model = shake_weights(model_of(L.Bidirectional(L.GRU(2))), rng)
    (arrays,) = draw_inputs(model, rng, 4)
    private = convert(model, samples=arrays, activations="series")
    s = make_case(private, arrays, "wan")
    assert execute.has_rotating_dealers(s[0])
    ((got, calls),) = run_all([s], 0)
    assert np.abs(got - np.asarray(model(arrays, training=False))).max() < 2.0**-8
    assert_costs(calls, execute.model_cost(s[0]))


def test_a_model_is_cut_behind_a_layer_s_output(rng: np.random.Generator) -> None:
    x = keras.Input((STEPS, INPUTS))
    y, *_ = L.LSTM(2, return_state=True, return_sequences=True, name="own")(x)
    model = shake_weights(keras.Model(x, L.Dense(1)(L.Flatten()(y))), rng)
    (arrays,) = draw_inputs(model, rng)
    features = convert(model).until("own").plain(arrays)
    assert np.abs(features - np.asarray(keras.Model(x, y)(arrays))).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 16, 20])
@pytest.mark.parametrize("activations", ["exact", "series"])
def test_widths(bits: int, activations: str, rng: np.random.Generator) -> None:
    """Check that states have enough bits for every model."""
    model = shake_weights(model_of(L.LSTM(3, **ALL), L.GRU(2)), rng)
    (arrays,) = draw_inputs(model, rng)
    private = convert(model, samples=arrays, fractional_bits=bits, activations=activations)
    fractions = [n.fraction for n in private.plan.numbers.values()]
    assert fractions == [13 if activations == "series" else max(bits, 16)] * 2
    name = next(iter(private.graph.inputs))
    value, _ = run_private(private, {name: arrays})
    near = {8: 2.0**-6, 16: 2.0**-12, 20: 2.0**-15}[bits]
    near = near if activations == "exact" else max(near, 2.0**-8)
    assert np.abs(value - np.asarray(model(arrays, training=False))).max() < near


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("activations", ["exact", "series"])
def test_a_hundred_steps(kind: str, activations: str, rng: np.random.Generator) -> None:
    """Check that a memory is held to the end, as the biases of its gates demand."""
    layer = getattr(L, kind)(4)
    model = shake_weights(model_of(layer, shape=(100, 2)), rng, 0.2)
    bias = np.asarray(layer.cell.bias)
    bias[..., 4:8] += 5.0 if kind == "LSTM" else 0.0
    bias[0 if kind == "GRU" else ..., :4] += 4.0 if kind == "GRU" else 0.0
    layer.cell.bias.assign(bias)
    (arrays,) = draw_inputs(model, rng, 3)
    private = convert(model, samples=arrays, activations=activations)
    value, flags = run_private(private, {next(iter(private.graph.inputs)): arrays})
    want = np.asarray(model(arrays, training=False))
    bound = 100 * 2.0**-13 + 2.0**-8 if activations == "series" else 2.0**-9
    assert not flags.any() and np.abs(value - want).max() < bound
    errors = [row.error.largest for row in private.summary().rows if row.error is not None]
    if activations == "series":
        assert np.abs(value - want).max() < 4 * max(errors) < 4 * bound


def test_a_step_costs_what_the_page_says() -> None:
    """Count 128 units and 16 samples, as Keras initializes them: 14 rounds, at most 1.3 MB."""
    keras.utils.set_random_seed(4)
    samples = np.random.default_rng(4).normal(0, 1, (16, 11, 64))
    for activations, most in (("series", 1.3), ("exact", 5.6)):
        costs = []
        for steps in (10, 11):
            model = model_of(L.LSTM(128), shape=(steps, 64))
            private = convert(model, samples=samples[:, :steps], activations=activations)
            costs.append(
                execute.model_cost(execute.tune_prediction(private.plan, "local", 16, True))
            )
        assert costs[1].rounds - costs[0].rounds <= (14 if activations == "series" else 18)
        assert costs[1].total - costs[0].total <= most * 8e6


def test_a_long_sequence_takes_the_memory_of_a_few_steps() -> None:
    outputs = []
    for steps in (20, 1000):
        private = convert(model_of(L.LSTM(16), shape=(steps, 1)))
        outputs.append(
            execute.estimate_prediction_size(
                execute.tune_prediction(private.plan, "local", 8)
            ).words
        )
    assert outputs[1] < 1.1 * outputs[0]


def test_a_long_sequence_with_series_is_warned_of(rng: np.random.Generator) -> None:
    model = model_of(L.GRU(2), shape=(101, 2))
    with pytest.warns(UserWarning, match=r"'gru\w*' takes 101 steps .* off by 1.4 %"):
        convert(model, activations="series")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(model)
        convert(model_of(L.GRU(2), shape=(100, 2)), activations="series")


# ---- ranges


def test_no_input_within_its_range_leaves_a_bounded_layer_s(rng: np.random.Generator) -> None:
    """Small samples must not bound sums: the bounds follow from weights and lengths."""
    model = shake_weights(model_of(L.LSTM(3, **ALL)), rng, 3.0)
    small = rng.normal(0, 0.01, (4, STEPS, INPUTS)).astype(np.float32)
    private = convert(model, samples=small)
    most = next(iter(private.bounds.values()))
    largest = np.sign(small[:2]) * np.float32(0.999 * most)
    value, flags = run_private(private, {next(iter(private.graph.inputs)): largest})
    assert not flags.any()
    assert np.abs(value - np.asarray(model(largest, training=False))).max() < 2.0**-10
    bound_analysis.check_monitorable_layers(private.plan)


@pytest.mark.slow
def test_a_cell_without_bounds_is_watched(rng: np.random.Generator) -> None:
    """Check that the client receives a flag if a ReLU's states exceed those of the samples."""
    model = model_of(L.SimpleRNN(2, activation="relu"), shape=(6, 2))
    model.layers[0].set_weights([np.eye(2), 2 * np.eye(2), np.zeros(2)])
    array = np.full((3, 6, 2), 0.1, np.float32)
    private = convert(model, samples=array, margin=2.0)
    name = next(iter(private.graph.inputs))
    private.bounds[name] = 100.0
    array[1] = 99.0
    value, flags = run_private(private, {name: array})
    assert flags.tolist() == [False, True, False]
    assert np.abs(value - np.asarray(model(array, training=False)))[[0, 2]].max() < 2.0**-10


def test_sums_that_no_word_holds_are_refused_by_name(rng: np.random.Generator) -> None:
    model = shake_weights(model_of(L.LSTM(2, name="memory")), rng, 2.0**14)
    with raises(RangeError, "range-too-large", received=Matching("'memory' has sums up to")):
        convert(model, ranges=2.0**14)


# ---- refusals


class Own(keras.layers.LSTMCell):  # type: ignore[misc]  # (Keras is untyped)
    """A custom cell."""


def with_mask(layer: Any, initial: bool = False) -> Any:
    x, mask = keras.Input((STEPS, INPUTS)), keras.Input((STEPS,), dtype="bool")
    more = {"initial_state": keras.ops.max(x, 1)[:, :2]} if initial else {}
    return keras.Model([x, mask], layer(x, mask=mask, **more))


def batched() -> Any:
    x = keras.Input(batch_shape=(2, STEPS, INPUTS))
    return keras.Model(x, L.LSTM(2, stateful=True, name="own")(x))


WRONG: list[tuple[str, Callable[[], Any]]] = [
    (r"LSTM 'own' \(stateful=True", batched),
    (
        r"'own' \(activation='softsign'",
        lambda: model_of(L.GRU(2, activation="softsign", name="own")),
    ),
    (
        r"'own' \(recurrent_activation='tanh'",
        lambda: model_of(L.LSTM(2, recurrent_activation="tanh", name="own")),
    ),
    (r"'own' \(of a Own; LSTMCell", lambda: model_of(L.RNN(Own(2), name="own"))),
    (
        r"'own' \(of two unlike layers",
        lambda: model_of(
            L.Bidirectional(L.LSTM(2), backward_layer=L.GRU(2, go_backwards=True), name="own")
        ),
    ),
    (
        r"'own' \(around a ConvLSTM1D",
        lambda: model_of(L.Bidirectional(L.ConvLSTM1D(2, 2), name="own"), shape=(2, 4, 2)),
    ),
    (r"'own' \(of 1025 steps; 1024", lambda: model_of(L.GRU(2, name="own"), shape=(1025, 1))),
    (
        r"'own' \(zero_output_for_mask without all steps",
        lambda: with_mask(L.LSTM(2, zero_output_for_mask=True, name="own")),
    ),
    (
        r"'own' \(of several cells and a mask, beginning",
        lambda: with_mask(L.RNN([L.LSTMCell(2), L.GRUCell(2)], go_backwards=True, name="own")),
    ),
    (
        r"'own' \(of an initial_state and a mask",
        lambda: with_mask(L.GRU(2, name="own"), initial=True),
    ),
    (
        r"'own' \(states of several cells",
        lambda: keras.Model(
            x := keras.Input((STEPS, INPUTS)),
            L.RNN([L.LSTMCell(2), L.GRUCell(2)], return_state=True, name="own")(x)[0],
        ),
    ),
]


@pytest.mark.parametrize(("words", "made"), WRONG)
def test_what_is_not_supported_is_refused_by_name(words: str, made: Callable[[], Any]) -> None:
    with raises(UsageError, "unsupported-layer", received=Matching(words)):
        convert(made())


GOOD = {
    "cell": "lstm",
    "activation": "tanh",
    "gate": "sigmoid",
    "series": False,
    "backwards": [False],
    "sequences": False,
    "aligned": False,
    "memory": False,
    "masked": False,
    "zeroed": False,
}
WEIGHTS = {"kernel0": (3, 8), "recurrent0": (2, 8), "bias0": (8,)}


def untrusted_graph(
    options: dict[str, Any], weights: dict[str, Any], inputs: dict[str, Any]
) -> Graph:
    shapes = {"x": (4, 3), **inputs}
    arrays = {n: np.zeros(s, np.float32) for n, s in {**WEIGHTS, **weights}.items() if s}
    layer = LayerSpec("own", "recurrent", tuple(shapes), {**GOOD, **options}, arrays)
    return Graph("m", shapes, (layer,), ("own",))


ODD: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("a cell of", {"cell": "lsd"}, {}, {}),
    ("a cell of", {"cell": ["lstm"]}, {}, {}),
    ("activations of", {"activation": "ramp"}, {}, {}),
    ("activations of", {"gate": "relu"}, {}, {}),
    ("true or false for series", {"series": 1}, {}, {}),
    ("one direction or two", {"backwards": [False] * 3}, {}, {}),
    ("one direction or two", {"backwards": []}, {}, {}),
    ("true or false for masked", {"masked": 1}, {}, {}),
    ("a mask of all steps", {"zeroed": True}, {}, {}),
    (r"a mask \[4\]", {"masked": True}, {}, {"mask": (3,)}),
    (r"a mask \[4\]", {"masked": True}, {}, {}),
    ("an LSTM where a memory", {"cell": "simple", "memory": True}, {}, {}),
    (r"\[steps, inputs\]", {}, {}, {"x": (4,)}),
    ("1024 steps at most", {}, {}, {"x": (1025, 3)}),
    ("the weights", {"backwards": [False, True]}, {}, {}),
    ("kernel0", {}, {"kernel0": (3, 9)}, {}),
    ("recurrent0", {}, {"recurrent0": (2, 9)}, {}),
    ("bias0", {}, {"bias0": (9,)}, {}),
    ("inner of a GRU", {}, {"inner0": (2,)}, {}),
    ("2 initial states or none", {}, {}, {"h": (2,)}),
    (r"states \[2\]", {}, {}, {"h": (2,), "c": (3,)}),
    ("the options", {"more": 1}, {}, {}),
]


@pytest.mark.parametrize(("words", "options", "weights", "inputs"), ODD)
def test_a_stranger_s_layer_is_checked(
    words: str, options: dict[str, Any], weights: dict[str, Any], inputs: dict[str, Any]
) -> None:
    assert untrusted_graph({}, {}, {}).shapes["own"] == (2,)
    with raises(UsageError, "invalid-layer-option", operation="own") as refused:
        untrusted_graph(options, weights, inputs)
    assert re.search(words, str(refused.value))


def test_a_stranger_s_numbers_are_checked() -> None:
    private = convert(untrusted_graph({}, {}, {}), ranges=4.0)
    header = private.plan.to_header()
    row = header["numbers"]["own"]
    execute.check_executable_plan(ModelPlan.from_header(header))
    for place, value in ((0, 12), (0, 21), (1, 31), (1, 63), (2, 16), (2, 63)):
        wrong = [value if i == place else v for i, v in enumerate(row)]
        with raises(UsageError, "invalid-plan", operation="own"):
            execute.check_executable_plan(
                ModelPlan.from_header({**header, "numbers": {"own": wrong}})
            )


# ---- a user's model


@pytest.mark.slow
def test_texts_and_sensors_are_predicted_on_a_cluster(rng: np.random.Generator) -> None:
    """Use Embedding, both directions and a dense layer; predict the next measurements of a row."""
    words = keras.Input((6,), dtype="int32")
    y = L.Bidirectional(L.LSTM(4))(L.Embedding(20, 5)(words))
    texts = shake_weights(keras.Model(words, L.Dense(2, activation="softmax")(y)), rng)
    sensors = shake_weights(
        model_of(L.LSTM(5, **ALL), L.Dropout(0.2), L.LSTM(3), L.Dense(1), shape=(12, 2)), rng
    )
    ids = rng.integers(0, 20, (3, 6))
    rows = np.cumsum(rng.normal(0, 0.3, (3, 12, 2)), 1).astype(np.float32)
    with tfe.LocalCluster() as cluster:
        for model, arrays in ((texts, ids), (sensors, rows)):
            for activations in ("exact", "series"):
                private = tfe.convert(model, samples=arrays, activations=activations)
                predictions = cluster.predict(private, arrays)
                want = np.asarray(model(arrays, training=False))
                assert np.abs(predictions - want).max() < 2.0**-7
