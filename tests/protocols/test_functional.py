"""TensorFlow's functions on private tensors: its results within the declared errors."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tfe_bench.cluster.simulate import reconstruct, simulate
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
OPERATIONS = {
    name
    for name in tfe.__all__
    if getattr(getattr(tfe, name), "__module__", "").startswith("tfe_bench.protocols.")
} - {"FixedPoint", "Party", "Shared"}
untyped: Any = tfe  # for calls that type checkers reject too
F = 16
ULP = 2.0**-F
FIXED = tfe.FixedPoint(F)
# On tensors, on float64 arrays, error bound in ulp.
Case = tuple[Callable[..., Any], Callable[..., Any], Any]


def draw_reals(rng: np.random.Generator, *shape: int, scale: float = 100.0) -> Array:
    """Return multiples of an ulp."""
    # (plus 0, as private numbers have no negative zero)
    return np.asarray(np.rint(rng.uniform(-scale, scale, shape) / ULP) * ULP + 0.0)


def check_functions(
    cases: list[Case], *inputs: Array, dealer: int = 0, fixed: tfe.FixedPoint = FIXED
) -> None:
    """Run all cases in one graph and compare revealed with expected values."""

    def program(p: Party, *shares: Shared) -> Any:
        return p.function(lambda *s: [tfe.reveal(case(*s)) for case, _, _ in cases])(*shares)

    rings = [fixed.encode(v) for v in inputs]
    sim = simulate(program, *rings, fractional_bits=fixed.fractional_bits, dealer=dealer)
    for i, (_, expected, bound) in enumerate(cases):
        got = [np.asarray(out[i]) for out in sim.outputs]
        assert np.array_equal(got[0], got[1]) and np.array_equal(got[0], got[2]), i
        want = np.asarray(expected(*inputs))
        assert got[0].shape == want.shape, (i, got[0].shape, want.shape)
        if np.all(np.asarray(bound) == 0):
            assert np.array_equal(got[0], want), (i, got[0], want)
            continue
        off = np.abs(got[0] - want * 1.0) / ULP
        assert np.all(off <= np.asarray(bound)), (i, off.max(), got[0], want)


def test_a_checked_function_keeps_its_signature() -> None:
    assert list(inspect.signature(tfe.sqrt).parameters) == ["x", "bits"]
    with pytest.raises(TypeError, match=r"^sqrt\(\) .*'x'"):
        untyped.sqrt(bits=62)


def test_every_function_is_a_lazy_name_of_the_package() -> None:
    """`import tfe_bench` loads no TensorFlow, and the package does not shadow Python's names."""
    for name in OPERATIONS:
        assert name in tfe.__all__ and name in dir(tfe)
        assert getattr(tfe, name).__doc__, name
    code = (
        "import sys, tfe_bench as tfe; assert 'numpy' not in sys.modules; tfe.relu, tfe.sort; "
        "assert 'tensorflow' not in sys.modules; assert 'relu' in dir(tfe)\n"
        "whole = abs\nfrom tfe_bench import *\nassert abs is tfe.abs is not whole and simulate\n"
        "import pydoc; assert 'Rounds: 4' in pydoc.render_doc(relu)\n"
        "assert 'depthwise_conv2d' in pydoc.render_doc(tfe)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no_such"):
        _ = untyped.no_such


def test_arithmetic_by_name(rng: np.random.Generator) -> None:
    x, y = draw_reals(rng, 2, 3), draw_reals(rng, 3)
    mean = 1.5
    cases: list[Case] = [
        (tfe.add, lambda x, y: x + y, 0),
        (tfe.subtract, lambda x, y: x - y, 0),
        (tfe.multiply, lambda x, y: x * y, 1),
        (lambda x, y: tfe.divide(x, 4), lambda x, y: x / 4, 1),
        (lambda x, y: tfe.negative(x), lambda x, y: -x, 0),
        (lambda x, y: tfe.abs(x), lambda x, y: np.abs(x), 0),
        (lambda x, y: tfe.square(x), lambda x, y: x**2, 1),
        (lambda x, y: tfe.pow(x, 2), lambda x, y: x**2, 1),
        (lambda x, y: tfe.matmul(x, y[:, None]), lambda x, y: x @ y[:, None], 1),
        (lambda x, y: tfe.add_n([x, x, np.ones((2, 3))]), lambda x, y: x + x + 1, 0),
        (lambda x, y: tfe.sign(x - x[0, 0]), lambda x, y: np.sign(x - x[0, 0]), 0),
        (tfe.maximum, np.maximum, 0),
        (tfe.minimum, np.minimum, 0),
        (lambda x, y: tfe.maximum(0, x), lambda x, y: np.maximum(0, x), 0),
        (lambda x, y: tfe.minimum(x, [1, 2, 3], bits=31), lambda x, y: np.minimum(x, [1, 2, 3]), 0),
        (lambda x, y: tfe.clip_by_value(x, -5, y * y), lambda x, y: np.clip(x, -5, y * y), 1),
        (lambda x, y: tfe.clip_by_value(x, -5, 5), lambda x, y: np.clip(x, -5, 5), 0),
        (lambda x, y: tfe.cumsum(x, 1), lambda x, y: np.cumsum(x, 1), 0),
        (lambda x, y: tfe.reduce_sum(x), lambda x, y: x.sum(), 0),
        (lambda x, y: tfe.reduce_sum(x, [0, -1], True), lambda x, y: x.sum(keepdims=True), 0),
        (lambda x, y: tfe.reduce_mean(x, 0), lambda x, y: x.mean(0), mean),
        (
            lambda x, y: tfe.reduce_mean(x, 1, keepdims=True),
            lambda x, y: x.mean(1, keepdims=True),
            mean,
        ),
        (lambda x, y: tfe.reduce_mean(x), lambda x, y: x.mean(), mean),
    ]
    check_functions(cases, x, y, dealer=int(rng.integers(3)))


def test_comparisons_and_logic_by_name(rng: np.random.Generator) -> None:
    x, y = np.rint(draw_reals(rng, 40, scale=4)), np.rint(draw_reals(rng, 40, scale=4))
    cases: list[Case] = [
        (getattr(tfe, name), getattr(np, name), 0)
        for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
    ]
    cases += [
        (
            lambda x, y, name=name: getattr(tfe, name)(x < 0, tfe.less(y, 0, bits=31)),
            lambda x, y, name=name: getattr(np, name)(x < 0, y < 0),
            0,
        )
        for name in ("logical_and", "logical_or", "logical_xor")
    ]
    cases += [
        (lambda x, y: tfe.logical_not(x < y), lambda x, y: x >= y, 0),
        (lambda x, y: tfe.where(tfe.equal(x, 0), y, 7), lambda x, y: np.where(x == 0, y, 7), 0),
        (lambda x, y: tfe.cast(x == y), lambda x, y: x == y, 0),
    ]
    check_functions(cases, x, y, dealer=int(rng.integers(3)))


def test_extremes_over_axes_of_every_rank(rng: np.random.Generator) -> None:
    x = np.rint(draw_reals(rng, 2, 1, 3, 2, scale=4))
    s = np.asarray(2.5)
    cases: list[Case] = [
        (lambda x, s: tfe.reduce_max(x), lambda x, s: x.max(), 0),
        (lambda x, s: tfe.reduce_max(s), lambda x, s: s, 0),
        (lambda x, s: tfe.reduce_max(x, 2), lambda x, s: x.max(2), 0),
        (
            lambda x, s: tfe.reduce_max(x, np.int64(-1), True),
            lambda x, s: x.max(-1, keepdims=True),
            0,
        ),
        (lambda x, s: tfe.reduce_min(x, (0, 2)), lambda x, s: x.min((0, 2)), 0),
        (
            lambda x, s: tfe.reduce_min(x, [2, 0], True),
            lambda x, s: x.min((0, 2), keepdims=True),
            0,
        ),
        (lambda x, s: tfe.argmax(x), lambda x, s: x.argmax(0), 0),
        (lambda x, s: tfe.argmax(x, -2, bits=31), lambda x, s: x.argmax(-2), 0),
        (lambda x, s: tfe.argmin(x, 2), lambda x, s: x.argmin(2), 0),
    ]
    check_functions(cases, x, s, dealer=int(rng.integers(3)))


def test_order_between_graphs(rng: np.random.Generator) -> None:
    x = draw_reals(rng, 2, 7, 3)
    line = x[0, :, 0]
    cases: list[Case] = [
        (lambda x: tfe.sort(x), lambda x: np.sort(x), 0),
        (lambda x: tfe.sort(x, 1, "DESCENDING"), lambda x: -np.sort(-x, 1), 0),
        (lambda x: tfe.top_k(x, 2)[0], lambda x: -np.sort(-x)[..., :2], 0),
        (lambda x: tfe.top_k(x, 2)[1], lambda x: np.argsort(-x, kind="stable")[..., :2], 0),
        (lambda x: tfe.median(x, 1), lambda x: np.median(x, 1), 1),
        (lambda x: tfe.median(x), lambda x: np.median(x), 1),
        (
            lambda x: tfe.quantile(x, 0.3, (0, 1)),
            lambda x: np.quantile(x, 0.3, (0, 1)),
            1 + 2**-16 * 200 / ULP,
        ),
        (lambda x: tfe.quantile(x[0, :, 0], 1), lambda x: line.max(), 0),
    ]

    def program(p: Party, x: Shared) -> Any:
        return [case(x) for case, _, _ in cases]

    sim = simulate(program, FIXED.encode(x), fractional_bits=F, dealer=int(rng.integers(3)))
    for i, (_, expected, bound) in enumerate(cases):
        parts = [out[i] for out in sim.outputs]
        got, want = reconstruct(parts) * 2.0 ** -parts[0].fractional_bits, expected(x)
        assert np.shape(got) == np.shape(want), i
        assert np.all(np.abs(got - want) <= np.asarray(bound) * ULP), i


def test_layers_of_networks(rng: np.random.Generator) -> None:
    import tensorflow as tf

    x, w = draw_reals(rng, 2, 5, 6, 2, scale=8), draw_reals(rng, 3, 2, 2, 3, scale=2)
    b = draw_reals(rng, 3)
    public = 1 + 12 * 8 * 2.0**-17 / ULP  # kernels have 24 bits, at least 16 of them fractional

    def tf_conv(x: Any, w: Any, **more: Any) -> Array:
        return np.asarray(tf.nn.conv2d(x, w, **{"strides": 1, "padding": "VALID", **more}))

    def depthwise(x: Any, w: Any) -> Array:
        return np.asarray(tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"))

    def slope(x: Array, alpha: float) -> Array:
        return np.asarray(np.where(x >= 0, x, alpha * x))

    cases: list[Case] = [
        (lambda x, w, b: tfe.relu(x), lambda x, w, b: np.maximum(x, 0), 0),
        (lambda x, w, b: tfe.relu(x * 1000, bits=40), lambda x, w, b: np.maximum(x * 1000, 0), 0),
        (lambda x, w, b: tfe.relu_derivative(x), lambda x, w, b: x >= 0, 0),
        (lambda x, w, b: tfe.leaky_relu(x), lambda x, w, b: slope(x, 0.2), 1.1),
        (lambda x, w, b: tfe.leaky_relu(x, alpha=0.5), lambda x, w, b: slope(x, 0.5), 1),
        (lambda x, w, b: tfe.conv2d(x, w), lambda x, w, b: tf_conv(x, w), 1),
        (
            lambda x, w, b: tfe.conv2d(x, w, [1, 2, 1, 1], "SAME", bias=b),
            lambda x, w, b: tf_conv(x, w, strides=[1, 2, 1, 1], padding="SAME") + b,
            1,
        ),
        (
            lambda x, w, b: tfe.conv2d(x, np.array(w_plain), dilations=2, bias=b_plain.tolist()),
            lambda x, w, b: tf_conv(x, w, dilations=2) + b,
            public,
        ),
        (lambda x, w, b: tfe.conv2d(x_plain, w), lambda x, w, b: tf_conv(x, w), 1),
        (
            lambda x, w, b: tfe.depthwise_conv2d(x, w, 1, "SAME"),
            lambda x, w, b: depthwise(x, w),
            1,
        ),
        (
            lambda x, w, b: tfe.depthwise_conv2d(x, tf.constant(w_plain), [1, 1, 1, 1], "SAME"),
            lambda x, w, b: depthwise(x, w),
            public,
        ),
        (
            lambda x, w, b: tfe.max_pool2d(x, 2),
            lambda x, w, b: tf.nn.max_pool2d(x, 2, 2, "VALID"),
            0,
        ),
        (
            lambda x, w, b: tfe.max_pool2d(x, [1, 3, 3, 1], [1, 2, 2, 1], "same"),
            lambda x, w, b: tf.nn.max_pool2d(x, 3, 2, "SAME"),
            0,
        ),
        (
            lambda x, w, b: tfe.avg_pool2d(x, (2, 3), 1, "SAME"),
            lambda x, w, b: tf.nn.avg_pool2d(x, (2, 3), 1, "SAME"),
            1.1,
        ),
        (lambda x, w, b: tfe.sigmoid(x), lambda x, w, b: 1 / (1 + np.exp(-x)), 2),
        (lambda x, w, b: tfe.tanh(x), lambda x, w, b: np.tanh(x), 2),
        (
            lambda x, w, b: tfe.gelu(x),
            lambda x, w, b: np.asarray(tf.nn.gelu(tf.cast(x, tf.float64))),
            3,
        ),
        (lambda x, w, b: tfe.softmax(x, 1), lambda x, w, b: np.asarray(tf.nn.softmax(x, 1)), 2),
    ]
    x_plain, w_plain, b_plain = x, w, b
    check_functions(cases, x, w, b, dealer=int(rng.integers(3)))


def test_relu_takes_the_small_rings_that_fused_products_leave(rng: np.random.Generator) -> None:
    x, w = draw_reals(rng, 4, 3, scale=8), draw_reals(rng, 3, 2, scale=8)

    def program(p: Party, x: Shared, w: Shared) -> Any:
        return p.function(lambda x, w: tfe.relu(relu.truncated_product(p, x, w, F)))(x, w)

    sim = simulate(program, FIXED.encode(x), FIXED.encode(w), fractional_bits=F)
    assert np.all(np.abs(FIXED.decode(sim.value()) - np.maximum(x @ w, 0)) <= ULP)


def test_elementary_functions_over_their_ranges(rng: np.random.Generator) -> None:
    wide = np.concatenate([[0, ULP, 1, 2.0**14 - ULP], 2.0 ** rng.uniform(-16, 14, 300)])
    pos = np.rint(wide / ULP) * ULP
    any_sign = np.where(rng.random(len(pos)) < 0.5, -pos, pos)
    v = np.concatenate([[0, ULP, -ULP, 31, -40, 40, 1000, -1000], rng.uniform(-30, 30, 296)])
    v = np.rint(v / ULP) * ULP
    safe = np.where(pos == 0, 1, pos)

    def inverse(x: Array) -> Array:
        return np.asarray(np.where(x == 0, 0, 1 / np.where(x == 0, 1, x)))

    def bound(y: Array, bits: float, ulp: float = 1.2) -> Array:
        return np.asarray(ulp + np.abs(y) * 2.0**-bits / ULP)

    high = 31.88
    e = np.exp(np.minimum(v, high))
    roots = np.sqrt(pos)
    rroots = np.where(pos == 0, 0, 1 / np.sqrt(safe))
    logs = np.where(pos == 0, -F * np.log(2), np.log(safe))
    inside = np.abs(v) < 30.5
    cases: list[Case] = [
        (lambda p, s, v: tfe.sqrt(p), lambda p, s, v: roots, bound(roots, 20)),
        (lambda p, s, v: tfe.rsqrt(p), lambda p, s, v: rroots, bound(rroots, 20)),
        (lambda p, s, v: tfe.log(p), lambda p, s, v: logs, 1.1 + 0.25),
        (
            lambda p, s, v: tfe.reciprocal(s),
            lambda p, s, v: inverse(s),
            bound(inverse(any_sign), 20),
        ),
        (
            lambda p, s, v: tfe.reciprocal(s, signed=False, bits=31),
            lambda p, s, v: inverse(np.maximum(s, 0)),
            bound(inverse(any_sign), 20),
        ),
        (
            lambda p, s, v: tfe.exp(v),
            lambda p, s, v: e,
            np.where(inside | (v < 0), bound(e, 28), bound(e, 7)),
        ),
        (
            lambda p, s, v: tfe.polyval([0.5, -1, 2.25], v, bits=28),
            lambda p, s, v: np.polyval([0.5, -1, 2.25], v),
            np.where(np.abs(v) < 2**11, 1.2, np.inf),
        ),
    ]
    check_functions(cases, pos, any_sign, v, dealer=int(rng.integers(3)))


def test_shapes_with_public_parts(rng: np.random.Generator) -> None:
    x = draw_reals(rng, 2, 3, 4)
    ones = np.ones((2, 3, 4))
    cases: list[Case] = [
        (lambda x: tfe.reshape(x, [4, -1]), lambda x: x.reshape(4, 6), 0),
        (lambda x: tfe.transpose(x, [1, 0, 2]), lambda x: x.transpose(1, 0, 2), 0),
        (lambda x: tfe.concat([x, ones, x], 1), lambda x: np.concatenate([x, ones, x], 1), 0),
        (lambda x: tfe.concat([ones.tolist(), x], -1), lambda x: np.concatenate([ones, x], -1), 0),
        (lambda x: tfe.stack([x, ones]), lambda x: np.stack([x, ones]), 0),
        (lambda x: tfe.unstack(x, 3, axis=1)[2], lambda x: x[:, 2], 0),
        (lambda x: tfe.unstack(x)[1], lambda x: x[1], 0),
        (lambda x: tfe.split(x, 2, 2)[1], lambda x: x[..., 2:], 0),
        (lambda x: tfe.slice(x, [0, 1, 0], [1, 2, -1]), lambda x: x[:1, 1:], 0),
        (
            lambda x: tfe.pad(x, [[0, 1], [0, 0], [2, 0]], constant_values=-1.5),
            lambda x: np.pad(x, [(0, 1), (0, 0), (2, 0)], constant_values=-1.5),
            0,
        ),
        (lambda x: tfe.gather(x, [2, 0], axis=1), lambda x: x[:, [2, 0]], 0),
        (lambda x: tfe.tile(x, [1, 2, 1]), lambda x: np.tile(x, [1, 2, 1]), 0),
        (lambda x: tfe.expand_dims(x, -1), lambda x: x[..., None], 0),
        (lambda x: tfe.squeeze(x[:, :1]), lambda x: x[:, 0], 0),
        (lambda x: tfe.broadcast_to(x, [2, 2, 3, 4]), lambda x: np.stack([x, x]), 0),
        (lambda x: tfe.reverse(x, [0, 2]), lambda x: x[::-1, :, ::-1], 0),
    ]
    check_functions(cases, x, dealer=int(rng.integers(3)))


def test_reveal_gives_reals_integers_and_truth_values_to_whom_it_says() -> None:
    x = np.array([1.25, -3.0])

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            return tfe.reveal(x, to=1), tfe.reveal(tfe.cast(x < 0), to=2), tfe.reveal(x < 0)

        return p.function(graph)(x)

    out = simulate(program, FIXED.encode(x), fractional_bits=F).outputs
    assert [o[0] is None for o in out] == [True, False, True]
    assert [o[1] is None for o in out] == [True, True, False]
    assert np.array_equal(out[1][0], x) and out[1][0].dtype == np.float64
    assert np.array_equal(out[2][1], [0, 1]) and out[2][1].dtype == np.int64
    assert all(np.array_equal(o[2], [False, True]) and o[2].dtype == bool for o in out)
