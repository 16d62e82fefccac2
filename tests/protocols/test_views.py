"""What the parties see does not depend on private values."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tfe_bench.cluster.simulate import simulate
from tfe_bench.errors import TfeBenchError
from tfe_bench.protocols import sort
from tfe_bench.protocols.party import Party
from tfe_bench.protocols.sort_plan import SortPlan

ALPHA = 1e-6
Words = np.ndarray[Any, Any]


@pytest.mark.parametrize("descending", [False, True])
def test_what_a_sort_reveals_does_not_depend_on_the_data_after_a_sort_of_another_shape(
    monkeypatch: pytest.MonkeyPatch, descending: bool
) -> None:
    """[256, 3] and then [384, 2], one pair per row: each revealed bit is a fair coin.

    A second shuffle by the rows of the first shape would leave the low triples before the high
    ones, so that every third pair compares a low key with a high one.
    """
    revealed: list[Words] = []

    class Recording(SortPlan):
        def answer(self, words: Words) -> None:
            packed = np.ascontiguousarray(words).view(np.uint8)
            revealed.append(np.unpackbits(packed, bitorder="little"))
            super().answer(words)

    def program(party: Party, *matrices: Any) -> None:
        for keys in matrices:
            sort.sort(party, keys, algorithm="quick", descending=descending)

    monkeypatch.setattr(sort, "SortPlan", Recording)
    low_high = np.tile([1, 2, 3, 1000, 2000, 3000], 128).reshape(384, 2)
    with contextlib.suppress(TfeBenchError):  # the question here is what was revealed before it
        simulate(program, np.zeros((256, 3), np.int64), low_high)
    assert len(revealed) == 6  # one level of each sort, seen by three parties
    bits = revealed[-1][:384].reshape(128, 3)
    p_values = [stats.binomtest(int(b), 128).pvalue for b in bits.sum(axis=0)]
    assert min(p_values) > ALPHA, f"ones among 128 reveals: {bits.sum(axis=0)}"
