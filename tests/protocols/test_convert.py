"""Bits become ring elements, inject, select and extend exactly; costs are as declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.shares import EDGES, pack_bits, unpack_bits
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import convert, masked
from tfe_bench.protocols.ring.compare import msb
from tfe_bench.protocols.session import slots
from tfe_bench.protocols.session.cost import Cost, words_for_bits
from tfe_bench.protocols.session.counting import Private, PrivateBits, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, MaskedBits, Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
SIZES = (1, 63, 64, 65, 1000)


def bit_share(bits: Array, party: int, dealer: int, seed: int, top: bool = False) -> EvaluatorBits:
    """Return one party's share of bits; with `top`, the dealer holds a part of its own."""
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    words = pack_bits(bits)
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
        return p.function(lambda bits: [convert.mask_bits(p, b) for b in bits])(bits)

    outputs = simulate(program).outputs
    for i, value in enumerate(values):
        d, e1, e2 = (outputs[(dealer + role) % 3][i] for role in range(3))
        assert np.array_equal(e1.masked, e2.masked)
        assert d.masked is None and e1.beta is None and e2.beta is None
        assert np.array_equal(unpack_bits(d.beta ^ e1.masked, len(value)), value)


@pytest.mark.parametrize("dealer", range(3))
def test_b2a_gives_each_bit_as_0_or_1_in_the_shape_asked_for(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    values = [rng.integers(0, 2, n) for n in (0, *SIZES)]
    shaped = rng.integers(0, 2, (5, 13))

    def program(p: Party) -> Any:
        def all_of(bits: list[EvaluatorBits], more: EvaluatorBits) -> list[Shared]:
            flat = [convert.b2a(p, convert.mask_bits(p, b)) for b in bits]
            return [*flat, convert.b2a(p, convert.mask_bits(p, more), shaped.shape)]

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
            b = convert.mask_bits(p, bits)
            u, v = convert.extend_to_wide(p, x, 10), convert.extend_to_wide(p, y, 10)
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


@pytest.mark.parametrize("dealer", range(3))
def test_inject_takes_the_negated_bit_for_one_and_two_words_and_small_rings(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    x = np.concatenate([EDGES, rng.integers(INT64.min, INT64.max, 10_000, endpoint=True)])
    bits = rng.integers(0, 2, len(x))
    bits[: len(EDGES) : 2] = 1

    def program(p: Party, x: Shared) -> Any:
        def injected(bits: EvaluatorBits, x: Shared) -> list[Shared]:
            b = convert.mask_bits(p, bits)
            few = replace(x, bits=40)  # higher bits of the words are ignored
            operands = [x, convert.extend_to_wide(p, x, 10), few]
            plain = [convert.inject(p, b, v) for v in operands]
            return [*plain, *(convert.inject(p, b, v, negated=True) for v in operands)]

        return p.function(injected)(bit_share(bits, p.index, dealer, seed), x)

    sim = simulate(program, x, dealer=dealer, fractional_bits=5)
    for i in range(6):
        expected = np.where(bits == (1 if i < 3 else 0), x, 0)
        ring, shift = ((64, 0), (75, 10), (40, 0))[i % 3]
        got = [int(v) % 2**ring for v in sim.value(itemgetter(i))]
        assert got == [(int(v) % 2**64 << shift) % 2**ring for v in expected], i
        assert all(out[i].ring_bits == ring for out in sim.outputs)
        assert all(out[i].fractional_bits == 5 for out in sim.outputs)


def small_edges(k: int) -> Array:
    """Return 0, 1, 2^j and its neighbors and the last of [0, 2^(k-1))."""
    numbers = {2**j + d for j in range(k) for d in (-1, 0, 1)}
    return np.array(sorted(v for v in numbers | {0} if v < 2 ** (k - 1)), np.int64)


@pytest.mark.parametrize("dealer", range(3))
def test_inject_extends_every_small_ring_at_one_dealer_or_another(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    """Inject nonnegative values times 1, all values times 0; masks are at the ends of the ring."""
    rings = range(2 + dealer, 64, 3)
    cases: list[tuple[Array, Array]] = []
    for k in rings:
        up = np.concatenate([small_edges(k), rng.integers(0, 2 ** (k - 1), 200)])
        down = -1 - up  # negative: the bit must be 0
        value = np.concatenate([up, up, down])
        cases.append((value, np.repeat([1, 0, 0], len(up))))
    joint = np.concatenate([v for v, _ in cases])

    def program(p: Party, x: Shared) -> Any:
        shares = [bit_share(b, p.index, dealer, seed) for _, b in cases]
        flipped = [bit_share(1 - b, p.index, dealer, seed) for _, b in cases]
        starts = np.cumsum([0, *(len(v) for v, _ in cases)])

        def extended(x: Shared, shares: Any, flipped: Any) -> Any:
            results = []
            for i, k in enumerate(rings):
                part = x.map(lambda a, s=slice(*starts[i : i + 2]): a[s])
                small = replace(part, bits=k)
                b, c = convert.mask_bits(p, shares[i]), convert.mask_bits(p, flipped[i])
                results.append(convert.inject(p, b, small, extend_ring=True))
                results.append(convert.inject(p, c, small, negated=True, extend_ring=True))
            return results

        return p.function(extended)(x, shares, flipped)

    sim = simulate(program, joint, dealer=dealer, seed=seed.to_bytes(4, "little"))
    for i, (k, (value, bit)) in enumerate(zip(rings, cases, strict=True)):
        for j in (0, 1):
            assert np.array_equal(sim.value(itemgetter(2 * i + j)), value * bit), (k, j)
            assert all(out[2 * i + j].ring_bits == 64 for out in sim.outputs)


def held_masks(x: Array, l1: Array, l2: Array, party: int, k: int) -> Shared:
    """Return a share of a small ring with given masks, and arbitrary higher bits in the words."""
    import tensorflow as tf

    with np.errstate(over="ignore"):
        m = (x + l1 + l2) % 2**k + (7 << k if k < 60 else 0)
    return Shared(
        None if party == 0 else tf.constant(m),
        None if party == 2 else tf.constant(l1),
        None if party == 1 else tf.constant(l2),
        bits=k,
    )


@pytest.mark.parametrize("k", [2, 3, 4, 31, 62])
def test_inject_extends_for_all_masks_at_the_ends_of_the_ring(k: int, seed: int) -> None:
    ends = sorted({v % 2**k for v in (0, 1, 2, 3, 2 ** (k - 1) - 1, 2 ** (k - 1), -2, -1)})
    low = [v for v in ends if v < 2 ** (k - 1)]
    x, l1, l2 = (a.reshape(-1) for a in np.meshgrid(low, ends, ends))

    def program(p: Party) -> Any:
        bits = bit_share(np.ones(len(x), np.int64), p.index, 0, seed)
        small = held_masks(x, l1, l2, p.index, k)
        return p.function(
            lambda b, x: convert.inject(p, convert.mask_bits(p, b), x, extend_ring=True)
        )(bits, small)

    assert np.array_equal(simulate(program).value(), x)


@pytest.mark.parametrize("limbs", [1, 2])
def test_sums_of_unopened_injections_and_bits_open_as_one(
    limbs: int, seed: int, rng: np.random.Generator
) -> None:
    x = rng.integers(INT64.min, INT64.max, (5, 70), endpoint=True)
    bits = rng.integers(0, 2, x.shape)

    def program(p: Party, x: Shared) -> Any:
        import tensorflow as tf

        def summed(bits: EvaluatorBits, x: Shared) -> Any:
            from tfe_bench.protocols.session import wide

            b = convert.mask_bits(p, bits)
            x = x if limbs == 1 else convert.extend_to_wide(p, x, 0)
            s = p.site(
                "summed",
                dealer=x.dealer,
                slots={
                    **convert.list_injection_slots(limbs),
                    5: slots.declare_dealt(),
                    8: slots.declare_exchanged(64 * limbs),
                    9: slots.declare_exchanged(),
                },
            )
            y = convert.inject_shares(s, b, x, tensor=0, slot=0)
            z = convert.b2a_shares(s, b, bits_shape, 10, 5)
            whole = None
            if not s.is_dealer:
                whole = tf.reduce_sum(y, axis=0) if limbs == 1 else y[0]
                for i in range(1, 5 if limbs == 2 else 0):
                    whole = wide.add(whole, y[i])
                z = tf.reduce_sum(z, axis=0)
            shape = [70] if limbs == 1 else [70, 2]
            result = masked.exchange_masked(s, whole, shape, 20, 8)
            return replace(result, bits=x.bits), masked.exchange_masked(s, z, [70], 21, 9)

        bits_shape = tf.constant(bits.shape, tf.int64)
        return p.function(summed)(bit_share(bits.reshape(-1), p.index, 1, seed), x)

    sim = simulate(program, x, dealer=1)
    want = (np.where(bits, x, 0).astype(object) % 2**64).sum(axis=0) % 2**65
    got = sim.value(itemgetter(0))
    ring = 2**64 if limbs == 1 else 2**65
    assert [int(v) % ring for v in got] == [int(v) % ring for v in want]
    assert np.array_equal(sim.value(itemgetter(1)), bits.sum(axis=0))


REFUSED: dict[str, Callable[[Party, MaskedBits, Shared], Any]] = {
    "a public factor": lambda p, b, x: convert.inject(p, b, np.arange(3)),  # type: ignore[arg-type]
    "public bits": lambda p, b, x: convert.inject(p, np.ones(3), x),  # type: ignore[arg-type]
    "unmasked bits": lambda p, b, x: convert.inject(p, msb(p, x), x),  # type: ignore[arg-type]
    "another number of bits": lambda p, b, x: convert.inject(
        p, convert.mask_bits(p, msb(p, x)), x.map(lambda a: a[:2])
    ),
    "two words to be extended": lambda p, b, x: convert.inject(
        p, b, convert.extend_to_wide(p, x, 1), extend_ring=True
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_inject_refuses(what: str) -> None:
    def program(p: Party, x: Shared) -> Any:
        bits = bit_share(np.ones(3, np.int64), p.index, 0, 0)
        return p.function(lambda b, x: REFUSED[what](p, convert.mask_bits(p, b), x))(bits, x)

    codes = {
        "another number of bits": "size-mismatch",
        "two words to be extended": "unsupported-ring",
    }
    with raises(UsageError, codes.get(what, "not-private"), operation="inject"):
        simulate(program, np.arange(3))


def test_inject_refuses_bits_of_another_dealer() -> None:
    def program(p: Party, x: Shared) -> Any:
        bits = bit_share(np.ones(3, np.int64), p.index, 1, 0)
        return p.function(lambda b, x: convert.inject(p, convert.mask_bits(p, b), x))(bits, x)

    with raises(UsageError, "dealer-mismatch", operation="inject"):
        simulate(program, np.arange(3))


def test_bits_of_a_comparison_inject_also_where_the_dealer_keeps_a_part() -> None:
    def program(p: Party, x: Shared) -> Any:
        def relu(x: Shared, absorb: bool) -> Shared:
            negative = convert.mask_bits(p, msb(p, x, absorb=absorb))
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
        return p.function(lambda x: [convert.extend_to_wide(p, x, s, r) for s, r in cases])(x)

    sim = simulate(program, x, dealer=dealer, fractional_bits=3)
    for i, (shift, _) in enumerate(cases):
        got = sim.value(itemgetter(i))
        assert [int(v) for v in got] == [(int(v) % 2**64) << shift for v in x], shift
        for out in sim.outputs:
            assert (out[i].limbs, out[i].ring_bits, out[i].fractional_bits) == (2, 65 + shift, 3)


@pytest.mark.parametrize("shift", [-1, 63])
def test_extend_refuses_shifts_that_fit_no_two_words(shift: int) -> None:
    with raises(UsageError, "unsupported-ring", operation="extend"):
        simulate(
            lambda p, x: p.function(lambda x: convert.extend_to_wide(p, x, shift))(x), np.arange(3)
        )


def test_extend_refuses_values_that_are_wide_already() -> None:
    def twice(p: Party, x: Shared) -> Shared:
        return convert.extend_to_wide(p, convert.extend_to_wide(p, x, 1), 1)

    with raises(UsageError, "unsupported-ring", operation="extend"):
        simulate(lambda p, x: p.function(lambda x: twice(p, x))(x), np.arange(3))


def extension_cost(n: int, exchanges: int | None) -> Cost:
    return cost_of(convert.extend_to_wide, Private((n,)), 9, exchanges)


def injection_cost(n: int, limbs: int = 1, bits: int = 0) -> Cost:
    x = Private((n,), limbs=limbs, bits=bits)
    return cost_of(convert.inject, PrivateBits((n,)), x, extend_ring=bits > 0)


Operation = Callable[[Party, EvaluatorBits, MaskedBits, Shared, Shared], Any]
COSTS: dict[str, tuple[Operation, Callable[[int], Cost]]] = {
    "mask_bits": (
        lambda p, bits, b, x, u: convert.mask_bits(p, bits),
        lambda n: Cost(0, 64 * words_for_bits(n), 64 * words_for_bits(n), rounds=1, with_dealing=1),
    ),
    "b2a": (
        lambda p, bits, b, x, u: convert.b2a(p, b),
        lambda n: cost_of(convert.b2a, PrivateBits((n,))),
    ),
    "inject": (lambda p, bits, b, x, u: convert.inject(p, b, x), injection_cost),
    "wide inject": (
        lambda p, bits, b, x, u: convert.inject(p, b, u),
        lambda n: injection_cost(n, limbs=2),
    ),
    "negated inject": (
        lambda p, bits, b, x, u: convert.inject(p, b, x, negated=True),
        injection_cost,
    ),
    "wide negated inject": (
        lambda p, bits, b, x, u: convert.inject(p, b, u, negated=True),
        lambda n: injection_cost(n, limbs=2),
    ),
    "inject from 31 bits": (
        lambda p, bits, b, x, u: convert.inject(p, b, replace(x, bits=31), extend_ring=True),
        lambda n: injection_cost(n, bits=31),
    ),
    "inject from 63 bits": (
        lambda p, bits, b, x, u: convert.inject(p, b, replace(x, bits=63), extend_ring=True),
        lambda n: injection_cost(n, bits=63),
    ),
    "select": (lambda p, bits, b, x, u: convert.select(p, b, x, x), injection_cost),
    "extend": (
        lambda p, bits, b, x, u: convert.extend_to_wide(p, x, 9),
        lambda n: extension_cost(n, None),
    ),
    "extend in two": (
        lambda p, bits, b, x, u: convert.extend_to_wide(p, x, 9, 2),
        lambda n: extension_cost(n, 2),
    ),
}


@pytest.mark.parametrize("dealer", range(3))
def test_conversions_cost_what_they_say_whatever_the_values(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    values = [v for n in SIZES for v in (np.zeros(n, np.int64), rng.integers(0, 2, n))]

    def program(p: Party) -> list[Any]:
        opened = p.function(lambda bits: convert.mask_bits(p, bits), dynamic=True)
        wide = p.function(lambda x: convert.extend_to_wide(p, x, 9), dynamic=True)
        graphs = [
            p.function(lambda *x, operation=operation: operation(p, *x), dynamic=True)
            for operation, _ in COSTS.values()
        ]
        result = []
        for value in values:
            bits = bit_share(value, p.index, dealer, seed)
            x = share_for_party(-value, p.index, b"value", dealer=dealer)
            arguments = (bits, opened(bits), x, wide(x))
            result += [measure_graph_call(p, graph, *arguments) for graph in graphs]
        return result

    calls = zip(*simulate(program).outputs, strict=True)
    expected = [cost(len(v)) for v in values for _, cost in COSTS.values()]
    for cost, call in zip(expected, calls, strict=True):
        assert_costs(call, cost, dealer)
