"""A check flags exactly the values that leave their range, at the stated cost."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tfe_bench as tfe
from tests.refusals import raises
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import linear, relu
from tfe_bench.protocols.ring import arithmetic, compare, products, range_check, truncation
from tfe_bench.protocols.ring.range_check import RangeMonitor
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]


def edge_values(*magnitudes: int) -> list[int]:
    """Return 0, the ends of Z_2^64, and magnitudes with their neighbors, of both signs."""
    numbers = {0, 1, -1, 2**63 - 1, -(2**63), 3 * 2**61, -3 * 2**61, 2**62, -(2**62)}
    for m in magnitudes:
        numbers |= {s * (m + d) for s in (1, -1) for d in (-1, 0, 1)}
    return sorted(v for v in numbers if -(2**63) <= v < 2**63)


def output_at(*path: int) -> Callable[[Any], Any]:
    """Return a function that returns out[a][b]..."""
    return lambda out: functools.reduce(operator.getitem, path, out)


def reconstruct_bits(bits: Any) -> Array:
    """Return private bits from the three parties' parts."""
    (opened,) = {b.masked.tobytes() for b in bits if b.masked is not None}
    (beta,) = [b.beta for b in bits if b.beta is not None]
    packed = np.frombuffer(opened, np.int64) ^ beta
    n = int(bits[0].n)
    return np.unpackbits(packed.view(np.uint8), bitorder="little")[:n].astype(bool)


@pytest.mark.parametrize("third", range(3))
def test_in_range_is_exact_for_every_width(third: int, rng: np.random.Generator) -> None:
    widths = range(2 + third, 64, 3)
    x = edge_values(*(1 << (b - 1) for b in widths)) + rng.integers(-(2**63), 2**63, 50).tolist()
    x += [int(v) >> int(s) for v, s in zip(x[:60], rng.integers(1, 62, 60), strict=True)]
    sim = simulate(
        lambda p, x: p.function(lambda x: [tfe.in_range(x, b) for b in widths])(x),
        np.array(x, np.int64),
        dealer=third,
    )
    for i, b in enumerate(widths):
        revealed = reconstruct_bits([out[i] for out in sim.outputs])
        assert revealed.tolist() == [-(1 << (b - 1)) <= v < 1 << (b - 1) for v in x], b


def test_what_relu_and_truncation_get_wrong_is_out_of_range() -> None:
    values = [16385 << 16, (1 << 30) - 1, -(1 << 30), -(1 << 30) - 1, 3 << 61, (1 << 62) - 1]

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            right = [tfe.in_range(x, bits) for bits in (compare.LAYER_BITS, 63)]
            return right, [relu.relu(p, x), truncation.truncate(p, x, 16)]

        return p.function(graph)(x)

    sim = simulate(program, np.array(values))
    layer, whole = (reconstruct_bits([out[0][i] for out in sim.outputs]) for i in range(2))
    assert layer.tolist() == [False, True, True, False, False, False]
    assert whole.tolist() == [True, True, True, True, False, True]
    positive, shorter = (sim.value(output_at(1, i)) for i in range(2))
    assert positive[0] == 0  # of 16385
    assert positive[layer].tolist() == [max(v, 0) for v in np.array(values)[layer]]
    assert np.all(np.abs(shorter[whole] - np.array(values)[whole] / 2**16) < 1)


def test_in_range_refuses_what_it_cannot_tell() -> None:
    for bits in (1, 64, 31.0, True, None):
        with raises(UsageError, "number-out-of-range"):
            simulate(lambda p, x, b=bits: p.function(lambda x: tfe.in_range(x, b))(x), np.arange(3))
    with raises(UsageError, "unsupported-ring"):
        simulate(
            lambda p, x: p.function(
                lambda x: tfe.in_range(truncation.truncate_reduce(p, x, 1, 20), 9)
            )(x),
            np.arange(3),
        )


def test_in_range_costs_what_it_says(rng: np.random.Generator) -> None:
    dealer = int(rng.integers(3))
    for n in (1, 64, 65):
        for x in (np.zeros(n, np.int64), rng.integers(-(2**63), 2**63, n)):

            def program(p: Party, x: Array = x) -> Any:
                f = p.function(lambda v: tfe.in_range(v, 31))
                return measure_graph_call(p, f, share_for_party(x, p.index, b"x", dealer=dealer))

            calls = simulate(program).outputs
            assert_costs(calls, cost_of(range_check.in_range, Private((n,)), 31), dealer)


# ---- a complete computation


def times_one(value: Shared) -> products.BilinearShareProduct:
    """Return a value times 1."""
    import tensorflow as tf

    zero = value.map(tf.zeros_like)
    return products.BilinearShareProduct(
        value,
        arithmetic.add_public(zero, tf.constant(1, tf.int64)),
        products.sum_elementwise_products,
    )


def checked_values(
    party: Party, x: Shared, drop: int, bits: int, kind: str, more: int = 0, width: int = 64
) -> tuple[Shared, Shared]:
    """Return the result and flag of each x that is read with `bits` bits: every x is a sample.

    Args:
        kind: "lift" to Z_2^64 or, with fewer bits dealt, no further than requested; "beside": the
            value stays in the ring in which it was exchanged, of at least a bit more.
        more: bits of that ring.
        width: bits of the sum that are dealt.
    """
    watch = RangeMonitor(party, int(x.shape[0]), x.dealer)
    ring = bits + (0 if kind == "lift" else 1 + more)
    small, u = products.exchange_truncated_sum(
        party, "truncated_sum", [times_one(x)], None, drop, ring, width
    )
    to = ring if kind == "beside" else 64 if width == 64 else min(ring + more, 64)
    return linear.monitored_lift(
        party, watch, small, u, width - drop, to, bits
    ), watch.compute_flag()


# Dropped bits, read bits; additional bits of the ring; bits of the sum above the read ones, or all
# 64 bits.
CASES = [(16, 31), (16, 20), (1, 6), (1, 62), (48, 15), (24, 39), (12, 51), (1, 2), (14, 19)]
ROOMS = [(0, 64), (1, 64), (5, 1), (3, 2), (2, 7), (9, 6), (0, 0), (4, 0)]


def test_a_value_over_the_whole_ring_is_flagged_beyond_three_times_its_bound(
    rng: np.random.Generator,
) -> None:
    """Flag no value within the bound, and every value from three times the bound on."""
    dealer, bounds = int(rng.integers(3)), (1, 36, 51, 60)
    inputs = [np.array(edge_values((1 << b) - 1, min(3 << b, 2**63 - 1)), np.int64) for b in bounds]

    def program(p: Party, *xs: Shared) -> Any:
        def flags(*xs: Shared) -> Any:
            watches = [RangeMonitor(p, int(x.shape[0]), x.dealer) for x in xs]
            for watch, x, bits in zip(watches, xs, bounds, strict=True):
                linear.monitor_range(p, watch, x, bits)
            return [watch.compute_flag() for watch in watches]

        return p.function(flags)(*xs)

    sim = simulate(program, *inputs, dealer=dealer)
    for i, (bits, values) in enumerate(zip(bounds, inputs, strict=True)):
        flagged = sim.value(output_at(i)) != 0
        sizes = np.array([abs(v) for v in values.tolist()], object)
        assert not flagged[sizes < 1 << bits].any() and flagged[sizes >= 3 << bits].all(), bits
    cost = cost_of(
        lambda p, x: linear.monitor_range(p, RangeMonitor(p, 4, x.dealer), x, 40), Private((4,))
    )
    assert (cost.dealer, cost.e1, cost.e2) == (4 * 2 * (62 - 40), 0, 0)


@pytest.mark.parametrize("kind", ["lift", "beside"])
def test_a_value_is_flagged_exactly_where_it_is_read_wrongly(
    kind: str, rng: np.random.Generator
) -> None:
    """Flag every wrong result, and none within the range, up to the largest sum."""
    dealer, cases, values = int(rng.integers(3)), [], []
    for drop, bits in CASES:
        for more, above in ROOMS:
            least = drop + bits
            width = min(max(least + above, least), 64)
            if drop + bits + more + (kind == "beside") > width:
                continue
            # (no plan has a sum that uses all read bits: it could be rounded up)
            reach = width if width > least else least - 1
            end = 1 << (reach - 1)
            near = rng.integers(-(2**63), 2**63, 40) >> max(0, 62 - bits - drop)
            own = np.array(
                edge_values(1 << (least - 2), 1 << (least - 1), 3 << (least - 2), end - 1)
            )
            every = np.concatenate([own, near.astype(object), [-(end - 1)]])
            every = every[(every < end) & (every > -end)].astype(np.int64)
            cases.append((drop, bits, kind, more, width))
            values.append(every)

    def program(p: Party, *xs: Shared) -> Any:
        def graph(*xs: Shared) -> Any:
            return [checked_values(p, x, *case) for x, case in zip(xs, cases, strict=True)]

        return p.function(graph)(*xs)

    sim = simulate(program, *values, dealer=dealer)
    for i, (drop, bits, _, more, width) in enumerate(cases):
        outputs = (drop, bits, more, width)
        flagged, got = sim.value(output_at(i, 1)) != 0, sim.value(output_at(i, 0)).astype(np.int64)
        ring = sim.outputs[0][i][0].ring_bits
        signed = (got << (64 - ring)) >> (64 - ring)
        # (1 ulp; in units of 2^-drop, so that nothing is rounded here)
        pairs = zip(values[i].tolist(), signed.tolist(), strict=True)
        wrong = np.array([abs((y << drop) - v) >= 1 << drop for v, y in pairs])
        room = (1 << (bits - 2 + drop)) - (1 << drop)
        fits = np.array([abs(v) <= room for v in values[i].tolist()])
        limit = np.array(
            [abs(v) > (3 << (bits - 2 + drop)) + (1 << drop) for v in values[i].tolist()]
        )
        assert not np.any(wrong & ~flagged), outputs
        assert not np.any(fits & flagged), outputs
        assert np.all(flagged[limit]), outputs
        assert drop + bits > 62 or width - drop <= bits or flagged.any(), outputs


def test_a_flag_says_only_that_there_was_something(rng: np.random.Generator) -> None:
    """Compare flags of one violation: the number differs in every step, also in the next sample."""
    too_large = 1 << 50
    x = np.array([0, too_large, too_large, -1, too_large])

    def program(p: Party, x: Shared) -> Any:
        graph = p.function(lambda x: checked_values(p, x, 16, 31, "beside")[1])
        return [graph(x) for _ in range(20)]

    sim = simulate(program, x, dealer=int(rng.integers(3)))
    flags = np.array([sim.value(operator.itemgetter(i)) for i in range(20)])
    assert not flags[:, [0, 3]].any()
    violations = flags[:, [1, 2, 4]].reshape(-1)
    assert len(np.unique(violations)) == violations.size and np.all(np.abs(violations) < 2**61)
    assert 12 <= (violations < 0).sum() <= 48  # of 60; fails by chance once in 10^5
    assert np.abs(violations).max() > 2**59


def test_samples_of_many_values_are_told_apart(rng: np.random.Generator) -> None:
    """Use rows of an odd number of values, longer than a chunk, with one wrong value in some."""
    x = rng.integers(-(2**45), 2**45, (5, 1031))
    bad = {1: (0,), 3: (1030,), 4: (511, 512)}
    for row, places in bad.items():
        x[row, list(places)] = 1 << 47
    x[4, 512] = -(1 << 47)  # two values that cancel in a sum

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: checked_values(p, x, 16, 31, "lift")[1])(x)

    flags = simulate(program, x, dealer=int(rng.integers(3))).value()
    assert (flags != 0).tolist() == [row in bad for row in range(5)]


def test_nothing_noted_and_no_values_are_in_range() -> None:
    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            watch = RangeMonitor(p, 2, x.dealer)
            watch.record_zero(None if p.index == x.dealer else np.zeros((2, 0), np.int64), 48, 31)
            watch.record_zero(None if p.index == x.dealer else np.ones((2, 3), np.int64), 31, 31)
            return watch.compute_flag()

        return p.function(graph)(x)

    assert not simulate(program, np.zeros(1, np.int64)).value().any()
