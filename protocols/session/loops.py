"""Repeated protocols: a loop in the graph whose iterations are numbered.

The first iteration is traced in the graph itself. It determines which tensors the loop carries, and
on which of an iteration's messages the result depends. The channel counts rounds along these
dependencies (Trace.find_dependencies); inside the body of a loop the receives of the previous
iteration are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from tfe_bench.errors import ProtocolError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import ops, tensor_ops
from tfe_bench.protocols.session.counting import CostParty, CostSnapshot
from tfe_bench.protocols.session.message_graph import shift_sources
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

if TYPE_CHECKING:
    from tfe_bench.protocols.session.numbering import Trace

# (iteration number, values) -> (values, a value that is kept of this iteration, or None).
Iteration = Callable[[Any, Sequence[Shared]], tuple[Sequence[Shared], Shared | None]]
_FIELDS = ("m", "l1", "l2")


class DigestCarrier(Protocol):
    """An object that updates a digest in every iteration (range_check.RangeMonitor)."""

    digest: Any


def repeat_protocol(
    party: Party,
    count: int,
    iteration: Iteration,
    values: Sequence[Shared],
    monitor: DigestCarrier | None = None,
) -> tuple[list[Shared], Shared | None]:
    """Compute iteration(i, values) for i = 0, ..., count - 1, each on the previous values.

    Args:
        count: at least 1.
        iteration: returns values of the same shapes, rings and scales as its arguments. The first
            iteration alone may return others.
        monitor: updated in all iterations.

    Returns:
        The last values, and the recorded values of all iterations, [count, ...].
    Rounds and bits: those of all iterations.
    """
    if isinstance(party, CostParty):
        return _count_protocol_iterations(party, count, iteration, values, monitor)
    trace = party._trace
    if trace is None:
        raise ProtocolError(
            "A repeated protocol runs inside party.function. Received: a call outside of it. "
            "Wrap the computation: f = party.function(lambda x: ...).",
            code="outside-party-function",
        )
    first_receive = trace.receives
    first, recorded = iteration(0, values)
    if count == 1:
        return list(first), None if recorded is None else recorded.map(
            lambda a: tensor_ops.strided_slice(a, None)
        )
    return _ProtocolLoop(
        party, trace, count, iteration, first, recorded, monitor, first_receive
    ).build_loop()


# Iterations that are counted one by one: each later one costs as much as the last of these.
_COUNTED = 3


def _count_protocol_iterations(
    party: CostParty,
    count: int,
    iteration: Iteration,
    values: Sequence[Shared],
    monitor: DigestCarrier | None,
) -> tuple[list[Shared], Shared | None]:
    uncounted, recorded = max(count - _COUNTED, 0), None
    snapshots: list[CostSnapshot] = []
    carried: list[list[tensor_ops.SymbolicTensor]] = []

    def list_carried_tensors() -> list[tensor_ops.SymbolicTensor]:
        tensors = [v.m for v in values] + ([] if recorded is None else [recorded.m])
        return tensors + ([] if monitor is None else [monitor.digest])

    for i in range(min(count, _COUNTED)):
        values, recorded = iteration(i, values)
        snapshots.append(party.take_snapshot())
        carried.append(list_carried_tensors())
    results = list(values)
    if uncounted:
        begin, end = (snapshot.exchange_count for snapshot in snapshots[-2:])
        party.repeat(snapshots[-2], uncounted)
        pairs = zip(carried[-1], carried[-2], strict=True)
        later_tensors = iter(
            [
                replace(
                    _extrapolate_rounds(a, b, uncounted),
                    sources=shift_sources(a.sources, begin, uncounted * (end - begin)),
                )
                for a, b in pairs
            ]
        )
        results = [replace(v, m=next(later_tensors)) for v in results]
        recorded = None if recorded is None else replace(recorded, m=next(later_tensors))
        if monitor is not None:
            monitor.digest = next(later_tensors)
    if recorded is not None:
        recorded = recorded.map(lambda a: a.like([count, *a.shape]))
    return results, recorded


def _extrapolate_rounds(
    a: tensor_ops.SymbolicTensor, previous: tensor_ops.SymbolicTensor, times: int
) -> tensor_ops.SymbolicTensor:
    """Return a tensor delayed by `times` iterations, each by as much as the last one."""
    rounds, with_dealing, masks = (
        getattr(a, n) + times * (getattr(a, n) - getattr(previous, n))
        for n in ("rounds", "with_dealing", "masks")
    )
    first = previous.first if times % 2 else a.first
    return replace(a, rounds=rounds, with_dealing=with_dealing, masks=masks, first=first)


def list_share_fields(values: Sequence[Shared]) -> list[tf.Tensor]:
    """Return the tensors of all fields that this party holds."""
    return [a for v in values for k in _FIELDS if (a := getattr(v, k)) is not None]


def replace_share_fields(values: Sequence[Shared], parts: Sequence[tf.Tensor]) -> list[Shared]:
    """Return the values with other tensors in their fields."""
    remaining = iter(parts)
    return [v.map(lambda _: next(remaining)) for v in values]


def gate_iteration(party: Party, trace: Trace) -> None:
    """Keep the dealer from dealing for all iterations of a loop at once; for its body."""
    gate = ops.module().tfe_bench_gate
    trace.iteration_ctx = gate(call=trace.iteration_ctx, site=party._next_site)


class _ProtocolLoop:
    """The iterations after the first one."""

    def __init__(
        self,
        party: Party,
        trace: Trace,
        count: int,
        iteration: Iteration,
        first: Sequence[Shared],
        recorded: Shared | None,
        monitor: DigestCarrier | None,
        first_receive: int,
    ) -> None:
        self._party, self._trace, self._count, self._iteration = party, trace, count, iteration
        self._first, self._recorded, self._first_receive = list(first), recorded, first_receive
        self._monitor = None if monitor is None or monitor.digest is None else monitor
        self._value_dependencies = self._find_dependencies(
            list_share_fields(self._append_recorded(first, recorded))
        )
        self._digest_dependencies = self._find_dependencies(
            [self._monitor.digest] if self._monitor else []
        )

    @staticmethod
    def _append_recorded(values: Sequence[Shared], recorded: Shared | None) -> list[Shared]:
        return [*values, *([] if recorded is None else [recorded])]

    def _find_dependencies(self, tensors: Sequence[tf.Tensor]) -> tuple[int, int]:
        """Return the dependencies of tensors of the first iteration, and the bit of its last own
        message.
        """
        mask = 0
        for a in tensors:
            mask |= int.from_bytes(self._trace.find_dependencies(a), "little")
        last = (mask >> self._first_receive).bit_length()
        return mask, (1 << last) >> 1

    def build_loop(self) -> tuple[list[Shared], Shared | None]:
        """Build the loop and return its last values and the recorded ones."""
        first, recorded = self._first, self._recorded
        arrays = [
            tf.TensorArray(tf.int64, self._count, element_shape=a.shape).write(0, a)
            for a in ([] if recorded is None else list_share_fields([recorded]))
        ]
        digest = [self._monitor.digest] if self._monitor else []
        start = (
            tf.constant(1, tf.int64),
            tuple(list_share_fields(first)),
            tuple(arrays),
            tuple(digest),
        )
        base = self._trace.receives
        _, carried, arrays, digest = tf.while_loop(
            lambda i, *_: i < self._count, self._trace_body, start
        )
        values = [tf.identity(a) for a in [*carried, *(a.stack() for a in arrays)]]
        self._set_dependencies(values, self._value_dependencies, base)
        if self._monitor:
            self._monitor.digest = tf.identity(digest[0])
            self._set_dependencies([self._monitor.digest], self._digest_dependencies, base)
        results = replace_share_fields(self._append_recorded(first, recorded), values)
        return results[: len(first)], None if recorded is None else results[-1]

    def _trace_body(self, i: Any, carried: Any, arrays: Any, digest: Any) -> Any:
        base = self._trace.receives
        self._set_dependencies(carried, self._value_dependencies, base)
        self._set_dependencies(digest, self._digest_dependencies, base)
        with self._party.iteration(i):
            if self._party.index == self._first[0].dealer:
                gate_iteration(self._party, self._trace)
            if self._monitor:
                self._monitor.digest = digest[0]
            values, recorded = self._iteration(i, replace_share_fields(self._first, carried))
            if self._monitor:
                digest = (self._monitor.digest,)
        self._check_results(values, recorded)
        results = [
            tf.ensure_shape(a, b.shape)
            for a, b in zip(list_share_fields(values), carried, strict=True)
        ]
        rows = [] if recorded is None else list_share_fields([recorded])
        arrays = [a.write(tf.cast(i, tf.int32), r) for a, r in zip(arrays, rows, strict=True)]
        return i + 1, tuple(results), tuple(arrays), tuple(digest)

    def _check_results(self, values: Sequence[Shared], recorded: Shared | None) -> None:
        """Check that an iteration returns values of the same kind as the first one."""
        pairs = zip(
            self._append_recorded(self._first, self._recorded),
            self._append_recorded(values, recorded),
            strict=True,
        )
        for a, b in pairs:
            same = (a.dealer, a.fractional_bits, a.bits) == (b.dealer, b.fractional_bits, b.bits)
            if not same:
                raise ProtocolError(
                    "Expected each iteration to return values of the same dealer, scale and ring. "
                    f"Received: {a!r}, {b!r}.",
                    code="inconsistent-iteration",
                )

    def _set_dependencies(
        self, tensors: Sequence[tf.Tensor], dependencies: tuple[int, int], base: int
    ) -> None:
        """Set dependencies of tensors: the first iteration's, and another's last message."""
        mask, last = dependencies
        for a in tensors:
            self._trace.dependency_masks[id(a.op)] = mask | last << base
            self._trace.kept_ops.append(a.op)
