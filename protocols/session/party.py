"""One party's view of a session: roles, numbered protocol invocations, graph calls.

Every party traces and runs its own graph.  What ties the three together is
numbering: each protocol invocation is a *site* (counted on all three parties,
also where a role adds no op), each graph call is a *step*, each turn of a loop
an *iteration*.  Masks and messages are named by these numbers, so none is ever
used twice, however TensorFlow orders the ops.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tfe_bench.errors import ProtocolError, TfeBenchError
from tfe_bench.protocols.session import ops, sizes

if TYPE_CHECKING:
    import tensorflow as tf

# How many graph calls the dealer may be ahead of the slowest peer: bounds memory.
RUN_AHEAD_STEPS = 4
_DIGEST_BYTES = 32

K1, K2, K3 = 1, 2, 3  # keys by the roles that hold them: (D, E1), (D, E2), (E1, E2)


_active = threading.local()


def current() -> Party:
    """The party whose program this thread runs: what operators such as x < y work with.

    Raises:
        ProtocolError: the thread runs none.
    """
    party: Party | None = getattr(_active, "party", None)
    if party is None:
        raise ProtocolError(
            "Private tensors are computed on inside a program (or inside `with party.active():`). "
            "Received: an operation outside of both."
        )
    return party


@dataclass
class _Trace:
    """What one graph accumulates while it is traced."""

    graph: Any
    ctx: Any
    tokens: list[Any] = field(default_factory=list)
    receives: int = 0
    log: Any = field(default_factory=hashlib.sha256)
    deps: dict[int, int] = field(default_factory=dict)
    keep: list[Any] = field(default_factory=list)
    iteration_graph: Any = None
    iteration_ctx: Any = None
    # the last of the dealer's messages that wait for nobody, and the gate behind it
    ahead: Any = None
    gated: Any = None


@dataclass(frozen=True)
class StepCost:
    """Rounds of one graph call as measured at this party's channel."""

    cold: int
    ahead: int


class Site:
    """One protocol invocation: the names of its masks and messages, and its channel ops."""

    def __init__(self, party: Party, number: int, dealer: int, trace: _Trace) -> None:
        self.party = party
        self.number = number
        self.dealer = dealer
        self._trace = trace
        self.is_dealer = party.index == dealer
        if trace.iteration_graph is not None:
            self.ctx = trace.iteration_ctx
        else:
            self.ctx = self._turn() if self.is_dealer else trace.ctx
        self._opened: Any = None
        self.is_e1 = party.index == (dealer + 1) % 3
        self.is_e2 = party.index == (dealer + 2) % 3
        self.d, self.e1, self.e2 = dealer, (dealer + 1) % 3, (dealer + 2) % 3

    def _turn(self) -> Any:
        """The call, for the dealer's ops of this site: after those of the sites before it.

        Nothing else would keep the dealer from making the material of a whole model at once.
        """
        import tensorflow as tf

        trace = self._trace
        if trace.ahead is not None:
            with tf.control_dependencies([trace.ahead]):
                trace.gated = ops.module().tfe_bench_gate(call=trace.ctx, site=self.number)
            trace.ahead = None
        return trace.ctx if trace.gated is None else trace.gated

    def in_turn(self) -> Any:
        """A context for what the dealer computes without a mask: it waits for its turn too."""
        import tensorflow as tf

        return tf.control_dependencies([self.ctx] if self.is_dealer else [])

    @property
    def other(self) -> int:
        """The other evaluator's party index."""
        return self.e2 if self.is_e1 else self.e1

    @property
    def own_key(self) -> int:
        """The key that this evaluator shares with the dealer."""
        return K1 if self.is_e1 else K2

    def send(self, data: tf.Tensor, to: int, slot: int = 0, run_ahead: bool = False) -> None:
        """Sends a tensor to a party; `run_ahead` marks the dealer's material."""
        looping = self._trace.iteration_graph is not None
        module = ops.module()
        op = module.tfe_bench_send_in_loop if looping else module.tfe_bench_send
        deps = self.party._dependencies(self._trace, data)
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
                self._trace.ahead = token

    def recv(self, shape: Any, source: int, slot: int = 0, dtype: Any = None) -> tf.Tensor:
        """Receives a tensor of a known shape from a party."""
        import tensorflow as tf

        index = self._trace.receives
        self._trace.receives += 1
        looping = self._trace.iteration_graph is not None
        data = ops.module().tfe_bench_recv(
            call=self.ctx if looping else self._trace.ctx,  # nothing to wait for
            shape=sizes.constant(shape),
            T=dtype or tf.int64,
            site=self.number,
            slot=slot,
            peer=source,
            index=index,
        )
        self._trace.deps[id(data.op)] = 1 << index
        self._trace.keep.append(data.op)
        if looping:
            ops.module().tfe_bench_heard_in_loop(data=data)
        else:
            self._trace.tokens.append(ops.module().tfe_bench_heard(data=data))
        return data

    def _named(self, key: int, tensor: int) -> dict[str, Any]:
        """What names one mask of this invocation."""
        return {
            "call": self.ctx,
            "site": self.number,
            "tensor": tensor,
            "dealer": self.dealer,
            "key": key,
        }

    def mask(self, key: int, tensor: int, shape: Any) -> tf.Tensor:
        """Uniform ring elements known to the two holders of a key."""

        return ops.module().tfe_bench_mask(shape=sizes.constant(shape), **self._named(key, tensor))

    def apply_mask(
        self, x: tf.Tensor, key: int, tensor: int, op: str, sent: bool = True
    ) -> tf.Tensor:
        """x + mask ("add"), x - mask ("sub") or x ^ mask ("xor"), the mask never stored.

        `sent` says whether the result is a message (the debug log then holds the mask to one word).
        """
        return ops.module().tfe_bench_apply_mask(x=x, op=op, sent=sent, **self._named(key, tensor))

    def permutation(self, key: int, tensor: int, shape: Any) -> tf.Tensor:
        """A secret permutation of range(n) for each row, int32 [rows, n]."""
        import tensorflow as tf

        return ops.module().tfe_bench_permutation(
            shape=tf.cast(shape, tf.int64), **self._named(key, tensor)
        )

    # ---- the two primitives of the masked view (docs/protocols.md)

    def deal(
        self, value: tf.Tensor | None, shape: Any, tensor: int, slot: int = 0, limbs: int = 1
    ) -> Any:
        """The dealer splits a value it knows between E1 (from the PRF) and E2 (one message).

        Args:
            shape: of the words, with the axis of 2 when limbs is 2.

        Returns this evaluator's additive share, None at the dealer.
        Rounds: 0 when the dealer runs ahead, else 1.  Bits sent: D 64 * limbs per element.
        """
        if self.is_dealer:
            assert value is not None
            op = "sub" if limbs == 1 else "sub128"
            self.send(self.apply_mask(value, K1, tensor, op), self.e2, slot, run_ahead=True)
            return None
        if self.is_e1:
            return self.mask(K1, tensor, shape)
        return self.recv(shape, self.d, slot)

    def new_mask(self, shape: Any, tensor: int) -> tuple[Any, Any]:
        """Fresh (l1, l2) as this party holds them (None for what it does not hold).

        The evaluators' parts are the masks of open_mask with the same tensor number.
        """
        import tensorflow as tf

        # not before they are wanted: masks of a whole model at once would fill the memory
        with tf.control_dependencies([] if self._opened is None else [self._opened]):
            l1 = None if self.is_e2 else self.mask(K1, tensor, shape)
            l2 = None if self.is_e1 else self.mask(K2, tensor, shape)
        return l1, l2

    def open_mask(self, share: tf.Tensor, tensor: int, slot: int = 0, limbs: int = 1) -> Any:
        """E1, E2 hold y1 + y2 = y; both get m = y + l1 + l2 under the mask `tensor`.

        Rounds: 1.  Bits sent: E1, E2 64 * limbs per element each.
        """
        own = self.apply_mask(share, self.own_key, tensor, "add" if limbs == 1 else "add128")
        return self.exchange_masked(own, slot, limbs)

    def exchange_masked(self, own: tf.Tensor, slot: int, limbs: int = 1) -> Any:
        """The second half of `open_mask`: both evaluators add up their masked shares."""
        import tensorflow as tf

        from tfe_bench.protocols.session import wide

        self.send(own, self.other, slot)
        got = self.recv(tf.shape(own, out_type=tf.int64), self.other, slot)
        self._opened = own + got if limbs == 1 else wide.add(own, got)
        return self._opened


class Party:
    """One of the three parties of a running session.

    Args:
        index: 0, 1 or 2.
        handle: of the native session, already keyed and connected.
        dealer: the party that deals unless a value says otherwise.

    Attributes:
        site_names: the protocols invoked so far, by their number.
    """

    def __init__(self, index: int, handle: int, dealer: int = 0) -> None:
        self.index = index
        self.handle = handle
        self.dealer = dealer
        self.build_seconds = 0.0
        self.site_names: dict[int, str] = {}
        self._native = ops.native()
        self._next_site = 1
        self._step = 0
        self._trace: _Trace | None = None
        self._on_abort: Callable[[str], TfeBenchError | None] | None = None
        self._functions: dict[Any, PrivateFunction] = {}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Makes this the party of the thread's operators (x + y, x < y, tfe_bench.relu(x), ...)."""
        before = getattr(_active, "party", None)
        _active.party = self
        try:
            yield
        finally:
            _active.party = before

    @property
    def tracing(self) -> bool:
        """Whether a graph is being traced: protocols are called inside of one."""
        return self._trace is not None

    # ---- numbering

    def site(self, name: str, *about: Any, dealer: int | None = None) -> Site:
        """Starts a protocol invocation; every party does so, in the same order.

        Args:
            name: of the protocol.
            about: what all three must agree on (static shapes, parameters).

        Raises:
            ProtocolError: outside party.function, or inside a nested tf.function, cond or loop
                that has no number of its own (its masks would repeat with every turn).
        """
        import tensorflow as tf

        trace = self._trace
        if trace is None:
            raise ProtocolError(
                f"{name} runs inside party.function only. Received: a call outside of it. "
                "Wrap the computation: f = party.function(lambda x: ...)."
            )
        graph = tf.compat.v1.get_default_graph()
        expected = trace.graph if trace.iteration_graph is None else trace.iteration_graph
        if graph is not expected:
            raise ProtocolError(
                f"{name} is called inside a nested tf.function, tf.cond or loop, where its masks "
                "would repeat. Unroll it, or number its turns: `with party.iteration(i): ...`."
            )
        number = self._next_site
        if number >> 24:
            raise ProtocolError("This session has used up its site numbers; start a new one.")
        self._next_site += 1
        self.site_names[number] = name
        dealer = self.dealer if dealer is None else dealer
        trace.log.update(f"{number} {name} {dealer} {about!r}\n".encode())
        return Site(self, number, dealer, trace)

    @contextlib.contextmanager
    def iteration(self, number: tf.Tensor) -> Iterator[None]:
        """Gives the private ops of a loop body or nested function a number of their own.

        Args:
            number: int64 scalar in [0, 2^20 - 1), different for each turn within one step.  One
                that comes twice fails the graph call before a second message is sent.
        """
        import tensorflow as tf

        trace = self._trace
        if trace is None or trace.iteration_graph is not None:
            raise ProtocolError("party.iteration belongs in party.function, once per loop nest.")
        known = tf.get_static_value(number)
        if known is not None and not 0 <= int(known) < (1 << 20) - 1:
            raise ProtocolError(f"An iteration is numbered 0 to 2^20 - 2. Received: {known}.")
        turn = tf.reshape(tf.cast(number, tf.int64), [1]) + 1
        trace.iteration_graph = tf.compat.v1.get_default_graph()
        trace.iteration_ctx = tf.concat([trace.ctx[:2], turn], axis=0)
        try:
            yield
        finally:
            trace.iteration_graph = None

    def _dependencies(self, trace: _Trace, tensor: Any) -> bytes:
        """Bit mask over the receives of this trace that a tensor depends on."""
        memo = trace.deps
        stack = [tensor.op]
        while stack:
            op = stack[-1]
            if id(op) in memo:
                stack.pop()
                continue
            before = [t.op for t in op.inputs] + list(op.control_inputs)
            missing = [b for b in before if id(b) not in memo]
            if missing:
                stack.extend(missing)
                continue
            mask = 0
            for b in before:
                mask |= memo[id(b)]
            memo[id(op)] = mask
            trace.keep.append(op)
            stack.pop()
        mask = memo[id(tensor.op)]
        return mask.to_bytes((mask.bit_length() + 7) // 8, "little")

    # ---- steps

    def _next_step(self, control: bool = False) -> int:
        self._step += 1
        error = self._native.error_of(
            "step_begin", self.handle, self._step, int(control), RUN_AHEAD_STEPS
        )
        self.check(error)
        return self._step

    def check(self, error: str) -> None:
        """Raises the typed error behind a native error text; '' is fine."""
        if not error:
            return
        known = self._on_abort(error) if self._on_abort else None
        raise known or ProtocolError(error)

    def exchange_each(self, payloads: dict[int, bytes]) -> dict[int, bytes]:
        """Sends each peer its payload and returns theirs; both directions have one length."""
        step = self._next_step(control=True)
        got = {}
        try:
            for p, payload in payloads.items():
                self.check(
                    self._native.error_of(
                        "control_send", self.handle, p, step, payload, len(payload)
                    )
                )
            for p, payload in payloads.items():
                space = ctypes.create_string_buffer(len(payload))
                self.check(
                    self._native.error_of("control_recv", self.handle, p, step, space, len(payload))
                )
                got[p] = space.raw
        finally:
            self._native.step_end(self.handle, step)
        return got

    def exchange(self, payload: bytes) -> tuple[bytes, bytes, bytes]:
        """Sends a payload of equal length at all parties to both peers; returns all three."""
        got = self.exchange_each({p: payload for p in range(3) if p != self.index})
        got[self.index] = payload
        return got[0], got[1], got[2]

    def agree(self, what: str, text: bytes) -> None:
        """Fails unless all three parties hold the same text.

        Raises:
            ProtocolError: naming the party that differs.
        """
        digests = self.exchange(hashlib.sha256(text).digest())
        for p in range(3):
            if digests[p] != digests[self.index]:
                raise ProtocolError(
                    f"{what} differs between party {self.index} and party {p}. Received: "
                    f"{digests[self.index].hex()[:12]} and {digests[p].hex()[:12]}."
                )

    # ---- graphs

    def function(
        self, function: Callable[..., Any], dynamic: bool | Collection[int] = False
    ) -> PrivateFunction:
        """Wraps a Python function over shares and public tensors as one graph.

        Args:
            dynamic: trace with unknown leading dimensions, so that other sizes need no new trace:
                of all tensors, or of those in the arguments of these positions.
        """
        return PrivateFunction(self, function, dynamic)

    def cached_function(
        self, key: Any, make: Callable[[], Callable[..., Any]], dynamic: bool = False
    ) -> PrivateFunction:
        """The graph that a library function keeps under a key of its own, made at first use."""
        if key not in self._functions:
            self._functions[key] = self.function(make(), dynamic)
        return self._functions[key]

    # ---- measured

    def counters(self) -> dict[str, list[int]]:
        """Bytes and messages this party sent to each party since the last reset."""
        raw = (ctypes.c_uint64 * 12)()
        self._native.counters(self.handle, raw)
        return {
            "payload": list(raw[0:3]),
            "frames": list(raw[3:6]),
            "messages": list(raw[6:9]),
            "received": list(raw[9:12]),
        }

    def reset_counters(self) -> None:
        """Starts the counters and the list of rounds anew."""
        self._native.reset_counters(self.handle)

    def rounds(self) -> list[StepCost]:
        """Rounds of each graph call since the last reset, as seen by this party."""
        count = self._native.depths(self.handle, None, 0)
        raw = (ctypes.c_uint32 * (2 * count))()
        count = min(count, self._native.depths(self.handle, raw, count))
        return [StepCost(raw[2 * i], raw[2 * i + 1]) for i in range(count)]

    def __repr__(self) -> str:
        return f"Party({self.index})"


# ---- nests of shares and tensors, flattened for a graph's signature


def _telling_line(message: str) -> str:
    """The line of a TensorFlow error that says what failed; the others name nodes."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    ours = [line for line in lines if "TfeBench: " in line]
    if ours:
        return ours[0].split("TfeBench: ", 1)[1]
    plain = [
        line
        for line in lines
        if not line.startswith(("[[", "Graph execution error", "Detected at", "File ", "Stack"))
    ]
    return plain[-1] if plain else "a kernel failed"


def _flatten(value: Any, out: list[Any]) -> Any:
    """Appends the tensors of a nest to `out`; returns what is needed to rebuild it."""
    if value is None or isinstance(value, (str, int, float, bool)):
        # with its type: 1, 1.0 and True are equal
        return ("const", value, type(value).__name__)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, tuple(_flatten(v, out) for v in value))
    if isinstance(value, dict):
        return ("dict", tuple((k, _flatten(v, out)) for k, v in value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        return (
            "dataclass",
            type(value),
            tuple((name, _flatten(part, out)) for name, part in parts.items()),
        )
    out.append(value)
    return ("tensor", len(out) - 1)


def _unflatten(spec: Any, tensors: Sequence[Any]) -> Any:
    kind = spec[0]
    if kind == "const":
        return spec[1]
    if kind == "tensor":
        return tensors[spec[1]]
    if kind == "dict":
        return {k: _unflatten(v, tensors) for k, v in spec[1]}
    if kind == "dataclass":
        return spec[1](**{name: _unflatten(part, tensors) for name, part in spec[2]})
    parts = [_unflatten(v, tensors) for v in spec[1]]
    return tuple(parts) if kind == "tuple" else parts


def _shape_of(tensor: Any, open_ended: bool) -> tuple[int | None, ...]:
    shape = tuple(tensor.shape)
    return (None, *shape[1:]) if open_ended and shape else shape


class PrivateFunction:
    """A graph over shares, traced once per signature; each call is a step of its own."""

    def __init__(
        self, party: Party, function: Callable[..., Any], dynamic: bool | Collection[int]
    ) -> None:
        self._party = party
        self._function = function
        self._dynamic = dynamic
        self._traced: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Runs the graph on shares, public tensors, numpy arrays and Python constants.

        Raises:
            ProtocolError: the parties' graphs or messages disagree.
            PeerLost: another worker died or hung.
        """
        import tensorflow as tf

        flat: list[Any] = []
        parts: list[Any] = []
        open_ended: list[bool] = []
        dynamic = self._dynamic
        for position, argument in enumerate(arguments):
            parts.append(_flatten(argument, flat))
            free = dynamic if isinstance(dynamic, bool) else position in dynamic
            open_ended += [free] * (len(flat) - len(open_ended))
        spec = ("tuple", tuple(parts))
        tensors = [tf.convert_to_tensor(t) for t in flat]
        shapes = tuple(_shape_of(t, free) for t, free in zip(tensors, open_ended, strict=True))
        signature = (spec, shapes, tuple(t.dtype for t in tensors))
        found = self._traced.get(signature)
        if found is None:
            found = self._trace(spec, shapes, tensors)
            self._traced[signature] = found
        concrete, out_spec = found
        party = self._party
        step = party._next_step()
        try:
            ctx = tf.constant([party.handle, step, 0], tf.int64)
            results = concrete(ctx, *tensors)
        except tf.errors.OpError as error:
            known = self._translate(error)
            # Half a step has been sent: no other may follow in this session.
            party._native.abort(party.handle, str(known).encode()[:500])
            raise known from None
        finally:
            party._native.step_end(party.handle, step)
        return _unflatten(out_spec, results[1:])

    def _translate(self, error: Any) -> Exception:
        party = self._party
        aborted = ""
        text = ctypes.create_string_buffer(512)
        if party._native.aborted(party.handle, text) != 0:
            aborted = text.value.decode(errors="replace")
        message = aborted or _telling_line(str(error.message))
        known = party._on_abort(message) if party._on_abort else None
        return known or ProtocolError(message)

    def _trace(
        self, spec: Any, shapes: Sequence[tuple[int | None, ...]], tensors: Sequence[Any]
    ) -> tuple[Any, Any]:
        import tensorflow as tf

        party = self._party
        if party._trace is not None:
            raise ProtocolError("A party.function cannot be called while another is traced.")
        started = time.perf_counter()
        out_spec: list[Any] = []
        trace_log: list[bytes] = []

        def body(ctx: tf.Tensor, *inner: tf.Tensor) -> Any:
            trace = _Trace(tf.compat.v1.get_default_graph(), ctx)
            party._trace = trace
            try:
                with party.active():
                    result = self._function(*_unflatten(spec, inner))
            finally:
                party._trace = None
            flat: list[Any] = []
            out_spec.append(_flatten(result, flat))
            trace_log.append(trace.log.digest())
            # Returned, so that no Send and no Recv is pruned.
            done = tf.add_n(trace.tokens) if trace.tokens else tf.constant(0)
            return [done, *(tf.identity(t) for t in flat)]

        signature = [tf.TensorSpec([3], tf.int64)]
        signature += [tf.TensorSpec(s, t.dtype) for s, t in zip(shapes, tensors, strict=True)]
        concrete = tf.function(body, autograph=False).get_concrete_function(*signature)
        party.agree("The traced graph", trace_log[-1] + str(party._next_site).encode())
        party.build_seconds += time.perf_counter() - started
        return concrete, out_spec[-1]
