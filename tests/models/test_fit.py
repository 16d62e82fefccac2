"""Private training: as accurate as in plaintext, and only requested values leave the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.tiny import (
    BATCH,
    FEATURES,
    ROWS,
    assert_close,
    draw_data,
    model_of,
    plain_twin,
    private_model,
)
from tests.refusals import raises
from tfe_bench import LocalCluster
from tfe_bench.errors import (
    ConfigError,
    RangeError,
    UsageError,
)
from tfe_bench.models.training import examples as inputs
from tfe_bench.models.training.plaintext import PlaintextTwin
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.models.training.trainable import trainable
from tfe_bench.models.training.training_job import TrainingJob


def test_training_ends_where_plaintext_does_and_tells_only_what_was_asked(
    cluster: LocalCluster,
) -> None:
    x, y = draw_data()
    private = private_model()
    assert isinstance(private.recipe(BATCH), Recipe) and "tiny" in repr(private)
    heard: list[str] = []
    before = [w.copy() for w in private.keras.get_weights()]
    history = cluster.fit(
        private,
        x,
        y,
        epochs=3,
        batch_size=BATCH,
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
    # only requested values leave: two weight arrays, the number of right answers, and 0 for each
    # place and step whose values stay in range
    assert set(history.result.outputs) == {"state0", "state1", "scores", "range"}
    assert history.checked and not history.result.outputs["range"].any()
    twin = plain_twin(private, x, y, 18)
    assert_close(history.model, twin)
    assert not np.allclose(before[0], private.keras.get_weights()[0])
    right = twin.count_correct(x, private.recipe(BATCH).encode_labels(y)) / ROWS
    [*_, last] = history.history["val_accuracy"]
    assert abs(last - right) <= 0.01
    assert abs(cluster.evaluate(private, x, y) - right) <= 0.01


def test_regressions_and_classes_are_learned(cluster: LocalCluster) -> None:
    import keras

    x, y = draw_data()
    real = (x @ np.linspace(-1, 1, FEATURES) + 0.3)[:, None]
    private = private_model(0.05, "mean_squared_error", end=None)
    history = private.fit(
        cluster, x, real, epochs=2, batch_size=BATCH, validation_data=(x, real), steps=9
    )
    assert history.steps == 9 and history.epoch == [0, 1]
    twin = plain_twin(private, x, real, 9)
    assert_close(history.model, twin)
    error = float(((np.asarray(twin.model(x)) - real) ** 2).mean())
    assert abs(history.history["val_mse"][-1] - error) < 2e-3

    private = trainable(model_of(3, None))
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
        batch_size=BATCH,
        seed=7,
        reveal_loss=True,
        progress=lambda fraction, text: heard.append(text),
    )
    assert set(history.history) == {"loss", "learning_rate"} and history.steps == 12
    assert history.epoch == [0, 1] and np.allclose(history.history["learning_rate"], 0.1)
    twin = plain_twin(private, x, classes, 12, seed=7)
    assert_close(history.model, twin)
    np.testing.assert_allclose(history.history["loss"], twin.losses, rtol=0, atol=3e-3)
    assert any("loss" in text for text in heard)
    # the same for two classes
    private = private_model()
    losses = private.fit(cluster, x, y, batch_size=BATCH, reveal_loss=True).history["loss"]
    np.testing.assert_allclose(losses, plain_twin(private, x, y, 6).losses, rtol=0, atol=3e-3)


def test_large_data_is_shared_while_the_first_epoch_runs(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = draw_data()
    monkeypatch.setattr(inputs, "_CHUNK_ELEMENTS", 64 * FEATURES + 1)
    private = private_model()
    recipe = private.recipe(BATCH)
    assert inputs.choose_training_chunk(recipe, ROWS) == 64
    options: dict[str, Any] = {"epochs": 2, "batch_size": BATCH, "checkpoint": "late"}
    options |= {"checkpoint_every": 3, "validation_data": (x, y)}
    begun = private.keras.get_weights()
    # unused inputs do not delay the job
    assert private.fit(cluster, x, y, steps=3, **options).steps == 3
    private.keras.set_weights(begun)
    history = private.fit(cluster, x, y, **options)
    assert (history.first_step, history.steps) == (3, 12)
    plan = TrainingJob(recipe, 2, ROWS, 1, chunk=64)
    batched_rows = np.concatenate([plan.batch_rows(step) for step in range(6)])
    assert len(set(batched_rows.tolist())) == 192 and batched_rows[:64].max() < 64
    rows, labels, _ = inputs.shuffle_examples(1, inputs.TrainingExamples(x, y))
    twin = PlaintextTwin(private.initial_model(), recipe)
    targets = recipe.encode_labels(labels)
    for step in range(12):
        twin.train_step(rows[plan.batch_rows(step)], targets[plan.batch_rows(step)])
    assert_close(history.model, twin)
    # bad rows are refused before anything is sent
    x[150, 0] = np.nan
    with raises(RangeError, "value-out-of-range", operation="features", received=150):
        private.fit(cluster, x, y, batch_size=BATCH)


def test_a_training_goes_on_from_its_checkpoint(cluster: LocalCluster, folder: Path) -> None:
    x, y = draw_data()
    options: dict[str, Any] = {
        "epochs": 2,
        "batch_size": BATCH,
        "validation_data": (x, y),
        "checkpoint": "tiny",
        "checkpoint_every": 2,
    }
    private = private_model(averaged=True)
    begun = private.keras.get_weights()
    first = private.fit(cluster, x, y, steps=7, **options)
    assert first.steps == 7
    files = sorted(folder.glob("party*/tiny.checkpoint*.safetensors"))
    assert len(files) == 6
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700

    private.keras.set_weights(begun)
    history = private.fit(cluster, x, y, **options)
    assert (history.first_step, history.steps, history.epoch) == (7, 12, [0, 1, 1])
    twin = plain_twin(private, x, y, 12)
    assert_close(history.model, twin)
    # A training that is complete is not repeated.
    again = private.fit(cluster, x, y, **options)
    assert (again.first_step, again.steps, again.seconds_per_batch) == (12, 12, None)
    for a, b in zip(again.model.get_weights(), twin.model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
    assert again.history == history.history

    # Another training, other rows, another order.
    for changed in ({"seed": 2}, {"batch_size": 16}, {"validation_data": None}):
        with raises(UsageError, "checkpoint-mismatch"):
            private.fit(cluster, x, y, **{**options, **changed})
    other = private_model(end=None, loss="mean_squared_error")
    with raises(UsageError, "checkpoint-mismatch"):
        other.fit(cluster, x, y, **options)

    # One damaged file: training continues from the earlier common step. Two: the error names the
    # party.
    kept = {file: file.read_bytes() for file in files}
    mine = [file for file in files if file.parent.name == "party2"]
    steps = []
    for file in mine:
        file.write_bytes(b"damaged")
        try:
            steps.append(private.fit(cluster, x, y, **options).first_step)
        except ConfigError as error:
            assert "a damaged file at party 2" in str(error) and "--restart" in str(error)
            steps.append(-1)
        for path, blob in kept.items():
            path.write_bytes(blob)
    assert sorted(steps) == [10, 12]
    for file in mine:
        file.unlink()
    with raises(ConfigError, "checkpoint-incomplete", received="no file at party 2"):
        private.fit(cluster, x, y, **options)
    fresh = private.fit(cluster, x, y, restart=True, steps=2, **options)
    assert (fresh.first_step, fresh.steps) == (0, 2)


def test_a_model_that_is_built_again_is_the_same_training() -> None:
    """Check also a layer that Keras names like its type, which must keep its name."""
    import keras

    def what(*names: str) -> Any:
        dense = [keras.layers.Dense(1, name=name) for name in names]
        model = keras.Sequential([keras.Input((3,)), *dense])
        recipe = Recipe.build(model, "sgd", "mse")
        return TrainingJob(recipe, 1, 200, 1).checkpoint_facts()

    assert what("dense", "sgd") == what("dense_1", "relu") != what("dense")


def test_a_training_that_diverges_says_where_to_go_back(cluster: LocalCluster) -> None:
    x, _ = draw_data()
    options: dict[str, Any] = {
        "epochs": 4,
        "batch_size": BATCH,
        "checkpoint": "wild",
        "checkpoint_every": 4,
    }
    real = 100.0 * (x @ np.ones((FEATURES, 1)))
    private = private_model(0.0001, "mean_squared_error", end=None)
    private.fit(cluster, x, real, steps=4, guard_every=4, **options)
    wild = private_model(3.0, "mean_squared_error", end=None)
    with raises(RangeError, "training-diverged", names=("'wild', step 4",)):
        wild.fit(cluster, x, real, guard_every=2, **options)
    # The checkpoint is complete: training continues from it with a lower rate.
    history = private.fit(cluster, x, real, steps=8, **options)
    assert (history.first_step, history.steps) == (4, 8)


@pytest.mark.parametrize(
    ("scale", "rate", "where"), [(1000.0, 1e-5, "gradients of"), (0.05, 2000.0, "values of layer")]
)
def test_a_training_that_leaves_its_range_says_where(
    cluster: LocalCluster, scale: float, rate: float, where: str, rng: np.random.Generator
) -> None:
    """The first learning rate is too small to change weights of 1024."""
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    private = trainable(model)
    private.compile(keras.optimizers.SGD(rate), "mse")
    x, y = scale * rng.normal(size=(32, 2)).clip(-4, 4), np.ones(32)
    with raises(RangeError, "left-planned-range", names=(f"{where} 'dense",)):
        private.fit(cluster, x, y, batch_size=8, epochs=4, verbose=0)
    assert not any(w.any() for w in model.get_weights())


def test_a_trained_model_stays_at_the_workers(cluster: LocalCluster) -> None:
    x, y = draw_data()
    private = private_model()
    before = private.keras.get_weights()
    history = private.fit(cluster, x, y, epochs=2, batch_size=BATCH, deploy="kept")
    assert history.model is None and set(history.result.outputs) == {"range"}
    for a, b in zip(before, private.keras.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    twin = plain_twin(private, x, y, 12)
    predictions = cluster.predict("kept", x[:8])
    np.testing.assert_allclose(predictions, np.asarray(twin.model(x[:8])), rtol=0, atol=5e-3)
    cluster.client.undeploy("kept")
