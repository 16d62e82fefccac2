"""A selection finds the elements of its ranks, by about as many comparisons as are expected."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tfe_bench.errors import RangeError
from tfe_bench.protocols.order import select, sort
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

Array = np.ndarray[Any, Any]


def selected(
    monkeypatch: pytest.MonkeyPatch, answer: Any, n: int, ranks: list[int], profile: str
) -> tuple[Array, int]:
    """Positions, and the number of comparisons, with answers in the place of the parties'."""
    made = 0

    def comparer(*_: Any) -> Any:
        def compared(left: Array, right: Array) -> Array:
            nonlocal made
            made += len(left)
            bits = np.packbits(answer(left, right), bitorder="little")
            return np.resize(bits, -(-len(bits) // 8) * 8).view(np.int64)

        return compared

    monkeypatch.setattr(sort, "comparer", comparer)
    keys = cast(Shared, np.zeros((1, n)))
    return select.positions_of(cast(Party, None), keys, ranks, profile), made


@pytest.mark.parametrize("profile", ["local", "wan"])
@pytest.mark.parametrize("n", [2, 283, 284, 1000, 1 << 15, 1 << 17])
def test_any_ranks_are_found(
    n: int, profile: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = rng.permutation(n)

    def answer(a: Array, b: Array) -> Array:
        return np.asarray(rank[a] < rank[b])

    for ranks in ([0], [n - 1], [n // 2, 0, n // 2], [n // 10, n // 2, n - 1 - n // 10]):
        found, _ = selected(monkeypatch, answer, n, ranks, profile)
        assert rank[found].tolist() == ranks
    _, made = selected(monkeypatch, answer, n, [n // 2], profile)
    if n > 1 << 14 and profile == "local":
        assert sum(select._expected(n, 1, profile)) == pytest.approx(made, rel=0.3)


@pytest.mark.parametrize("n", [3, 1000])
def test_answers_of_no_order_end_in_an_error(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RangeError, match="contradict"):
        selected(monkeypatch, lambda a, b: (b - a) % 3 == 1, n, [n // 2], "local")
