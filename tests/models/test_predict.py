"""Private predictions of Keras models on three real workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.refusals import Matching, raises
from tfe_bench.cluster.jobs import InputSpec
from tfe_bench.errors import DataError, RangeError, TfeBenchError, UsageError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.models.inference.agreement import compare_outputs
from tfe_bench.models.inference.programs import predict
from tfe_bench.protocols.session.sharing import Shared

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers


def two_output_model() -> Any:
    x, side = keras.Input((8, 8, 1), name="image"), keras.Input((2,), name="side")
    y = L.Rescaling(1 / 255)(x)
    y = L.Conv2D(3, 3, activation="relu")(y)
    y = L.MaxPooling2D(2)(y)
    z = L.Dense(6)(L.Concatenate()([L.Flatten()(y), side]))
    return keras.Model([x, side], [z, L.Softmax()(z)])


def cancelling_model(activation: str | None) -> Any:
    """Build sums that are small for samples like (v, v), for every v."""
    model = keras.Sequential([L.Input((2,)), L.Dense(2, activation=activation), L.Dense(1)])
    model.set_weights([np.array([[1, -1], [-1, 1]]), np.zeros(2), np.ones((2, 1)), np.zeros(1)])
    return model


def _outputs_out_of_range_are_withheld(cluster: tfe.LocalCluster) -> None:
    samples = np.array([[1, 1], [0.5, 0.5625]])
    # within 4 times the samples, so that the client accepts them
    images = np.array([[1, 0.875], [4, -4], [0.5, 0.5], [-4, 4], [2, 1.9375]])
    for activation in ("relu", None):
        private = tfe.convert(cancelling_model(activation), samples=samples)
        with raises(
            RangeError, "left-planned-range", received=2, names=("2 of 5", "check_range")
        ) as raised:
            cluster.predict(private, images, batch=2)
        others = np.abs(raised.value.outputs - private.plain(images))[:, 0]
        assert np.isnan(others).tolist() == [False, True, False, True, False]
        assert np.nanmax(others) < 1e-3
        good = cluster.predict(private, images[::2])
        assert np.abs(good - private.plain(images[::2])).max() < 1e-3
        # without range checks, a wrong answer without an error
        unchecked = cluster.predict(private, images, check_range=False)
        if activation:
            assert np.abs(unchecked - private.plain(images))[[1, 3]].min() > 1
        inputs = {**private.shared_weights(), **private.shared_inputs(images)}
        parameters = private.parameters(batch=3, check_range=True)
        result = cluster.run("predict", parameters, inputs)
        left = private.left_range(result)
        assert left is not None and left.tolist() == [False, True, False, True, False]
        close = np.abs(private.decode(result, withhold=False) - private.plain(images)) < 1e-3
        assert close[~left].all()
        again = cluster.run("predict", private.parameters(batch=3), inputs)
        assert private.left_range(again) is None and set(again.outputs) == {"output0"}


def test_predictions_on_a_cluster_agree_with_keras(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    model = two_output_model()
    model.save(tmp_path / "net.keras")
    images = rng.integers(0, 256, (5, 8, 8, 1))
    both = [images, rng.normal(size=(5, 2))]
    private = tfe.convert(tmp_path / "net.keras", samples=both)
    other = tfe.convert(model, fractional_bits=12)
    with tfe.LocalCluster() as cluster:
        # 2 + 2 + 1 samples
        logits, classes = cluster.predict(private, both, batch=2)
        coarse, _ = cluster.predict(other, both)  # with its own precision
        with raises(UsageError, "shape-mismatch"):
            cluster.predict(private, [images[0], both[1]])
        with raises(TfeBenchError, "invalid-plan"):
            cluster.run("predict", {"plan": {}}, {})
        (again, _) = cluster.predict(private, {"image": images[:1], "side": both[1][:1]})
        _outputs_out_of_range_are_withheld(cluster)
    expected = model.predict(both, verbose=0)
    for outputs, near in ((logits, 1e-3), (coarse, 1.6e-2)):
        agreement = compare_outputs(expected[0], outputs)
        assert agreement.relative_error < near and agreement.top1 == agreement.top5 == 1.0
    assert np.abs(classes - expected[1]).max() < 1e-3
    assert np.abs(again - expected[0][:1]).max() < 1e-3


def test_requests_that_do_not_fit_the_plan_are_refused() -> None:
    private = tfe.convert(two_output_model())
    parameters = private.parameters("wan", 4)
    shared = private.shared_weights().items()
    owned = [InputSpec(name, value.shape, value.fractional_bits) for name, value in shared]
    image, side = InputSpec("input0", (3, 8, 8, 1), 16), InputSpec("input1", (3, 2), 16)
    good = [*owned, image, side]
    predict.PROGRAM.admit(parameters, good)
    other = InputSpec("weights0", (*owned[0].shape, 1), owned[0].fractional_bits)
    coarse = InputSpec("weights0", owned[0].shape, 3)
    for changed, inputs, code, operation in (
        ({"batch": 0}, good, "number-out-of-range", "batch"),
        ({"batches": 3}, good, "unknown-option", "predict"),
        ({"profile": "moon"}, good, "unknown-name", "profile"),
        ({"repeat": 0}, good, "number-out-of-range", "repeat"),
        ({}, good[:-1], "unexpected-inputs", "predict"),
        ({}, good[::-1], "unexpected-inputs", "predict"),
        ({}, [*good, side], "duplicate-name", "inputs"),
        ({}, [*owned, image, InputSpec("input1", (2, 2), 16)], "batch-mismatch", "predict"),
        ({}, [other, *good[1:]], "weights-mismatch", "/bias"),
        ({}, [coarse, *good[1:]], "weights-mismatch", "/bias"),
        ({}, [*owned, InputSpec("input0", (3, 1, 8, 8), 16), side], "shape-mismatch", "image"),
        ({}, [*owned, InputSpec("input0", (8, 8, 1), 16), side], "shape-mismatch", "image"),
        ({}, [*owned, InputSpec("input0", (3, 8, 8, 1), 20), side], "scale-mismatch", "image"),
    ):
        with raises(UsageError, code, operation=Matching(operation)):
            predict.PROGRAM.admit({**parameters, **changed}, inputs)
    plan = parameters["plan"]
    for layer, numbers in (
        ("conv2d", [16, 15, 31]),
        ("conv2d", [16, 17, 0]),
        ("max_pooling2d", [16, 0, 1]),
        ("max_pooling2d", [12, 0, 31]),
        ("softmax", [16, 0, 0]),
        ("softmax", [12, 0, 31]),
        ("dense", [30, 31, 0]),
    ):
        name = next(n for n in plan["numbers"] if n.startswith(layer))
        unfit = {**plan, "numbers": {**plan["numbers"], name: numbers}}
        with pytest.raises(UsageError):
            predict.PROGRAM.admit({**parameters, "plan": unfit}, good)
    with pytest.raises(DataError):
        predict.PROGRAM.admit({**parameters, "plan": None}, good)


def test_models_that_cannot_be_checked_are_predicted_with_unless_asked_for() -> None:
    """Multiply two sums, correct up to 2^15.6 for a bound of 2^14: the product reaches 2^63."""
    x = keras.Input((2,))
    y, z = L.Dense(2)(x), L.Dense(2)(x)
    private = tfe.convert(keras.Model(x, L.Multiply()([y, z])))
    assert private.asked()["check_range"] is False
    with raises(UsageError, "range-check-impossible"):
        private.asked(check_range=True)
    parameters = {**private.parameters(), "check_range": True}
    shared = {**private.shared_weights(), **private.shared_inputs(np.zeros((1, 2)))}
    inputs = [InputSpec(n, v.shape, v.fractional_bits) for n, v in shared.items()]
    with raises(UsageError, "range-check-impossible"):
        predict.PROGRAM.admit(parameters, inputs)
    predict.PROGRAM.admit({**parameters, "check_range": False}, inputs)
    with raises(UsageError, "wrong-type"):
        predict.PROGRAM.admit({**parameters, "check_range": 1}, inputs)


def test_agreement_counts_the_largest_outputs() -> None:
    plain = np.array([[0.0, 1, 2, 3, 4, 5, 6], [6.0, 5, 4, 3, 2, 1, 0]])
    private = np.array([[0.0, 1, 2, 3, 4, 6, 5], [0.0, 5, 4, 3, 2, 1, 0.5]])
    agreement = compare_outputs(plain, private)
    assert (agreement.largest_error, agreement.relative_error) == (6.0, 1.0)
    assert (agreement.top1, agreement.top5, agreement.samples) == (0.0, 0.5, 2)
    assert "top-5 50.0 %" in str(agreement)
    for bad in (private[:1], private[0], np.zeros((0, 3))):
        with pytest.raises(UsageError):
            compare_outputs(plain, bad)


@pytest.mark.parametrize(
    ("samples", "most", "expected"),
    [(1, 8, 1), (2, 8, 2), (3, 8, 4), (5, 8, 8), (8, 8, 8), (5, 6, 6), (1, 1, 1), (33, 64, 64)],
)
def test_a_batch_is_padded_to_a_power_of_two_by_shares_of_zero(
    samples: int, most: int, expected: int, rng: np.random.Generator
) -> None:
    m, l1, l2 = (rng.integers(-(2**63), 2**63, (samples, 2, 3)) for _ in range(3))
    whole = Shared(m, l1, l2, 0, 16)
    held = [Shared(None, l1, l2, 0, 16), Shared(m, l1, None, 0, 16), Shared(m, None, l2, 0, 16)]
    for value in (whole, *held):
        [padded] = predict.pad_samples([value.map(tf.constant)], most)
        assert padded.shape == (expected, 2, 3) and padded.fractional_bits == 16
        for name in ("m", "l1", "l2"):
            field, before = getattr(padded, name), getattr(value, name)
            assert (field is None) == (before is None)
            if field is not None:
                np.testing.assert_array_equal(field[:samples], before)
                assert not np.any(field[samples:])
