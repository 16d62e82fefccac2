"""Converted models compute the same as Keras, before and after each optimization pass."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import Matching, raises
from tfe_bench.errors import DataError, OpsMissing, RangeError, UsageError
from tfe_bench.models.convert import optimize
from tfe_bench.models.convert.cutting import push_slices_below_layers
from tfe_bench.models.convert.from_keras import from_keras
from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.convert.hiding import hide_masked_softmax_inputs
from tfe_bench.models.convert.plaintext import evaluate_graph
from tfe_bench.models.layers.unchanged import InferenceIdentity
from tfe_bench.models.training import reader as training_reader

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
# Keras computes in float32.
FLOAT32 = 2e-5


def shake_weights(model: Any, rng: np.random.Generator) -> Any:
    """Return the model with random weights, statistics of batch normalization included."""
    for variable in model.weights:
        shape = variable.shape
        if "variance" in variable.path or "gamma" in variable.path:
            variable.assign(rng.uniform(0.5, 2, shape))
        elif "kernel" not in variable.path:
            variable.assign(rng.normal(0, 0.3, shape))
    return model


def residual_model() -> Any:
    """Return a block that is used twice."""
    x = keras.Input((6, 6, 4))
    y = L.Conv2D(4, 3, padding="same", use_bias=False)(x)
    y = L.BatchNormalization()(y)
    y = L.Activation("relu")(y)
    y = L.Conv2D(4, 1)(y)
    y = L.BatchNormalization(scale=False)(y)
    return keras.Model(x, L.ReLU()(L.Add()([x, y])), name="residual")


def model_of_all() -> Any:
    """Return a model with every supported layer."""
    x = keras.Input((13, 13, 3))
    y = L.Rescaling(1 / 127.5, offset=-1)(x)
    y = L.ZeroPadding2D(((1, 2), (2, 1)))(y)
    y = L.Conv2D(4, 3, strides=2, activation="relu6")(y)
    y = L.ZeroPadding2D(1)(y)
    y = L.MaxPooling2D(3, 1)(y)
    y = L.BatchNormalization(center=False)(y)
    y = L.Conv2D(4, 1)(y)
    y = L.AveragePooling2D(2, 1)(y)
    block = residual_model()
    y = block(block(y))
    y = L.Permute((2, 1, 3))(L.LeakyReLU(0.5)(L.Permute((2, 1, 3))(y)))
    y = L.Subtract()([y, L.Conv2D(4, 3, padding="same", dilation_rate=2)(y)])
    y = L.SeparableConv2D(5, 3, padding="same", activation=L.LeakyReLU(0.1))(y)
    y = L.Rescaling([1.0, 2.0, 0.5, -1.0, 3.0], offset=0.25)(y)
    y = L.DepthwiseConv2D(3, depth_multiplier=2, activation="tanh")(y)
    y = L.AveragePooling2D(3, 2, padding="same")(y)
    means, largest = L.GlobalAveragePooling2D()(y), L.GlobalMaxPooling2D()(y)
    y = L.Concatenate()([means, largest])
    y = L.Dropout(0.5)(y)
    y = L.Reshape((4, -1))(y)
    y = L.LayerNormalization()(L.Dense(3)(y))
    y = L.Add()([y, L.MultiHeadAttention(2, 2)(y, y)])
    y = L.Multiply()([L.Softmax()(y), L.Activation("sigmoid")(y), y])
    y = L.Flatten()(y)
    head = keras.Sequential([L.Input((12,)), L.Dense(5, activation="leaky_relu"), L.Dense(3)])
    z = head(y)
    return keras.Model(x, [z, L.Rescaling(30.0, offset=-7.25)(L.Activation("softmax")(z))])


@pytest.fixture(scope="module")
def model() -> Any:
    return shake_weights(model_of_all(), np.random.default_rng(5))


def largest_difference(graph: Graph, images: Any, expected: Any) -> float:
    outputs = evaluate_graph(graph, images)
    return max(float(np.abs(a - b).max()) for a, b in zip(outputs, expected, strict=True))


def test_every_layer_computes_what_keras_computes(model: Any, rng: np.random.Generator) -> None:
    images = rng.uniform(0, 255, (4, 13, 13, 3)).astype(np.float32)
    expected = [np.asarray(y) for y in model(images, training=False)]
    assert largest_difference(from_keras(model), images, expected) < FLOAT32


UNCHANGED = [name for name in InferenceIdentity.keras_layers if hasattr(L, name)]


def try_layer(layer: Any, arguments: tuple[Any, ...]) -> Any:
    with contextlib.suppress(TypeError, ValueError):
        return layer(*arguments)


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_acts_in_training_alone_is_the_identity(name: str, rng: np.random.Generator) -> None:
    shape = (6, 3) if name.endswith("1D") else (4, 6, 6, 3) if name.endswith("3D") else (6, 6, 3)
    layer, several = getattr(L, name), ((), (0.5,), (0.5, 0.5), (1,))
    outcome = next(outcome for arguments in several if (outcome := try_layer(layer, arguments)))
    model = keras.Sequential([L.Input(shape), outcome, L.Rescaling(0.5)])
    images = rng.uniform(-300, 300, (2, *shape)).astype(np.float32)
    assert np.array_equal(model(images, training=False), images * np.float32(0.5))
    assert largest_difference(from_keras(model), images, [images * 0.5]) < 1e-12
    with raises(UsageError, "unsupported-layer", received=Matching(f"{name} .*train")):
        training_reader.read_training_model(model)


def call_layer(layer: Any, *more: Any, **named: Any) -> Any:
    x = keras.Input((4, 3))
    return keras.Model(x, L.Dense(2)(layer(x, *more, **named)))


def attention_model(shape: tuple[int, ...] = (4, 3), **arguments: Any) -> Any:
    """Return a model with self-attention, by options of the layer and of its call."""
    x = keras.Input(shape)
    options = {k: arguments.pop(k) for k in tuple(arguments) if not k.endswith("_mask")}
    return keras.Model(x, L.MultiHeadAttention(2, 2, **options)(x, x, **arguments))


def use_twice(layer: Any) -> Any:
    x = keras.Input((4, 3))
    return keras.Model(x, layer([x, x]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: attention_model(use_gate=True), "use_gate=True"),
        (lambda: attention_model(sliding_window=2), "sliding_window=2"),
        (lambda: attention_model((2, 2, 3), attention_axes=(1, 2)), r"over axes \[1, 2\]"),
        (lambda: attention_model((2, 4, 3)), "axes"),
        (lambda: use_twice(L.Attention(use_scale=True)), "use_scale=True"),
        (lambda: use_twice(L.Attention(score_mode="concat")), "score_mode='concat'"),
    ],
)
def test_attention_of_other_kinds_is_refused(make: Any, said: str) -> None:
    with raises(UsageError, "unsupported-layer", received=Matching(rf"Attention '.*\(.*{said}")):
        from_keras(make())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: call_layer(L.Dropout(0.5), training=True), "training=True"),
        (lambda: call_layer(L.BatchNormalization(), training=True), "training=True"),
        (lambda: call_layer(L.Softmax(), np.ones((4, 3), bool)), "more than one argument"),
        (lambda: call_layer(L.Softmax(), mask=np.ones((4, 3), bool)), "mask="),
        (lambda: attention_model(query_mask=np.ones((1, 4), bool)), "query_mask="),
        (lambda: call_layer(call_layer(L.Dropout(0.5)), training=True), "training=True"),
    ],
)
def test_what_a_layer_is_called_with_beside_its_inputs_is_refused(
    make: Callable[[], Any], said: str
) -> None:
    with raises(UsageError, "unsupported-layer", received=Matching(f"called with {said}")):
        from_keras(make())


def test_arguments_that_change_nothing_are_taken(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 4, 3)).astype(np.float32)
    for model in (
        call_layer(L.Dropout(0.5), training=False),
        call_layer(L.BatchNormalization(), training=False),
        keras.Model(y := keras.Input((4, 3)), L.Dense(2)(inputs=L.Add()([y, L.ReLU()(inputs=y)]))),
    ):
        assert (
            largest_difference(from_keras(model), x, [np.asarray(model(x, training=False))])
            < FLOAT32
        )


def test_no_pass_changes_what_a_model_computes(model: Any, rng: np.random.Generator) -> None:
    images = rng.uniform(0, 255, (3, 13, 13, 3))
    graph = from_keras(model)
    expected = evaluate_graph(graph, images)
    for each in optimize.PASSES:
        before, graph = graph, each(graph)
        assert largest_difference(graph, images, expected) < 1e-12, each.__name__
        assert each(graph).to_header() == graph.to_header(), f"{each.__name__} changes it twice"
        changed = before.to_header() != graph.to_header()
        others = (
            optimize.drop_identity_layers,
            optimize.fold_constant_offsets,
            push_slices_below_layers,
            hide_masked_softmax_inputs,
        )
        assert changed or each in others, f"{each.__name__} did nothing"
    ops = [x.op for x in graph.layers]
    assert not {"affine", "rescale", "identity", "conv2d", "dense"} & set(ops)
    blocks = [x for x in graph.layers if any(t["op"] == "skip" for t in x.options.get("terms", []))]
    assert [x.options["activation"] for x in blocks] == ["relu", "relu", "none"]
    assert [t["sign"] for t in blocks[-1].options["terms"]] == [1, -1]
    assert list(graph.scaling) == list(graph.inputs)


def test_relu_moves_behind_max_pooling_and_averages_into_dense_layers(
    rng: np.random.Generator,
) -> None:
    model = keras.Sequential(
        [
            L.Input((8, 8, 2)),
            L.Conv2D(3, 3, activation="relu"),
            L.MaxPooling2D(2),
            L.GlobalAveragePooling2D(keepdims=True),
            L.Conv2D(2, 1, use_bias=False),
            L.Flatten(),
            L.Dense(2),
        ]
    )
    graph = optimize.optimize_graph(from_keras(model))
    ops = [x.op for x in graph.layers]
    assert ops == ["sum", "max_pool2d", "relu", "global_sum_pool2d", "sum", "flatten", "sum"]
    images = rng.normal(size=(3, 8, 8, 2)).astype(np.float32)
    assert largest_difference(graph, images, [np.asarray(model(images, training=False))]) < FLOAT32


def test_a_saved_model_is_read_like_the_model(model: Any, tmp_path: Path) -> None:
    model.save(tmp_path / "m.keras")
    assert from_keras(str(tmp_path / "m.keras")).digest() == from_keras(model).digest()


def test_all_unsupported_layers_are_listed() -> None:
    inner = keras.Sequential(
        [L.Input((4, 4, 1)), L.UpSampling2D(interpolation="lanczos3", name="up")], name="inner"
    )

    class Own(L.Dense):  # type: ignore[misc]
        """A layer with unknown behavior."""

    model = keras.Sequential(
        [
            L.Input((4, 4, 2)),
            L.Conv2D(1, 1, activation="sparsemax", padding="same", name="curved"),
            L.ZeroPadding2D((1, 0), name="fine"),
            L.Conv2D(1, 2, name="here"),
            L.Lambda(lambda x: x, name="code"),
            Own(3, name="own"),
            L.Softmax(axis=(1, 2), name="both"),
        ]
    )
    with pytest.raises(UsageError) as caught:
        from_keras(model)
    text = str(caught.value)
    for part in (
        "Conv2D 'curved' (its activation is 'sparsemax')",
        "Lambda 'code'",
        "Own 'own'",
        "Softmax 'both' (axis (1, 2)",
        "docs/keras_layers.md lists them",
    ):
        assert part in text, part
    assert "'fine'" not in text and "'here'" not in text
    outer = keras.Sequential([L.Input((4, 4, 1)), inner], name="outer")
    with raises(
        UsageError,
        "unsupported-layer",
        operation="outer",
        received=Matching(r"UpSampling2D 'inner/up' \(interpolation='lanczos3'"),
    ):
        from_keras(outer)


def test_refuses_what_is_no_model(tmp_path: Path) -> None:
    class Subclass(keras.Model):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return x

    x = keras.Input((None, 4, 1))
    for bad, code in (
        (3, "wrong-type"),
        (Subclass(), "unsupported-model"),
        (keras.Sequential([L.Dense(2)]), "model-not-built"),
        (keras.Model(x, L.Conv2D(1, 1)(x)), "unknown-input-size"),
    ):
        with raises(UsageError, code):
            from_keras(bad)


def test_refuses_files_that_are_no_models_or_hold_code(tmp_path: Path) -> None:
    (tmp_path / "damaged.keras").write_bytes(b"PK\x03\x04 no zip")
    (tmp_path / "model.h5").write_bytes(b"")
    code = keras.Sequential([L.Input((3,)), L.Lambda(lambda x: x + 1)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code.save(tmp_path / "code.keras")
    for name, error_code in (
        ("damaged.keras", "invalid-model-file"),
        ("model.h5", "unsupported-file-type"),
        ("missing.keras", "file-not-found"),
        ("code.keras", "invalid-model-file"),
    ):
        with raises(DataError, error_code, names=(name,)):
            from_keras(tmp_path / name)


def test_weights_that_are_no_numbers_name_their_layer() -> None:
    model = keras.Sequential([L.Input((3,)), L.Dense(2), L.Dense(2, name="broken")])
    kernel, bias = model.get_layer("broken").get_weights()
    kernel[0, 1] = np.inf
    model.get_layer("broken").set_weights([kernel, bias])
    with raises(RangeError, "not-finite", operation="broken", names=("1 of 4",)):
        from_keras(model)


def test_another_backend_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'jax'")

    monkeypatch.setattr("tfe_bench.models.convert.from_keras.importlib.import_module", missing)
    for backend, code in (
        ("jax", "unsupported-backend"),
        ("tensorflow", "library-not-installed"),
    ):
        monkeypatch.setenv("KERAS_BACKEND", backend)
        with raises(OpsMissing, code):
            from_keras("model.keras")


def test_a_layer_without_private_counterpart_names_the_nearest() -> None:
    model_input = keras.Input((4, 6, 6, 2))
    with pytest.raises(UsageError) as raised:
        from_keras(keras.Model(model_input, L.ConvLSTM2D(2, 3)(model_input)))
    assert 'Did you mean "' in str(raised.value) and len(str(raised.value)) < 300
