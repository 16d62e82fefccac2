"""A selection finds the elements at its ranks, with about as many comparisons as expected."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tests.refusals import raises
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.order import select, sort
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]


def run_selection(
    monkeypatch: pytest.MonkeyPatch, answer: Any, n: int, ranks: list[int] | int, profile: str
) -> tuple[Array, int]:
    """Return positions, and the number of comparisons, with answers in the place of the parties'.

    Args:
        ranks: ranks, or the number of first elements.
    """
    comparisons = 0

    def comparer(*_: Any) -> Any:
        def compared(left: Array, right: Array) -> Array:
            nonlocal comparisons
            comparisons += len(left)
            bits = np.packbits(answer(left, right), bitorder="little")
            return np.resize(bits, -(-len(bits) // 8) * 8).view(np.int64)

        return compared

    monkeypatch.setattr(sort, "make_comparer", comparer)
    keys = cast(Shared, np.zeros((1, n)))
    if isinstance(ranks, int):
        return select.select_first(cast(Party, None), keys, ranks, profile), comparisons
    return select.select_ranks(cast(Party, None), keys, ranks, profile), comparisons


def draw_ranks(rng: np.random.Generator, n: int) -> tuple[Array, Any]:
    """Return ranks of elements, and the answers by them."""
    rank = rng.permutation(n)
    return rank, lambda a, b: rank[a] < rank[b]


@pytest.mark.parametrize("profile", ["local", "wan"])
@pytest.mark.parametrize("n", [2, 283, 284, 1000, 1 << 15, 1 << 17])
def test_any_ranks_are_found(
    n: int, profile: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, answer = draw_ranks(rng, n)
    for ranks in ([0], [n - 1], [n // 2, 0, n // 2], [n // 10, n // 2, n - 1 - n // 10]):
        positions, _ = run_selection(monkeypatch, answer, n, ranks, profile)
        assert rank[positions].tolist() == ranks
    _, comparisons = run_selection(monkeypatch, answer, n, [n // 2], profile)
    if n > 1 << 14 and profile == "local":
        assert sum(select._average_levels(n, 1, profile)) == pytest.approx(comparisons, rel=0.3)


@pytest.mark.parametrize("n", [3, 1000])
def test_answers_of_no_order_end_in_an_error(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(RangeError, "contradictory-comparisons"):
        run_selection(monkeypatch, lambda a, b: (b - a) % 3 == 1, n, [n // 2], "local")


@pytest.mark.parametrize("profile", ["local", "wan"])
@pytest.mark.parametrize("n", [1, 2, 283, 284, 1000, 1 << 15])
def test_the_first_ones_are_found_in_their_order(
    n: int, profile: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, answer = draw_ranks(rng, n)
    for count in sorted({1, min(5, n), -(-n // 20), -(-n // 3), n}):
        positions, comparisons = run_selection(monkeypatch, answer, n, count, profile)
        assert rank[positions].tolist() == list(range(count))
        if n > 1 << 14 and select.is_selection_cheaper(n, count, profile):
            cut = select._plan_quickselect_cut(n, count, profile)
            assert cut is not None
            due = select._average_quickselect_cut_levels(n, *cut, profile)
            # The number of elements below a sample's element varies by this factor.
            assert sum(due) == pytest.approx(comparisons, rel=0.3 if profile == "local" else 1)
            assert comparisons < sum(select._average_sort_levels(n, profile))
    with raises(UsageError, "number-out-of-range", received=n + 1):
        run_selection(monkeypatch, answer, n, n + 1, profile)


def test_a_sample_of_the_least_ones_sorts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    n, count = 1000, 50
    assert select.is_selection_cheaper(n, count)
    positions, comparisons = run_selection(monkeypatch, lambda a, b: a < b, n, count, "local")
    assert positions.tolist() == list(range(count))
    cut = select._plan_quickselect_cut(n, count, "local")
    assert (
        cut is not None
        and cut[1] < count
        and comparisons > sum(select._average_sort_levels(n, "local"))
    )


def test_a_selection_pays_where_few_of_many_are_asked_for() -> None:
    assert (
        select.is_selection_cheaper(1 << 20, 5)
        and select.is_selection_cheaper(1 << 20, 1 << 16)
        and select.is_selection_cheaper(1000, 10)
    )
    assert (
        not select.is_selection_cheaper(283, 1)
        and not select.is_selection_cheaper(1000, 900)
        and not select.is_selection_cheaper(1, 1)
    )
    cut = select._plan_quickselect_cut(1 << 20, 5, "local")
    assert cut is not None
    cut_cost, all_of = (
        select._average_quickselect_cut_levels(1 << 20, *cut, "local"),
        select._average_sort_levels(1 << 20, "local"),
    )
    assert sum(cut_cost) < 0.06 * sum(all_of) and len(cut_cost) < 0.5 * len(all_of)
