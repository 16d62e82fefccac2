"""The public side of quicksort: the pairs to compare next (kernels/core/sort_plan.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfe_bench.errors import RangeError, UsageError
from tfe_bench.protocols.session import ops

Pairs = np.ndarray[Any, np.dtype[np.int32]]


class SortPlan:
    """Levels of comparisons over shuffled positions, and the resulting order.

    Args:
        rows, n: each row's positions r*n .. r*n+n-1 are sorted separately.
        all_pairs_at: segments of at most this size are finished by comparing all pairs.
        round_cost: cost of one more level, counted in comparisons.
    """

    def __init__(self, rows: int, n: int, all_pairs_at: int, round_cost: float) -> None:
        if rows * n >= 2**31:
            raise UsageError(
                f"Expected fewer than 2^31 elements in a sort. Received: {rows} x {n}.",
                code="too-large",
                operation="sort",
                received=f"{rows} x {n}",
                expected="fewer than 2^31 elements",
            )
        self._native = ops.native()
        self._size = rows * n
        self._plan = self._native.plan_new(rows, n, all_pairs_at, float(round_cost))
        if not self._plan:
            raise self._too_large()

    def __enter__(self) -> SortPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self._native.plan_drop(self._plan)
        self._plan = None

    def next_levels(self) -> Iterator[tuple[Pairs, Pairs]]:
        """Yield (left, right) positions; call `add_answers` before the next level.

        Raises:
            UsageError: this host's memory does not hold them.
        """
        left, right = ctypes.c_void_p(), ctypes.c_void_p()
        while count := self._native.plan_next(self._plan, ctypes.byref(left), ctypes.byref(right)):
            if count < 0:
                raise self._too_large()
            yield (
                _view_native_sort_array(left.value, count),
                _view_native_sort_array(right.value, count),
            )

    def _too_large(self) -> UsageError:
        return UsageError(
            f"This host's memory does not hold the comparisons of a sort of {self._size} "
            "elements. Sort fewer at a time, or use another algorithm.",
            code="out-of-memory",
            operation="sort",
            received=self._size,
        )

    def add_answers(self, words: np.ndarray[Any, Any]) -> None:
        """Add packed bits: bit i is set when element left[i] < right[i].

        Raises:
            RangeError: the comparisons contradict each other, because keys violate the range that
                full_range=False or key_bits promises.
        """
        words = np.ascontiguousarray(words)
        status = self._native.plan_answer(self._plan, words.ctypes.data)
        if status == -2:
            raise self._too_large()
        if status != 0:
            raise RangeError(
                "The comparisons contradict each other: keys lie outside the promised "
                "range. Sort them with full_range=True and no key_bits.",
                code="contradictory-comparisons",
                operation="sort",
            )

    def final_order(self) -> Pairs:
        """Return order with order[r*n + i] = position of the element of rank i in row r."""
        if self._size == 0:
            return np.zeros(0, np.int32)
        return _view_native_sort_array(self._native.plan_order(self._plan), self._size).copy()


def _view_native_sort_array(address: int | None, count: int) -> Pairs:
    array = (ctypes.c_int32 * count).from_address(address or 0)
    return np.ctypeslib.as_array(array)


def odd_even_merge(n: int) -> list[tuple[Pairs, Pairs]]:
    """Return comparator layers (low, high) of Batcher's merge exchange (Knuth 5.2.2M)."""
    layers: list[tuple[Pairs, Pairs]] = []
    if n < 2:
        return layers
    top = 1 << ((n - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            i = np.arange(n - d, dtype=np.int32)
            low = i[(i & p) == r]
            if len(low):
                layers.append((low, (low + d).astype(np.int32)))
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return layers
