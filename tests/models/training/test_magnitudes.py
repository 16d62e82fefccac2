"""Training follows Keras, or is refused, at all magnitudes of features and labels.

`python -m pytest tests/models/training/test_magnitudes.py -m slow -n 0` draws small models of every
optimizer and loss, and prints its seed; TFE_BENCH_TEST_SEED replays it.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tests.models.training.bench import Case, train_cases
from tests.refusals import raises
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.convert.calibration import MIN_STEPS
from tfe_bench.models.datasets.sharing import share_training_features
from tfe_bench.models.training import losses, magnitudes, optimizers, plaintext, state
from tfe_bench.models.training.losses.loss import LARGEST, NUMBERS
from tfe_bench.models.training.recipe import MOST_EXPONENT, Recipe

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Opt: Any = keras.optimizers
Array = np.ndarray[Any, Any]
BATCH, STEPS = 8, 6
RATE = 2.0**-5


def model_of(loss: str, hidden: bool, rng: np.random.Generator) -> Any:
    """Return a small model for a loss, of two features."""
    # (for Poisson, predictions of less than 2^-8 differ from Keras')
    folded = losses.get_loss(loss).folded_activation or {"poisson": "softplus"}.get(loss)
    last = L.Dense(3 if losses.get_loss(loss).is_categorical else 1, activation=folded)
    layers = [L.Dense(3, "tanh")] if hidden else []
    built = keras.Sequential([L.Input((2,)), *layers, last])
    built.set_weights([rng.normal(0, 0.3, w.shape) for w in built.get_weights()])
    return built


def rows_of(loss: str, x_size: float, y_size: float, rng: np.random.Generator) -> Any:
    """Draw features and labels of two batches."""
    about, n = losses.get_loss(loss), 2 * BATCH
    x = rng.normal(0, x_size / 3, (n, 2)).clip(-x_size, x_size)
    if about.is_categorical:
        classes = rng.integers(0, 3, n)
        return x, classes if loss.startswith("sparse") else np.eye(3)[classes]
    if about.counts_answers:
        return x, rng.integers(0, 2, n)
    y = rng.uniform(y_size / 2, y_size, n)
    return x, y if about.label_kinds != NUMBERS else y * rng.choice([-1, 1])


def plan_training(model: Any, optimizer: Any, loss: str, x: Any, y: Any) -> Recipe:
    recipe = Recipe.build(model, optimizer, loss, BATCH)
    return magnitudes.plan_exponents(recipe, model, x, y, seed=1)


def seen_weights(case: Case, model: Any) -> Array:
    """Flag the weights with gradients above the resolution; Keras' steps do not depend on it."""
    recipe, targets = case.recipe, case.recipe.encode_labels(case.y)
    cuts = [slice(0, BATCH), slice(BATCH, 2 * BATCH)]
    batches = [(case.x[cut], targets[cut], None) for cut in cuts]
    gradients = plaintext.PlaintextTwin(model, recipe).measure_gradients(batches)
    # (if samples cancel, the mean is as small as the rounding of losses)
    fine = [
        gradients[key] > max(2.0 ** (recipe.exponents.get(key, 0) - 11), gradients[key].max() / 64)
        for key in recipe.order
    ]
    return np.concatenate([np.ravel(each) for each in fine])


def follow_keras(chosen: dict[str, tuple[Any, Any, str, Any, Any]]) -> None:
    """Train all models in one simulation; weights change as Keras' do."""
    cases = {}
    for name, (model, optimizer, loss, x, y) in chosen.items():
        cases[name] = Case(plan_training(model, optimizer, loss, x, y), x, y, STEPS)
        again = Recipe.from_header(cases[name].recipe.to_header())
        assert again.compute_digest() == cases[name].recipe.compute_digest()
    results = train_cases(list(cases.values()))
    for (name, case), result in zip(cases.items(), results, strict=True):
        model = chosen[name][0]
        twin, targets = (
            plaintext.PlaintextTwin(model, case.recipe),
            case.recipe.encode_labels(case.y),
        )
        for number in range(STEPS):
            cut = slice(number % 2 * BATCH, (number % 2 + 1) * BATCH)
            twin.train_step(case.x[cut], targets[cut])
        after = state.to_keras_weights(
            case.recipe, state.select_final_weights(case.recipe, result.state)
        )
        expected = twin.finish_training()
        off, way = (
            np.concatenate([np.ravel(a - b) for a, b in zip(after, other, strict=True)])
            for other in (expected, model.get_weights())
        )
        if not np.abs(np.concatenate([w.ravel() for w in expected])).max() < 512:
            continue  # Keras diverges too
        most = np.abs(way).max()
        if case.recipe.optimizer.is_adaptive:  # steps have the rate's size
            most = max(most, RATE * STEPS)
            off = off[seen_weights(case, model)]
        spread = np.sqrt(np.mean(off**2)) if off.size else 0.0
        # (Poisson's gradient is a difference of 1 and a quotient; small features are coarse, as a
        # warning states; and Lion uses the sign of a value that may be close to 0)
        coarse = np.abs(case.x).max() < MIN_STEPS * 2.0**-case.recipe.numbers.activation
        rough = case.recipe.loss.name == "poisson" or coarse or name.startswith("lion")
        part = 4 if rough else 16
        assert spread < most / part + 2.0**-12, (name, case.recipe.exponents, after, expected)


def test_gradients_above_eight_train_as_in_keras(rng: np.random.Generator) -> None:
    """Use targets of 50 to 8000, and features of 300."""
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))

    def linear(optimizer: Any, x: float, y: float, loss: str = "mse") -> tuple[Any, ...]:
        return (model_of(loss, False, rng), optimizer, loss, *rows_of(loss, x, y, rng))

    chosen = {
        "a target of 50": linear(Opt.Adam(RATE), 1.0, 50.0),
        "columns in thousands": linear(Opt.RMSprop(RATE), 300.0, LARGEST),
        "gradient descent": linear(Opt.SGD(1e-6, momentum=0.9), 300.0, 1000.0),
    }
    follow_keras(chosen)


def test_columns_that_fixed_point_holds_coarsely_are_counted() -> None:
    x = np.array([[1.0, 3e-3, 0.0], [2.0, -1e-4, 0.0]])
    with pytest.warns(
        UserWarning, match="1 of 3 columns of the features have no value beyond 0.0039"
    ):
        share_training_features(x, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        share_training_features(x[:, [0, 2]], 16)


SIZES = (1e-3, 0.1, 1.0, 30.0, 1000.0)


@pytest.mark.slow
@pytest.mark.parametrize("loss", sorted(losses.LOSSES))
def test_every_optimizer_follows_keras_at_every_magnitude(
    loss: str, rng: np.random.Generator
) -> None:
    """Train on features and labels from 10^-3 to thousands: as in Keras, or refused."""
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    chosen: dict[str, Any] = {}
    for kind, cls in optimizers.KINDS.items():
        for hidden in (False, True):
            # (a step of Adam saturates hidden units of large features, and rounding decides then)
            near = hidden or loss == "poisson"
            x_size, y_size = rng.choice(SIZES[: 3 if near else None]), rng.choice(SIZES)
            x, y = rows_of(loss, x_size, y_size, rng)
            rate = RATE if cls.is_adaptive else RATE / max(1.0, x_size * x_size)
            model = model_of(loss, hidden, rng)
            optimizer = optimizers.optimizer_from_name(kind).build_keras_optimizer(rate)
            try:
                plan_training(model, optimizer, loss, x, y)
            except RangeError:
                continue
            chosen[f"{kind} {loss} {hidden} {x_size} {y_size}"] = (model, optimizer, loss, x, y)
    assert len(chosen) > len(optimizers.KINDS)
    follow_keras(chosen)


def test_gradients_that_no_exponent_holds_are_refused(rng: np.random.Generator) -> None:
    x, y = np.full((16, 2), 4000.0), np.full(16, 8000.0)
    model = model_of("mse", False, rng)
    with raises(RangeError, "gradient-too-large") as refusal:
        plan_training(model, "adam", "mse", x, y)
    assert "at most 4.19e+06. Received" in str(refusal.value)
    with raises(RangeError, "gradient-too-large") as refusal:
        plan_training(model, Opt.SGD(0.1, clipnorm=1.0), "mse", x, y)
    assert "norms below 4096" in str(refusal.value)
    header = Recipe.build(model, "sgd", "mse").to_header()
    for strange in ({"x": 1}, {header["order"][0]: MOST_EXPONENT + 1}, {header["order"][0]: 1.0}):
        with raises(
            UsageError,
            "unknown-weights",
            "number-out-of-range",
            "wrong-type",
            operation="exponents",
        ):
            Recipe.from_header({**header, "exponents": strange})


def test_clipped_gradients_have_the_exponent_of_their_bound(rng: np.random.Generator) -> None:
    """Check that gradients that are small, or clipped to 1, have no exponent."""
    x, y = np.ones((16, 2)), np.full(16, 100.0)
    model = model_of("mse", False, rng)
    assert not plan_training(model, Opt.Adam(0.1, clipnorm=1.0), "mse", x, y).exponents
    zero = model_of("mse", False, rng)
    zero.set_weights([0 * w for w in zero.get_weights()])  # gradients are those of the labels
    assert not plan_training(zero, "adam", "mse", x, y * 1e-3).exponents
    assert set(plan_training(model, "adam", "mse", x, y).exponents.values()) == {8}
