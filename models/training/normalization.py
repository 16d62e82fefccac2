"""BatchNormalization: by the batch's statistics in a step, by the running ones in an evaluation."""

from __future__ import annotations

from tfe_bench.models.training.nodes import Node
from tfe_bench.models.training.operations import Bilinear, Value
from tfe_bench.models.training.passes import Pass
from tfe_bench.models.training.products import bent, unbent
from tfe_bench.protocols.nn import batch_norm
from tfe_bench.protocols.ring.products import elementwise

ELEMENTWISE = Bilinear(elementwise, lambda x, w: x)
# Of the running variance's reciprocal root.
ROOT_PRECISION = 16


def _constant(p: Pass, like: Value, value: int) -> Value:
    """A public number for each channel."""
    return p.ops.add_public(p.ops.times(like, 0), value)


def forward(p: Pass, node: Node, x: Value) -> Value:
    """gamma (x - mean) / sqrt(variance + epsilon) + beta, and what follows at once."""
    ops, o, numbers = p.ops, node.layer.options, p.recipe.numbers
    name, f = node.layer.name, batch_norm.FACTOR
    means, variances = (p.weights[f"{name}/moving_{what}"] for what in ("mean", "variance"))
    gamma, beta = p.weight(node, "gamma"), p.weight(node, "beta")
    gamma = _constant(p, means, 1 << f) if gamma is None else gamma
    found = None
    if p.learning:
        found = ops.normalise(x, gamma, o["epsilon"])
        centred, factor = ops.centred(found)
        new = ops.running(found, means, variances, o["momentum"])
        p.renewed[f"{name}/moving_mean"], p.renewed[f"{name}/moving_variance"] = new
    else:
        raised = ops.add_public(variances, round(o["epsilon"] * 2**f))
        root = ops.rsqrt(raised, batch_norm.VARIANCE_BITS, ROOT_PRECISION)
        factor = ops.truncate(ops.mul(gamma, root), f)
        # (the values have fewer bits than the running mean)
        mean = ops.truncate(means, f - x.fractional_bits)
        centred = ops.sub(x, mean)
    addend = None if beta is None else ops.shifted(beta, f + x.fractional_bits)
    if node.activation is None and node.pool is None:
        y = ops.mul(centred, factor)
        y, chosen = ops.truncate(y if addend is None else ops.add(y, addend), f), None
    else:
        small = ops.truncated_product(centred, factor, ELEMENTWISE, addend, f, numbers.ring)
        y, chosen = bent(p, node, small)
    p.kept[node.output] = (found, chosen)
    return y


def backward(p: Pass, node: Node, g: Value, wanted: bool) -> list[Value | None]:
    """Gradients of the input, of gamma and of beta."""
    found, chosen = p.kept[node.output]
    dx, gamma, beta = p.ops.normalise_back(found, unbent(p, node, g, chosen))
    for name, gradient in (("gamma", gamma), ("beta", beta)):
        if p.learns(node, name):
            p.found[f"{node.layer.name}/{name}"] = gradient
    return [dx]
