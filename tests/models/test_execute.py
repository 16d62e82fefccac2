"""Private layers compute the same as Keras, at the declared cost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.models.case_shares import split_case_shares
from tests.refusals import Matching, raises
from tfe_bench.cluster.simulate import (
    Simulation,
    assert_costs,
    measure_graph_call,
    reconstruct,
    simulate,
)
from tfe_bench.errors import DataError, RangeError, UsageError
from tfe_bench.models.convert import bound_analysis, calibration, plaintext
from tfe_bench.models.convert.graph import Graph, LayerSpec
from tfe_bench.models.inference import execute, weights
from tfe_bench.models.inference.private import PrivateModel, convert
from tfe_bench.models.layers.base import registry
from tfe_bench.protocols.ring import rotation
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
A: Any = keras.activations
Array = np.ndarray[Any, Any]
ULP = 2.0**-16


def model_of(*layers: Any, shape: tuple[int, ...] = (5, 5, 2)) -> Any:
    return keras.Sequential([L.Input(shape), *layers])


# Layers that need calibration, or given ranges of values.
CALIBRATED = ("exponential",)
# Models without range checks: values of a dense layer may be too large for them.
UNWATCHED = ("activations of dense", "exponential of dense")
# Larger tolerances: weights of attention have a relative error of 2^-11.
NEAR = {"encoder": 2.0**-9}


def list_activations() -> dict[str, Any]:
    """Return every supported activation, with arguments if it has no defaults."""
    more = {"threshold": partial(A.threshold, threshold=0.3, default_value=-1.0)}
    known = ((f, name) for f, (name, _) in registry.map_keras_functions(keras).items())
    return {name: more.get(name, name if hasattr(A, name) else f) for f, name in known}


def every_activation(shape: tuple[int, ...]) -> Any:
    """Build a model of parallel activations, except those that always need calibration."""
    x = keras.Input(shape)
    branches = [
        L.Activation(f)(x) for name, f in list_activations().items() if name not in CALIBRATED
    ]
    return keras.Model(x, L.Concatenate()(branches))


def join_branches(layer: Any, *branches: Any) -> Any:
    x = keras.Input((4, 4, 2))
    return keras.Model(x, layer([b(x) for b in branches]))


def adapted_normalization(shape: tuple[int, ...]) -> Any:
    """Return a Normalization that is adapted to rows."""
    layer = L.Normalization()
    layer.adapt(np.random.default_rng(3).normal(0.4, 3, (50, *shape)).astype(np.float32))
    return layer


def shared_layer() -> Any:
    """Build a dense layer and a convolution that are called twice, on values of two scales."""
    x, dense, conv = keras.Input((4, 4, 2)), L.Dense(2, name="d"), L.Conv2D(2, 1, name="c")
    return keras.Model(x, L.Add()([dense(conv(x)), L.ReLU()(dense(conv(L.ReLU()(x))))]))


def encoder_model() -> Any:
    """Build blocks of a transformer from `keras.layers`, one of them causal."""
    x = keras.Input((5, 6))
    y = L.LayerNormalization()(x)
    y = L.Add()([x, L.MultiHeadAttention(2, 3, value_dim=2)(y, y)])
    y = L.Add()([y, L.Dense(6)(L.Dense(8, activation="gelu")(L.LayerNormalization()(y)))])
    y = L.LayerNormalization()(y)
    half, attention = L.Cropping1D((0, 2))(y), L.MultiHeadAttention(3, 4, None, 0.1, False)
    y = attention(y, half, key=half, use_causal_mask=True)
    near = L.Rescaling(0.25)(L.LayerNormalization()(y))  # (rounding matters more for large scores)
    return keras.Model(x, L.Attention()([near, half]))


def added_numbers() -> Any:
    """Add constants to a product, and to its broadcast operand."""
    x = keras.Input((4, 3))
    y = L.Dense(3)(x) + np.linspace(-2, 2, 3)
    y = y[:, :1] - np.linspace(-1, 9, 12).reshape(1, 4, 3)
    return keras.Model(x, L.ReLU()(y))


def layer_models() -> dict[str, Any]:
    """Return models of one kind of layer each, with neighbors as in larger models."""
    flat = (6,)
    same = {"padding": "same"}
    return {
        "dense": model_of(L.Dense(4), shape=flat),
        "dense then more": model_of(L.Dense(4), L.Dense(3, use_bias=False), shape=flat),
        "dense of rows": model_of(L.Dense(3, activation="relu"), shape=(4, 6)),
        "conv2d": model_of(L.Conv2D(3, 3, strides=2, **same), L.Conv2D(2, 2, dilation_rate=2)),
        "depthwise": model_of(L.DepthwiseConv2D(3, depth_multiplier=2), L.ReLU()),
        "separable": model_of(L.SeparableConv2D(3, 3, **same)),
        "padded": model_of(L.ZeroPadding2D(((1, 0), (2, 1))), L.Conv2D(2, 3, activation="relu")),
        "zero padding": model_of(L.ZeroPadding2D(1)),
        "permute": model_of(L.Permute((3, 1, 2)), L.ReLU()),
        "cropping": model_of(L.Cropping2D(((1, 0), (0, 2))), L.ReLU()),
        "cropping of rows": model_of(L.Cropping1D((1, 2)), L.ReLU(), shape=(6, 3)),
        "repeat": model_of(L.RepeatVector(3), L.ReLU(), shape=flat),
        "upsampling": model_of(L.UpSampling2D((2, 3)), L.ReLU()),
        "upsampling of rows": model_of(L.UpSampling1D(3), L.ReLU(), shape=(4, 2)),
        "batch norm": model_of(L.Conv2D(3, 2, use_bias=False), L.BatchNormalization(), L.ReLU()),
        "batch norm first": model_of(L.BatchNormalization(), L.ReLU(), L.Conv2D(2, 3, **same)),
        "rows": model_of(
            L.Conv1D(4, 3, padding="causal", dilation_rate=2),
            L.BatchNormalization(),
            L.ReLU(),
            L.ZeroPadding1D(1),
            L.Conv1D(4, 3, strides=2, groups=2, activation="relu"),
            L.MaxPooling1D(2, padding="same"),
            L.SeparableConv1D(4, 2, padding="same"),
            L.Conv1DTranspose(2, 3, strides=2, activation="relu"),
            L.AveragePooling1D(2),
            L.GlobalAveragePooling1D(),
            shape=(16, 2),
        ),
        "groups, transposed": model_of(
            L.Conv2D(4, 3, groups=2, **same),
            L.BatchNormalization(),
            L.ReLU(),
            L.Conv2DTranspose(3, 3, strides=2, **same),
            L.BatchNormalization(),
        ),
        "volumes": model_of(
            L.ZeroPadding3D(1),
            L.Conv3D(2, 2, activation="relu"),
            L.MaxPooling3D(2),
            L.AveragePooling3D(2),
            shape=(3, 4, 4, 2),
        ),
        "resized": model_of(
            L.UpSampling2D(2, interpolation="bilinear"), L.Resizing(7, 3), L.ReLU()
        ),
        "frames": model_of(L.TimeDistributed(L.Conv2D(2, 2)), L.ReLU(), shape=(2, 4, 4, 2)),
        "heads": model_of(L.EinsumDense("abc,cde->adbe", (2, 4, 3), bias_axes="de"), shape=(4, 5)),
        "encoder": encoder_model(),
        "extremes": keras.Sequential(
            [
                L.Input((4, 4, 2)),
                join_branches(L.Maximum(), L.Conv2D(2, 1), L.ReLU(), L.Activation("linear")),
                join_branches(L.Minimum(), L.Conv2D(2, 1), L.ReLU()),
                join_branches(L.Average(), L.Conv2D(2, 1), L.ReLU(), L.Activation("linear")),
            ]
        ),
        "dot": join_branches(L.Dot((2, 1)), L.Reshape((4, 8)), L.Reshape((8, 4))),
        "layer norm": model_of(L.LayerNormalization(), L.ReLU(), shape=(5, 12)),
        "layer norm of images": model_of(L.LayerNormalization(axis=[1, 2, 3], epsilon=1e-6)),
        "rms norm": model_of(L.RMSNormalization(), L.Dense(3), shape=(3, 8)),
        "group norm": model_of(L.GroupNormalization(3), shape=(4, 4, 6)),
        "unit norm": model_of(L.UnitNormalization(), shape=(3, 7)),
        "bins": model_of(L.Discretization([-1.0, 0.0, 0.5]), shape=flat),
        "bins, one-hot": model_of(
            L.Discretization([-0.5, 0.25], output_mode="one_hot"), L.Dense(3), shape=flat
        ),
        "relu": model_of(L.ReLU()),
        "relu6": model_of(L.Rescaling(5.0), L.Conv2D(3, 2), L.ReLU(6.0)),
        "relu6 alone": model_of(L.Rescaling(5.0), L.ReLU(6.0)),
        "leaky relu": model_of(L.LeakyReLU(0.2)),
        "activations of dense": model_of(L.Dense(4), every_activation((4,)), shape=flat),
        "exponential of dense": model_of(L.Dense(4, activation="exponential"), shape=flat),
        "elu": model_of(L.ELU(0.3)),
        "prelu": model_of(L.PReLU(shared_axes=[1, 2])),
        "prelu of each place": model_of(L.PReLU(shared_axes=[2]), L.Conv2D(2, 2)),
        "prelu of dense": model_of(L.Dense(4), L.PReLU(), L.PReLU(shared_axes=[1]), shape=flat),
        "activation": model_of(L.Activation("tanh"), shape=flat),
        "softmax of rows": model_of(L.Softmax(axis=1), shape=(3, 4)),
        "max pool": model_of(L.MaxPooling2D(2)),
        "subsampled": model_of(L.MaxPooling2D(1, 2), L.ReLU()),
        "conv, relu, max pool": model_of(
            L.Conv2D(2, 2, activation="relu"), L.MaxPooling2D(3, 1, "same")
        ),
        "average pool": model_of(L.AveragePooling2D(3, 2, "same")),
        "average, dense": model_of(L.AveragePooling2D(2), L.Flatten(), L.Dense(3)),
        "global max": model_of(L.GlobalMaxPooling2D()),
        "global average": model_of(L.GlobalAveragePooling2D(keepdims=True)),
        "global average, dense": model_of(L.GlobalAveragePooling2D(), L.Dense(3)),
        "reshape": model_of(L.Reshape((10, 5)), L.Dropout(0.3), L.Flatten()),
        "shared": shared_layer(),
        "add": join_branches(L.Add(), L.Activation("linear"), L.Conv2D(2, 3, padding="same")),
        "add and relu": keras.Sequential(
            [
                L.Input((4, 4, 2)),
                join_branches(L.Add(), L.Conv2D(2, 1), L.Conv2D(2, 3, padding="same"), L.ReLU()),
                L.ReLU(),
                L.GlobalMaxPooling2D(),
            ]
        ),
        "subtract": join_branches(L.Subtract(), L.ReLU(), L.Conv2D(2, 1)),
        "subtract others": join_branches(L.Subtract(), L.ReLU(), L.MaxPooling2D(1)),
        "multiply": join_branches(
            L.Multiply(), L.Conv2D(2, 1), L.GlobalAveragePooling2D(keepdims=True), L.ReLU()
        ),
        "concatenate": join_branches(
            L.Concatenate(), L.ReLU(), L.Conv2D(3, 1), L.Activation("linear")
        ),
        "numbers added": added_numbers(),
        "rescaling": model_of(L.ReLU(), L.Rescaling(0.3, offset=-0.5)),
        "normalization": model_of(adapted_normalization(shape=flat), L.Dense(4), shape=flat),
        "normalization of images": model_of(adapted_normalization(shape=(5, 5, 2)), L.ReLU()),
        "normalization within": model_of(L.Dense(4), L.Normalization(None, 0.25, 4.0), shape=flat),
    }


def shake_weights(model: Any, rng: np.random.Generator) -> Any:
    for variable in model.weights:
        if "variance" in variable.path or "gamma" in variable.path:
            variable.assign(rng.uniform(0.5, 2, variable.shape))
        elif "kernel" not in variable.path:
            variable.assign(rng.normal(0, 0.3, variable.shape))
    return model


Case = tuple[execute.Prediction, list[Array], Array]


def make_case(
    private: PrivateModel, images: Array, profile: str = "local", watched: bool = False
) -> Case:
    """Return a prediction with the encoded weights and images."""
    plan = private.plan
    (name,) = plan.graph.inputs
    x = FixedPoint(plan.fraction_of(name)).encode(
        plaintext.scale_owner_inputs(plan.graph, images)[name]
    )
    return (
        execute.tune_prediction(plan, profile, len(images), watched),
        weights.encode_weights(plan),
        x,
    )


def simulate_cases(some: list[Case], dealer: int, again: bool) -> Simulation:
    """Simulate all cases: the outputs of each, and the cost of a second call."""
    flat = [a for _, own, x in some for a in (*own, x)]

    def program(party: Party, *shares: Shared) -> Any:
        results = []
        for s, own, x in split_case_shares(some, shares):

            def model(own: Any, x: Shared, s: execute.Prediction = s) -> Any:
                return execute.run_model(party, s, own, [x])

            f = party.function(model)
            outputs = f(own, x)
            results.append((outputs, measure_graph_call(party, f, own, x) if again else None))
        return results

    return simulate(program, *flat, dealer=dealer)


def run_all(some: list[Case], dealer: int, again: bool = True) -> list[tuple[Array, Any]]:
    """Return the output of each case, and the cost of a second call at the three parties.

    Range checks must not flag any value.
    """
    sim = simulate_cases(some, dealer, again)
    results = []
    for i, (s, _, _) in enumerate(some):
        ring, *flags = (
            reconstruct(list(parts))
            for parts in zip(*(out[i][0] for out in sim.outputs), strict=True)
        )
        assert len(flags) == s.watched and not np.any(flags)
        fraction = s.plan.fraction_of(s.plan.graph.outputs[0])
        results.append((ring * 2.0**-fraction, [out[i][1] for out in sim.outputs]))
    return results


WAYS = [(True, True), (False, False), (True, False), (False, True)]  # calibrated, watched


@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(turn, marks=pytest.mark.slow) for turn in (1, 2, 3))]
)
def test_every_layer_agrees_with_keras_and_costs_what_is_declared(
    turn: int, rng: np.random.Generator
) -> None:
    """Check to 32 ulp of 2^-16: values and weights are below 8, sums have up to 18 products.

    Models alternate between calibrated and assumed ranges, with and without range checks; four
    turns cover all combinations.
    """
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    dealer = int(rng.integers(3))
    names, some, expected = [], [], []
    for i, (name, model) in enumerate(layer_models().items()):
        calibrated, watched = WAYS[(i + turn) % 4]
        calibrated |= name.startswith(CALIBRATED)
        watched &= name not in UNWATCHED
        shake_weights(model, rng)
        images = rng.normal(0, 1, (3, *model.input_shape[1:])).clip(-3, 3).astype(np.float32)
        private = convert(model, samples=images if calibrated else None)
        if watched:
            bound_analysis.check_monitorable_layers(private.plan)
        names.append(name)
        some.append(make_case(private, images, watched=watched))
        expected.append(np.asarray(model(images, training=False)))
    for name, (s, _, _), want, (got, calls) in zip(
        names, some, expected, run_all(some, dealer), strict=True
    ):
        (got,) = plaintext.finish_model_outputs(s.plan.graph, [got])
        assert got.shape == want.shape, name
        # (an exponential amplifies its argument's error: the error is relative)
        near = NEAR.get(name, 32 * ULP)
        assert (np.abs(got - want) / np.maximum(np.abs(want), 1)).max() < near, name
        try:
            assert_costs(calls, execute.model_cost(s), dealer)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def small_net() -> Any:
    """Build a convolutional net with a residual block."""
    x = keras.Input((8, 8, 1))
    y = L.Conv2D(4, 3, padding="same", activation="relu")(x)
    z = L.Conv2D(4, 3, padding="same")(y)
    z = L.BatchNormalization()(z)
    y = L.ReLU()(L.Add()([y, z]))
    y = L.MaxPooling2D(2)(y)
    y = L.Flatten()(y)
    return keras.Model(x, L.Dense(10, activation="softmax")(y))


def test_the_summary_of_a_net_is_what_is_on_the_wire_also_rotated(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = rng.uniform(0, 1, (3, 8, 8, 1)).astype(np.float32)
    model = shake_weights(small_net(), rng)
    private = convert(model, samples=images)
    expected = np.asarray(model(images, training=False))
    for profile, turned in (("local", False), ("wan", False), ("wan", True)):
        with monkeypatch.context() as patched:
            if turned:
                patched.setattr(rotation, "is_worthwhile", lambda cost, bits: True)
            summary = private.summary(profile, len(images))
            ((got, calls),) = run_all([make_case(private, images, profile)], 0)
        assert summary.rotated == turned
        assert np.abs(got - expected).max() < 32 * ULP
        assert_costs(calls, summary.cost)
        rows = [(r.cost.dealer, r.cost.e1, r.cost.e2) for r in summary.rows]
        if not turned:
            sums = tuple(np.sum(rows, 0))
            assert sums == (summary.cost.dealer, summary.cost.e1, summary.cost.e2)
        assert summary.seconds > 0 and f"{summary.cost.rounds} rounds" in str(summary)
    balanced, whole = (summary.cost, private.summary("wan", 1).cost)
    assert max(balanced.by_party(0)) < 1.1 * min(balanced.by_party(0))
    assert whole.dealer > 1.5 * whole.e1


def test_a_batch_in_thirds_is_watched_too(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = rng.uniform(0, 1, (4, 8, 8, 1)).astype(np.float32)
    model = shake_weights(small_net(), rng)
    some = make_case(convert(model, samples=images), images, "wan", True)
    monkeypatch.setattr(rotation, "is_worthwhile", lambda cost, bits: True)
    assert execute.has_rotating_dealers(some[0])
    ((got, calls),) = run_all([some], 0)
    assert np.abs(got - np.asarray(model(images, training=False))).max() < 32 * ULP
    assert_costs(calls, execute.model_cost(some[0]))


def graph_of(*layers: LayerSpec, outputs: tuple[str, ...] = ()) -> Graph:
    return Graph("m", {"x": (2,)}, layers, outputs or (layers[-1].name,))


def dense_layer(name: str, source: str, kernel: Any) -> LayerSpec:
    return LayerSpec(name, "dense", (source,), {}, {"kernel": np.asarray(kernel, np.float64)})


def relu_of(name: str, source: str) -> LayerSpec:
    return LayerSpec(name, "relu", (source,), {"max_value": None})


def test_large_values_are_rescaled_and_small_weights_keep_their_digits(
    rng: np.random.Generator,
) -> None:
    """Check a relative error below 2^-12: weights have 14 bits, values 35."""
    up = rng.uniform(0.5, 1, (2, 3)) * 2e5
    down = rng.uniform(0.5, 1, (3, 2)) / 1e8
    graph = graph_of(
        dense_layer("large", "x", up),
        relu_of("r", "large"),
        dense_layer("small", "r", down),
        relu_of("s", "small"),
        dense_layer("last", "s", rng.uniform(0.5, 1, (2, 2)) * 1000),
    )
    images = rng.uniform(1, 4, (50, 2))
    private = convert(graph, samples=images)
    assert private.rescaled.keys() == {"large"} and 6 <= private.rescaled["large"] < 16
    ((got, _),) = run_all([make_case(private, images)], 0, again=False)
    want = private.plain(images)
    scale = np.abs(want).max()
    # (the small layer's values, about 0.05, have 16 fractional bits)
    assert np.abs(got - want).max() / scale < 2**-9
    assert private.plan.numbers["small"].scale > 32


def test_small_samples_keep_their_digits_and_what_is_lost_is_said(
    rng: np.random.Generator,
) -> None:
    """Multiply values of 1e-4 by weights of 1e4, as after a Rescaling."""
    graph = graph_of(dense_layer("a", "x", rng.uniform(0.5, 1, (2, 3)) * 1e4), relu_of("r", "a"))
    images = rng.uniform(0.5, 1, (4, 2)) * 1e-4
    private = convert(graph, samples=images)
    assert private.plan.inputs == {"x": 25}
    again = calibration.ModelPlan.from_header(private.plan.to_header())
    assert again.inputs == private.plan.inputs and again.to_header() == private.plan.to_header()
    with pytest.raises(DataError):
        calibration.ModelPlan.from_header({**private.plan.to_header(), "inputs": {"y": 20}})
    ((got, _),) = run_all([make_case(private, images)], 0, again=False)
    error = np.abs(got - private.plain(images)).max()
    (row,) = private.summary().rows
    assert error < 2**-9 and row.error is not None and error < 4 * row.error.largest
    assert not private.summary().imprecise
    # softmax has 20 fractional bits at most, so that no format helps
    soft = LayerSpec("s", "softmax", ("small",), {"axis": 1})
    small = dense_layer("small", "x", rng.uniform(0.5, 1, (2, 3)))
    summary = convert(
        graph_of(small, soft, dense_layer("b", "small", np.eye(3) * 1e5)), samples=images
    ).summary()
    assert summary.imprecise[0] == "small" and "imprecise: more than 1 % of the range" in str(
        summary
    )
    assert "error" not in str(convert(graph).summary())


def test_layers_that_fit_no_fixed_point_are_named() -> None:
    graph = graph_of(
        dense_layer("a", "x", np.eye(2) * 1e4),
        dense_layer("far", "a", np.eye(2) * 1e9),
        relu_of("r", "far"),
    )
    with raises(RangeError, "range-too-large", received=Matching("'far' reaches")):
        convert(graph, samples=np.ones((1, 2)))
    with raises(RangeError, "range-too-large", received=Matching("'far' reaches")):
        convert(graph, ranges={"far": 1e13})
    with raises(RangeError, "range-too-large", received=Matching("input 'x' reaches")):
        convert(graph, ranges={"x": 1e13})
    with raises(RangeError, "not-finite", operation="x"):
        convert(graph, samples=np.full((1, 2), np.inf))


def test_bad_arguments_are_refused() -> None:
    graph = graph_of(dense_layer("a", "x", np.eye(2)))
    for arguments, code, operation in (
        ({"samples": np.ones((1, 2)), "ranges": 3.0}, "conflicting-options", "convert"),
        ({"ranges": {"b": 1.0}}, "unknown-layer", "ranges"),
        ({"ranges": {"a": -1.0}}, "number-out-of-range", "ranges"),
        ({"ranges": "wide"}, "number-out-of-range", "ranges"),
        ({"samples": np.ones((1, 3))}, "shape-mismatch", "x"),
        ({"fractional_bits": 24}, "number-out-of-range", "fractional_bits"),
        ({"margin": 0.5}, "number-out-of-range", "margin"),
    ):
        with raises(UsageError, code, operation=operation):
            convert(graph, **arguments)
    private = convert(graph)
    with raises(UsageError, "unknown-name"):
        private.summary("wlan")
    with raises(UsageError, "number-out-of-range", operation="batch"):
        private.summary(batch=0)
    with raises(RangeError, "value-out-of-range", operation="x", received=2):
        private.shared_inputs(np.full((1, 2), 1e6))
    with raises(RangeError, "not-finite", operation="x", received=2):
        private.shared_inputs(np.full((1, 2), np.nan))
    with raises(UsageError, "unsupported-layer", operation="a", received="dense"):
        execute.check_executable_plan(replace(private.plan, graph=graph))


def test_plans_of_strangers_are_checked() -> None:
    plan = convert(graph_of(dense_layer("a", "x", np.eye(2)))).plan
    header = plan.to_header()
    assert calibration.ModelPlan.from_header(header).to_header() == header
    for bad in (None, {}, {**header, "fraction": "16"}, {**header, "numbers": {}}):
        with pytest.raises(DataError):
            calibration.ModelPlan.from_header(bad)
    with pytest.raises(DataError):
        calibration.ModelPlan.from_header({**header, "numbers": {"a": [16, 64, 0]}})
