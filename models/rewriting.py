"""Helpers for passes over a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tfe_bench.models.graph import Graph, LayerSpec, replace_layers

GraphPass = Callable[[Graph], Graph]


def rename_values(graph: Graph, layers: Sequence[LayerSpec], names: Mapping[str, str]) -> Graph:
    """Return the graph of some layers, with uses of one name replaced by another."""

    def final_name(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    renamed_layers = [replace(x, inputs=tuple(final_name(i) for i in x.inputs)) for x in layers]
    return replace_layers(
        graph, renamed_layers, outputs=tuple(final_name(o) for o in graph.outputs)
    )


def rewrite_everywhere(step: Callable[[Graph, LayerSpec], Graph | None]) -> GraphPass:
    """Return the pass that applies a step at the first possible layer until none is left."""

    @functools.wraps(step)
    def apply_repeatedly(graph: Graph) -> Graph:
        while True:
            attempts = (step(graph, x) for x in graph.layers)
            rewritten = next((attempt for attempt in attempts if attempt is not None), None)
            if rewritten is None:
                return graph
            graph = rewritten

    return apply_repeatedly
