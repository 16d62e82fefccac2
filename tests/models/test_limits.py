"""Bounds of a plan's values: no value exceeds them, and sums within them stay in Z_2^64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.errors import UsageError
from tfe_bench.models import zoo
from tfe_bench.models.convert import bound_analysis, plaintext
from tfe_bench.models.convert.bound_analysis import Limits
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import LayerSpec
from tfe_bench.models.inference.private import convert

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Array = np.ndarray[Any, Any]


def branched_model() -> Any:
    """Build a model with every type of layer that states a bound."""
    x = keras.Input((8, 8, 2))
    y = L.Conv2D(3, 3, padding="same", activation="relu")(x)
    z = L.Conv2D(3, 3, padding="same")(y)
    a = L.AveragePooling2D(2)(L.LeakyReLU(0.3)(z))
    b = L.MaxPooling2D(2)(L.ReLU(6.0)(L.Add()([y, z])))
    c = L.Concatenate()([L.Subtract()([a, b]), L.Activation("sigmoid")(b), L.Multiply()([a, b])])
    d = L.Flatten()(L.ReLU()(L.ZeroPadding2D(1)(c)))
    return keras.Model(x, L.Softmax()(L.Dense(4)(d)))


@pytest.mark.parametrize("calibrated", [True, False])
def test_no_value_passes_its_limit_while_the_sums_before_it_are_in_range(
    calibrated: bool, rng: np.random.Generator
) -> None:
    model = branched_model()
    samples = rng.normal(0, 1, (4, 8, 8, 2))
    private = convert(model, samples=samples if calibrated else None)
    limits = bound_analysis.compute_layer_limits(private.plan, private.bounds)
    largest_values: dict[str, float] = {}

    def watch(name: str, value: Array) -> None:
        largest_values[name] = max(largest_values.get(name, 0.0), float(np.abs(value).max()))

    widest = 0.0
    for factor in 2.0 ** np.arange(-3, 20):
        largest_values.clear()
        plaintext.evaluate_graph(private.graph, factor * samples, watch)
        over = [
            x
            for x in private.graph.layers
            if (limit := limits.get(x.name)) is not None
            and largest_values.get(x.name, 0.0) * 2.0 ** private.plan.fraction_of(x.name) > limit
        ]
        if over:
            # the first value that exceeds it is a sum, which is monitored
            assert over[0].op == "sum", over
            break
        widest = factor
    assert widest >= 1
    # comparisons are as wide as their operands may be
    for x in private.graph.layers:
        bits = (
            bound_analysis.layer_comparison_bits(private.plan, x)
            if private.plan.numbers[x.name].bits
            else 0
        )
        if x.op != "sum" and bits:
            limit = limits[x.inputs[0]]
            assert limit is not None and limit < 1 << (bits - 1)


def extreme_sum(x: LayerSpec, plan: ModelPlan, limits: Limits) -> float:
    """Return the largest sum of inputs within limits, in ring units, for the kernels' signs."""
    scale, total = plan.numbers[x.name].scale, 0.0
    for i, (name, term) in enumerate(zip(x.inputs, x.options["terms"], strict=True)):
        limit = limits[name]
        assert limit is not None, name
        if term["op"] == "skip":
            total += float(limit << (scale - plan.fraction_of(name)))
            continue
        kernel = np.asarray(x.weights[f"kernel{i}"], np.float64)
        kernel = np.abs(np.rint(kernel * 2.0 ** plan.weight_bits(x, f"kernel{i}")))
        axes = {"affine": (), "depthwise_conv2d": (0, 1)}.get(
            term["op"], tuple(range(kernel.ndim - 1))
        )
        total += float(kernel.sum(axis=axes).max(initial=0.0)) * limit
    if "bias" in x.weights:
        total += float(np.rint(np.abs(x.weights["bias"]) * 2.0**scale).max(initial=0.0))
    return total


def check_reaches(plan: ModelPlan, bounds: Mapping[str, float]) -> None:
    """Check that sums stay within the plan's reach, and that the reach is tight."""
    limits = bound_analysis.compute_layer_limits(plan, bounds)
    for x in plan.graph.layers:
        if x.op == "sum":
            most, reach = extreme_sum(x, plan, limits), plan.numbers[x.name].reach
            assert most < 2.0 ** (reach - 1), (x.name, most, reach)
            assert reach <= 63 and most >= 2.0 ** (reach - 3), (x.name, most, reach)


@pytest.mark.parametrize(
    "name",
    [
        *("network-a", "network-b", "network-c", "network-d"),
        pytest.param("resnet50", marks=pytest.mark.slow),
        pytest.param("mobilenetv2", marks=pytest.mark.slow),
        pytest.param("densenet121", marks=pytest.mark.slow),
    ],
)
def test_sums_of_the_zoo_stay_in_the_ring_within_their_limits(name: str) -> None:
    """Range checks therefore have no gap there."""
    built = zoo.build(name, "seeded", 1)
    for samples in (zoo.samples(zoo.find_model(name), 1), None):
        private = convert(built.keras, samples=samples)
        bound_analysis.check_monitorable_layers(private.plan)
        check_reaches(private.plan, private.bounds)


def test_a_sum_that_could_leave_the_ring_is_not_watched() -> None:
    """The sum of the weights exceeds the room of the plan, whatever the samples are."""
    first = L.Dense(200, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((200,)), first, L.Dense(2)])
    samples = np.zeros((2, 200))
    samples[:, :2] = 0.01, -0.01
    private = convert(model, samples=samples)
    bound_analysis.check_monitorable_layers(private.plan)
    name = private.graph.layers[0].name
    numbers = {**private.plan.numbers, name: replace(private.plan.numbers[name], reach=64)}
    with raises(UsageError, "range-check-impossible", operation=name):
        bound_analysis.check_monitorable_layers(replace(private.plan, numbers=numbers))
