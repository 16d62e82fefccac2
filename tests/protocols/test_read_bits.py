"""Protocols that read few bits of a value: higher bits are arbitrary, and do not affect results."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.activation_widths import EXACT
from tests.protocols.test_attention import is_near, plain_weights
from tests.refusals import raises
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.functions import roots
from tfe_bench.protocols.nn import attention, linear, relu, series
from tfe_bench.protocols.ring import small_ring
from tfe_bench.protocols.ring.products import BilinearShareProduct, sum_elementwise_products
from tfe_bench.protocols.session.counting import Private, count_cost
from tfe_bench.protocols.session.fixedpoint import FixedPoint
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]


def spoil_high_bits(x: Array, bits: int, rng: np.random.Generator) -> Array:
    """Return the words with other higher bits."""
    if bits >= 64:
        return x
    above = rng.integers(0, 1 << 63, x.shape, np.int64) << bits
    return np.asarray(above | (x & ((1 << bits) - 1)))


def read_signed(words: Array, bits: int) -> Array:
    """Return the value that is read from words of Z_2^bits."""
    wrapped = [(int(v) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)) for v in words.flat]
    return np.array(wrapped, np.int64).reshape(words.shape)


def draw_ends(bits: int, rng: np.random.Generator, many: int = 50) -> Array:
    """Return the ends of (-2^(bits-1), 2^(bits-1)), and values in between."""
    most = (1 << (bits - 1)) - 1
    return np.array([0, most, -most, most // 2, *rng.integers(-most, most, many, endpoint=True)])


SERIES = [(8, 9), (8, 8 + 20), (12, 13), (12, 18), (16, 17), (16, 22), (16, 16 + 28)]


@pytest.mark.parametrize("name", series.ACTIVATIONS)
def test_a_series_reads_no_more_than_it_says(name: str, rng: np.random.Generator) -> None:
    """Check all widths of comparisons, into rings of all sizes."""
    bend = series.ACTIVATIONS[name]
    cases = [(f, min(bits, series.max_activation_bits(name, f))) for f, bits in SERIES]
    read = [series.activation_read_bits(name, f, 1 << (bits - 1)) for f, bits in cases]
    xs = [draw_ends(bits, rng) for _, bits in cases]
    rings = [64, 40, 17, 3, 64, 33, 50]

    def program(p: Party, *shares: Shared) -> Any:
        def graph(*shares: Shared) -> Any:
            results = []
            for x, (f, bits), k, to in zip(shares, cases, read, rings, strict=True):
                x = small_ring.reduce_ring(Shared(x.m, x.l1, x.l2, x.dealer, f), k)
                results.append(series.evaluate_series(p, x, name, bits, to=to))
            with raises(UsageError, "unsupported-ring", operation="series"):
                series.evaluate_series(p, small_ring.reduce_ring(x, k - 1), name, bits)
            return results

        return p.function(graph)(*shares)

    inputs = [spoil_high_bits(x, k, rng) for x, k in zip(xs, read, strict=True)]
    sim = simulate(program, *inputs, dealer=int(rng.integers(3)))
    for i, ((f, _), x, to) in enumerate(zip(cases, xs, rings, strict=True)):
        ring, scale = sim.outputs[0][i].ring_bits, sim.outputs[0][i].fractional_bits
        assert ring >= to
        result = read_signed(sim.value(lambda y, i=i: y[i]), ring)  # type: ignore[misc]
        v = x * 2.0**-f
        low, high = bend.low / 4, bend.high / 4
        lower, upper = bend.ends or (0, None)
        beyond = np.where(v < low - 0.25, float(lower), v if upper is None else float(upper))
        outside = (v < low - 0.25) | (v > high + 0.25)
        assert np.array_equal(result[outside], (beyond * 2.0**scale)[outside]), (f, to)
        off = np.abs(result * 2.0**-scale - EXACT[name](v))
        assert off.max() < 2.0**-10.5 + 2 * 2.0**-f, (f, to)


@pytest.mark.parametrize("bits", [2, 3, 17, 31, 48])
@pytest.mark.parametrize("more", [0, 1, 14])
def test_a_relu_stays_in_its_ring(bits: int, more: int, rng: np.random.Generator) -> None:
    k = bits + more
    x = draw_ends(bits, rng)
    most = (1 << (bits - 2)) // 2
    fits = np.abs(x) + most < 1 << (bits - 1)

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            x = small_ring.reduce_ring(x, k)
            results = [relu.relu_in(p, x, bits), relu.relu_in(p, x, bits, to=64)]
            return [*results, *(linear.capped_relu(p, x, most, bits, 2, n) for n in (k, k + 1))]

        return p.function(graph)(x)

    sim = simulate(program, spoil_high_bits(x, k, rng), dealer=int(rng.integers(3)))
    rings = [k, 64, k, k + 1]
    assert [y.ring_bits for y in sim.outputs[0]] == rings
    for i, ring in enumerate(rings):
        result = read_signed(sim.value(lambda y, i=i: y[i]), ring)  # type: ignore[misc]
        expected, where = (np.maximum(x, 0), x == x) if i < 2 else (np.clip(x, 0, most), fits)
        assert np.array_equal(result[where], expected[where]), i


@pytest.mark.parametrize(
    ("drop", "to", "ring"),
    [
        *((1, 63, None), (1, 64, None), (16, 48, None), (16, 64, None), (16, 64, 20)),
        *((16, 36, 20), (48, 16, None), (48, 64, None), (60, 64, None), (60, 4, None)),
        (5, 2, None),
    ],
)
def test_a_product_comes_in_the_ring_that_is_read(
    drop: int, to: int, ring: int | None, rng: np.random.Generator
) -> None:
    """Check the documented domain, with operands of which exactly these bits are right."""
    opened = ring or min(to, 64 - drop)
    read = drop + opened
    most = (1 << (opened - 2 + drop if opened < to else opened - 1 + drop)) - (1 << drop)
    x = np.array([0, 1, most, -most, *rng.integers(-most, most + 1, 40)])
    w, b = np.ones_like(x), rng.integers(-3, 4, x.size)
    x = np.clip(x, 3 - most, most - 3)

    def program(p: Party, *shares: Shared) -> Any:
        def graph(x: Shared, w: Shared, b: Shared) -> Any:
            products = [BilinearShareProduct(x, w, sum_elementwise_products)]
            return small_ring.truncated_product_sum(p, products, b, drop, to, ring)

        return p.function(graph)(*shares)

    inputs = [spoil_high_bits(a, read, rng) for a in (x, w, b)]
    sim = simulate(program, *inputs, dealer=int(rng.integers(3)))
    assert sim.outputs[0].ring_bits == to
    result = read_signed(sim.value(), to).astype(object)
    if opened < to:
        assert all(abs((f << drop) - v) < 1 << drop for f, v in zip(result, x + b, strict=True))
    else:
        off = [(int(f) << drop) - int(v) for f, v in zip(result, x + b, strict=True)]
        near = 1 << drop
        assert all(-near < (d + near) % (1 << read) - near < near for d in off)
    one = Private((x.size,), 0).to_symbolic()
    products = [BilinearShareProduct(one, one, sum_elementwise_products)]
    cost = count_cost(
        lambda p: small_ring.truncated_product_sum(p, products, one, drop, to, ring)
    ).cost
    assert sim.sent == cost.by_party(sim.outputs[0].dealer) and sim.rounds == cost.rounds


@pytest.mark.parametrize(("f", "bits"), [(16, 24), (12, 18), (8, 12)])
def test_attention_reads_no_more_than_it_says(f: int, bits: int, rng: np.random.Generator) -> None:
    fixed = FixedPoint(f)
    q, k, v = (rng.normal(size=(2, n, 4)) for n in (3, 5, 5))
    of_scores, of_values = attention.attention_read_bits(f, f, 4, 5, bits)
    read = (of_scores, of_scores, of_values)
    to = f + 6

    def program(p: Party, *shares: Shared) -> Any:
        def graph(*shares: Shared) -> Any:
            small = [small_ring.reduce_ring(x, n) for x, n in zip(shares, read, strict=True)]
            for i, n in enumerate(read):
                less = [
                    small_ring.reduce_ring(x, n - 1) if i == j else x for j, x in enumerate(small)
                ]
                with raises(UsageError, "unsupported-ring", operation="attention"):
                    attention.attention(p, *less, bits=bits)
            return attention.attention(p, *small, bits=bits, to=to)

        return p.function(graph)(*shares)

    words = [spoil_high_bits(fixed.encode(a), n, rng) for a, n in zip((q, k, v), read, strict=True)]
    sim = simulate(program, *words, dealer=int(rng.integers(3)), fractional_bits=f)
    assert sim.outputs[0].ring_bits >= to
    assert is_near(read_signed(sim.value(), sim.outputs[0].ring_bits), plain_weights(q, k), v, f)


ROOTS = [(48, 50, 40), (47, 49, 48 - 9), (40, 44, 12), (30, 61, 20), (20, 20, 0), (30, 12, 2)]


def test_a_reciprocal_root_reads_no_more_than_it_says(rng: np.random.Generator) -> None:
    """Check one and two stages, at the ends of the range and in between."""
    values = []
    for _, bits, lowest in ROOTS:
        powers = rng.uniform(lowest, bits, 40)
        ends = np.array([(1 << lowest) + (lowest == 0), (1 << bits) - 1])
        values.append(np.concatenate([ends, np.exp2(powers).astype(np.int64)]))
    words = [
        spoil_high_bits(x, bits + 2, rng) for x, (_, bits, _) in zip(values, ROOTS, strict=True)
    ]

    def program(p: Party, *shares: Shared) -> Any:
        def graph(*shares: Shared) -> Any:
            pairs = zip(shares, ROOTS, strict=True)
            return [roots.reciprocal_root(p, x, *case) for x, case in pairs]

        return p.function(graph)(*shares)

    sim = simulate(program, *words)
    for i, (scale, _, _) in enumerate(ROOTS):
        got = sim.value(itemgetter(i))
        right = 2.0**scale / np.sqrt(values[i].astype(np.float64))
        assert np.all(np.abs(got - right) <= right * 2.0**-18 + 1.5), ROOTS[i]
