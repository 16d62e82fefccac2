"""Comparisons are exact at every width and number of exchanges; plans are consistent."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.shares import parts_held
from tests.refusals import raises
from tfe_bench.cluster.simulate import (
    Simulation,
    assert_costs,
    measure_graph_call,
    share_for_party,
    simulate,
)
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring.compare import less_than, msb, msb_cost, plan_comparison
from tfe_bench.protocols.ring.truncation import truncate_reduce
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
SIZES = (1, 63, 64, 65, 1000)


def exchanges_of(bits: int) -> list[int]:
    """Return the numbers of exchanges for which a comparison of `bits` bits exists."""
    counts = []
    for exchanges in (1, 2, 3):
        try:
            counts.append(plan_comparison(bits, exchanges).exchange_count)
        except UsageError:
            continue
    return counts


def edge_values(bits: int) -> list[int]:
    """Return values mod 2^bits about 0, +-2^k and both ends of the signed range."""
    near = {s * 2**k + d for s in (1, -1) for k in range(bits) for d in (-1, 0, 1)}
    return sorted({v % 2**bits for v in near | {0, 1, -1}})


def join_bits(sim: Simulation, pick: Any) -> Array:
    """Return the bits that EvaluatorBits share among the parties."""
    parts: list[EvaluatorBits] = [pick(out) for out in sim.outputs]
    words = np.zeros_like(next(part.share for part in parts if part.share is not None))
    for part in parts:
        for held in (part.share, part.top):
            if held is not None:
                words ^= held
    n = int(parts[0].n)
    assert all(int(part.n) == n for part in parts) and len(words) == -(-n // 64)
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:n].astype(bool)


@pytest.mark.parametrize("dealer", range(3))
def test_msb_is_the_sign_bit_of_any_word_modulo_2_k_with_every_number_of_openings(
    dealer: int, rng: np.random.Generator
) -> None:
    x = np.array(edge_values(64), np.uint64).view(np.int64)
    x = np.concatenate([x, rng.integers(INT64.min, INT64.max, 100, endpoint=True)])
    cases = [(k, r) for k in (2, 3, 16, 31, 64) for r in exchanges_of(k)]
    assert {(2, 1), (16, 1), (16, 2), (16, 3), (31, 2), (64, 2), (64, 3)} <= set(cases)

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: [msb(p, x, k, r, r != 2) for k, r in cases])(x)

    sim = simulate(program, x, dealer=dealer)
    for i, (k, r) in enumerate(cases):
        got = join_bits(sim, itemgetter(i))
        assert np.array_equal(got, (x >> (k - 1)) & 1), (k, r)
        # with r = 2 the dealer keeps its part
        assert (sim.outputs[dealer][i].top is not None) == (r == 2)


def wide_share(values: list[int], party: int, dealer: int, bits: int, seed: int) -> Shared:
    """Return one party's share of values mod 2^bits in two words with random higher bits."""
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    l1, l2, high = ([int.from_bytes(rng.bytes(16), "little") for _ in values] for _ in range(3))
    m = [
        (v + a + b + (h << bits)) % 2**128 for v, a, b, h in zip(values, l1, l2, high, strict=True)
    ]

    def limbs(numbers: list[int]) -> Any:
        data = b"".join(v.to_bytes(16, "little") for v in numbers)
        return tf.constant(np.frombuffer(data, np.int64).reshape(-1, 2))

    return parts_held(party, dealer, (limbs(m), limbs(l1), limbs(l2)), limbs=2, bits=bits)


def test_msb_of_wide_values_is_exact_from_65_to_128_bits(
    seed: int, rng: np.random.Generator
) -> None:
    widths = (65, 66, 75, 96, 127, 128)
    values = {k: [*edge_values(k), int.from_bytes(rng.bytes(16), "little") % 2**k] for k in widths}
    cases = [(k, r) for k in widths for r in exchanges_of(k)]
    dealers = {k: i % 3 for i, k in enumerate(widths)}

    def program(p: Party) -> Any:
        shares = {k: wide_share(values[k], p.index, dealers[k], k, seed) for k in widths}
        return p.function(lambda x: [msb(p, x[k], k, r) for k, r in cases])(shares)

    sim = simulate(program)
    for i, (k, r) in enumerate(cases):
        got = join_bits(sim, itemgetter(i))
        assert list(got) == [v >> (k - 1) for v in values[k]], (k, r)


def test_msb_follows_row_major_order_and_takes_any_shape() -> None:
    inputs = [np.array(-1), np.zeros((0, 3), np.int64), np.arange(-3, 3).reshape(2, 3)]

    def program(p: Party, *x: Shared) -> Any:
        return p.function(lambda *x: [msb(p, v) for v in x])(*x)

    sim = simulate(program, *inputs)
    for i, x in enumerate(inputs):
        assert np.array_equal(join_bits(sim, itemgetter(i)), x.reshape(-1) < 0)


def test_less_than_is_exact_while_the_difference_fits(rng: np.random.Generator) -> None:
    def pairs(bits: int) -> Array:
        half = [v - 2 ** (bits - 2) for v in edge_values(bits - 1)]
        near = np.array(half, object)
        far = rng.permutation(near)
        both = np.stack([np.concatenate([near, near]), np.concatenate([near, far])])
        return both.astype(np.int64)

    exact, short = pairs(64), pairs(31)

    def program(p: Party, *x: Shared) -> Any:
        return p.function(lambda a, b, c, d: [less_than(p, a, b), less_than(p, c, d, 31)])(*x)

    sim = simulate(program, *exact, *short)
    for i, (a, b) in enumerate((exact, short)):
        assert np.array_equal(join_bits(sim, itemgetter(i)), a < b)


def test_the_sign_of_a_reduced_value_is_that_of_the_value() -> None:
    x = np.array([v << 16 for v in edge_values(29)] + [-(v << 16) for v in edge_values(29)])

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: msb(p, truncate_reduce(p, x, 16, 31), 31))(x)

    assert np.array_equal(join_bits(simulate(program, x), lambda out: out), x < 0)


@pytest.mark.parametrize(
    ("bits", "exchanges", "total"),
    [(16, 1, 81), (16, 2, 67), (28, 2, 133), (31, 2, 154), (64, 2, 396), (64, 3, 332)],
)
def test_recipes_send_as_many_bits_as_the_cost_table_says(
    bits: int, exchanges: int, total: int
) -> None:
    r = plan_comparison(bits, exchanges)
    assert (r.exchange_count, r.total_bits) == (exchanges, total)


def test_every_recipe_covers_its_bits_and_ends_in_one_node() -> None:
    for bits in range(2, 129):
        for r in [plan_comparison(bits), *(plan_comparison(bits, o) for o in exchanges_of(bits))]:
            assert r.bits == bits and sum(r.widths) == bits - 1 and min(r.widths) >= 1
            assert len(r.groups[-1]) == 1
            for level, groups in enumerate(r.groups):
                assert sum(groups) == r.node_count(level) and min(groups) >= 1
            assert r.total_bits == r.dealt_bits + 2 * r.exchanged_bits


def test_every_recipe_has_the_openings_asked_for_and_two_or_three_always_exist() -> None:
    for bits in range(2, 129):
        for exchanges in (1, 2, 3):
            try:
                assert plan_comparison(bits, exchanges).exchange_count == exchanges
            except UsageError as error:
                assert exchanges == 1, (bits, exchanges)
                assert str(bits) in str(error)


def test_the_default_recipe_takes_a_third_exchange_only_where_it_saves_an_eighth() -> None:
    chosen = {2: 0, 3: 0}
    for bits in range(2, 129):
        best = plan_comparison(bits)
        offered = {o: plan_comparison(bits, o) for o in exchanges_of(bits) if o > 1}
        worth_it = 3 in offered and (
            2 not in offered or 8 * offered[3].total_bits <= 7 * offered[2].total_bits
        )
        assert best == offered[3 if worth_it else 2]
        chosen[best.exchange_count] += 1
    assert min(chosen.values()) > 0


@pytest.mark.parametrize(("bits", "exchanges"), [(1, None), (129, None), (64, 0), (64, 4)])
def test_recipes_outside_the_table_are_refused(bits: int, exchanges: int | None) -> None:
    code = "number-out-of-range" if exchanges is None else "unsupported-exchanges"
    with raises(UsageError, code):
        plan_comparison(bits, exchanges)


def test_comparing_more_bits_than_the_ring_has_is_refused() -> None:
    with raises(UsageError, "unsupported-ring"):
        simulate(lambda p, x: p.function(lambda x: msb(p, x, 65))(x), np.arange(3))


@pytest.mark.parametrize("dealer", range(3))
def test_msb_costs_what_it_says_whatever_the_values(dealer: int, rng: np.random.Generator) -> None:
    cases = [(16, 1, True), (31, 2, False), (64, None, True), (64, 2, True), (64, 3, True)]
    inputs = [x for n in SIZES for x in (np.zeros(n, np.int64), rng.integers(-9, 9, n))]

    def program(p: Party) -> list[Any]:
        graphs = [p.function(lambda x, case=case: msb(p, x, *case), dynamic=True) for case in cases]
        shares = [share_for_party(x, p.index, b"value", dealer=dealer) for x in inputs]
        return [measure_graph_call(p, graph, x) for graph in graphs for x in shares]

    calls = zip(*simulate(program).outputs, strict=True)
    expected = [msb_cost(len(x), *case) for case in cases for x in inputs]
    for cost, call in zip(expected, calls, strict=True):
        assert_costs(call, cost, dealer)
