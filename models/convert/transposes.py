"""Graph pass that fuses and cancels transposes, such as those of channels-first models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfe_bench.models.convert.graph import Graph, LayerSpec, replace_layers
from tfe_bench.models.convert.rewriting import rename_graph_values, rewrite_graph_everywhere
from tfe_bench.models.layers.base import registry


def _transpose_order(x: LayerSpec | None) -> tuple[int, ...] | None:
    """Return the permutation of a transpose layer, or None for another layer."""
    return tuple(x.options["order"]) if x is not None and x.op == "permute" else None


def _without_unused(graph: Graph, layers: list[LayerSpec], outputs: tuple[str, ...]) -> Graph:
    """Return the graph of these layers without unused transposes."""
    while True:
        used_names = {name for x in layers for name in x.inputs} | set(outputs)
        used_layers = [x for x in layers if x.op != "permute" or x.name in used_names]
        if len(used_layers) == len(layers):
            return replace_layers(graph, used_layers, outputs=outputs)
        layers = used_layers


@rewrite_graph_everywhere
def fuse_transposes(graph: Graph, x: LayerSpec) -> Graph | None:
    """Move transposes behind elementwise layers, and fuse or cancel adjacent ones."""
    return _merge_transposes(graph, x) if x.op == "permute" else _transpose_later(graph, x)


def _merge_transposes(graph: Graph, x: LayerSpec) -> Graph | None:
    second = _transpose_order(x)
    producer = graph.by_name.get(x.inputs[0])
    first = _transpose_order(producer)
    if second is None or (first is None and list(second) != sorted(second)):
        return None
    order = second if first is None else tuple(first[axis - 1] for axis in second)
    input_name = x.inputs[0] if first is None or producer is None else producer.inputs[0]
    if list(order) == sorted(order):
        if len(graph.layers) == 1 or (x.name in graph.outputs and input_name in graph.inputs):
            return None
        renamed_graph = rename_graph_values(
            graph, [y for y in graph.layers if y is not x], {x.name: input_name}
        )
        return _without_unused(renamed_graph, list(renamed_graph.layers), renamed_graph.outputs)
    merged = replace(x, inputs=(input_name,), options={"order": list(order)})
    return _without_unused(graph, [merged if y is x else y for y in graph.layers], graph.outputs)


def _transpose_later(graph: Graph, x: LayerSpec) -> Graph | None:
    transposes = [graph.by_name.get(name) for name in x.inputs]
    orders = {_transpose_order(t) for t in transposes}
    kind = registry.get_layer_kind(x.op)
    if len(orders) != 1 or None in orders or x.weights:
        return None
    (order,) = orders
    options: dict[str, Any] = dict(x.options)
    if x.op == "concat":
        assert order is not None
        options["axis"] = order[options["axis"] - 1]
    elif not kind.is_pointwise:
        return None
    input_names = tuple(t.inputs[0] for t in transposes if t is not None)
    untransposed = replace(x, inputs=input_names, options=options)
    # the value keeps its name, so that declared ranges still apply
    name = f"{x.name}@turned"
    while name in graph.shapes:
        name += "'"
    transpose = LayerSpec(name, "permute", (x.name,), {"order": list(order or ())})
    swap = {x.name: transpose.name}
    layers = [untransposed if y is x else _swap_transposes_of_inputs(y, swap) for y in graph.layers]
    outputs = tuple(swap.get(name, name) for name in graph.outputs)
    return _without_unused(graph, [*layers, transpose], outputs)


def _swap_transposes_of_inputs(x: LayerSpec, swap: dict[str, str]) -> LayerSpec:
    return replace(x, inputs=tuple(swap.get(name, name) for name in x.inputs))
