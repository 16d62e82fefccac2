"""Sums and inner products are exact, means keep their error bound, and all cost as declared."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.protocols.shares import assert_refused_by_name
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, conv, convert, reductions
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
EDGES = np.array(
    [0, INT64.min, INT64.max]
    + [s * (2**k + d) for s in (1, -1) for k in (0, 16, 31, 32, 62) for d in (-1, 0, 1)],
    np.int64,
)


def draw_words(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return ring elements, one in four of them an edge value."""
    plain = rng.integers(INT64.min, INT64.max, shape, np.int64, endpoint=True)
    return np.where(rng.integers(4, size=shape) == 0, rng.choice(EDGES, shape), plain)


SUMS: list[tuple[Callable[[Shared], Shared], Callable[[Array], Array]]] = [
    (lambda x: reductions.reduce_sum(x), lambda x: x.sum()),
    (lambda x: reductions.reduce_sum(x, keepdims=True), lambda x: x.sum(keepdims=True)),
    (lambda x: reductions.reduce_sum(x, -1), lambda x: x.sum(-1)),
    (lambda x: reductions.reduce_sum(x, [0, -2], True), lambda x: x.sum((0, 1), keepdims=True)),
    (lambda x: reductions.reduce_sum(x, []), lambda x: x),
    (lambda x: reductions.add_n([x, x, x]), lambda x: 3 * x),
    (lambda x: reductions.add_n([x]), lambda x: x),
]
RUNNING: list[tuple[Callable[[Shared], Shared], Callable[[Array], Array]]] = [
    (lambda x: reductions.cumsum(x), lambda x: x.cumsum(0)),
    (lambda x: reductions.cumsum(x, -1), lambda x: x.cumsum(-1)),
    (lambda x: reductions.cumsum(x, 1, exclusive=True), lambda x: x.cumsum(1) - x),
    (lambda x: reductions.cumsum(x, 1, reverse=True), lambda x: x[:, ::-1].cumsum(1)[:, ::-1]),
]


@pytest.mark.parametrize("wide", [False, True], ids=["64", "wide"])
def test_sums_are_exact(wide: bool, rng: np.random.Generator) -> None:
    x = draw_words(rng, (3, 50, 4))
    cases = SUMS if wide else SUMS + RUNNING

    def program(p: Party, x: Shared) -> Any:
        def sums(x: Shared) -> list[Shared]:
            value = convert.extend_to_wide(p, x, 40) if wide else x
            return [case(value) for case, _ in cases]

        return p.function(sums)(x)

    sim = simulate(program, x, dealer=int(rng.integers(3)))
    if wide:
        x = x.astype(np.uint64).astype(object) << 40
    for i, (_, expected) in enumerate(cases):
        want = expected(x)
        got = sim.value(itemgetter(i))
        assert np.array_equal(got, want % 2**105 if wide else want), i
    if not wide:
        assert sim.sent == (0, 0, 0)


def test_wide_sums_carry_between_all_words() -> None:
    """Sum ten times the largest value, and values whose low words carry in one half only."""
    x = np.array([[-1] * 10, [2**32 - 1] * 10, [INT64.min] * 10])

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: reductions.reduce_sum(convert.extend_to_wide(p, x, 30), 1))(x)

    got = simulate(program, x).value()
    assert [int(v) for v in got] == [10 * (int(v) % 2**64 << 30) % 2**95 for v in x[:, 0]]


@by_a_dealer
def test_squares_and_inner_products_are_exact_modulo_2_64(
    dealer: int, rng: np.random.Generator
) -> None:
    x, y = draw_words(rng, (2, 3, 4, 5)), draw_words(rng, (4, 5, 3))
    axes: list[Any] = [2, 0, ([2, 3], [0, 1]), ([1], [2]), ([3, 1], [1, 2]), (1, -1)]
    many = np.concatenate([EDGES, draw_words(rng, (10_000,))])

    def program(p: Party, x: Shared, y: Shared, many: Shared) -> Any:
        def products(x: Shared, y: Shared, many: Shared) -> list[Shared]:
            dots = [reductions.tensordot(p, x, y, a) for a in axes]
            return [*dots, reductions.square(p, many), reductions.tensordot(p, many, many, 1)]

        return p.function(products)(x, y, many)

    sim = simulate(program, x, y, many, dealer=dealer, fractional_bits=9)
    want = [np.tensordot(x, y, a) for a in axes]
    want += [many * many, np.asarray((many * many).sum())]
    for i, expected in enumerate(want):
        got = sim.value(itemgetter(i))
        assert got.shape == expected.shape and np.array_equal(got, expected), i
        assert all(out[i].fractional_bits == 18 for out in sim.outputs)


def test_tensordot_follows_a_size_that_the_graph_does_not_know(rng: np.random.Generator) -> None:
    x, y = draw_words(rng, (3, 4)), draw_words(rng, (2, 4, 5))

    def program(p: Party, x: Shared, y: Shared) -> Any:
        f = p.function(lambda x, y: reductions.tensordot(p, x, y, (1, 1)), dynamic=True)
        return f(x, y)

    assert np.array_equal(simulate(program, x, y).value(), np.tensordot(x, y, (1, 1)))


def mean_bound(mean: Array, counts: Any, e: int) -> Array:
    """Return the bound of reduce_mean and avg_pool, in units of the scale."""
    counts = np.asarray(counts)
    exact = ((counts & (counts - 1)) == 0).all()
    bound: Array = 1 + (np.zeros_like(mean) if exact else np.abs(mean) * counts * 2.0 ** -(e + 1))
    return bound


def test_means_keep_their_error_bound_up_to_the_ends_of_their_domain(
    rng: np.random.Generator,
) -> None:
    counts = (1, 2, 3, 7, 64, 49, 1000)
    bits = (30, 12)
    rows = 10_000 // 40
    inputs = []
    for n in counts:
        top = 2**61 // 2**30 - 1 if n & (n - 1) else (2**62 - 1) // n
        x = rng.integers(-top, top, (rows, n), endpoint=True)
        x[0], x[1], x[2], x[3], x[4] = top, -top, 0, 1, -1
        x[5:50] = rng.integers(-9, 9, (45, n))
        inputs.append(x)

    def program(p: Party, *inputs: Shared) -> Any:
        def means(*inputs: Shared) -> list[Shared]:
            return [reductions.reduce_mean(p, x, -1, False, e) for e in bits for x in inputs]

        return p.function(means)(*inputs)

    sim = simulate(program, *inputs, fractional_bits=16, dealer=int(rng.integers(3)))
    for i in range(len(bits) * len(counts)):
        x, e = inputs[i % len(counts)], bits[i // len(counts)]
        n = x.shape[1]
        # (in floating point: exact enough against a bound of 1)
        whole, rest = np.divmod(x.sum(1), n)
        got = sim.value(itemgetter(i))
        error = (got - whole).astype(np.float64) - rest / n
        assert np.all(np.abs(error) <= mean_bound(whole.astype(np.float64), n, e)), (n, e)
        assert all(out[i].fractional_bits == 16 for out in sim.outputs)


def test_means_take_axes_as_tensorflow_does(rng: np.random.Generator) -> None:
    x = rng.integers(-(2**24), 2**24, (2, 6, 5, 3))

    def program(p: Party, x: Shared) -> Any:
        def means(x: Shared) -> list[Shared]:
            return [
                reductions.reduce_mean(p, x),
                reductions.reduce_mean(p, x, [0, -1], keepdims=True),
                reductions.global_avg_pool(p, x),
                reductions.global_avg_pool(p, x, keepdims=True),
            ]

        return p.function(means)(x)

    sim = simulate(program, x)
    want = [x.mean(), x.mean((0, 3), keepdims=True), x.mean((1, 2)), x.mean((1, 2), keepdims=True)]
    for i, mean in enumerate(want):
        got = sim.value(itemgetter(i))
        assert got.shape == np.shape(mean)
        assert np.all(np.abs(got - mean) < 1 + np.abs(mean) * 180 * 2.0**-31)


# image, ksize, strides, padding
POOLS: list[tuple[tuple[int, ...], Any, Any, Any]] = [
    ((2, 6, 8, 3), 2, None, "VALID"),
    ((2, 7, 5, 3), 2, 2, "SAME"),
    ((2, 7, 5, 3), 3, 2, "SAME"),
    ((1, 7, 7, 16), (2, 3), (1, 2), "VALID"),
    ((1, 8, 8, 2), [1, 3, 3, 1], [1, 2, 2, 1], "SAME"),
    ((1, 40, 40, 4), 3, 1, "SAME"),
    ((1, 40, 40, 2), 5, 3, ((1, 2), (0, 2))),
    ((3, 4, 4, 2), 1, 1, "VALID"),
]


def pool_windows(x: Array, ksize: Any, strides: Any, padding: Any) -> tuple[Array, Array]:
    """Return sums of windows and counts of their cells, by the definition."""
    windows = conv.Windows.from_arguments("pool", ksize if strides is None else strides, padding)
    kernel = conv.parse_window_pair("pool", "ksize", ksize)
    out = [windows.window_count(a, x.shape[1 + a], kernel[a]) for a in range(2)]
    first = [windows.padding_before(a, x.shape[1 + a], kernel[a]) for a in range(2)]
    sums = np.zeros((x.shape[0], *out, x.shape[3]), np.int64)
    counts = np.zeros((out[0], out[1], 1), np.int64)
    for i in range(out[0]):
        for j in range(out[1]):
            top, left = (v * s - f for v, s, f in zip((i, j), windows.strides, first, strict=True))
            part = x[:, max(top, 0) : top + kernel[0], max(left, 0) : left + kernel[1]]
            sums[:, i, j] = part.sum((1, 2))
            counts[i, j] = part.shape[1] * part.shape[2]
    return sums, counts


@by_a_dealer
def test_average_pools_divide_by_the_cells_that_are_there(
    dealer: int, rng: np.random.Generator
) -> None:
    import tensorflow as tf

    inputs = [rng.integers(-(2**28), 2**28, shape) for shape, *_ in POOLS]
    for x in inputs:
        x[:, :2, :2] = rng.integers(-2, 3, x[:, :2, :2].shape)
        x[:, -1, -1] = 2**31 - 1

    def program(p: Party, *inputs: Shared) -> Any:
        def pools(*inputs: Shared) -> list[Shared]:
            out = []
            for x, (_, *windows) in zip(inputs, POOLS, strict=True):
                out.append(reductions.avg_pool(p, x, *windows))
                out.append(reductions.sum_pool(x, *windows))
            return out

        return p.function(pools)(*inputs)

    sim = simulate(program, *inputs, dealer=dealer)
    for i, (x, (_, ksize, strides, padding)) in enumerate(zip(inputs, POOLS, strict=True)):
        sums, counts = pool_windows(x, ksize, strides, padding)
        means = sums / counts
        got = sim.value(itemgetter(2 * i))
        assert got.shape == means.shape
        assert np.all(np.abs(got - means) <= mean_bound(means, counts, 30)), i
        assert np.array_equal(sim.value(itemgetter(2 * i + 1)), sums), i
        if isinstance(padding, str):
            steps = ksize if strides is None else strides
            same = tf.nn.avg_pool2d(x.astype(np.float64), ksize, steps, padding)
            assert np.allclose(same, means)


@by_a_dealer
def test_reductions_cost_what_they_say_whatever_the_values(
    dealer: int, rng: np.random.Generator
) -> None:
    shape = (2, 5, 6, 3)
    layers: list[Callable[[Party, Shared], Any]] = [
        reductions.square,
        lambda p, x: reductions.reduce_mean(p, x, 2),
        lambda p, x: reductions.reduce_mean(p, x, 2, reciprocal_bits=11),
        lambda p, x: reductions.reduce_mean(p, x, 0),
        lambda p, x: reductions.reduce_mean(p, x, []),
        lambda p, x: reductions.tensordot(p, x, x, ([1, 2], [1, 2])),
        lambda p, x: reductions.sum_pool(x, 2),
    ]
    for windows in ((2, None, "VALID"), (2, 2, "SAME"), (3, 2, "SAME"), (1, 1, "VALID")):
        layers.append(lambda p, x, windows=windows: reductions.avg_pool(p, x, *windows))  # type: ignore[misc]
    values = [draw_words(rng, shape), np.zeros(shape, np.int64)]

    def program(p: Party) -> list[Any]:
        shares = [share_for_party(v, p.index, b"value", dealer=dealer) for v in values]
        graphs = [p.function(lambda x, layer=layer: layer(p, x)) for layer in layers]
        return [measure_graph_call(p, graph, x) for graph in graphs for x in shares]

    calls = zip(*simulate(program).outputs, strict=True)
    expected = [cost_of(layer, Private(shape)) for layer in layers for _ in values]
    for cost, call in zip(expected, calls, strict=True):
        assert_costs(call, cost, dealer)


def test_squares_of_frozen_shares_give_other_words_on_every_message() -> None:
    def program(p: Party, x: Shared) -> Any:
        f = p.function(lambda x: reductions.square(p, x))
        return [f(x) for _ in range(3)]

    pads = simulate(program, np.zeros(64, np.int64), record=True).pads
    sent = pads[pads["sent"] == 1]
    names = set(zip(sent["key"], sent["hi"], sent["lo"], strict=True))
    digests = set(sent["digest"])
    assert len(sent) == len(names) == len(digests) == 3 * 3  # one message of each role and call


REFUSED: dict[str, Callable[[Party, Shared], Any]] = {
    "reduce_sum of an axis that is not there": lambda p, x: reductions.reduce_sum(x, 4),
    "reduce_sum of an axis twice": lambda p, x: reductions.reduce_sum(x, [0, -4]),
    "reduce_sum of a public tensor": lambda p, x: reductions.reduce_sum(np.zeros(3)),  # type: ignore[arg-type]
    "add_n of nothing": lambda p, x: reductions.add_n([]),
    "add_n of two scales": lambda p, x: reductions.add_n([x, arithmetic.mul_public(x, 1, 2)]),
    "cumsum of an axis that is not there": lambda p, x: reductions.cumsum(x, -5),
    "cumsum of a wide value": lambda p, x: reductions.cumsum(convert.extend_to_wide(p, x, 1)),
    "reduce_mean of nothing": lambda p, x: reductions.reduce_mean(p, x.map(lambda a: a[:0]), 0),
    "reduce_mean of a wide value": lambda p, x: reductions.reduce_mean(
        p, convert.extend_to_wide(p, x, 1)
    ),
    "reduce_mean with 0 bits": lambda p, x: reductions.reduce_mean(p, x, 0, reciprocal_bits=0),
    "reduce_mean with 49 bits": lambda p, x: reductions.reduce_mean(p, x, 0, reciprocal_bits=49),
    "reduce_mean of a public tensor": lambda p, x: reductions.reduce_mean(p, np.zeros(3)),  # type: ignore[arg-type]
    "square of a public tensor": lambda p, x: reductions.square(p, np.zeros(3)),  # type: ignore[arg-type]
    "square of a wide value": lambda p, x: reductions.square(p, convert.extend_to_wide(p, x, 1)),
    "tensordot of a public tensor": lambda p, x: reductions.tensordot(p, x, np.zeros(3), 1),  # type: ignore[arg-type]
    "tensordot over other sizes": lambda p, x: reductions.tensordot(p, x, x, ([1], [0])),
    "tensordot over too many axes": lambda p, x: reductions.tensordot(p, x, x, 5),
    "tensordot over an axis twice": lambda p, x: reductions.tensordot(p, x, x, ([0, 0], [0, 0])),
    "tensordot over three lists": lambda p, x: reductions.tensordot(p, x, x, (1, 1, 1)),
    "avg_pool of a matrix": lambda p, x: reductions.avg_pool(p, x.map(lambda a: a[0, 0]), 2),
    "avg_pool of a window of 0": lambda p, x: reductions.avg_pool(p, x, 0),
    "avg_pool of a window beyond the image": lambda p, x: reductions.avg_pool(p, x, 9),
    "avg_pool of a window in the padding": lambda p, x: reductions.avg_pool(
        p, x, 2, 1, ((2, 0), (0, 0))
    ),
    "avg_pool with an unknown padding": lambda p, x: reductions.avg_pool(p, x, 2, 1, "FULL"),
    "avg_pool of a wide value": lambda p, x: reductions.avg_pool(
        p, convert.extend_to_wide(p, x, 1), 2
    ),
    "sum_pool of a wide value": lambda p, x: reductions.sum_pool(
        convert.extend_to_wide(p, x, 1), 2
    ),
    "global_avg_pool of a matrix": lambda p, x: reductions.global_avg_pool(
        p, x.map(lambda a: a[0, 0])
    ),
}


def test_what_does_not_fit_is_refused_by_name_with_what_was_received() -> None:
    assert_refused_by_name(REFUSED, np.zeros((2, 4, 4, 3), np.int64))


def test_a_mean_over_an_unknown_number_is_refused() -> None:
    def unknown(p: Party, x: Shared) -> None:
        with raises(UsageError, "unknown-shape", "empty-input", operation="reduce_mean"):
            p.function(lambda x: reductions.reduce_mean(p, x, 0), dynamic=True)(x)

    simulate(unknown, np.zeros((2, 4, 4, 3), np.int64))
