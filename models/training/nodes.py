"""A graph's layers as the nodes that a step runs: what is fused, and what needs gradients."""

from __future__ import annotations

from dataclasses import dataclass

from tfe_bench.errors import UsageError
from tfe_bench.models.graph import Graph, Layer

LINEAR = ("dense", "conv2d", "depthwise_conv2d")
TRAINABLE = (
    *LINEAR,
    *("relu", "leaky_relu", "sigmoid", "tanh"),
    *("avg_pool2d", "global_avg_pool2d", "zero_pad2d", "dropout"),
    *("flatten", "reshape", "identity", "rescale", "add", "subtract", "concat"),
)


@dataclass(frozen=True, eq=False)
class Node:
    """One or several layers that a step runs together.

    Attributes:
        op: "linear" (a product with weights), or the kind of its first layer.
        layer: the first one.
        activation: a ReLU behind it that is run with it, or None.
        inputs: names of values.
        output: name of the value that it gives.
        last: whether that is the model's output.
    """

    op: str
    layer: Layer
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
    if unfit:
        raise UsageError(
            f"Layers that cannot be trained: {', '.join(unfit)}. Those that can: "
            f"{', '.join(TRAINABLE)}."
        )


def nodes_of(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph in an order in which they can run."""
    uses, by_name = graph.uses(), graph.by_name
    found, fused = [], set()
    for layer in graph.layers:
        if layer.name in fused:
            continue
        activation = None
        if layer.op in LINEAR and len(uses[layer.name]) == 1:
            follower = by_name.get(uses[layer.name][0])
            if follower is not None and follower.op == "relu":
                activation = follower
                fused.add(follower.name)
        output = layer.name if activation is None else activation.name
        op = "linear" if layer.op in LINEAR else layer.op
        last = output in graph.outputs
        found.append(Node(op, layer, activation, layer.inputs, output, last))
    return tuple(found)


def differentiated(graph: Graph, frozen: frozenset[str]) -> set[str]:
    """Names of the values that depend on weights that are trained."""
    found: set[str] = set()
    for layer in graph.layers:
        own = any(f"{layer.name}/{name}" not in frozen for name in layer.weights)
        if own or any(i in found for i in layer.inputs):
            found.add(layer.name)
    return found
