"""Optimization of a graph before it is shared: exact passes from Graph to Graph.

Each pass is one function and preserves the model's function, up to the rounding of floating-point
weights.  `optimize_graph` applies all passes in an order in which each prepares the next.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.models.convert.cutting import push_slices_below_layers
from tfe_bench.models.convert.graph import Array, Graph, LayerSpec, replace_layers
from tfe_bench.models.convert.hiding import hide_masked_softmax_inputs
from tfe_bench.models.convert.rewriting import (
    GraphPass,
    can_kernel_absorb_factors,
    find_only_user_layer,
    is_channel_mixing,
    merge_layers,
    rename_graph_values,
    replace_value_name,
    rewrite_graph_everywhere,
    weights_to_float64,
)
from tfe_bench.models.convert.transposes import fuse_transposes
from tfe_bench.models.convert.window_passes import (
    fold_average_pools,
    fold_padding,
    move_pool_before_conv,
    move_relu_after_pool,
)
from tfe_bench.models.layers.base import registry, scales
from tfe_bench.models.layers.sum import TERMS


def _layer_bias_or_zeros(layer: LayerSpec, count: int) -> Array:
    return weights_to_float64(layer.weights["bias"]) if "bias" in layer.weights else np.zeros(count)


# ---- removing layers and moving them to the clients


def convert_to_inference(graph: Graph) -> Graph:
    """Convert layers to inference: Dropout is the identity, BatchNormalization an affine map.

    Raises:
        RangeError: a running variance is not positive; the text names the layer.
    """

    return replace_layers(
        graph, [registry.get_layer_kind(x.op).prepare_inference(x) for x in graph.layers]
    )


def drop_identity_layers(graph: Graph) -> Graph:
    """Drop layers that are the identity; keep one if the model has no other layer."""
    names = {x.name: x.inputs[0] for x in graph.layers if registry.get_layer_kind(x.op).is_identity}
    other_layers = [x for x in graph.layers if x.name not in names]
    return rename_graph_values(graph, other_layers, names) if other_layers and names else graph


@rewrite_graph_everywhere
def move_rescaling_to_owner(graph: Graph, x: LayerSpec) -> Graph | None:
    """Move the Rescaling of an input to the owner of the data: its numbers are public."""
    input_name = x.inputs[0]
    if (
        x.op != "rescale"
        or input_name not in {*graph.inputs} - {*graph.masks}
        or len(graph.layers) == 1
    ):
        return None
    if len(graph.find_users()[input_name]) != 1:
        return None
    factor, offset = (weights_to_float64(v) for v in graph.scaling.get(input_name, (1.0, 0.0)))
    scale, shift = weights_to_float64(x.options["scale"]), weights_to_float64(x.options["offset"])
    pair = ((factor * scale).tolist(), (offset * scale + shift).tolist())
    other_layers = [y for y in graph.layers if y is not x]
    scaled = replace_layers(
        graph,
        [replace(y, inputs=replace_value_name(y.inputs, x.name, input_name)) for y in other_layers],
        outputs=replace_value_name(graph.outputs, x.name, input_name),
    )
    return replace_layers(scaled, scaled.layers, scaling={**graph.scaling, input_name: pair})


def move_rescaling_to_client(graph: Graph) -> Graph:
    """Move the coarse scale of a final Rescaling to the client-side post-processing."""
    layers, outputs = list(graph.layers), list(graph.outputs)
    results = list(graph.results) or [(1.0, 0.0)] * len(outputs)
    for i, name in enumerate(outputs):
        x = graph.by_name.get(name)
        if x is None or x.op != "rescale" or graph.find_users()[name] != [""] or len(layers) == 1:
            continue
        rest, (factor, offset) = scales.split_scale_last(x.options["scale"], x.options["offset"])
        old, old_offset = (weights_to_float64(v) for v in results[i])
        results[i] = ((factor * old).tolist(), (offset * old + old_offset).tolist())
        place = layers.index(x)
        if scales.is_identity_scale(rest) and x.inputs[0] not in graph.inputs:
            del layers[place]
            outputs[i] = x.inputs[0]
        else:
            layers[place] = replace(x, options=scales.as_rescale_options(rest))
    if all(scales.is_identity_scale(pair) for pair in results):
        return graph
    return replace_layers(graph, layers, outputs=tuple(outputs), results=tuple(results))


def rescaling_to_affine(graph: Graph) -> Graph:
    """Convert any other Rescaling to a per-channel factor and shift, like batch normalization.

    A factor of 1 or -1 that no adjacent product can absorb stays a local operation.
    """

    def convert_rescaling(x: LayerSpec) -> LayerSpec:
        scale, offset = (
            weights_to_float64(x.options["scale"]),
            weights_to_float64(x.options["offset"]),
        )
        if scale.size == offset.size == 1 and abs(float(scale.item())) == 1:
            before, after = graph.by_name.get(x.inputs[0]), find_only_user_layer(graph, x.name)
            folds = (
                before is not None
                and before.op in TERMS
                and find_only_user_layer(graph, before.name) is x
            )
            if not folds and not (after is not None and is_channel_mixing(after)):
                options = {"sign": int(scale.item()), "offset": offset.item()}
                return replace(x, op="shift", options=options)
        channels = graph.shapes[x.name][-1]
        weights = {
            "kernel": np.broadcast_to(weights_to_float64(x.options["scale"]), (channels,)).copy(),
            "bias": np.broadcast_to(weights_to_float64(x.options["offset"]), (channels,)).copy(),
        }
        return replace(x, op="affine", options={}, weights=weights)

    return replace_layers(
        graph, [convert_rescaling(x) if x.op == "rescale" else x for x in graph.layers]
    )


def split_products(graph: Graph) -> Graph:
    """Split a product of several values into products of two, each with its own range."""

    def split_product(x: LayerSpec) -> list[LayerSpec]:
        products, before = [], x.inputs[0]
        for i, factor in enumerate(x.inputs[1:-1]):
            products.append(replace(x, name=f"{x.name}@{i}", inputs=(before, factor)))
            before = products[-1].name
        return [*products, replace(x, inputs=(before, x.inputs[-1]))]

    layers = [split_product(x) if x.op == "multiply" else [x] for x in graph.layers]
    return replace_layers(graph, [x for several in layers for x in several])


@rewrite_graph_everywhere
def fold_constant_offsets(graph: Graph, x: LayerSpec) -> Graph | None:
    """Fold a constant that is added to a value into an offset layer."""
    if x.op != "add" or len(x.inputs) != 2:
        return None
    parts = [graph.by_name.get(name) for name in x.inputs]
    for constant, other_name in zip(parts, reversed(x.inputs), strict=True):
        if (
            constant is None
            or constant.op != "constant"
            or find_only_user_layer(graph, constant.name) is not x
        ):
            continue
        if graph.shapes[constant.name] == graph.shapes[other_name] == graph.shapes[x.name]:
            merged = replace(
                x, op="offset", inputs=(other_name,), options={}, weights=constant.weights
            )
            return replace_layers(graph, merge_layers(graph, constant, x, merged))
    return None


# ---- batch normalization


def _is_per_channel(graph: Graph, x: LayerSpec) -> bool:
    """Return whether an affine layer has one factor per channel."""
    return x.op == "affine" and x.weights["kernel"].shape == graph.shapes[x.name][-1:]


@rewrite_graph_everywhere
def fold_batch_norm_backward(graph: Graph, x: LayerSpec) -> Graph | None:
    """Fold batch normalization after a convolution or dense layer into that layer's weights."""
    producer = graph.by_name.get(x.inputs[0])
    if not _is_per_channel(graph, x) or producer is None or not can_kernel_absorb_factors(producer):
        return None
    if find_only_user_layer(graph, producer.name) is not x:
        return None
    factor, shift = (
        weights_to_float64(x.weights["kernel"]),
        _layer_bias_or_zeros(x, graph.shapes[x.name][-1]),
    )
    weights = {
        "kernel": TERMS[producer.op].scale_kernel(
            weights_to_float64(producer.weights["kernel"]), factor
        ),
        "bias": _layer_bias_or_zeros(producer, len(factor)) * factor + shift,
    }
    merged = replace(producer, weights=weights)
    return rename_graph_values(
        graph, merge_layers(graph, x, producer, merged), {x.name: producer.name}
    )


@rewrite_graph_everywhere
def fold_batch_norm_forward(graph: Graph, x: LayerSpec) -> Graph | None:
    """Fold batch normalization, or a norm's gamma and beta, into the products that use it.

    These products are convolutions without padding and dense layers.  The layer stays for other
    users.
    """
    if not _is_per_channel(graph, x):
        return None
    users = [graph.by_name[name] for name in graph.find_users()[x.name] if name]
    # weights that several layers share stay unchanged, so that they are sent once
    shared = _shared_weight_names(graph) if len(users) > 1 else set[str]()
    merged = {
        y.name: _fold_into_product(x, y)
        for y in users
        if is_channel_mixing(y) and not any(f"{y.name}/{name}" in shared for name in y.weights)
    }
    if not merged:
        return None
    layers = [merged.get(y.name, y) for y in graph.layers]
    if len(merged) == len(graph.find_users()[x.name]):
        layers.remove(x)
    return replace_layers(graph, layers)


def _shared_weight_names(graph: Graph) -> set[str]:
    """Return the keys of weights that several layers share."""
    return {*graph.shared_weight_keys(), *graph.shared_weight_keys().values()}


def _fold_into_product(x: LayerSpec, after: LayerSpec) -> LayerSpec:
    """Fold a factor and a shift per channel into a following product."""
    kernel = weights_to_float64(after.weights["kernel"])
    factor, shift = (
        weights_to_float64(x.weights["kernel"]),
        _layer_bias_or_zeros(x, kernel.shape[-2]),
    )
    over = tuple(range(kernel.ndim - 1))
    weights = {
        "kernel": kernel * factor[:, None],
        "bias": _layer_bias_or_zeros(after, kernel.shape[-1]) + (kernel * shift[:, None]).sum(over),
    }
    return replace(after, inputs=x.inputs, weights=weights)


@rewrite_graph_everywhere
def fold_attention_score_scale(graph: Graph, x: LayerSpec) -> Graph | None:
    """Fold the scale of attention scores into the product that computes the queries.

    With the scale ln 2, the scores have base 2, and no multiplication remains.
    """
    if x.op != "attend" or x.options["scale"] == math.log(2):
        return None
    producer = graph.by_name.get(x.inputs[0])
    while (
        producer is not None
        and find_only_user_layer(graph, producer.name)
        and registry.get_layer_kind(producer.op).is_local
    ):
        producer = graph.by_name.get(producer.inputs[0]) if len(producer.inputs) == 1 else None
    if (
        producer is None
        or producer.op != "dense"
        or find_only_user_layer(graph, producer.name) is None
    ):
        return None
    if any(f"{producer.name}/{name}" in _shared_weight_names(graph) for name in producer.weights):
        return None
    factor = x.options["scale"] / math.log(2)
    weights = {name: weights_to_float64(w) * factor for name, w in producer.weights.items()}
    swap = {
        producer.name: replace(producer, weights=weights),
        x.name: replace(x, options={**x.options, "scale": math.log(2)}),
    }
    return replace_layers(graph, [swap.get(y.name, y) for y in graph.layers])


# ---- fusion


def fuse_products(graph: Graph) -> Graph:
    """Convert each product to a `sum` of one term."""

    def to_sum(x: LayerSpec) -> LayerSpec:
        if x.op not in TERMS:
            return x
        weights = {"kernel0": x.weights["kernel"]}
        if "bias" in x.weights:
            weights["bias"] = x.weights["bias"]
        term = {"op": x.op, "sign": 1, **x.options}
        options = {"terms": [term], "activation": "none", "max_value": None}
        return replace(x, op="sum", options=options, weights=weights)

    return replace_layers(graph, [to_sum(x) for x in graph.layers])


@rewrite_graph_everywhere
def fuse_residual_additions(graph: Graph, x: LayerSpec) -> Graph | None:
    """Fuse additions with products before truncation: a residual, or a second product."""
    if x.op not in ("add", "subtract"):
        return None
    if len({graph.shapes[i] for i in x.inputs}) != 1 or len(set(x.inputs)) < len(x.inputs):
        return None
    parts = [graph.by_name.get(i) for i in x.inputs]
    joined = [p if p and _is_open_sum(graph, p, x) else None for p in parts]
    if not any(joined):
        return None
    merged = _join_sums(x, joined)
    gone = {p.name for p in joined if p is not None}
    other_layers = [merged if y is x else y for y in graph.layers if y.name not in gone]
    return replace_layers(graph, other_layers)


def _is_open_sum(graph: Graph, part: LayerSpec, user: LayerSpec) -> bool:
    return (
        part.op == "sum"
        and part.options["activation"] == "none"
        and find_only_user_layer(graph, part.name) is user
    )


def _join_sums(x: LayerSpec, parts: list[LayerSpec | None]) -> LayerSpec:
    terms: list[dict[str, Any]] = []
    inputs: list[str] = []
    weights: dict[str, Array] = {}
    bias: Any = None
    for i, (name, part) in enumerate(zip(x.inputs, parts, strict=True)):
        sign = -1 if x.op == "subtract" and i == 1 else 1
        if part is None:
            terms.append({"op": "skip", "sign": sign})
            inputs.append(name)
            continue
        for j, (input_name, term) in enumerate(
            zip(part.inputs, part.options["terms"], strict=True)
        ):
            if f"kernel{j}" in part.weights:
                weights[f"kernel{len(terms)}"] = part.weights[f"kernel{j}"]
            terms.append({**term, "sign": sign * term["sign"]})
            inputs.append(input_name)
        if "bias" in part.weights:
            signed_bias = sign * weights_to_float64(part.weights["bias"])
            bias = signed_bias if bias is None else bias + signed_bias
    if bias is not None:
        weights["bias"] = bias
    options = {"terms": terms, "activation": "none", "max_value": None}
    return LayerSpec(x.name, "sum", tuple(inputs), options, weights)


@rewrite_graph_everywhere
def fuse_activations(graph: Graph, x: LayerSpec) -> Graph | None:
    """Fuse a ReLU after a product into it, before truncation."""
    producer = graph.by_name.get(x.inputs[0]) if x.op == "relu" else None
    if producer is None or not _is_open_sum(graph, producer, x):
        return None
    options = {**producer.options, "activation": "relu", **x.options}
    merged = replace(producer, options=options)
    return rename_graph_values(
        graph, merge_layers(graph, x, producer, merged), {x.name: producer.name}
    )


PASSES: tuple[GraphPass, ...] = (
    drop_identity_layers,
    hide_masked_softmax_inputs,
    fuse_transposes,
    split_products,
    fold_constant_offsets,
    move_rescaling_to_owner,
    move_rescaling_to_client,
    rescaling_to_affine,
    fold_batch_norm_backward,
    fold_batch_norm_forward,
    fold_attention_score_scale,
    fold_padding,
    move_relu_after_pool,
    move_pool_before_conv,
    fold_average_pools,
    push_slices_below_layers,
    fuse_products,
    fuse_residual_additions,
    fuse_activations,
)


# Passes that merge numbers of other layers into a layer's weights.
_WEIGHT_MERGING = (
    *(
        hide_masked_softmax_inputs,
        fold_batch_norm_backward,
        fold_batch_norm_forward,
        fold_attention_score_scale,
    ),
    *(fold_average_pools, push_slices_below_layers, fuse_residual_additions),
)


def mask_inputs(graph: Graph) -> tuple[str, ...]:
    """Return the names of all mask inputs, including masks in sums before a softmax."""
    return hide_masked_softmax_inputs(drop_identity_layers(convert_to_inference(graph))).masks


def optimize_graph(graph: Graph, merge: bool = True) -> Graph:
    """Apply all passes in order to a model for inference.

    Args:
        merge: False leaves every weight array unchanged, for weights that are still to be trained.
    """
    graph = convert_to_inference(graph)
    for graph_pass in PASSES:
        if merge or graph_pass not in _WEIGHT_MERGING:
            graph = graph_pass(graph)
    return graph
