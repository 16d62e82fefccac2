"""Private training supports arguments and callbacks as Keras does, and refuses others by name."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.models.tiny import BATCH, ROWS, draw_data, model_of, private_model
from tests.refusals import raises
from tfe_bench import LocalCluster
from tfe_bench.cluster import profiles
from tfe_bench.errors import (
    RangeError,
    TfeBenchError,
    UsageError,
)
from tfe_bench.models.datasets.sources import DatasetRef
from tfe_bench.models.training import progress
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.stopping import EarlyStoppingRule
from tfe_bench.models.training.train_options import TrainOptions
from tfe_bench.models.training.trainable import Trainable, trainable
from tfe_bench.models.training.training_job import TrainingJob

BOARD = importlib.util.find_spec("tensorboard")


def _fit_both(rows: int = 192, **request: Any) -> tuple[Any, Any, Trainable, Any, Any]:
    """Return model and history of Keras' own fit, and the private counterpart."""
    import keras

    x, y = draw_data()
    private = private_model()
    model = private.initial_model()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(x[:rows], y[:rows], batch_size=BATCH, shuffle=False, verbose=0, **request)
    return model, history, private, x[:rows], y[:rows]


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ({"class_weight": {0: 0.25, 1: 3}}, 192),
        ({"sample_weight": np.arange(192) % 5 / 2.0}, 192),
        ({"validation_split": 0.4, "epochs": 2}, 160),
        ({"epochs": 3, "initial_epoch": 1, "class_weight": {1: 2.0}}, 192),
        ({"sample_weight": np.linspace(0, 2, 200)[:160], "validation_split": 0.2}, 160),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_arguments_mean_what_they_mean_in_keras(
    cluster: LocalCluster, asked: dict[str, Any], rows: int
) -> None:
    model, reported, private, x, y = _fit_both(rows, **asked)
    history = private.fit(cluster, x, y, shuffle=False, verbose=0, **asked)
    for ours, theirs in zip(history.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3)
    assert history.epoch == reported.epoch
    assert set(history.history) == {
        "learning_rate",
        *(["val_accuracy"] if "validation_split" in asked else []),
    }
    if "validation_split" in asked:
        ours, theirs = history.history["val_accuracy"], reported.history["val_accuracy"]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=0.02)


def test_epochs_that_go_on_take_the_rows_that_one_fit_takes(cluster: LocalCluster) -> None:
    import keras

    x, y = draw_data()
    weights = []
    for parts in (((0, 3),), ((0, 1), (1, 3))):
        private = trainable(model_of())
        private.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
        for first, last in parts:
            history = private.fit(cluster, x, y, initial_epoch=first, epochs=last, verbose=0)
            assert history.epoch == list(range(first, last))
        weights.append(private.keras.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)


def test_callbacks_do_what_they_do_in_keras(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import csv

    import keras

    class RecordingCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """A callback of a user."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.seen: list[Any] = [self.model.get_weights()[0].copy()]
            self.told: list[Any] = []

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seen.append(self.model.get_weights()[0].copy())
            self.told.append((epoch, dict(logs)))

    def make_callbacks(folder: Path) -> list[Any]:
        folder.mkdir()
        c = keras.callbacks
        return [
            c.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate),
            c.EarlyStopping("loss", min_delta=0.06, patience=1, restore_best_weights=True),
            c.ModelCheckpoint(str(folder / "e{epoch}.keras")),
            c.ModelCheckpoint(str(folder / "best.keras"), monitor="loss", save_best_only=True),
            c.CSVLogger(str(folder / "log.csv")),
            *([c.TensorBoard(str(folder / "board"))] if BOARD else []),
            RecordingCallback(),
        ]

    theirs = make_callbacks(tmp_path / "keras")
    model, reported, private, x, y = _fit_both(epochs=8, callbacks=theirs)
    ours = make_callbacks(tmp_path / "private")
    history = private.fit(
        cluster, x, y, epochs=8, shuffle=False, reveal_loss=True, callbacks=ours, verbose=2
    )
    print(reported.history)
    assert 1 < theirs[1].stopped_epoch < 7
    assert (ours[1].stopped_epoch, ours[1].best_epoch) == (
        theirs[1].stopped_epoch,
        theirs[1].best_epoch,
    )
    # the workers ended the training, not only the callback
    assert history.steps == 6 * len(reported.epoch) and history.epoch == reported.epoch
    np.testing.assert_allclose(history.history["loss"], reported.history["loss"], rtol=0, atol=3e-3)
    for a, b in zip(history.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
    for a, b in zip(ours[-1].seen, theirs[-1].seen, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
    assert [e for e, _ in ours[-1].told] == reported.epoch
    assert set(ours[-1].told[0][1]) == {"loss", "learning_rate"}
    files = [sorted(p.name for p in (tmp_path / n).iterdir()) for n in ("private", "keras")]
    assert files[0] == files[1] and "e1.keras" in files[0]
    for name in ("e2.keras", "best.keras"):
        saved = [
            keras.models.load_model(tmp_path / n / name).get_weights() for n in ("private", "keras")
        ]
        for a, b in zip(*saved, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
    with (tmp_path / "private" / "log.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["loss"]) for line in lines] == history.history["loss"]
    rates = [0.1, *(0.1 * 0.5**i for i in range(1, len(lines)))]
    np.testing.assert_allclose([float(line["learning_rate"]) for line in lines], rates, rtol=1e-6)
    assert bool(BOARD) == bool(list((tmp_path / "private").rglob("events.*")))
    assert "Epoch 2/8 - loss" in capsys.readouterr().out
    assert not hasattr(history.model, "optimizer")

    # a callback that fails after the training leaves the trained weights
    def fails(epoch: int, logs: Any) -> None:
        raise OSError("the disk is full")

    private = private_model()
    with pytest.raises(OSError, match="disk is full"):
        broken = keras.callbacks.LambdaCallback(on_epoch_end=fails)
        private.fit(cluster, x, y, epochs=2, shuffle=False, callbacks=broken, verbose=0)
    for a, b in zip(private.keras.get_weights(), _fit_both(epochs=2)[0].get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)

    # a callback that stops a training leaves the weights of that epoch
    class StopTraining(keras.callbacks.Callback):  # type: ignore[misc]
        """A callback that stops the training."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    model, reported, private, x, y = _fit_both(epochs=4, callbacks=[StopTraining()])
    history = private.fit(cluster, x, y, epochs=4, shuffle=False, callbacks=StopTraining())
    lone = private_model()
    enough = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(lone.keras, "stop_training", epoch == 1)
    )
    lone.fit(cluster, x, y, epochs=4, shuffle=False, callbacks=enough)
    for a, b in zip(lone.keras.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
    assert history.epoch == reported.epoch == [0, 1] and history.steps == 12
    for a, b in zip(history.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)


def test_predictions_in_the_open_are_those_of_the_weights_that_are_here(
    cluster: LocalCluster,
) -> None:
    x, y = draw_data()
    private = private_model()
    np.testing.assert_array_equal(private.predict(x), private.keras.predict(x, verbose=0))
    private.fit(cluster, x, y, deploy="stayed", verbose=0)
    with raises(UsageError, "weights-at-workers", operation="stayed"):
        private.predict(x)
    cluster.client.undeploy("stayed")
    private.fit(cluster, x, y, verbose=0)
    np.testing.assert_array_equal(private.predict(x), private.keras.predict(x, verbose=0))
    with raises(UsageError, "shape-mismatch"):
        private.predict(x[:, :2])
    with raises(UsageError, "wrong-type", received="Trainable"):
        cluster.predict(private, x)  # type: ignore[arg-type]


def test_arguments_that_are_not_taken_say_what_to_use() -> None:
    nowhere: Any = SimpleNamespace(profile=profiles.get_profile("local"))
    import keras

    c = keras.callbacks
    x, y = draw_data()

    class Batches(keras.callbacks.Callback):  # type: ignore[misc]
        """A callback that requires private values."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Never called."""

    for code, operation, options in (
        ("unknown-option", "fit", {"epoch": 3}),
        ("unknown-option", "fit", {"callback": []}),
        ("unsupported-argument", "fit", {"steps_per_epoch": 5}),
        ("unsupported-argument", "fit", {"validation_freq": 2}),
        ("unknown-name", "verbose", {"verbose": 7}),
        ("unknown-name", "verbose", {"verbose": True}),
        ("number-out-of-range", "validation_split", {"validation_split": 1.5}),
        ("too-few-rows", "validation_split", {"validation_split": 0.999}),
        ("wrong-type", "validation_data", {"validation_data": (x, y, y)}),
        ("number-out-of-range", "initial_epoch", {"initial_epoch": 1}),
        ("number-out-of-range", "initial_epoch", {"initial_epoch": -1, "epochs": 3}),
        ("wrong-type", "shuffle", {"shuffle": "batch"}),
        ("unknown-class", "class_weight", {"class_weight": {2: 1.0}}),
        ("unknown-class", "class_weight", {"class_weight": [1.0, 2.0]}),
        ("shape-mismatch", "sample_weight", {"sample_weight": np.ones(7)}),
        (
            "conflicting-options",
            "sample_weight",
            {"sample_weight": np.ones(ROWS), "reveal_loss": True},
        ),
        ("wrong-type", "callbacks", {"callbacks": [print]}),
        ("value-not-revealed", "EarlyStopping", {"callbacks": c.EarlyStopping()}),
        ("value-not-revealed", "EarlyStopping", {"callbacks": c.EarlyStopping("loss")}),
        (
            "value-not-revealed",
            "ModelCheckpoint",
            {"callbacks": c.ModelCheckpoint("a.keras", save_best_only=True)},
        ),
        (
            "unsupported-argument",
            "ModelCheckpoint",
            {"callbacks": c.ModelCheckpoint("a.keras", save_freq=5)},
        ),
        ("unsupported-argument", "TensorBoard", {"callbacks": c.TensorBoard(update_freq=5)}),
        ("unsupported-callback", "ReduceLROnPlateau", {"callbacks": c.ReduceLROnPlateau()}),
        ("unsupported-callback", "TerminateOnNaN", {"callbacks": c.TerminateOnNaN()}),
        ("unsupported-callback", "BackupAndRestore", {"callbacks": c.BackupAndRestore("b")}),
        ("unsupported-callback", "Batches", {"callbacks": Batches()}),
        (
            "unsupported-callback",
            "LambdaCallback",
            {"callbacks": c.LambdaCallback(on_train_batch_end=lambda b, logs: None)},
        ),
        (
            "conflicting-options",
            "callbacks",
            {"callbacks": c.CSVLogger("a.csv"), "checkpoint": "a"},
        ),
        (
            "conflicting-options",
            "deploy",
            {"callbacks": c.ModelCheckpoint("a.keras"), "deploy": "a"},
        ),
        (
            "number-out-of-range",
            "learning_rate",
            {"callbacks": c.LearningRateScheduler(lambda e: "x")},
        ),
        (
            "duplicate-name",
            "LearningRateScheduler",
            {"callbacks": [c.LearningRateScheduler(float)] * 2},
        ),
        ("conflicting-options", "rows_of", {"rows_of": ["a"], "class_weight": {0: 1.0}}),
    ):
        private = private_model()
        rows = (None, None) if "rows_of" in options else (x, y)
        with raises(UsageError, code, operation=operation):  # before the cluster is used
            private.fit(nowhere, *rows, **options)
    for weights in ([np.nan] * ROWS, [-1.0] * ROWS, [257.0] * ROWS):
        with raises(RangeError, "value-out-of-range", expected=256):
            private_model().fit(nowhere, x, y, sample_weight=weights)
    decayed = trainable(model_of())
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    decayed.compile(keras.optimizers.SGD(rate), "binary_crossentropy", metrics=["accuracy"])
    with raises(
        UsageError, "conflicting-options", operation="LearningRateScheduler", received="exponential"
    ):
        kept = {"callbacks": c.LearningRateScheduler(lambda e, r: r), "validation_split": 0.5}
        decayed.fit(nowhere, x, y, **kept)
    with raises(UsageError, "missing-argument", operation="metrics"):
        decayed.fit(nowhere, x, y)
    for code, options in (
        ("unsupported-metric", {"metrics": ["AUC"]}),
        ("unsupported-argument", {"loss_weights": [1.0]}),
        ("unknown-option", {"metric": ["accuracy"]}),
    ):
        with raises(UsageError, code):
            decayed.compile("sgd", "binary_crossentropy", **options)
    source = DatasetRef(("a",), None, {"a": "0" * 32})
    layers = [keras.Input((2,)), keras.layers.Rescaling(0.5), keras.layers.Dense(1)]
    scaled = Recipe.build(keras.Sequential(layers), "sgd", "mse")
    with raises(UsageError, "unsupported-layer", operation="source"):
        TrainingJob(scaled, 1, 200, 1, source=source)
    wide = keras.Sequential([keras.Input((2,)), keras.layers.Dense(100)])
    with raises(UsageError, "too-large", operation="snapshots", received=18_000_000):
        TrainingJob(Recipe.build(wide, "sgd", "mse"), 60_000, 200, 1, snapshots=True)
    assert private_model().recipe().batch == 32


def test_a_rule_ends_a_training_where_keras_does(rng: np.random.Generator) -> None:
    import keras

    for _ in range(200):
        losses = [float(v) for v in np.round(rng.normal(1, 0.3, 12), 2)]
        options: dict[str, Any] = {
            "patience": int(rng.integers(0, 4)),
            "min_delta": float(rng.choice([0.0, 0.1, 0.5])),
            "baseline": [None, 0.9][int(rng.integers(2))],
            "start_from_epoch": int(rng.integers(0, 3)),
        }
        mode = ["min", "max", "auto"][int(rng.integers(3))]
        theirs = keras.callbacks.EarlyStopping("loss", mode=mode, **options)
        model = _Stub()
        theirs.set_model(model)
        theirs.on_train_begin()
        rule = EarlyStoppingRule.from_header(
            EarlyStoppingRule(**options, higher=mode == "max").to_header()
        )
        for epoch, loss in enumerate(losses):
            theirs.on_epoch_end(epoch, {"loss": loss})
            assert rule.should_stop(epoch, loss) == model.stop_training, (options, mode, losses)
            if model.stop_training:
                break
    for bad in ({"patience": -1}, {"min_delta": float("nan")}, {"higher": 1}, {"baseline": "x"}):
        with pytest.raises(UsageError):
            EarlyStoppingRule(**bad)
    with pytest.raises(UsageError):
        EarlyStoppingRule.from_header({"patience": 1})


class _Stub:
    """The part of a model that EarlyStopping uses."""

    stop_training = False


def test_progress_is_shown_where_its_user_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    from rich.console import Console

    reports: list[Any] = []
    handle = types.SimpleNamespace(update=lambda data, raw: reports.append(data["text/plain"]))
    display = types.ModuleType("IPython.display")
    display.display = lambda *a, **k: handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(Console, "is_jupyter", True, raising=False)
    monkeypatch.setattr(Console, "__init__", lambda self, **k: None)
    with progress.show_training_progress("auto") as heard:
        assert heard is not None
        heard(0.5, "epoch 1 of 2")
    assert reports == [" 50%  epoch 1 of 2"]
    with progress.show_training_progress(0) as heard:
        assert heard is None


def test_what_does_not_fit_is_refused_without_a_value(cluster: LocalCluster) -> None:
    x, y = draw_data()
    with raises(UsageError, "not-compiled"):
        trainable(model_of()).fit(cluster, x, y)
    private = private_model()
    wrong = y.copy()
    wrong[7] = 3
    nan = x.copy()
    nan[9, 2] = np.nan
    large = x.copy()
    large[3, 1] = 31337.0
    for error, code, fact, arguments in (
        (UsageError, "row-count-mismatch", "199", (x, y[:-1], {})),
        (RangeError, "invalid-label", "row 7", (x, wrong, {})),
        (RangeError, "value-out-of-range", "row 9", (nan, y, {})),
        (RangeError, "value-out-of-range", "row 3", (large, y, {})),
        (UsageError, "too-few-rows", "256", (x, y, {"batch_size": 256})),
        (UsageError, "number-out-of-range", "epochs", (x, y, {"epochs": -1})),
        (UsageError, "invalid-name", "checkpoint", (x, y, {"checkpoint": "../x"})),
        (UsageError, "missing-argument", "labels_of", (None, None, {"columns_of": ["a"]})),
        (UsageError, "conflicting-options", "x and y", (x, y, {"rows_of": ["a"]})),
        (UsageError, "missing-argument", "x and y", (x, None, {})),
        (UsageError, "dataset-not-found", "'a'", (None, None, {"rows_of": ["a"]})),
        (UsageError, "unknown-name", "profile", (x, y, {"profile": "moon"})),
    ):
        features, labels, options = arguments
        with raises(error, code, names=(fact,)) as refused:
            private.fit(cluster, features, labels, **options)
        assert "31337" not in str(refused.value)
    recipe = private.recipe(BATCH)
    header = {"recipe": recipe.to_header(), "epochs": 1, "rows": 64, "seed": 1}
    bad: tuple[dict[str, Any], ...] = (
        {"rows": 1},
        {"more": 1},
        {"recipe": {}},
        {"guard": -1},
        {"profile": 5},
        {"chunk": 31},
        {"rows": 10**8, "chunk": 32},
        {"deploy": {"name": "a"}, "epochs": 0},
        {"saving": {"name": "a"}},
        {"source": {"features": []}},
        {"deploy": {"name": "a"}},
        {},
    )
    for changed in bad:
        with pytest.raises(TfeBenchError):
            cluster.run("train", {**header, **changed}, {})


def test_options_of_a_training_have_the_defaults_of_fit() -> None:
    arguments = inspect.signature(Trainable.fit).parameters
    declared = {f.name: f.default for f in dataclasses.fields(TrainOptions)}
    del declared["trace"], declared["profile"]  # of the command alone; the cluster's
    assert declared == {name: arguments[name].default for name in declared}
