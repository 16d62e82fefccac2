"""Private training: as right as in plaintext, and nothing is told that was not asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.launch import LocalCluster
from tfe_bench.errors import (
    ConfigError,
    RangeError,
    TfeBenchError,
    UsageError,
)
from tfe_bench.models import rows as inputs
from tfe_bench.models.order import Order
from tfe_bench.models.trainable import Trainable, trainable
from tfe_bench.models.training import order
from tfe_bench.models.training.plain import Twin
from tfe_bench.models.training.recipe import Recipe

_ROWS, _FEATURES, _BATCH = 200, 5, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the workers keep their shares."""
    return tmp_path_factory.mktemp("kept") / "models"


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    """Three workers that keep checkpoints."""
    with LocalCluster(models=folder) as local:
        yield local


def _data(seed: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (_ROWS, _FEATURES))
    y = (x @ np.linspace(-1, 1, _FEATURES) + 0.1 * rng.normal(0, 1, _ROWS) > 0).astype(np.int64)
    return x, y


def _model(outputs: int = 1, end: str | None = "sigmoid", seed: int = 3) -> Any:
    import keras

    start = keras.initializers.GlorotUniform(seed=seed)
    return keras.Sequential(
        [
            keras.Input((_FEATURES,)),
            keras.layers.Dense(outputs, activation=end, kernel_initializer=start),
        ],
        name="tiny",
    )


def _private(rate: float = 0.1, loss: Any = "binary_crossentropy", **options: Any) -> Trainable:
    import keras

    private = trainable(_model(**options))
    private.compile(keras.optimizers.SGD(rate, momentum=0.9), loss)
    return private


def _twin(private: Trainable, x: Any, y: Any, steps: int, seed: int = 1) -> Any:
    """The same training in plaintext, with the mean loss of each epoch."""
    recipe = private.recipe(_BATCH)
    twin: Any = Twin(private.initial_model(), recipe)
    targets = recipe.targets(y)
    per = len(x) // _BATCH
    losses: list[list[float]] = []
    for step in range(steps):
        if step % per == 0:
            losses.append([])
        rows = order.batches(seed, step // per, len(x), _BATCH)[step % per]
        losses[-1].append(twin.step(x[rows], targets[rows]))
    twin.losses = [float(np.mean(each)) for each in losses]
    return twin


def _close(model: Any, twin: Any) -> None:
    for ours, theirs in zip(model.get_weights(), twin.model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3)


def test_training_ends_where_plaintext_does_and_tells_only_what_was_asked(
    cluster: LocalCluster,
) -> None:
    x, y = _data()
    private = _private()
    assert isinstance(private.recipe(_BATCH), Recipe) and "tiny" in repr(private)
    heard: list[str] = []
    before = [w.copy() for w in private.keras.get_weights()]
    history = cluster.fit(
        private,
        x,
        y,
        epochs=3,
        batch_size=_BATCH,
        validation_data=(x, y),
        progress=lambda fraction, text: heard.append(text),
    )
    assert (history.first_step, history.steps, history.epoch) == (0, 18, [0, 1, 2])
    assert history.seconds_per_batch is not None and history.seconds_per_batch > 0
    assert history.model is private.keras
    assert any("step" in text and "per batch" in text for text in heard)
    assert not any("loss" in text for text in heard) and "loss" not in history.history
    for m in history.result.measured:
        assert m["losses"] == [] and len(m["seconds"]) == 17
    # only what was asked for leaves: two arrays of weights, and the number of right answers
    assert set(history.result.outputs) == {"state0", "state1", "scores"}
    twin = _twin(private, x, y, 18)
    _close(history.model, twin)
    assert not np.allclose(before[0], private.keras.get_weights()[0])
    right = twin.correct(x, private.recipe(_BATCH).targets(y)) / _ROWS
    [*_, last] = history.history["val_accuracy"]
    assert abs(last - right) <= 0.01
    assert abs(cluster.evaluate(private, x, y) - right) <= 0.01


def test_regressions_and_classes_are_learnt(cluster: LocalCluster) -> None:
    import keras

    x, y = _data()
    real = (x @ np.linspace(-1, 1, _FEATURES) + 0.3)[:, None]
    private = _private(0.05, "mean_squared_error", end=None)
    history = private.fit(
        cluster, x, real, epochs=2, batch_size=_BATCH, validation_data=(x, real), steps=9
    )
    assert history.steps == 9 and history.epoch == [0, 1]
    twin = _twin(private, x, real, 9)
    _close(history.model, twin)
    error = float(((np.asarray(twin.model(x)) - real) ** 2).mean())
    assert abs(history.history["val_mse"][-1] - error) < 2e-3

    private = trainable(_model(3, None))
    private.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    classes = y + (x[:, 0] > 1)
    heard: list[str] = []
    history = private.fit(
        cluster,
        x,
        classes,
        epochs=2,
        batch_size=_BATCH,
        seed=7,
        reveal_loss=True,
        progress=lambda fraction, text: heard.append(text),
    )
    assert set(history.history) == {"loss"} and history.steps == 12
    twin = _twin(private, x, classes, 12, seed=7)
    _close(history.model, twin)
    np.testing.assert_allclose(history.history["loss"], twin.losses, rtol=0, atol=3e-3)
    assert any("loss" in text for text in heard)
    # the same for two classes
    private = _private()
    told = private.fit(cluster, x, y, batch_size=_BATCH, reveal_loss=True).history["loss"]
    np.testing.assert_allclose(told, _twin(private, x, y, 6).losses, rtol=0, atol=3e-3)


def test_large_data_is_shared_while_the_first_epoch_runs(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = _data()
    monkeypatch.setattr(inputs, "_CHUNK_ELEMENTS", 64 * _FEATURES + 1)
    private = _private()
    recipe = private.recipe(_BATCH)
    assert inputs.chunk_of(recipe, _ROWS) == 64
    asked: dict[str, Any] = {"epochs": 2, "batch_size": _BATCH, "checkpoint": "late"}
    asked |= {"checkpoint_every": 3, "validation_data": (x, y)}
    begun = private.keras.get_weights()
    # what the program does not ask for does not keep the job
    assert private.fit(cluster, x, y, steps=3, **asked).steps == 3
    private.keras.set_weights(begun)
    history = private.fit(cluster, x, y, **asked)
    assert (history.first_step, history.steps) == (3, 12)
    plan = Order(recipe, 2, _ROWS, 1, "0" * 32, chunk=64)
    seen = np.concatenate([plan.batch_rows(step) for step in range(6)])
    assert len(set(seen.tolist())) == 192 and seen[:64].max() < 64
    rows, labels = inputs.shuffled(1, x, y)
    twin = Twin(private.initial_model(), recipe)
    targets = recipe.targets(labels)
    for step in range(12):
        twin.step(rows[plan.batch_rows(step)], targets[plan.batch_rows(step)])
    _close(history.model, twin)
    # bad rows are refused before anything leaves
    x[150, 0] = np.nan
    with pytest.raises(RangeError, match="row 150 "):
        private.fit(cluster, x, y, batch_size=_BATCH)


def test_a_training_goes_on_from_its_checkpoint(cluster: LocalCluster, folder: Path) -> None:
    x, y = _data()
    asked: dict[str, Any] = {
        "epochs": 2,
        "batch_size": _BATCH,
        "validation_data": (x, y),
        "checkpoint": "tiny",
        "checkpoint_every": 2,
    }
    private = _private()
    begun = private.keras.get_weights()
    first = private.fit(cluster, x, y, steps=7, **asked)
    assert first.steps == 7
    files = sorted(folder.glob("party*/tiny.checkpoint*.safetensors"))
    assert len(files) == 6
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700

    private.keras.set_weights(begun)
    history = private.fit(cluster, x, y, **asked)
    assert (history.first_step, history.steps, history.epoch) == (7, 12, [0, 1, 1])
    twin = _twin(private, x, y, 12)
    _close(history.model, twin)
    # A training that is complete is not repeated.
    again = private.fit(cluster, x, y, **asked)
    assert (again.first_step, again.steps, again.seconds_per_batch) == (12, 12, None)
    for a, b in zip(again.model.get_weights(), twin.model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
    assert again.history == history.history

    # Another training, other rows, another order.
    for changed in ({"seed": 2}, {"batch_size": 16}, {"validation_data": None}):
        with pytest.raises(UsageError, match="of another training"):
            private.fit(cluster, x, y, **{**asked, **changed})
    other = _private(end=None, loss="mean_squared_error")
    with pytest.raises(UsageError, match="of another training"):
        other.fit(cluster, x, y, **asked)

    # One damaged file: the common step before it is gone on from.  Both: it is said whose.
    kept = {file: file.read_bytes() for file in files}
    mine = [file for file in files if file.parent.name == "party2"]
    steps = []
    for file in mine:
        file.write_bytes(b"damaged")
        try:
            steps.append(private.fit(cluster, x, y, **asked).first_step)
        except ConfigError as error:
            assert "a damaged file at party 2" in str(error) and "--restart" in str(error)
            steps.append(-1)
        for path, blob in kept.items():
            path.write_bytes(blob)
    assert sorted(steps) == [10, 12]
    for file in mine:
        file.unlink()
    with pytest.raises(ConfigError, match=r"of step 12 is not whole.*no file at party 2"):
        private.fit(cluster, x, y, **asked)
    fresh = private.fit(cluster, x, y, restart=True, steps=2, **asked)
    assert (fresh.first_step, fresh.steps) == (0, 2)


def test_a_training_that_diverges_says_where_to_go_back(cluster: LocalCluster) -> None:
    x, _ = _data()
    asked: dict[str, Any] = {
        "epochs": 4,
        "batch_size": _BATCH,
        "checkpoint": "wild",
        "checkpoint_every": 4,
    }
    real = 100.0 * (x @ np.ones((_FEATURES, 1)))
    private = _private(0.0001, "mean_squared_error", end=None)
    private.fit(cluster, x, real, steps=4, guard_every=4, **asked)
    wild = _private(3.0, "mean_squared_error", end=None)
    with pytest.raises(RangeError, match=r"diverges: at step \d+ .*checkpoint is 'wild', step 4"):
        wild.fit(cluster, x, real, guard_every=2, **asked)
    # The checkpoint is whole: a lower rate goes on from it.
    history = private.fit(cluster, x, real, steps=8, **asked)
    assert (history.first_step, history.steps) == (4, 8)


def test_a_trained_model_stays_at_the_workers(cluster: LocalCluster) -> None:
    x, y = _data()
    private = _private()
    before = private.keras.get_weights()
    history = private.fit(cluster, x, y, epochs=2, batch_size=_BATCH, deploy="kept")
    assert history.model is None and not history.result.outputs
    for a, b in zip(before, private.keras.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    twin = _twin(private, x, y, 12)
    found = cluster.predict("kept", x[:8])
    np.testing.assert_allclose(found, np.asarray(twin.model(x[:8])), rtol=0, atol=5e-3)
    cluster.client.undeploy("kept")


def test_what_does_not_fit_is_refused_without_a_value(cluster: LocalCluster) -> None:
    x, y = _data()
    with pytest.raises(UsageError, match="Compile the model first"):
        trainable(_model()).fit(cluster, x, y)
    private = _private()
    wrong = y.copy()
    wrong[7] = 3
    nan = x.copy()
    nan[9, 2] = np.nan
    large = x.copy()
    large[3, 1] = 31337.0
    for error, word, given in (
        (UsageError, "200 rows of features and 199 labels", (x, y[:-1], {})),
        (RangeError, "row 7", (x, wrong, {})),
        (RangeError, "row 9", (nan, y, {})),
        (RangeError, "row 3", (large, y, {})),
        (UsageError, "fewer rows than one batch", (x, y, {"batch_size": 256})),
        (UsageError, "epochs", (x, y, {"epochs": -1})),
        (UsageError, "1 to 63", (x, y, {"checkpoint": "../x"})),
        (UsageError, "columns_of goes with labels_of", (None, None, {"columns_of": ["a"]})),
        (UsageError, "fit takes x and y", (x, y, {"rows_of": ["a"]})),
        (UsageError, "fit takes x and y", (x, None, {})),
        (UsageError, "no data set 'a'", (None, None, {"rows_of": ["a"]})),
        (UsageError, "no profile|profile", (x, y, {"profile": "moon"})),
    ):
        features, labels, options = given
        with pytest.raises(error, match=word) as refused:
            private.fit(cluster, features, labels, **options)
        assert "31337" not in str(refused.value)
    recipe = private.recipe(_BATCH)
    header = {"recipe": recipe.header(), "epochs": 1, "rows": 64, "seed": 1, "run": "0" * 32}
    bad: tuple[dict[str, Any], ...] = (
        {"run": "x"},
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
