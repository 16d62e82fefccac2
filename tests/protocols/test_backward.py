"""Injection with truncation: right for every value, rounded without bias, without a wrap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocols.pads import assert_one_message_each
from tests.protocols.shares import assert_declared
from tests.refusals import raises
from tfe_bench.cluster.simulate import (
    Simulation,
    measure_graph_call,
    reconstruct,
    share_for_party,
    simulate,
)
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import backward, compare, convert, masked
from tfe_bench.protocols.session import slots
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, PrivateBits, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

Array = np.ndarray[Any, Any]
DROPS = (1, 2, 20, 24, 48)
MANY = 10_000


def draw_values(drop: int, rng: np.random.Generator) -> Array:
    """Return edges of the domain, powers of two and neighbors, and random values of all sizes."""
    bound = 2**62 - 2 ** (drop + 1)
    edges = {s * (2**k + d) for s in (1, -1) for k in range(62) for d in (-1, 0, 1)}
    edges |= {0, bound - 1, 1 - bound}
    fixed = np.array(sorted(v for v in edges if abs(v) < bound), np.int64)
    whole = rng.integers(1 - bound, bound, MANY)
    return np.concatenate([fixed, whole, whole >> rng.integers(0, 62, MANY)])


def random_bits(party: Party, x: Shared) -> MaskedBits:
    return convert.mask_bits(party, compare.msb(party, x, exchanges=2))


@pytest.mark.parametrize("dealer", range(3))
def test_a_bit_times_a_value_loses_bits_without_failing(
    dealer: int, rng: np.random.Generator
) -> None:
    inputs = [draw_values(drop, rng) for drop in DROPS]
    # a bit for each value, by the sign of another number
    signs = [rng.integers(-(2**40), 2**40, len(x)) for x in inputs]

    def program(p: Party, *shares: Shared) -> Any:
        def function(*inner: Shared) -> Any:
            results = []
            for drop, x, sign in zip(DROPS, inner[: len(DROPS)], inner[len(DROPS) :], strict=True):
                bits = random_bits(p, sign)
                results.append(
                    [
                        backward.inject_truncated(p, bits, x, drop),
                        backward.inject_truncated(p, bits, x, drop, negated=True),
                    ]
                )
            return results

        return p.function(function)(*shares)

    sim = simulate(program, *inputs, *signs, dealer=dealer, fractional_bits=44)
    for i, (drop, x, sign) in enumerate(zip(DROPS, inputs, signs, strict=True)):
        assert all(out[i][0].fractional_bits == 44 - drop for out in sim.outputs)
        for j, chosen in enumerate((sign < 0, sign >= 0)):
            got = reconstruct([out[i][j] for out in sim.outputs])
            assert not got[~chosen].any()
            # received 2^drop - x, exactly
            off = (got[chosen].astype(object) << drop) - x[chosen].astype(object)
            assert max(abs(off)) * 2 < 3 << drop, (drop, j)
            mean = float(sum(off)) / len(off) / 2**drop
            assert abs(mean + 2.0 ** -(drop + 1)) < 6 * 0.71 / len(off) ** 0.5


@pytest.mark.parametrize("dealer", range(3))
def test_it_costs_what_it_declares(dealer: int) -> None:
    def run(p: Party, n: int) -> Any:
        x = share_for_party(np.full(n, 12345), p.index, b"x", 44, dealer)
        bits = p.function(lambda x: random_bits(p, x))(x)
        f = p.function(lambda b, x: backward.inject_truncated(p, b, x, 20, negated=True))
        return measure_graph_call(p, f, bits, x)

    def declared(n: int) -> Cost:
        return cost_of(backward.inject_truncated, PrivateBits((n,)), Private((n,), 44), 20)

    assert_declared(dealer, (1, 63, 65, 1000), run, declared)


def test_shares_of_several_open_as_one(rng: np.random.Generator) -> None:
    x = rng.integers(-(2**50), 2**50, (2, MANY))
    sign = rng.integers(-5, 5, MANY)

    def program(p: Party, x: Shared, sign: Shared) -> Any:
        def function(x: Shared, sign: Shared) -> Any:
            bits = random_bits(p, sign)
            injection = convert.list_injection_slots(ring_bits=44)
            s = p.site(
                "either",
                dealer=x.dealer,
                slots={0: injection[0], 1: injection[0], 2: slots.declare_exchanged()},
            )
            first, second = (x.map(lambda a, i=i: a[i]) for i in range(2))
            a = convert.inject_shares(s, bits, first, 0, 0, drop=20)
            b = convert.inject_shares(s, bits, second, backward.MASKS, 1, negated=True, drop=20)
            share = None if s.is_dealer else a + b
            return masked.exchange_masked(s, share, np.array([MANY]), 20, 2)

        return p.function(function)(x, sign)

    got = simulate(program, x, sign).value()
    want = np.where(sign < 0, x[0], x[1])
    assert np.abs(got * 2.0**20 - want).max() < 1.5 * 2**20


def test_each_mask_hides_one_message_only(rng: np.random.Generator) -> None:
    def program(p: Party, x: Shared) -> Any:
        bits = p.function(lambda x: random_bits(p, x))(x)
        f = p.function(lambda b, x: backward.inject_truncated(p, b, x, 20))
        return f(bits, x), f(bits, x)

    sim: Simulation = simulate(program, rng.integers(-9, 9, 64), record=True)
    assert_one_message_each(sim)


def test_bad_input_gets_typed_errors() -> None:
    bits = MaskedBits(None, None, 3, 0)
    x = Shared(None, np.zeros(3, np.int64), np.zeros(3, np.int64), 0, 44)
    for drop in (0, -1, 49, 1.5, True):
        with raises(UsageError, "number-out-of-range"):
            backward._check_injection(bits, _as_tensors(x), drop)  # type: ignore[arg-type]
    with raises(UsageError, "unsupported-ring"):
        backward._check_injection(bits, replace(_as_tensors(x), bits=40), 8)
    with raises(UsageError, "dealer-mismatch"):
        backward._check_injection(bits, replace(_as_tensors(x), dealer=1), 8)


def _as_tensors(x: Shared) -> Shared:
    import tensorflow as tf

    return x.map(lambda a: tf.constant(a))
