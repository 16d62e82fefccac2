"""Graph pass for masks in a softmax: x + (1 - m) * -1e9 becomes a layer `hide`.

A number of that magnitude fits no fixed-point format.  Its size is irrelevant: any number far
enough below the others gives the same softmax.  So the sum becomes a layer `hide`, which subtracts
as much as the planned range requires, and m becomes a mask of 0 and 1 alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfe_bench.models.convert.graph import Graph, LayerSpec, replace_layers
from tfe_bench.models.convert.rewriting import rewrite_graph_everywhere
from tfe_bench.models.layers.hide import SoftmaxMask
from tfe_bench.models.layers.softmax import Softmax

# Smaller constants are ordinary sums.
MIN_MASK_OFFSET = 1e4
# Constants of several sizes count as one constant if each exceeds this.
_MIN_MIXED_OFFSET = 1e6
# Fraction of such a constant that float32 rounds to 0.
_NEGLIGIBLE = 1e-6

_RESHAPING_OPS = ("reshape", "permute", "repeat", "crop", "take")
_MASK_OPS = (*_RESHAPING_OPS, "concat", "multiply", "identity")


@dataclass(frozen=True)
class _MaskedSum:
    """A sum that masks positions of a value.

    Attributes:
        value: name of the masked value.
        mask: name of the mask.
        reshapes: layers between the mask and the sum, the last one first.
        offset: number that is subtracted at a masked position.
        inverted: whether the mask is 1 at masked positions.
        new_layers: layers that must be added to the graph.
    """

    value: str
    mask: str
    reshapes: tuple[LayerSpec, ...]
    offset: float
    inverted: bool
    new_layers: tuple[LayerSpec, ...] = ()


@rewrite_graph_everywhere
def hide_masked_softmax_inputs(graph: Graph, x: LayerSpec) -> Graph | None:
    """Replace the constant of a mask before a softmax, such as 1e9, by a sufficient offset."""
    if x.op != Softmax.op:
        return None
    match = _find_masked_sum(graph, x.inputs[0], x.name, [])
    return None if match is None else _insert_hide_layer(graph, x, *match)


def _find_masked_sum(
    graph: Graph, name: str, user: str, between: list[LayerSpec]
) -> tuple[LayerSpec, list[LayerSpec], _MaskedSum] | None:
    """Find the last sum before a softmax that masks positions, and the layers between both."""
    x = graph.by_name.get(name)
    if x is None or graph.find_users()[name] != [user]:
        return None
    if x.op != SoftmaxMask.op and (masked_sum := _match_masked_sum(graph, x)) is not None:
        return x, between, masked_sum
    scalars, candidates = _layer_affine_scalars(x), x.inputs[:1]
    if x.op in ("add", "subtract"):
        candidates = x.inputs if x.op == "add" else candidates
        candidates = tuple(i for i in candidates if graph.shapes[i] == graph.shapes[name])
    elif x.op != SoftmaxMask.op and x.op not in _RESHAPING_OPS and not (scalars and scalars[0] > 0):
        return None
    matches = (_find_masked_sum(graph, i, name, [*between, x]) for i in candidates)
    return next((match for match in matches if match is not None), None)


def _layer_affine_scalars(x: LayerSpec) -> tuple[float, float] | tuple[()]:
    """Return (scale, offset) of a layer that computes x * scale + offset by numbers, else ()."""
    if x.op == "rescale":
        scale, offset = (np.asarray(x.options[k], np.float64) for k in ("scale", "offset"))
        return (float(scale.item()), float(offset.item())) if scale.size == offset.size == 1 else ()
    if x.op == "offset":
        bias = np.asarray(x.weights["bias"], np.float64)
        return (1.0, float(bias.flat[0])) if (bias == bias.flat[0]).all() else ()
    return ()


def _match_masked_sum(graph: Graph, x: LayerSpec) -> _MaskedSum | None:
    """Match a layer that masks positions; return None if it does not."""
    if x.op in ("add", "subtract"):
        return _match_where_constant(graph, x) or _match_added_mask(graph, x)
    if x.op == "rescale":
        return _match_where_value(graph, x)
    if x.op == "offset":
        return _match_where_value(graph, x) or _match_constant_table(graph, x)
    return None


def _match_added_mask(graph: Graph, x: LayerSpec) -> _MaskedSum | None:
    """Match x + (1 - m) * -1e9, x - (1 - m) * 1e9 and similar sums."""
    for i, name in enumerate(x.inputs):
        sign = -1.0 if x.op == "subtract" else 1.0
        if x.op == "subtract" and i == 0:
            continue
        term = _match_mask_term(graph, name, sign)
        other_inputs = [*x.inputs[:i], *x.inputs[i + 1 :]]
        shape = graph.shapes[x.name]
        if term is None or name in other_inputs:
            continue
        if len(other_inputs) > 1:
            rest = LayerSpec(
                _unused_graph_name(graph, f"{x.name}@rest"), "add", tuple(other_inputs)
            )
            return replace(term, value=rest.name, new_layers=(rest,))
        if graph.shapes[other_inputs[0]] == shape:
            return replace(term, value=other_inputs[0])
    return None


def _match_mask_term(graph: Graph, name: str, sign: float) -> _MaskedSum | None:
    """Match a term that is 0 where a mask shows a position and far below 0 elsewhere."""
    factor, offset, reshapes = sign, 0.0, list[LayerSpec]()
    while not _is_boolean_mask(graph, name):
        x = graph.by_name.get(name)
        if x is None:
            return None
        if x.op in _RESHAPING_OPS:
            reshapes.append(x)
        elif scalars := _layer_affine_scalars(x):
            factor, offset = factor * scalars[0], offset + factor * scalars[1]
        else:
            return None
        name = x.inputs[0]
    zero, one = offset, factor + offset
    for hidden, shown, inverted in ((zero, one, False), (one, zero, True)):
        if (
            hidden <= -MIN_MASK_OFFSET
            and abs(shown) <= -hidden * _NEGLIGIBLE
            and math.isfinite(hidden)
        ):
            return _MaskedSum("", name, tuple(reshapes), -hidden, inverted)
    return None


def _is_boolean_mask(graph: Graph, name: str) -> bool:
    """Return whether a value contains 0 and 1 alone, or derives from inputs that may have to."""
    pending, visited = [name], set[str]()
    while pending:
        value_name = pending.pop()
        if value_name in graph.scaling:
            return False
        if value_name in visited or value_name in graph.inputs:
            continue
        visited.add(value_name)
        x = graph.by_name[value_name]
        if x.op in ("negative", "zero"):
            continue
        if x.op == "constant" and np.isin(x.weights["bias"], (0.0, 1.0)).all():
            continue
        if x.op not in _MASK_OPS and _layer_affine_scalars(x) != (-1.0, 1.0):
            return False
        pending += x.inputs
    return True


def _mask_inputs(graph: Graph, hidden: _MaskedSum) -> list[str]:
    """Return the inputs of a mask, which must then be 0 or 1; comparisons accept any numbers."""
    input_names, pending = list[str](), [hidden.mask]
    while pending:
        value_name = pending.pop()
        if value_name in graph.inputs:
            input_names.append(value_name)
        elif value_name in graph.by_name and graph.by_name[value_name].op not in (
            "negative",
            "zero",
            "constant",
        ):
            pending += graph.by_name[value_name].inputs
    return input_names


def _match_where_value(graph: Graph, x: LayerSpec) -> _MaskedSum | None:
    """Match where(m, x, -1e9), which is m (x + 1e9) - 1e9."""
    product = graph.by_name.get(x.inputs[0])
    scalars = _layer_affine_scalars(x)
    if (
        not scalars
        or scalars[0] != 1
        or scalars[1] > -MIN_MASK_OFFSET
        or product is None
        or product.op != "multiply"
    ):
        return None
    for mask, shifted_name in (
        (product.inputs, product.inputs[::-1]) if len(product.inputs) == 2 else ()
    ):
        shifted_value = graph.by_name.get(shifted_name)
        if shifted_value is None or graph.shapes[shifted_value.inputs[0]] != graph.shapes[x.name]:
            continue
        if _layer_affine_scalars(shifted_value) == (1.0, -scalars[1]) and _is_boolean_mask(
            graph, mask
        ):
            return _MaskedSum(shifted_value.inputs[0], mask, (), -scalars[1], False)
    return None


def _match_where_constant(graph: Graph, x: LayerSpec) -> _MaskedSum | None:
    """Match where(m, -1e9, x), which is x + m (-1e9 - x)."""
    if x.op != "add" or len(x.inputs) != 2:
        return None
    for name, value in (x.inputs, x.inputs[::-1]):
        product = graph.by_name.get(name)
        if product is None or product.op != "multiply" or len(product.inputs) != 2:
            continue
        for mask, shifted_name in (product.inputs, product.inputs[::-1]):
            shifted_value = graph.by_name.get(shifted_name)
            scalars = (
                _layer_affine_scalars(shifted_value)
                if shifted_value is not None and shifted_value.inputs == (value,)
                else ()
            )
            if not scalars or graph.shapes[value] != graph.shapes[x.name]:
                continue
            if (
                scalars[0] == -1
                and scalars[1] <= -MIN_MASK_OFFSET
                and _is_boolean_mask(graph, mask)
            ):
                return _MaskedSum(value, mask, (), -scalars[1], True)
    return None


def _match_constant_table(graph: Graph, x: LayerSpec) -> _MaskedSum | None:
    """Match x plus a table with some entries of -1e9, such as a causal triangle."""
    bias = np.asarray(x.weights["bias"], np.float64)
    is_masked = bias <= -MIN_MASK_OFFSET
    if not is_masked.any() or is_masked.all():
        return None
    mask_offset = float(-bias[is_masked].max())
    if mask_offset < _MIN_MIXED_OFFSET and (bias[is_masked] != -mask_offset).any():
        return None
    input_name, rest = x.inputs[0], np.where(is_masked, 0.0, bias)
    mask_layer = LayerSpec(
        _unused_graph_name(graph, f"{x.name}@shown"),
        "constant",
        (input_name,),
        {},
        {"bias": 1.0 - is_masked},
    )
    new_layers: tuple[LayerSpec, ...] = (mask_layer,)
    if rest.any():
        rest_layer = LayerSpec(
            _unused_graph_name(graph, f"{x.name}@rest"), "offset", (input_name,), {}, {"bias": rest}
        )
        new_layers, input_name = (mask_layer, rest_layer), rest_layer.name
    return _MaskedSum(input_name, mask_layer.name, (), mask_offset, False, new_layers)


def _insert_hide_layer(
    graph: Graph,
    softmax: LayerSpec,
    sum_: LayerSpec,
    between: Sequence[LayerSpec],
    masked_sum: _MaskedSum,
) -> Graph:
    """Insert the layer `hide` before the softmax, and remove the sum."""
    layers, shapes = [*masked_sum.new_layers], dict(graph.shapes)
    mask, shape, mask_offset = masked_sum.mask, _shape_of_mask(graph, masked_sum), masked_sum.offset
    used_names = set(shapes) | {x.name for x in layers}

    def add_layer(name: str, x: LayerSpec) -> str:
        while name in used_names:
            name += "@"
        used_names.add(name)
        layers.append(replace(x, name=name))
        return name

    for x in reversed(masked_sum.reshapes):
        mask = add_layer(f"{x.name}@mask", replace(x, inputs=(mask,)))
    reshapes = [x for x in between if x.op in _RESHAPING_OPS]
    if reshapes and shape != (whole := shapes[sum_.name]):
        times = [n // k for n, k in zip(whole, shape, strict=True)]
        mask = add_layer(f"{sum_.name}@mask", LayerSpec("", "repeat", (mask,), {"times": times}))
    for x in reversed(reshapes):
        mask = add_layer(f"{x.name}@mask", replace(x, inputs=(mask,)))
    for x in between:
        scalars = _layer_affine_scalars(x)
        mask_offset *= scalars[0] if scalars else 1.0
    last = between[0].name if between else masked_sum.value
    options = {"least": mask_offset, "inverted": masked_sum.inverted}
    name = add_layer(f"{softmax.name}@hidden", LayerSpec("", SoftmaxMask.op, (last, mask), options))
    swap = {softmax.name: replace(softmax, inputs=(name,))}
    for x in graph.layers:
        if sum_.name in x.inputs and x.name != softmax.name:
            inputs = tuple(masked_sum.value if i == sum_.name else i for i in x.inputs)
            swap[x.name] = replace(x, inputs=inputs)
    other_layers = [swap.get(x.name, x) for x in graph.layers if x is not sum_]
    mask_names = dict.fromkeys([*graph.masks, *_mask_inputs(graph, masked_sum)])
    masks = tuple(n for n in mask_names if n not in graph.tokens)
    return _prune_unused_layers(replace_layers(graph, [*other_layers, *layers], masks=masks))


def _shape_of_mask(graph: Graph, masked_sum: _MaskedSum) -> tuple[int, ...]:
    if masked_sum.reshapes:
        return tuple(graph.shapes[masked_sum.reshapes[0].name])
    for x in masked_sum.new_layers:
        if x.name == masked_sum.mask:
            return tuple(int(n) for n in x.weights["bias"].shape)
    return tuple(graph.shapes[masked_sum.mask])


def _prune_unused_layers(graph: Graph) -> Graph:
    """Remove layers whose values are unused."""
    needed, needed_layers = {*graph.outputs}, list[LayerSpec]()
    for x in reversed(graph.layers):
        if x.name in needed:
            needed_layers.append(x)
            needed.update(x.inputs)
    return replace_layers(graph, needed_layers[::-1])


def _unused_graph_name(graph: Graph, name: str) -> str:
    return name if name not in graph.shapes else _unused_graph_name(graph, f"{name}@")
