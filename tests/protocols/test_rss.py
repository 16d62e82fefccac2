"""The symmetric reference multiplication agrees with the ring and with the dealer form."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.ring import arithmetic, convert, rss, truncation
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
EDGES = np.array(
    sorted(
        {0, INT64.min, INT64.max}
        | {s * 2**k + d for s in (1, -1) for k in (0, 16, 31, 32, 62) for d in (-1, 0, 1)}
    ),
    np.int64,
)
SIZES = (1, 63, 64, 65, 1000)


@pytest.mark.parametrize("dealer", range(3))
def test_rss_mul_is_exact_modulo_2_64_broadcasts_and_feeds_the_dealer_form(
    dealer: int, rng: np.random.Generator
) -> None:
    words = rng.integers(INT64.min, INT64.max, 20, endpoint=True)
    a = np.concatenate([EDGES, words])
    b = rng.permutation(a)[:, None]

    def program(p: Party, *x: Shared) -> Any:
        def products(x: Shared, y: Shared, s: Shared) -> list[Shared]:
            z = rss.mul_replicated(p, x, y)
            return [
                *(
                    z,
                    rss.mul_replicated(p, y, x),
                    rss.mul_replicated(p, s, x),
                    rss.mul_replicated(p, s, s),
                ),
                *(arithmetic.mul(p, z, x), rss.mul_replicated(p, arithmetic.mul(p, x, y), x)),
            ]

        return p.function(products)(*x)

    sim = simulate(program, a, b, np.array(-3), dealer=dealer, fractional_bits=4)
    want = [a * b, b * a, -3 * a, np.array(9), a * b * a, a * b * a]
    for i, expected in enumerate(want):
        assert np.array_equal(sim.value(itemgetter(i)), expected), i
        assert all(out[i].fractional_bits == (8 if i < 4 else 12) for out in sim.outputs)


@pytest.mark.parametrize("dealer", range(3))
def test_replicated_shares_sum_to_the_value_and_convert_back(dealer: int) -> None:
    def program(p: Party, x: Shared) -> Any:
        own, following = rss.to_replicated(x, p.index)
        return [[own, following], rss.from_replicated(own, following, p.index, dealer, 3)]

    sim = simulate(program, EDGES, dealer=dealer)
    held = [out[0] for out in sim.outputs]
    assert np.array_equal(sum(own for own, _ in held), EDGES)
    for party in range(3):
        assert np.array_equal(held[party][1], held[(party + 1) % 3][0])
    assert np.array_equal(sim.value(itemgetter(1)), EDGES)


def shrink_ring(p: Party, x: Shared) -> Shared:
    return replace(truncation.truncate_reduce(p, x, 16, 31), fractional_bits=x.fractional_bits)


def extend_ring(p: Party, x: Shared) -> Shared:
    return convert.extend_to_wide(p, x, 1)


OPERANDS: dict[str, Any] = {
    "a public operand": lambda p, x: (x, np.arange(2)),
    "two dealers": lambda p, x: (x, share_for_party(np.arange(2), p.index, b"other", dealer=1)),
    "one word and two": lambda p, x: (x, extend_ring(p, x)),
    "two words": lambda p, x: (extend_ring(p, x), extend_ring(p, x)),
    "a large and a small ring": lambda p, x: (x, shrink_ring(p, x)),
    "a small ring": lambda p, x: (shrink_ring(p, x), shrink_ring(p, x)),
}


@pytest.mark.parametrize("what", OPERANDS)
def test_rss_mul_refuses_by_name(what: str) -> None:
    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: rss.mul_replicated(p, *OPERANDS[what](p, x)))(x)

    rings = {"two words": "unsupported-ring", "a small ring": "unsupported-ring"}
    code = "not-private" if what == "a public operand" else rings.get(what, "operand-mismatch")
    with raises(UsageError, code, operation="rss.mul"):
        simulate(program, np.arange(2))


@pytest.mark.parametrize("dealer", range(3))
def test_rss_mul_costs_what_it_says(dealer: int, rng: np.random.Generator) -> None:
    inputs = [x for n in SIZES for x in (np.zeros(n, np.int64), rng.integers(-9, 9, n))]

    def program(p: Party) -> list[Any]:
        graph = p.function(lambda x: rss.mul_replicated(p, x, x), dynamic=True)
        shares = [share_for_party(x, p.index, b"value", dealer=dealer) for x in inputs]
        return [measure_graph_call(p, graph, x) for x in shares]

    for x, call in zip(inputs, zip(*simulate(program).outputs, strict=True), strict=True):
        operand = Private((len(x),))
        assert_costs(call, cost_of(rss.mul_replicated, operand, operand), dealer)
