"""Logic on masked bits equals NumPy's; the AND of up to 9 bits costs as declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.protocols.shares import bits_of, output_at, pack_bits
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.errors import ProtocolError, UsageError
from tfe_bench.protocols.ring import convert, logic
from tfe_bench.protocols.session import ops
from tfe_bench.protocols.session.counting import PrivateBits, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
SIZES = (0, 1, 63, 64, 65, 1000, 10_000)  # the last takes several blocks of 64 words


def mask_bits(bits: Array, party: Party, seed: int) -> MaskedBits:
    """Return one party's part of bits exchanged under a mask."""
    import tensorflow as tf

    words = pack_bits(bits)
    rng = np.random.default_rng(seed)
    beta = rng.integers(INT64.min, INT64.max, words.shape, endpoint=True)
    n = tf.constant(len(bits), tf.int64)
    if party.index == party.dealer:
        return MaskedBits(None, tf.constant(beta), n, party.dealer)
    return MaskedBits(tf.constant(words ^ beta), None, n, party.dealer)


def mask_columns(columns: Any, p: Party, seed: int) -> list[MaskedBits]:
    return [mask_bits(c, p, seed + i) for i, c in enumerate(columns)]


@by_a_dealer
def test_not_and_xor_are_those_of_numpy(dealer: int, seed: int, rng: np.random.Generator) -> None:
    columns = [rng.integers(0, 2, (2, n)) for n in SIZES]

    def program(p: Party) -> Any:
        def both(a: MaskedBits, b: MaskedBits) -> list[MaskedBits]:
            return [
                logic.invert_bits(a),
                logic.xor_bits(a, b),
                logic.xor_bits(a, a),
                logic.invert_bits(logic.xor_bits(a, b)),
            ]

        return [p.function(both)(*mask_columns(c, p, seed)) for c in columns]

    sim = simulate(program, dealer=dealer)
    assert sim.sent == (0, 0, 0)
    for i, (a, b) in enumerate(columns):
        for j, expected in enumerate((1 - a, a ^ b, a ^ a, 1 - (a ^ b))):
            assert np.array_equal(bits_of(sim, output_at(i, j)), expected)


@by_a_dealer
def test_bits_are_rearranged_by_any_public_map(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    import tensorflow as tf

    bits = rng.integers(0, 2, (7, 31))
    maps: list[tuple[Callable[[Any], Any], Array]] = [
        (lambda a: a, bits),
        (tf.transpose, bits.T),
        (lambda a: a[2], bits[2]),
        (lambda a: tf.gather(a, [6, 0, 0, 3]), bits[[6, 0, 0, 3]]),
        (lambda a: tf.repeat(a, 5), np.repeat(bits, 5)),
        (lambda a: a[:0], bits[:0]),
    ]

    def program(p: Party) -> Any:
        def rearrange(b: MaskedBits) -> list[MaskedBits]:
            return [logic.rearrange_private_bits(b, bits.shape, f, e.size) for f, e in maps]

        return p.function(rearrange)(mask_bits(bits.reshape(-1), p, seed))

    sim = simulate(program, dealer=dealer)
    assert sim.sent == (0, 0, 0)
    for i, (_, expected) in enumerate(maps):
        assert np.array_equal(bits_of(sim, output_at(i)), expected.reshape(-1))


@by_a_dealer
def test_all_of_is_the_and_of_1_to_9_bits_and_costs_what_it_says_whatever_they_are(
    dealer: int, seed: int, rng: np.random.Generator
) -> None:
    cases: list[Array] = []
    for r in range(1, logic.MAX_AND_INPUTS + 1):
        rows = np.array([[c >> j & 1 for c in range(2**r)] for j in range(r)])  # the truth table
        many = rng.permuted(np.tile(rows, -(-SIZES[-1] // 2**r)), axis=1)[:, : SIZES[-1]]
        cases += [rows, np.ones_like(rows), many]
        # few zeros, so that the AND of many is often 1
        cases += [(rng.random((r, n)) < 0.9).astype(np.int64) for n in SIZES if r in (2, 3, 9)]

    def program(p: Party) -> Any:
        ands = p.function(lambda *bits: logic.and_bits(p, bits), dynamic=True)
        opened = p.function(lambda bits: convert.mask_bits(p, bits), dynamic=True)
        result = []
        for columns in cases:
            bits = mask_columns(columns, p, seed)
            cost = measure_graph_call(p, ands, *bits)
            shares = ands(*bits)
            assert (shares.share is None) == (p.index == dealer) and shares.top is None
            result.append((cost, opened(shares)))
        return result

    sim = simulate(program, dealer=dealer)
    for i, columns in enumerate(cases):
        assert np.array_equal(bits_of(sim, output_at(i, 1)), columns.min(axis=0))
        cost = cost_of(logic.and_bits, (PrivateBits((columns.shape[1],)),) * len(columns))
        assert_costs([out[i][0] for out in sim.outputs], cost, dealer)


def test_an_and_may_be_of_one_bit_many_times_and_of_its_negation(
    seed: int, rng: np.random.Generator
) -> None:
    bits = rng.integers(0, 2, 100)

    def program(p: Party) -> Any:
        def ands(b: MaskedBits) -> list[MaskedBits]:
            several = (
                [b, b, b],
                [b, logic.invert_bits(b)],
                [logic.xor_bits(b, b), b],
                [logic.invert_bits(b)],
            )
            return [convert.mask_bits(p, logic.and_bits(p, s)) for s in several]

        return p.function(ands)(mask_bits(bits, p, seed))

    sim = simulate(program)
    for i, expected in enumerate((bits, 0 * bits, 0 * bits, 1 - bits)):
        assert np.array_equal(bits_of(sim, output_at(i)), expected)


REFUSED: dict[str, tuple[str, str, Callable[[Party, MaskedBits, MaskedBits, MaskedBits], Any]]] = {
    "no operand": ("operand-count", "all_of", lambda p, a, b, c: logic.and_bits(p, [])),
    "ten operands": ("operand-count", "all_of", lambda p, a, b, c: logic.and_bits(p, [a] * 10)),
    "an AND with public bits": (
        "not-private",
        "all_of",
        lambda p, a, b, c: logic.and_bits(p, [a, True]),  # type: ignore[list-item]
    ),
    "an AND of two dealers' bits": (
        "dealer-mismatch",
        "all_of",
        lambda p, a, b, c: logic.and_bits(p, [a, b]),
    ),
    "an AND of 5 and 6 bits": (
        "size-mismatch",
        "all_of",
        lambda p, a, b, c: logic.and_bits(p, [a, c]),
    ),
    "XOR with public bits": (
        "not-private",
        "xor",
        lambda p, a, b, c: logic.xor_bits(a, np.ones(5)),  # type: ignore[arg-type]
    ),
    "XOR of two dealers' bits": ("dealer-mismatch", "xor", lambda p, a, b, c: logic.xor_bits(a, b)),
    "XOR of 5 and 6 bits": ("size-mismatch", "xor", lambda p, a, b, c: logic.xor_bits(a, c)),
    "NOT of public bits": (
        "not-private",
        "invert",
        lambda p, a, b, c: logic.invert_bits(np.ones(5)),  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_logic_refuses(what: str) -> None:
    code, name, use = REFUSED[what]

    def program(p: Party) -> Any:
        import tensorflow as tf

        def function(ctx: Any) -> Any:
            a, c = (MaskedBits(ctx, None, tf.constant(n, tf.int64), 0) for n in (5, 6))
            return use(p, a, MaskedBits(ctx, None, a.n, 1), c)

        return p.function(function)(tf.zeros([1], tf.int64))

    with raises(UsageError, code, operation=name):
        simulate(program)


def test_numbers_of_bits_that_show_only_when_the_graph_runs_are_refused_by_their_words() -> None:
    def program(p: Party) -> Any:
        bits = [mask_bits(np.ones(n, np.int64), p, 0) for n in (5, 100)]
        return p.function(lambda *bits: logic.and_bits(p, bits), dynamic=True)(*bits)

    with pytest.raises(ProtocolError):
        simulate(program)


def test_bits_say_nothing_of_themselves() -> None:
    bits = MaskedBits(np.arange(3), None, 3)
    assert repr(bits) == "MaskedBits(shape=None, dealer=0)"
    with pytest.raises(TypeError, match="private"):
        bool(bits)


@pytest.mark.parametrize(
    ("rows", "n"), [(0, 7), (1, 0), (1, 1), (2, 63), (3, 65), (2, 1000), (3, 200_001)]
)
def test_packing_keeps_the_lowest_bit_of_each_word(
    rows: int, n: int, rng: np.random.Generator
) -> None:
    """Check rows that begin anywhere, and the zeros behind the last bit of each."""
    import tensorflow as tf

    x = rng.integers(INT64.min, INT64.max, (rows, n), endpoint=True)
    words = logic.pack_bits(tf.constant(x)).numpy()
    assert words.shape == (rows, -(-n // 64))
    for row, packed in zip(x, words, strict=True):
        np.testing.assert_array_equal(packed, pack_bits(row & 1))
        unpacked = ops.module().tfe_bench_unpack_bits(words=packed, n=n)
        np.testing.assert_array_equal(unpacked.numpy(), row & 1)
