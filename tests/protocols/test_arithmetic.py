"""Linear operations and products: exact in the ring, refusals of shapes, declared costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, convert, truncation
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
EDGES = np.array(
    sorted(
        {0, INT64.min, INT64.max}
        | {s * (2**k + d) for s in (1, -1) for k in (0, 16, 31, 32, 62) for d in (-1, 0, 1)}
    ),
    np.int64,
)
SIZES = (1, 63, 64, 65, 1000)


def draw_words(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(INT64.min, INT64.max, shape, np.int64, endpoint=True)


def edges_and_words(rng: np.random.Generator) -> Array:
    return np.concatenate([EDGES, draw_words(rng, (20,))])


@pytest.mark.parametrize("dealer", range(3))
def test_linear_operations_are_exact_and_broadcast_either_operand(
    dealer: int, rng: np.random.Generator
) -> None:
    a, b = edges_and_words(rng), edges_and_words(rng)[:, None]
    c, matrix = draw_words(rng, (5, len(a))), draw_words(rng, (len(a), 3))

    def program(p: Party, x: Shared, y: Shared, z: Shared) -> Any:
        return p.function(
            lambda x, y, z: [
                arithmetic.add(x, y),
                arithmetic.add(y, x),
                arithmetic.sub(x, y),
                arithmetic.sub(y, x),
                arithmetic.neg(x),
                arithmetic.add_public(x, b),
                arithmetic.add_public(y, a),
                arithmetic.add_public(y, np.int64(7)),
                arithmetic.mul_public(x, b),
                arithmetic.mul_public(y, a),
                arithmetic.mul_public(y, np.int64(-7)),
                arithmetic.matmul_public(z, matrix),
            ]
        )(x, y, z)

    sim = simulate(program, a, b, c, dealer=dealer)
    want = [
        *(a + b, b + a, a - b, b - a, -a),
        *(a + b, b + a, b + 7),
        *(a * b, b * a, b * -7),
        c @ matrix,
    ]
    for i, expected in enumerate(want):
        assert np.array_equal(sim.value(itemgetter(i)), expected), i
    assert sim.sent == (0, 0, 0)


@pytest.mark.parametrize("dealer", range(3))
def test_mul_is_exact_modulo_2_64_and_broadcasts_either_operand(
    dealer: int, rng: np.random.Generator
) -> None:
    a, b = edges_and_words(rng), edges_and_words(rng)[:, None]
    scalar, empty = np.array(-3, np.int64), np.zeros((0,), np.int64)

    def program(p: Party, *inputs: Shared) -> Any:
        def products(x: Shared, y: Shared, s: Shared, e: Shared) -> list[Shared]:
            pairs = [(x, y), (y, x), (x, x), (s, y), (x, s), (s, s), (e, e), (e, s)]
            return [arithmetic.mul(p, left, right) for left, right in pairs]

        return p.function(products)(*inputs)

    sim = simulate(program, a, b, scalar, empty, dealer=dealer)
    want = [a * b, b * a, a * a, b * -3, a * -3, np.array(9), empty, empty]
    for i, expected in enumerate(want):
        assert np.array_equal(sim.value(itemgetter(i)), expected), i


@pytest.mark.parametrize("dealer", range(3))
def test_matmul_is_exact_modulo_2_64_also_batched(dealer: int, rng: np.random.Generator) -> None:
    edges = edges_and_words(rng)
    shapes = [(3, 5), (5, 4), (2, 3, 5), (2, 5, 4), (2, 3, 1, 2), (2, 3, 2, 1), (2, 0), (0, 3)]
    operands = [draw_words(rng, shape) for shape in shapes]
    operands += [edges[:, None], edges[None, ::-1]]
    operands += [edges[None], edges[:, None]]

    def program(p: Party, *inputs: Shared) -> Any:
        return p.function(
            lambda *x: [
                arithmetic.matmul(p, left, right)
                for left, right in zip(x[::2], x[1::2], strict=True)
            ]
        )(*inputs)

    sim = simulate(program, *operands, dealer=dealer)
    for i, (left, right) in enumerate(zip(operands[::2], operands[1::2], strict=True)):
        assert np.array_equal(sim.value(itemgetter(i)), left @ right), left.shape


# shapes of two factors, transpose_a, transpose_b
BATCHED: list[tuple[tuple[int, ...], tuple[int, ...], bool, bool]] = [
    ((2, 3, 5), (5, 4), False, False),  # one matrix for all: one taller product
    ((4, 2, 3, 5), (5, 4), False, False),
    ((3, 5), (2, 5, 4), False, False),
    ((2, 1, 3, 5), (6, 5, 4), False, False),
    ((1, 3, 5), (2, 5, 4), False, False),
    ((2, 3, 5), (1, 5, 4), False, False),
    ((3, 1, 2, 3, 5), (1, 4, 1, 5, 2), False, False),
    ((5, 3), (5, 4), True, False),
    ((3, 5), (4, 5), False, True),
    ((2, 5, 3), (4, 5), True, True),
    ((3, 4, 7, 6), (3, 4, 7, 6), False, True),
    ((0, 3, 5), (5, 4), False, False),
    ((0, 3, 5), (1, 5, 4), False, False),
    ((2, 3, 0), (0, 4), False, False),
]


@pytest.mark.parametrize("dealer", range(3))
def test_matmul_broadcasts_batches_and_transposes_as_tensorflow_does(
    dealer: int, rng: np.random.Generator
) -> None:
    operands = [draw_words(rng, shape) for case in BATCHED for shape in case[:2]]

    def program(p: Party, *inputs: Shared) -> Any:
        def products(*x: Shared) -> list[Shared]:
            out = []
            for i, (_, _, *flags) in enumerate(BATCHED):
                a, b = x[2 * i : 2 * i + 2]
                plain_a, plain_b = operands[2 * i : 2 * i + 2]
                out.append(arithmetic.matmul(p, a, b, *flags))
                out.append(arithmetic.matmul_public(a, plain_b, 2, *flags))
                out.append(arithmetic.matmul_public(plain_a, b, 2, *flags))
            return out

        return p.function(products)(*inputs)

    sim = simulate(program, *operands, dealer=dealer, fractional_bits=4)
    for i, (_, _, swap_a, swap_b) in enumerate(BATCHED):
        a, b = operands[2 * i : 2 * i + 2]
        want = (a.swapaxes(-1, -2) if swap_a else a) @ (b.swapaxes(-1, -2) if swap_b else b)
        for j, scale in ((3 * i, 8), (3 * i + 1, 6), (3 * i + 2, 6)):
            got = sim.value(itemgetter(j))
            assert got.shape == want.shape and np.array_equal(got, want), (i, j)
            assert all(out[j].fractional_bits == scale for out in sim.outputs)
            assert all(out[j].shape == want.shape for out in sim.outputs)


def test_matmul_follows_batches_that_the_graph_does_not_know(rng: np.random.Generator) -> None:
    a, b, c = draw_words(rng, (3, 2, 4)), draw_words(rng, (4, 5)), draw_words(rng, (1, 4, 2))

    def program(p: Party, *x: Shared) -> Any:
        f = p.function(
            lambda a, b, c: [arithmetic.matmul(p, a, b), arithmetic.matmul(p, a, c)], dynamic=True
        )
        return f(*x)

    sim = simulate(program, a, b, c)
    assert np.array_equal(sim.value(itemgetter(0)), a @ b)
    assert np.array_equal(sim.value(itemgetter(1)), a @ c)


def test_matmul_refuses_what_does_not_multiply_by_name_with_its_shapes() -> None:
    def program(p: Party, x: Shared) -> None:
        def all_of(x: Shared) -> Shared:
            def of(*shape: int) -> Shared:
                return x.map(lambda a: tf.zeros(shape, tf.int64))

            pairs = [((2, 3), (2, 3)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3, 4), (3, 4, 5))]
            for a, b in pairs:
                with raises(UsageError, "shape-mismatch", operation="matmul"):
                    arithmetic.matmul(p, of(*a), of(*b))
                with raises(UsageError, "shape-mismatch", operation="matmul_public"):
                    arithmetic.matmul_public(of(*a), np.zeros(b, np.int64))
            with raises(UsageError, "shape-mismatch"):
                arithmetic.matmul(p, of(2, 3), of(3, 2), transpose_b=True)
            with raises(UsageError, "unsupported-type", operation="matmul_public"):
                arithmetic.matmul_public(of(2, 3), np.zeros((3, 2)))
            return x

        p.function(all_of)(x)

    import tensorflow as tf

    simulate(program, np.arange(2))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_products_of_products_are_exact_in_graphs_of_known_and_unknown_sizes(
    dynamic: bool, rng: np.random.Generator
) -> None:
    x, one = draw_words(rng, (4, 4)), np.int64(1)

    def chain(p: Party, x: Shared) -> Shared:
        y = arithmetic.add_public(arithmetic.mul(p, x, x), one)
        return arithmetic.matmul(p, arithmetic.matmul(p, y, x), arithmetic.neg(y))

    sim = simulate(lambda p, x: p.function(lambda x: chain(p, x), dynamic)(x), x)
    y = x * x + 1
    assert np.array_equal(sim.value(), y @ x @ -y)


def test_scales_add_up_in_products_and_stay_in_sums() -> None:
    def program(p: Party, x: Shared) -> Any:
        one = np.ones((1, 1), np.int64)
        return p.function(
            lambda x: [
                arithmetic.mul(p, x, x),
                arithmetic.matmul(p, x, x),
                arithmetic.mul_public(x, one, 3),
                arithmetic.matmul_public(x, one, 3),
                arithmetic.add(x, x),
                arithmetic.add_public(x, one),
                arithmetic.neg(x),
            ]
        )(x)

    sim = simulate(program, np.ones((1, 1), np.int64), fractional_bits=7)
    for out in sim.outputs:
        assert [x.fractional_bits for x in out] == [14, 14, 10, 10, 7, 7, 7]


def test_wide_sums_are_exact_modulo_2_128(rng: np.random.Generator) -> None:
    a, b = edges_and_words(rng), edges_and_words(rng)

    def program(p: Party, x: Shared, y: Shared) -> Any:
        def sums(x: Shared, y: Shared) -> list[Shared]:
            u, v = convert.extend_to_wide(p, x, 60), convert.extend_to_wide(p, y, 60)
            return [arithmetic.add(u, v), arithmetic.sub(u, v), arithmetic.neg(u)]

        return p.function(sums)(x, y)

    sim = simulate(program, a, b)
    u, v = ([(int(i) % 2**64) << 60 for i in values] for values in (a, b))
    want = [[i + j for i, j in zip(u, v, strict=True)]]
    want += [[i - j for i, j in zip(u, v, strict=True)], [-i for i in u]]
    for number, expected in enumerate(want):
        got = sim.value(itemgetter(number))
        # correct at least modulo the ring of the operands, 2^125
        assert [int(g) % 2**125 for g in got] == [e % 2**125 for e in expected], number


def shrink_ring(p: Party, x: Shared) -> Shared:
    """Return x / 2^16 in the ring Z_2^31, with the scale of x."""
    return replace(truncation.truncate_reduce(p, x, 16, 31), fractional_bits=x.fractional_bits)


def trace_error(program: Callable[..., Any], **options: Any) -> UsageError:
    """Return the UsageError of a graph over a value of two elements."""
    with pytest.raises(UsageError) as caught:
        simulate(lambda p, x: p.function(lambda x: program(p, x))(x), np.arange(2), **options)
    return caught.value


PRIVATE: dict[str, Callable[[Party, Shared, Any], Any]] = {
    "add": lambda p, x, y: arithmetic.add(x, y),
    "sub": lambda p, x, y: arithmetic.sub(x, y),
    "mul": arithmetic.mul,
    "matmul": arithmetic.matmul,
}


@pytest.mark.parametrize("name", PRIVATE)
def test_operands_of_two_dealers_are_refused_by_name(name: str) -> None:
    def program(p: Party, x: Shared) -> Any:
        return PRIVATE[name](p, x, share_for_party(np.arange(2), p.index, b"other", dealer=1))

    error = trace_error(program)
    assert (error.code, error.operation) == ("operand-mismatch", name)


@pytest.mark.parametrize("name", PRIVATE)
def test_operands_of_one_and_two_words_are_refused_by_name(name: str) -> None:
    error = trace_error(lambda p, x: PRIVATE[name](p, x, convert.extend_to_wide(p, x, 1)))
    assert (error.code, error.operation) == ("operand-mismatch", name)


@pytest.mark.parametrize("name", PRIVATE)
def test_operands_of_a_large_and_a_small_ring_are_refused_by_name(name: str) -> None:
    text = str(trace_error(lambda p, x: PRIVATE[name](p, x, shrink_ring(p, x))))
    assert name in text


@pytest.mark.parametrize("name", ["mul", "matmul"])
def test_products_in_other_rings_than_2_64_are_refused_by_name(name: str) -> None:
    for lift in (lambda p, x: convert.extend_to_wide(p, x, 1), shrink_ring):

        def square(p: Party, x: Shared, lift: Any = lift) -> Any:
            y = lift(p, x)
            return PRIVATE[name](p, y, y)

        assert name in str(trace_error(square))


@pytest.mark.parametrize("name", PRIVATE)
def test_public_operands_are_refused_and_the_public_form_is_named(name: str) -> None:
    text = str(trace_error(lambda p, x: PRIVATE[name](p, x, np.arange(2))))
    assert f"Use {name}_public" in text


@pytest.mark.parametrize("name", ["add", "sub"])
def test_sums_of_two_scales_are_refused_by_name(name: str) -> None:
    error = trace_error(lambda p, x: PRIVATE[name](p, x, arithmetic.mul_public(x, 1, 4)))
    assert (error.code, error.operation) == ("scale-mismatch", name)


@pytest.mark.parametrize("name", ["add_public", "mul_public", "matmul_public"])
def test_public_operands_of_wide_values_are_refused_or_right(name: str) -> None:
    value = np.array([[-1, -1], [-1, -1]])
    operation = getattr(arithmetic, name)
    three = np.full((2, 2), 3)
    try:
        sim = simulate(
            lambda p, x: p.function(lambda x: operation(convert.extend_to_wide(p, x, 0), three))(x),
            value,
        )
        got = sim.value()
    except UsageError as error:
        assert name in str(error)
        return
    top = 2**64 - 1
    want = {"add_public": top + 3, "mul_public": 3 * top, "matmul_public": 6 * top}[name]
    assert np.all(got % 2**65 == want % 2**65)


def test_sums_in_a_small_ring_are_refused_or_right() -> None:
    value = np.array([3 << 16, -5 << 16])

    def program(p: Party, x: Shared) -> Any:
        def double(x: Shared) -> Shared:
            y = shrink_ring(p, x)
            return arithmetic.add(y, y)

        return p.function(double)(x)

    try:
        got = simulate(program, value).value()
    except UsageError:
        return
    assert [int(g) for g in got] == [6, 2**31 - 10]


@pytest.mark.parametrize("dealer", range(3))
def test_products_cost_what_they_say_whatever_the_values(
    dealer: int, rng: np.random.Generator
) -> None:
    inputs = [x for n in SIZES for x in (np.zeros(n, np.int64), draw_words(rng, (n,)))]

    def program(p: Party) -> list[Any]:
        mul = p.function(lambda x: arithmetic.mul(p, x, x), dynamic=True)
        matmul = p.function(lambda x, y: arithmetic.matmul(p, x, y), dynamic=True)
        row = share_for_party(np.ones((1, 1), np.int64), p.index, b"row", dealer=dealer)
        result = []
        for value in inputs:
            x = share_for_party(value, p.index, b"value", dealer=dealer)
            result.append(measure_graph_call(p, mul, x))
            result.append(measure_graph_call(p, matmul, x.map(lambda a: a[:, None]), row))
        return result

    calls = zip(*simulate(program).outputs, strict=True)
    for value, call in zip([x for x in inputs for _ in range(2)], calls, strict=True):
        assert_costs(call, cost_of(arithmetic.mul, *[Private((len(value),))] * 2), dealer)
