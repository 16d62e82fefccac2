"""Softmax for gradients: right to 2^-14 for all logits, in 8 rounds, and its loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

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
from tfe_bench.protocols.functions import exp_one_round, exp_select
from tfe_bench.protocols.nn import cross_entropy
from tfe_bench.protocols.ring import compare, convert
from tfe_bench.protocols.session.counting import Private, PrivateBits, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
CLASSES = (2, 3, 10, 16)
MANY = 1200
LIMIT = 2.0**14 - 32


def softmax(v: Array) -> Array:
    e = np.exp(v - v.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def draw_logits(classes: int, rng: np.random.Generator) -> Array:
    """Return logits of all sizes, with ties, near ties, equal ones, and the ends of the domain."""
    v = rng.standard_normal((MANY, classes)) * 10.0 ** rng.uniform(-3, 4, (MANY, 1))
    v = np.clip(v, -LIMIT, LIMIT)
    edges = np.zeros((8 + classes, classes))
    edges[1] = LIMIT
    edges[2] = -LIMIT
    edges[3, 0], edges[3, 1:] = LIMIT, -LIMIT
    edges[4, -1], edges[4, :-1] = LIMIT, -LIMIT
    edges[5] = np.arange(classes) / 16
    edges[6] = -np.arange(classes) * 31.99
    edges[7] = np.arange(classes) * 2.0**-16
    for i in range(classes):  # one just above the others
        edges[8 + i, i] = 3 / 16
    return np.concatenate([v, edges])


@pytest.mark.parametrize("f", [40, 24, 16])
def test_it_is_the_softmax_to_14_bits(f: int, rng: np.random.Generator) -> None:
    real = [draw_logits(c, rng) for c in CLASSES]
    ring = [np.round(v * 2.0**f).astype(np.int64) for v in real]
    dealer = int(rng.integers(3))

    def program(p: Party, *x: Shared) -> Any:
        return p.function(lambda *x: [cross_entropy.softmax_for_gradient(p, a) for a in x])(*x)

    sim = simulate(program, *ring, fractional_bits=f, dealer=dealer)
    for i, x in enumerate(ring):
        parts = [out[i] for out in sim.outputs]
        assert parts[0].fractional_bits == 20 and parts[0].shape == x.shape
        off = np.abs(reconstruct(parts) / 2.0**20 - softmax(x / 2.0**f))
        assert off.max() < 2.0**-14, (CLASSES[i], off.max())


def test_many_classes_and_other_shapes(rng: np.random.Generator) -> None:
    data = [rng.standard_normal(s) * 5 for s in ((3, 20), (2, 3, 4), (5,), (0, 3))]
    ring = [np.round(v * 2.0**40).astype(np.int64) for v in data]

    def program(p: Party, *x: Shared) -> Any:
        return p.function(lambda *x: [cross_entropy.softmax_for_gradient(p, a) for a in x])(*x)

    sim = simulate(program, *ring, fractional_bits=40)
    for i, v in enumerate(data):
        got = reconstruct([out[i] for out in sim.outputs]) / 2.0**20
        assert got.shape == v.shape and np.all(np.abs(got - softmax(v)) < 2.0**-14)


def test_the_loss_comes_with_it(rng: np.random.Generator) -> None:
    v = np.concatenate([rng.standard_normal((300, 10)) * 4, rng.standard_normal((300, 10)) * 300])
    x = np.round(v * 2.0**40).astype(np.int64)
    hot = np.eye(10)[rng.integers(0, 10, len(v))]
    y = np.round(hot * 2.0**20).astype(np.int64)

    def program(p: Party, x: Shared, y: Shared) -> Any:
        x = replace(x, fractional_bits=40)
        f = p.function(lambda x, y: cross_entropy.softmax_and_loss(p, x, y))
        return f(x, y), measure_graph_call(p, f, x, y)

    sim = simulate(program, x, y, fractional_bits=20, dealer=1)
    p, loss = (reconstruct([out[0][i] for out in sim.outputs]) for i in range(2))
    want = np.sum(np.log(np.exp(v - v.max(1, keepdims=True)).sum(1)) + v.max(1) - (hot * v).sum(1))
    assert np.abs(p / 2.0**20 - softmax(v)).max() < 2.0**-14
    assert loss.shape == () and abs(loss / 2.0**24 - want) < len(v) * 2.0**-17
    logits, labels = Private((len(v), 10), 40), Private((len(v), 10), 20)
    cost = cost_of(cross_entropy.softmax_and_loss, logits, labels)
    assert_costs([out[1] for out in sim.outputs], cost, 1)
    assert cost.rounds == 13


@by_a_dealer
def test_it_costs_what_it_declares(dealer: int) -> None:
    cases = [(1, 10, 40), (128, 10, 40), (65, 3, 24), (7, 2, 16), (9, 16, 32), (3, 20, 40)]

    def program(p: Party) -> Any:
        results = []
        for rows, classes, f in cases:
            x = share_for_party(np.full((rows, classes), 12345), p.index, b"x", f, dealer)
            g = p.function(lambda x: cross_entropy.softmax_for_gradient(p, x))
            results.append(measure_graph_call(p, g, x))
        return results

    sim = simulate(program, dealer=dealer)
    for i, (rows, classes, f) in enumerate(cases):
        cost = cost_of(cross_entropy.softmax_for_gradient, Private((rows, classes), f))
        assert_costs([out[i] for out in sim.outputs], cost, dealer)
    assert cost_of(cross_entropy.softmax_for_gradient, Private((128, 10), 40)).rounds == 8


@by_a_dealer
def test_a_bit_times_an_exponential(dealer: int, rng: np.random.Generator) -> None:
    f, low = 24, exp_one_round.plan_one_round_exp(64, 24, softmax=True).lowest_input
    inside = np.concatenate([[0, low, -1e-6, 0.25, -32.5], rng.uniform(low, 0, 5000)])
    outside = rng.integers(-(2**62), 2**62, 5000)
    x = np.concatenate([np.ceil(inside * 2**f).astype(np.int64), outside])
    sign = np.where(np.arange(len(x)) < len(inside), -1, 1)
    sign[3 : len(inside) : 7] = 1

    def program(p: Party, x: Shared, sign: Shared) -> Any:
        def function(x: Shared, sign: Shared) -> Any:
            bits = convert.mask_bits(p, compare.msb(p, sign, 8, 1))
            return exp_select.select_exp(p, bits, x)

        g = p.function(lambda b, x: exp_select.select_exp(p, b, x))
        bits = p.function(lambda s: convert.mask_bits(p, compare.msb(p, s, 8, 1)))(sign)
        return p.function(function)(x, sign), measure_graph_call(p, g, bits, x)

    sim = simulate(program, x, sign, fractional_bits=f, dealer=dealer, record=True)
    got = reconstruct([out[0] for out in sim.outputs])
    want = np.exp(x[: len(inside)] / 2.0**f) * 2.0**f
    keep = sign < 0
    assert not got[~keep].any()
    off = np.abs(got - np.where(keep, np.concatenate([want, np.zeros(len(outside))]), 0))
    assert off[: len(inside)].max() < 1 + 2.0**-29 * 2**f * 1.3
    cost = cost_of(exp_select.select_exp, PrivateBits((len(x),)), Private((len(x),), f))
    assert_costs([out[1] for out in sim.outputs], cost, dealer)
    sent = sim.pads[sim.pads["sent"] == 1]
    names = set(zip(sent["key"], sent["hi"], sent["lo"], strict=True))
    assert len(names) == len(sent)


def test_bad_input_gets_typed_errors() -> None:
    def program(p: Party, x: Shared) -> Any:
        import tensorflow as tf

        f = cross_entropy.softmax_for_gradient
        one = x.map(lambda a: a[:, :1])
        scalar = x.map(lambda a: a[0, 0])
        for wrong, code in (
            (replace(x, fractional_bits=41), "unsupported-scale"),
            (replace(x, bits=40), "unsupported-ring"),
            (one, "number-out-of-range"),
            (scalar, "rank-mismatch"),
        ):
            with raises(UsageError, code):
                f(p, wrong)
        with raises(UsageError, "not-private"):
            f(p, tf.zeros([2, 2], tf.int64))
        with raises(UsageError, "number-out-of-range", received=64):
            f(p, x, bits=64)
        with raises(UsageError, "shape-mismatch", operation="softmax_and_loss"):
            cross_entropy.softmax_and_loss(p, x, one)
        return 0

    simulate(program, np.zeros((2, 3), np.int64), fractional_bits=20)
