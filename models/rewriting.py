"""What passes over a graph are written with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tfe_bench.models.graph import Graph, Layer, replaced

Pass = Callable[[Graph], Graph]


def renamed(graph: Graph, layers: Sequence[Layer], names: Mapping[str, str]) -> Graph:
    """The graph of some layers, with the value of one name taken from another."""

    def final(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    kept = [replace(x, inputs=tuple(final(i) for i in x.inputs)) for x in layers]
    return replaced(graph, kept, outputs=tuple(final(o) for o in graph.outputs))


def wherever(step: Callable[[Graph, Layer], Graph | None]) -> Pass:
    """The pass that takes a step at the first layer that allows it, until none does."""

    @functools.wraps(step)
    def everywhere(graph: Graph) -> Graph:
        while True:
            tried = (step(graph, x) for x in graph.layers)
            found = next((each for each in tried if each is not None), None)
            if found is None:
                return graph
            graph = found

    return everywhere
