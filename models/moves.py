"""The pass by which turns of axes meet and cancel, as of models with the channels first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfe_bench.models.graph import Graph, Layer, replaced
from tfe_bench.models.kinds import registry
from tfe_bench.models.rewriting import renamed, wherever


def _order(x: Layer | None) -> tuple[int, ...] | None:
    """The order of a turn, None of what is none."""
    return tuple(x.options["order"]) if x is not None and x.op == "permute" else None


def _without_unused(graph: Graph, layers: list[Layer], outputs: tuple[str, ...]) -> Graph:
    """The graph of these layers, less turns that nobody takes."""
    while True:
        taken = {name for x in layers for name in x.inputs} | set(outputs)
        kept = [x for x in layers if x.op != "permute" or x.name in taken]
        if len(kept) == len(layers):
            return replaced(graph, kept, outputs=outputs)
        layers = kept


@wherever
def meet_turns(graph: Graph, x: Layer) -> Graph | None:
    """Turns of axes move behind what treats all places alike; those that meet are one, or none."""
    return _merged(graph, x) if x.op == "permute" else _turned_later(graph, x)


def _merged(graph: Graph, x: Layer) -> Graph | None:
    second = _order(x)
    before = graph.by_name.get(x.inputs[0])
    first = _order(before)
    if second is None or (first is None and list(second) != sorted(second)):
        return None
    order = second if first is None else tuple(first[axis - 1] for axis in second)
    given = x.inputs[0] if first is None or before is None else before.inputs[0]
    if list(order) == sorted(order):
        if len(graph.layers) == 1 or (x.name in graph.outputs and given in graph.inputs):
            return None
        kept = renamed(graph, [y for y in graph.layers if y is not x], {x.name: given})
        return _without_unused(kept, list(kept.layers), kept.outputs)
    merged = replace(x, inputs=(given,), options={"order": list(order)})
    return _without_unused(graph, [merged if y is x else y for y in graph.layers], graph.outputs)


def _turned_later(graph: Graph, x: Layer) -> Graph | None:
    turns = [graph.by_name.get(name) for name in x.inputs]
    orders = {_order(t) for t in turns}
    kind = registry.find(x.op)
    if len(orders) != 1 or None in orders or x.weights:
        return None
    (order,) = orders
    options: dict[str, Any] = dict(x.options)
    if x.op == "concat":
        assert order is not None
        options["axis"] = order[options["axis"] - 1]
    elif not kind.pointwise:
        return None
    given = tuple(t.inputs[0] for t in turns if t is not None)
    moved = replace(x, inputs=given, options=options)
    # (the value keeps its name, so that ranges that are stated for it are found)
    name = f"{x.name}@turned"
    while name in graph.shapes:
        name += "'"
    turned = Layer(name, "permute", (x.name,), {"order": list(order or ())})
    swap = {x.name: turned.name}
    layers = [moved if y is x else _taking(y, swap) for y in graph.layers]
    outputs = tuple(swap.get(name, name) for name in graph.outputs)
    return _without_unused(graph, [*layers, turned], outputs)


def _taking(x: Layer, swap: dict[str, str]) -> Layer:
    return replace(x, inputs=tuple(swap.get(name, name) for name in x.inputs))
