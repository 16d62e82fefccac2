"""Protocols that are repeated: a loop in the graph, whose turns are numbered.

The first turn is traced in the graph itself.  It tells what is carried on, and which of a turn's
messages its result waits for: the channel counts rounds along these (Trace.dependencies), and in
the body of a loop nobody would know what the turn before has received.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from tfe_bench.errors import ProtocolError
from tfe_bench.protocols.session import local, ops
from tfe_bench.protocols.session.counting import Counting, Mark
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    import tensorflow as tf

    from tfe_bench.protocols.session.numbering import Trace

# (turn, values) -> (values, what is kept of the turn or nothing).
Turn = Callable[[Any, Sequence[Shared]], tuple[Sequence[Shared], Shared | None]]
_FIELDS = ("m", "l1", "l2")


class Noting(Protocol):
    """What collects a digest in every turn (range_check.Watch)."""

    digest: Any


def repeated(
    party: Party, count: int, turn: Turn, values: Sequence[Shared], noting: Noting | None = None
) -> tuple[list[Shared], Shared | None]:
    """turn(i, values) for i = 0, 1, ..., count - 1, each of the values that the one before gave.

    Args:
        count: at least 1.
        turn: gives values of the shapes, rings and scales that it takes, but in the first turn,
            whose values may be of others.
        noting: of all turns.

    Returns:
        The last values, and what was kept of all turns, [count, ...].
    Rounds and bits: those of all turns.
    """
    if isinstance(party, Counting):
        return _counted(party, count, turn, values, noting)
    trace = party._trace
    if trace is None:
        raise ProtocolError(
            "What is repeated runs inside party.function. Received: a call outside."
        )
    before = trace.receives
    first, kept = turn(0, values)
    if count == 1:
        return list(first), None if kept is None else kept.map(lambda a: local.at(a, None))
    return _Loop(party, trace, count, turn, first, kept, noting, before).run()


# Turns that are counted one by one: from the second on each is as the one before.
_COUNTED = 3


def _counted(
    party: Counting, count: int, turn: Turn, values: Sequence[Shared], noting: Noting | None
) -> tuple[list[Shared], Shared | None]:
    more, kept = max(count - _COUNTED, 0), None
    marks: list[Mark] = []
    chains: list[list[local.Abstract]] = []

    def chain() -> list[local.Abstract]:
        held = [v.m for v in values] + ([] if kept is None else [kept.m])
        return held + ([] if noting is None else [noting.digest])

    for i in range(min(count, _COUNTED)):
        values, kept = turn(i, values)
        marks.append(party.mark())
        chains.append(chain())
    found = list(values)
    if more:
        party.again(marks[-2], more)
        pairs = zip(chains[-1], chains[-2], strict=True)
        late = iter([_later(a, b, more) for a, b in pairs])
        found = [replace(v, m=next(late)) for v in found]
        kept = None if kept is None else replace(kept, m=next(late))
        if noting is not None:
            noting.digest = next(late)
    if kept is not None:
        kept = kept.map(lambda a: a.like([count, *a.shape]))
    return found, kept


def _later(a: local.Abstract, before: local.Abstract, times: int) -> local.Abstract:
    """A tensor that comes so many turns later, as much as it came later than in the one before."""
    rounds, with_dealing, masks = (
        getattr(a, n) + times * (getattr(a, n) - getattr(before, n))
        for n in ("rounds", "with_dealing", "masks")
    )
    first = before.first if times % 2 else a.first
    return replace(a, rounds=rounds, with_dealing=with_dealing, masks=masks, first=first)


def _parts(values: Sequence[Shared]) -> list[tf.Tensor]:
    return [a for v in values for k in _FIELDS if (a := getattr(v, k)) is not None]


def _like(values: Sequence[Shared], parts: Sequence[tf.Tensor]) -> list[Shared]:
    """The values with other tensors."""
    left = iter(parts)
    return [v.map(lambda _: next(left)) for v in values]


class _Loop:
    """The turns behind the first one."""

    def __init__(
        self,
        party: Party,
        trace: Trace,
        count: int,
        turn: Turn,
        first: Sequence[Shared],
        kept: Shared | None,
        noting: Noting | None,
        before: int,
    ) -> None:
        self._party, self._trace, self._count, self._turn = party, trace, count, turn
        self._first, self._kept, self._before = list(first), kept, before
        self._noting = None if noting is None or noting.digest is None else noting
        self._values = self._waits(_parts(self._with(first, kept)))
        self._digest = self._waits([self._noting.digest] if self._noting else [])

    @staticmethod
    def _with(values: Sequence[Shared], kept: Shared | None) -> list[Shared]:
        return [*values, *([] if kept is None else [kept])]

    def _waits(self, tensors: Sequence[tf.Tensor]) -> tuple[int, int]:
        """What tensors of the first turn wait for, and the bit of the last of its own messages."""
        mask = 0
        for a in tensors:
            mask |= int.from_bytes(self._trace.dependencies(a), "little")
        last = (mask >> self._before).bit_length()
        return mask, (1 << last) >> 1

    def run(self) -> tuple[list[Shared], Shared | None]:
        """The loop."""
        import tensorflow as tf

        first, kept = self._first, self._kept
        arrays = [
            tf.TensorArray(tf.int64, self._count, element_shape=a.shape).write(0, a)
            for a in ([] if kept is None else _parts([kept]))
        ]
        digest = [self._noting.digest] if self._noting else []
        start = (tf.constant(1, tf.int64), tuple(_parts(first)), tuple(arrays), tuple(digest))
        base = self._trace.receives
        _, held, arrays, digest = tf.while_loop(lambda i, *_: i < self._count, self._body, start)
        values = [tf.identity(a) for a in [*held, *(a.stack() for a in arrays)]]
        self._told(values, self._values, base)
        if self._noting:
            self._noting.digest = tf.identity(digest[0])
            self._told([self._noting.digest], self._digest, base)
        after = _like(self._with(first, kept), values)
        return after[: len(first)], None if kept is None else after[-1]

    def _body(self, i: Any, held: Any, arrays: Any, digest: Any) -> Any:
        import tensorflow as tf

        base = self._trace.receives
        self._told(held, self._values, base)
        self._told(digest, self._digest, base)
        with self._party.iteration(i):
            self._brake()
            if self._noting:
                self._noting.digest = digest[0]
            values, kept = self._turn(i, _like(self._first, held))
            if self._noting:
                digest = (self._noting.digest,)
        self._check(values, kept)
        after = [tf.ensure_shape(a, b.shape) for a, b in zip(_parts(values), held, strict=True)]
        rows = [] if kept is None else _parts([kept])
        arrays = [a.write(tf.cast(i, tf.int32), r) for a, r in zip(arrays, rows, strict=True)]
        return i + 1, tuple(after), tuple(arrays), tuple(digest)

    def _check(self, values: Sequence[Shared], kept: Shared | None) -> None:
        """That a turn gives what the first one gave."""
        pairs = zip(self._with(self._first, self._kept), self._with(values, kept), strict=True)
        for a, b in pairs:
            same = (a.dealer, a.fractional_bits, a.bits) == (b.dealer, b.fractional_bits, b.bits)
            if not same:
                raise ProtocolError(
                    f"A turn gives what the first one gave. Received: {a!r}, {b!r}."
                )

    def _brake(self) -> None:
        """Keeps the dealer from making the material of all turns at once."""
        if self._party.index == self._first[0].dealer:
            gate = ops.module().tfe_bench_gate
            number = self._party._next_site
            self._trace.iteration_ctx = gate(call=self._trace.iteration_ctx, site=number)

    def _told(self, tensors: Sequence[tf.Tensor], waits: tuple[int, int], base: int) -> None:
        """Says what tensors wait for: what the first turn's do, and the last message of another."""
        mask, last = waits
        for a in tensors:
            self._trace.deps[id(a.op)] = mask | last << base
            self._trace.keep.append(a.op)
