"""Each loss on shares has Keras' gradient and value, also at its edges, and named refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, reconstruct, simulate
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.datasets.sources import CombinedSchema
from tfe_bench.models.layers.base.operations import Operations, ProtocolSetting
from tfe_bench.models.training import losses
from tfe_bench.models.training.examples import check_training_labels
from tfe_bench.models.training.losses.loss import LARGEST, Loss
from tfe_bench.models.training.optimizers.sgd import Sgd
from tfe_bench.models.training.schedules import LearningRateSchedule
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

keras: Any = pytest.importorskip("keras")
K: Any = keras.losses
Array = np.ndarray[Any, Any]


# Losses with another gradient if the value is computed too.
APART = ("log_cosh", "categorical_crossentropy", "binary_crossentropy")


def draw_multiples(rng: np.random.Generator, shape: tuple[int, ...], high: float) -> Array:
    """Draw multiples of 2^-10 up to a magnitude: exact on both sides."""
    return np.round(rng.uniform(-high, high, shape) * 1024) / 1024


def loss_points(rng: np.random.Generator) -> dict[str, tuple[Any, Array, Array]]:
    """Return Keras' loss, predictions (or logits) and labels [rows, 3]."""
    z, y = draw_multiples(rng, (12, 3), 4), draw_multiples(rng, (12, 3), 4)
    z[0], y[0] = [1, 0, -2], [1, 0, -2]  # no difference
    z[1], y[1] = [1.5, -0.5, 0.5], [0, 1, 1]  # delta, the margin
    z[2], y[2] = [8000, -8000, 2.5], [-8000, 8000, 2.5]
    huge, hot = z.copy(), np.eye(3)[rng.integers(0, 3, 12)]
    # the largest wrong one is below 0, and exactly at the margin
    huge[0], hot[0] = [1, 0.5, -2], [1, 0, 0]
    huge[3], hot[3] = [3, -1, -2], [1, 0, 0]
    huge[4], hot[4] = [2, 1, -1], [1, 0, 0]
    huge[5], hot[5] = [1, -3, -2], [1, 0, 0]
    soft = rng.dirichlet([1, 1, 1], 12)
    soft[0] = [1, 0, 0]
    z = z.copy()
    logits = z.clip(-6, 6)
    two = rng.integers(0, 2, (12, 3)).astype(float)
    margins = z.copy()
    margins[1], two[1] = [1, 1, -1], [1, 0, 0]
    margins[0], two[0] = [-1, 0, -1], [1, 0, 0]
    above, far = np.abs(z) + 1 / 256, np.where(np.abs(y) < 1 / 4, 0.25, y)
    above[2], flat = [8000, 1 / 256, 0.5], np.abs(y)
    flat[2] = [8000, 100, 0]
    bent = z.copy()
    bent[0] = [0, 1 / 1024, -1 / 1024]
    bent[2] = [8000, -8000, 2.5]
    far[2] = [1 / 256, -1 / 256, 8000]
    of_far = far + draw_multiples(rng, far.shape, 4)
    of_far[0] = far[0]
    cases = {
        "squared": (K.MeanSquaredError, z, y),
        "absolute": (K.MeanAbsoluteError, z, y),
        "huber": (lambda **o: K.Huber(1.5, **o), z, y),
        "huber, small": (lambda **o: K.Huber(2.0**-8, **o), z, y),
        "huber, large": (lambda **o: K.Huber(LARGEST, **o), z, y),
        "log-cosh": (K.LogCosh, z, y),
        "poisson": (K.Poisson, above, flat),
        "hinge": (K.Hinge, margins, two),
        "squared hinge": (K.SquaredHinge, margins, two),
        "categorical hinge": (K.CategoricalHinge, huge, hot),
        "logarithmic": (K.MeanSquaredLogarithmicError, bent, flat),
        "percentage": (K.MeanAbsolutePercentageError, of_far, far),
        "categorical": (lambda **o: K.CategoricalCrossentropy(True, **o), logits, soft),
        "smoothed": (lambda **o: K.CategoricalCrossentropy(True, 0.3, **o), logits, hot),
        "even": (lambda **o: K.CategoricalCrossentropy(True, 1.0, **o), logits, hot),
        "binary": (lambda **o: K.BinaryCrossentropy(True, **o), logits, two),
        "binary, smoothed": (lambda **o: K.BinaryCrossentropy(True, 0.25, **o), logits, two),
        "divergence": (K.KLDivergence, logits, soft),
    }
    return {name: (make(reduction="sum"), z, y) for name, (make, z, y) in cases.items()}


def of_keras(loss: Any, z: Array, y: Array) -> tuple[Array, float]:
    """Return the gradient by the output, or by the logits before it, and the value, in float64."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        variable = tf.Variable(z, dtype=tf.float64)
        tape.watch(variable)
        last = tf.nn.softmax(variable) if isinstance(loss, K.KLDivergence) else variable
        value = loss(tf.constant(y, tf.float64), last)
    return np.asarray(tape.gradient(value, variable)), float(value)


@pytest.mark.parametrize(
    "fraction", [40, pytest.param(16, marks=pytest.mark.slow)], ids=["product", "value"]
)
def test_gradients_and_values_are_those_of_keras(fraction: int, rng: np.random.Generator) -> None:
    """Check gradients within 2^-10 (absolute or relative), and values within 2^-9 per number.

    All together have the declared cost.
    """
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        cases = {
            name: (case[0], *case[1:], *of_keras(*case)) for name, case in loss_points(rng).items()
        }
    finally:
        keras.config.set_floatx(before)
    by_name = {name: losses.read_keras_loss(case[0])[0] for name, case in cases.items()}
    flat = []
    for name, (_, z, y, _, _) in cases.items():
        targets = by_name[name].encode_labels((3,), y)
        flat += [FixedPoint(fraction).encode(z), FixedPoint(20).encode(targets)]

    scales = [20 if i % 2 else fraction for i in range(len(flat))]

    def every(party: Party, *shares: Shared) -> list[Any]:
        ops = Operations(party, ProtocolSetting())
        results: list[Any] = []
        for i, loss in enumerate(by_name.values()):
            z, y = shares[2 * i : 2 * i + 2]
            results += loss.compute_gradient(ops, z, y, True)
            results.append(loss.compute_gradient(ops, z, y, False)[0] if loss.name in APART else y)
        return results

    def program(party: Party, *shares: Shared) -> Any:
        scaled = [replace(v, fractional_bits=f) for v, f in zip(shares, scales, strict=True)]
        function = party.function(lambda *shares: every(party, *shares))
        return function(*scaled), measure_graph_call(party, function, *scaled)

    dealer = int(rng.integers(3))
    outs, calls = zip(*simulate(program, *flat, dealer=dealer).outputs, strict=True)
    inputs = [Private(ring.shape, f) for ring, f in zip(flat, scales, strict=True)]
    assert_costs(calls, count_cost(every, *inputs).cost, dealer)
    for i, (name, (_, z, _, slope, value)) in enumerate(cases.items()):
        parts = [
            FixedPoint(outs[0][3 * i + j].fractional_bits).decode(
                reconstruct([out[3 * i + j] for out in outs])
            )
            for j in range(3)
        ]
        loss, n = by_name[name], len(z)
        factor = float(loss.compute_share((3,), n) * loss.compute_scale((3,), n))
        for got in parts[::2] if loss.name in APART else parts[:1]:
            error = np.abs(got * factor - slope) / np.maximum(np.abs(slope), 1)
            assert error.max() < 2**-10, (name, np.unravel_index(error.argmax(), error.shape))
        mean = loss.compute_scale((3,), n) / (n * loss.count_terms((3,)))
        away = abs(float(parts[1]) * mean - value)
        assert away < 2**-9 * z.size * max(1, abs(value) / z.size), (name, parts[1] * mean, value)


def test_losses_are_found_by_all_of_keras_names() -> None:
    assert len(losses.LOSSES) >= 14
    for cls in losses.LOSSES.values():
        own = cls()
        every = [
            cls.name,
            cls.keras_class,
            *cls.aliases,
            getattr(K, cls.name),
            getattr(K, cls.keras_class)(),
        ]
        assert all(losses.read_keras_loss(arguments) == (own, False) for arguments in every)
        assert losses.from_header(own.to_header()) == own and own.to_header()["name"] == cls.name
        assert type(own.build_keras_loss(False)) is getattr(
            K, cls.keras_class
        ) or cls.name.startswith("sparse")
    huber = K.Huber(0.25, reduction="sum")
    result, _ = losses.read_keras_loss(huber)
    assert result.to_header() == {"name": "huber", "delta": 0.25, "reduction": "sum"}
    assert losses.read_keras_loss(K.Hinge(reduction="mean"))[0] == losses.get_loss("hinge")
    assert losses.read_keras_loss(K.BinaryCrossentropy(from_logits=True, label_smoothing=0.1))[1]


def test_what_no_loss_is_is_refused_by_name() -> None:
    for value, code, operation in (
        ("hing", "unknown-name", "loss"),
        (None, "unknown-name", "loss"),
        (K.Dice(), "unknown-name", "loss"),
        (K.Huber(0.001), "number-out-of-range", "delta"),
        (K.Huber(float("nan")), "number-out-of-range", "delta"),
        (K.Poisson(reduction="none"), "unknown-name", "reduction"),
        (K.MeanSquaredError(reduction="mean_with_sample_weight"), "unknown-name", "reduction"),
        (K.CategoricalCrossentropy(axis=1), "unsupported-argument", "CategoricalCrossentropy"),
        (
            K.CategoricalCrossentropy(label_smoothing=1.5),
            "number-out-of-range",
            "label_smoothing",
        ),
        (
            K.SparseCategoricalCrossentropy(ignore_class=-1),
            "unsupported-argument",
            "SparseCategoricalCrossentropy",
        ),
    ):
        with raises(UsageError, code, operation=operation):
            losses.read_keras_loss(value)
    for header in (
        {"name": "huber", "delta": "1"},
        {"name": "huber", "delta": True},
        {"name": "hinge", "delta": 1.0},
        {"name": ["hinge"]},
        {"name": "poisson", "reduction": ["sum"]},
        {},
    ):
        with pytest.raises(UsageError):
            losses.from_header(header)


@pytest.mark.parametrize(
    ("loss", "target"),
    [("poisson", "number"), ("mape", "binary"), ("hinge", "number"), ("kl_divergence", "binary")],
)
def test_labels_of_owners_are_such_as_a_loss_is_for(loss: str, target: str) -> None:
    """No party sees these labels, so that no party can detect a mismatch."""
    joined = CombinedSchema(8, (3,), (1,), 2, target)
    check_training_labels(joined, losses.read_keras_loss("mse")[0])
    with raises(UsageError, "unsupported-labels", received=target):
        check_training_labels(joined, losses.read_keras_loss(loss)[0])


def test_labels_that_a_loss_does_not_take_are_refused() -> None:
    for name, bad, expected in (
        ("mse", 8193.0, "numbers within 8192"),
        ("mae", np.nan, "numbers within 8192"),
        ("poisson", -0.5, "numbers from 0 to 8192"),
        ("msle", 1e6, "numbers from 0 to 8192"),
        ("mape", 0.001, "numbers from 0.00390625 to 8192 in magnitude"),
        ("hinge", 0.5, "-1 and 1, or 0 and 1"),
        ("bce", 1.5, "numbers from 0 to 1"),
    ):
        loss = losses.get_loss(name)
        with raises(RangeError, "invalid-label", expected=expected) as refusal:
            loss.encode_labels((1,), [1.0, bad])
        assert "row 1" in str(refusal.value) and str(bad) not in str(refusal.value)
    hinge = losses.get_loss("hinge")
    assert hinge.encode_labels((1,), [-1, 1]).tolist() == [[0], [1]]
    with raises(RangeError, "invalid-label", expected="-1 and 1, or 0 and 1"):
        hinge.encode_labels((1,), [-1, 0, 1])
    for name in ("categorical_hinge", "kld"):
        with raises(RangeError, "invalid-label", expected="one-hot rows"):
            losses.get_loss(name).encode_labels((2,), [[0.5, 0.4]])
    with raises(UsageError, "too-large", operation="categorical_hinge", received=65):
        losses.get_loss("categorical_hinge").encode_labels((65,), np.eye(65))


def test_old_names_of_losses_and_optimizers_are_accepted_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="slope has the new name compute_gradient"):

        class OldLoss(Loss):
            name = "old"

            def slope(self, *arguments: Any) -> Any:
                return "gradient"

    old: Any = OldLoss()
    assert old.compute_gradient(None, None, None, False) == "gradient"
    with pytest.warns(DeprecationWarning, match="header has the new name to_header"):
        assert (
            old.header() == old.to_header() == {"name": "old", "reduction": "sum_over_batch_size"}
        )
    with pytest.warns(DeprecationWarning, match="slots has the new name list_slots"):

        class OldSgd(Sgd):
            def slots(self, numbers: Any) -> Any:
                return [numbers]

    schedule = LearningRateSchedule("constant", {"rate": 0.5})
    new: Any = OldSgd(schedule)
    assert new.list_slots("slot") == ["slot"]
    assert new.to_header() == Sgd(schedule).to_header()
