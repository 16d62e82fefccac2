"""Forward and backward pass through a model, node by node."""

from __future__ import annotations

from tfe_bench.models.layers.base import ForwardContext, add_aligned, registry
from tfe_bench.models.training.recipe import Recipe
from tfe_bench.protocols.session.sharing import Shared


def run_forward_pass(p: ForwardContext, recipe: Recipe, x: Shared) -> Shared:
    """Compute the model's output for a batch."""
    (name,) = recipe.graph.inputs
    values = {name: x}
    for node in recipe.nodes:
        inputs = [values[i] for i in node.layer.inputs]
        values[node.output] = registry.get_layer_kind(node.layer.op).forward_training(
            p, node, *inputs
        )
    return values[recipe.graph.outputs[0]]


def run_backward_pass(
    p: ForwardContext, recipe: Recipe, g: Shared, differentiated: set[str]
) -> dict[str, Shared]:
    """Compute the gradients of the weights, as sums over the batch, from that of the output.

    Args:
        differentiated: names of the values whose gradients are needed.
    """
    pending = {recipe.graph.outputs[0]: g}
    for node in reversed(recipe.nodes):
        gradient, inputs = pending.pop(node.output, None), node.layer.inputs
        if gradient is None or node.output not in differentiated:
            continue
        needs_input_gradient = any(i in differentiated for i in inputs)
        parts = registry.get_layer_kind(node.layer.op).backward(
            p, node, gradient, needs_input_gradient
        )
        for name, part in zip(inputs, parts, strict=True):
            if part is None or name not in differentiated:
                continue
            pending[name] = add_aligned(p.ops, pending[name], part) if name in pending else part
    return p.weight_gradients
