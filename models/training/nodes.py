"""A graph's layers as the nodes that a step runs: what is fused, and what needs gradients."""

from __future__ import annotations

from dataclasses import dataclass

from tfe_bench.errors import UsageError
from tfe_bench.models.graph import Graph, Layer
from tfe_bench.protocols.nn import pool_gradient

LINEAR = ("dense", "conv2d", "depthwise_conv2d")
TRAINABLE = (
    *LINEAR,
    *("relu", "leaky_relu", "sigmoid", "tanh"),
    "batch_norm",
    *("max_pool2d", "avg_pool2d", "global_avg_pool2d", "zero_pad2d", "dropout"),
    *("flatten", "reshape", "identity", "rescale", "add", "subtract", "concat"),
)


@dataclass(frozen=True, eq=False)
class Node:
    """One or several layers that a step runs together.

    Attributes:
        op: "linear" (a product with weights), or the kind of its first layer.
        layer: the first one.
        pool: a max pooling behind a product, or the first layer itself, or None.
        activation: a ReLU behind them (or between: both orders are the same), or None.
        inputs: names of values.
        output: name of the value that it gives.
        last: whether that is the model's output.
    """

    op: str
    layer: Layer
    pool: Layer | None
    activation: Layer | None
    inputs: tuple[str, ...]
    output: str
    last: bool


def check_trainable(graph: Graph) -> None:
    """Refuses layers that have no gradient here.

    Raises:
        UsageError: naming all of them.
    """
    unfit = []
    for layer in graph.layers:
        if layer.op not in TRAINABLE:
            unfit.append(f"{layer.name!r} ({layer.op})")
        elif layer.op == "relu" and layer.options["max_value"] is not None:
            unfit.append(f"{layer.name!r} (relu with max_value)")
        elif layer.op == "max_pool2d":
            o, shape = layer.options, graph.shapes[layer.inputs[0]]
            pool_gradient.geometry(layer.name, [1, *shape], o["ksize"], o["strides"], o["padding"])
    if unfit:
        raise UsageError(
            f"Layers that cannot be trained: {', '.join(unfit)}. Those that can: "
            f"{', '.join(TRAINABLE)}."
        )


def nodes_of(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph in an order in which they can run."""
    uses, by_name = graph.uses(), graph.by_name
    found: list[Node] = []
    fused: set[str] = set()
    for layer in graph.layers:
        if layer.name in fused:
            continue
        linear, head = layer.op in LINEAR, layer.op in (*LINEAR, "batch_norm")
        pool = layer if layer.op == "max_pool2d" else None
        activation, last = None, layer
        while head or pool is not None:
            follower = by_name.get(uses[last.name][0]) if len(uses[last.name]) == 1 else None
            if follower is None:
                break
            if follower.op == "relu" and activation is None:
                activation = follower
            elif follower.op == "max_pool2d" and pool is None:
                pool = follower
            else:
                break
            fused.add(follower.name)
            last = follower
        op = "linear" if linear else layer.op
        found.append(
            Node(op, layer, pool, activation, layer.inputs, last.name, last.name in graph.outputs)
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
