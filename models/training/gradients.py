"""A model forward and backward, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tfe_bench.models.training import curves, moves, normalization, products
from tfe_bench.models.training.nodes import Node
from tfe_bench.models.training.operations import Value
from tfe_bench.models.training.passes import Pass, joined

Forward = Callable[..., Value]
Backward = Callable[[Pass, Node, Value, bool], list[Value | None]]
KINDS: Mapping[str, tuple[Forward, Backward]] = {
    "linear": (products.forward, products.backward),
    "batch_norm": (normalization.forward, normalization.backward),
    "relu": (curves.relu, curves.relu_back),
    "max_pool2d": (curves.max_pool, curves.max_pool_back),
    "leaky_relu": (curves.leaky, curves.leaky_back),
    "sigmoid": (curves.sigmoid, curves.smooth_back),
    "tanh": (curves.tanh, curves.smooth_back),
    "flatten": (moves.reshape, moves.reshape_back),
    "reshape": (moves.reshape, moves.reshape_back),
    "identity": (moves.identity, moves.identity_back),
    "zero_pad2d": (moves.pad, moves.pad_back),
    "add": (moves.add, moves.add_back),
    "subtract": (moves.subtract, moves.subtract_back),
    "concat": (moves.concat, moves.concat_back),
    "rescale": (moves.rescale, moves.rescale_back),
    "avg_pool2d": (moves.average, moves.average_back),
    "global_avg_pool2d": (moves.global_average, moves.global_average_back),
    "dropout": (moves.dropout, moves.dropout_back),
}


def forward(p: Pass, x: Value) -> Value:
    """The model's output for a batch."""
    (name,) = p.recipe.graph.inputs
    values = {name: x}
    for node in p.recipe.nodes:
        given = [values[i] for i in node.inputs]
        values[node.output] = KINDS[node.op][0](p, node, *given)
    return values[p.recipe.graph.outputs[0]]


def backward(p: Pass, g: Value, differentiated: set[str]) -> dict[str, Value]:
    """Gradients of the weights, as sums over the batch, from that of the output.

    Args:
        differentiated: names of the values whose gradients are wanted.
    """
    waiting = {p.recipe.graph.outputs[0]: g}
    for node in reversed(p.recipe.nodes):
        given = waiting.pop(node.output, None)
        if given is None or node.output not in differentiated:
            continue
        wanted = any(i in differentiated for i in node.inputs)
        parts = KINDS[node.op][1](p, node, given, wanted)
        for name, part in zip(node.inputs, parts, strict=True):
            if part is None or name not in differentiated:
                continue
            waiting[name] = joined(p.ops, waiting[name], part) if name in waiting else part
    return p.found
