"""Limits of a plan's values: no value passes them, and sums within them stay in Z_2^64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tfe_bench.models import limits, plaintext, zoo
from tfe_bench.models.private import convert
from tfe_bench.models.ranges import Plan

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
Array = np.ndarray[Any, Any]


def branches() -> Any:
    """Every kind of layer that says how large its values are."""
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
    model = branches()
    samples = rng.normal(0, 1, (4, 8, 8, 2))
    private = convert(model, samples=samples if calibrated else None)
    found = limits.limits(private.plan, private.bounds)
    seen: dict[str, float] = {}

    def watch(name: str, value: Array) -> None:
        seen[name] = max(seen.get(name, 0.0), float(np.abs(value).max()))

    widest = 0.0
    for factor in 2.0 ** np.arange(-3, 20):
        seen.clear()
        plaintext.evaluate(private.graph, factor * samples, watch)
        over = [
            x
            for x in private.graph.layers
            if (limit := found.get(x.name)) is not None
            and seen.get(x.name, 0.0) * 2.0 ** private.plan.fraction_of(x.name) > limit
        ]
        if over:
            # the first that does is a sum, which is what is watched
            assert over[0].op == "sum", over
            break
        widest = factor
    assert widest >= 1
    # and what compares takes what may come to it
    for x in private.graph.layers:
        bits = limits.compared(private.plan, x) if private.plan.numbers[x.name].bits else 0
        if x.op != "sum" and bits:
            limit = found[x.inputs[0]]
            assert limit is not None and limit < 1 << (bits - 1)


def sums_beyond_the_ring(plan: Plan, bounds: Mapping[str, float]) -> list[str]:
    """Sums that could leave Z_2^64 itself while everything before them is within its limits."""
    found, wide = limits.limits(plan, bounds), []
    for x in plan.graph.layers:
        if x.op != "sum":
            continue
        scale, total = plan.numbers[x.name].scale, 0.0
        for i, (name, term) in enumerate(zip(x.inputs, x.options["terms"], strict=True)):
            limit = found[name]
            assert limit is not None, name
            if term["op"] == "skip":
                total += float(limit << (scale - plan.fraction_of(name)))
                continue
            kernel = np.abs(np.asarray(x.weights[f"kernel{i}"], np.float64))
            kernel = np.rint(kernel * 2.0 ** plan.weight_bits(x, f"kernel{i}"))
            axes = tuple(range(kernel.ndim - 1)) if term["op"] != "depthwise_conv2d" else (0, 1)
            each = kernel if term["op"] == "affine" else kernel.sum(axis=axes)
            total += float(each.max(initial=0.0)) * limit
        if "bias" in x.weights:
            total += float(np.abs(x.weights["bias"]).max(initial=0.0)) * 2.0**scale
        if not total < 2.0**63:
            wide.append(f"{x.name}: 2^{math.log2(total):.1f}")
    return wide


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
    """So that a watch has no gap there."""
    built = zoo.build(name, "seeded", 1)
    for given in (zoo.samples(zoo.find(name), 1), None):
        private = convert(built.keras, samples=given)
        limits.check(private.plan)
        assert sums_beyond_the_ring(private.plan, private.bounds) == []
