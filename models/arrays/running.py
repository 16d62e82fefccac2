"""Expressions on their way to the workers, and what comes back: revealed, held or kept."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster.requests import spec_of
from tfe_bench.cluster.stored import check_name
from tfe_bench.errors import PolicyError, TfeBenchError, UsageError
from tfe_bench.models.arrays import planning
from tfe_bench.models.arrays.building import build
from tfe_bench.models.arrays.evaluate import Meaning
from tfe_bench.models.arrays.node import Handle, Node
from tfe_bench.models.arrays.plan import BITS, HANDLE, INT, KEEP, REVEAL, Leaf
from tfe_bench.models.programs import compute as program
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.cluster.client import Client
    from tfe_bench.cluster.requests import JobResult


class Freed:
    """Handles that a client has let go of, to be told with its next job."""

    def __init__(self) -> None:
        # (a finalizer may run in any thread, within any other call)
        self._ids: collections.deque[str] = collections.deque()
        self._lock = threading.Lock()
        self.alive = 0

    def made(self) -> None:
        """One more is held."""
        with self._lock:
            self.alive += 1

    def add(self, handle: str) -> None:
        """One is let go of."""
        self._ids.append(handle)

    def take(self) -> list[str]:
        """Some that have not been told of."""
        found: list[str] = []
        while self._ids and len(found) < program.MOST_FREED:
            found.append(self._ids.popleft())
        with self._lock:
            self.alive -= len(found)
        return found

    def back(self, ids: Sequence[str]) -> None:
        """They were not told after all."""
        self._ids.extend(ids)
        with self._lock:
            self.alive += len(ids)


def _freed(cluster: Client) -> Freed:
    found: Freed = cluster.__dict__.setdefault("_freed_handles", Freed())
    return found


def _run(
    cluster: Client,
    nodes: Sequence[Node],
    outputs: Sequence[tuple[str, Mapping[str, Any]]],
    instead: Mapping[Node, Node] = MappingProxyType({}),
) -> JobResult:
    """One job for several expressions."""
    built = build(nodes, outputs, instead)
    freed = _freed(cluster)
    free = freed.take()
    parameters = {"plan": built.plan.header(), "free": free}
    specs = [spec_of(name, value) for name, value in built.inputs.items()]
    try:
        program.check(parameters, specs)  # here too: a mistake costs nothing then
        return cluster.run(program.NAME, parameters, built.inputs)
    except TfeBenchError:
        freed.back(free)
        raise


def decoded(ring: Any, meaning: Meaning) -> Any:
    """Ring elements as what they mean."""
    if meaning.kind == BITS:
        found: Any = ring != 0
    elif meaning.kind == INT:
        found = ring
    else:
        found = FixedPoint(meaning.scale).decode(ring)
    return np.reshape(found, meaning.shape)[()]


def run(
    cluster: Client,
    revealed: Sequence[Node],
    held: Sequence[Node],
    instead: Mapping[Node, Node] = MappingProxyType({}),
) -> tuple[list[Any], list[Node]]:
    """Values that are revealed and values that the workers hold afterwards, by one job.

    Args:
        instead: leaves that are taken in place of nodes.

    Returns:
        the elements of the former, and the latter as leaves.
    """
    handles = [Handle() for _ in held]
    ends: list[tuple[str, Mapping[str, Any]]] = [(REVEAL, {})] * len(revealed)
    ends += [(HANDLE, {"handle": handle.id}) for handle in handles]
    result = _run(cluster, [*revealed, *held], ends, instead)
    freed, found = _freed(cluster), []
    for node, handle in zip(held, handles, strict=True):
        freed.made()
        weakref.finalize(handle, freed.add, handle.id).atexit = False
        own = node.meaning
        leaf = Leaf(HANDLE, own.kind, own.shape, own.scale, (handle.id,))
        found.append(Node(own, leaf=leaf, holds=handle, bounds=node.bounds))
    values = [
        decoded(result.outputs[program.output_name(i)], node.meaning)
        for i, node in enumerate(revealed)
    ]
    return values, found


def keep(
    cluster: Client,
    node: Node,
    name: str,
    clients: Sequence[str],
    replace: bool,
    counted: tuple[Sequence[str], Sequence[Node]] = ((), ()),
) -> None:
    """Has the workers keep a value under a name.

    Args:
        counted: what has to be 0 for the value to be right, in words, and the numbers.
    """
    check_name(name, "An array's name")
    if isinstance(clients, str):
        raise UsageError("clients is a list of names. Received: a text.")
    cluster.check_members(clients)
    about = {"name": name, "clients": list(clients), "replace": replace}
    texts, counts = counted
    for count in counts:  # (first, since what was kept before may be replaced)
        try:
            number = run(cluster, [count], [])[0][0]
        except PolicyError as error:
            raise PolicyError(
                f"Before {name!r} is kept, this client learns how many of its values left their "
                f"range. {error} Keep what it is made of, or hold it: y.compute()."
            ) from None
        planning.refuse(texts, number)
    _run(cluster, [node], [(KEEP, about)])


def leave(cluster: Client) -> None:
    """Lets go of all that the workers hold for a client, as far as they answer."""
    freed = _freed(cluster)
    if not freed.alive:
        return
    try:
        cluster.run(program.NAME, {"plan": None, "free": ["*"]}, {})
    except TfeBenchError:
        return  # (they let go of it by themselves, after a while)
