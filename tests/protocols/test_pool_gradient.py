"""Max pooling with its choice, and its gradient: TensorFlow's values, exact costs, fresh masks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tests.protocols.pads import assert_one_message_each
from tests.protocols.shares import assert_refused_by_name
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.protocols.nn import pool_gradient
from tfe_bench.protocols.nn.pool_gradient import PoolChoice
from tfe_bench.protocols.ring import small_ring, truncation
from tfe_bench.protocols.session.counting import Private, PrivateBits, cost_of, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
DROP = 24

# shape, windows, strides, padding, relu, bits (64: of Z_2^64), from a small ring
Case = tuple[tuple[int, ...], Any, Any, str, bool, int, bool]
CASES: list[Case] = [
    ((4, 24, 24, 5), 2, 2, "VALID", True, 30, True),
    ((2, 8, 8, 7), 2, 2, "VALID", False, 30, True),
    ((2, 5, 7, 3), 2, 2, "VALID", True, 31, False),
    ((2, 5, 7, 3), 2, 2, "SAME", True, 31, False),
    ((2, 6, 7, 3), 3, 2, "SAME", True, 30, True),
    ((1, 6, 7, 3), (2, 3), 1, "VALID", False, 64, False),
    ((1, 6, 7, 3), (1, 2), (1, 2), "VALID", False, 31, False),
    ((2, 3, 3, 3), 1, 1, "VALID", True, 64, False),
    ((2, 3, 3, 3), 1, 2, "SAME", False, 31, False),
]


def nested_item(*places: int) -> Callable[[Any], Any]:
    return lambda out: functools.reduce(lambda nest, place: nest[place], places, out)


def draw_images(case: Case, rng: np.random.Generator) -> Array:
    """Return ties around zero, the ends of the domain, and values throughout."""
    shape, bits = case[0], case[5]
    most = 2 ** (bits - 2) - 1
    x = rng.integers(-most, most, shape, np.int64, endpoint=True)
    small = rng.integers(-1, 2, shape)
    ends = rng.choice(np.array([most, -most, most - 1, 0, 1, -1]), shape)
    kind = rng.integers(3, size=(shape[0], shape[1], shape[2], 1))
    chosen: Array = np.where(kind == 0, x, np.where(kind == 1, small, ends))
    return chosen


def expected_gradient(case: Case, x: Array, g: Array) -> tuple[Array, Array]:
    """Return TensorFlow's result; float64 holds the values (64-bit ones as rounded)."""
    import tensorflow as tf

    a = tf.Variable(x.astype(np.float64))
    with tf.GradientTape() as tape:
        y = tf.nn.max_pool2d(a, *case[1:4])
        y = tf.nn.relu(y) if case[4] else y
    return y.numpy(), tape.gradient(y, a, output_gradients=tf.constant(g)).numpy()


def shrink_ring(x: Shared, case: Case) -> Shared:
    return replace(x, bits=case[5]) if case[6] else x


def expected_pool(p: Party, x: Shared, case: Case) -> tuple[Shared, PoolChoice]:
    return pool_gradient.max_pool2d_with_choice(
        p, shrink_ring(x, case), *case[1:4], relu=case[4], bits=case[5]
    )


@by_a_dealer
def test_values_and_gradients_are_tensorflows_and_cost_what_they_say(
    dealer: int, rng: np.random.Generator
) -> None:
    inputs: list[Array] = []
    for case in CASES:
        x = draw_images(case, rng)
        y_shape = pool_gradient.pooling_window_geometry("test", case[0], *case[1:4]).pooled_shape
        g: Array = rng.integers(-(2**61), 2**61, y_shape)
        g.flat[: y_shape[-1]] = rng.choice(np.array([2**62 - 1, 1 - 2**62, 0]), y_shape[-1])
        inputs += [x, g]

    def program(p: Party, *shares: Shared) -> Any:
        result = []
        for case, x, g in zip(CASES, shares[::2], shares[1::2], strict=True):
            forward = p.function(lambda x, case=case: expected_pool(p, x, case))
            back = p.function(lambda c, g: pool_gradient.unpool_gradient(p, c, g, DROP))
            y, choice = forward(x)
            calls = [measure_graph_call(p, forward, x), measure_graph_call(p, back, choice, g)]
            result.append((y, back(choice, g), choice.bits, *calls))
        return result

    sim = simulate(program, *inputs, dealer=dealer, fractional_bits=40)
    for i, case in enumerate(CASES):
        x, g = inputs[2 * i : 2 * i + 2]
        want, back = expected_gradient(case, x, g / 2.0**DROP)
        got = sim.value(nested_item(i, 0))
        if case[5] < 64:
            assert np.array_equal(got, want.astype(np.int64)), case
        else:  # as integers: TensorFlow has no such pooling
            assert np.allclose(got, want, rtol=1e-15), case
        chosen = bits_of(sim.outputs, i, dealer)
        geometry = pool_gradient.pooling_window_geometry("test", case[0], *case[1:4])
        of_window = chosen.reshape(len(geometry.order), -1)[:, : geometry.window_count].sum(0)
        expected = (got > 0).reshape(-1) if case[4] else np.ones(geometry.window_count)
        assert np.array_equal(of_window, expected), case
        dx = sim.value(nested_item(i, 1))
        if case[5] < 64 or case[4]:
            several = 1 if geometry.is_disjoint else 9
            assert (abs(dx - back) < several + np.abs(back) * 2**-50).all(), case
            assert (dx[back == 0] == 0).all() or not geometry.is_disjoint, case
        assert all(out[i][1].fractional_bits == 40 - DROP for out in sim.outputs)
        forward = count_cost(
            lambda p, x, case=case: expected_pool(p, x, case), Private(case[0], 40)
        )
        assert_costs([out[i][3] for out in sim.outputs], forward.cost, dealer)
        unpooled = count_cost(
            pool_gradient.unpool_gradient, forward.results[1], Private(want.shape, 40), DROP
        )
        assert_costs([out[i][4] for out in sim.outputs], unpooled.cost, dealer)


def bits_of(outputs: Any, i: int, dealer: int) -> Array:
    """Return choice bits, 0 and 1, from the parts of the evaluators and the dealer."""
    parts = [out[i][2] for out in outputs]
    beta = np.asarray(parts[dealer].beta)
    words = [np.asarray(parts[(dealer + j) % 3].masked) ^ beta for j in (1, 2)]
    assert np.array_equal(*words)
    return np.unpackbits(words[0].view(np.uint8), bitorder="little")


def test_of_equal_cells_the_first_wins(rng: np.random.Generator) -> None:
    x = rng.integers(1, 3, (4, 6, 6, 4)).astype(np.int64)
    g = rng.integers(1, 2**20, (4, 3, 3, 4)).astype(np.int64) << DROP

    def program(p: Party, x: Shared, g: Shared) -> Any:
        def both(x: Shared, g: Shared) -> Shared:
            choice = pool_gradient.max_pool2d_with_choice(p, x, 2, 2, relu=True)[1]
            return pool_gradient.unpool_gradient(p, choice, g, DROP)

        return p.function(both)(x, g)

    case: Case = (x.shape, 2, 2, "VALID", True, 31, False)
    assert np.array_equal(
        simulate(program, x, g).value(), expected_gradient(case, x, g / 2.0**DROP)[1]
    )


def test_an_empty_batch_gives_empty_results() -> None:
    def program(p: Party, x: Shared, g: Shared) -> Any:
        def both(x: Shared, g: Shared) -> Any:
            y, choice = pool_gradient.max_pool2d_with_choice(p, x, 2, 2, relu=True)
            return y, pool_gradient.unpool_gradient(p, choice, g, DROP)

        return p.function(both)(x, g)

    sim = simulate(program, np.zeros((0, 4, 4, 3), np.int64), np.zeros((0, 2, 2, 3), np.int64))
    assert [sim.value(nested_item(i)).shape for i in range(2)] == [(0, 2, 2, 3), (0, 4, 4, 3)]
    assert sim.sent == (0, 0, 0)


@pytest.mark.parametrize("k", [2, 7, 30, 63, 64])
def test_a_choice_in_a_small_ring_is_exact_and_sends_its_bits(
    k: int, rng: np.random.Generator
) -> None:
    from tfe_bench.protocols.ring import compare, convert

    n = 1000
    info = np.iinfo(np.int64)
    x, y, z = (rng.integers(info.min, info.max, n, np.int64, endpoint=True) for _ in range(3))

    def program(p: Party, x: Shared, y: Shared, z: Shared) -> Any:
        def choose(x: Shared, y: Shared, z: Shared) -> Any:
            bits = convert.mask_bits(p, compare.msb(p, z))
            return bits, small_ring.reduce_ring(x, k), small_ring.reduce_ring(y, k)

        bits, x, y = p.function(choose)(x, y, z)
        f = p.function(lambda b, x, y: small_ring.select(p, b, x, y))
        return f(bits, x, y), measure_graph_call(p, f, bits, x, y)

    sim = simulate(program, x, y, z)
    want = np.where(z < 0, x, y)
    ring = (1 << k) - 1
    got = sim.value(nested_item(0))
    assert np.array_equal(got.astype(object) & ring, want.astype(object) & ring)
    operand = Private((n,), bits=k % 64)
    cost = cost_of(small_ring.select, PrivateBits((n,)), operand, operand)
    assert_costs([out[1] for out in sim.outputs], cost)


@pytest.mark.parametrize("k", [4, 31, 63])
def test_lift_is_exact_throughout_its_domain(k: int, rng: np.random.Generator) -> None:
    most = 2 ** (k - 2) - 1
    x = rng.integers(-most, most, 10_000, np.int64, endpoint=True)
    x[:5] = [most, -most, 0, 1, -1]

    def program(p: Party, x: Shared) -> Any:
        f = p.function(lambda x: small_ring.lift_signed(p, x))
        x = small_ring.reduce_ring(x, k)
        return f(x), measure_graph_call(p, f, x)

    sim = simulate(program, x)
    assert np.array_equal(sim.value(nested_item(0)), x)
    cost = cost_of(small_ring.lift_signed, Private((10_000,), bits=k))
    assert_costs([out[1] for out in sim.outputs], cost)


def test_a_small_rings_value_may_come_from_a_truncation(rng: np.random.Generator) -> None:
    x = rng.integers(-(2**50), 2**50, (2, 4, 4, 8))

    def program(p: Party, x: Shared) -> Any:
        def layer(x: Shared) -> Shared:
            small = truncation.truncate_reduce(p, x, 24, 30)
            return pool_gradient.max_pool2d_with_choice(p, small, 2, 2, relu=True)[0]

        return p.function(layer)(x)

    want = np.maximum((x / 2.0**24).reshape(2, 2, 2, 2, 2, 8).max((2, 4)), 0)
    assert (abs(simulate(program, x).value() - want) < 1).all()


def test_each_mask_hides_one_message_only(rng: np.random.Generator) -> None:
    case: Case = ((2, 8, 8, 4), 2, 2, "VALID", True, 30, True)
    x, g = draw_images(case, rng), rng.integers(-(2**61), 2**61, (2, 4, 4, 4))

    def program(p: Party, x: Shared, g: Shared) -> Any:
        def both(x: Shared, g: Shared) -> Shared:
            return pool_gradient.unpool_gradient(p, expected_pool(p, x, case)[1], g, DROP)

        f = p.function(both)
        return f(x, g), f(x, g)

    sim = simulate(program, x, g, record=True)
    sent = assert_one_message_each(sim)
    assert len(set(sent["digest"])) == len(sent)


def test_frozen_shares_under_fresh_masks_give_other_words_on_every_message(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfe_bench.protocols.session.party import Site

    received: dict[tuple[int, int, int], Any] = {}
    plain_recv = Site.recv

    def recv(self: Site, shape: Any, source: int, slot: int = 0, dtype: Any = None) -> Any:
        data = plain_recv(self, shape, source, slot, dtype)
        received[self.party.index, self.number, slot] = data
        return data

    monkeypatch.setattr(Site, "recv", recv)
    case: Case = ((2, 8, 8, 4), 2, 2, "VALID", True, 30, True)
    x, g = draw_images(case, rng), rng.integers(-(2**61), 2**61, (2, 4, 4, 4))

    def program(p: Party, x: Shared, g: Shared) -> Any:
        def both(x: Shared, g: Shared) -> Any:
            pool_gradient.unpool_gradient(p, expected_pool(p, x, case)[1], g, DROP)
            return [data for (party, *_), data in sorted(received.items()) if party == p.index]

        f = p.function(both)
        return [f(x, g) for _ in range(3)]

    sim = simulate(program, x, g)
    for runs in sim.outputs:
        for messages in zip(*runs, strict=True):
            observed = {np.asarray(m).tobytes() for m in messages}
            assert len(observed) == len(messages)


NOT_PRIVATE: Any = np.zeros((1, 4, 4, 1))
REFUSED: dict[str, Callable[[Party, Shared], Any]] = {
    "max_pool2d_with_choice of a public tensor": lambda p, x: pool_gradient.max_pool2d_with_choice(
        p, NOT_PRIVATE, 2, 2
    ),
    "max_pool2d_with_choice of rank 3": lambda p, x: pool_gradient.max_pool2d_with_choice(
        p, x.map(lambda a: a[0]), 2, 2
    ),
    "max_pool2d_with_choice of too large a window": lambda p, x: (
        pool_gradient.max_pool2d_with_choice(p, x, 5, 2)
    ),
    "max_pool2d_with_choice of too many cells": lambda p, x: pool_gradient.max_pool2d_with_choice(
        p, x, 12, 12, "SAME"
    ),
    "max_pool2d_with_choice of padding": lambda p, x: pool_gradient.max_pool2d_with_choice(
        p, x, 2, 2, "same"
    ),
    "max_pool2d_with_choice of strides": lambda p, x: pool_gradient.max_pool2d_with_choice(
        p, x, 2, 0
    ),
    "max_pool2d_with_choice of bits": lambda p, x: pool_gradient.max_pool2d_with_choice(
        p, x, 2, 2, bits=65
    ),
    "unpool of another shape": lambda p, x: pool_gradient.unpool_gradient(
        p, pool_gradient.max_pool2d_with_choice(p, x, 2, 2)[1], x, DROP
    ),
    "unpool of a small ring": lambda p, x: pool_gradient.unpool_gradient(
        p, pool_gradient.max_pool2d_with_choice(p, x, 2, 2)[1], replace(x, bits=31), DROP
    ),
    "unpool drops": lambda p, x: pool_gradient.unpool_gradient(
        p, pool_gradient.max_pool2d_with_choice(p, x, 1, 1)[1], x, 49
    ),
    "lift of 64 bits": lambda p, x: small_ring.lift_signed(p, x),
    "select of one bit": lambda p, x: small_ring.select(
        p, pool_gradient.max_pool2d_with_choice(p, x, 2, 2)[1].bits, x, x
    ),
}


def test_what_does_not_fit_is_refused_by_name_with_what_was_received() -> None:
    assert_refused_by_name(REFUSED, np.zeros((1, 4, 4, 2), np.int64))
