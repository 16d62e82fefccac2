"""Sites: the numbered invocations of protocols in a graph, their masks and their messages.

Every party traces and runs its own graph. Numbering ties the three together: each protocol
invocation is a *site* (counted on all three parties, also where a role adds no op), each graph
call is a *step*, each pass of a loop an *iteration*. Masks and messages are named by these
numbers. Hence none is ever used twice, in whatever order TensorFlow runs the ops.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session import ops, sizes, tensor_ops
from tfe_bench.protocols.session.slots import NO_SLOTS, Slot, Slots, find_slot

if TYPE_CHECKING:
    from tfe_bench.protocols.session.types import Shape

# Phases of a graph whose correlated randomness is sent before its request (session/material.py):
# all messages at once; those that depend on no request; the others.
WHOLE, MATERIAL, ONLINE = "whole", "material", "online"
K1, K2, K3 = 1, 2, 3  # PRF keys by the roles that hold them: (D, E1), (D, E2), (E1, E2)


@dataclass(frozen=True)
class TracedOpening:
    """Values that each call of a graph opens.

    Attributes:
        what: their kind.
        width: bits of each.
        to: the party that learns them; None: all three.
        count: their number; None if it depends on the arguments of the call.
    """

    what: str
    width: int
    to: int | None
    count: int | None


@dataclass
class Trace:
    """State that one graph accumulates while it is traced.

    Attributes:
        phase: WHOLE, MATERIAL or ONLINE.
        request_masks: 1 for each op that depends on a request's inputs, 0 for other known ops.
        sent_counts: number of messages of this trace to each party.
        material_log: names of the messages of the material, of this party.
    """

    graph: tf.Graph
    ctx: tf.Tensor
    phase: str = WHOLE
    request_masks: dict[int, int] = field(default_factory=dict)
    sent_counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    material_log: hashlib._Hash = field(default_factory=hashlib.sha256)
    tokens: list[tf.Tensor] = field(default_factory=list)
    receives: int = 0
    agreement_log: hashlib._Hash = field(default_factory=hashlib.sha256)
    dependency_masks: dict[int, int] = field(default_factory=dict)
    kept_ops: list[tf.Operation] = field(default_factory=list)
    iteration_graph: tf.Graph | None = None
    iteration_ctx: tf.Tensor | None = None
    # The dealer's last message that waits for no receive, and the gate after it.
    last_dealt: tf.Tensor | None = None
    dealer_gate: tf.Tensor | None = None
    in_slices: bool = False  # a protocol runs in slices
    openings: list[TracedOpening] = field(default_factory=list)
    # of the openings whose number of values is not static
    opened_counts: list[tf.Tensor] = field(default_factory=list)

    @property
    def is_looping(self) -> bool:
        """True while an iteration of a numbered loop is traced."""
        return self.iteration_graph is not None

    def find_dependencies(self, tensor: tf.Tensor) -> bytes:
        """Return a bit mask over the receives of this trace on which a tensor depends."""
        mask = self._walk_predecessors(tensor, self.dependency_masks)
        return mask.to_bytes((mask.bit_length() + 7) // 8, "little")

    def mark_request(self, tensor: tf.Tensor) -> None:
        """Mark a tensor as a part of the request."""
        self.request_masks[id(tensor.op)] = 1
        self.kept_ops.append(tensor.op)  # (another op would get its identity)

    def is_sent_in_phase(self, data: tf.Tensor, deps: bytes, name: str) -> bool:
        """Return whether a message belongs to the phase that is traced.

        Material depends on no receive and on no input of the request. A loop's messages are online.

        Args:
            deps: the message's dependencies, from `find_dependencies`.
            name: the message's name.
        """
        if self.phase == WHOLE:
            return True
        is_material = not (
            self.is_looping or deps or self._walk_predecessors(data, self.request_masks)
        )
        if is_material:
            self.material_log.update(name.encode())
        return is_material == (self.phase == MATERIAL)

    def _walk_predecessors(self, tensor: tf.Tensor, memo: dict[int, int]) -> int:
        """Return the union of the bits of a tensor and of everything that it depends on."""
        stack = [tensor.op]
        while stack:
            op = stack[-1]
            if id(op) in memo:
                stack.pop()
                continue
            predecessors = [t.op for t in op.inputs] + list(op.control_inputs)
            missing = [b for b in predecessors if id(b) not in memo]
            if missing:
                stack.extend(missing)
                continue
            mask = 0
            for b in predecessors:
                mask |= memo[id(b)]
            memo[id(op)] = mask
            self.kept_ops.append(op)
            stack.pop()
        return memo[id(tensor.op)]


class SiteParty(Protocol):
    """The party that invokes a protocol; `Party` is one."""

    index: int
    dealer: int
    site_names: dict[int, str]


class Site:
    """One protocol invocation: the names of its masks and messages, and its channel ops.

    Attributes:
        slots: the messages that it declares, by number.
    """

    def __init__(
        self, party: SiteParty, number: int, dealer: int, trace: Trace, slots: Slots = NO_SLOTS
    ) -> None:
        self.party = party
        self.number = number
        self.dealer = dealer
        self.slots = slots
        self._trace = trace
        self.is_dealer = party.index == dealer
        if trace.is_looping:
            self.ctx = trace.iteration_ctx
        else:
            self.ctx = self._gate_call() if self.is_dealer else trace.ctx
        self.is_e1 = party.index == (dealer + 1) % 3
        self.is_e2 = party.index == (dealer + 2) % 3
        self.d, self.e1, self.e2 = dealer, (dealer + 1) % 3, (dealer + 2) % 3

    def _gate_call(self) -> tf.Tensor:
        """Return the call for the dealer's ops of this site, ordered after those of earlier sites.

        Without this order the dealer would deal for a whole model at once.
        """
        trace = self._trace
        if trace.last_dealt is not None:
            with tf.control_dependencies([trace.last_dealt]):
                trace.dealer_gate = ops.module().tfe_bench_gate(call=trace.ctx, site=self.number)
            trace.last_dealt = None
        return trace.ctx if trace.dealer_gate is None else trace.dealer_gate

    def in_dealing_order(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for the dealer's ops without a mask: they wait for earlier sites too."""
        waiting: contextlib.AbstractContextManager[None] = tf.control_dependencies(
            [self.ctx] if self.is_dealer else []
        )
        return waiting

    @property
    def other_evaluator(self) -> int:
        """Party index of the other evaluator."""
        return self.e2 if self.is_e1 else self.e1

    @property
    def own_key(self) -> int:
        """Key that this evaluator shares with the dealer."""
        return K1 if self.is_e1 else K2

    def find_slot(self, number: int, sender: int | None = None, to: int | None = None) -> Slot:
        """Return a declared slot, from and to these parties if they are given.

        Raises:
            ProtocolError: the site declares no such message.
        """
        route = None
        if sender is not None and to is not None:
            route = (sender - self.dealer) % 3, (to - self.dealer) % 3
        return find_slot(self.slots, number, self.party.site_names[self.number], route)

    def send(self, data: tf.Tensor, to: int, slot: int = 0, run_ahead: bool = False) -> tf.Tensor:
        """Send a tensor to a party; `run_ahead` marks correlated randomness of the dealer.

        Returns:
            A token that is available after the message is sent.
        Raises:
            ProtocolError: the site does not declare the message.
        """
        self.find_slot(slot, self.party.index, to)
        looping = self._trace.is_looping
        module = ops.module()
        op = module.tfe_bench_send_in_loop if looping else module.tfe_bench_send
        deps = self._trace.find_dependencies(data)
        if not self._trace.is_sent_in_phase(data, deps, f"{self.number} {slot} {to}\n"):
            return tensor_ops.constant(0, np.int32)
        self._trace.sent_counts[to] += 1
        token = op(
            call=self.ctx,
            data=data,
            site=self.number,
            slot=slot,
            peer=to,
            run_ahead=run_ahead,
            deps=deps,
        )
        if not looping:
            self._trace.tokens.append(token)
            if run_ahead and not deps:
                self._trace.last_dealt = token
        return token

    def recv(
        self, shape: Shape, source: int, slot: int = 0, dtype: tf.DType | None = None
    ) -> tf.Tensor:
        """Receive a tensor of a known shape from a party.

        Raises:
            ProtocolError: the site does not declare the message.
        """
        self.find_slot(slot, source, self.party.index)
        index = self._trace.receives
        self._trace.receives += 1
        looping = self._trace.is_looping
        data, token = ops.module().tfe_bench_recv(
            call=self.ctx if looping else self._trace.ctx,  # a receive waits for nothing
            shape=sizes.shape_constant(shape),
            T=dtype or tf.int64,
            site=self.number,
            slot=slot,
            peer=source,
            index=index,
        )
        self._trace.dependency_masks[id(data.op)] = 1 << index
        self._trace.kept_ops.append(data.op)
        if self._trace.phase == MATERIAL:  # no material depends on it
            return data
        if looping:
            ops.module().tfe_bench_heard_in_loop(token=token)
        else:
            self._trace.tokens.append(token)
        return data

    def swap(self, message: tf.Tensor, slot: int = 0) -> tf.Tensor:
        """Send a message to the other evaluator and receive one of the same shape."""
        sent = self.send(message, self.other_evaluator, slot)
        # In a loop a message counts as a round for the next iteration's sends, whose dependencies
        # have the same numbers. No message may be received before its counterpart is sent.
        with tf.control_dependencies([sent] if self._trace.is_looping else []):
            return self.recv(
                tensor_ops.dynamic_shape(message), self.other_evaluator, slot, message.dtype
            )

    def receive_dealt(self, n: int | tf.Tensor, slot: int = 0, in_rows: bool = False) -> tf.Tensor:
        """Return the dealer's message for n elements at E2; an empty tensor at E1.

        Args:
            in_rows: one row of the message for each element.
        """
        declared = self.find_slot(slot)
        dtype = tf.uint8 if declared.unit == 8 else tf.int64
        row = declared.element_bits // declared.unit
        if self.is_e1:
            nothing = np.zeros([0, row] if in_rows else [0])
            return tensor_ops.constant(nothing, dtype.as_numpy_dtype)
        shape = (
            sizes.matrix_shape(n, row) if in_rows else sizes.vector_shape(declared.count_units(n))
        )
        return self.recv(shape, self.d, slot, dtype)

    def kernel_attributes(self, tensor: int = 0) -> dict[str, tf.Tensor | int]:
        """Return attributes of kernels that generate masks, the first with the number `tensor`."""
        return {"call": self.ctx, "site": self.number, "tensor": tensor, "dealer": self.dealer}

    def _named(self, key: int, tensor: int) -> dict[str, tf.Tensor | int]:
        """Return the attributes that name one mask of this invocation."""
        return {**self.kernel_attributes(tensor), "key": key}

    def mask(self, key: int, tensor: int, shape: Shape) -> tf.Tensor:
        """Return uniform ring elements known to the two holders of a key."""
        return ops.module().tfe_bench_mask(
            shape=sizes.shape_constant(shape), **self._named(key, tensor)
        )

    def apply_mask(
        self, x: tf.Tensor, key: int, tensor: int, op: str, sent: bool = True
    ) -> tf.Tensor:
        """Return x + mask ("add"), x - mask ("sub") or x ^ mask ("xor") without storing the mask.

        `sent` states that the result is a message (the debug log then ties the mask to one word).
        """
        return ops.module().tfe_bench_apply_mask(x=x, op=op, sent=sent, **self._named(key, tensor))

    def pack_masked(self, x: tf.Tensor, key: int, tensor: int, op: str, width: int) -> tf.Tensor:
        """Return the message x + mask ("add") or x - mask ("sub") mod 2^width, packed."""
        return ops.module().tfe_bench_pack_masked(
            x=x, width=width, subtract=op == "sub", **self._named(key, tensor)
        )

    def permutation(self, key: int, tensor: int, shape: Shape) -> tf.Tensor:
        """Return a secret permutation of range(n) for each row, int32 [rows, n]."""
        return ops.module().tfe_bench_permutation(
            shape=tf.cast(shape, tf.int64), **self._named(key, tensor)
        )
