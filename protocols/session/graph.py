"""Graphs over shares: traced once per signature; each call of a graph is a step of its own."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol, TypeAlias

from tfe_bench.errors import ProtocolError
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session.heap import returning_free_blocks
from tfe_bench.protocols.session.numbering import MATERIAL, WHOLE, Trace, TracedOpening
from tfe_bench.protocols.session.openings import OpeningLog
from tfe_bench.protocols.session.ops import Native

# Shares, public tensors, arrays and Python constants, in lists, tuples, dicts and dataclasses.
Nest: TypeAlias = Any
# A nest without its tensors: a kind, and what rebuilds it.
Spec: TypeAlias = "tuple[Any, ...]"
StaticShape: TypeAlias = "tuple[int | None, ...]"


def _extract_graph_error_line(message: str) -> str:
    """Return the line of a TensorFlow error that names the failure; the other lines name nodes."""
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


def _flatten_share_nest(value: Nest, out: list[tf.Tensor]) -> Spec:
    """Append the tensors of a nest to `out`; return the spec that rebuilds it."""
    if value is None or isinstance(value, (str, int, float, bool)):
        # with its type: 1, 1.0 and True are equal
        return ("const", value, type(value).__name__)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, tuple(_flatten_share_nest(v, out) for v in value))
    if isinstance(value, dict):
        return ("dict", tuple((k, _flatten_share_nest(v, out)) for k, v in value.items()))
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        return (
            "dataclass",
            type(value),
            tuple((name, _flatten_share_nest(part, out)) for name, part in parts.items()),
        )
    out.append(value)
    return ("tensor", len(out) - 1)


def _unflatten_nest(spec: Spec, tensors: Sequence[tf.Tensor]) -> Nest:
    kind = spec[0]
    if kind == "const":
        return spec[1]
    if kind == "tensor":
        return tensors[spec[1]]
    if kind == "dict":
        return {k: _unflatten_nest(v, tensors) for k, v in spec[1]}
    if kind == "dataclass":
        return spec[1](**{name: _unflatten_nest(part, tensors) for name, part in spec[2]})
    parts = [_unflatten_nest(v, tensors) for v in spec[1]]
    return tuple(parts) if kind == "tuple" else parts


def _traced_tensor_shape(tensor: tf.Tensor, open_ended: bool) -> StaticShape:
    shape = tuple(tensor.shape)
    return (None, *shape[1:]) if open_ended and shape else shape


# Limit of all graphs that are kept for later sessions: TensorFlow takes about 5 kB for an op.
MAX_KEPT_OPS = 200_000


class _Compiled:
    """A traced function, held by TensorFlow's runtime alone.

    The Python graph from which it was traced would take as much memory again.
    """

    def __init__(self, concrete: Any) -> None:
        from tensorflow.python.eager.polymorphic_function import atomic_function
        from tensorflow.python.framework import func_graph

        inference_function = concrete._inference_function
        self._context, self._captured = (
            inference_function._bound_context,
            [*concrete.captured_inputs],
        )
        self._results = len(inference_function.function_type.flat_outputs)
        self._function = atomic_function.AtomicFunction(
            inference_function.name,
            inference_function._bound_context,
            inference_function.function_type,
            inference_function.children,
            inference_function.call_options,
        )
        func_graph.dismantle_func_graph(concrete.graph)

    def __call__(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        inputs = [*arguments, *self._captured]
        results: list[tf.Tensor] = self._context.call_function(
            self._function.name, inputs, self._results
        )
        return results


@dataclass(frozen=True)
class Graph:
    """A traced graph. It holds no session's keys or shares: its caller passes the session's handle.

    Attributes:
        concrete: function in TensorFlow.
        out: spec of its results.
        digest: digest of everything on which the three parties must agree.
        sites: sites that are numbered in it.
        ops: number of its ops.
        in_slices: a protocol in it runs in slices (slices.py).
        openings: what each call opens. The last results are the numbers of values of those whose
            number is not static.
        phases: digest of everything on which both phases of a function must agree at this party.
    """

    concrete: Callable[..., list[tf.Tensor]]
    out: Spec
    digest: bytes
    sites: Mapping[int, str]
    ops: int = 0
    in_slices: bool = False
    openings: tuple[TracedOpening, ...] = ()
    phases: bytes = b""

    def record_openings(self, log: OpeningLog, results: Sequence[tf.Tensor]) -> None:
        """Add what a call with these results has opened to a log."""
        dynamic = [opening for opening in self.openings if opening.count is None]
        counts = iter(results[len(results) - len(dynamic) :])
        for opening in self.openings:
            count = int(next(counts)) if opening.count is None else opening.count
            log.record_opening(opening.what, count, count * opening.width, opening.to)


class KeptGraphs:
    """Graphs of this process by name, kept for later sessions; the least recently used are dropped.

    Args:
        max_ops: limit of the ops of all graphs together.
    """

    def __init__(self, max_ops: int = MAX_KEPT_OPS) -> None:
        self._max_ops, self._ops = max_ops, 0
        self._lock = threading.Lock()
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()

    def find_graph(self, name: Hashable) -> Graph | None:
        """Return the graph of a name, or None."""
        with self._lock:
            if name in self._graphs:
                self._graphs.move_to_end(name)
            return self._graphs.get(name)

    def keep_graph(self, name: Hashable, graph: Graph) -> None:
        """Keep a graph, if it is not too large."""
        with self._lock:
            if graph.ops > self._max_ops or name in self._graphs:
                return
            self._graphs[name] = graph
            self._ops += graph.ops
            while self._ops > self._max_ops:
                self._ops -= self._graphs.popitem(last=False)[1].ops


KEPT = KeptGraphs()


class TracingParty(Protocol):
    """The attributes of a party (party.Party) that a graph uses while it is traced and run."""

    index: int
    dealer: int
    handle: int
    build_seconds: float
    site_names: dict[int, str]
    openings: OpeningLog
    _next_site: int
    _trace: Trace | None

    @property
    def building(self) -> AbstractContextManager[Any]:
        """Lock that is held while a graph is traced."""
        ...

    @property
    def _native(self) -> Native:
        """Functions of the compiled library."""
        ...

    @property
    def _on_abort(self) -> Callable[[str], Exception | None] | None:
        """Function that returns the typed error of a native error text."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """Make this the party of the thread's operators."""
        ...

    def agree(self, what: str, text: bytes) -> None:
        """Check that all three parties hold the same text."""
        ...

    def end_material(self) -> None:
        """Add the messages that state the number of messages before them."""
        ...

    def _next_step(self) -> int:
        """Begin a step; return its number."""
        ...


class PrivateFunction:
    """A graph over shares, traced once per signature; each call is a step of its own.

    Args:
        name: everything that the function depends on besides its arguments, its party and the
            sites numbered before: a later session with a function of this name reuses the graph.
            None: the graph is not kept.
        phase: the part of its messages that the graph sends (session/material.py).
        request: positions of the arguments that a request brings.
        first_site: the number of its first site; None: the party's next one.
    """

    def __init__(
        self,
        party: TracingParty,
        function: Callable[..., Nest],
        dynamic: bool | Collection[int],
        name: Hashable | None = None,
        *,
        phase: str = WHOLE,
        request: Collection[int] = (),
        first_site: int | None = None,
    ) -> None:
        self._party = party
        self._function = function
        self._dynamic = dynamic
        self._name = name
        self._phase, self._request, self._first_site = phase, request, first_site
        self._traced: dict[Hashable, Graph] = {}

    def __call__(self, *arguments: Nest) -> Nest:
        """Run the graph on shares, public tensors, NumPy arrays and Python constants.

        Raises:
            ProtocolError: the parties' graphs or messages disagree, or a tf.function calls it.
            PeerLost: another worker died or hung.
        """
        return self.call_within(lambda step, graph: nullcontext(), *arguments)

    def call_within(
        self,
        enter_step: Callable[[int, Graph], AbstractContextManager[object]],
        *arguments: Nest,
    ) -> Nest:
        """Run the graph within a context of its step, which is open until the context ends.

        Raises:
            ProtocolError, PeerLost: as a call.
        """
        if self._party._trace is not None or not tf.executing_eagerly():
            raise ProtocolError(
                "A party.function cannot be called within a tf.function or another party.function: "
                "each call is a step of its own, and would be the same one in every run. Call it "
                "outside.",
                code="nested-graph-call",
            )
        flat: list[tf.Tensor] = []
        parts: list[Spec] = []
        open_ended: list[bool] = []
        requested: list[bool] = []
        dynamic = self._dynamic
        for position, argument in enumerate(arguments):
            parts.append(_flatten_share_nest(argument, flat))
            free = dynamic if isinstance(dynamic, bool) else position in dynamic
            open_ended += [free] * (len(flat) - len(open_ended))
            requested += [position in self._request] * (len(flat) - len(requested))
        spec = ("tuple", tuple(parts))
        tensors = [tf.convert_to_tensor(t) for t in flat]
        shapes = tuple(
            _traced_tensor_shape(t, free) for t, free in zip(tensors, open_ended, strict=True)
        )
        signature = (spec, shapes, tuple(t.dtype for t in tensors))
        traced = self._traced.get(signature)
        if traced is None:
            traced = self._traced[signature] = self._get_graph(signature, spec, tensors, requested)
        party = self._party
        step = party._next_step()
        try:
            ctx = tf.constant([party.handle, step, 0], tf.int64)
            memory = returning_free_blocks() if traced.in_slices else nullcontext()
            with memory, enter_step(step, traced):
                results = traced.concrete(ctx, *tensors)
        except tf.errors.OpError as error:
            typed_error = self._translate_error(error)
            # A part of the step has been sent: no other step may follow in this session.
            party._native.abort(party.handle, str(typed_error).encode()[:500])
            raise typed_error from None
        finally:
            party._native.step_end(party.handle, step)
        traced.record_openings(party.openings, results)
        return _unflatten_nest(traced.out, results[1:])

    def _translate_error(self, error: tf.errors.OpError) -> Exception:
        party = self._party
        aborted = ""
        text = ctypes.create_string_buffer(512)
        if party._native.aborted(party.handle, text) != 0:
            aborted = text.value.decode(errors="replace")
        message = aborted or _extract_graph_error_line(str(error.message))
        known = party._on_abort(message) if party._on_abort else None
        return known or ProtocolError(
            message, code="session-aborted" if aborted else "graph-failed"
        )

    def _get_graph(
        self,
        signature: Any,
        spec: Spec,
        tensors: Sequence[tf.Tensor],
        requested: Sequence[bool],
    ) -> Graph:
        """Return the graph of a signature, kept or traced now, the same at all three parties."""
        party = self._party
        started = time.perf_counter()
        after = party._next_site
        if self._first_site is not None:
            party._next_site = self._first_site
        first = party._next_site
        name = None
        if self._name is not None:
            name = (self._name, self._phase, party.index, party.dealer, first, signature)
        graph = None if name is None else KEPT.find_graph(name)
        if graph is None:
            with party.building:
                graph = self._trace(spec, signature[1], tensors, requested)
            if name is not None:
                KEPT.keep_graph(name, graph)
        else:
            for opening in graph.openings:
                party.openings.check_permitted(opening.what)
            party._next_site = first + len(graph.sites)
            party.site_names.update(graph.sites)
        party.agree("The traced graph", graph.digest + str(party._next_site).encode())
        if self._first_site is not None:  # steps tell these sites from others of their number
            party._next_site = after
        party.build_seconds += time.perf_counter() - started
        return graph

    def _trace(
        self,
        spec: Spec,
        shapes: Sequence[StaticShape],
        tensors: Sequence[tf.Tensor],
        requested: Sequence[bool],
    ) -> Graph:
        from tensorflow.python.framework.auto_control_deps import AutomaticControlDependencies

        party = self._party
        out_spec: list[Spec] = []
        digests: list[bytes] = []
        in_slices: list[bool] = []
        openings: list[TracedOpening] = []
        material: list[bytes] = []
        first = party._next_site

        def trace_body(ctx: tf.Tensor, *inner: tf.Tensor) -> list[tf.Tensor]:
            graph = tf.compat.v1.get_default_graph()
            trace, order = Trace(graph, ctx, self._phase), AutomaticControlDependencies()
            for tensor, is_requested in zip(inner, requested, strict=True):
                if is_requested:
                    trace.mark_request(tensor)
            order.__enter__()
            party._trace = trace
            try:
                with party.active():
                    result = self._function(*_unflatten_nest(spec, inner))
                    if self._phase != WHOLE:
                        party.end_material()
            finally:
                party._trace = None
            flat: list[tf.Tensor] = []
            out_spec.append(_flatten_share_nest(result, flat))
            digests.append(trace.agreement_log.digest())
            in_slices.append(trace.in_slices)
            if self._phase != MATERIAL:  # which opens nothing
                openings.extend(trace.openings)
            flat += trace.opened_counts
            material.append(trace.material_log.digest())
            # Returned, so that no Send and no Recv is pruned (a control dependency does not
            # prevent it).
            done = tf.add_n(trace.tokens) if trace.tokens else tf.constant(0)
            if self._phase == MATERIAL:
                out_spec[-1] = ("tuple", ())
                return [done]
            if not any(op._is_stateful for op in graph.get_operations()):
                return [done, *flat]
            # Ops with effects run, and in their order, as in any tf.function.
            flat = [order.mark_as_return(t) for t in flat]
            order.__exit__(None, None, None)
            with tf.control_dependencies([*order.ops_which_must_run]):
                return [tf.identity(done), *flat]

        signature = [tf.TensorSpec([3], tf.int64)]
        signature += [tf.TensorSpec(s, t.dtype) for s, t in zip(shapes, tensors, strict=True)]
        # (TensorFlow would search all graphs for such ops, which takes a sixth of the time of
        # tracing.)
        concrete = tf.function(
            trace_body, autograph=False, experimental_attributes={"_disable_acd": True}
        ).get_concrete_function(*signature)
        if self._name is not None and concrete.captured_inputs:
            raise ProtocolError(
                "Expected a kept graph to take all tensors as arguments: captured ones would be "
                "those of an "
                f"earlier run. Received: {self._function.__qualname__}, which captures some. "
                "Pass them as "
                "arguments.",
                code="captured-tensor",
                received=self._function.__qualname__,
            )
        sites = {i: party.site_names[i] for i in range(first, party._next_site)}
        ops = len(concrete.graph.get_operations())
        traced = out_spec[-1], digests[-1], sites, ops, in_slices[-1], tuple(openings)
        return Graph(_Compiled(concrete), *traced, phases=digests[-1] + material[-1])
