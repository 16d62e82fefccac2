"""Slices of large tensors: results at their edges, counted costs, masks, and who runs in slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.protocols.pads import assert_counters, repeated_words
from tfe_bench.cluster.simulate import assert_costs, measure_graph_call, simulate
from tfe_bench.protocols.api import rounding, scans, statistics
from tfe_bench.protocols.functions import logarithm, reciprocal, trigonometry
from tfe_bench.protocols.nn import activations, gelu
from tfe_bench.protocols.order import extremes
from tfe_bench.protocols.ring import arithmetic, truncation
from tfe_bench.protocols.session import slices
from tfe_bench.protocols.session.counting import Private, cost_of, count_cost
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]
ONE = 1 << 16


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut tensors into slices of 64 elements, or a few times as many."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 16 << 10)
    monkeypatch.setattr(slices, "MIN_SLICED_BYTES", 32 << 10)
    monkeypatch.setattr(slices, "_MIN_SLICED_ELEMENTS", 0)


def count_slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of slices of each protocol that runs in slices."""
    counts: list[int] = []
    build = slices._SliceLoop.build_loop

    def build_loop(loop: slices._SliceLoop) -> Shared:
        counts.append(loop._plan.slice_count)
        return build(loop)

    monkeypatch.setattr(slices._SliceLoop, "build_loop", build_loop)
    return counts


def run_protocol(protocol: Callable[..., Shared], *inputs: Array, record: bool = False) -> Any:
    """Run protocol(party, *inputs) in one graph."""

    def program(party: Party, *shares: Shared) -> Any:
        return party.function(lambda *parts: protocol(party, *parts))(*shares)

    return simulate(program, *inputs, fractional_bits=16, record=record)


def invert(party: Party, x: Shared) -> Shared:
    """Compute 1 / x with few comparisons."""
    return reciprocal.reciprocal(party, x, bits=30)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 127, 128, 129, 191, 257, 1000])
def test_results_are_right_at_the_ends_of_slices(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_slices(monkeypatch)
    x = np.linspace(0.05, 50, n) if n > 1 else np.full(n, 3.0)
    got = run_protocol(invert, np.rint(x * ONE).astype(np.int64)).value() / ONE
    assert got.shape == (n,)
    want = ONE / np.maximum(np.rint(x * ONE), 1)
    np.testing.assert_allclose(got, want, rtol=2.0**-20, atol=1.25 / ONE)
    assert all(counts) and len(counts) == (3 if n >= 257 else len(counts))


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("shape", [(3, 5, 31), (2, 300), (700, 1), (0, 4)])
def test_tensors_of_several_axes_keep_their_order(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_slices(monkeypatch)
    x = np.linspace(-6, 6, int(np.prod(shape))).reshape(shape)
    got = run_protocol(gelu.gelu, np.rint(x * ONE).astype(np.int64)).value() / ONE
    from scipy import special

    assert got.shape == shape
    np.testing.assert_allclose(got, x * special.ndtr(x), atol=4 / ONE)
    assert bool(counts) == (0 not in shape)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("shape", [(101, 5), (3, 50, 4), (2, 2, 64)])
def test_rows_are_not_cut(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_slices(monkeypatch)
    x = np.random.default_rng(5).uniform(-8, 8, shape)
    got = run_protocol(activations.softmax, np.rint(x * ONE).astype(np.int64)).value() / ONE
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(-1, keepdims=True), atol=3 / ONE)
    assert counts == [] if shape[0] == 2 else counts


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("profile", ["local", "wan"])
@pytest.mark.parametrize("shape", [(1000, 4), (3, 333, 3), (400, 12)])
def test_extremes_of_rows_are_found_in_slices(
    shape: tuple[int, ...], profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_slices(monkeypatch)
    monkeypatch.setitem(extremes.ROUND_BITS, "wan", 1.0)  # each party deals for a third
    x = np.random.default_rng(7).integers(-9, 9, shape)
    for protocol, want in ((extremes.reduce_max, x.max(-1)), (extremes.argmin, x.argmin(-1))):
        got = run_protocol(
            lambda party, x, protocol=protocol: protocol(party, x, -1, profile=profile), x
        )
        np.testing.assert_array_equal(got.value(), want)
    assert len(counts) >= (9 if profile == "wan" else 3)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("shape", [(1000, 4), (3, 201, 6)])
def test_scans_of_rows_run_in_slices(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_slices(monkeypatch)
    x = np.random.default_rng(10).integers(-9, 9, shape)
    got = run_protocol(lambda party, x: scans.cummax(x, -1, reverse=True), x)
    np.testing.assert_array_equal(got.value(), np.maximum.accumulate(x[..., ::-1], -1)[..., ::-1])
    got = run_protocol(lambda party, x: scans.cumprod(as_integers(x), len(shape) - 1, True), x)
    want = np.cumprod(np.concatenate([np.ones([*shape[:-1], 1], int), x], -1), -1)[..., :-1]
    np.testing.assert_array_equal(got.value(), want)
    assert len(counts) >= 3


@pytest.mark.usefixtures("small_slices")
def test_numbers_are_rounded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_slices(monkeypatch)
    x = np.arange(-500, 501) * (ONE // 4)
    got = run_protocol(lambda party, x: rounding.round(x), x)
    np.testing.assert_array_equal(got.value(), np.rint(x / ONE).astype(np.int64) * ONE)
    assert counts


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("n", [0, 63, 64, 65, 128, 129, 1000])
def test_values_are_counted_in_slices_that_do_not_overlap(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_slices(monkeypatch)
    x = np.random.default_rng(8).integers(-2, 8, n)
    weights = np.arange(n) - 5
    got = run_protocol(lambda party, x: statistics.bincount(as_integers(x), maxlength=6), x)
    inside = x[(x >= 0) & (x < 6)]
    np.testing.assert_array_equal(got.value(), np.bincount(inside, minlength=6))
    got = run_protocol(
        lambda party, x, w: statistics.bincount(as_integers(x), as_integers(w), maxlength=6),
        *(x, weights),
    )
    want = [weights[x == j].sum() for j in range(6)]
    np.testing.assert_array_equal(got.value(), want)
    assert bool(counts) == (n > 65)


def as_integers(x: Shared) -> Shared:
    """Return ring elements without a scale."""
    return dataclasses.replace(x, fractional_bits=0)


@pytest.mark.usefixtures("small_slices")
def test_two_operands_are_cut_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_slices(monkeypatch)
    rng = np.random.default_rng(6)
    x, y = rng.uniform(-100, 100, 300), rng.uniform(0.5, 50, 300)
    a, b = (np.rint(v * ONE).astype(np.int64) for v in (x, y))
    got = run_protocol(lambda party, x, y: reciprocal.divide(party, x, y, bits=30), a, b)
    np.testing.assert_allclose(got.value() / ONE, a / b, rtol=2.0**-20, atol=2 / ONE)
    assert counts


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("protocol", [invert, logarithm.log, activations.sigmoid])
@pytest.mark.parametrize("n", [256, 320, 1000])
@pytest.mark.parametrize("dealer", range(3))
def test_counted_costs_are_those_of_the_wire(
    protocol: Callable[..., Shared], n: int, dealer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count_slices(monkeypatch)

    def program(party: Party, x: Shared) -> Any:
        return measure_graph_call(party, party.function(lambda x: protocol(party, x)), x)

    x = np.full(n, 2 * ONE, np.int64)
    calls = simulate(program, x, fractional_bits=16, dealer=dealer).outputs
    cost_of.__globals__["_cost_of"].cache_clear()
    assert_costs(calls, cost_of(protocol, Private((n,))), dealer)
    cost_of.__globals__["_cost_of"].cache_clear()
    assert counts


def test_slices_send_as_much_as_the_whole_and_have_its_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for protocol in (reciprocal.reciprocal, logarithm.log, activations.sigmoid, gelu.gelu):
        for n in (1 << 20, (1 << 20) - 1, 3_000_001):
            sliced = count_cost(protocol, Private((n,))).cost
            with monkeypatch.context() as patch:
                patch.setattr(slices, "MIN_SLICED_BYTES", 1 << 60)
                whole = count_cost(protocol, Private((n,))).cost
            assert (sliced.rounds, sliced.with_dealing) == (whole.rounds, whole.with_dealing)
            for part, all_bits in zip(sliced.by_party(0), whole.by_party(0), strict=True):
                assert all_bits <= part <= 1.003 * all_bits + 4096


def test_the_largest_array_is_that_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 1 << 20
    sliced = count_cost(reciprocal.reciprocal, Private((n,)))
    assert sliced.largest == n and sliced.results.shape == (n,)
    monkeypatch.setattr(slices, "MIN_SLICED_BYTES", 1 << 60)
    assert count_cost(reciprocal.reciprocal, Private((n,))).largest > 16 * n


@pytest.mark.usefixtures("small_slices")
def test_no_mask_is_used_twice() -> None:
    x = np.full(1000, 2 * ONE, np.int64)

    def program(party: Party, x: Shared) -> Any:
        call = party.function(lambda x: invert(party, invert(party, x)))
        return [call(x), call(x)]

    sim = simulate(program, x, fractional_bits=16, record=True)
    assert not repeated_words(sim.pads)
    assert_counters(sim.pads, 0)


@pytest.mark.usefixtures("small_slices")
def test_several_loops_and_other_protocols_follow_each_other() -> None:
    x = np.rint(np.linspace(0.5, 3, 400) * ONE).astype(np.int64)

    def protocol(party: Party, x: Shared) -> Shared:
        y, z = invert(party, x), logarithm.log(party, x, 30)
        squares = arithmetic.add(arithmetic.mul(party, y, y), arithmetic.mul(party, z, z))
        w = truncation.truncate(party, squares, 16)
        return trigonometry.sine(party, activations.tanh(party, arithmetic.add(w, y)), 1)

    got = run_protocol(protocol, x).value() / ONE
    v = x / ONE
    want = np.cos(np.tanh(1 / v**2 + np.log(v) ** 2 + 1 / v))
    np.testing.assert_allclose(got, want, atol=2e-4)
