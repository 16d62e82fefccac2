"""Attention as a layer: its values with and without a mask, its ranges, its refusals."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from tests.models.test_norm_ranges import run_plan
from tests.refusals import Matching, raises
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import Graph
from tfe_bench.models.inference import execute
from tfe_bench.models.inference.private import convert
from tfe_bench.models.layers.base.layer import LayerSpec

SHAPES: dict[str, tuple[int, ...]] = {"q": (2, 3, 4), "k": (2, 5, 4), "v": (2, 5, 3), "mask": (5,)}


def graph_of(masked: bool = False, scale: float = 0.5, causal: bool = False) -> Graph:
    shapes = {n: s for n, s in SHAPES.items() if masked or n != "mask"}
    layer = LayerSpec("a", "attend", tuple(shapes), {"scale": scale, "causal": causal})
    return Graph("m", shapes, (layer,), ("a",))


def draw_arrays(rng: np.random.Generator, masked: bool, count: int = 6) -> dict[str, Any]:
    arrays = {n: rng.normal(0, 1, (count, *SHAPES[n])) for n in "qkv"}
    if masked:
        arrays["mask"] = rng.integers(0, 2, (count, 5)) | np.eye(5, dtype=np.int64)[0]
    return arrays


@pytest.mark.parametrize(
    ("masked", "causal", "calibrated"),
    [(False, True, True), (True, False, True), (True, True, False)],
)
def test_a_model_attends_as_in_the_clear(
    masked: bool, causal: bool, calibrated: bool, rng: np.random.Generator
) -> None:
    arrays = draw_arrays(rng, masked)
    graph = graph_of(masked, 0.3, causal)
    known: dict[str, Any] = {"samples": arrays} if calibrated else {"ranges": 16.0}
    private = convert(graph, **known)
    value, flags, cost = run_plan(private.plan, arrays)
    assert not flags.any()
    assert np.abs(value - private.plain(arrays)).max() < 2.0**-8
    assert cost.rounds <= 17
    again = ModelPlan.from_header(private.plan.to_header())
    assert again.to_header() == private.plan.to_header()


def test_scores_too_far_apart_are_refused_or_flagged(rng: np.random.Generator) -> None:
    arrays = draw_arrays(rng, False)
    with raises(RangeError, "range-too-large", received=Matching(r"'a' has scores .* apart")):
        convert(graph_of(scale=60.0), samples=arrays)
    private = convert(graph_of(scale=4.0), ranges=200.0)
    # 202 units of the base 2 apart, and equal
    arrays["q"][4] *= 0
    arrays["k"][3, 0, 0], arrays["k"][3, 0, 1], arrays["q"][3] = [5, 0, 0, 0], [-2, 0, 0, 0], 5
    _, flags, _ = run_plan(private.plan, arrays)
    assert flags[3] and not flags[4]


WRONG: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("queries", ("q", "k"), {}),
    ("depth", ("q", "v", "v"), {}),
    ("depth", ("q", "k", "k3"), {}),
    ("a mask", ("q", "k", "v", "v"), {}),
    ("scale", ("q", "k", "v"), {"scale": 0}),
    ("scale", ("q", "k", "v"), {"scale": math.inf}),
    ("causal", ("q", "k", "v"), {"causal": 1}),
    ("options", ("q", "k", "v"), {"window": 2}),
    ("1024 keys", ("q", "long", "long"), {}),
]


@pytest.mark.parametrize(("words", "inputs", "options"), WRONG)
def test_a_stranger_s_layer_is_checked(
    words: str, inputs: tuple[str, ...], options: dict[str, Any]
) -> None:
    shapes = {**SHAPES, "k3": (2, 4, 4), "long": (2, 1025, 4)}
    layer = LayerSpec("a", "attend", inputs, {"scale": 1.0, "causal": False, **options})
    with raises(UsageError, "invalid-layer-option", operation="a") as refused:
        Graph("m", {n: shapes[n] for n in dict.fromkeys(inputs)}, (layer,), ("a",))
    assert re.search(words, str(refused.value))


def test_a_stranger_s_numbers_are_checked(rng: np.random.Generator) -> None:
    header = convert(graph_of(), samples=draw_arrays(rng, False)).plan.to_header()
    for row in ([15, 0, 20], [16, 0, 1], [16, 0, 63]):
        with raises(UsageError, "invalid-plan", operation="a"):
            execute.check_executable_plan(ModelPlan.from_header({**header, "numbers": {"a": row}}))
