"""Large tensors in slices: a protocol that treats elements or rows separately runs slice by slice.

Correlated randomness and intermediate values take up to 90 times the memory of an input. The
slices are the iterations of a numbered loop, so that each has masks and messages of its own. They
do not depend on each other, and IN_FLIGHT of them are under way at the same time: rounds of one
overlap with those of others, and the longest chain of messages is that of one slice.

The number of slices follows from counting the protocol (counting.py), and is therefore the same at
all parties.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import numpy as np

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import loops, tensor_ops
from tfe_bench.protocols.session.counting import CostParty, CostReport, Private, count_cost
from tfe_bench.protocols.session.message_graph import shift_sources
from tfe_bench.protocols.session.party import Party
from tfe_bench.protocols.session.sharing import Shared

# (party, slices of the operands) -> the slice of the result.
Protocol = Callable[..., Shared]
Parameters = ParamSpec("Parameters")

# Correlated randomness of a slice in bytes, and slices that are under way: 16 MB in all. That is
# more than a line of 350 Mbit/s delivers within 18 rounds of 20 ms.
SLICE_BYTES = 8 << 20
IN_FLIGHT = 2
# A protocol with less correlated randomness runs at once.
MIN_SLICED_BYTES = 32 << 20
# Operands with fewer elements are not counted.
_MIN_SLICED_ELEMENTS = 1 << 13
# Packed bits of this number of elements fill whole words.
_ALIGNMENT = 64
# Of the largest array: a value, messages made from it, and those that are under way.
_COPIES = 4
# What a dealer may be ahead of its receiver (session.h, kMaxAhead).
_AHEAD_BYTES = 32 << 20


def estimate_memory(largest: int) -> int:
    """Return approximate bytes at a party, besides its inputs, for a counted protocol.

    Args:
        largest: words of its largest array (`CostReport.largest`): that of one slice, or a result,
            where the protocol runs in slices.
    """
    under_way = min(16 * largest, _AHEAD_BYTES + IN_FLIGHT * SLICE_BYTES)
    return 8 * _COPIES * largest + under_way


@dataclass(frozen=True)
class SlicePlan:
    """Slices of equal length.

    The last one overlaps with the one before it. Results that are summed must not overlap: the
    rows after the last whole slice follow the loop.

    Attributes:
        rows: elements or rows of an operand.
        length: those of a slice.
        row_shape: shape of a row; () for elements.
        result_shape: shape of the result of a slice.
        is_sum: the result is the sum of those of the slices, not one row for each row.
    """

    rows: int
    length: int
    row_shape: tuple[int, ...]
    result_shape: tuple[int, ...]
    is_sum: bool = False

    @property
    def slice_count(self) -> int:
        """Number of slices."""
        return self.rows // self.length if self.is_sum else -(-self.rows // self.length)

    @property
    def remaining_rows(self) -> int:
        """Number of rows that follow the loop."""
        return self.rows % self.length if self.is_sum else 0


def slice_elementwise(
    protocol: Callable[Concatenate[Party, Parameters], Shared],
) -> Callable[Concatenate[Party, Parameters], Shared]:
    """Run a protocol in slices where its private arguments, all of one shape, are large.

    Public arguments are numbers or plans; with an array among them the protocol runs at once.
    """

    @functools.wraps(protocol)
    def run_protocol(
        party: Party, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Shared:
        places = [i for i, value in enumerate(args) if isinstance(value, Shared)]
        public_args = [value for value in args if not isinstance(value, Shared)]

        run_with: Callable[..., Shared] = protocol

        def run_slice(party: Party, *parts: Shared) -> Shared:
            arguments: list[Any] = list(args)
            for place, part in zip(places, parts, strict=True):
                arguments[place] = part
            return run_with(party, *arguments, **kwargs)

        if not places or any(_is_tensor(value) for value in (*public_args, *kwargs.values())):
            return protocol(party, *args, **kwargs)
        return map_slices(party, run_slice, [args[i] for i in places])  # type: ignore[misc]

    return run_protocol


def _is_tensor(value: object) -> bool:
    return len(getattr(value, "shape", ())) > 0


def map_slices(
    party: Party, protocol: Protocol, operands: Sequence[Shared], row_axes: int = 0
) -> Shared:
    """Compute protocol(party, *operands), in slices if its correlated randomness is large.

    Args:
        protocol: treats elements (or rows) separately. Its result has the same first axes.
        operands: private tensors of one shape and one dealer; others are not cut.
        row_axes: last axes that belong to a row.

    Rounds: those of the protocol, as slices do not wait for each other: the longest chain of
    messages is that of one slice. Bits sent: those of the protocol; less than a slice is computed
    twice, as slices have equal lengths.
    """
    plan = _plan_slices(party, protocol, operands, row_axes)
    if plan is None:
        return protocol(party, *operands)
    result = run_slices(party, protocol, operands, plan)
    shape = operands[0].shape.as_list()
    outer_shape = shape[: len(shape) - row_axes]
    return result.map(
        lambda a: tensor_ops.reshape(a, [*outer_shape, *(int(n) for n in a.shape[1:])])
    )


def sum_slices(
    party: Party, protocol: Protocol, operands: Sequence[Shared], row_axes: int = 0
) -> Shared:
    """Compute protocol(party, *operands), a sum over all rows, in slices if it is large.

    Args:
        protocol: its result for all rows is the sum of those for parts of them.
        operands, row_axes: as in `map_slices`.

    Rounds: those of the protocol. Bits sent: those of the protocol, and the messages of a result
    for each slice.
    """
    plan = _plan_slices(party, protocol, operands, row_axes, is_sum=True)
    if plan is None:
        return protocol(party, *operands)
    return run_slices(party, protocol, operands, plan)


def run_slices(
    party: Party, protocol: Protocol, operands: Sequence[Shared], plan: SlicePlan
) -> Shared:
    """Compute protocol(party, *operands) in the slices of a plan; the first axis is that of rows.

    Args:
        protocol, operands: as in `map_slices` or `sum_slices`.
    """
    rows = [v.map(lambda a: tensor_ops.reshape(a, [-1, *plan.row_shape])) for v in operands]
    if isinstance(party, CostParty):
        result = _count_slices(party, protocol, rows, plan)
    else:
        result = _SliceLoop(party, protocol, rows, plan).build_loop()
    if not plan.remaining_rows:
        return result
    last = np.s_[plan.rows - plan.remaining_rows :]
    added = protocol(party, *(v.map(lambda a: tensor_ops.strided_slice(a, last)) for v in rows))
    fields = [loops.list_share_fields([value]) for value in (result, added)]
    sums = [tensor_ops.add(a, b) for a, b in zip(*fields, strict=True)]
    return loops.replace_share_fields([result], sums)[0]


def _plan_slices(
    party: Party,
    protocol: Protocol,
    operands: Sequence[Shared],
    row_axes: int,
    is_sum: bool = False,
) -> SlicePlan | None:
    """Return the slices that the counted protocol takes, or None if it runs at once."""
    trace = getattr(party, "_trace", None)
    if not isinstance(party, CostParty) and (trace is None or trace.is_looping):
        return None
    first = operands[0]
    if not first.shape.is_fully_defined():
        return None
    shape = tuple(int(n) for n in first.shape)
    is_uniform = all(
        v.limbs == 1 and v.dealer == first.dealer and v.shape.is_compatible_with(shape)
        for v in operands
    )
    if not is_uniform or math.prod(shape) < _MIN_SLICED_ELEMENTS:
        return None
    outer_axes = len(shape) - row_axes
    rows, row_shape = math.prod(shape[:outer_axes]), shape[outer_axes:]

    def count_part(length: int) -> CostReport:
        parts = (Private((length, *row_shape), v.fractional_bits, v.bits) for v in operands)
        return count_cost(protocol, *parts)

    whole = count_part(rows).cost
    slices = whole.dealer // (8 * SLICE_BYTES)
    if whole.dealer < 8 * MIN_SLICED_BYTES:
        return None
    while slices > 1:
        length = _choose_length(rows, slices)
        part = count_part(length)
        # (a protocol may choose other steps for few elements)
        if length < rows and part.cost.rounds == whole.rounds:
            return SlicePlan(rows, length, row_shape, tuple(part.results.any.shape), is_sum)
        slices //= 2
    return None


def _choose_length(rows: int, slices: int) -> int:
    """Return a length for about that many slices with which few rows are computed twice."""
    longest = -(-rows // (slices * _ALIGNMENT)) * _ALIGNMENT
    return min(range(longest, longest // 2, -_ALIGNMENT), key=lambda length: -rows % length)


def _count_slices(
    party: CostParty, protocol: Protocol, operands: Sequence[Shared], plan: SlicePlan
) -> Shared:
    before, copies = party.take_snapshot(), plan.slice_count - 1
    part_shape = [plan.length, *plan.row_shape]
    result = protocol(party, *(v.map(lambda a: a.like(part_shape)) for v in operands))
    shift = copies * (party.take_snapshot().exchange_count - before.exchange_count)
    party.repeat(before, copies, in_sequence=False)

    def join_slices(a: tensor_ops.SymbolicTensor) -> tensor_ops.SymbolicTensor:
        """Return the whole result, which waits for the first and the last slice."""
        last = shift_sources(a.sources, before.exchange_count, shift)
        whole = a if plan.is_sum else a.like([plan.rows, *a.shape[1:]])
        return dataclasses.replace(whole, sources=a.sources | last)

    result = result.map(join_slices)
    party.largest = max(party.largest, result.shape.num_elements())
    return result


class _SliceLoop:
    """The slices as iterations of a loop that carries nothing but the finished slices."""

    # each party holds two of the three fields of a sharing
    _FIELDS = 2

    def __init__(
        self, party: Party, protocol: Protocol, operands: Sequence[Shared], plan: SlicePlan
    ) -> None:
        assert party._trace is not None
        self._party, self._trace, self._protocol, self._plan = party, party._trace, protocol, plan
        self._operands = operands
        self._dependencies = [
            int.from_bytes(self._trace.find_dependencies(a), "little")
            for a in loops.list_share_fields(operands)
        ]
        self._slice: Shared | None = None  # of the result, in the body of the loop
        self._slice_dependencies: list[int] = []

    def build_loop(self) -> Shared:
        """Build the loop and return its result, [rows, ...]."""
        self._trace.in_slices = True
        shape = [self._plan.slice_count, *self._plan.result_shape]
        # The slices of a result are written to their places in one tensor: kept one by one they
        # would fragment the heap. (`Empty` has state, so that no two calls share the tensor.)
        fields = tuple(tf.raw_ops.Empty(shape=shape, dtype=tf.int64) for _ in range(self._FIELDS))
        start = self._order_after_dealing(tf.constant(0, tf.int64))
        _, fields = tf.while_loop(
            lambda i, _: i < self._plan.slice_count,
            self._trace_body,
            (start, fields),
            parallel_iterations=IN_FLIGHT,
        )
        assert self._slice is not None
        joined = [self._join_slices(a) for a in fields]
        for field, mask in zip(joined, self._slice_dependencies, strict=True):
            self._trace.dependency_masks[id(field.op)] = mask
            self._trace.kept_ops.append(field.op)
        if self._is_dealer:
            self._trace.last_dealt = joined[0]  # the next site's dealing follows
        (result,) = loops.replace_share_fields([self._slice], joined)
        return result

    @property
    def _is_dealer(self) -> bool:
        return self._party.index == self._operands[0].dealer

    def _order_after_dealing(self, number: tf.Tensor) -> tf.Tensor:
        """Return a number that the dealer knows after the dealing of earlier sites.

        Material of later sites could otherwise fill the receiver's buffer, and the dealer would
        wait for its release before it deals for the loop.
        """
        trace = self._trace
        waits = [t for t in (trace.last_dealt, trace.dealer_gate) if t is not None]
        if not self._is_dealer or not waits:
            return number
        with tf.control_dependencies(waits):
            return tf.identity(number)

    def _trace_body(self, i: Any, fields: Any) -> Any:
        plan = self._plan
        begin = i * plan.length
        if not plan.is_sum:
            begin = tf.minimum(begin, plan.rows - plan.length)
        with self._party.iteration(i):
            if self._is_dealer:
                loops.gate_iteration(self._party, self._trace)
            parts = [self._cut_slice(a, begin) for a in loops.list_share_fields(self._operands)]
            for part, mask in zip(parts, self._dependencies, strict=True):
                self._trace.dependency_masks[id(part.op)] = mask
                self._trace.kept_ops.append(part.op)
            self._slice = self._protocol(
                self._party, *loops.replace_share_fields(self._operands, parts)
            )
        parts = loops.list_share_fields([self._slice])
        self._slice_dependencies = [
            int.from_bytes(self._trace.find_dependencies(a), "little") for a in parts
        ]
        place = tf.reshape(tf.cast(i, tf.int32), [1])
        return i + 1, tuple(
            tf.raw_ops.InplaceUpdate(x=a, i=place, v=part[None])
            for a, part in zip(fields, parts, strict=True)
        )

    def _cut_slice(self, a: tf.Tensor, begin: tf.Tensor) -> tf.Tensor:
        part = a[begin : begin + self._plan.length]
        return tf.ensure_shape(part, [self._plan.length, *self._plan.row_shape])

    def _join_slices(self, field: tf.Tensor) -> tf.Tensor:
        plan = self._plan
        if plan.is_sum:
            return tf.reduce_sum(field, axis=0)
        count = plan.slice_count
        rows = tf.reshape(field, [count * plan.length, *plan.result_shape[1:]])
        surplus = count * plan.length - plan.rows
        if not surplus:
            return tf.identity(rows)
        # the first rows of the last slice are the last ones of the slice before
        last = (count - 1) * plan.length
        return tf.concat([rows[:last], rows[last + surplus :]], axis=0)
