"""A graph's layers as the nodes of a step: fused layers, and values that need gradients."""

from __future__ import annotations

from dataclasses import replace

from tfe_bench.errors import UsageError
from tfe_bench.models.convert.graph import Graph, LayerSpec
from tfe_bench.models.layers.base import FixedPointFormat, PlacedLayer, TrainingPrecision, registry
from tfe_bench.models.layers.max_pool2d import MaxPool2D
from tfe_bench.models.layers.relu import Relu
from tfe_bench.protocols.ring import compare


def check_trainable_layers(graph: Graph) -> None:
    """Refuse layers that have no gradient here.

    Raises:
        UsageError: names all of them.
    """
    unfit = []
    for layer in graph.layers:
        input_shapes = [graph.shapes[name] for name in layer.inputs]
        if reason := registry.get_layer_kind(layer.op).explain_untrainable(layer, input_shapes):
            unfit.append(f"{layer.name!r} ({reason})")
    if unfit:
        known = [kind.op for kind in registry.KINDS.values() if kind.can_train]
        raise UsageError(
            f"Layers that cannot be trained: {', '.join(unfit)}. Trainable layers: "
            f"{', '.join(known)}.",
            code="untrainable-layer",
            received=", ".join(unfit),
        )


def build_training_nodes(graph: Graph, precision: TrainingPrecision) -> tuple[PlacedLayer, ...]:
    """Build the nodes of a graph in an executable order."""
    uses, by_name = graph.find_users(), graph.by_name
    numbers = FixedPointFormat(precision.activation, 0, compare.LAYER_BITS)
    nodes: list[PlacedLayer] = []
    fused: set[str] = set()
    for layer in graph.layers:
        if layer.name in fused:
            continue
        can_fuse = registry.get_layer_kind(layer.op).can_fuse
        pool = layer if layer.op == MaxPool2D.op else None
        activation: LayerSpec | None = None
        last = layer
        while can_fuse:
            follower = by_name.get(uses[last.name][0]) if len(uses[last.name]) == 1 else None
            if follower is None:
                break
            if Relu.is_plain_relu(follower) and activation is None:
                activation = follower
            elif follower.op == MaxPool2D.op and pool is None:
                pool = follower
            else:
                break
            fused.add(follower.name)
            last = follower
        node = graph.place_layer(layer, numbers, [precision.activation] * len(layer.inputs))
        nodes.append(
            replace(
                node,
                output=last.name,
                pool=pool,
                activation=activation,
                is_output=last.name in graph.outputs,
            )
        )
    return tuple(nodes)


def find_differentiated_values(graph: Graph, frozen: frozenset[str]) -> set[str]:
    """Return the names of the values that depend on trained weights."""
    names: set[str] = set()
    for layer in graph.layers:
        has_trained_weights = any(f"{layer.name}/{name}" not in frozen for name in layer.weights)
        if has_trained_weights or any(i in names for i in layer.inputs):
            names.add(layer.name)
    return names
