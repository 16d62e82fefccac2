"""Passes of the optimization over padding and pooling."""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.models.convert.graph import Graph, LayerSpec, replace_layers
from tfe_bench.models.convert.rewriting import (
    can_kernel_absorb_factors,
    find_only_user_layer,
    is_channel_mixing,
    merge_layers,
    replace_value_name,
    rewrite_graph_everywhere,
    weights_to_float64,
)
from tfe_bench.models.layers.avg_pool2d import AveragePooling
from tfe_bench.models.layers.base import registry
from tfe_bench.models.layers.conv2d import Convolution


@rewrite_graph_everywhere
def fold_padding(graph: Graph, x: LayerSpec) -> Graph | None:
    """Fold zeros around an image into the padding of the following convolution."""
    after = find_only_user_layer(graph, x.name) if x.op == "zero_pad" else None
    kind = None if after is None else registry.get_layer_kind(after.op)
    if after is None or not (isinstance(kind, Convolution) and kind.pads_images):
        return None
    padding = after.options["padding"]
    if padding == "SAME":
        return None
    padding_pairs = [[0, 0] for _ in x.options["pads"]] if padding == "VALID" else padding
    both = [
        [a + b for a, b in zip(p, q, strict=True)]
        for p, q in zip(padding_pairs, x.options["pads"], strict=True)
    ]
    merged = replace(after, inputs=x.inputs, options={**after.options, "padding": both})
    return replace_layers(graph, merge_layers(graph, x, after, merged))


def _layer_keeps_values(x: LayerSpec) -> bool:
    """Return whether a layer outputs its input values in order, with at most zeros added."""
    return x.op == "zero_pad" or registry.get_layer_kind(x.op).is_reshape


@rewrite_graph_everywhere
def move_relu_after_pool(graph: Graph, x: LayerSpec) -> Graph | None:
    """Move relu behind max pooling, as max(relu(x)) = relu(max(x)): fewer values are compared.

    Zeros of a padding in between are neither below nor above any relu(x).
    """
    if x.op != "relu":
        return None
    last = x
    while (after := find_only_user_layer(graph, last.name)) and _layer_keeps_values(after):
        last = after
    if after is None or not registry.get_layer_kind(after.op).is_maximum:
        return None
    new_relu = replace(x, name=f"{x.name}@", inputs=(after.name,))
    other_layers = [
        replace(y, inputs=replace_value_name(y.inputs, after.name, new_relu.name))
        for y in graph.layers
        if y is not x
    ]
    other_layers = [
        replace(y, inputs=replace_value_name(y.inputs, x.name, x.inputs[0])) for y in other_layers
    ]
    outputs = replace_value_name(graph.outputs, after.name, new_relu.name)
    return replace_layers(graph, [*other_layers, new_relu], outputs=outputs)


@rewrite_graph_everywhere
def move_pool_before_conv(graph: Graph, x: LayerSpec) -> Graph | None:
    """Move an average pool before a pointwise convolution (they commute): fewer windows."""
    if not isinstance(registry.get_layer_kind(x.op), AveragePooling):
        return None
    convolution = graph.by_name.get(x.inputs[0])
    if (
        convolution is None
        or convolution.op != "conv2d"
        or find_only_user_layer(graph, convolution.name) is not x
    ):
        return None
    pointwise = convolution.weights["kernel"].shape[:2] == (1, 1) and is_channel_mixing(convolution)
    if not pointwise or list(convolution.options["strides"]) != [1, 1]:
        return None
    if x.op == "global_avg_pool2d" and not x.options["keepdims"]:
        return None
    pool = replace(x, inputs=convolution.inputs)
    after = replace(convolution, inputs=(x.name,))
    other_layers = [y for y in graph.layers if y is not x and y is not convolution]
    other_layers = [
        replace(y, inputs=replace_value_name(y.inputs, x.name, after.name)) for y in other_layers
    ]
    outputs = replace_value_name(graph.outputs, x.name, after.name)
    return replace_layers(graph, [*other_layers, pool, after], outputs=outputs)


@rewrite_graph_everywhere
def fold_average_pools(graph: Graph, x: LayerSpec) -> Graph | None:
    """Replace an average before a product by a sum; fold the division into the kernel."""
    kind = registry.get_layer_kind(x.op)
    if not isinstance(kind, AveragePooling):
        return None
    count, after = (
        kind.count_cells(x, graph.shapes[x.inputs[0]]),
        find_only_user_layer(graph, x.name),
    )
    while after is not None and registry.get_layer_kind(after.op).is_reshape:
        after = find_only_user_layer(graph, after.name)
    if count is None or after is None or not can_kernel_absorb_factors(after):
        return None
    kernel = weights_to_float64(after.weights["kernel"]) / count
    divided = replace(after, weights={**after.weights, "kernel": kernel})
    total = replace(x, op=kind.sum_op)
    swap = {x.name: total, after.name: divided}
    return replace_layers(graph, [swap.get(y.name, y) for y in graph.layers])
