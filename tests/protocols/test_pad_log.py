"""The log of pads: every mask is used once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.edges import parametrize_daily
from tests.protocols.pads import (
    assert_counters,
    fields_of,
    repeated_words,
    words_under_one_pad,
)
from tests.protocols.turns import in_time, power_by_loop
from tfe_bench.cluster.simulate import simulate
from tfe_bench.protocols.nn import relu
from tfe_bench.protocols.order import extremes, shuffle, sort
from tfe_bench.protocols.ring import (
    arithmetic,
    compare,
    convert,
    logic,
    relational,
    rss,
    truncation,
)
from tfe_bench.protocols.session import io
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

pytestmark = pytest.mark.usefixtures("rewritten")

N = 70
Array = np.ndarray[Any, Any]


# ---- the log of pads


def run_all(party: Party, x: Shared, y: Shared) -> Any:
    """Run every protocol once."""
    import tensorflow as tf

    bits = convert.mask_bits(party, compare.msb(party, x))
    row = [c.map(lambda a: tf.reshape(a, [2, -1])) for c in (x, y)]
    pair = x.map(lambda a: tf.reshape(a[:10], [5, 2]))
    small = truncation.truncate_reduce(party, y, 8, 31)
    left, right = (c.map(lambda a: tf.reshape(a[:64], [8, 8])) for c in (x, y))
    return [
        arithmetic.mul(party, x, y),
        arithmetic.matmul(party, left, right),
        rss.mul_replicated(party, x, y),
        truncation.truncate(party, x, 16),
        truncation.truncate(party, x, 16, "probable"),
        truncation.truncate_reduce(party, x, 8, 40),
        convert.b2a(party, bits),
        convert.inject(party, bits, y),
        convert.inject(party, bits, small, negated=True, extend_ring=True),
        convert.inject(party, bits, convert.extend_to_wide(party, y, 1)),
        logic.and_bits(party, [bits, logic.invert_bits(bits), bits]),
        relational.maximum(party, x, y),
        relational.equal(party, x, y, 31, 2),
        relu.relu(party, relu.truncated_product(party, left, right, 16, bias=left)),
        extremes.reduce_max(party, pair, 0, method="all-pairs"),
        extremes.argmax(party, pair, 0, method="all-pairs"),
        extremes.argmin(party, pair, 0, method="tree"),
        convert.extend_to_wide(party, x, 3),
        shuffle.shuffle(party, row),
        io.reveal_bits(party, compare.msb(party, y, 31)),
        *(io.share_input(party, p, y.any if party.index == p else None, (N,)) for p in range(3)),
    ]


def many_calls(party: Party, x: Shared, y: Shared) -> Any:
    """Call several functions several times, with equal and with other inputs, loops and sorts."""

    def cubes(x: Shared) -> Shared:
        for _ in range(3):
            x = arithmetic.mul(party, x, x)
        return x

    every, cube, loop = (
        party.function(f)
        for f in (lambda a, b: run_all(party, a, b), cubes, power_by_loop(party, 3))
    )
    for a, b in ((x, y), (x, y), (y, x), (x, y)):
        every(a, b)
        cube(a)
        loop(a)
    for _ in range(2):
        sort.sort(party, x, (y,), algorithm="quick")
        sort.sort(party, x, algorithm="all-pairs", full_range=False)
        few = x.map(lambda a: a[:8])
        sort.sort(party, few, algorithm="network", descending=True)
    return None


def few_calls(party: Party, x: Shared, y: Shared) -> Any:
    """Run every protocol with equal and with other inputs."""
    every = party.function(lambda a, b: run_all(party, a, b))
    for a, b in ((x, y), (x, y), (y, x)):
        every(a, b)
    return None


def log_of(
    rng: np.random.Generator, dealer: int, program: Callable[..., Any], **options: Any
) -> Array:
    info = np.iinfo(np.int64)
    x, y = rng.integers(info.min // 4, info.max // 4, (2, N), np.int64)
    keys = [rng.bytes(16) for _ in range(3)]
    return simulate(program, x, y, dealer=dealer, keys=keys, record=True, **options).pads


@functools.cache
def log_of_many_calls(dealer: int, seed: int) -> Array:
    return log_of(np.random.default_rng([seed, dealer]), dealer, many_calls)


# (one log is read by three tests, so that all of them take the same dealer daily)
by_one_dealer = parametrize_daily("dealt_by", range(3), [1])


@by_one_dealer
def test_one_counter_carries_one_word_of_one_party(process_seed: int, dealt_by: int) -> None:
    pads = log_of_many_calls(dealt_by, process_seed)
    assert (pads["sent"] == 1).sum() > 500
    assert words_under_one_pad(pads) == 0


@by_one_dealer
def test_equal_inputs_give_other_words_at_every_site_step_and_turn(
    process_seed: int, dealt_by: int
) -> None:
    pads = log_of_many_calls(dealt_by, process_seed)
    assert repeated_words(pads) == []
    steps: dict[int, set[int]] = {}
    for site, step in zip(fields_of(pads)["site"], fields_of(pads)["step"], strict=True):
        steps.setdefault(site, set()).add(step)
    assert min(len(s) for s in steps.values()) >= 2  # every site was used in several calls


@by_one_dealer
def test_counters_are_the_documented_fields_and_never_overlap(
    process_seed: int, dealt_by: int
) -> None:
    pads = log_of_many_calls(dealt_by, process_seed)
    f = fields_of(pads)
    assert_counters(pads, dealt_by)
    assert set(f["iteration"]) == {0, 1, 2, 3}  # 0: outside of numbered iterations


def test_numbered_turns_and_python_loops_use_counters_of_their_own(
    rng: np.random.Generator,
) -> None:
    def unrolled(party: Party) -> Callable[[Shared], Shared]:
        def function(x: Shared) -> Shared:
            y = x
            for _ in range(4):
                y = arithmetic.mul(party, y, x)
            return y

        return function

    def program(party: Party, x: Shared) -> Any:
        return party.function(power_by_loop(party, 4))(x), party.function(unrolled(party))(x)

    sim = in_time(program, np.arange(N), record=True)
    sent = sim.pads[sim.pads["sent"] == 1]
    counters = {tuple(r) for r in sent[["key", "hi", "lo"]].tolist()}
    assert len(counters) == len(sent) == 2 * 4 * 3  # loops, iterations, one send per role


@pytest.mark.parametrize("dealer", range(3))
def test_the_log_has_the_shares_of_a_comparison(dealer: int, rng: np.random.Generator) -> None:
    """Find the pads of shares that kernels make and use internally, logged by both holders."""

    def compared(party: Party, x: Shared, y: Shared) -> Any:
        return party.function(lambda x: compare.msb(party, x, 31, 2))(x)

    pads = log_of(rng, dealer, compared)
    holders: dict[Any, set[int]] = {}
    for key, hi, lo, party in pads[["key", "hi", "lo", "party"]].tolist():
        holders.setdefault((key, hi, lo), set()).add(party)
    assert len(holders) == 5  # the dealt messages, and two for each exchange
    for (key, _, _), parties in holders.items():
        assert parties == {key, (key + 2) % 3}


def test_the_log_shows_a_counter_that_ignores_the_step(rng: np.random.Generator) -> None:
    pads = log_of(rng, 0, few_calls, fault="reuse_counter")
    assert words_under_one_pad(pads) > 0


def test_the_log_shows_words_without_masks(rng: np.random.Generator) -> None:
    pads = log_of(rng, 0, few_calls, fault="drop_mask")
    assert repeated_words(pads)


def test_the_log_shows_a_share_that_leaves_under_a_dealt_mask(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Find an injection's share of E1 sent under the pad with which D deals to E2."""

    def injected(party: Party, x: Shared, y: Shared) -> Any:
        def function(x: Shared, y: Shared) -> Any:
            return convert.inject(party, convert.mask_bits(party, compare.msb(party, x)), y)

        return party.function(function)(x, y)

    assert words_under_one_pad(log_of(rng, 0, injected)) == 0
    inject_shares = convert.inject_shares

    def collides(*arguments: Any, **options: Any) -> Any:
        return inject_shares(*arguments, **{**options, "output_mask": 1})

    monkeypatch.setattr(convert, "inject_shares", collides)
    assert words_under_one_pad(log_of(rng, 0, injected)) > 0
