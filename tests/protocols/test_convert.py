"""Bits become ring elements, inject and select exactly; rings extend exactly; costs are as said."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.simulate import assert_costs, measured, share, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols import convert
from tfe_bench.protocols.compare import msb
from tfe_bench.protocols.cost import Cost
from tfe_bench.protocols.party import Party
from tfe_bench.protocols.sharing import EvaluatorBits, MaskedBits, Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
EDGES = np.array(
    sorted(
        {0, INT64.min, INT64.max}
        | {s * 2**k + d for s in (1, -1) for k in range(63) for d in (-1, 0, 1)}
    ),
    np.int64,
)
SIZES = (1, 63, 64, 65, 1000)


def packed(bits: Array) -> Array:
    whole = np.zeros(-(-len(bits) // 64) * 64, np.uint8)
    whole[: len(bits)] = bits
    return np.packbits(whole, bitorder="little").view(np.int64)


def unpacked(words: Array, n: int) -> Array:
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:n]


def bit_share(bits: Array, party: int, dealer: int, seed: int, top: bool = False) -> EvaluatorBits:
    """One party's share of bits; with `top`, the dealer holds a part of its own."""
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    words = packed(bits)
    s1, at_dealer = (
        rng.integers(INT64.min, INT64.max, words.shape, endpoint=True) for _ in range(2)
    )
    s2 = words ^ s1 ^ at_dealer if top else words ^ s1
    n = tf.constant(len(bits), tf.int64)
    if party == dealer:
        return EvaluatorBits(None, tf.constant(at_dealer) if top else None, n, dealer)
    return EvaluatorBits(tf.constant(s1 if party == (dealer + 1) % 3 else s2), None, n, dealer)


@pytest.mark.parametrize("top", [False, True], ids=["complete", "dealer_holds_a_part"])
@pytest.mark.parametrize("dealer", range(3))
def test_opened_bits_are_the_shared_bits_under_the_dealers_mask(
    dealer: int, top: bool, seed: int, rng: np.random.Generator
) -> None:
    values = [rng.integers(0, 2, n) for n in (0, *SIZES)]

    def program(p: Party) -> Any:
        bits = [bit_share(v, p.index, dealer, seed, top) for v in values]
        return p.function(lambda bits: [convert.open_bits(p, b) for b in bits])(bits)

    outputs = simulate(program).outputs
    for i, value in enumerate(values):
        d, e1, e2 = (outputs[(dealer + role) % 3][i] for role in range(3))
        assert np.array_equal(e1.opened, e2.opened)
        assert d.opened is None and e1.beta is None and e2.beta is None
        assert np.array_equal(unpacked(d.beta ^ e1.opened, len(value)), value)


@pytest.mark.parametrize("dealer", range(3))
def test_b2a_gives_each_bit_as_0_or_1_in_the_shape_asked_for(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    values = [rng.integers(0, 2, n) for n in (0, *SIZES)]
    shaped = rng.integers(0, 2, (5, 13))

    def program(p: Party) -> Any:
        def all_of(bits: list[EvaluatorBits], more: EvaluatorBits) -> list[Shared]:
            flat = [convert.b2a(p, convert.open_bits(p, b)) for b in bits]
            return [*flat, convert.b2a(p, convert.open_bits(p, more), shaped.shape)]

        bits = [bit_share(v, p.index, dealer, seed) for v in values]
        return p.function(all_of)(bits, bit_share(shaped.reshape(-1), p.index, dealer, seed))

    sim = simulate(program)
    for i, value in enumerate([*values, shaped]):
        got = sim.value(itemgetter(i))
        assert got.dtype == np.int64 and np.array_equal(got, value)


@pytest.mark.parametrize("dealer", range(3))
def test_inject_and_select_are_exact_for_one_and_two_words(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    x = np.concatenate([EDGES, EDGES])
    bits = np.repeat([0, 1], len(EDGES))
    y = rng.permutation(x)
    both = [v.reshape(2, 1, -1) for v in (x, y)]

    def program(p: Party, x: Shared, y: Shared) -> Any:
        def chosen(bits: EvaluatorBits, x: Shared, y: Shared) -> list[Shared]:
            b = convert.open_bits(p, bits)
            u, v = convert.extend(p, x, 10), convert.extend(p, y, 10)
            return [
                *(convert.inject(p, b, x), convert.inject(p, b, u)),
                *(convert.select(p, b, x, y), convert.select(p, b, u, v)),
            ]

        return p.function(chosen)(bit_share(bits, p.index, dealer, seed), x, y)

    sim = simulate(program, *both, dealer=dealer, fractional_bits=5)
    one = [np.where(bits, x, 0), np.where(bits, x, y)]
    for i, expected in enumerate((one[0], one[0], one[1], one[1])):
        got = sim.value(itemgetter(i))
        want = [(int(v) % 2**64) << 10 if i % 2 else int(v) for v in expected]
        assert got.shape == both[0].shape
        assert [int(v) % 2**75 for v in got.reshape(-1)] == [v % 2**75 for v in want], i
        assert all(out[i].fractional_bits == 5 for out in sim.outputs)
        assert all(out[i].ring_bits == (75 if i % 2 else 64) for out in sim.outputs)


def test_inject_refuses_bits_of_another_dealer() -> None:
    def program(p: Party, x: Shared) -> Any:
        bits = bit_share(np.ones(3, np.int64), p.index, 1, 0)
        return p.function(lambda b, x: convert.inject(p, convert.open_bits(p, b), x))(bits, x)

    with pytest.raises(UsageError, match="inject wants one dealer"):
        simulate(program, np.arange(3))


def test_bits_of_a_comparison_inject_also_where_the_dealer_keeps_a_part() -> None:
    def program(p: Party, x: Shared) -> Any:
        def relu(x: Shared, absorb: bool) -> Shared:
            negative = convert.open_bits(p, msb(p, x, absorb=absorb))
            return convert.inject(p, negative, x)

        return p.function(lambda x: [relu(x, True), relu(x, False)])(x)

    sim = simulate(program, EDGES)
    for i in range(2):
        assert np.array_equal(sim.value(itemgetter(i)), np.minimum(EDGES, 0))


@pytest.mark.parametrize("dealer", range(3))
def test_extend_is_exact_for_every_word_read_as_unsigned(
    dealer: int, rng: np.random.Generator
) -> None:
    x = np.concatenate([EDGES, rng.integers(INT64.min, INT64.max, 50, endpoint=True)])
    cases: list[tuple[int, int | None]] = [(0, None), (1, 2), (10, 3), (62, None)]

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: [convert.extend(p, x, s, r) for s, r in cases])(x)

    sim = simulate(program, x, dealer=dealer, fractional_bits=3)
    for i, (shift, _) in enumerate(cases):
        got = sim.value(itemgetter(i))
        assert [int(v) for v in got] == [(int(v) % 2**64) << shift for v in x], shift
        for out in sim.outputs:
            assert (out[i].limbs, out[i].ring_bits, out[i].fractional_bits) == (2, 65 + shift, 3)


@pytest.mark.parametrize("shift", [-1, 63])
def test_extend_refuses_shifts_that_fit_no_two_words(shift: int) -> None:
    with pytest.raises(UsageError, match="extend wants"):
        simulate(lambda p, x: p.function(lambda x: convert.extend(p, x, shift))(x), np.arange(3))


def test_extend_refuses_values_that_are_wide_already() -> None:
    def twice(p: Party, x: Shared) -> Shared:
        return convert.extend(p, convert.extend(p, x, 1), 1)

    with pytest.raises(UsageError, match="extend wants"):
        simulate(lambda p, x: p.function(lambda x: twice(p, x))(x), np.arange(3))


Operation = Callable[[Party, EvaluatorBits, MaskedBits, Shared, Shared], Any]
COSTS: dict[str, tuple[Operation, Callable[[int], Cost]]] = {
    "open_bits": (lambda p, bits, b, x, u: convert.open_bits(p, bits), convert.open_bits_cost),
    "b2a": (lambda p, bits, b, x, u: convert.b2a(p, b), convert.b2a_cost),
    "inject": (lambda p, bits, b, x, u: convert.inject(p, b, x), convert.inject_cost),
    "wide inject": (
        lambda p, bits, b, x, u: convert.inject(p, b, u),
        lambda n: convert.inject_cost(n, 2),
    ),
    "select": (lambda p, bits, b, x, u: convert.select(p, b, x, x), convert.inject_cost),
    "extend": (lambda p, bits, b, x, u: convert.extend(p, x, 9), convert.extend_cost),
    "extend in two": (
        lambda p, bits, b, x, u: convert.extend(p, x, 9, 2),
        lambda n: convert.extend_cost(n, 2),
    ),
}


@pytest.mark.parametrize("dealer", range(3))
def test_conversions_cost_what_they_say_whatever_the_values(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    values = [v for n in SIZES for v in (np.zeros(n, np.int64), rng.integers(0, 2, n))]

    def program(p: Party) -> list[Any]:
        opened = p.function(lambda bits: convert.open_bits(p, bits), dynamic=True)
        wide = p.function(lambda x: convert.extend(p, x, 9), dynamic=True)
        graphs = [
            p.function(lambda *x, operation=operation: operation(p, *x), dynamic=True)
            for operation, _ in COSTS.values()
        ]
        result = []
        for value in values:
            bits = bit_share(value, p.index, dealer, seed)
            x = share(-value, p.index, b"value", dealer=dealer)
            arguments = (bits, opened(bits), x, wide(x))
            result += [measured(p, graph, *arguments) for graph in graphs]
        return result

    calls = zip(*simulate(program).outputs, strict=True)
    expected = [cost(len(v)) for v in values for _, cost in COSTS.values()]
    for cost, call in zip(expected, calls, strict=True):
        assert_costs(call, cost, dealer)
