"""The base classes of products with weights: dense layers, convolutions, factors of channels.

A prediction runs them as terms of a `sum`; a training step fuses each with its following layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.base import Array, Options, Shape, Shapes
from tfe_bench.protocols.ring.products import BilinearMap, BilinearShareProduct
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


class WeightedProduct(L.Kind):
    """x . kernel + bias under a bilinear map.

    Attributes:
        mixes_channels: whether every output is a sum over all channels of the input.
    """

    mixes_channels: ClassVar[bool] = False

    def infer_kernel_product_shape(self, x: Shape, options: Options, kernel: Shape) -> Shape:
        """Infer the shape of x . kernel.

        Raises:
            InvalidOption: options or kernel do not fit.
        """
        raise NotImplementedError

    def multiply_plaintext_kernel(self, x: Array, kernel: Array, options: Options) -> Array:
        """Compute x . kernel in float64, with a batch."""
        raise NotImplementedError

    def get_bilinear_map(self, options: Options) -> BilinearMap:
        """Return x . kernel on shares."""
        raise NotImplementedError

    # ---- properties for graph passes

    def has_no_padding(self, x: L.LayerSpec) -> bool:
        """Return whether no product involves padding zeros."""
        return True

    def scale_kernel(self, kernel: Array, factor: Array) -> Array:
        """Return the kernel whose products are the old ones times a factor for each channel."""
        return kernel * factor

    # ---- a layer by itself

    def infer_shape(self, input_shapes: list[Shape], options: Options, weights: Shapes) -> Shape:
        L.check_value(len(input_shapes) == 1, "one input", len(input_shapes))
        L.check_weights(weights, "kernel", optional=["bias"])
        product_shape = self.infer_kernel_product_shape(input_shapes[0], options, weights["kernel"])
        L.check_bias(weights, product_shape[-1])
        return product_shape

    def compute_plaintext(self, x: L.LayerSpec, values: list[Array], observe: L.Observer) -> Array:
        product = self.multiply_plaintext_kernel(
            values[0], np.asarray(x.weights["kernel"], np.float64), x.options
        )
        return add_layer_bias(product, x)


def collect_layer_weights(call: L.LayerCall, kernel: Any) -> dict[str, Any]:
    """Return the weights of a Keras layer."""
    layer = call.layer
    return {"kernel": kernel, "bias": layer.bias} if layer.use_bias else {"kernel": kernel}


def add_layer_bias(y: Array, x: L.LayerSpec) -> Array:
    """Add the layer's bias to y, if it has one."""
    return np.asarray(y + np.asarray(x.weights["bias"], np.float64) if "bias" in x.weights else y)


# ---- training: layers fused with a product


def apply_fused_layers(
    p: L.ForwardContext, node: L.PlacedLayer, small: Shared
) -> tuple[Shared, Any]:
    """Apply the fused max pooling and ReLU to a small ring's value; also returns the choices."""
    if node.pool is not None:
        return p.ops.max_pool(small, node.pool.options, node.activation is not None)
    return p.ops.relu_with_derivative(small)


def backpropagate_fused_layers(
    p: L.ForwardContext, node: L.PlacedLayer, g: Shared, chosen: Any
) -> Shared:
    """Return the gradient before the fused layers, at the gradients' scale."""
    f = p.precision.gradient
    if node.pool is not None:
        return p.ops.unpool(chosen, p.ops.add_fractional_bits(g, max(g.fractional_bits, f + 1)), f)
    if node.activation is not None:
        return p.ops.inject_truncated(chosen, g, max(0, g.fractional_bits - f), negated=True)
    return p.rescale_gradient(g)


class TrainableWeightedProduct(WeightedProduct):
    """A product whose weights are learned."""

    can_fuse = True

    def build_bilinear_maps(self, node: L.PlacedLayer, x: Shape) -> BilinearMaps:
        """Build the maps of a node for an input of a shape, with the batch."""
        raise NotImplementedError

    def flatten_shape(self, shape: Shape) -> Shape:
        """Return the shape in which the maps accept a value, with the batch."""
        return shape

    def forward_training(self, p: L.ForwardContext, node: L.PlacedLayer, *values: Shared) -> Shared:
        """Compute x . w + bias, and a fused max pooling and ReLU."""
        (x,), ops, precision = values, p.ops, p.precision
        w, offset = p.get_weight(node.layer, "kernel"), p.get_optional_weight(node.layer, "bias")
        shape = ops.get_shape(x)
        flat = _reshape_layer_value(p, x, self.flatten_shape(shape))
        maps = self.build_bilinear_maps(node, ops.get_shape(flat))
        products = [BilinearShareProduct(flat, w, maps.forward)]
        if offset is not None:
            offset = ops.add_fractional_bits(offset, precision.product_bits)
        chosen = None
        # the logistic function and comparisons work on values in a small ring
        if node.has_fused or (node.is_output and p.accepts_small_ring):
            y = p.truncate_to_small_ring(node, products, offset, precision.weight)
            y = _restore_layer_row_shape(p, y, shape, flat)  # (pooling needs images)
            if node.has_fused:
                y, chosen = apply_fused_layers(p, node, y)
        else:
            y = ops.sum_products(products, offset)
            # (the loss accepts the model's output untruncated)
            y = y if node.is_output else ops.truncate(y, precision.weight)
            y = _restore_layer_row_shape(p, y, shape, flat)
        p.saved[node.output] = (flat, chosen, maps)
        return y

    def backward(
        self, p: L.ForwardContext, node: L.PlacedLayer, g: Shared, needs_input_gradient: bool
    ) -> L.Gradients:
        """Compute the gradients of the kernel, of the bias and, if needed, of the input."""
        ops, name = p.ops, node.layer.name
        x, chosen, maps = p.saved[node.output]
        g = backpropagate_fused_layers(p, node, g, chosen)
        shape = ops.get_shape(g)
        g = flat = _reshape_layer_value(p, g, self.flatten_shape(shape))
        if p.is_trained(node.layer, "kernel"):
            p.weight_gradients[f"{name}/kernel"] = ops.sum_products(
                [BilinearShareProduct(x, g, maps.kernel)]
            )
        if p.is_trained(node.layer, "bias"):
            p.weight_gradients[f"{name}/bias"] = L.sum_axes(
                ops, g, list(range(len(ops.get_shape(g)) - 1))
            )
        if not needs_input_gradient:
            return [None]
        dx = ops.sum_products(
            [BilinearShareProduct(g, p.get_weight(node.layer, "kernel"), maps.image)]
        )
        return [_restore_layer_row_shape(p, dx, shape, flat)]


def _reshape_layer_value(p: L.ForwardContext, x: Shared, shape: Shape) -> Shared:
    return x if p.ops.get_shape(x) == shape else L.reshape_value(p.ops, x, shape)


def _restore_layer_row_shape(p: L.ForwardContext, y: Shared, shape: Shape, flat: Shared) -> Shared:
    """Reshape the result for flattened rows to the rows' former shape, except for the channels."""
    return (
        y
        if p.ops.get_shape(flat) == shape
        else L.reshape_value(p.ops, y, (*shape[:-1], p.ops.get_shape(y)[-1]))
    )
