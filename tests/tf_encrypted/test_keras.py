"""tf-encrypted's Keras: layers and gradients as TensorFlow's, training, conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.refusals import raises
from tests.tf_encrypted.simulated import simulated, tfe
from tfe_bench.errors import UsageError

L = keras.layers


@pytest.fixture(scope="module", autouse=True)
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with simulated(tmp_path_factory.mktemp("workers")) as config:
        yield config


IMAGE, ROWS = (2, 5, 6, 3), (4, 5)
# By layer: its arguments here, Keras' arguments if they differ, and the inputs' shape.
LAYERS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "dense": ("Dense", {"units": 3}, ROWS),
    "dense, relu": ("Dense", {"units": 3, "activation": "relu"}, ROWS),
    "dense, sigmoid": ("Dense", {"units": 3, "activation": "sigmoid", "use_bias": False}, ROWS),
    "dense, tanh": ("Dense", {"units": 2, "activation": "tanh"}, ROWS),
    "activation": ("Activation", {"activation": "sigmoid"}, ROWS),
    "relu": ("ReLU", {}, ROWS),
    "flatten": ("Flatten", {}, IMAGE),
    "flatten, channels first": ("Flatten", {"data_format": "channels_first"}, IMAGE),
    "reshape": ("Reshape", {"target_shape": (-1, 9)}, IMAGE),
    "convolution": ("Conv2D", {"filters": 2, "kernel_size": 3, "strides": 2}, IMAGE),
    "convolution, same": (
        "Conv2D",
        {"filters": 2, "kernel_size": (2, 3), "padding": "same", "activation": "relu"},
        IMAGE,
    ),
    "depthwise": ("DepthwiseConv2D", {"kernel_size": 2, "depth_multiplier": 2}, IMAGE),
    "maximum": ("MaxPooling2D", {"pool_size": 2, "strides": 1}, IMAGE),
    "maximum, same": ("MaxPooling2D", {"pool_size": (3, 2), "padding": "same"}, IMAGE),
    "mean": ("AveragePooling2D", {"pool_size": 2}, IMAGE),
    "mean, same": ("AveragePooling2D", {"pool_size": 2, "strides": 2, "padding": "same"}, IMAGE),
    "global maximum": ("GlobalMaxPooling2D", {}, IMAGE),
    "global mean": ("GlobalAveragePooling2D", {"keepdims": True}, IMAGE),
    "batch normalization": ("BatchNormalization", {}, IMAGE),
}


def _weights(layer: Any, rng: np.random.Generator) -> list[Any]:
    return [rng.uniform(0.3, 1, w.shape) * rng.choice([1], w.shape) for w in layer.weights]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradients_are_those_of_keras(name: str, rng: np.random.Generator) -> None:
    kind, arguments, shape = LAYERS[name]
    x_value, ours = rng.normal(size=shape), getattr(tfe.keras.layers, kind)(**arguments)
    theirs = getattr(L, kind)(**arguments)
    theirs.build(shape)
    x_here, x_there = tfe.define_private_variable(x_value), tf.Variable(x_value, dtype=tf.float32)
    y_here = ours(x_here)
    values = _weights(theirs, rng)
    ours.set_weights(values)
    theirs.set_weights(values)
    with tf.GradientTape() as tape:
        y_there = theirs(x_there)
        d_y = rng.normal(size=y_there.shape)
        total = tf.reduce_sum(y_there * d_y)
    y_here = ours(x_here)
    assert ours.compute_output_shape(list(shape)) == y_here.shape.as_list() == list(y_there.shape)
    expected = tape.gradient(total, [x_there, *[w.value for w in theirs.trainable_weights]])
    try:
        gradients, d_x = ours.backward(tfe.define_private_variable(d_y))
    except NotImplementedError as error:
        assert isinstance(error, UsageError) and kind in ("DepthwiseConv2D", "BatchNormalization")
        gradients, d_x, expected = [], None, []
    shown = tfe.reveal([y_here, *([] if d_x is None else [d_x]), *gradients])
    for got, want in zip(shown, [y_there, *expected], strict=True):
        assert np.abs(got.to_native().numpy() - want).max() < 2e-3


STEPS: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
    "sgd": (lambda: tfe.keras.optimizers.SGD(0.1), lambda: keras.optimizers.SGD(0.1), 1),
    "momentum": (
        lambda: tfe.keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        3,
    ),
    "adam": (
        lambda: tfe.keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.Adam(0.01, epsilon=1e-6),
        3,
    ),
    "amsgrad": (lambda: tfe.keras.optimizers.AMSgrad(0.01), lambda: _Amsgrad(0.01), 3),
}


class _Amsgrad(keras.optimizers.SGD):  # type: ignore[misc]
    """Plain steps of AMSGrad without bias correction."""

    kept: dict[str, Any]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        kept = self.__dict__.setdefault("kept", {})
        m, v, most = kept.get(tuple(variable.shape), (0.0, 0.0, 0.0))
        g = np.asarray(gradient, np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        most = np.maximum(most, v)
        kept[tuple(variable.shape)] = m, v, most
        variable.assign(np.asarray(variable) - 0.01 * m / np.sqrt(most + 1e-12))


LOSSES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "binary": (
        lambda: tfe.keras.losses.BinaryCrossentropy(from_logits=True),
        lambda: keras.losses.BinaryCrossentropy(from_logits=True),
    ),
    "categorical": (
        lambda: tfe.keras.losses.CategoricalCrossentropy(from_logits=True),
        lambda: keras.losses.CategoricalCrossentropy(from_logits=True),
    ),
    "squares": (
        lambda: tfe.keras.losses.MeanSquaredError(),
        lambda: keras.losses.MeanSquaredError(),
    ),
}


@pytest.mark.parametrize(
    ("optimizer", "loss"),
    [
        ("adam", "binary"),
        ("sgd", "categorical"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                *(("sgd", "binary"), ("momentum", "binary"), ("amsgrad", "binary")),
                ("sgd", "squares"),
            )
        ),
    ],
)
def test_a_model_learns_as_in_keras(optimizer: str, loss: str, rng: np.random.Generator) -> None:
    ours, theirs, steps = STEPS[optimizer]
    width = 3 if loss == "categorical" else 1
    plain = keras.Sequential([keras.Input((5,), 8), L.Dense(4, "tanh"), L.Dense(width)])
    model = tfe.keras.models.clone_model(plain)
    model.compile(ours(), LOSSES[loss][0]())
    plain.compile(theirs(), LOSSES[loss][1](), run_eagerly=True)
    x = rng.normal(size=(8, 5))
    y = np.eye(width)[rng.integers(0, width, 8)] if width > 1 else (x[:, :1] > 0) * 1.0
    for _ in range(steps):
        got = model.fit_batch(tfe.define_private_variable(x), tfe.define_private_variable(y))
        want = plain.train_on_batch(x, y)
        assert abs(float(np.mean(got)) - float(want)) < 2e-3
    own = tfe.reveal([w.read_value() for of_layer in model.weights for w in of_layer])
    off = [np.abs(g.to_native().numpy() - w) for g, w in zip(own, plain.get_weights(), strict=True)]
    every = np.concatenate([o.ravel() for o in off])
    # (Adam's steps have the same size for tiny, rounded gradients)
    assert np.quantile(every, 0.8) < 1e-3
    assert every.max() < (0.1 if optimizer in ("adam", "amsgrad") else 2e-3)
    metrics = ["binary_accuracy"] if width == 1 else ["categorical_accuracy"]
    data = tfe.define_private_variable(x), tfe.define_private_variable(y)
    result = model.evaluate(*data, batch_size=4, metrics=metrics)
    logits = model.predict(data[0], batch_size=4)
    assert np.abs(logits - plain.predict(x, verbose=0)).max() < 5e-2
    right = logits.argmax(1) == y.argmax(1) if width > 1 else (logits > 0.5) == (y > 0.5)
    assert result == {metrics[0]: right.mean()}


def test_batches_of_an_owner_are_trained_on(workers: Any, capsys: Any) -> None:
    data = tfe.keras.datasets.LogisticArtificialDataset(batch_size=16)
    owner = tfe.DataOwner("training-client", data.generator_builder())
    model = tfe.keras.Sequential()
    model.add(
        tfe.keras.layers.Dense(1, batch_input_shape=data.batch_shape, lazy_normalization=True)
    )
    loss = tfe.keras.losses.BinaryCrossentropy(from_logits=True, lazy_normalization=True)
    model.compile("adam", loss)
    first = len(workers.workers.jobs)
    model.fit(owner.provide_data(), epochs=1, steps_per_epoch=3)
    assert "step 3/3: loss 0." in capsys.readouterr().out
    plans = [job["plan"]["steps"] for job in workers.workers.jobs[first:] if job["plan"]["steps"]]
    assert len(plans) == 3
    assert plans[1] == plans[2]  # so that graphs are traced once
    again = tfe.keras.Sequential([tfe.keras.layers.Dense(1, batch_input_shape=[4, 10])])
    again.set_weights(model.weights)
    x = np.eye(10)[:4]
    assert (
        again.predict(tfe.define_private_variable(x))
        == model.predict(tfe.define_private_variable(x))
    ).all()


def test_digits_are_cut_and_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfe_bench.models.datasets import mnist

    images = np.arange(20 * 784, dtype=np.uint8).reshape(20, 28, 28)
    labels = np.arange(20, dtype=np.uint8) % 10
    dataset = mnist.Mnist(images, labels, images[:6], labels[:6], "a test")
    monkeypatch.setattr(mnist, "load", lambda folder=None: dataset)
    monkeypatch.chdir(tmp_path)
    whole = tfe.keras.datasets.MnistDataset(batch_size=5, train=False)
    x, y = next(whole.generator_builder()())
    assert x.shape == (5, 28, 28, 1) and y.shape == (5, 10)
    rows = next(whole[:, 3:10].generator_builder(label=False)())
    assert rows.shape == (5, 7, 28, 1)
    some = whole[1:4]
    some.reset_batch_size(3)
    assert some.iterations == 1
    assert sorted(next(some.generator_builder(image=False)()).numpy().argmax(1)) == [1, 2, 3]


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "dilation": (
        lambda: tfe.keras.layers.Conv2D(1, 2, dilation_rate=2),
        "unsupported-argument",
        "dilation_rate",
    ),
    "a regularizer": (
        lambda: tfe.keras.layers.Dense(1, kernel_regularizer="l2"),
        "unsupported-argument",
        "kernel_regularizer",
    ),
    "a slope": (
        lambda: tfe.keras.layers.ReLU(negative_slope=0.1),
        "unsupported-argument",
        "negative_slope",
    ),
    "an unknown argument": (
        lambda: tfe.keras.layers.Dense(1, colour=3),
        "unsupported-argument",
        "colour",
    ),
    "an activation": (
        lambda: tfe.keras.layers.Dense(1, activation="mish"),
        "unsupported-argument",
        "activation",
    ),
    "a layer": (lambda: tfe.keras.models.clone_model(_lstm()), "unsupported-layer", "LSTM"),
    "an optimizer": (lambda: tfe.keras.optimizers.get("lion"), "unknown-name", "optimizer"),
    "no shape": (
        lambda: tfe.keras.Sequential([tfe.keras.layers.Dense(1)]),
        "missing-argument",
        "batch_input_shape",
    ),
    "weights of others": (
        lambda: tfe.keras.Sequential(
            [tfe.keras.layers.Dense(1, batch_input_shape=[2, 2])]
        ).set_weights([np.zeros((2, 1))]),
        "shape-mismatch",
        "weights",
    ),
    "a file": (
        lambda: tfe.convert.Converter().convert("model.onnx", [1, 2]),
        "unsupported-type",
        "model",
    ),
    "images of two axes": (
        lambda: tfe.keras.layers.MaxPooling2D().compute_output_shape([1, 2]),
        "shape-mismatch",
        "input_shape",
    ),
}


def _lstm() -> Any:
    return keras.Sequential([keras.Input((3, 2), 4), L.LSTM(2)])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_offered_is_refused_in_words(name: str) -> None:
    do, code, operation = REFUSED[name]
    with raises(UsageError, code, operation=operation):
        do()
