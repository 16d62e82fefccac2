"""Losses and optimizers on shares follow Keras' own, step by step."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from tests.models.training.bench import LOCAL, Case, Result, batch_rows, train_cases
from tests.refusals import raises
from tfe_bench.cluster.schema import flag_rule
from tfe_bench.cluster.simulate import assert_costs, total_rounds
from tfe_bench.errors import UsageError
from tfe_bench.models.layers.base.operations import ProtocolSetting
from tfe_bench.models.training import optimizers, plaintext, schedules, state, step, updates
from tfe_bench.models.training.examples import with_weight_bound
from tfe_bench.models.training.losses.loss import NUMBERS
from tfe_bench.models.training.optimizers.optimizer import Optimizer
from tfe_bench.models.training.optimizers.sgd import Sgd
from tfe_bench.models.training.recipe import MOST_WEIGHT, Recipe
from tfe_bench.protocols.ring import rotation

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Opt: Any = keras.optimizers
L1L2: Any = keras.regularizers.L1L2
Array = np.ndarray[Any, Any]
BATCH = 16


def small_model(*last: Any) -> Any:
    return keras.Sequential([L.Input((5,)), L.Dense(6), *last])


def without_biases(optimizer: Any) -> Any:
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def sgd_cases() -> dict[str, tuple[Any, Any, Any]]:
    """Return models, optimizers and losses."""
    decay = Opt.schedules.ExponentialDecay(0.5, 2, 0.7)
    pieces = Opt.schedules.PiecewiseConstantDecay([1, 2], [0.5, 0.2, 0.1])
    cosine = Opt.schedules.CosineDecay(0.5, 5, 0.1)
    warm = Opt.schedules.CosineDecay(0.1, 5, 0.1, warmup_target=0.5, warmup_steps=3)
    classes = L.Dense(4, activation="softmax")
    logits = keras.losses.CategoricalCrossentropy(from_logits=True)
    return {
        "sgd": (small_model(classes), Opt.SGD(0.5), "categorical_crossentropy"),
        "momentum": (small_model(L.Dense(4)), Opt.SGD(0.1, momentum=0.9), logits),
        "nesterov": (small_model(L.Dense(3)), Opt.SGD(0.1, momentum=0.9, nesterov=True), "mse"),
        "sparse": (
            small_model(L.Dense(4), L.Softmax()),
            without_biases(Opt.SGD(decay, weight_decay=0.3)),
            "sparse_categorical_crossentropy",
        ),
        "one output": (
            small_model(L.Dense(1, activation="sigmoid")),
            Opt.SGD(pieces, clipvalue=0.05),
            "binary_crossentropy",
        ),
        "several outputs": (
            small_model(L.Dense(3)),
            Opt.SGD(cosine, momentum=0.5, clipnorm=0.1),
            keras.losses.BinaryCrossentropy(from_logits=True),
        ),
        "regression": (
            small_model(L.Dense(2)),
            Opt.SGD(
                warm,
                global_clipnorm=0.2,
                use_ema=True,
                ema_momentum=0.6,
                ema_overwrite_frequency=2,
            ),
            keras.losses.MeanSquaredError(),
        ),
        "of a batch": (
            small_model(L.BatchNormalization(), L.Dropout(0.25), L.Dense(4, activation="softmax")),
            Opt.SGD(0.1),
            "categorical_crossentropy",
        ),
        "penalties": (
            keras.Sequential(
                [
                    L.Input((5,)),
                    L.Dense(6, "tanh", kernel_regularizer="l1", bias_regularizer=L1L2(0.1, 0.2)),
                    L.Dense(2, kernel_regularizer=keras.regularizers.L2(0.3)),
                ]
            ),
            Opt.SGD(0.01, momentum=0.5),
            keras.losses.MeanSquaredError(reduction="sum"),
        ),
        "huber": (small_model(L.Dense(2)), Opt.SGD(0.02), keras.losses.Huber(0.5, reduction="sum")),
        "percentage": (small_model(L.Dense(2)), Opt.SGD(0.0002), "mape"),
        "hinge": (small_model(L.Dense(2)), Opt.SGD(0.1), "hinge"),
        "smoothed": (
            small_model(L.Dense(1, activation="sigmoid")),
            Opt.SGD(0.5),
            keras.losses.BinaryCrossentropy(label_smoothing=0.2),
        ),
        "divergence": (small_model(L.Dense(4, activation="softmax")), Opt.SGD(0.5), "kld"),
        "many classes": (
            small_model(L.Dense(20, activation="softmax")),
            Opt.SGD(0.5),
            "categorical_crossentropy",
        ),
    }


def draw_data(recipe: Recipe, rng: np.random.Generator, batches: int) -> tuple[Array, Array]:
    n = batches * BATCH
    x = rng.normal(0, 1, (n, *recipe.input_shape)).astype(np.float32)
    (outputs,) = recipe.output_shape
    if not recipe.loss.counts_answers:
        y = rng.normal(0, 1, (n, outputs))
        return x, np.abs(y) + 0.25 if recipe.loss.label_kinds != NUMBERS else y
    if not recipe.loss.is_categorical:
        return x, rng.integers(0, 2, (n, outputs))
    classes = rng.integers(0, outputs, n)
    return x, classes if recipe.loss.name.startswith("sparse") else np.eye(outputs)[classes]


def train_plain(case: Case, model: Any) -> tuple[Any, float]:
    """Return the plaintext reference after the steps, and the loss of the last.

    The steps are too few to compile a graph.
    """
    twin, targets, loss = (
        plaintext.PlaintextTwin(model, case.recipe),
        case.recipe.encode_labels(case.y),
        0.0,
    )
    twin.model.run_eagerly = True
    for number in range(case.steps):
        cut = batch_rows(case, number)
        weights = None if case.weights is None else case.weights[cut]
        loss = twin.train_step(case.x[cut], targets[cut], weights)
    return twin, loss


def compare_trainings(
    chosen: dict[str, tuple[Any, Any, Any]],
    rng: np.random.Generator,
    steps: int,
    tolerance: float,
    loss: tuple[str, ...] = (),
    typical: float = np.inf,
    setting: ProtocolSetting = LOCAL,
    weights: Array | None = None,
) -> dict[str, tuple[Case, Result, Any]]:
    """Train all cases, and compare weights, costs, losses and right answers with Keras."""
    cases, dealer = {}, int(rng.integers(3))
    for name, (model, optimizer, about) in chosen.items():
        recipe = Recipe.build(model, optimizer, about, BATCH)
        recipe = recipe if weights is None else with_weight_bound(recipe, weights)
        # (as the workers receive it)
        again = Recipe.from_header(recipe.to_header())
        assert (
            again.compute_digest() == recipe.compute_digest()
            and state.list_training_state_specs(again) == state.list_training_state_specs(recipe)
        )
        x, y = draw_data(recipe, rng, 2)
        judged = recipe.loss.counts_answers and weights is None
        cases[name] = Case(recipe, x, y, steps, setting, judged, name in loss, weights)
    results = {}
    for (name, case), result in zip(
        cases.items(), train_cases(list(cases.values()), dealer), strict=True
    ):
        twin, last = train_plain(case, chosen[name][0])
        after = state.to_keras_weights(
            case.recipe, state.select_final_weights(case.recipe, result.state)
        )
        pairs = zip(after, twin.finish_training(), strict=True)
        off = np.sort(np.concatenate([np.abs(got - want).reshape(-1) for got, want in pairs]))
        if case.recipe.optimizer.is_adaptive:
            # Two weights may have a gradient below 2^-20 / sqrt(1 - beta_2), whose square
            # has no bit at first, or a gradient whose sign depends on rounding.
            assert off[-1] < 3 * steps * case.recipe.optimizer.schedule.largest_rate, name
            off = off[:-2]
        assert off[-1] < tolerance, name
        assert np.sqrt(np.mean(off**2)) < typical, name
        cost = step.step_cost(case.recipe, case.setting, case.loss)
        if setting.dealt_by_thirds:  # (if the dealer starts late, only a bound is known)
            cost = replace(
                cost, with_dealing=total_rounds([c for _, c in result.calls], "with_dealing")
            )
        try:
            assert_costs(result.calls, cost, dealer)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
        if case.loss:
            near = 2**-9 * max(1.0, abs(last))
            assert result.loss is not None and abs(result.loss - last) < near, name
        if case.evaluated:
            right = twin.count_correct(case.x, case.recipe.encode_labels(case.y))
            assert abs(result.right - right) <= 1, name
        results[name] = (case, result, twin)
    return results


VALUED = ("momentum", "one output", "regression", "huber", "percentage", "divergence", "penalties")


def test_losses_and_sgd_follow_keras(rng: np.random.Generator) -> None:
    """Train five steps; weights agree within 2^-8 (up to 10 samples of 2^-10 in a logistic)."""
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    compare_trainings(sgd_cases(), rng, 5, 2.0**-8, loss=VALUED)


@pytest.mark.parametrize(
    "largest", [MOST_WEIGHT, *(pytest.param(v, marks=pytest.mark.slow) for v in (0.5, 3.0))]
)
def test_weights_of_samples_follow_keras(largest: float, rng: np.random.Generator) -> None:
    """Train three steps with weights from 0 to the maximum: changes are about as large."""
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    rate = 0.5 / max(1.0, largest)
    chosen = {
        "classes": (
            small_model(L.Dense(4, activation="softmax")),
            Opt.SGD(rate, momentum=0.5),
            "categorical_crossentropy",
        ),
        "sparse": (
            small_model(L.Dense(4, activation="softmax")),
            Opt.SGD(rate),
            "sparse_categorical_crossentropy",
        ),
        "outputs": (
            small_model(L.Dense(3)),
            Opt.SGD(rate),
            keras.losses.BinaryCrossentropy(from_logits=True),
        ),
        "numbers": (small_model(L.Dense(2)), Opt.SGD(rate), "mse"),
        "adam": (
            small_model(L.Dense(1, activation="sigmoid")),
            Opt.Adam(2.0**-6),
            "binary_crossentropy",
        ),
    }
    if largest == MOST_WEIGHT:  # (the other cases have all weights)
        del chosen["sparse"], chosen["numbers"]
    weights = rng.choice([0.0, 0.25, min(1.0, largest), largest], 2 * BATCH)
    # (gradients are in units of the largest weight: without one, Adam's squares have no bits)
    weights[::BATCH] = largest
    compare_trainings(chosen, rng, 3, 2.0**-6, weights=weights)
    with raises(UsageError, "number-out-of-range", operation="weighted", received="3"):
        Recipe.from_header(
            {**Recipe.build(small_model(L.Dense(2)), "sgd", "mse").to_header(), "weighted": 3}
        )


def adaptive_cases(rate: float) -> dict[str, tuple[Any, Any, Any]]:
    """Return models, optimizers and losses."""
    classes = L.Dense(4, activation="softmax")
    chosen = {
        "adam": (small_model(classes), Opt.Adam(rate), "categorical_crossentropy"),
        "other betas": (
            small_model(L.Dense(3)),
            Opt.Adam(rate, beta_1=0.8, beta_2=0.98, epsilon=1e-6),
            "mse",
        ),
        "decaying": (
            small_model(L.Dense(1, activation="sigmoid")),
            without_biases(Opt.AdamW(Opt.schedules.ExponentialDecay(rate, 3, 0.5), 0.4)),
            "binary_crossentropy",
        ),
    }
    for name, optimizer in (
        ("amsgrad", Opt.Adam(rate, amsgrad=True, beta_2=0.6)),
        ("nadam", Opt.Nadam(rate, use_ema=True, ema_momentum=0.5)),
        ("adamax", Opt.Adamax(rate)),
        ("rmsprop", Opt.RMSprop(rate / 2, rho=0.8, momentum=0.5)),
        ("adagrad", Opt.Adagrad(rate, 0.01, global_clipnorm=0.2)),
        ("lion", Opt.Lion(rate)),
    ):
        chosen[name] = (small_model(L.Dense(3)), optimizer, "mse")
    return chosen


def test_adaptive_optimizers_follow_keras(rng: np.random.Generator) -> None:
    """Train five steps of rate 1/64: where gradients are small, squares have few bits."""
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    rate, steps = 2.0**-6, 5
    chosen = adaptive_cases(rate)
    results = compare_trainings(chosen, rng, steps, rate, typical=rate * steps / 32)
    # (each scheme occurs)
    assert {case.recipe.optimizer.kind for case, _, _ in results.values()} == {
        *optimizers.KINDS
    } - {"sgd"}


def at_the_ends(kind: type[Optimizer], rate: float) -> dict[str, tuple[Any, Any, Any]]:
    """Return an optimizer of Keras with each setting at both ends of its accepted range."""
    cases = {}
    for setting in kind.list_own_settings():
        rule = setting.metadata["rule"]
        ends: list[Any] = [True, False] if rule is flag_rule else [rule.least, rule.most]
        for value in ends:
            name = f"{kind.kind} {setting.name}={value}"
            # (RMSprop's first step is rate / sqrt(1 - rho))
            own = rate * (1 - value) ** 0.5 if setting.name == "rho" else rate
            try:
                optimizer = kind(schedules.read_keras_schedule(own), **{setting.name: value})
            except UsageError:  # another setting has to change as well
                continue
            cases[name] = (small_model(L.Dense(3)), optimizer.build_keras_optimizer(own), "mse")
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("kind", optimizers.KINDS)
def test_settings_follow_keras_to_the_ends_of_their_ranges(
    kind: str, rng: np.random.Generator
) -> None:
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    rate, steps = 2.0**-6, 4
    chosen = at_the_ends(optimizers.KINDS[kind], rate)
    assert chosen
    # (with an epsilon as large as gradients a step is up to 1.41 times Keras')
    compare_trainings(chosen, rng, steps, rate, typical=rate * steps / 8)


@pytest.mark.slow
def test_common_options_follow_keras_to_the_ends_of_their_ranges(rng: np.random.Generator) -> None:
    """Use gradients far above and below their bounds, also of summed losses."""
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    summed = keras.losses.MeanSquaredError(reduction="sum")
    chosen = {}
    for loss in ("mse", summed):
        for name in ("clipvalue", "clipnorm", "global_clipnorm"):
            for value in (1e-4, 0.3, 1e3):
                optimizer = Opt.SGD(0.01, **{name: value})
                chosen[f"{name} {value} {loss}"] = (small_model(L.Dense(3)), optimizer, loss)
        for optimizer in (
            Opt.Adagrad(0.02),
            Opt.RMSprop(0.02),
            Opt.SGD(1e-3, weight_decay=999.0),
            Opt.SGD(1e-3, weight_decay=1e-3),
            Opt.SGD(0.01, use_ema=True, ema_momentum=0.0),
            Opt.SGD(0.01, use_ema=True, ema_momentum=0.9999, ema_overwrite_frequency=1),
        ):
            chosen[f"{len(chosen)} {loss}"] = (small_model(L.Dense(3)), optimizer, loss)
    compare_trainings(chosen, rng, 4, 2.0**-7)


def test_directions_are_dealt_by_thirds_where_that_pays(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "is_worthwhile", lambda cost, bits: True)
    keras.utils.set_random_seed(int(rng.integers(1 << 31)))
    rate = 2.0**-6
    chosen = {"amsgrad": (small_model(L.Dense(3)), Opt.Adam(rate, amsgrad=True), "mse")}
    compare_trainings(
        chosen, rng, 3, rate, typical=rate / 8, setting=ProtocolSetting("wan", dealt_by_thirds=True)
    )


def test_the_rounds_of_the_published_networks() -> None:
    """Count rounds: logistic regression 6 by SGD; network A 23 (SGD), 34 (Adam), 39 (AMSGrad)."""
    hidden = [L.Dense(128, activation="relu") for _ in range(2)]
    a = keras.Sequential(
        [L.Input((28, 28)), L.Flatten(), *hidden, L.Dense(10, activation="softmax")]
    )
    logistic = keras.Sequential([L.Input((28, 28)), L.Flatten(), L.Dense(1, activation="sigmoid")])
    momentum = Opt.SGD(0.01, momentum=0.9)
    for model, optimizer, loss, most in (
        (logistic, momentum, "binary_crossentropy", 6),
        (a, momentum, "categorical_crossentropy", 23),
        (a, "adam", "categorical_crossentropy", 34),
        (a, "amsgrad", "categorical_crossentropy", 39),
    ):
        recipe = Recipe.build(model, optimizer, loss)
        for profile in ("local", "lan", "wan"):
            for setting in (ProtocolSetting(profile), step.tune_setting(recipe, profile)):
                rounds = step.step_cost(recipe, setting).rounds
                assert rounds == most or (rounds < most and optimizer == "amsgrad")


def keras_schedules() -> list[Any]:
    """Return each of Keras' schedules with each of its options, and at the ends of their ranges."""
    s = Opt.schedules
    return [
        s.ExponentialDecay(0.5, 7, 0.9),
        s.ExponentialDecay(0.5, 7, 0.9, staircase=True),
        s.ExponentialDecay(0.5, 2.5, 1.0),
        s.PiecewiseConstantDecay([3, 9], [0.5, 0.2, 0.3]),
        s.PiecewiseConstantDecay([3.0, 9.5], [0.5, 0.2, 0.3]),
        s.PolynomialDecay(0.5, 12),
        s.PolynomialDecay(0.5, 12, 0.1, power=2.5),
        s.PolynomialDecay(0.5, 12, 0.1, power=0.0),
        s.PolynomialDecay(0.1, 7, 0.5, power=0.5, cycle=True),
        s.InverseTimeDecay(0.5, 3, 0.7),
        s.InverseTimeDecay(0.5, 3, 0.7, staircase=True),
        s.InverseTimeDecay(0.5, 1.0, 0.0),
        s.CosineDecay(0.5, 20, 0.05),
        s.CosineDecay(0.5, 20, 1.0),
        s.CosineDecay(0.05, 20, 0.05, warmup_target=0.5, warmup_steps=4),
        s.CosineDecay(0.5, 20, warmup_target=0.1),
        s.CosineDecayRestarts(0.5, 4.5),
        s.CosineDecayRestarts(0.5, 5, t_mul=1.0, m_mul=0.5, alpha=0.1),
        s.CosineDecayRestarts(0.5, 3.1, t_mul=1.5, m_mul=0.0, alpha=0.2),
    ]


def test_rates_are_those_of_keras_and_exact_to_a_thousandth() -> None:
    for schedule in keras_schedules():
        result = optimizers.read_keras_optimizer(Opt.SGD(schedule)).schedule
        again = optimizers.from_header(json.loads(json.dumps(Sgd(result).to_header()))).schedule
        for number in [*range(30), 1000, 10**6]:
            found_rate = again.compute_rate(number)
            assert abs(float(found_rate) - float(schedule(number))) < 2e-6, (result, number)
            assert found_rate <= again.largest_rate
        assert again.to_header() == result.to_header()
        twin = plaintext.build_keras_optimizer(Sgd(again)).learning_rate
        assert abs(float(twin) - float(schedule(0))) < 1e-7
    model = small_model(L.Dense(3))
    for rate in (1e-5, 3e-4, 0.01, 0.3, 5.0):
        for batch in (1, 32, 128, 1000):
            recipe = Recipe.build(model, Opt.SGD(rate), "mse", batch)
            sgd, terms = recipe.optimizer, updates.build_update_terms(recipe)
            assert isinstance(sgd, Sgd)
            share = float(terms.share)
            scaled = step.public_values(recipe, 0)["rate"] / 2.0 ** sgd._rate_exponent(terms)
            assert abs(scaled / (rate * share) - 1) < 1e-3, (rate, batch)


def test_cosine_is_exact() -> None:
    for i in range(0, 32):
        x = Decimal(i) / 10
        assert abs(float(schedules.compute_schedule_cosine(x)) - np.cos(i / 10)) < 1e-15


def test_what_is_not_supported_is_refused_by_name() -> None:
    model = small_model(L.Dense(4, activation="softmax"))
    constant = {"kind": "constant", "rate": 0.1}
    for optimizer, code, operation in (
        (Opt.SGD(0.1, gradient_accumulation_steps=2), "unsupported-argument", "SGD"),
        (Opt.Adam(0.1, loss_scale_factor=2.0), "unsupported-argument", "Adam"),
        (Opt.RMSprop(0.1, centered=True), "unsupported-argument", "RMSprop"),
        (Opt.Adam(0.1, beta_1=0.9, beta_2=0.8), "unbounded-step", None),
        (Opt.Nadam(0.1, beta_1=0.99, beta_2=0.98), "unbounded-step", None),
        (Opt.Adamax(0.1, beta_1=0.99, beta_2=0.98), "unbounded-step", "adamax"),
        (Opt.Adagrad(0.1, 0.0), "number-out-of-range", "initial_accumulator_value"),
        (Opt.SGD(2.0, weight_decay=0.6), "number-out-of-range", "weight_decay"),
        (Opt.SGD(0.1, clipnorm=1e-6), "number-out-of-range", "clipnorm"),
        (Opt.SGD(0.1, clipvalue=-1.0), "number-out-of-range", "clipvalue"),
        (Opt.SGD(0.1, use_ema=True, ema_momentum=1.0), "number-out-of-range", "ema_momentum"),
        (Opt.Ftrl(0.1), "unknown-name", "optimizer"),
        ("sdg", "unknown-name", "optimizer"),
        (optimizers.NAMES, "unknown-name", "optimizer"),
    ):
        with raises(UsageError, code, operation=operation):
            Recipe.build(model, optimizer, "categorical_crossentropy")
    for more, code, operation in (
        ({"momentum": 1.0}, "number-out-of-range", "momentum"),
        ({"nesterov": 1}, "wrong-type", "nesterov"),
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "conflicting-options", "clipping"),
        ({"ema_overwrite_frequency": 0}, "number-out-of-range", "ema_overwrite_frequency"),
        ({"undecayed": [1]}, "wrong-type", "undecayed"),
        ({"beta_1": 0.9}, "unknown-option", "sgd"),
        ({"name": ["sgd"]}, "unknown-name", "optimizer"),
    ):
        with raises(UsageError, code, operation=operation):
            optimizers.from_header({"name": "sgd", "schedule": constant, **more})
    for loss, code, operation in (
        (
            keras.losses.CategoricalCrossentropy(from_logits=True),
            "unexpected-activation",
            "categorical_crossentropy",
        ),
        ("binary_crossentropy", "missing-activation", "binary_crossentropy"),
        (None, "unknown-name", "loss"),
    ):
        with raises(UsageError, code, operation=operation):
            Recipe.build(model, "sgd", loss)
    for kind, options in (
        (Opt.schedules.ExponentialDecay, (0.1, 10, 1.1)),
        (Opt.schedules.PolynomialDecay, (0.1, 10, 0.1, -1.0)),
        (Opt.schedules.InverseTimeDecay, (0.1, 10, -0.1)),
        (Opt.schedules.CosineDecay, (0.1, 10, 2.0)),
        (Opt.schedules.CosineDecayRestarts, (0.1, 10, 0.5)),
        (Opt.schedules.CosineDecayRestarts, (0.1, 10, 2.0, 1.5)),
        (Opt.schedules.PiecewiseConstantDecay, ([3, 3], [0.1, 0.2, 0.3])),
    ):
        with raises(UsageError, "invalid-schedule"):
            optimizers.read_keras_optimizer(Opt.SGD(kind(*options)))
    with raises(UsageError, "number-out-of-range", operation="learning_rate"):
        schedules.read_keras_schedule(float("nan"))
    with raises(UsageError, "number-out-of-range", operation="learning_rate"):
        step.public_values(Recipe.build(small_model(L.Dense(2)), Opt.SGD(0.0), "mse"), 0)
