"""EinsumDense: a matrix product between transposes and reshapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.identity import ComposedLayer


class EinsumDense(ComposedLayer):
    """x, summed with a kernel over the axes that its equation omits."""

    op = "einsum_dense"
    keras_layers = ("EinsumDense",)

    def convert_layer(self, r: L.Reader, call: L.LayerCall) -> str:
        layer, name, shape = call.layer, call.name, call.shapes[0]
        input_axes, kernel_axes, output_axes = _parse_einsum_equation(layer.equation, len(shape))
        summed_axes = [a for a in input_axes if a in kernel_axes]
        new_axes = [a for a in kernel_axes if a not in input_axes]
        free_axes = [a for a in input_axes if a not in kernel_axes]
        kept_axes = [a for a in output_axes if a in free_axes]
        is_simple = all(
            len(set(letters)) == len(letters) for letters in (input_axes, kernel_axes, output_axes)
        )
        is_product = (
            summed_axes
            and output_axes[0] == input_axes[0]
            and sorted(output_axes) == sorted([*free_axes, *new_axes])
        )
        if not (is_simple and is_product):
            raise L.UnsupportedLayer(
                f"of {layer.equation!r}; expected summed axes in both operands, other axes in one"
            )
        sizes = dict(zip(input_axes[1:], shape, strict=True))
        sizes |= dict(zip(kernel_axes, layer.kernel.shape, strict=True))
        rest_sizes, new_sizes = (
            [int(sizes[a]) for a in part] for part in (kept_axes[1:], new_axes)
        )
        # (batch, rest, summed) times [summed, new]
        order = [input_axes.index(a) for a in (*kept_axes[1:], *summed_axes)]
        value = call.inputs[0]
        if order != sorted(order):
            value = L.add_transpose_layer(r, value, f"{name}/turned", order)
        depth = math.prod(int(sizes[a]) for a in summed_axes)
        value = L.add_reshape_layer(r, value, f"{name}/rows", (math.prod(rest_sizes), depth))
        weights: dict[str, Any] = {"kernel": layer.kernel, "bias": layer.bias}
        if not r.training:
            kernel = np.asarray(layer.kernel).transpose(
                [kernel_axes.index(a) for a in (*summed_axes, *new_axes)]
            )
            weights["kernel"] = kernel.reshape(depth, -1)
            if layer.bias is not None:
                weights["bias"] = _expand_einsum_bias(layer, output_axes, new_axes, new_sizes)
        elif (summed_axes, new_axes) != ([kernel_axes[0]], [kernel_axes[-1]]) or (
            layer.bias_axes or new_axes[0]
        ) != new_axes[0]:
            raise L.UnsupportedLayer(
                f"of {layer.equation!r} with bias_axes={layer.bias_axes!r}, which is not "
                "trainable; one summed axis with a matrix and a bias of its columns is"
            )
        weights = {name: w for name, w in weights.items() if w is not None}
        value = r.add_layer(name, "dense", [value], weights)
        value = L.add_reshape_layer(r, value, f"{name}/axes", (*rest_sizes, *new_sizes))
        product_axes = [*kept_axes[1:], *new_axes]
        output_order = [product_axes.index(a) + 1 for a in output_axes[1:]]
        if output_order != sorted(output_order):
            value = L.add_transpose_layer(r, value, f"{name}/back", output_order)
        return r.add_layer_activation(layer, value) if layer.activation is not None else value


def _parse_einsum_equation(equation: str, rank: int) -> tuple[list[str], list[str], list[str]]:
    """Parse the axes of the input with the batch, of the kernel, and of the output."""
    operands, output_axes = equation.replace(" ", "").split("->")
    input_axes, kernel_axes = operands.split(",")
    if "..." in input_axes:
        free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
        more = "".join(free[: rank + 1 - len(input_axes.replace("...", ""))])
        input_axes, output_axes = input_axes.replace("...", more), output_axes.replace("...", more)
    return list(input_axes), list(kernel_axes), list(output_axes)


def _expand_einsum_bias(
    layer: Any, output_axes: list[str], new: list[str], sizes: list[int]
) -> Any:
    """Broadcast the bias to each place that the kernel adds.

    Raises:
        UnsupportedLayer: the bias differs along axes of the input.
    """
    axes = layer.bias_axes or ""
    if not set(axes) <= set(new):
        raise L.UnsupportedLayer(f"bias_axes {axes!r}; those of the kernel alone are supported")
    # (the bias has its axes in the order of the output)
    order = sorted(axes, key=output_axes.index)
    bias = np.asarray(layer.bias)
    bias = bias.reshape([n for n in bias.shape if n > 1] if bias.ndim > len(order) else bias.shape)
    bias = bias.reshape([sizes[new.index(a)] for a in order])
    bias = bias.transpose([order.index(a) for a in new if a in order])
    whole = [sizes[i] if a in order else 1 for i, a in enumerate(new)]
    return np.broadcast_to(bias.reshape(whole), sizes).reshape(-1).copy()
