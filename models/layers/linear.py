"""What products with weights have in common: dense layers, convolutions, factors of channels.

A prediction runs them as terms of a `sum`; a training step runs each with what follows at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.kinds.checks import check_bias, check_value, check_weights
from tfe_bench.models.kinds.kind import Kind, Observer
from tfe_bench.models.kinds.layer import Array, LayerSpec, Options, PlacedLayer, Shape, Shapes
from tfe_bench.models.kinds.passes import ForwardContext, Gradients, reshape_value, sum_axes
from tfe_bench.models.kinds.reading import LayerCall
from tfe_bench.protocols.ring.products import BilinearMap, Product
from tfe_bench.protocols.session.sharing import Shared


@dataclass(frozen=True, eq=False)
class BilinearMaps:
    """A layer's product and its two gradients.

    Attributes:
        forward: (x, w) -> y.
        kernel: (x, g) -> dw.
        image: (g, w) -> dx.
    """

    forward: BilinearMap
    kernel: BilinearMap
    image: BilinearMap


class Linear(Kind):
    """x . kernel + bias under a bilinear map.

    Attributes:
        mixes: whether every output is a sum over all channels of the input.
    """

    mixes_channels: ClassVar[bool] = False

    def product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        """The shape of x . kernel.

        Raises:
            Bad: options or a kernel that do not fit.
        """
        raise NotImplementedError

    def multiply_plaintext(self, x: Array, kernel: Array, options: Options) -> Array:
        """x . kernel in float64, with a batch."""
        raise NotImplementedError

    def get_bilinear_map(self, options: Options) -> BilinearMap:
        """x . kernel on shares."""
        raise NotImplementedError

    # ---- what passes ask

    def has_no_padding(self, x: LayerSpec) -> bool:
        """Whether every product is of values, none of a border's zeros."""
        return True

    def scale_kernel(self, kernel: Array, factor: Array) -> Array:
        """The kernel whose products are those of the old one times a factor for each channel."""
        return kernel * factor

    # ---- a layer of its own

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        check_value(len(input_shapes) == 1, "one input", len(input_shapes))
        check_weights(weights, "kernel", optional=["bias"])
        product_shape = self.product_shape(input_shapes[0], options, weights["kernel"])
        check_bias(weights, product_shape[-1])
        return product_shape

    def compute_plaintext(self, x: LayerSpec, values: list[Array], observe: Observer) -> Array:
        product = self.multiply_plaintext(
            values[0], np.asarray(x.weights["kernel"], np.float64), x.options
        )
        return add_bias(product, x)


def collect_weights(call: LayerCall, kernel: Any) -> dict[str, Any]:
    """The weights of a layer of Keras."""
    layer = call.layer
    return {"kernel": kernel, "bias": layer.bias} if layer.use_bias else {"kernel": kernel}


def add_bias(y: Array, x: LayerSpec) -> Array:
    """y, and the layer's bias if it has one."""
    return np.asarray(y + np.asarray(x.weights["bias"], np.float64) if "bias" in x.weights else y)


# ---- in training: what follows a product at once


def apply_fused(p: ForwardContext, node: PlacedLayer, small: Shared) -> tuple[Shared, Any]:
    """A small ring's value behind the node's max pooling and ReLU, and which way it went."""
    if node.pool is not None:
        return p.ops.max_pool(small, node.pool.options, node.activation is not None)
    return p.ops.relu_with_derivative(small)


def backpropagate_fused(p: ForwardContext, node: PlacedLayer, g: Shared, chosen: Any) -> Shared:
    """The gradient before them, at the gradients' scale."""
    f = p.precision.gradient
    if node.pool is not None:
        return p.ops.unpool(chosen, p.ops.add_fractional_bits(g, max(g.fractional_bits, f + 1)), f)
    if node.activation is not None:
        return p.ops.inject_truncated(chosen, g, max(0, g.fractional_bits - f), negated=True)
    return p.rescale_gradient(g)


class TrainableLinear(Linear):
    """A product whose weights are learned."""

    can_fuse = True

    def build_maps(self, node: PlacedLayer, x: Shape) -> BilinearMaps:
        """The maps of a node for an input of a shape, with the batch."""
        raise NotImplementedError

    def flatten_shape(self, shape: Shape) -> Shape:
        """The shape in which the maps take a value, with the batch."""
        return shape

    def forward_training(self, p: ForwardContext, node: PlacedLayer, *values: Shared) -> Shared:
        """x . w + bias, and a max pooling and a ReLU behind it."""
        (x,), ops, precision = values, p.ops, p.precision
        w, offset = p.get_weight(node.layer, "kernel"), p.get_optional_weight(node.layer, "bias")
        shape = ops.get_shape(x)
        flat = _reshape_if_needed(p, x, self.flatten_shape(shape))
        maps = self.build_maps(node, ops.get_shape(flat))
        products = [Product(flat, w, maps.forward)]
        if offset is not None:
            offset = ops.add_fractional_bits(offset, precision.product_bits)
        chosen = None
        # the logistic function, as comparisons, works on what is in a small ring
        if node.has_fused or (node.is_output and p.accepts_small_ring):
            y = p.truncate_to_small_ring(node, products, offset, precision.weight)
            y = _restore_shape(p, y, shape, flat)  # (a pooling wants images)
            if node.has_fused:
                y, chosen = apply_fused(p, node, y)
        else:
            y = ops.sum_products(products, offset)
            # (the loss takes the model's output as it is)
            y = y if node.is_output else ops.truncate(y, precision.weight)
            y = _restore_shape(p, y, shape, flat)
        p.saved[node.output] = (flat, chosen, maps)
        return y

    def backward(
        self, p: ForwardContext, node: PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> Gradients:
        """Gradients of the kernel, of the bias and, where wanted, of the input."""
        ops, name = p.ops, node.layer.name
        x, chosen, maps = p.saved[node.output]
        g = backpropagate_fused(p, node, g, chosen)
        shape = ops.get_shape(g)
        g = flat = _reshape_if_needed(p, g, self.flatten_shape(shape))
        if p.is_trained(node.layer, "kernel"):
            p.weight_gradients[f"{name}/kernel"] = ops.sum_products([Product(x, g, maps.kernel)])
        if p.is_trained(node.layer, "bias"):
            p.weight_gradients[f"{name}/bias"] = sum_axes(
                ops, g, list(range(len(ops.get_shape(g)) - 1))
            )
        if not needs_input_gradient:
            return [None]
        dx = ops.sum_products([Product(g, p.get_weight(node.layer, "kernel"), maps.image)])
        return [_restore_shape(p, dx, shape, flat)]


def _reshape_if_needed(p: ForwardContext, x: Shared, shape: Shape) -> Shared:
    return x if p.ops.get_shape(x) == shape else reshape_value(p.ops, x, shape)


def _restore_shape(p: ForwardContext, y: Shared, shape: Shape, flat: Shared) -> Shared:
    """What comes of rows in the shape that these had, but for the channels."""
    return (
        y
        if p.ops.get_shape(flat) == shape
        else reshape_value(p.ops, y, (*shape[:-1], p.ops.get_shape(y)[-1]))
    )
