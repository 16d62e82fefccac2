"""Activations with arguments: their interpretation, their values at the edges, and refusals."""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.models.test_execute import make_case, run_all
from tests.refusals import Matching, raises
from tfe_bench.cluster.simulate import assert_costs
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.convert import plaintext
from tfe_bench.models.convert.calibration import ModelPlan
from tfe_bench.models.convert.graph import Graph, LayerSpec
from tfe_bench.models.inference import execute
from tfe_bench.models.inference.private import convert

keras: Any = pytest.importorskip("keras")
L: Any = keras.layers
A: Any = keras.activations
ULP = 2.0**-16

RELUS = [
    ("relu", {"negative_slope": slope, "max_value": most, "threshold": threshold})
    for slope, most, threshold in itertools.product(
        (0.0, 0.25), (None, 0.0, 1.5, 6), (-0.75, 0.0, 1.0, 1.5)
    )
]
# Private forms of these, and other activations at the edges of their arguments.
PRIVATE: list[tuple[str, dict[str, Any]]] = [
    *(RELUS[i] for i in (0, 2, 8, 16, 18, 20, 24, 25, 26, 27)),
    ("leaky_relu", {"negative_slope": -3.0}),
    ("elu", {"alpha": -2.0}),
    ("celu", {"alpha": 0.015625}),
    ("celu", {"alpha": 64.0}),
    ("gelu", {"approximate": True}),
    ("hard_sigmoid", {}),
    ("hard_silu", {}),
    ("hard_tanh", {}),
    ("sparse_plus", {}),
    ("sparse_sigmoid", {}),
    ("soft_shrink", {"threshold": 0.0}),
    ("soft_shrink", {"threshold": 1.25}),
    ("hard_shrink", {"threshold": -1.0}),
    ("hard_shrink", {"threshold": 1.25}),
    ("threshold", {"threshold": -0.75, "default_value": np.float32(2.0)}),
    ("squareplus", {"b": 0.00390625}),
    ("squareplus", {"b": 64}),
    ("softmax", {"axis": 1}),
    ("log_softmax", {"axis": -2}),
]
KNOTS = (-3.0, -1.25, -1.0, -0.75, 0.0, 1.0, 1.25, 1.5, 3.0, 6.0)


def parallel_activations(
    some: list[tuple[str, dict[str, Any]]], shape: tuple[int, ...], called: bool = False
) -> Any:
    """Build a model of several activations of the same values, as layers or as functions."""
    x = keras.Input(shape)
    functions = [partial(getattr(A, name), **options) for name, options in some]
    branches = [f(x) if called else L.Activation(f)(x) for f in functions]
    return keras.Model(x, L.Concatenate()(branches))


def edge_values() -> Any:
    """Return both sides of every knot and distant values, as multiples of an ulp."""
    near = [knot + i * ULP for knot in KNOTS for i in (-1, 0, 1)]
    return np.array([*near, -30.0, 30.0, -7.5, 7.5, 0.5, -0.5]).reshape(1, 6, 6)


def test_every_form_of_a_relu_is_read_as_what_it_is() -> None:
    x = edge_values()
    for called in (False, True):
        model = parallel_activations(RELUS, (6, 6), called)
        want = np.asarray(model(x, training=False))
        assert np.abs(convert(model).plain(x) - want).max() < 1e-5


def test_activations_are_right_at_the_edges_of_their_arguments(rng: np.random.Generator) -> None:
    model, x, calibrated = (
        parallel_activations(PRIVATE, (6, 6)),
        edge_values(),
        bool(rng.integers(2)),
    )
    private = convert(model, samples=x if calibrated else None)
    some = make_case(private, x, watched=calibrated)
    execute.check_executable_plan(private.plan)
    ((got, _),) = run_all([some], int(rng.integers(3)), again=False)
    (got,) = plaintext.finish_model_outputs(private.plan.graph, [got])
    off = np.abs(got - np.asarray(model(x, training=False))).reshape(6, len(PRIVATE), 6).max((0, 2))
    assert off.max() < 4 * ULP, dict(zip(map(str, PRIVATE), off / ULP, strict=True))


SERIES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("gelu", "silu", "softplus", "mish", "sigmoid", "tanh")),
    ("gelu", {"approximate": True}),
]


@pytest.mark.parametrize("bits", [8, 16, 20])
def test_series_are_near_and_cost_what_is_declared(bits: int, rng: np.random.Generator) -> None:
    """Use values with samples or without; the next layer reads them with one bit more."""
    x, dealer = edge_values() / 2, int(rng.integers(3))
    model_input = keras.Input((6, 6))
    model = parallel_activations(SERIES, (6, 6))
    behind = keras.Model(
        model_input, L.Dense(4, "relu", kernel_initializer="ones")(model(model_input))
    )
    calibrated = bool(rng.integers(2))
    for net, most in ((model, 1), (behind, 6 * len(SERIES))):
        private = convert(
            net,
            samples=x if calibrated else None,
            fractional_bits=bits,
            activations="series",
        )
        used = {y.op for y in private.graph.layers}
        assert "series" in used and not used & {"gelu", "silu", "sigmoid", "tanh"}
        some = make_case(private, x, watched=calibrated)
        execute.check_executable_plan(private.plan)
        ((got, calls),) = run_all([some], dealer)
        assert_costs(calls, execute.model_cost(some[0]), dealer)
        (got,) = plaintext.finish_model_outputs(private.plan.graph, [got])
        # (a step of 2^-16 vanishes where values have 8 fractional bits)
        bound = most * (2.0**-10.5 + 4 * 2.0 ** -min(bits, 16))
        off = np.abs(got - net.predict(x, verbose=0)).max()
        assert off < bound
        if calibrated:  # the summary reports the error
            errors = {
                e.name: e.error.largest for e in private.summary().rows if e.error is not None
            }
            assert off < 4 * max(errors.values())


def test_series_that_do_not_fit_are_refused_in_words() -> None:
    x = keras.Input((4,))
    model = keras.Model(x, L.Activation("silu")(x))
    with raises(UsageError, "unknown-name", operation="activations", received="fast"):
        convert(model, activations="fast")
    with raises(
        RangeError, "range-too-large", received=Matching(r"compares values up to 2\.68435e")
    ):
        convert(model, ranges=2.0**28 - 1, fractional_bits=16, activations="series")
    header = convert(model, ranges=8.0, activations="series").plan.to_header()
    (name,) = header["numbers"]
    for fraction, bits, number in ((8, 20, "7"), (18, 20, "17"), (17, 46, "46")):
        header["numbers"][name] = [fraction, 0, bits]
        with raises(UsageError, "invalid-plan", operation=name, names=(number,)):
            execute.check_executable_plan(ModelPlan.from_header(header))


def test_activations_that_are_no_such_function_are_refused_in_words() -> None:
    x = keras.Input((4,))

    def own(x: Any) -> Any:
        return x

    for function, text in (
        (own, "its activation is 'own'"),
        (A.sparsemax, "'sparsemax'"),
        (partial(A.relu, max_value=-1.0), "max_value=-1"),
        (partial(A.celu, alpha=-1.0), "alpha=-1"),
        (partial(A.elu, alpha=65.0), "alpha=65"),
        (partial(A.soft_shrink, threshold=-1.0), "threshold=-1"),
        (partial(A.leaky_relu, negative_slope=np.ones(4)), "negative_slope=array"),
        (partial(A.softmax, axis=0), "axis 0 is the batch"),
    ):
        with raises(UsageError, "unsupported-layer", received=Matching(text)):
            convert(keras.Model(x, L.Activation(function)(x)))
    with raises(RangeError, "range-too-large", received=Matching("exponential of values up to")):
        convert(keras.Model(x, L.Activation("exponential")(x)), samples=np.full((1, 4), 9.0))
    with raises(
        UsageError, "unsupported-layer", received=Matching("as the activation of another layer")
    ):
        convert(keras.Model(x, L.Dense(3, activation=L.PReLU())(x)))


LINE: dict[str, Any] = {
    "knots": [0.0, 1.0],
    "slopes": [0.0, 1.0, 0.5],
    "jumps": [0.0, 0.0],
    "strict": [False, True],
    "start": 0.0,
}


@pytest.mark.parametrize(
    ("op", "options", "text"),
    [
        ("polyline", LINE | {"knots": [1.0, 1.0]}, "ascending"),
        ("polyline", LINE | {"knots": [0.0]}, "knots"),
        ("polyline", LINE | {"knots": 3.0}, "list"),
        ("polyline", LINE | {"knots": [0.0, 2.0**21]}, "up to 1048576"),
        ("polyline", LINE | {"slopes": [0.0, 65.0, 0.0]}, "slopes up to"),
        ("polyline", LINE | {"strict": [0, 1]}, "true or false"),
        ("polyline", LINE | {"start": float("inf")}, "start"),
        ("elu", {"positive": 1.0, "negative": 65.0, "decay": 1.0}, "up to 64"),
        ("elu", {"positive": 1.0, "negative": 1.0, "decay": 0.01}, "decay from"),
        ("elu", {"positive": True, "negative": 1.0, "decay": 1.0}, "three numbers"),
        ("squareplus", {"b": 0.0}, "from 2"),
        ("series", {"function": "selu"}, "function of gelu"),
        ("series", {"function": ["silu"]}, "function of gelu"),
    ],
)
def test_options_of_strangers_are_checked(op: str, options: dict[str, Any], text: str) -> None:
    with raises(UsageError, "invalid-layer-option", operation="a") as refused:
        Graph("m", {"x": (2,)}, (LayerSpec("a", op, ("x",), options),), ("a",))
    assert re.search(text, str(refused.value))
