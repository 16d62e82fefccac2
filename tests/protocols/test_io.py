"""Revealed values equal the inputs, reach only the named parties, and hold the stated bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.shares import EDGES, pack_bits, unpack_bits
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, convert
from tfe_bench.protocols.ring.truncation import truncate_reduce
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.cost import words_for_bits as words_of
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import EvaluatorBits, Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
SIZES = (1, 63, 64, 65, 1000)
ROLES = ("dealer", "e1", "e2")
LACKS = ("m", "l2", "l1")  # part that each role lacks, by role


def bit_share(bits: Array, party: int, dealer: int, seed: int) -> EvaluatorBits:
    """Return one party's share of bits."""
    import tensorflow as tf

    words = pack_bits(bits)
    s1 = np.random.default_rng(seed).integers(INT64.min, INT64.max, words.shape, endpoint=True)
    n = tf.constant(len(bits), tf.int64)
    if party == dealer:
        return EvaluatorBits(None, None, n, dealer)
    return EvaluatorBits(
        tf.constant(s1 if party == (dealer + 1) % 3 else words ^ s1), None, n, dealer
    )


@pytest.mark.parametrize("dealer", range(3))
def test_every_owner_can_share_any_word_in_any_shape_under_every_dealer(
    dealer: int, rng: np.random.Generator
) -> None:
    values = [rng.permutation(EDGES).reshape(1, -1) for _ in range(3)]
    values += [np.zeros((0, 2), np.int64) + p for p in range(3)]
    values += [np.array(p - 1) for p in range(3)]

    def program(p: Party) -> Any:
        def shared(known: list[Any]) -> list[Shared]:
            return [
                io.share_input(p, i % 3, known[i], values[i].shape, i, dealer)
                for i in range(len(values))
            ]

        return p.function(shared)([v if i % 3 == p.index else None for i, v in enumerate(values)])

    sim = simulate(program)
    for i, value in enumerate(values):
        assert np.array_equal(sim.value(itemgetter(i)), value)
        for out in sim.outputs:
            assert (out[i].dealer, out[i].fractional_bits) == (dealer, i)


def test_the_sessions_dealer_deals_for_an_input_unless_another_is_named() -> None:
    def program(p: Party) -> Any:
        value = np.arange(3) if p.index == 0 else None
        return p.function(
            lambda v: [io.share_input(p, 0, v, [3]), io.share_input(p, 0, v, [3], dealer=1)]
        )(value)

    for out in simulate(program, dealer=2).outputs:
        assert [x.dealer for x in out] == [2, 1]


def test_inputs_of_several_owners_compute_together() -> None:
    def program(p: Party) -> Any:
        def product(known: list[Any]) -> Any:
            x, y, z = (io.share_input(p, owner, known[owner], [3]) for owner in range(3))
            return io.reveal(p, arithmetic.add(arithmetic.mul(p, x, y), z))

        value = np.arange(3) + 10 * p.index
        return p.function(product)([value if i == p.index else None for i in range(3)])

    x, y, z = (np.arange(3) + 10 * i for i in range(3))
    for out in simulate(program).outputs:
        assert np.array_equal(out, x * y + z)


@pytest.mark.parametrize("to", [None, 0, 1, 2])
@pytest.mark.parametrize("dealer", range(3))
def test_reveal_gives_the_words_to_whom_it_names_and_none_to_others(
    dealer: int, to: int | None
) -> None:
    inputs = [EDGES.reshape(1, -1), np.array(-5), np.zeros((0,), np.int64)]

    def program(p: Party, *x: Shared) -> Any:
        return p.function(lambda *x: [io.reveal(p, v, to) for v in x])(*x)

    sim = simulate(program, *inputs, dealer=dealer)
    for party, out in enumerate(sim.outputs):
        for got, value in zip(out, inputs, strict=True):
            if to in (None, party):
                assert got.shape == value.shape and np.array_equal(got, value)
            else:
                assert got is None


@pytest.mark.parametrize("dealer", range(3))
def test_values_of_short_and_wide_rings_are_revealed_as_signed_values(dealer: int) -> None:
    def program(p: Party, x: Shared, y: Shared) -> Any:
        def values(x: Shared, y: Shared) -> Any:
            short, wide = truncate_reduce(p, x, 16, 31), convert.extend_to_wide(p, y, 40)
            twice = [arithmetic.add(short, short), arithmetic.sub(wide, wide)]
            return [io.reveal(p, v) for v in (short, *twice, wide, arithmetic.neg(wide))]

        return p.function(values)(x, y)

    small = np.array([0, 1, -1, 2**29 - 1, -(2**29)])
    unsigned = [(int(v) % 2**64) << 40 for v in EDGES]

    def signed(v: int, bits: int) -> int:
        half = 1 << (bits - 1)
        return (v + half) % (2 * half) - half

    for out in simulate(program, small << 16, EDGES, dealer=dealer).outputs:
        assert np.array_equal(out[0], small) and np.array_equal(out[1], 2 * small)
        lifted = [[int(low) % 2**64 + (int(high) << 64) for low, high in o] for o in out[2:]]
        assert lifted[0] == [0] * len(EDGES)
        assert lifted[1] == [signed(v, 105) for v in unsigned]
        assert lifted[2] == [signed(-v, 105) for v in unsigned]


def _parts_of(party: int, dealer: int, parts: dict[str, Array], **about: Any) -> Shared:
    """Return a party's parts of m, l1 and l2."""
    import tensorflow as tf

    lacks = LACKS[(party - dealer) % 3]
    m, l1, l2 = (None if k == lacks else tf.constant(parts[k]) for k in ("m", "l1", "l2"))
    return Shared(m, l1, l2, dealer, **about)


@pytest.mark.parametrize(
    "rings",
    [[2, 8, 31, 32, 63, 64, 65, 96, 128], pytest.param(range(2, 129), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
@pytest.mark.parametrize("dealer", range(3))
def test_what_reveal_sends_determines_no_more_than_the_result(
    dealer: int, rings: Sequence[int], heard: list[list[Any]], rng: np.random.Generator
) -> None:
    """Change bits outside of the ring: the messages and the result stay the same.

    A reader lacks one part. Other bits outside of the ring correspond to another secret word with
    the same result.
    """
    cases = []
    for bits in rings:
        limbs = 1 if bits <= 64 else 2
        shape = (5,) if limbs == 1 else (5, 2)
        words = rng.integers(INT64.min, INT64.max, (4, *shape), endpoint=True)
        kept = [min(64, max(0, bits - 64 * i)) for i in range(limbs)]
        above = np.array([2**64 - (1 << k) for k in kept], np.uint64).view(np.int64)
        about = {"limbs": limbs, "bits": bits % (64 * limbs)}
        cases.append((about, dict(zip(LACKS, words, strict=False)), words[3] & above))

    def revealed(p: Party, about: Any, parts: dict[str, Array], more: Array) -> Any:
        heard[p.index].clear()
        results = []
        for to in range(3):
            lacked = LACKS[(to - dealer) % 3]
            for part in (parts[lacked], parts[lacked] ^ more):
                x = _parts_of(p.index, dealer, {**parts, lacked: part}, **about)
                results.append(io.reveal(p, x, to))
        return [r for r in results if r is not None], list(heard[p.index])

    def program(p: Party) -> Any:
        return [p.function(functools.partial(revealed, p, *case))() for case in cases]

    for out in simulate(program).outputs:
        for results, received in out:
            assert len(results) == len(received) == 2
            assert np.array_equal(*results) and np.array_equal(*received)


@pytest.mark.parametrize("dealer", range(3))
def test_what_reveal_bits_sends_determines_no_more_than_the_bits(
    dealer: int, heard: list[list[Any]], seed: int, rng: np.random.Generator
) -> None:
    """Change the padding bits of the shares' last word."""
    values = [rng.integers(0, 2, n) for n in (1, 3, 63, 64, 65)]

    def program(p: Party) -> Any:
        import tensorflow as tf

        def other(bits: EvaluatorBits, n: int) -> EvaluatorBits:
            if bits.share is None or n % 64 == 0:
                return bits
            beyond = int(words.integers(INT64.min, INT64.max)) >> n % 64 << n % 64
            last = tf.constant([0] * (n // 64) + [beyond], tf.int64)
            return replace(bits, share=tf.bitwise.bitwise_xor(bits.share, last))

        words = np.random.default_rng(seed + p.index)
        bits = [bit_share(v, p.index, dealer, seed) for v in values]

        def both() -> Any:
            pairs = [(b, other(b, len(v))) for b, v in zip(bits, values, strict=True)]
            return [io.reveal_bits(p, b) for pair in pairs for b in pair], list(heard[p.index])

        return p.function(both)()

    for party, (results, received) in enumerate(simulate(program).outputs):
        assert all(map(np.array_equal, results[::2], results[1::2]))
        if party != dealer:  # the dealer receives halves under fresh masks, whose sum is the result
            assert all(map(np.array_equal, received[::2], received[1::2]))


@pytest.mark.parametrize("to", [3, -1, "all"])
def test_reveal_to_nobody_known_is_refused(to: Any) -> None:
    with raises(UsageError, "unknown-party", operation="reveal"):
        simulate(lambda p, x: p.function(lambda x: io.reveal(p, x, to))(x), np.arange(3))


@pytest.mark.parametrize("dealer", range(3))
def test_reveal_bits_gives_all_three_the_bits(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    values = [rng.integers(0, 2, n) for n in (0, *SIZES)]

    def program(p: Party) -> Any:
        bits = [bit_share(v, p.index, dealer, seed) for v in values]
        return p.function(lambda bits: [io.reveal_bits(p, b) for b in bits])(bits)

    for out in simulate(program).outputs:
        for words, value in zip(out, values, strict=True):
            assert np.array_equal(unpack_bits(words, len(value)), value)


def test_reveal_bits_refuses_bits_of_which_the_dealer_keeps_a_part() -> None:
    from tfe_bench.protocols.ring.compare import msb

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: io.reveal_bits(p, msb(p, x, absorb=False)))(x)

    with raises(UsageError, "incomplete-bits", operation="reveal_bits"):
        simulate(program, np.arange(3))


@pytest.mark.parametrize("dealer", range(3))
def test_input_and_reveal_cost_what_they_say_whatever_the_values(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    parties = {role: (dealer + i) % 3 for i, role in enumerate(ROLES)}
    targets: list[str | None] = [None, *ROLES]
    inputs = [x for n in SIZES for x in (np.zeros(n, np.int64), rng.integers(-9, 9, n))]
    costs: list[Callable[[int], Cost]] = [
        *(lambda n, o=o: cost_of(io.share_input, o, None, (n,)) for o in range(3)),
        *(lambda n, to=to: cost_of(io.reveal, Private((n,)), to) for to in (None, 0, 1, 2)),
        lambda n: cost_of(io.reveal, Private((n,), limbs=2)),
        lambda n: Cost(0, 128 * words_of(n), 128 * words_of(n), rounds=1, with_dealing=1),
    ]

    def program(p: Party) -> list[Any]:
        def owned(role: str, n: int) -> Any:
            return lambda v: io.share_input(p, parties[role], v, [n], dealer=dealer)

        def revealed(to: str | None) -> Any:
            return lambda x: io.reveal(p, x, None if to is None else parties[to])

        lift = p.function(lambda x: convert.extend_to_wide(p, x, 9), dynamic=True)
        owns = {(role, n): p.function(owned(role, n)) for role in ROLES for n in SIZES}
        reveals = [p.function(revealed(to), dynamic=True) for to in targets]
        wide = p.function(revealed(None), dynamic=True)
        bits = p.function(lambda b: io.reveal_bits(p, b), dynamic=True)
        result = []
        for value in inputs:
            x = share_for_party(value, p.index, b"value", dealer=dealer)
            for role in ROLES:
                known = value if p.index == parties[role] else None
                result.append(measure_graph_call(p, owns[role, len(value)], known))
            result += [measure_graph_call(p, graph, x) for graph in reveals]
            result.append(measure_graph_call(p, wide, lift(x)))
            result.append(measure_graph_call(p, bits, bit_share(value & 1, p.index, dealer, seed)))
        return result

    calls = zip(*simulate(program).outputs, strict=True)
    expected = [cost(len(x)) for x in inputs for cost in costs]
    for cost, call in zip(expected, calls, strict=True):
        assert_costs(call, cost, dealer)
