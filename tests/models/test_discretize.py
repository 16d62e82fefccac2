"""Discretization: bins at their edges, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.models.test_execute import make_case, model_of, run_all
from tests.refusals import raises
from tfe_bench.errors import UsageError
from tfe_bench.models.convert.graph import Graph, LayerSpec
from tfe_bench.models.inference.private import convert

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
ULP = 2.0**-16
# One boundary is no multiple of a ring unit, and one is beyond all inputs.
BOUNDARIES = [-2.5, -1 / 3, 0.0, 2.0**-16, 1.0, 1000.0]


@pytest.mark.parametrize("mode", ["int", "one_hot"])
def test_bins_are_right_at_their_edges(mode: str) -> None:
    around = [(round(b / ULP) + step) * ULP for b in BOUNDARIES[:-1] for step in (-2, -1, 0, 1, 2)]
    x = np.array([*around, -16.0, 16.0]).reshape(-1, 3)
    model = model_of(L.Discretization(BOUNDARIES, output_mode=mode), shape=(3,))
    private = convert(model, samples=x)
    [(values, _)] = run_all([make_case(private, x, watched=True)], 0, again=False)
    assert np.array_equal(values, np.asarray(model(x)))


def test_many_boundaries_count() -> None:
    boundaries = list(np.linspace(-8, 8, 64))
    x = np.random.default_rng(5).uniform(-9, 9, (4, 2, 5))
    model = model_of(L.Discretization(boundaries), shape=(2, 5))
    [(values, _)] = run_all([make_case(convert(model, samples=x), x)], 1, again=False)
    assert np.array_equal(values, np.asarray(model(x)))


@pytest.mark.parametrize("mode", ["multi_hot", "count"])
def test_codes_of_a_whole_row_are_refused(mode: str) -> None:
    model = model_of(L.Discretization([0.0], output_mode=mode), shape=(3,))
    with raises(UsageError, "unsupported-layer", names=[mode]):
        convert(model)


@pytest.mark.parametrize(
    ("boundaries", "one_hot"),
    [
        ([], False),
        ([0.0] * 65, False),
        ([1.0, 0.0], False),
        ([2.0**21], True),
        ([0.0], 1),
        (3, True),
    ],
)
def test_options_of_headers_are_checked(boundaries: Any, one_hot: Any) -> None:
    layer = LayerSpec("a", "discretize", ("x",), {"boundaries": boundaries, "one_hot": one_hot})
    with raises(UsageError, "invalid-layer-option", operation="a"):
        Graph("m", {"x": (3,)}, (layer,), ("a",))
