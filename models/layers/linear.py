"""What products with weights have in common: dense layers, convolutions, factors of channels.

A prediction runs them as terms of a `sum`; a training step runs each with what follows at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.kinds.checks import bias, held, need
from tfe_bench.models.kinds.kind import Kind, Watch
from tfe_bench.models.kinds.layer import Array, Layer, Node, Options, Shape, Shapes
from tfe_bench.models.kinds.passes import Gradients, Pass, reshaped, summed
from tfe_bench.models.kinds.reading import Call
from tfe_bench.protocols.ring.products import Product, Two
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True, eq=False)
class Maps:
    """A layer's product and its two gradients.

    Attributes:
        forward: (x, w) -> y.
        kernel: (x, g) -> dw.
        image: (g, w) -> dx.
    """

    forward: Two
    kernel: Two
    image: Two


class Linear(Kind):
    """x . kernel + bias under a bilinear map.

    Attributes:
        mixes: whether every output is a sum over all channels of the input.
    """

    mixes: ClassVar[bool] = False

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        """The shape of x . kernel.

        Raises:
            Bad: options or a kernel that do not fit.
        """
        raise NotImplementedError

    def multiplied(self, x: Array, kernel: Array, options: Options) -> Array:
        """x . kernel in float64, with a batch."""
        raise NotImplementedError

    def bilinear(self, options: Options) -> Two:
        """x . kernel on shares."""
        raise NotImplementedError

    # ---- what passes ask

    def pads_nothing(self, x: Layer) -> bool:
        """Whether every product is of values, none of a border's zeros."""
        return True

    def scaled(self, kernel: Array, factor: Array) -> Array:
        """The kernel whose products are those of the old one times a factor for each channel."""
        return kernel * factor

    # ---- a layer of its own

    def shape(self, given: list[Shape], options: Options, weights: Shapes) -> Shape:
        need(len(given) == 1, "one input", len(given))
        held(weights, "kernel", optional=["bias"])
        found = self.product_shape(given[0], options, weights["kernel"])
        bias(weights, found[-1])
        return found

    def plain(self, x: Layer, values: list[Array], seen: Watch) -> Array:
        found = self.multiplied(values[0], np.asarray(x.weights["kernel"], np.float64), x.options)
        return biased(found, x)


def with_bias(call: Call, kernel: Any) -> dict[str, Any]:
    """The weights of a layer of Keras."""
    layer = call.layer
    return {"kernel": kernel, "bias": layer.bias} if layer.use_bias else {"kernel": kernel}


def biased(y: Array, x: Layer) -> Array:
    """y, and the layer's bias if it has one."""
    return np.asarray(y + np.asarray(x.weights["bias"], np.float64) if "bias" in x.weights else y)


# ---- in training: what follows a product at once


def bend(p: Pass, node: Node, small: Shared) -> tuple[Shared, Any]:
    """A small ring's value behind the node's max pooling and ReLU, and which way it went."""
    if node.pool is not None:
        return p.ops.max_pool(small, node.pool.options, node.activation is not None)
    return p.ops.relu_with_derivative(small)


def unbend(p: Pass, node: Node, g: Shared, chosen: Any) -> Shared:
    """The gradient before them, at the gradients' scale."""
    f = p.precision.gradient
    if node.pool is not None:
        return p.ops.unpool(chosen, p.ops.shifted(g, max(g.fractional_bits, f + 1)), f)
    if node.activation is not None:
        return p.ops.inject_truncated(chosen, g, max(0, g.fractional_bits - f), negated=True)
    return p.settled(g)


class Trained(Linear):
    """A product whose weights are learned."""

    fuses = True

    def maps(self, node: Node, x: Shape) -> Maps:
        """The maps of a node for an input of a shape, with the batch."""
        raise NotImplementedError

    def rows(self, shape: Shape) -> Shape:
        """The shape in which the maps take a value, with the batch."""
        return shape

    def train(self, p: Pass, node: Node, *values: Shared) -> Shared:
        """x . w + bias, and a max pooling and a ReLU behind it."""
        (x,), ops, precision = values, p.ops, p.precision
        w, offset = p.weight(node.layer, "kernel"), p.weight_or_none(node.layer, "bias")
        shape = ops.shape(x)
        flat = _in_shape(p, x, self.rows(shape))
        maps = self.maps(node, ops.shape(flat))
        products = [Product(flat, w, maps.forward)]
        if offset is not None:
            offset = ops.shifted(offset, precision.product)
        chosen = None
        # the logistic function, as comparisons, works on what is in a small ring
        if node.bent or (node.last and p.small):
            y = p.narrowed(node, products, offset, precision.weight)
            y = _as_before(p, y, shape, flat)  # (a pooling wants images)
            if node.bent:
                y, chosen = bend(p, node, y)
        else:
            y = ops.product(products, offset)
            # (the loss takes the model's output as it is)
            y = y if node.last else ops.truncate(y, precision.weight)
            y = _as_before(p, y, shape, flat)
        p.kept[node.output] = (flat, chosen, maps)
        return y

    def backward(self, p: Pass, node: Node, g: Shared, wanted: bool) -> Gradients:
        """Gradients of the kernel, of the bias and, where wanted, of the input."""
        ops, name = p.ops, node.layer.name
        x, chosen, maps = p.kept[node.output]
        g = unbend(p, node, g, chosen)
        shape = ops.shape(g)
        g = flat = _in_shape(p, g, self.rows(shape))
        if p.learns(node.layer, "kernel"):
            p.found[f"{name}/kernel"] = ops.product([Product(x, g, maps.kernel)])
        if p.learns(node.layer, "bias"):
            p.found[f"{name}/bias"] = summed(ops, g, list(range(len(ops.shape(g)) - 1)))
        if not wanted:
            return [None]
        dx = ops.product([Product(g, p.weight(node.layer, "kernel"), maps.image)])
        return [_as_before(p, dx, shape, flat)]


def _in_shape(p: Pass, x: Shared, shape: Shape) -> Shared:
    return x if p.ops.shape(x) == shape else reshaped(p.ops, x, shape)


def _as_before(p: Pass, y: Shared, shape: Shape, flat: Shared) -> Shared:
    """What comes of rows in the shape that these had, but for the channels."""
    return (
        y if p.ops.shape(flat) == shape else reshaped(p.ops, y, (*shape[:-1], p.ops.shape(y)[-1]))
    )
