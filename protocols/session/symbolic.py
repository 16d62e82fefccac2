"""Tensors that are not there: their shapes, when they would be known, and what moves them.

With these a protocol is counted (counting.py) where there is no TensorFlow; the maps of them stand
in local.py, beside those of tensors.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_ZERO = np.zeros((), np.int8)


class Shape(tuple[int, ...]):
    """A known shape, with what protocols ask a tf.TensorShape for."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self)

    def as_list(self) -> list[int]:
        """The sizes."""
        return list(self)

    def num_elements(self) -> int:
        """Their product."""
        return math.prod(self)

    def is_fully_defined(self) -> bool:
        """Yes."""
        return True

    def is_compatible_with(self, other: Sequence[int | None]) -> bool:
        """Whether another shape may be the same."""
        return len(self) == len(other) and all(
            b is None or a == b for a, b in zip(self, other, strict=True)
        )

    def __getitem__(self, key: Any) -> Any:
        selected = super().__getitem__(key)
        return Shape(selected) if isinstance(key, slice) else selected


@dataclass(frozen=True, eq=False)
class SymbolicTensor:
    """A tensor that is not there: its shape, and when it would be known.

    Attributes:
        rounds, with_dealing: messages on the longest chain that leads to it, as cost.Cost counts
        them. masks: those that the dealer waited for who knows its masks (with_dealing; 0: it made
        them).
        first: who knows it a round before the other, 1: E1, -1: E2; 0: they know it together.
        work: multiplications of words that it takes, where it is a sum of products.
    """

    shape: Shape
    rounds: int = 0
    with_dealing: int = 0
    masks: int = 0
    work: int = 0
    first: int = 0

    # numpy leaves `array + abstract` to the abstract side
    __array_ufunc__ = None

    def like(self, shape: Sequence[int]) -> SymbolicTensor:
        """Another shape, known at the same time."""
        return replace(self, shape=Shape(int(n) for n in shape))

    def _combine_with(self, other: Any) -> SymbolicTensor:
        shape = np.broadcast_shapes(self.shape, np.shape(placeholder_array(other)))
        return record_moved(symbolic_result(shape, self, other))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _combine_with

    def __neg__(self) -> SymbolicTensor:
        return record_moved(self)

    def __getitem__(self, key: Any) -> SymbolicTensor:
        return record_moved(self.like(placeholder_array(self)[key].shape))


class _WordCounter(threading.local):
    """Of the words that maps of Abstract tensors move."""

    count: Callable[[int], None] | None = None


_word_counter = _WordCounter()


@contextlib.contextmanager
def count_moved_words(count: Callable[[int], None]) -> Iterator[None]:
    """Has the thread's maps of Abstract tensors say how many words each of them moves."""
    before, _word_counter.count = _word_counter.count, count
    try:
        yield
    finally:
        _word_counter.count = before


def record_moved(result: SymbolicTensor, *operands: SymbolicTensor) -> SymbolicTensor:
    """What a map makes, counted: the words of the largest of what it reads and writes."""
    if _word_counter.count is not None:
        _word_counter.count(max(tensor.shape.num_elements() for tensor in (result, *operands)))
    return result


def placeholder_array(value: Any) -> Any:
    """An array of that shape that takes no memory; what is no Abstract as it is."""
    return np.broadcast_to(_ZERO, value.shape) if isinstance(value, SymbolicTensor) else value


def symbolic_result(shape: Sequence[int], *operands: Any, work: int = 0) -> SymbolicTensor:
    """What is known as soon as all that is given: Abstract tensors, and others that always are.

    Args:
        work: of the result.
    """
    symbolic = [v for v in operands if isinstance(v, SymbolicTensor)]
    rounds, with_dealing, masks = (
        max((getattr(v, k) for v in symbolic), default=0)
        for k in ("rounds", "with_dealing", "masks")
    )
    e1, e2 = (max((v.rounds - (v.first == k) for v in symbolic), default=0) for k in (1, -1))
    return SymbolicTensor(Shape(int(n) for n in shape), rounds, with_dealing, masks, work, e2 - e1)
