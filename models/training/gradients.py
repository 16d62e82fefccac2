"""A model forward and backward, node by node."""

from __future__ import annotations

from tfe_bench.models.kinds import registry
from tfe_bench.models.kinds.passes import Pass, joined
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.session.sharing import Shared


def forward(p: Pass, recipe: Recipe, x: Shared) -> Shared:
    """The model's output for a batch."""
    (name,) = recipe.graph.inputs
    values = {name: x}
    for node in recipe.nodes:
        given = [values[i] for i in node.layer.inputs]
        values[node.output] = registry.find(node.layer.op).train(p, node, *given)
    return values[recipe.graph.outputs[0]]


def backward(p: Pass, recipe: Recipe, g: Shared, differentiated: set[str]) -> dict[str, Shared]:
    """Gradients of the weights, as sums over the batch, from that of the output.

    Args:
        differentiated: names of the values whose gradients are wanted.
    """
    waiting = {recipe.graph.outputs[0]: g}
    for node in reversed(recipe.nodes):
        given, inputs = waiting.pop(node.output, None), node.layer.inputs
        if given is None or node.output not in differentiated:
            continue
        wanted = any(i in differentiated for i in inputs)
        parts = registry.find(node.layer.op).backward(p, node, given, wanted)
        for name, part in zip(inputs, parts, strict=True):
            if part is None or name not in differentiated:
                continue
            waiting[name] = joined(p.ops, waiting[name], part) if name in waiting else part
    return p.found
