"""Helpers for passes over a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.models.convert.graph import Array, Graph, LayerSpec, replace_layers
from tfe_bench.models.layers.sum import TERMS

GraphPass = Callable[[Graph], Graph]


def rename_graph_values(
    graph: Graph, layers: Sequence[LayerSpec], names: Mapping[str, str]
) -> Graph:
    """Return the graph of some layers, with uses of one name replaced by another."""

    def final_name(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    renamed_layers = [replace(x, inputs=tuple(final_name(i) for i in x.inputs)) for x in layers]
    return replace_layers(
        graph, renamed_layers, outputs=tuple(final_name(o) for o in graph.outputs)
    )


def rewrite_graph_everywhere(step: Callable[[Graph, LayerSpec], Graph | None]) -> GraphPass:
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


def find_only_user_layer(graph: Graph, name: str) -> LayerSpec | None:
    """Return the single layer that uses a value; None if there are several or it is an output."""
    takers = graph.find_users()[name]
    return graph.by_name[takers[0]] if len(takers) == 1 and takers[0] else None


def merge_layers(
    graph: Graph, removed: LayerSpec, old: LayerSpec, new: LayerSpec
) -> list[LayerSpec]:
    """Return the layers without one, and with a new layer in place of another."""
    return [new if y is old else y for y in graph.layers if y is not removed]


def weights_to_float64(a: Any) -> Array:
    """Convert weights to float64."""
    return np.asarray(a, np.float64)


def replace_value_name(names: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    """Replace a name among the names of inputs or outputs."""
    return tuple(new if n == old else n for n in names)


def can_kernel_absorb_factors(x: LayerSpec) -> bool:
    """Return whether a layer's kernel may change; a table shared with another layer must not."""
    return x.op in TERMS and "transposed" not in x.options


def is_channel_mixing(x: LayerSpec) -> bool:
    """Return whether a layer's outputs are sums over all channels, without zeros of a border."""
    kind = TERMS.get(x.op)
    return (
        kind is not None
        and kind.mixes_channels
        and kind.has_no_padding(x)
        and can_kernel_absorb_factors(x)
    )
