"""Jobs of expressions: submission to the workers, and results that are revealed,
held or stored.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.arrays import planning
from tfe_bench.arrays import request as requests
from tfe_bench.arrays.array_spec import BITS, INT, ArraySpec
from tfe_bench.arrays.building import build
from tfe_bench.arrays.node import ExpressionNode, HeldArrayHandle
from tfe_bench.arrays.plan import HANDLE, KEEP, REVEAL, ExpressionLeaf
from tfe_bench.cluster.requests import private_input_spec
from tfe_bench.cluster.stored import check_name
from tfe_bench.errors import PolicyError, TfeBenchError, UsageError
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client
    from tfe_bench.cluster.requests import JobResult


class FreedHandles:
    """Handles that a client no longer refers to, for release with its next job."""

    def __init__(self) -> None:
        # (a finalizer may run in any thread, within any other call)
        self._ids: collections.deque[str] = collections.deque()
        self._lock = threading.Lock()
        self.held_count = 0

    def count_held(self) -> None:
        """Count one more held handle."""
        with self._lock:
            self.held_count += 1

    def add_handle(self, handle: str) -> None:
        """Add a released handle."""
        self._ids.append(handle)

    def take_handles(self) -> list[str]:
        """Take some handles that have not been released at the workers."""
        handles: list[str] = []
        while self._ids and len(handles) < requests.MAX_FREED:
            handles.append(self._ids.popleft())
        with self._lock:
            self.held_count -= len(handles)
        return handles

    def return_handles(self, ids: Sequence[str]) -> None:
        """Return handles that were not released after all."""
        self._ids.extend(ids)
        with self._lock:
            self.held_count += len(ids)


def _freed_handles(cluster: Client) -> FreedHandles:
    freed: FreedHandles = cluster.__dict__.setdefault("_freed_handles", FreedHandles())
    return freed


def _run_expression_job(
    cluster: Client,
    nodes: Sequence[ExpressionNode],
    outputs: Sequence[tuple[str, Mapping[str, Any]]],
    replacements: Mapping[ExpressionNode, ExpressionNode] = MappingProxyType({}),
) -> JobResult:
    """Run one job for several expressions."""
    built = build(nodes, outputs, replacements)
    freed = _freed_handles(cluster)
    free = freed.take_handles()
    parameters = {"plan": built.plan.to_header(), "free": free}
    specs = [private_input_spec(name, value) for name, value in built.inputs.items()]
    try:
        # also here, so that a mistake costs nothing
        requests.check_expression(requests.ComputeRequest(built.plan, tuple(free)), specs)
        return cluster.run(requests.NAME, parameters, built.inputs)
    except TfeBenchError:
        freed.return_handles(free)
        raise


def decode_array_elements(ring: Any, spec: ArraySpec) -> Any:
    """Decode ring elements to values."""
    if spec.kind == BITS:
        decoded: Any = ring != 0
    elif spec.kind == INT:
        decoded = ring
    else:
        decoded = FixedPoint(spec.scale).decode(ring)
    return np.reshape(decoded, spec.shape)[()]


def run_expression_nodes(
    cluster: Client,
    revealed: Sequence[ExpressionNode],
    computed: Sequence[ExpressionNode],
    replacements: Mapping[ExpressionNode, ExpressionNode] = MappingProxyType({}),
) -> tuple[list[Any], list[ExpressionNode]]:
    """Reveal some values and let the workers hold others, by one job.

    Args:
        replacements: leaves that replace nodes.

    Returns:
        the elements of the former, and the latter as leaves.
    """
    handles = [HeldArrayHandle() for _ in computed]
    ends: list[tuple[str, Mapping[str, Any]]] = [(REVEAL, {})] * len(revealed)
    ends += [(HANDLE, {"handle": handle.id}) for handle in handles]
    result = _run_expression_job(cluster, [*revealed, *computed], ends, replacements)
    freed, leaves = _freed_handles(cluster), []
    for node, handle in zip(computed, handles, strict=True):
        freed.count_held()
        weakref.finalize(handle, freed.add_handle, handle.id).atexit = False
        spec = node.spec
        leaf = ExpressionLeaf(HANDLE, spec.kind, spec.shape, spec.scale, (handle.id,))
        leaves.append(ExpressionNode(spec, leaf=leaf, holds=handle, bounds=node.bounds))
    values = [
        decode_array_elements(result.outputs[requests.revealed_output_name(i)], node.spec)
        for i, node in enumerate(revealed)
    ]
    return values, leaves


def keep_array_node(
    cluster: Client,
    node: ExpressionNode,
    name: str,
    clients: Sequence[str],
    replace: bool,
    counts_to_check: tuple[Sequence[str], Sequence[ExpressionNode]] = ((), ()),
) -> None:
    """Let the workers store a value under a name.

    Args:
        counts_to_check: texts and numbers of violations, which must be 0 for a correct value.
    """
    check_name(name, "An array's name")
    if isinstance(clients, str):
        raise UsageError(
            "clients is a list of names. Received: a text.", code="wrong-type", operation="clients"
        )
    cluster.check_members(clients)
    about = {"name": name, "clients": list(clients), "replace": replace}
    texts, counts = counts_to_check
    for count in counts:  # (first, as the stored array may replace an earlier one)
        try:
            number = run_expression_nodes(cluster, [count], [])[0][0]
        except PolicyError as error:
            raise PolicyError(
                f"Before {name!r} is stored, this client learns how many of its values left "
                f"their range. {error} Store its operands instead, or hold it: y.compute().",
                code="violations-not-permitted",
                operation=name,
            ) from None
        planning.check_violation_counts(texts, number)
    _run_expression_job(cluster, [node], [(KEEP, about)])


def release_all_handles(cluster: Client) -> None:
    """Release everything that the workers hold for a client, as far as they respond."""
    freed = _freed_handles(cluster)
    if not freed.held_count:
        return
    try:
        cluster.run(requests.NAME, {"plan": None, "free": ["*"]}, {})
    except TfeBenchError:
        return  # (they release it by themselves when the lease ends)
