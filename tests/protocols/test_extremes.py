"""The extremes of every row and their first positions equal numpy's, at the declared cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.edges import parametrize_daily
from tests.protocols.dealers import by_a_dealer
from tests.protocols.shares import output_at
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, convert, relational
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
# All differences of these fit 64 bits.
EDGES = np.array(
    sorted(
        {2**62 - 1, -(2**62)}
        | {0}
        | {s * (2**k + d) for s in (1, -1) for k in range(62) for d in (-1, 0, 1)}
    ),
    np.int64,
)
WIDTHS = (*range(1, 11), 11, 17)
# One, two, and numbers with an element left over at each depth.
DAILY = (1, 2, 3, 5, 7, 17)
ROWS = 150
NAMES = ("reduce_max", "reduce_min", "argmax", "argmin")
NUMPY: dict[str, Callable[..., Any]] = {
    "reduce_max": np.max,
    "reduce_min": np.min,
    "argmax": np.argmax,
    "argmin": np.argmin,
}


def draw_columns(width: int, rng: np.random.Generator) -> Array:
    """Return [width, ROWS]: edges, values of all sizes, ties, each position as the first."""
    x = rng.choice(EDGES, (width, ROWS))
    x[:, 50:90] = rng.integers(-(2**62), 2**62, (width, 40))
    x[:, 90:120] = rng.integers(0, 2, (width, 30))
    x[:, 120] = 7  # all equal
    for place in range(width):
        x[:, 121 + place] = np.where(np.arange(width) == place, 1, 0)
        x[:, 138 - place] = np.where(np.arange(width) >= place, 2**62 - 1, -(2**62))
    return x


def reduce_extremes(
    p: Party, name: str, x: Shared, axis: int | None, keepdims: bool = False, **options: Any
) -> Shared:
    result: Shared = (
        getattr(extremes, name)(p, x, axis, **options)
        if name.startswith("arg")
        else getattr(extremes, name)(p, x, axis, keepdims, **options)
    )
    return result


@parametrize_daily("widths", [DAILY, WIDTHS], [DAILY], ids=["some", "every"])
@pytest.mark.parametrize("method", ["tree", "all-pairs"])
def test_extremes_of_every_width_are_exact_the_first_wins_and_they_cost_what_they_say(
    method: str, widths: tuple[int, ...], rng: np.random.Generator
) -> None:
    dealer = int(rng.integers(3))
    widths = widths if method == "tree" else tuple(w for w in widths if w <= 10)
    data = [draw_columns(w, rng) for w in widths]
    # All four run at one width, one or two at the others: they differ in a sign and an injection.
    also = {3: NAMES[2:3], 5: NAMES[3:], 7: NAMES[1:], 10: NAMES[2:3], 17: NAMES[3:]}
    names = [("reduce_max", *also.get(w, ())) for w in widths]

    def program(p: Party, *shares: Shared) -> Any:
        result = []
        for i, x in enumerate(shares):
            secret = share_for_party(np.zeros_like(data[i]), p.index, b"zero", dealer=dealer)
            for name in names[i]:
                graph = p.function(
                    lambda x, name=name: reduce_extremes(p, name, x, 0, method=method),
                    dynamic=False,
                )
                y = graph(x)
                result.append(
                    (y, measure_graph_call(p, graph, x), measure_graph_call(p, graph, secret))
                )
        return result

    sim = simulate(program, *data, dealer=dealer, fractional_bits=9)
    i = 0
    for width, x, used in zip(widths, data, names, strict=True):
        for name in used:
            got = sim.value(output_at(i, 0))
            assert np.array_equal(got, NUMPY[name](x, axis=0)), (name, width)
            index = name.startswith("arg")
            assert all(out[i][0].fractional_bits == (0 if index else 9) for out in sim.outputs)
            protocol = extremes.argmax if index else extremes.reduce_max
            cost = cost_of(protocol, Private((width, ROWS)), 0, method=method)
            for k in (1, 2):
                assert_costs([out[i][k] for out in sim.outputs], cost, dealer)
            i += 1


@by_a_dealer
def test_many_values_of_all_sizes_by_each_dealer(dealer: int, rng: np.random.Generator) -> None:
    x = rng.integers(-(2**62), 2**62, (5, 4000))
    x[:, :2000] >>= rng.integers(0, 63, 2000)  # of all magnitudes, with ties among the small

    def program(p: Party, x: Shared) -> Any:
        def function(x: Shared) -> Any:
            return [
                reduce_extremes(p, name, x, 0, method=method)
                for method in ("tree", "all-pairs")
                for name in ("reduce_min", "argmax")
            ]

        return p.function(function)(x)

    sim = simulate(program, x, dealer=dealer)
    for i, want in enumerate((x.min(axis=0), x.argmax(axis=0)) * 2):
        assert np.array_equal(sim.value(output_at(i)), want), i


def test_narrow_comparisons_are_right_for_differences_that_fit(rng: np.random.Generator) -> None:
    x = rng.integers(-(2**29), 2**29, (4, 2500))
    x[:2, 0] = [2**29 - 1, -(2**29)]

    def program(p: Party, x: Shared) -> Any:
        def function(x: Shared) -> Any:
            return [
                reduce_extremes(p, "argmin", x, 0, method=method, bits=31)
                for method in ("tree", "all-pairs")
            ]

        return p.function(function)(x)

    sim = simulate(program, x)
    for i in range(2):
        assert np.array_equal(sim.value(output_at(i)), x.argmin(axis=0))


SHAPES = ((), (3,), (2, 3), (3, 1, 2), (1, 2, 2, 3), (2, 1, 2, 2, 1))


def test_every_axis_of_every_rank_with_and_without_its_place(rng: np.random.Generator) -> None:
    data = [rng.integers(-9, 10, shape) for shape in SHAPES]
    cases: list[tuple[str, int, int | None, bool]] = []
    for i, shape in enumerate(SHAPES):
        for place in range(len(shape)):  # the names alternate, and so do the two forms of the axis
            named = NAMES[(i + place) % 4]
            cases.append((named, i, place - len(shape) * ((i + place // 2) % 2), bool(place % 2)))
        cases += [(NAMES[i % 2], i, None, False), (NAMES[(i + 1) % 2], i, None, True)]
    cases += [("argmax", 2, None, False), ("argmin", 3, None, False)]

    def program(p: Party, *shares: Shared) -> Any:
        def function(*shares: Shared) -> Any:
            return [
                reduce_extremes(p, name, shares[i], a, keep, bits=8) for name, i, a, keep in cases
            ]

        return p.function(function)(*shares)

    sim = simulate(program, *data)
    for k, (name, i, axis, keep) in enumerate(cases):
        if name.startswith("arg"):
            want = NUMPY[name](data[i], axis=0 if axis is None else axis)
        else:
            want = NUMPY[name](data[i], axis=axis, keepdims=keep)
        got = sim.value(output_at(k))
        assert got.shape == np.shape(want), cases[k]
        assert np.array_equal(got, want), cases[k]


def test_rows_of_one_value_and_no_rows_take_no_message(rng: np.random.Generator) -> None:
    shapes = [((1, 4), 0), ((3, 1), 1), ((3, 0), 0), ((0, 5), 1), ((1,), None)]
    data = [rng.integers(-9, 10, shape) for shape, _ in shapes]
    cases = [(name, i, m) for i in range(len(data)) for name in NAMES for m in extremes.METHODS]

    def program(p: Party, *shares: Shared) -> Any:
        def function(*shares: Shared) -> Any:
            return [
                reduce_extremes(p, name, shares[i], shapes[i][1], method=m) for name, i, m in cases
            ]

        return p.function(function)(*shares)

    sim = simulate(program, *data, fractional_bits=4)
    assert sim.sent == (0, 0, 0)
    for k, (name, i, _) in enumerate(cases):
        axis = 0 if shapes[i][1] is None else shapes[i][1]
        want = NUMPY[name](data[i], axis=axis)
        assert np.array_equal(sim.value(output_at(k)), want), cases[k]
        scale = 0 if name.startswith("arg") else 4
        assert all(out[k].fractional_bits == scale for out in sim.outputs)


def test_auto_saves_rounds_where_the_traffic_is_worth_them() -> None:
    assert extremes.choose_extreme_method("auto", 10, 2) == "tree"
    assert extremes.choose_extreme_method("auto", 10, 4) == "all-pairs"
    assert extremes.choose_extreme_method("auto", 10**6, 10) == "tree"
    assert extremes.choose_extreme_method("auto", 1, 11) == "tree"
    assert extremes.choose_extreme_method("auto", 4000, 6, "wan") == "all-pairs"
    for rows in (1, 100, 10_000):
        for width in range(1, 20):
            method = extremes.choose_extreme_method("auto", rows, width)
            x = Private((width, rows))
            auto = cost_of(extremes.reduce_max, x, 0)
            assert auto == cost_of(extremes.reduce_max, x, 0, method=method)
            tree = cost_of(extremes.reduce_max, x, 0, method="tree")
            assert auto.rounds <= tree.rounds


def selected_positions(p: Party, x: Shared) -> Shared:
    import tensorflow as tf

    hot = extremes.argmax_bits(p, x)
    return convert.b2a(p, hot, tf.shape(x.any))


@by_a_dealer
def test_one_hot_marks_the_first_largest_and_pick_takes_what_is_marked(
    dealer: int, rng: np.random.Generator
) -> None:
    x = draw_columns(6, rng)
    y = rng.integers(-(2**62), 2**62, (6, ROWS))

    def program(p: Party, x: Shared, y: Shared) -> Any:
        marks = p.function(lambda x: selected_positions(p, x))
        picks = p.function(
            lambda x, y: extremes.sum_one_hot_selected(p, extremes.argmax_bits(p, x), y)
        )
        return (
            marks(x),
            picks(x, y),
            measure_graph_call(p, marks, x),
            measure_graph_call(p, picks, x, y),
        )

    sim = simulate(program, x, y, dealer=dealer, fractional_bits=3)
    first = x.argmax(axis=0)
    assert np.array_equal(sim.value(output_at(0)), np.arange(6)[:, None] == first)
    assert np.array_equal(sim.value(output_at(1)), y[first, np.arange(ROWS)])
    assert all(out[1].fractional_bits == 3 for out in sim.outputs)
    operand = Private((6, ROWS))

    def marked(p: Party, x: Shared) -> Shared:
        return convert.b2a(p, extremes.argmax_bits(p, x))

    def picked(p: Party, x: Shared, y: Shared) -> Shared:
        return extremes.sum_one_hot_selected(p, extremes.argmax_bits(p, x), y)

    assert_costs([o[2] for o in sim.outputs], cost_of(marked, operand), dealer)
    assert_costs([o[3] for o in sim.outputs], cost_of(picked, operand, operand), dealer)


def test_the_result_composes(rng: np.random.Generator) -> None:
    """The masks of a result are fresh: compute max - min of rows, and the largest of that."""
    x = rng.integers(-1000, 1000, (8, 5))

    def program(p: Party, x: Shared) -> Any:
        def function(x: Shared) -> Any:
            spread = arithmetic.sub(
                extremes.reduce_max(p, x, 1, method="all-pairs"), extremes.reduce_min(p, x, 1)
            )
            return extremes.reduce_max(p, arithmetic.mul(p, spread, spread))

        return p.function(function)(x)

    assert int(simulate(program, x).value()) == int(((x.max(1) - x.min(1)) ** 2).max())


Use = Callable[[Party, Shared, str], Any]


def two_words(x: Shared) -> Shared:
    import tensorflow as tf

    return replace(x.map(lambda a: tf.stack([a, a], axis=-1)), limbs=2)


REFUSED: dict[str, tuple[str, str, Use]] = {
    "an axis too high": (
        "axis-out-of-range",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, x, 2),
    ),
    "an axis too low": (
        "axis-out-of-range",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, x, -3),
    ),
    "an axis that is no integer": (
        "not-an-integer",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, x, 1.0),  # type: ignore[arg-type]
    ),
    "a truth value as an axis": (
        "not-an-integer",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, x, True),
    ),
    "an axis of a scalar": (
        "axis-out-of-range",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, x.map(lambda a: a[0, 0]), 0),
    ),
    "no values along the axis": (
        "empty-input",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, x.map(lambda a: a[:0]), 0),
    ),
    "no values at all": (
        "empty-input",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, x.map(lambda a: a[:0]), None),
    ),
    "a public tensor": (
        "not-private",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, np.arange(3), 0),  # type: ignore[arg-type]
    ),
    "two words": (
        "unsupported-ring",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, two_words(x), 0),
    ),
    "a small ring": (
        "unsupported-ring",
        "{name}",
        lambda p, x, f: reduce_extremes(p, f, replace(x, bits=31), 0),
    ),
    "an unknown method": (
        "unknown-name",
        "method for the extremes of a row",
        lambda p, x, f: reduce_extremes(p, f, x, 0, method="all-pair"),
    ),
    "an unknown profile": (
        "unknown-name",
        "network profile",
        lambda p, x, f: reduce_extremes(p, f, x, 0, profile="wann"),
    ),
    "all pairs of 11": (
        "too-large",
        "all-pairs",
        lambda p, x, f: reduce_extremes(p, f, x, 1, method="all-pairs"),
    ),
    "too many bits": (
        "unsupported-ring",
        "msb",
        lambda p, x, f: reduce_extremes(p, f, x, 0, bits=65),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("name", NAMES)
def test_extremes_refuse(name: str, what: str) -> None:
    if name.startswith("arg") and what == "no values at all":
        pytest.skip("argmax takes None for axis 0")
    code, operation, use = REFUSED[what]
    with raises(UsageError, code, operation=operation.format(name=name)) as error:
        simulate(lambda p, x: p.function(lambda x: use(p, x, name))(x), np.zeros((2, 11), np.int64))
    assert "Received: " in str(error.value)


PICKS: dict[str, Callable[[Party, Shared], Any]] = {
    "two words": lambda p, x: extremes.sum_one_hot_selected(
        p, relational.less(p, x, x), two_words(x)
    ),
    "a public tensor": lambda p, x: extremes.sum_one_hot_selected(
        p,
        relational.less(p, x, x),
        np.arange(6),  # type: ignore[arg-type]
    ),
    "public bits": lambda p, x: extremes.sum_one_hot_selected(p, np.ones(6), x),  # type: ignore[arg-type]
    "bits for another shape": lambda p, x: extremes.sum_one_hot_selected(
        p, relational.less(p, x, x), x.map(lambda a: a[:3])
    ),
    "another dealer": lambda p, x: extremes.sum_one_hot_selected(
        p, relational.less(p, x, x), replace(x, dealer=1)
    ),
}


@pytest.mark.parametrize("what", PICKS)
def test_pick_refuses(what: str) -> None:
    with raises(
        UsageError,
        "unsupported-ring",
        "not-private",
        "size-mismatch",
        "dealer-mismatch",
        operation="pick",
    ):
        simulate(lambda p, x: p.function(lambda x: PICKS[what](p, x))(x), np.arange(6))


def test_an_unknown_shape_is_refused() -> None:
    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: extremes.reduce_max(p, x, 0), dynamic=True)(x)

    with raises(UsageError, "unknown-shape", operation="reduce_max"):
        simulate(program, np.arange(6))
