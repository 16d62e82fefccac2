"""ReLU is exact in its range; the truncated product is off by less than one unit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.protocols.shares import assert_costs_of_all
from tests.refusals import raises
from tfe_bench.cluster.simulate import Simulation, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.ring import products
from tfe_bench.protocols.ring.truncation import truncate_reduce
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
SIZES = (1, 63, 64, 65, 1000)
MANY = 10_000


def nested_item(*places: int) -> Callable[[Any], Any]:
    """Return an item of a party's nested outputs."""
    return lambda out: functools.reduce(lambda nest, place: nest[place], places, out)


def draw_below(bound: int, rng: np.random.Generator, many: int = MANY) -> Array:
    """Return 0, +-1, 2^k and its neighbors, the ends of (-bound, bound), and random values."""
    top = (bound - 1).bit_length()
    numbers = {s * 2**k + d for s in (1, -1) for k in range(top + 1) for d in (-1, 0, 1)}
    edges = sorted(v for v in numbers | {0, bound - 1, 1 - bound} if abs(v) < bound)
    return np.concatenate([np.array(edges), rng.integers(1 - bound, bound, many)]).astype(np.int64)


def read_signed(sim: Simulation, pick: Callable[[Any], Shared], bits: int) -> Array:
    """Return the value of a small ring, read as signed."""
    raw = sim.value(pick)
    return np.array([int(v) - (int(v) >> (bits - 1) << bits) for v in raw.reshape(-1)]).reshape(
        raw.shape
    )


def bits_of(sim: Simulation, pick: Callable[[Any], Any]) -> Array:
    parts = [pick(out) for out in sim.outputs]
    (beta,) = [p.beta for p in parts if p.beta is not None]
    bits = np.unpackbits(
        (beta ^ next(p.masked for p in parts if p.masked is not None)).view(np.uint8),
        bitorder="little",
    )
    return np.asarray(bits[: int(parts[0].n)])


@by_a_dealer
def test_relu_is_exact_in_its_range_and_so_is_its_derivative(
    dealer: int, rng: np.random.Generator
) -> None:
    layer, whole, few = draw_below(2**30, rng), draw_below(2**63, rng), np.arange(-15, 16)

    def program(p: Party, *shares: Shared) -> Any:
        def function(layer: Shared, whole: Shared, few: Shared) -> Any:
            return [
                relu.relu(p, layer),
                relu.relu(p, layer, exchanges=1),
                relu.relu(p, layer, exchanges=3),
                relu.relu(p, layer, exchanges=None),
                relu.relu(p, whole, 64, None),
                relu.relu(p, few, 5),
                *relu.relu_with_derivative(p, layer),
                relu.relu_derivative(p, layer),
                relu.relu_derivative(p, whole, 64),
            ]

        return p.function(function)(*shares)

    sim = simulate(program, layer, whole, few, dealer=dealer, fractional_bits=16)
    for i, x in enumerate([layer] * 4 + [whole, few, layer]):
        assert np.array_equal(sim.value(nested_item(i)), np.maximum(x, 0)), i
        assert all(out[i].fractional_bits == 16 for out in sim.outputs)
    assert np.array_equal(bits_of(sim, nested_item(7)), layer < 0)
    for i, x in ((8, layer), (9, whole)):
        assert np.array_equal(sim.value(nested_item(i)), x >= 0)
        assert all(out[i].fractional_bits == 0 for out in sim.outputs)


def test_relu_of_the_lowest_value_and_of_any_shape(rng: np.random.Generator) -> None:
    shapes: list[tuple[int, ...]] = [(), (0,), (2, 0, 3), (1, 2, 1, 2, 3)]
    data = [np.full(3, INT64.min), *(rng.integers(-9, 10, s) for s in shapes)]

    def program(p: Party, *shares: Shared) -> Any:
        return p.function(
            lambda *x: [(relu.relu(p, a, 64), relu.relu_derivative(p, a, 64)) for a in x]
        )(*shares)

    sim = simulate(program, *data)
    for i, x in enumerate(data):
        for k, want in enumerate((np.maximum(x, 0), x >= 0)):
            got = sim.value(nested_item(i, k))
            assert got.shape == x.shape and np.array_equal(got, want)


def test_outside_of_the_range_relu_is_the_value_or_0(rng: np.random.Generator) -> None:
    x = rng.integers(INT64.min, INT64.max, MANY, endpoint=True)
    got = simulate(lambda p, x: p.function(lambda x: relu.relu(p, x))(x), x).value()
    assert np.all((got == x) | (got == 0))
    sign = x >> 30 & 1  # the values of 31 bits
    assert np.array_equal(got, np.where(sign, 0, x))


@by_a_dealer
def test_relu_carries_every_value_of_a_small_ring_back(
    dealer: int, rng: np.random.Generator
) -> None:
    rings = (2, 3, 8, 31, 47, 63)
    data = [draw_below(2 ** (k - 1), rng, 3000) << 1 for k in rings]

    def program(p: Party, *shares: Shared) -> Any:
        def function(*shares: Shared) -> Any:
            small = [truncate_reduce(p, x, 1, k) for x, k in zip(shares, rings, strict=True)]
            return [
                (u, relu.relu(p, u, 64, None), relu.relu_derivative(p, u, exchanges=None))
                for u in small
            ]

        return p.function(function)(*shares)

    sim = simulate(program, *data, dealer=dealer, fractional_bits=17)
    for i, k in enumerate(rings):
        x = data[i] >> 1
        assert np.array_equal(read_signed(sim, nested_item(i, 0), k), x)
        assert np.array_equal(sim.value(nested_item(i, 1)), np.maximum(x, 0)), k
        assert np.array_equal(sim.value(nested_item(i, 2)), x >= 0), k
        for out in sim.outputs:
            assert (out[i][1].ring_bits, out[i][1].fractional_bits) == (64, 16)


# ---- the product


@by_a_dealer
def test_a_truncated_product_errs_less_than_one_unit_and_never_fails(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    """Multiply elementwise by 1, so that every z in the documented range occurs."""
    rings = ((16, 31), (1, 2), (1, 63), (13, 51), (48, 16), (62, 2), (8, 24))
    limits = [(2 ** (bits - 1) - 1) * 2**drop for drop, bits in rings]
    data = [draw_below(limit + 1, rng, 40_000) for limit in limits]

    def program(p: Party, *shares: Shared) -> Any:
        def function(*shares: Shared) -> Any:
            *xs, one = shares
            return [
                relu.truncated_product(p, x, one, *ring, bilinear=products.sum_elementwise_products)
                for x, ring in zip(xs, rings, strict=True)
            ]

        return p.function(function)(*shares)

    sim = simulate(
        program, *data, np.ones(1, np.int64), dealer=dealer, seed=seed.to_bytes(4, "little")
    )
    for i, (drop, bits) in enumerate(rings):
        z = data[i]
        # all in integers: floats do not hold 63 bits
        got = read_signed(sim, nested_item(i), bits)
        floor, rest = z >> drop, z & (2**drop - 1)
        up = got - floor
        assert np.all((up == 0) | ((up == 1) & (rest > 0))), (drop, bits)
        assert abs(z[:-40_000]).max() == limits[i]
        assert all(out[i].ring_bits == bits for out in sim.outputs)


def test_a_truncated_matrix_product_with_its_bias_and_relu(
    seed: int, rng: np.random.Generator
) -> None:
    x, y = rng.integers(-(2**20), 2**20, (60, 30)), rng.integers(-(2**19), 2**19, (30, 200))
    row, one = rng.integers(-(2**44), 2**44, (200,)), np.array(-(2**44))
    many = rng.integers(-(2**20), 2**20, (3, 2, 5)), rng.integers(-(2**19), 2**19, (3, 5, 4))

    def program(p: Party, *shares: Shared) -> Any:
        def function(x: Shared, y: Shared, row: Shared, one: Shared, a: Shared, b: Shared) -> Any:
            doubled = [replace(c, fractional_bits=2 * c.fractional_bits) for c in (row, one)]
            results = [
                relu.truncated_product(p, x, y, 16),
                *(relu.truncated_product(p, x, y, 16, bias=c) for c in doubled),
                relu.truncated_product(p, a, b, 16),
            ]
            return [(u, relu.relu(p, u)) for u in results]

        return p.function(function)(*shares)

    sim = simulate(
        program,
        *(x, y, row, one, *many),
        dealer=1,
        fractional_bits=16,
        seed=seed.to_bytes(4, "little"),
    )
    z = x @ y
    for i, exact in enumerate((z, z + row, z + one, np.matmul(*many))):
        u = read_signed(sim, nested_item(i, 0), 31)
        assert np.all(np.abs(u - exact / 2**16) < 1), i
        assert np.array_equal(sim.value(nested_item(i, 1)), np.maximum(u, 0)), i
        assert all(out[i][k].fractional_bits == 16 for out in sim.outputs for k in range(2))


def test_rounding_has_no_bias(seed: int, rng: np.random.Generator) -> None:
    z = rng.integers(-(2**40), 2**40, 100_000)

    def program(p: Party, z: Shared, one: Shared) -> Any:
        return p.function(
            lambda z, one: relu.truncated_product(
                p, z, one, 16, bilinear=products.sum_elementwise_products
            )
        )(z, one)

    sim = simulate(program, z, np.ones(1, np.int64), seed=seed.to_bytes(4, "little"))
    error = read_signed(sim, lambda out: out, 31) - z / 2**16
    # a coin of variance at most 1/4: six standard deviations of the mean
    assert np.all(np.abs(error) < 1) and abs(error.mean()) < 6 * 0.5 / len(z) ** 0.5


# ---- costs


COSTS: list[Callable[[Party, Shared], Any]] = [
    relu.relu,
    lambda p, x: relu.relu(p, x, 64, None),
    lambda p, x: relu.relu(p, x, 20, 1),
    relu.relu_derivative,
    lambda p, x: relu.relu(p, replace(x, bits=31)),
    lambda p, x: relu.relu(p, replace(x, bits=63), exchanges=3),
    lambda p, x: relu.truncated_product(p, x, x, 16, bilinear=products.sum_elementwise_products),
    lambda p, x: relu.relu(
        p,
        relu.truncated_product(p, x, x, 13, 20, products.sum_elementwise_products, x),
    ),
]


@by_a_dealer
def test_relu_and_products_cost_what_they_say_whatever_the_values(
    dealer: int, rng: np.random.Generator
) -> None:
    inputs = [x for n in SIZES for x in (np.zeros(n, np.int64), rng.integers(-(2**12), 2**12, n))]

    assert_costs_of_all(COSTS, inputs, dealer)


# ---- rejected arguments


def two_words(x: Shared) -> Shared:
    import tensorflow as tf

    return replace(x.map(lambda a: tf.stack([a, a], axis=-1)), limbs=2)


def truncated_product(**options: Any) -> Callable[[Party, Shared], Any]:
    return lambda p, x: relu.truncated_product(
        p, x, x, **{"drop": 16, "bilinear": products.sum_elementwise_products, **options}
    )


def biased_product(change: Callable[[Shared], Any]) -> Callable[[Party, Shared], Any]:
    return lambda p, x: truncated_product(bias=change(x))(p, x)


PRODUCT = "truncated_product"
REFUSED: dict[str, tuple[str, str, Callable[[Party, Shared], Any]]] = {
    "relu of a public tensor": ("not-private", "relu", lambda p, x: relu.relu(p, np.arange(3))),  # type: ignore[arg-type]
    "relu of two words": ("unsupported-ring", "relu", lambda p, x: relu.relu(p, two_words(x))),
    "relu of too many bits": ("unsupported-ring", "msb", lambda p, x: relu.relu(p, x, 65)),
    "relu of one bit": ("number-out-of-range", "compare", lambda p, x: relu.relu(p, x, 1)),
    "relu with no exchange": (
        "unsupported-exchanges",
        "compare",
        lambda p, x: relu.relu(p, x, exchanges=0),
    ),
    "derivative of a public tensor": (
        "not-private",
        "relu derivative",
        lambda p, x: relu.relu_derivative(p, 3),  # type: ignore[arg-type]
    ),
    "derivative of two words": (
        "unsupported-ring",
        "relu derivative",
        lambda p, x: relu.relu_derivative(p, two_words(x)),
    ),
    "no bit to drop": ("number-out-of-range", PRODUCT, truncated_product(drop=0)),
    "half a bit to drop": ("number-out-of-range", PRODUCT, truncated_product(drop=0.5)),
    "a ring of 1 bit": ("number-out-of-range", PRODUCT, truncated_product(bits=1)),
    "more bits than there are": ("number-out-of-range", PRODUCT, truncated_product(bits=49)),
    "a public operand": (
        "not-private",
        PRODUCT,
        lambda p, x: relu.truncated_product(p, x, np.ones((4, 4)), 16),  # type: ignore[arg-type]
    ),
    "a public first operand": (
        "not-private",
        PRODUCT,
        lambda p, x: relu.truncated_product(p, np.ones((4, 4)), x, 16),  # type: ignore[arg-type]
    ),
    "two words": (
        "unsupported-ring",
        PRODUCT,
        lambda p, x: relu.truncated_product(p, two_words(x), two_words(x), 16),
    ),
    "small rings": (
        "unsupported-ring",
        PRODUCT,
        lambda p, x: truncated_product()(p, replace(x, bits=31)),
    ),
    "two dealers": (
        "operand-mismatch",
        PRODUCT,
        lambda p, x: relu.truncated_product(p, x, replace(x, dealer=1), 16),
    ),
    "matrices that do not fit": (
        "shape-mismatch",
        PRODUCT,
        lambda p, x: relu.truncated_product(p, x, x.map(lambda a: a[:3]), 16),
    ),
    "a bias of another scale": (
        "operand-mismatch",
        PRODUCT,
        biased_product(lambda x: replace(x, fractional_bits=1)),
    ),
    "a public bias": ("not-private", PRODUCT, biased_product(lambda x: np.arange(4))),
    "a bias of a small ring": (
        "unsupported-ring",
        PRODUCT,
        biased_product(lambda x: replace(x, bits=31)),
    ),
    "a bias of another dealer": (
        "operand-mismatch",
        PRODUCT,
        biased_product(lambda x: replace(x, dealer=1)),
    ),
    "a bias larger than the product": (
        "shape-mismatch",
        PRODUCT,
        biased_product(lambda x: x.map(lambda a: a[None])),
    ),
    "a bias of another shape": (
        "shape-mismatch",
        PRODUCT,
        biased_product(lambda x: x.map(lambda a: a[:3])),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_relu_and_its_product_refuse(what: str) -> None:
    code, name, use = REFUSED[what]
    with raises(UsageError, code, operation=name):
        simulate(lambda p, x: p.function(lambda x: use(p, x))(x), np.zeros((4, 4), np.int64))
