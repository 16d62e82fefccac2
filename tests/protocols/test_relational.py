"""Comparisons and selections by them agree with NumPy, exactly, and cost as declared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.protocols.shares import bits_of, output_at
from tests.refusals import raises
from tfe_bench.cluster.simulate import (
    Simulation,
    assert_costs,
    measure_graph_call,
    share_for_party,
    simulate,
)
from tfe_bench.errors import ProtocolError, UsageError
from tfe_bench.protocols.ring import convert, logic, relational
from tfe_bench.protocols.ring.truncation import truncate_reduce
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
# All differences of these fit 64 bits; those of every k do at one power more.
EDGES = np.array(
    sorted({0} | {s * (2**k + d) for s in (1, -1) for k in range(62) for d in (-1, 0, 1)}),
    np.int64,
)
SIZES = (1, 63, 64, 65, 1000)
MANY = 10_000
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}


def compare_all(p: Party, **options: Any) -> Callable[[Shared, Shared], Any]:
    """Compute all comparisons, then maximum, minimum and where."""

    def function(x: Shared, y: Shared) -> list[Any]:
        results = [getattr(relational, name)(p, x, y, **options) for name in COMPARISONS]
        results += [f(p, x, y, **options) for f in (relational.maximum, relational.minimum)]
        return [*results, relational.where(p, results[0], x, y)]

    return function


def check_relations(sim: Simulation, x: Array, y: Array, *where: int) -> None:
    """Check that `compare_all` of x and y, at a position of the output, equals NumPy's results."""
    for i, compared in enumerate(COMPARISONS.values()):
        got = bits_of(sim, output_at(*where, i))
        assert np.array_equal(got, compared(x, y).reshape(-1)), i
    expected = [np.maximum(x, y), np.minimum(x, y), np.where(x < y, x, y)]
    for i, want in enumerate(expected, len(COMPARISONS)):
        assert np.array_equal(sim.value(output_at(*where, i)), want), i


@by_a_dealer
def test_every_pair_of_edges_and_random_values_compare_exactly(
    dealer: int, rng: np.random.Generator
) -> None:
    x = rng.integers(-(2**62), 2**62, MANY)
    y = rng.permutation(x)
    y[:1000] = x[:1000] + rng.integers(-1, 2, 1000)  # equal and next to each other
    # and differences at the ends of the range
    x[-2:], y[-2:] = [2**62 - 1, -(2**62)], [-(2**62), 2**62 - 1]

    def program(p: Party, *shares: Shared) -> Any:
        return p.function(lambda e, f, x, y: [compare_all(p)(e, f), compare_all(p)(x, y)])(*shares)

    sim = simulate(program, EDGES[:, None], EDGES[None, :], x, y, dealer=dealer, fractional_bits=7)
    check_relations(sim, EDGES[:, None], EDGES[None, :], 0)
    check_relations(sim, x, y, 1)
    assert all(out[1][i].fractional_bits == 7 for out in sim.outputs for i in (6, 7, 8))


def test_narrow_comparisons_are_right_for_every_difference_that_fits(
    rng: np.random.Generator,
) -> None:
    small = np.arange(-16, 16)
    layer = rng.integers(-(2**29), 2**29, (2, MANY))
    layer[:, :4] = [[2**29 - 1, -(2**29), 5, 5], [-(2**29), 2**29 - 1, 5, 6]]
    whole = rng.integers(-(2**62), 2**62, (2, 100))

    def program(p: Party, *shares: Shared) -> Any:
        def function(a: Shared, b: Shared, x: Shared, y: Shared, u: Shared, v: Shared) -> Any:
            return [
                compare_all(p, bits=6)(a, b),
                *(compare_all(p, bits=31, exchanges=o)(x, y) for o in (1, 2, 3)),
                compare_all(p, exchanges=2)(u, v),
                compare_all(p, exchanges=3)(u, v),
            ]

        return p.function(function)(*shares)

    sim = simulate(program, small[:, None], small, *layer, *whole)
    check_relations(sim, small[:, None], small, 0)
    for i in (1, 2, 3):
        check_relations(sim, *layer, i)
    for i in (4, 5):
        check_relations(sim, *whole, i)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()),
    ((), (5,)),
    ((3, 1), (1, 4)),
    ((4,), (2, 3, 4)),
    ((0, 3), (3,)),
    ((1, 2, 1, 2, 1), (2, 1, 2, 1, 3)),
]


def test_operands_broadcast_as_in_numpy(rng: np.random.Generator) -> None:
    pairs = [tuple(rng.integers(-3, 4, shape) for shape in pair) for pair in SHAPES]

    def program(p: Party, *shares: Shared) -> Any:
        def function(*shares: Shared) -> Any:
            return [compare_all(p)(*shares[i : i + 2]) for i in range(0, len(shares), 2)]

        return p.function(function)(*shares)

    sim = simulate(program, *(x for pair in pairs for x in pair), dealer=1)
    for i, (x, y) in enumerate(pairs):
        check_relations(sim, x, y, i)


def test_a_condition_selects_also_other_values_and_is_used_many_times(
    rng: np.random.Generator,
) -> None:
    x, y, u, v = rng.integers(-(2**62), 2**62, (4, 6, 50))

    def program(p: Party, *shares: Shared) -> Any:
        def function(x: Shared, y: Shared, u: Shared, v: Shared) -> Any:
            less = relational.less(p, x, y)
            row = v.map(lambda a: a[:1])
            return [
                relational.where(p, less, u, v),
                relational.where(p, logic.invert_bits(less), u, v),
                relational.where(p, less, row, u),
            ]

        return p.function(function)(*shares)

    sim = simulate(program, x, y, u, v, dealer=2)
    for i, want in enumerate(
        (np.where(x < y, u, v), np.where(x < y, v, u), np.where(x < y, v[:1], u))
    ):
        assert np.array_equal(sim.value(output_at(i)), want)


def test_small_rings_and_wide_values_compare_too(rng: np.random.Generator) -> None:
    x, y = rng.integers(-(2**40), 2**40, (2, 500)) << 8
    y[::3] = x[::3]

    def program(p: Party, *shares: Shared) -> Any:
        def function(x: Shared, y: Shared) -> Any:
            small = [truncate_reduce(p, v, 8, 44) for v in (x, y)]
            wide, other = (convert.extend_to_wide(p, v, 3) for v in (x, y))
            names = [n for n in COMPARISONS if "equal" not in n]
            return [
                compare_all(p, bits=43)(*small),
                [getattr(relational, n)(p, wide, other, bits=68) for n in names],
                [
                    relational.maximum(p, wide, other, bits=68),
                    relational.minimum(p, wide, other, bits=68),
                ],
            ]

        return p.function(function)(*shares)

    sim = simulate(program, x, y)
    a, b = x >> 8, y >> 8  # nothing is rounded
    for i, compared in enumerate(COMPARISONS.values()):
        assert np.array_equal(bits_of(sim, output_at(0, i)), compared(a, b)), i
    for i, want in enumerate((np.maximum(a, b), np.minimum(a, b), np.minimum(a, b)), 6):
        assert np.array_equal(sim.value(output_at(0, i)), want % 2**44), i
        assert all(out[0][i].ring_bits == 44 for out in sim.outputs)
    u, v = ([int(e) % 2**64 << 3 for e in w] for w in (x, y))  # extend reads values as unsigned
    assert np.array_equal(bits_of(sim, output_at(1, 0)), np.less(u, v))
    assert np.array_equal(bits_of(sim, output_at(1, 1)), np.greater(u, v))
    for i, pick in enumerate((max, min)):
        got = sim.value(output_at(2, i))
        assert list(got) == [pick(c, d) for c, d in zip(u, v, strict=True)]


COSTS: list[Callable[..., Any]] = [
    *(getattr(relational, n) for n in COMPARISONS),
    relational.maximum,
    relational.minimum,
    lambda p, x, y: relational.less(p, x, y, 31, 2),
    lambda p, x, y: relational.equal(p, x, y, 31, 1),
    lambda p, x, y: relational.maximum(p, x, y, 31, 2),
    lambda p, x, y: relational.where(p, relational.less(p, x, y), x, y),
]


@by_a_dealer
def test_comparisons_cost_what_they_say_whatever_the_values(
    dealer: int, rng: np.random.Generator
) -> None:
    # `equal` needs known shapes: one size with each dealer, all sizes with functions that accept
    # any
    sizes = (SIZES[dealer + 1],)
    inputs = [x for n in sizes for x in (np.zeros(n, np.int64), rng.integers(-(2**40), 2**40, n))]

    def program(p: Party) -> list[Any]:
        shares = [share_for_party(x, p.index, b"value", dealer=dealer) for x in inputs]
        result = []
        for operation in COSTS:
            graph = p.function(lambda x, y, operation=operation: operation(p, x, y))
            result += [measure_graph_call(p, graph, x, x.map(lambda a: a[::-1])) for x in shares]
        return result

    calls = zip(*simulate(program, dealer=dealer).outputs, strict=True)
    operands = [Private((len(x),)) for x in inputs]
    expected = [cost_of(operation, x, x) for operation in COSTS for x in operands]
    for cost, call in zip(expected, calls, strict=True):
        assert_costs(call, cost, dealer)


Use = Callable[[Party, Shared], Any]
NAMES = [*COMPARISONS, "maximum", "minimum"]


def check_refused(code: str, name: str, use: Use) -> None:
    with raises(UsageError, code, operation=name):
        simulate(lambda p, x: p.function(lambda x: use(p, x))(x), np.arange(6))


OPERANDS: dict[str, tuple[str, Callable[[Shared], Any]]] = {
    "a public operand": ("not-private", lambda x: np.arange(6)),
    "a number": ("not-private", lambda x: 3),
    "another dealer's value": ("operand-mismatch", lambda x: replace(x, dealer=1)),
    "another scale": ("scale-mismatch", lambda x: replace(x, fractional_bits=3)),
    "another ring": ("operand-mismatch", lambda x: replace(x, bits=31)),
    "shapes that do not broadcast": ("shape-mismatch", lambda x: x.map(lambda a: a[:4])),
}


@pytest.mark.parametrize("what", OPERANDS)
@pytest.mark.parametrize("name", [*NAMES, "where"])
def test_comparisons_refuse(name: str, what: str) -> None:
    """Try both orders in turn, as one trace fails at its first refusal."""

    code, change = OPERANDS[what]

    def use(p: Party, x: Shared, first: bool) -> Any:
        pair = (change(x), x) if first else (x, change(x))
        if name == "where":
            return relational.where(p, relational.less(p, x, x), *pair)
        return getattr(relational, name)(p, *pair)

    check_refused(code, name, functools.partial(use, first=False))
    check_refused(code, name, functools.partial(use, first=True))


def two_words(x: Shared) -> Shared:
    import tensorflow as tf

    return replace(x.map(lambda a: tf.stack([a, a], axis=-1)), limbs=2)


OTHERS: dict[str, tuple[str, str, Use]] = {
    "equality of two words": (
        "unsupported-ring",
        "equal",
        lambda p, x: relational.equal(p, two_words(x), two_words(x)),
    ),
    "a public condition": (
        "not-private",
        "where",
        lambda p, x: relational.where(p, np.ones(6, bool), x, x),  # type: ignore[arg-type]
    ),
    "a private tensor as a condition": (
        "not-private",
        "where",
        lambda p, x: relational.where(p, x, x, x),  # type: ignore[arg-type]
    ),
    "the sign of a public value": (
        "not-private",
        "negative",
        lambda p, x: relational.is_negative(p, 5),  # type: ignore[arg-type]
    ),
    "more bits than the ring has": (
        "unsupported-ring",
        "msb",
        lambda p, x: relational.less(p, x, x, 65),
    ),
    "no bits": ("number-out-of-range", "compare", lambda p, x: relational.less(p, x, x, 1)),
    "four exchanges": (
        "unsupported-exchanges",
        "compare",
        lambda p, x: relational.less(p, x, x, 31, 4),
    ),
    "too few exchanges": (
        "too-few-exchanges",
        "compare",
        lambda p, x: relational.maximum(p, x, x, 64, 1),
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_comparisons_refuse_also(what: str) -> None:
    check_refused(*OTHERS[what])


def test_bits_for_another_shape_are_refused_as_soon_as_they_show() -> None:
    """Refuse 6 bits for 3: both take one word, so that only the shapes differ."""

    def program(p: Party, x: Shared) -> Any:
        few = x.map(lambda a: a[:3])
        return p.function(lambda x, few: relational.where(p, relational.less(p, x, x), few, few))(
            x, few
        )

    with raises(UsageError, "size-mismatch", operation="inject"):
        simulate(program, np.arange(6))

    def later(p: Party, x: Shared) -> Any:
        bits = p.function(lambda x: relational.less(p, x, x))(x)
        few = x.map(lambda a: a[:3])
        return p.function(lambda bits, few: relational.where(p, bits, few, few))(bits, few)

    with raises(ProtocolError, "graph-failed", names=("inject", "6 bits")):
        simulate(later, np.arange(6))
