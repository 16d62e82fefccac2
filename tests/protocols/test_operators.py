"""Python's operators on private tensors equal NumPy's, with public values on both sides."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import ProtocolError, RangeError, TfeBenchError, UsageError
from tfe_bench.protocols.ring import convert, relational
from tfe_bench.protocols.session.counting import Private, PrivateBits, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

Array = np.ndarray[Any, Any]
F = 16
ULP = 2.0**-F
FIXED = tfe.FixedPoint(F)
untyped: Any = tfe  # for calls that type checkers reject too
# Case: on tensors, on float64 arrays, error bound (a number or an array) in ulp.
Case = tuple[Callable[..., Any], Callable[..., Any], Any]

COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def draw_reals(rng: np.random.Generator, *shape: int, scale: float = 100.0) -> Array:
    """Return multiples of an ulp, some of them equal, 0, and +-1 ulp."""
    x = np.rint(rng.uniform(-scale, scale, shape) / ULP) * ULP
    edge = rng.choice([0.0, ULP, -ULP, 1.0, -1.0], shape)
    return np.asarray(np.where(rng.random(shape) < 0.3, edge, x))


def check_operators(cases: list[Case], *inputs: Array, dealer: int = 0, f: int = F) -> None:
    """Run all cases in one graph and compare revealed with expected values."""

    def program(p: Party, *shares: Shared) -> Any:
        return p.function(lambda *s: [tfe.reveal(case(*s)) for case, _, _ in cases])(*shares)

    ring = [tfe.FixedPoint(f).encode(v) for v in inputs]
    sim = simulate(program, *ring, fractional_bits=f, dealer=dealer)
    for i, (_, expected, bound) in enumerate(cases):
        got = [np.asarray(out[i]) for out in sim.outputs]
        assert np.array_equal(got[0], got[1]) and np.array_equal(got[0], got[2]), i
        want = np.asarray(expected(*inputs))
        assert got[0].shape == want.shape, (i, got[0].shape, want.shape)
        if want.dtype == bool:
            assert got[0].dtype == bool and np.array_equal(got[0], want), i
        else:
            off = np.abs(got[0] - want) / ULP
            assert np.all(off <= np.asarray(bound)), (i, off.max(), got[0], want)


def run_refused(program: Callable[..., Any], *inputs: Array) -> Any:
    """Run a program of one graph for its errors, and return its result."""
    return simulate(program, *(FIXED.encode(v) for v in inputs), fractional_bits=F)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((), ()),
        ((), (2, 3)),
        ((3,), (2, 1)),
        ((2, 1, 3), (4, 1)),
        ((2, 2, 1, 3), (3,)),
        ((0, 3), (3,)),
    ],
)
def test_operators_of_two_private_tensors_broadcast_as_numpy(
    a: tuple[int, ...], b: tuple[int, ...], rng: np.random.Generator
) -> None:
    cases: list[Case] = [
        (operator.add, operator.add, 0),
        (operator.sub, operator.sub, 0),
        (operator.mul, operator.mul, 1),
        (operator.eq, np.equal, 0),
        (lambda x, y: (x < y) | (x == y), np.less_equal, 0),
        (lambda x, y: tfe.where(x < y, x, y), np.minimum, 0),
    ]
    check_operators(cases, draw_reals(rng, *a), draw_reals(rng, *b), dealer=int(rng.integers(3)))


def test_comparisons_are_exact_for_all_encoded_values(rng: np.random.Generator) -> None:
    top = (2.0**61 - 2.0**20) * ULP * 2
    edge = np.array([0, ULP, -ULP, 1, -1, top, -top])
    x = np.concatenate([np.repeat(edge, len(edge)), draw_reals(rng, 200)])
    y = np.concatenate([np.tile(edge, len(edge)), draw_reals(rng, 200)])
    cases: list[Case] = [(c, c, 0) for c in COMPARISONS]
    cases += [
        (lambda x, y: abs(x), lambda x, y: np.abs(x), 0),
        (lambda x, y: -x, lambda x, y: -x, 0),
        (lambda x, y: tfe.less(x, y, bits=64), np.less, 0),
    ]
    check_operators(cases, x, y, dealer=int(rng.integers(3)))


def test_public_operands_of_every_kind_on_both_sides(rng: np.random.Generator) -> None:
    import tensorflow as tf

    array = draw_reals(rng, 3, scale=3)
    array[array == 0] = 0.5
    kinds: list[tuple[Any, Any]] = [
        (2.5, 2.5),
        (-3, -3),
        (True, 1),
        (np.float32(0.3), np.float64(np.float32(0.3))),
        (np.int64(7), 7),
        (array, array),
        ([1, 2, 3], np.array([1, 2, 3])),
    ]
    x = draw_reals(rng, 2, 3)
    cases: list[Case] = []
    # a public real keeps 24 bits of the largest, at least 16 of them fractional
    weight = np.abs(x) * 2.0**-17 / ULP
    for value, plain in kinds:
        rounded = FIXED.decode(FIXED.encode(plain))

        def of(op: Any, v: Any, left: bool) -> Any:
            return (lambda x: op(v, x)) if left else (lambda x: op(x, v))

        for op in (operator.add, operator.sub):
            for left in (False, True):
                cases.append((of(op, value, left), of(op, rounded, left), 0))
        for left in (False, True):
            cases.append((of(operator.mul, value, left), of(operator.mul, plain, left), 1 + weight))
        cases.append(
            (of(operator.truediv, value, False), of(operator.truediv, plain, False), 1 + weight)
        )
        if isinstance(value, list):
            continue
        for op in COMPARISONS[:: 2 if isinstance(value, bool) else 1]:
            if np.ndim(plain) or isinstance(value, float):
                cases.append((of(op, value, True), of(op, rounded, True), 0))
        cases.append((of(operator.lt, value, False), of(operator.lt, rounded, False), 0))
    matrix = draw_reals(rng, 4, 2, scale=3)
    sums = 1 + np.abs(x).sum(0).max() * 2.0**-17 / ULP
    cases += [
        (lambda x: matrix @ x, lambda x: matrix @ x, sums),
        (lambda x: x @ matrix[:3], lambda x: x @ matrix[:3], 1 + 3 * weight.max()),
        (lambda x: tf.constant(matrix) @ x, lambda x: matrix @ x, sums),
        (lambda x: tf.constant(array) * x, lambda x: array * x, 1 + weight),
        (lambda x: tf.constant(2.0) - x, lambda x: 2 - x, 0),
        (lambda x: tf.constant([1, 2, 3]) + x, lambda x: np.array([1, 2, 3]) + x, 0),
        (
            lambda x: tf.constant(4.0) / tfe.maximum(x, 1),
            lambda x: 4 / np.maximum(x, 1),
            1.25 + 4 * 2.0**-20 / ULP,
        ),
        (lambda x: x > tf.constant(0.5), lambda x: x > 0.5, 0),
        (lambda x: x * 1e-6 * 1e5, lambda x: x * 0.1, 1 + 1e5 * 2),
        (lambda x: x / 1000.0, lambda x: x / 1000, 1 + np.abs(x) * 2.0**-26 / ULP),
    ]
    check_operators(cases, x, dealer=int(rng.integers(3)))


def test_public_tensors_that_only_the_graph_knows(rng: np.random.Generator) -> None:
    x, t = draw_reals(rng, 2, 3), draw_reals(rng, 3, scale=4)
    t[t == 0] = 2.0

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared, t: Any) -> Any:
            import tensorflow as tf

            whole = tf.cast(t, tf.int32)
            results = [t + x, x - t, t * x, x / t, x * whole, t[None] @ tfe.transpose(x)]
            bits = [x < t, (x < t) & (t > 0), tf.greater(t, 0) | (x < t), x == t]
            chosen = [tfe.where(t > 0, x, 2.0), tfe.where(x < t, t, x)]
            return [tfe.reveal(v) for v in (*results, *bits, *chosen)]

        return p.function(graph)(x, t)

    sim = run_refused(program, x)
    weight = 1 + np.abs(x) * 2.0**-17 / ULP
    want: list[tuple[Any, Any]] = [
        (t + x, 0),
        (x - t, 0),
        (t * x, weight),
        (x / t, weight + np.abs(x) * 2.0**-17 / ULP),
        (x * np.trunc(t), 0),
        (t[None] @ x.T, 1 + 3 * weight.max()),
        (x < t, 0),
        ((x < t) & (t > 0), 0),
        ((x < t) | (t > 0), 0),
        (x == t, 0),
        (np.where(t > 0, x, 2.0), 0),
        (np.maximum(x, t), 0),
    ]
    for i, (expected, bound) in enumerate(want):
        got = sim.outputs[0][i]
        assert np.all(np.abs(got * 1.0 - expected * 1.0) <= np.asarray(bound) * ULP), i


def test_products_quotients_and_powers_keep_the_scale(rng: np.random.Generator) -> None:
    x, y = draw_reals(rng, 3, 4, 5, scale=8), draw_reals(rng, 5, 2, scale=8)
    d = np.where(np.abs(x) < 0.01, -3.0, x)
    k = np.abs(x)

    def powered(n: int) -> Any:
        return 2 * n * np.maximum(k, 1) ** (n - 1)

    cases: list[Case] = [
        (lambda x, y, d: x @ y, lambda x, y, d: x @ y, 1),
        (lambda x, y, d: tfe.matmul(y, x, True, True), lambda x, y, d: y.T @ x.swapaxes(1, 2), 1),
        (lambda x, y, d: x / d, lambda x, y, d: x / d, 1.25 + np.abs(x / d) * 2.0**-20 / ULP),
        (lambda x, y, d: x**2, lambda x, y, d: x**2, 1),
        (lambda x, y, d: x**3, lambda x, y, d: x**3, powered(3)),
        (lambda x, y, d: x**1, lambda x, y, d: x, 0),
        (lambda x, y, d: (x / 8) ** np.int64(6), lambda x, y, d: (x / 8) ** 6, 20),
        (lambda x, y, d: x[..., :3], lambda x, y, d: x[..., :3], 0),
        (lambda x, y, d: x[1, None, -1], lambda x, y, d: x[1, None, -1], 0),
    ]
    check_operators(cases, x, y, d, dealer=int(rng.integers(3)))


def test_integers_stay_exact_and_meet_whole_numbers_only(rng: np.random.Generator) -> None:
    x = rng.integers(-1000, 1000, 50)

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            errors = []
            for wrong in (lambda: x + 2.5, lambda: x < np.array(0.1), lambda: tfe.maximum(x, 0.5)):
                with raises(UsageError, "not-whole") as e:
                    wrong()
                errors.append(e)
            third = x * 0.3
            assert third.fractional_bits == 16
            results: list[Shared | MaskedBits] = [x + 2.0, x * 3, x * x, x**3, x < 3.0, third]
            return [tfe.reveal(v) for v in results]

        return p.function(graph)(x)

    out = simulate(program, x).outputs[0]
    for got, want in zip(out[:5], (x + 2, x * 3, x * x, x**3, x < 3), strict=True):
        assert np.array_equal(got, want)
    assert np.all(np.abs(out[5] - x * 0.3) <= ULP + 1000 * 2.0**-24)


def test_logic_on_bits_broadcasts_and_takes_public_truth_values(rng: np.random.Generator) -> None:
    x, y = draw_reals(rng, 2, 3), draw_reals(rng, 3)
    mask = np.array([True, False, True])
    cases: list[Case] = [
        (lambda x, y: (x < 0) & (y < 0), lambda x, y: (x < 0) & (y < 0), 0),
        (lambda x, y: (x < 0) | (y < 0), lambda x, y: (x < 0) | (y < 0), 0),
        (lambda x, y: (x < 0) ^ (y < 0), lambda x, y: (x < 0) ^ (y < 0), 0),
        (lambda x, y: ~(x < 0), lambda x, y: ~(x < 0), 0),
        (lambda x, y: (x < 0) == (y < 0), lambda x, y: (x < 0) == (y < 0), 0),
        (lambda x, y: (x < 0) != (y < 0), lambda x, y: (x < 0) != (y < 0), 0),
        (lambda x, y: (x < 0) & mask, lambda x, y: (x < 0) & mask, 0),
        (lambda x, y: mask | (x < 0), lambda x, y: mask | (x < 0), 0),
        (lambda x, y: mask ^ (x < 0), lambda x, y: mask ^ (x < 0), 0),
        (lambda x, y: (x < 0) & True, lambda x, y: x < 0, 0),
        (lambda x, y: tfe.where(y < 0, x, 1.5), lambda x, y: np.where(y < 0, x, 1.5), 0),
        (lambda x, y: tfe.where(mask, x, y), lambda x, y: np.where(mask, x, y), 0),
        (lambda x, y: tfe.cast(x < y, F), lambda x, y: (x < y) * 1.0, 0),
        (lambda x, y: tfe.cast(x < 0) * x, lambda x, y: (x < 0) * x, 0),
        (lambda x, y: tfe.cast(tfe.cast(x, 20), F), lambda x, y: x, 1),
    ]
    check_operators(cases, x, y, dealer=int(rng.integers(3)))


def test_graphs_of_unknown_sizes_compare_choose_and_cast(rng: np.random.Generator) -> None:
    x = draw_reals(rng, 5, 2)

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            bits = x < 0.0
            results = tfe.cast(bits), tfe.where(bits, x, -x), x * x, bits & bits
            return [tfe.reveal(v) for v in results]

        return p.function(graph, dynamic=True)(x)

    out = run_refused(program, x).outputs[1]
    assert np.array_equal(out[0], x < 0)
    assert np.array_equal(out[1], -np.abs(x))
    assert np.all(np.abs(out[2] - x * x) <= ULP)
    assert np.array_equal(out[3].reshape(5, 2), x < 0)


def test_operators_cost_what_their_protocols_declare() -> None:
    n = 100
    x = np.linspace(-3, 3, n)
    operand = Private((n,))
    chosen_cost = cost_of(convert.inject, PrivateBits((n,)), operand)
    costs = [cost_of(relational.is_negative, operand), chosen_cost]

    def program(p: Party, x: Shared) -> Any:
        bits = p.function(lambda x: x < 1.5)
        result = bits(x)
        chosen = p.function(lambda b, x: tfe.where(b, x, 0))
        return [measure_graph_call(p, bits, x), measure_graph_call(p, chosen, result, x)]

    for dealer in range(3):
        sim = simulate(program, FIXED.encode(x), fractional_bits=F, dealer=dealer)
        for i, cost in enumerate(costs):
            assert_costs([out[i] for out in sim.outputs], cost, dealer)


def test_private_values_hash_by_identity_and_show_no_value() -> None:
    x = share_for_party(np.zeros(3), 1, b"seed")
    bits = MaskedBits(None, None, None)
    assert len({x, x, bits}) == 2
    assert "Shared(" in repr(x)
    for public in (bool, float, int, list, np.asarray):
        with pytest.raises(TypeError, match="reveal"):
            public(x)


Bad = tuple[str, Callable[[Shared], Any]]

BAD: list[Bad] = [
    ("add", lambda x: x + "text"),
    ("add", lambda x: "text" + x),
    ("add", lambda x: x + 1j),
    ("add", lambda x: x + None),
    ("add", lambda x: tfe.add(x, [1.0, [2.0]])),
    ("add", lambda x: x + np.zeros((2, 2))),
    ("add", lambda x: x + np.datetime64("2020-01-01")),
    ("add", lambda x: x + np.ma.masked_array([1.0] * 3, [True] * 3)),
    ("add", lambda x: x + np.nan),
    ("add", lambda x: x + 2.0**60),
    ("add", lambda x: x + (x < 0)),
    ("add", lambda x: x + x[:2]),
    ("add", lambda x: x + tfe.cast(x < 0)),
    ("add", lambda x: x + tfe.cast(x, 20)),
    ("add", lambda x: tfe.add(1, 2)),
    ("subtract", lambda x: x - [x, x]),
    ("subtract", lambda x: np.zeros(2) - x),
    ("multiply", lambda x: x * "3"),
    ("multiply", lambda x: x * np.inf),
    ("multiply", lambda x: x * x[:2]),
    ("multiply", lambda x: x * np.zeros((2, 2))),
    ("multiply", lambda x: np.array([1j]) * x),
    ("multiply", lambda x: (x < 0) * x),
    ("multiply", lambda x: x * 1e30),
    ("matmul", lambda x: x @ x[:2]),
    ("matmul", lambda x: x @ 3.0),
    ("matmul", lambda x: np.zeros((2, 2)) @ x[:, None]),
    ("matmul", lambda x: x[None] @ np.array([["a"]] * 3)),
    ("divide", lambda x: x / 0),
    ("divide", lambda x: x / np.array([1.0, 0.0, 2.0])),
    ("divide", lambda x: x / "a"),
    ("divide", lambda x: tfe.cast(x, 30) / tfe.cast(x, 30)),
    ("divide", lambda x: tfe.divide(x, x, bits=63)),
    ("divide", lambda x: x / (x < 0)),
    ("pow", lambda x: x**True),
    ("pow", lambda x: x**65),
    ("pow", lambda x: tfe.pow(x < 0, 2)),
    ("abs", lambda x: untyped.abs(3.0)),
    ("abs", lambda x: untyped.abs(x < 0)),
    ("negative", lambda x: untyped.negative(3.0)),
    ("square", lambda x: untyped.square(np.ones(3))),
    ("less", lambda x: x < "a"),
    ("less", lambda x: x < None),
    ("less", lambda x: x < x[:2]),
    ("less", lambda x: x < np.zeros((2, 2))),
    ("less", lambda x: tfe.less(x < 0, x)),
    ("less", lambda x: tfe.less(1.0, 2.0)),
    ("less", lambda x: tfe.less(x, 0, bits=1)),
    ("less", lambda x: tfe.less(x, 0, bits=65)),
    ("less", lambda x: tfe.less(x, 0, bits=31.0)),  # type: ignore[arg-type]
    ("greater", lambda x: x > np.nan),
    ("less_equal", lambda x: x <= tfe.cast(x < 0)),
    ("greater_equal", lambda x: x >= 2.0**46),
    ("equal", lambda x: x == "a"),
    ("not_equal", lambda x: x != x[:2]),
    ("logical_and", lambda x: (x < 0) & x),
    ("logical_and", lambda x: (x < 0) & 1),
    ("logical_and", lambda x: (x < 0) & (x[:2] < 0)),
    ("logical_or", lambda x: tfe.logical_or(True, False)),
    ("logical_xor", lambda x: (x < 0) ^ np.array([True, False])),
    ("logical_not", lambda x: untyped.logical_not(x)),
    ("logical_not", lambda x: untyped.logical_not(np.array([True]))),
    ("cast", lambda x: untyped.cast(3.0)),
    ("cast", lambda x: tfe.cast(x, "float32")),  # type: ignore[arg-type]
    ("cast", lambda x: tfe.cast(x, 62)),
    ("cast", lambda x: tfe.cast(x, 8, method="nearest")),
    ("where", lambda x: tfe.where(x, x, x)),
    ("where", lambda x: tfe.where(x < 0, 1, 2)),
    ("where", lambda x: tfe.where(x < 0, x, "a")),
    ("where", lambda x: tfe.where(x < 0, x, x[:2])),
    ("where", lambda x: tfe.where(x[:2] < 0, x, x)),
    ("where", lambda x: tfe.where(np.array([1, 0, 1]), x, 0)),
    ("where", lambda x: tfe.where(x < 0, x < 0, x)),
    ("where", lambda x: tfe.where(x < 0, x, tfe.cast(x < 0))),
    ("getitem", lambda x: x[3]),
    ("getitem", lambda x: x[[0, 1]]),  # type: ignore[index]
    ("getitem", lambda x: x[x]),  # type: ignore[index]
]


def test_what_operators_do_not_take_is_refused_by_name_with_what_was_received() -> None:
    import tensorflow as tf

    texts: list[tuple[str, str]] = []
    tensors: list[Bad] = [
        ("add", lambda x: x + tf.constant("text")),
        ("add", lambda x: x + tf.complex(1.0, 1.0)),
        ("add", lambda x: x + tf.sparse.from_dense([1.0, 0.0, 1.0])),
        ("multiply", lambda x: x * tf.ragged.constant([[1.0], []])),
        ("logical_and", lambda x: (x < 0) & tf.constant([1, 2, 3])),
        ("where", lambda x: tfe.where(tf.constant([1, 2, 3]), x, 0)),
    ]

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            wide = convert.extend_to_wide(p, x, 3)
            other = share_for_party(np.zeros(3), p.index, b"other", F, dealer=1)
            mixed: list[Bad] = [
                ("add", lambda x: x + wide),
                ("add", lambda x: wide + 1.0),
                ("add", lambda x: x + other),
                ("multiply", lambda x: x * other),
                ("multiply", lambda x: wide * 2),
                ("matmul", lambda x: wide[None] @ x[:, None]),
                ("less", lambda x: wide < wide),
                ("less", lambda x: x < other),
                ("equal", lambda x: x == wide),
                ("divide", lambda x: wide / 2),
                ("where", lambda x: tfe.where(x < 0, other, 0)),
                ("where", lambda x: tfe.where(np.array([True] * 3), wide, wide)),
                ("logical_and", lambda x: (x < 0) & (other < 0)),
                ("cast", lambda x: tfe.cast(wide, 3)),
            ]
            for name, wrong in (*BAD, *tensors, *mixed):
                with pytest.raises(TfeBenchError) as caught:
                    wrong(x)
                assert isinstance(caught.value, (UsageError, RangeError)), caught.value
                texts.append((name, str(caught.value)))
            with pytest.raises(TypeError):
                _ = tf.constant(1.0) < x
            with pytest.raises(TypeError):
                np.add(1.0, x)
            return x

        return p.function(graph)(x)

    run_refused(program, np.array([1.0, -2.0, 3.0]))
    for name, text in texts:
        assert text.startswith((f"{name} ", f"{name}:")), (name, text)
        assert "Received: " in text, text


def test_operators_want_a_running_party_and_its_graph() -> None:
    x = share_for_party(np.zeros(3), 0, b"seed", F)
    several: list[Callable[[], Any]] = [lambda: x * x, lambda: x < 0, lambda: x / x, lambda: x**2]
    for outside in several:
        with raises(ProtocolError, "no-active-party"):
            outside()

    def program(p: Party, x: Shared) -> None:
        calls: dict[str, Callable[[], Any]] = {
            "multiply": lambda: x * x,
            "less": lambda: x < 0,
            "equal": lambda: x == 0,
            "divide": lambda: x / x,
            "matmul": lambda: x[None] @ x[:, None],
        }
        for name, operation in calls.items():
            with raises(ProtocolError, "outside-party-function", operation=name):
                operation()

    run_refused(program, np.zeros(3))
