"""Sigmoid, tanh and softmax: within 2 ulp over the whole range, declared costs, fresh messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tests.protocols.dealers import by_a_dealer
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, share_for_party, simulate
from tfe_bench.errors import UsageError
from tfe_bench.protocols.nn import activations
from tfe_bench.protocols.ring import convert
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
F = 16
LIMIT = 2**30  # ring units: |v| < 2^14


def sigmoid(v: Array) -> Array:
    t = np.exp(-np.abs(v))
    return np.asarray(np.where(v >= 0, 1, t) / (1 + t))


def softmax(v: Array, axis: int = -1) -> Array:
    e = np.exp(v - v.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


PLAIN: dict[str, Callable[[Array], Array]] = {"sigmoid": sigmoid, "tanh": np.tanh}


def whole_range(rng: np.random.Generator, f: int, n: int) -> Array:
    """Return ring elements: the middle, the whole range, and every edge of the protocol."""
    one = 1 << f
    middle = rng.integers(-16 * one, 16 * one, n)
    everywhere = rng.integers(1 - LIMIT, LIMIT, n // 4)
    edges = {0, LIMIT - 1, int(16383.99 * one) if f == F else LIMIT - 1}
    for g in (f, f - 1):  # tanh is a sigmoid at a scale of one bit less
        edge = activations._exponential_cutoff_units(g) + (1 << g)
        edges |= {edge, edge - (1 << g)}
    edges |= {1 << k for k in range(30)}
    near = [s * e + d for e in edges for s in (-1, 1) for d in (-1, 0, 1)]
    return np.concatenate([np.clip(near, 1 - LIMIT, LIMIT - 1), middle, everywhere])


def test_sigmoid_and_tanh_are_within_two_ulp_everywhere(rng: np.random.Generator) -> None:
    cases = [(name, f, n) for name in PLAIN for f, n in ((F, 12000), (8, 2000), (20, 2000))]
    xs = [whole_range(rng, f, n) for _, f, n in cases]

    def program(p: Party, *xs: Shared) -> Any:
        from dataclasses import replace

        def graph(*xs: Shared) -> Any:
            return [
                getattr(activations, name)(p, replace(x, fractional_bits=f))
                for (name, f, _), x in zip(cases, xs, strict=True)
            ]

        return p.function(graph)(*xs)

    sim = simulate(program, *xs, dealer=int(rng.integers(3)))
    for i, ((name, f, _), x) in enumerate(zip(cases, xs, strict=True)):
        off = sim.value(itemgetter(i)) - PLAIN[name](x * 2.0**-f) * 2.0**f
        worst = np.abs(off).argmax()
        assert abs(off[worst]) < 2, (name, f, x[worst], off[worst])
        assert sim.outputs[0][i].fractional_bits == f


# classes and rows; 10 is the largest number of classes whose pairs are compared at once
CLASSES = [(1, 5), (2, 999), (3, 700), (9, 250), (10, 350), (11, 200), (33, 60), (1000, 4)]
SCALES = np.array([3.0, 5.0, 8000.0, 16000.0])


def test_softmax_is_within_two_ulp_for_every_number_of_classes(rng: np.random.Generator) -> None:
    xs = []
    for classes, rows in CLASSES:
        scale = np.resize(SCALES, rows)[:, None]
        x = np.rint(rng.uniform(-scale, scale, (rows, classes)) * 2.0**F).astype(np.int64)
        x[0] = 12345  # all equal
        x[1, 0] = x[1].max()  # two largest
        x[2] = -LIMIT + 1
        x[2, -1] = LIMIT - 1  # one certain class
        xs.append(x)
        if classes > 1:  # where a class vanishes
            x[-2:] = 0
            x[-2:, 1] = -activations._exponential_cutoff_units(F) + np.arange(-1, 1)
    assert sum(x.size for x in xs) > 10**4

    def program(p: Party, *xs: Shared) -> Any:
        return p.function(lambda *xs: [activations.softmax(p, x) for x in xs])(*xs)

    sim = simulate(program, *xs, fractional_bits=F, dealer=int(rng.integers(3)))
    for i, x in enumerate(xs):
        off = np.abs(sim.value(itemgetter(i)) - softmax(x * 2.0**-F) * 2.0**F)
        assert off.max() < 2, (x.shape, off.max(), x[off.max(-1).argmax()])


def test_softmax_takes_any_axis(rng: np.random.Generator) -> None:
    x = rng.integers(-5 << F, 5 << F, (2, 3, 4))
    axes = (0, 1, -2)

    def program(p: Party, x: Shared) -> Any:
        return p.function(lambda x: [activations.softmax(p, x, a) for a in axes])(x)

    sim = simulate(program, x, fractional_bits=F)
    for i, axis in enumerate(axes):
        want = softmax(x * 2.0**-F, axis) * 2.0**F
        assert np.abs(sim.value(itemgetter(i)) - want).max() < 2, axis


def test_shapes_of_every_rank_come_back(rng: np.random.Generator) -> None:
    xs = [rng.integers(-9 << F, 9 << F, shape) for shape in ((), (2, 1, 3, 2))]

    def program(p: Party, *xs: Shared) -> Any:
        return p.function(lambda *xs: [activations.sigmoid(p, x) for x in xs])(*xs)

    sim = simulate(program, *xs, fractional_bits=F)
    for i, x in enumerate(xs):
        got = sim.value(itemgetter(i))
        assert got.shape == x.shape
        assert np.abs(got - sigmoid(x * 2.0**-F) * 2.0**F).max() < 2


COSTS: list[tuple[tuple[int, ...], Callable[..., Any]]] = [
    ((100,), activations.sigmoid),
    ((8, 10), activations.softmax),
    ((8, 1), activations.softmax),
    ((8, 13), activations.softmax),
    ((100,), activations.tanh),
    ((4100,), activations.sigmoid),
    # where a constant requires more bits than the values, and where one exchange does not suffice
    ((9,), partial(activations.sigmoid, bits=2)),
    ((9,), partial(activations.tanh, bits=20)),
    ((3, 4), partial(activations.softmax, bits=3)),
    ((9,), partial(activations.sigmoid, bits=49)),
    ((3, 12), partial(activations.softmax, bits=62)),
]


@by_a_dealer
def test_declared_costs_are_what_the_wire_carries(dealer: int) -> None:
    cases = COSTS if dealer == 0 else COSTS[:2]

    def program(p: Party, *xs: Shared) -> Any:
        graphs = [p.function(lambda x, c=c: c(p, x)) for _, c in cases]
        return [measure_graph_call(p, g, x) for g, x in zip(graphs, xs, strict=True)]

    zeros = [np.zeros(shape, np.int64) for shape, _ in cases]
    sim = simulate(program, *zeros, fractional_bits=F, dealer=dealer)
    for i, (shape, protocol) in enumerate(cases):
        cost = cost_of(protocol, Private(shape, F))
        assert_costs([out[i] for out in sim.outputs], cost, dealer)


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "softmax"])
def test_all_received_words_differ_for_frozen_shares(
    name: str, rng: np.random.Generator, heard: list[list[Any]]
) -> None:
    shape = (256, 8) if name == "softmax" else (2048,)

    def program(p: Party, x: Shared) -> Any:
        def graph(x: Shared) -> Any:
            heard[p.index].clear()
            getattr(activations, name)(p, x)
            return list(heard[p.index])

        f = p.function(graph)
        still = share_for_party(np.full(shape, 3 << F), p.index, b"", F, x.dealer)
        still = still.map(lambda a: 0 * a + a[(0,) * len(shape)])
        return [f(still), f(still)]

    sim = simulate(program, np.zeros(1, np.int64), fractional_bits=F, dealer=int(rng.integers(3)))
    for party, calls in enumerate(sim.outputs):
        words = []
        for message in (m for received in calls for m in received):
            raw = np.ascontiguousarray(message).reshape(-1).view(np.uint8)
            words.append(raw[: len(raw) // 8 * 8].view(np.uint64))
        flat = np.concatenate(words) if words else np.zeros(0, np.uint64)
        assert len(np.unique(flat)) == len(flat), party


def test_what_does_not_fit_is_refused_with_what_was_received() -> None:
    texts: list[tuple[str, str]] = []

    def program(p: Party, x: Shared) -> None:
        def graph(x: Shared) -> Shared:
            from dataclasses import replace

            wide = convert.extend_to_wide(p, x, 1)
            for name in ("sigmoid", "tanh", "softmax"):
                function = getattr(activations, name)
                for bad in (wide, np.zeros(3), replace(x, fractional_bits=7), None):
                    with pytest.raises(UsageError) as caught:
                        function(p, bad)
                    texts.append((name, str(caught.value)))
            for axis in (1, -2, 0.5):
                with pytest.raises(UsageError) as caught:
                    activations.softmax(p, x, axis)  # type: ignore[arg-type]
                texts.append(("softmax", str(caught.value)))
            empty = x.map(lambda a: a[:0])
            with pytest.raises(UsageError) as caught:
                activations.softmax(p, empty)
            texts.append(("softmax", str(caught.value)))
            return x

        p.function(graph)(x)

    simulate(program, np.zeros(3, np.int64), fractional_bits=F)
    for name, text in texts:
        assert text.startswith(name) and "Received: " in text, text
