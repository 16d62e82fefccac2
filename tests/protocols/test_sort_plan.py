"""The public side of the sort: the pairs to compare, and the resulting order."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.paths import ROOT
from tests.refusals import raises
from tfe_bench.errors import UsageError
from tfe_bench.protocols.order import sort
from tfe_bench.protocols.order.sort_plan import SortPlan, odd_even_merge

Array = np.ndarray[Any, Any]


def pack_answers(bits: Array) -> Array:
    whole = np.zeros(-(-len(bits) // 64) * 64, np.uint8)
    whole[: len(bits)] = bits
    return np.packbits(whole, bitorder="little").view(np.uint64)


def run_plan(keys: Array, all_pairs_at: int, round_cost: float) -> tuple[Array, list[int]]:
    """Return the order of distinct keys [rows, n], and the number of pairs of each level."""
    rows, n = keys.shape
    flat = keys.reshape(-1)
    counts = []
    with SortPlan(rows, n, all_pairs_at, round_cost) as plan:
        for left, right in plan.next_levels():
            counts.append(len(left))
            plan.add_answers(pack_answers(flat[left] < flat[right]))
        return plan.final_order().reshape(rows, n), counts


def draw_sizes(rng: np.random.Generator) -> Iterator[tuple[int, int, int, float]]:
    for n in (0, 1, 2, 3, 10, 11, 48, 49, 63, 64, 65):
        for all_pairs_at in (3, 10, max(n, 3)):
            yield 1, n, all_pairs_at, 8000.0
    for _ in range(120):
        rows = int(rng.integers(1, 4))
        n = int(rng.integers(0, 3000)) // rows
        at = int(rng.choice([3, 10, 16]))
        yield rows, n, at, float(rng.choice([0.0, 1.0, 100.0, 8000.0, 230000.0, 1e12]))


def test_the_plan_orders_every_row_of_any_size_under_any_round_cost(
    rng: np.random.Generator,
) -> None:
    for rows, n, all_pairs_at, round_cost in draw_sizes(rng):
        keys = np.array([rng.permutation(n) for _ in range(rows)], np.int64).reshape(rows, n)
        order, _ = run_plan(keys, all_pairs_at, round_cost)
        want = np.argsort(keys, axis=1) + np.arange(rows)[:, None] * n
        assert np.array_equal(order, want), (rows, n, all_pairs_at, round_cost)


@pytest.mark.parametrize("all_pairs_at", (-1, 0, 1, 2))
def test_segments_too_small_to_sample_are_finished_or_refused(
    all_pairs_at: int, rng: np.random.Generator
) -> None:
    for n in range(2, 100):
        keys = rng.permutation(n)[None]
        try:
            with SortPlan(1, n, all_pairs_at, 1.0) as plan:
                for left, right in plan.next_levels():
                    assert max(left.max(), right.max()) < n, "asks for a position that is not there"
                    assert min(left.min(), right.min()) >= 0
                    plan.add_answers(pack_answers(keys[0][left] < keys[0][right]))
                assert plan.final_order().tolist() == np.argsort(keys[0]).tolist()
        except UsageError:
            return


def test_a_plan_of_all_pairs_takes_one_level(rng: np.random.Generator) -> None:
    _, counts = run_plan(rng.permutation(300)[None], 300, 8000.0)
    assert counts == [300 * 299 // 2]


def test_comparisons_stay_near_n_log_n_where_rounds_are_free(rng: np.random.Generator) -> None:
    n = 4096
    _, counts = run_plan(rng.permutation(n)[None], 10, 1.0)
    print("comparisons per n log2 n:", sum(counts) / (n * math.log2(n)))
    assert sum(counts) <= 1.6 * n * math.log2(n)


def test_dear_rounds_buy_fewer_levels(rng: np.random.Generator) -> None:
    keys = rng.permutation(4096)[None]
    assert len(run_plan(keys, 10, 1e6)[1]) < len(run_plan(keys, 10, 1.0)[1])


def through_network(n: int, rows: Array) -> Array:
    rows = rows.copy()
    for low, high in odd_even_merge(n):
        a, b = rows[:, low], rows[:, high]
        rows[:, low], rows[:, high] = np.minimum(a, b), np.maximum(a, b)
    return rows


@pytest.mark.parametrize("n", range(11))
def test_the_network_sorts_all_zero_one_inputs_and_so_all_inputs(n: int) -> None:
    rows = np.array(list(itertools.product((0, 1), repeat=n)), np.int8).reshape(2**n, n)
    assert np.array_equal(through_network(n, rows), np.sort(rows, axis=1))


def test_the_network_sorts_permutations_of_larger_sizes(rng: np.random.Generator) -> None:
    for n in (11, 64, 100, 257):
        rows = np.array([rng.permutation(n) for _ in range(20)])
        assert np.array_equal(through_network(n, rows), np.sort(rows, axis=1))


@pytest.mark.parametrize("n", (2, 3, 10, 100, 1000))
def test_the_comparators_of_a_layer_are_disjoint_and_within_range(n: int) -> None:
    for low, high in odd_even_merge(n):
        used = np.concatenate([low, high])
        assert len(np.unique(used)) == len(used)
        assert used.min() >= 0
        assert used.max() < n
        assert (low < high).all()


# Keys outside the promised range (|key| < 2^62), which a client is free to send, compare in a
# circle: a < b < c < a. Their order is meaningless, but memory must stay valid.
INCONSISTENT = r"""
#include "protocols/kernels/core/sort_plan.h"
#include <random>
int main(int, char** argv) {
  std::mt19937_64 random(std::stoull(argv[1]));
  const int mode = std::stoi(argv[2]);
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t n = 11 + random() % 300;
    std::vector<uint64_t> keys(n);
    for (auto& k : keys) k = random();
    tfe_bench::SortPlan plan(1, n, 10, trial % 2 ? 8000.0 : 1.0);
    int levels = 0;
    while (plan.Next()) {
      if (++levels > 5 * n) return 3;  // endless
      std::vector<uint64_t> bits(plan.left().size() / 64 + 1);
      for (size_t i = 0; i < plan.left().size(); ++i) {
        const int32_t a = plan.left()[i], b = plan.right()[i];
        if (a < 0 || b < 0 || a >= n || b >= n) return 4;  // asks for a position that is not there
        const bool circular = static_cast<int64_t>(keys[a] - keys[b]) < 0;
        const bool less = mode == 0 ? circular : mode == 1 ? true : random() & 1;
        if (less) bits[i / 64] |= uint64_t{1} << (i % 64);
      }
      plan.Answer(bits.data());
    }
    std::vector<bool> seen(n);
    for (int32_t at : plan.order()) {
      if (at < 0 || at >= n || seen[at]) return 5;  // not a permutation
      seen[at] = true;
    }
  }
}
"""


@pytest.mark.parametrize("profile", sorted(sort.ROUND_COST))
@pytest.mark.parametrize(("rows", "n"), [(1, 10), (1, 1000), (1, 30_000), (300, 30), (30, 400)])
def test_no_level_has_more_pairs_than_the_declared_size(
    rows: int, n: int, profile: str, rng: np.random.Generator
) -> None:
    keys = rng.random(rows * n)
    with SortPlan(rows, n, 10, sort.sort_round_cost(profile)) as plan:
        for left, right in plan.next_levels():
            assert len(left) <= sort.max_sort_array_words(rows, n, 1, "quick", profile)
            bits = np.pad(keys[left] < keys[right], (0, -len(left) % 64))
            plan.add_answers(np.packbits(bits, bitorder="little").view(np.int64))


def test_more_pairs_than_memory_holds_are_refused() -> None:
    with (
        SortPlan(1, 1 << 22, 1 << 22, 20_000.0) as plan,
        raises(UsageError, "out-of-memory", operation="sort"),
    ):
        next(plan.next_levels())


@pytest.mark.skipif(shutil.which("g++") is None, reason="wants g++")
def test_contradictory_answers_end_the_plan_in_some_permutation_and_harm_no_memory(
    tmp_path: Path, seed: int
) -> None:
    program = tmp_path / "inconsistent"
    core = [str(ROOT / "protocols/kernels/core" / f"{name}.cc") for name in ("sort_plan", "memory")]
    flags = ["-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(
        ["g++", *flags, "-I", str(ROOT), "-x", "c++", "-", *core, "-o", str(program)],
        input=INCONSISTENT.encode(),
        check=True,
    )
    failed = []
    for mode, name in enumerate(("circular keys", "all less", "random bits")):
        done = subprocess.run(
            [str(program), str(seed), str(mode)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            error = [line for line in done.stderr.splitlines() if "ERROR" in line]
            failed.append(f"{name}: exit code {done.returncode} {error}")
    assert failed == []
