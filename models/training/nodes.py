"""A graph's layers as the nodes that a step runs: what is fused, and what needs gradients."""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.models.graph import Graph, Layer
from tfe_bench.models.kinds import registry
from tfe_bench.models.kinds.layer import Node, Numbers
from tfe_bench.models.kinds.passes import Precision
from tfe_bench.models.layers.max_pool2d import MaxPool2D
from tfe_bench.models.layers.relu import Relu
from tfe_bench.protocols.ring import compare


def check_trainable(graph: Graph) -> None:
    """Refuses layers that have no gradient here.

    Raises:
        UsageError: naming all of them.
    """
    unfit = []
    for layer in graph.layers:
        given = [graph.shapes[name] for name in layer.inputs]
        if why := registry.find(layer.op).untrained(layer, given):
            unfit.append(f"{layer.name!r} ({why})")
    if unfit:
        known = [kind.op for kind in registry.KINDS.values() if kind.trains]
        raise UsageError(
            f"Layers that cannot be trained: {', '.join(unfit)}. Those that can: "
            f"{', '.join(known)}."
        )


def nodes_of(graph: Graph, precision: Precision) -> tuple[Node, ...]:
    """The nodes of a graph in an order in which they can run."""
    uses, by_name = graph.uses(), graph.by_name
    numbers = Numbers(precision.activation, 0, compare.LAYER_BITS)
    found: list[Node] = []
    fused: set[str] = set()
    for layer in graph.layers:
        if layer.name in fused:
            continue
        fuses = registry.find(layer.op).fuses
        pool = layer if layer.op == MaxPool2D.op else None
        activation: Layer | None = None
        last = layer
        while fuses:
            follower = by_name.get(uses[last.name][0]) if len(uses[last.name]) == 1 else None
            if follower is None:
                break
            if Relu.plainly(follower) and activation is None:
                activation = follower
            elif follower.op == MaxPool2D.op and pool is None:
                pool = follower
            else:
                break
            fused.add(follower.name)
            last = follower
        node = graph.node(layer, numbers, [precision.activation] * len(layer.inputs))
        found.append(
            replace(
                node,
                output=last.name,
                pool=pool,
                activation=activation,
                last=last.name in graph.outputs,
            )
        )
    return tuple(found)


def differentiated(graph: Graph, frozen: frozenset[str]) -> set[str]:
    """Names of the values that depend on weights that are trained."""
    found: set[str] = set()
    for layer in graph.layers:
        own = any(f"{layer.name}/{name}" not in frozen for name in layer.weights)
        if own or any(i in found for i in layer.inputs):
            found.add(layer.name)
    return found
