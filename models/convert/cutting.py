"""Graph pass that skips unused rows: it moves a slice before the layers that treat rows alike.

A classifier takes the first row of its last block; the other rows are needed for keys and values
alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.models.convert.graph import Graph, LayerSpec, replace_layers
from tfe_bench.models.convert.rewriting import rename_graph_values, rewrite_graph_everywhere
from tfe_bench.models.layers.base import registry


@dataclass(frozen=True)
class _AxisSlice:
    """A slice of one axis; axes are counted with the batch.

    Attributes:
        before, after: number of positions removed at the two ends of the axis.
    """

    axis: int
    before: int
    after: int

    def crop_sides(self, rank: int) -> list[list[int]]:
        """Return the option "sides" of a layer "crop" on a value whose rank excludes the batch."""
        sides = [[0, 0] for _ in range(rank)]
        sides[self.axis - 1] = [self.before, self.after]
        return sides


def _read_slice_layer(x: LayerSpec) -> _AxisSlice | None:
    """Return the slice of a layer that crops one axis, else None."""
    if x.op != "crop":
        return None
    cut = [(axis, *side) for axis, side in enumerate(x.options["sides"], 1) if any(side)]
    return _AxisSlice(*cut[0]) if len(cut) == 1 else None


@rewrite_graph_everywhere
def push_slices_below_layers(graph: Graph, x: LayerSpec) -> Graph | None:
    """Push a slice below row-wise layers: slice their inputs instead of their output."""
    cut = _read_slice_layer(x)
    if cut is None:
        return None
    input_name, uses = x.inputs[0], graph.find_users()
    for user in uses[input_name]:
        duplicate = graph.by_name.get(user)
        if (
            duplicate is not None
            and duplicate is not x
            and (duplicate.op, duplicate.options) == (x.op, x.options)
        ):
            return rename_graph_values(
                graph, [y for y in graph.layers if y is not duplicate], {duplicate.name: x.name}
            )
    other_users = [graph.by_name.get(name) for name in uses[input_name] if name != x.name]
    if other_users and all(y is not None and y.op == "constant" for y in other_users):
        # a constant uses its input for the batch size alone
        return replace_layers(
            graph, [replace(y, inputs=(x.name,)) if y in other_users else y for y in graph.layers]
        )
    producer = graph.by_name.get(input_name)
    if producer is None or uses[input_name] != [x.name]:
        return None
    input_slices = _slices_of_layer_inputs(graph, producer, cut)
    if input_slices is None:
        return None
    layers, inputs = [], []
    for i, (name, input_slice) in enumerate(zip(producer.inputs, input_slices, strict=True)):
        inputs.append(
            name if input_slice is None else _unused_graph_name(graph, f"{producer.name}@cut{i}")
        )
        if input_slice is not None:
            sides = input_slice.crop_sides(len(graph.shapes[name]))
            layers.append(LayerSpec(inputs[-1], "crop", (name,), {"sides": sides}))
    options: dict[str, Any] = dict(producer.options)
    weights = producer.weights
    if producer.op == "reshape":
        new_shape = [*producer.options["shape"]]
        new_shape[cut.axis - 1] -= cut.before + cut.after
        options["shape"] = new_shape
    elif producer.op == "attend" and "keys" in options:
        options["keys"] = options["keys"][cut.before : len(options["keys"]) - cut.after]
    elif producer.op in ("constant", "offset"):
        table, places = weights["bias"], [slice(None)] * (cut.axis - 1)
        rows = slice(cut.before, table.shape[cut.axis - 1] - cut.after)
        weights = {"bias": table[(*places, rows)]}
    layers.append(replace(producer, inputs=tuple(inputs), options=options, weights=weights))
    other_layers = [y for y in graph.layers if y is not x and y is not producer]
    return rename_graph_values(graph, [*other_layers, *layers], {x.name: producer.name})


def _unused_graph_name(graph: Graph, name: str) -> str:
    """Return a name that no value of the graph has."""
    return name if name not in graph.shapes else _unused_graph_name(graph, f"{name}@")


def _slices_of_layer_inputs(
    graph: Graph, x: LayerSpec, cut: _AxisSlice
) -> list[_AxisSlice | None] | None:
    """Return the slices of a layer's inputs that give a slice of its value; None if impossible."""
    shapes, shape = [graph.shapes[name] for name in x.inputs], graph.shapes[x.name]
    axis, kind = cut.axis, registry.get_layer_kind(x.op)
    if x.op == "attend":
        return _slices_of_attention(x, shapes, cut)
    if x.op == "constant":
        return [None]
    if x.op == "permute":
        return [replace(cut, axis=x.options["order"][axis - 1])]
    if x.op == "reshape":
        return [cut] if shapes[0][:axis] == shape[:axis] else None
    is_rowwise = x.op == "dense" or (
        x.op == "normalize" and list(x.options["axes"]) == [len(shape)]
    )
    is_rowwise = is_rowwise or (x.op == "affine" and x.weights["kernel"].shape == shape[-1:])
    if not (kind.is_pointwise or (is_rowwise and axis < len(shape))):
        return None
    return [cut if input_shape[axis - 1] == shape[axis - 1] else None for input_shape in shapes]


def _slices_of_attention(
    x: LayerSpec, shapes: list[tuple[int, ...]], cut: _AxisSlice
) -> list[_AxisSlice | None] | None:
    """Slice queries, and a mask with a row for each query: queries attend independently."""
    query, _, _, *mask = shapes
    # under a causal mask, the position of a query matters
    if cut.axis != len(query) - 1 or (x.options["causal"] and cut.before):
        return None
    slices: list[_AxisSlice | None] = [cut, None, None]
    if mask:
        has_query_rows = len(mask[0]) == 2 and mask[0][0] > 1
        slices.append(replace(cut, axis=1) if has_query_rows else None)
    return slices
