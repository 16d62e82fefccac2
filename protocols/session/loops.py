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
from tfe_bench.protocols.session import ops, tensor_ops
from tfe_bench.protocols.session.counting import CostParty, CostSnapshot
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    import tensorflow as tf

    from tfe_bench.protocols.session.numbering import Trace

# (turn, values) -> (values, what is kept of the turn or nothing).
Iteration = Callable[[Any, Sequence[Shared]], tuple[Sequence[Shared], Shared | None]]
_FIELDS = ("m", "l1", "l2")


class DigestCarrier(Protocol):
    """What collects a digest in every turn (range_check.Watch)."""

    digest: Any


def repeat_protocol(
    party: Party,
    count: int,
    iteration: Iteration,
    values: Sequence[Shared],
    monitor: DigestCarrier | None = None,
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
    if isinstance(party, CostParty):
        return _count_iterations(party, count, iteration, values, monitor)
    trace = party._trace
    if trace is None:
        raise ProtocolError(
            "What is repeated runs inside party.function. Received: a call outside."
        )
    first_receive = trace.receives
    first, kept = iteration(0, values)
    if count == 1:
        return list(first), None if kept is None else kept.map(
            lambda a: tensor_ops.strided_slice(a, None)
        )
    return _Loop(party, trace, count, iteration, first, kept, monitor, first_receive).build_loop()


# Turns that are counted one by one: from the second on each is as the one before.
_COUNTED = 3


def _count_iterations(
    party: CostParty,
    count: int,
    iteration: Iteration,
    values: Sequence[Shared],
    monitor: DigestCarrier | None,
) -> tuple[list[Shared], Shared | None]:
    uncounted, kept = max(count - _COUNTED, 0), None
    snapshots: list[CostSnapshot] = []
    carried: list[list[tensor_ops.SymbolicTensor]] = []

    def list_carried() -> list[tensor_ops.SymbolicTensor]:
        tensors = [v.m for v in values] + ([] if kept is None else [kept.m])
        return tensors + ([] if monitor is None else [monitor.digest])

    for i in range(min(count, _COUNTED)):
        values, kept = iteration(i, values)
        snapshots.append(party.take_snapshot())
        carried.append(list_carried())
    results = list(values)
    if uncounted:
        party.repeat(snapshots[-2], uncounted)
        pairs = zip(carried[-1], carried[-2], strict=True)
        later_tensors = iter([_extrapolate_rounds(a, b, uncounted) for a, b in pairs])
        results = [replace(v, m=next(later_tensors)) for v in results]
        kept = None if kept is None else replace(kept, m=next(later_tensors))
        if monitor is not None:
            monitor.digest = next(later_tensors)
    if kept is not None:
        kept = kept.map(lambda a: a.like([count, *a.shape]))
    return results, kept


def _extrapolate_rounds(
    a: tensor_ops.SymbolicTensor, previous: tensor_ops.SymbolicTensor, times: int
) -> tensor_ops.SymbolicTensor:
    """A tensor that comes so many turns later, as much as it came later than in the one before."""
    rounds, with_dealing, masks = (
        getattr(a, n) + times * (getattr(a, n) - getattr(previous, n))
        for n in ("rounds", "with_dealing", "masks")
    )
    first = previous.first if times % 2 else a.first
    return replace(a, rounds=rounds, with_dealing=with_dealing, masks=masks, first=first)


def _list_fields(values: Sequence[Shared]) -> list[tf.Tensor]:
    return [a for v in values for k in _FIELDS if (a := getattr(v, k)) is not None]


def _replace_fields(values: Sequence[Shared], parts: Sequence[tf.Tensor]) -> list[Shared]:
    """The values with other tensors."""
    remaining = iter(parts)
    return [v.map(lambda _: next(remaining)) for v in values]


class _Loop:
    """The turns behind the first one."""

    def __init__(
        self,
        party: Party,
        trace: Trace,
        count: int,
        iteration: Iteration,
        first: Sequence[Shared],
        kept: Shared | None,
        monitor: DigestCarrier | None,
        first_receive: int,
    ) -> None:
        self._party, self._trace, self._count, self._iteration = party, trace, count, iteration
        self._first, self._kept, self._first_receive = list(first), kept, first_receive
        self._monitor = None if monitor is None or monitor.digest is None else monitor
        self._value_dependencies = self._find_dependencies(
            _list_fields(self._append_kept(first, kept))
        )
        self._digest_dependencies = self._find_dependencies(
            [self._monitor.digest] if self._monitor else []
        )

    @staticmethod
    def _append_kept(values: Sequence[Shared], kept: Shared | None) -> list[Shared]:
        return [*values, *([] if kept is None else [kept])]

    def _find_dependencies(self, tensors: Sequence[tf.Tensor]) -> tuple[int, int]:
        """What tensors of the first turn wait for, and the bit of the last of its own messages."""
        mask = 0
        for a in tensors:
            mask |= int.from_bytes(self._trace.find_dependencies(a), "little")
        last = (mask >> self._first_receive).bit_length()
        return mask, (1 << last) >> 1

    def build_loop(self) -> tuple[list[Shared], Shared | None]:
        """The loop."""
        import tensorflow as tf

        first, kept = self._first, self._kept
        arrays = [
            tf.TensorArray(tf.int64, self._count, element_shape=a.shape).write(0, a)
            for a in ([] if kept is None else _list_fields([kept]))
        ]
        digest = [self._monitor.digest] if self._monitor else []
        start = (tf.constant(1, tf.int64), tuple(_list_fields(first)), tuple(arrays), tuple(digest))
        base = self._trace.receives
        _, carried, arrays, digest = tf.while_loop(
            lambda i, *_: i < self._count, self._trace_body, start
        )
        values = [tf.identity(a) for a in [*carried, *(a.stack() for a in arrays)]]
        self._set_dependencies(values, self._value_dependencies, base)
        if self._monitor:
            self._monitor.digest = tf.identity(digest[0])
            self._set_dependencies([self._monitor.digest], self._digest_dependencies, base)
        results = _replace_fields(self._append_kept(first, kept), values)
        return results[: len(first)], None if kept is None else results[-1]

    def _trace_body(self, i: Any, carried: Any, arrays: Any, digest: Any) -> Any:
        import tensorflow as tf

        base = self._trace.receives
        self._set_dependencies(carried, self._value_dependencies, base)
        self._set_dependencies(digest, self._digest_dependencies, base)
        with self._party.iteration(i):
            self._gate_dealer()
            if self._monitor:
                self._monitor.digest = digest[0]
            values, kept = self._iteration(i, _replace_fields(self._first, carried))
            if self._monitor:
                digest = (self._monitor.digest,)
        self._check_results(values, kept)
        results = [
            tf.ensure_shape(a, b.shape) for a, b in zip(_list_fields(values), carried, strict=True)
        ]
        rows = [] if kept is None else _list_fields([kept])
        arrays = [a.write(tf.cast(i, tf.int32), r) for a, r in zip(arrays, rows, strict=True)]
        return i + 1, tuple(results), tuple(arrays), tuple(digest)

    def _check_results(self, values: Sequence[Shared], kept: Shared | None) -> None:
        """That a turn gives what the first one gave."""
        pairs = zip(
            self._append_kept(self._first, self._kept), self._append_kept(values, kept), strict=True
        )
        for a, b in pairs:
            same = (a.dealer, a.fractional_bits, a.bits) == (b.dealer, b.fractional_bits, b.bits)
            if not same:
                raise ProtocolError(
                    f"A turn gives what the first one gave. Received: {a!r}, {b!r}."
                )

    def _gate_dealer(self) -> None:
        """Keeps the dealer from making the material of all turns at once."""
        if self._party.index == self._first[0].dealer:
            gate = ops.module().tfe_bench_gate
            number = self._party._next_site
            self._trace.iteration_ctx = gate(call=self._trace.iteration_ctx, site=number)

    def _set_dependencies(
        self, tensors: Sequence[tf.Tensor], dependencies: tuple[int, int], base: int
    ) -> None:
        """Says what tensors wait for: what the first turn's do, and the last message of another."""
        mask, last = dependencies
        for a in tensors:
            self._trace.dependency_masks[id(a.op)] = mask | last << base
            self._trace.kept_ops.append(a.op)
