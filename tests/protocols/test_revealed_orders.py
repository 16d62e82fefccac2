"""The revealed values of shuffles and sorts have one distribution for all inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.protocols.views import ALPHA, Words, independent_p, normal_p
from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import TfeBenchError
from tfe_bench.protocols.order import lookup, shuffle, sort
from tfe_bench.protocols.order.sort_plan import SortPlan
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared


def shuffle_orders(rng: np.random.Generator, fault: str | None = None) -> Words:
    """Return the final positions of the elements of rows of 4, as numbers in base 4."""
    rows = np.tile(np.arange(4), (4096, 1))

    def program(party: Party, x: Shared) -> Any:
        return party.function(lambda x: shuffle.shuffle(party, [x])[0])(x)

    keys = [rng.bytes(16) for _ in range(3)]
    out: Words = simulate(program, rows, fault=fault, keys=keys).value()
    assert np.array_equal(np.sort(out, axis=1), rows)
    return np.asarray(out @ (4 ** np.arange(4)))


def orders_p(codes: Words) -> float:
    """Return the p-value of uniformity over the 24 orders."""
    counts = np.zeros(24, np.int64)
    occurrences = np.unique(codes, return_counts=True)[1]
    counts[: len(occurrences)] = occurrences
    return float(stats.chisquare(counts).pvalue)


def test_a_shuffle_takes_all_orders_of_a_row_alike(rng: np.random.Generator) -> None:
    codes = shuffle_orders(rng)
    assert orders_p(codes) > ALPHA
    # each row has a separate order: neighbors are independent
    of = np.unique(codes, return_inverse=True)[1]
    table = np.bincount(of[0::2] * 24 + of[1::2], minlength=576).reshape(24, 24)
    assert independent_p(table) > ALPHA


def test_a_biased_permutation_shows_in_the_orders_of_rows(rng: np.random.Generator) -> None:
    assert orders_p(shuffle_orders(rng, "biased_permutation")) < ALPHA


def revealed_comparisons(monkeypatch: pytest.MonkeyPatch, matrix: Words, **options: Any) -> Words:
    """Return the bits [rows, pairs] that the first level of a sort reveals."""
    first: list[tuple[Words, Words]] = []

    class Recording(SortPlan):
        left: Words | None = None

        def next_levels(self) -> Iterator[tuple[Words, Words]]:
            for left, right in super().next_levels():
                self.left = left.copy() if self.left is None else np.zeros(0)
                yield left, right

        def add_answers(self, words: Words) -> None:
            assert self.left is not None
            if len(self.left):
                packed = np.ascontiguousarray(words).view(np.uint8)
                bits = np.unpackbits(packed, bitorder="little")[: len(self.left)]
                first.append((self.left, bits))
            super().add_answers(words)

    monkeypatch.setattr(sort, "SortPlan", Recording)
    simulate(lambda p, x: sort.sort(p, x, algorithm="quick", full_range=False), matrix, **options)
    rows, n = matrix.shape
    left, bits = first[0]
    assert len(first) == 3
    for _, others in first[1:]:
        assert np.array_equal(bits, others)  # all three parties see the same
    by_row = np.argsort(left // n, kind="stable")
    return np.asarray(bits[by_row].reshape(rows, -1))


@pytest.mark.parametrize("n", [4, 12])
def test_what_a_quick_sort_reveals_has_one_distribution_for_all_inputs(
    n: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    rows = 2048
    ascending = np.tile(np.arange(n), (rows, 1))
    inputs = [ascending, ascending[:, ::-1].copy(), np.full((rows, n), 7)]
    bits = [
        revealed_comparisons(monkeypatch, x, keys=[rng.bytes(16) for _ in range(3)]) for x in inputs
    ]
    if n == 4:  # all pairs of a row: 24 answers are possible
        codes = [b @ (1 << np.arange(6)) for b in bits]
        p_values = [orders_p(c) for c in codes]
    else:
        codes = [b.sum(axis=1, dtype=np.int64) for b in bits]
        p_values = []
    table = np.array([np.bincount(c, minlength=128) for c in codes])
    p_values.append(independent_p(table[:, table.any(axis=0)]))
    each = np.array([b.sum(axis=0, dtype=np.int64) for b in bits])
    p_values += [normal_p((each[0] - e) / np.sqrt(rows / 2)) for e in each[1:]]
    assert min(p_values) * len(p_values) > ALPHA, p_values


def test_a_biased_permutation_shows_in_what_a_quick_sort_reveals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = np.tile(np.arange(4), (2048, 1))
    bits = revealed_comparisons(monkeypatch, keys, fault="biased_permutation")
    assert orders_p(bits @ (1 << np.arange(6))) < ALPHA


@pytest.mark.parametrize("descending", [False, True])
def test_what_a_sort_reveals_does_not_depend_on_the_data_after_a_sort_of_another_shape(
    monkeypatch: pytest.MonkeyPatch, descending: bool
) -> None:
    """Sort [256, 3] and then [384, 2], one pair per row: each revealed bit is a fair coin.

    A second shuffle by the rows of the first shape would leave the low triples before the high
    ones, so that every third pair compares a low key with a high one.
    """
    revealed: list[Words] = []

    class Recording(SortPlan):
        def add_answers(self, words: Words) -> None:
            packed = np.ascontiguousarray(words).view(np.uint8)
            revealed.append(np.unpackbits(packed, bitorder="little"))
            super().add_answers(words)

    def program(party: Party, *matrices: Any) -> None:
        for keys in matrices:
            sort.sort(party, keys, algorithm="quick", descending=descending)

    monkeypatch.setattr(sort, "SortPlan", Recording)
    low_high = np.tile([1, 2, 3, 1000, 2000, 3000], 128).reshape(384, 2)
    with contextlib.suppress(TfeBenchError):  # values revealed before the error
        simulate(program, np.zeros((256, 3), np.int64), low_high)
    assert len(revealed) == 6  # one level of each sort, seen by three parties
    bits = revealed[-1][:384].reshape(128, 3)
    p_values = [stats.binomtest(int(b), 128).pvalue for b in bits.sum(axis=0)]
    assert min(p_values) > ALPHA, f"ones among 128 reveals: {bits.sum(axis=0)}"


def test_what_a_lookup_reveals_takes_all_orders_alike_whatever_is_asked(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look up three keys: in a table of one row, at its end, with and without a match."""
    opened: list[tuple[int, ...]] = []
    cached = Party.cached_function

    def recording(party: Party, key: Any, make: Any, dynamic: bool = False) -> Any:
        graph = cached(party, key, make, dynamic)
        if key[0] != "lookup.mixed" or party.index:
            return graph

        def call(*arguments: Any) -> Any:
            origins, rest = graph(*arguments)
            opened.append(tuple(origins.numpy()[0].tolist()))
            return origins, rest

        return call

    monkeypatch.setattr(Party, "cached_function", recording)
    turns = 30

    def program(party: Party, x: Shared, *requests: Shared) -> Any:
        return [lookup.lookup_shuffled(party, x, i) for i in requests for _ in range(turns)]

    keys = [rng.bytes(16) for _ in range(3)]
    inputs = (np.array([[5]]), np.array([0]), np.array([7]))
    out = simulate(program, *inputs, keys=keys).outputs
    assert len(out[0]) == len(opened) == 2 * turns
    orders = sorted(set(opened))
    assert len(orders) == 6 and all(sorted(o) == [0, 1, 2] for o in orders)
    for part in (opened[:turns], opened[turns:]):
        assert stats.chisquare([part.count(o) for o in orders]).pvalue > ALPHA
