"""Rows that nobody takes are not computed: a cut moves before what treats rows alike.

A classifier takes the first row of its last block: only keys and values need the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tfe_bench.models.graph import Graph, Layer, replaced
from tfe_bench.models.kinds import registry
from tfe_bench.models.rewriting import renamed, wherever


@dataclass(frozen=True)
class _Cut:
    """What is left of one axis, which is counted with the batch.

    Attributes:
        before, behind: how many places go.
    """

    axis: int
    before: int
    behind: int

    def sides(self, rank: int) -> list[list[int]]:
        """As a layer "crop" of a value of a rank without the batch has it."""
        found = [[0, 0] for _ in range(rank)]
        found[self.axis - 1] = [self.before, self.behind]
        return found


def _cut(x: Layer) -> _Cut | None:
    """That of a layer which cuts one axis."""
    if x.op != "crop":
        return None
    cut = [(axis, *side) for axis, side in enumerate(x.options["sides"], 1) if any(side)]
    return _Cut(*cut[0]) if len(cut) == 1 else None


@wherever
def cut_first(graph: Graph, x: Layer) -> Graph | None:
    """A cut of what comes of rows alike becomes a cut of these."""
    cut = _cut(x)
    if cut is None:
        return None
    given, uses = x.inputs[0], graph.uses()
    for other in uses[given]:
        same = graph.by_name.get(other)
        if same is not None and same is not x and (same.op, same.options) == (x.op, x.options):
            return renamed(graph, [y for y in graph.layers if y is not same], {same.name: x.name})
    others = [graph.by_name.get(name) for name in uses[given] if name != x.name]
    if others and all(y is not None and y.op == "constant" for y in others):
        # (which take a value for its batch alone)
        return replaced(
            graph, [replace(y, inputs=(x.name,)) if y in others else y for y in graph.layers]
        )
    before = graph.by_name.get(given)
    if before is None or uses[given] != [x.name]:
        return None
    cuts = _cuts(graph, before, cut)
    if cuts is None:
        return None
    layers, inputs = [], []
    for i, (name, own) in enumerate(zip(before.inputs, cuts, strict=True)):
        inputs.append(name if own is None else _free(graph, f"{before.name}@cut{i}"))
        if own is not None:
            sides = own.sides(len(graph.shapes[name]))
            layers.append(Layer(inputs[-1], "crop", (name,), {"sides": sides}))
    options: dict[str, Any] = dict(before.options)
    weights = before.weights
    if before.op == "reshape":
        left = [*before.options["shape"]]
        left[cut.axis - 1] -= cut.before + cut.behind
        options["shape"] = left
    elif before.op == "attend" and "keys" in options:
        options["keys"] = options["keys"][cut.before : len(options["keys"]) - cut.behind]
    elif before.op in ("constant", "offset"):
        table, places = weights["bias"], [slice(None)] * (cut.axis - 1)
        rows = slice(cut.before, table.shape[cut.axis - 1] - cut.behind)
        weights = {"bias": table[(*places, rows)]}
    layers.append(replace(before, inputs=tuple(inputs), options=options, weights=weights))
    kept = [y for y in graph.layers if y is not x and y is not before]
    return renamed(graph, [*kept, *layers], {x.name: before.name})


def _free(graph: Graph, name: str) -> str:
    """A name that no value has."""
    return name if name not in graph.shapes else _free(graph, f"{name}@")


def _cuts(graph: Graph, x: Layer, cut: _Cut) -> list[_Cut | None] | None:
    """What a cut of a layer's value is of each of its inputs; None where it is of none."""
    shapes, shape = [graph.shapes[name] for name in x.inputs], graph.shapes[x.name]
    axis, kind = cut.axis, registry.find(x.op)
    if x.op == "attend":
        return _of_queries(x, shapes, cut)
    if x.op == "constant":
        return [None]
    if x.op == "permute":
        return [replace(cut, axis=x.options["order"][axis - 1])]
    if x.op == "reshape":
        return [cut] if shapes[0][:axis] == shape[:axis] else None
    alone = x.op == "dense" or (x.op == "normalize" and list(x.options["axes"]) == [len(shape)])
    alone = alone or (x.op == "affine" and x.weights["kernel"].shape == shape[-1:])
    if not (kind.pointwise or (alone and axis < len(shape))):
        return None
    return [cut if own[axis - 1] == shape[axis - 1] else None for own in shapes]


def _of_queries(x: Layer, shapes: list[tuple[int, ...]], cut: _Cut) -> list[_Cut | None] | None:
    """Queries, and a mask that has a row for each, attend apart from each other."""
    query, _, _, *mask = shapes
    # (causal, a query's place counts)
    if cut.axis != len(query) - 1 or (x.options["causal"] and cut.before):
        return None
    found: list[_Cut | None] = [cut, None, None]
    if mask:
        each = len(mask[0]) == 2 and mask[0][0] > 1
        found.append(replace(cut, axis=1) if each else None)
    return found
