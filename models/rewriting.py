"""What passes over a graph are written with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tfe_bench.models.graph import Graph, LayerSpec, replace_layers

GraphPass = Callable[[Graph], Graph]


def rename_values(graph: Graph, layers: Sequence[LayerSpec], names: Mapping[str, str]) -> Graph:
    """The graph of some layers, with the value of one name taken from another."""

    def final_name(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    renamed_layers = [replace(x, inputs=tuple(final_name(i) for i in x.inputs)) for x in layers]
    return replace_layers(
        graph, renamed_layers, outputs=tuple(final_name(o) for o in graph.outputs)
    )


def rewrite_everywhere(step: Callable[[Graph, LayerSpec], Graph | None]) -> GraphPass:
    """The pass that takes a step at the first layer that allows it, until none does."""

    @functools.wraps(step)
    def apply_repeatedly(graph: Graph) -> Graph:
        while True:
            attempts = (step(graph, x) for x in graph.layers)
            rewritten = next((attempt for attempt in attempts if attempt is not None), None)
            if rewritten is None:
                return graph
            graph = rewritten

    return apply_repeatedly
