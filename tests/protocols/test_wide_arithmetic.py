"""Products, constants and truncation over Z_2^128: right, within their bounds, at their cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.protocols.dealers import by_a_dealer
from tests.refusals import raises
from tfe_bench.cluster.simulate import (
    assert_costs,
    measure_graph_call,
    reconstruct,
    share_for_party,
    simulate,
)
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import compare, convert, masked
from tfe_bench.protocols.ring import wide_arithmetic as ring
from tfe_bench.protocols.session import slots
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

RING = 2**128
MANY = 2000
EDGES = [0, 1, -1, 2**63, -(2**63), 2**64, 2**64 - 1, 2**126 - 1, 1 - 2**126]


def wide_share(values: list[int], party: int, dealer: int, seed: int, f: int = 0) -> Shared:
    """Return one party's share of integers modulo 2^128."""
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    l1, l2 = ([int.from_bytes(rng.bytes(16), "little") for _ in values] for _ in range(2))
    m = [(v + a + b) % RING for v, a, b in zip(values, l1, l2, strict=True)]

    def words(column: list[int]) -> Any:
        pairs = np.array([[v % 2**64, v >> 64] for v in column], np.uint64).reshape(-1, 2)
        return tf.constant(pairs.view(np.int64))

    role = (party - dealer) % 3
    held = [None if role == i else words(c) for i, c in ((0, m), (2, l1), (1, l2))]
    return Shared(held[0], held[1], held[2], dealer, f, 2)


def draw_integers(bits: int, rng: np.random.Generator) -> list[int]:
    """Return uniform integers of a number of bits and a sign, and the edges among them."""
    drawn = [int.from_bytes(rng.bytes(17), "little") % 2**bits for _ in range(MANY)]
    signed = [v if i % 2 else -v for i, v in enumerate(drawn)]
    return signed + [v for v in EDGES if abs(v) < 2**bits]


def as_signed(values: Any) -> list[int]:
    return [(int(v) + RING // 2) % RING - RING // 2 for v in values]


@by_a_dealer
def test_products_and_constants_are_modulo_2_128(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    x, y = draw_integers(127, rng), draw_integers(127, rng)[::-1]
    c = int.from_bytes(rng.bytes(16), "little")

    def program(p: Party) -> Any:
        a, b = wide_share(x, p.index, dealer, seed, 3), wide_share(y, p.index, dealer, seed + 1, 4)
        f = p.function(
            lambda a, b: [
                ring.mul(p, a, b),
                ring.mul(p, a, a),
                ring.mul_constant(a, c, 5),
                ring.add_constant(a, -c),
            ]
        )
        return f(a, b)

    outputs = simulate(program, dealer=dealer).outputs
    expected = [
        [a * b for a, b in zip(x, y, strict=True)],
        [a * a for a in x],
        [a * c for a in x],
        [a - c for a in x],
    ]
    for i, (values, scale) in enumerate(zip(expected, (7, 6, 8, 3), strict=True)):
        parts = [out[i] for out in outputs]
        assert list(reconstruct(parts)) == [v % RING for v in values], i
        assert parts[0].fractional_bits == scale


@by_a_dealer
def test_truncation_keeps_its_bound_and_costs_what_it_says(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    cases = [("safe", f, 126) for f in (1, 32, 63)] + [("probable", f, 88) for f in (1, 40, 63)]
    inputs = [draw_integers(bits, rng) for _, _, bits in cases]

    def program(p: Party) -> Any:
        results = []
        for i, (kind, f, _) in enumerate(cases):
            x = wide_share(inputs[i], p.index, dealer, seed + i, 70)
            graph = p.function(lambda x, kind=kind, f=f: ring.truncate(p, x, f, kind))
            results.append((graph(x), measure_graph_call(p, graph, x)))
        return results

    outputs = simulate(program, dealer=dealer).outputs
    for i, (kind, f, _) in enumerate(cases):
        got = as_signed(reconstruct([out[i][0] for out in outputs]))
        error = [g * 2**f - v for g, v in zip(got, inputs[i], strict=True)]  # in units of 2^-f
        limit = 2**f if kind == "safe" else 3 * 2 ** (f - 1)
        assert all(abs(e) < limit for e in error), (kind, f)
        mean = float(np.mean([e / 2**f for e in error]))
        bias = 0 if kind == "safe" else -(2.0 ** -(f + 1))
        assert abs(mean - bias) < 6 * 0.5 / MANY**0.5, (kind, f)
        assert outputs[0][i][0].fractional_bits == 70 - f
        cost = cost_of(ring.truncate, Private((len(inputs[i]),), limbs=2), f, kind)
        assert_costs([out[i][1] for out in outputs], cost, dealer)


def test_products_cost_what_they_say_and_bits_become_shares(seed: int) -> None:
    values = [5, -7, 2**100, -(2**100)] * 17

    def program(p: Party) -> Any:
        import tensorflow as tf

        x = wide_share(values, p.index, 0, seed)
        product = p.function(lambda x: ring.mul(p, x, x))

        def negative(x: Shared) -> Shared:
            bits = convert.mask_bits(p, compare.msb(p, x, 128))
            both = {0: slots.declare_dealt(128), 1: slots.declare_exchanged(128)}
            s = p.site("test_bits", dealer=0, slots=both)
            shape = tf.shape(x.any, out_type=tf.int64)
            y = ring.share_bits(s, bits, shape, 0, 0, 2)
            return masked.exchange_masked(s, y, shape, 1, 1)

        return measure_graph_call(p, product, x), p.function(negative)(x)

    outputs = simulate(program).outputs
    x = Private((len(values),), limbs=2)
    assert_costs([out[0] for out in outputs], cost_of(ring.mul, x, x))
    bits = reconstruct([out[1] for out in outputs])
    assert list(bits) == [int(v < 0) for v in values]


def test_values_of_64_bits_go_to_the_64_bit_protocols() -> None:
    x = np.array([3 << 20, -(5 << 20)])

    def program(p: Party) -> Any:
        f = p.function(
            lambda x: ring.truncate(p, ring.mul(p, ring.mul_constant(x, 3, 4), x), 20, "safe")
        )
        a = share_for_party(x, p.index, b"x", 10)
        return f(a)

    sim = simulate(program)
    assert np.array_equal(sim.value(), 3 * (x >> 10) ** 2)
    assert sim.outputs[0].fractional_bits == 4
    operand = Private((3,))
    assert cost_of(ring.mul, operand, operand).total == 3 * 3 * 64
    assert cost_of(ring.truncate, operand, 16, "safe").rounds == 1


def test_wide_arithmetic_refuses_what_does_not_fit() -> None:
    def program(p: Party) -> None:
        x = wide_share([1], p.index, 0, 1)
        small = Shared(x.m, x.l1, x.l2, 0, 0, 2, 100)
        cases = (
            (0, "safe", x, "number-out-of-range"),
            (64, "safe", x, "number-out-of-range"),
            (8, "saef", x, "unknown-name"),
            (8, "safe", small, "unsupported-ring"),
        )
        for f, kind, value, code in cases:
            with raises(UsageError, code, operation="truncate"):
                ring.truncate(p, value, f, kind)
        with raises(UsageError, "operand-mismatch", operation="mul"):
            ring.mul(p, x, small)

    simulate(program)
