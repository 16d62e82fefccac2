"""Shape-only (symbolic) tensors: their shapes, the time at which they are known, and moves of them.

With these a protocol is counted (counting.py) without TensorFlow. Maps of them are defined in
tensor_ops.py, next to those of tensors.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfe_bench.protocols.session.message_graph import NO_SOURCES, Sources

_ZERO = np.zeros((), np.int8)


class Shape(tuple[int, ...]):
    """A known shape with the methods of a tf.TensorShape that protocols use."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self)

    def as_list(self) -> list[int]:
        """Return the sizes."""
        return list(self)

    def num_elements(self) -> int:
        """Return the product of the sizes."""
        return math.prod(self)

    def is_fully_defined(self) -> bool:
        """Return True: all sizes are known."""
        return True

    def is_compatible_with(self, other: Sequence[int | None]) -> bool:
        """Return whether another shape may be equal to this one."""
        return len(self) == len(other) and all(
            b is None or a == b for a, b in zip(self, other, strict=True)
        )

    def __getitem__(self, key: Any) -> Any:
        selected = super().__getitem__(key)
        return Shape(selected) if isinstance(key, slice) else selected


@dataclass(frozen=True, eq=False)
class SymbolicTensor:
    """A tensor without elements: its shape, and the time at which it is known.

    Attributes:
        rounds, with_dealing: messages on the longest chain that leads to it, as cost.Cost counts
            them.
        masks: messages that the dealer waited for before it knew the masks (with_dealing; 0: it
            generates them itself).
        first: evaluator that knows it a round before the other, 1: E1, -1: E2; 0: both know it at
            the same time.
        work: multiplications of words that it takes, if it is a sum of products.
        sources, mask_sources: exchanges of a message graph that lead to it and, at the dealer, to
            its masks; empty if no graph is recorded.
    """

    shape: Shape
    rounds: int = 0
    with_dealing: int = 0
    masks: int = 0
    work: int = 0
    first: int = 0
    sources: Sources = NO_SOURCES
    mask_sources: Sources = NO_SOURCES

    # NumPy leaves `array + symbolic` to the symbolic side.
    __array_ufunc__ = None

    def like(self, shape: Sequence[int]) -> SymbolicTensor:
        """Return a tensor of another shape that is known at the same time."""
        return replace(self, shape=Shape(int(n) for n in shape))

    def with_exchanged_masks(self) -> SymbolicTensor:
        """Return the tensor under a dealer for whom one of the masks is the exchanged value."""
        return replace(
            self,
            masks=max(self.masks, self.with_dealing),
            mask_sources=self.mask_sources | self.sources,
        )

    def _combine_with(self, other: Any) -> SymbolicTensor:
        shape = np.broadcast_shapes(self.shape, np.shape(make_symbolic_placeholder(other)))
        return record_moved_words(symbolic_result(shape, self, other))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _combine_with

    def __neg__(self) -> SymbolicTensor:
        return record_moved_words(self)

    def __getitem__(self, key: Any) -> SymbolicTensor:
        return record_moved_words(self.like(make_symbolic_placeholder(self)[key].shape))


class _MovedWordCounter(threading.local):
    """The thread's counter of the words that maps of symbolic tensors move."""

    count: Callable[[int], None] | None = None


_word_counter = _MovedWordCounter()


@contextlib.contextmanager
def count_moved_words(count: Callable[[int], None]) -> Iterator[None]:
    """Call `count` with the words that each map of symbolic tensors in this thread moves."""
    before, _word_counter.count = _word_counter.count, count
    try:
        yield
    finally:
        _word_counter.count = before


def record_moved_words(result: SymbolicTensor, *operands: SymbolicTensor) -> SymbolicTensor:
    """Count a map's words, those of its largest operand or result, and return the result."""
    if _word_counter.count is not None:
        _word_counter.count(max(tensor.shape.num_elements() for tensor in (result, *operands)))
    return result


def make_symbolic_placeholder(value: Any) -> Any:
    """Return an array of a symbolic tensor's shape without memory; return others unchanged."""
    return np.broadcast_to(_ZERO, value.shape) if isinstance(value, SymbolicTensor) else value


def symbolic_result(shape: Sequence[int], *operands: Any, work: int = 0) -> SymbolicTensor:
    """Return a tensor that is known as soon as all operands are known.

    Args:
        operands: symbolic tensors; others are known from the beginning.
        work: multiplications of the result.
    """
    rounds = with_dealing = masks = 0
    e1 = e2 = -1
    sources = mask_sources = NO_SOURCES
    for v in operands:  # (a plain loop: counting a plan calls this for each local map)
        if isinstance(v, SymbolicTensor):
            rounds, with_dealing = max(rounds, v.rounds), max(with_dealing, v.with_dealing)
            masks = max(masks, v.masks)
            e1, e2 = max(e1, v.rounds - (v.first == 1)), max(e2, v.rounds - (v.first == -1))
            if v.sources:
                sources, mask_sources = sources | v.sources, mask_sources | v.mask_sources
    return SymbolicTensor(
        Shape(int(n) for n in shape),
        rounds,
        with_dealing,
        masks,
        work,
        e2 - e1,
        sources,
        mask_sources,
    )
