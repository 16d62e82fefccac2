"""Inputs of three parties in tests, and results that tests read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tfe_bench.cluster.simulate import (
    Simulation,
    assert_costs,
    measure_graph_call,
    share_for_party,
    simulate,
)
from tfe_bench.errors import UsageError
from tfe_bench.protocols.session.cost import Cost
from tfe_bench.protocols.session.counting import Private, cost_of
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import MaskedBits, Shared

Array = np.ndarray[Any, Any]
INT64 = np.iinfo(np.int64)
# 0, +-2^k and their neighbors, and both ends.
EDGES = np.array(
    sorted(
        {0, INT64.min, INT64.max}
        | {s * 2**k + d for s in (1, -1) for k in range(63) for d in (-1, 0, 1)}
    ),
    np.int64,
)


def draw_words(rng: np.random.Generator, n: int, limbs: int = 1) -> Array:
    """Return a number of random words and some edges; in pairs for two limbs."""
    ends = np.array([0, 1, -1, 2**62, -(2**62), INT64.max, INT64.min], np.int64)
    values = np.concatenate([ends, rng.integers(INT64.min, INT64.max, n, endpoint=True)])
    return values if limbs == 1 else values.reshape(-1, limbs)


def output_at(*places: int) -> Callable[[Any], Any]:
    """Return a party's results at nested positions."""
    return lambda out: functools.reduce(lambda nest, place: nest[place], places, out)


def pack_bits(bits: Array) -> Array:
    """Return bits in words of 64."""
    whole = np.zeros(-(-len(bits) // 64) * 64, np.uint8)
    whole[: len(bits)] = bits
    return np.packbits(whole, bitorder="little").view(np.int64)


def unpack_bits(words: Array, n: int) -> Array:
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:n]


def bits_of(sim: Simulation, pick: Callable[[Any], MaskedBits]) -> Array:
    """Return the bits whose parts the three parties hold."""
    parts = [pick(out) for out in sim.outputs]
    (beta,) = [p.beta for p in parts if p.beta is not None]
    first, second = [p.masked for p in parts if p.masked is not None]
    assert np.array_equal(first, second)
    return unpack_bits(beta ^ first, int(parts[0].n))


def parts_held(party: int, dealer: int, parts: Sequence[Any], *about: Any, **more: Any) -> Shared:
    """Return a party's parts of m, l1 and l2."""
    role = (party - dealer) % 3
    m, l1, l2 = (None if role == lacks else x for lacks, x in zip((0, 2, 1), parts, strict=True))
    return Shared(m, l1, l2, dealer, *about, **more)


# ---- costs


def assert_declared(
    dealer: int,
    sizes: Sequence[int],
    run: Callable[[Party, int], Any],
    declared: Callable[[int], Cost],
) -> None:
    """Check that the cost measured in `run` is the declared one for each size."""
    sim = simulate(lambda p: [run(p, n) for n in sizes], dealer=dealer)
    for i, n in enumerate(sizes):
        assert_costs([out[i] for out in sim.outputs], declared(n), dealer)


def assert_costs_of_all(
    operations: Sequence[Callable[[Party, Shared], Any]], inputs: Sequence[Array], dealer: int
) -> None:
    """Check the costs of operations on vectors of several lengths, in one graph each."""

    def program(p: Party) -> list[Any]:
        graphs = [
            p.function(lambda x, operation=operation: operation(p, x), dynamic=True)
            for operation in operations
        ]
        shares = [share_for_party(x, p.index, b"value", dealer=dealer) for x in inputs]
        return [measure_graph_call(p, graph, x) for graph in graphs for x in shares]

    calls = zip(*simulate(program, dealer=dealer).outputs, strict=True)
    expected = [cost_of(f, Private((len(x),), 0)) for f in operations for x in inputs]
    for cost, call in zip(expected, calls, strict=True):
        assert_costs(call, cost, dealer)


# ---- refusals


def assert_refused_by_name(
    refused: Mapping[str, Callable[[Party, Shared], Any]], values: Array
) -> None:
    """Check that each call raises a UsageError that begins with its key's first word.

    The error also contains "Received".
    """
    texts: dict[str, str] = {}

    def program(p: Party, x: Shared) -> None:
        def all_of(x: Shared) -> Shared:
            for what, call in refused.items():
                with pytest.raises(UsageError) as caught:
                    call(p, x)
                texts[what] = str(caught.value)
            return x

        p.function(all_of)(x)

    simulate(program, values)
    assert texts.keys() == refused.keys()
    for what, text in texts.items():
        assert text.startswith(what.split()[0]) and "Received: " in text, (what, text)
