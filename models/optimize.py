"""What a compiler would do before a model is shared: passes from Graph to Graph, all exact.

Every pass is a function of its own and leaves the model's function as it is, up to the rounding of
floating-point weights.  `optimize` applies all of them, in the order that makes them meet.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tfe_bench.models import scales
from tfe_bench.models.cutting import cut_first
from tfe_bench.models.graph import Array, Graph, Layer, replaced
from tfe_bench.models.hiding import hide_masked
from tfe_bench.models.kinds import registry
from tfe_bench.models.layers.avg_pool2d import Average
from tfe_bench.models.layers.conv2d import Convolution
from tfe_bench.models.layers.sum import TERMS
from tfe_bench.models.moves import meet_turns
from tfe_bench.models.rewriting import Pass, renamed, wherever


def _only_use(graph: Graph, name: str) -> Layer | None:
    """The one layer that takes a value, None if there are several or it leaves the graph."""
    takers = graph.uses()[name]
    return graph.by_name[takers[0]] if len(takers) == 1 and takers[0] else None


def _merged(graph: Graph, gone: Layer, old: Layer, new: Layer) -> list[Layer]:
    """The layers without one, and with a new one in place of another."""
    return [new if y is old else y for y in graph.layers if y is not gone]


def _wide(a: Any) -> Array:
    return np.asarray(a, np.float64)


def _bias(layer: Layer, count: int) -> Array:
    return _wide(layer.weights["bias"]) if "bias" in layer.weights else np.zeros(count)


# ---- dropping and moving out


def leave_training(graph: Graph) -> Graph:
    """Dropout does nothing in a prediction, BatchNormalization is an affine map.

    Raises:
        RangeError: a running variance that is not positive; the layer is named.
    """

    return replaced(graph, [registry.find(x.op).predicted(x) for x in graph.layers])


def drop_identities(graph: Graph) -> Graph:
    """Drops layers that do nothing; one that is all of the model stays."""
    names = {x.name: x.inputs[0] for x in graph.layers if registry.find(x.op).nothing}
    kept = [x for x in graph.layers if x.name not in names]
    return renamed(graph, kept, names) if kept and names else graph


@wherever
def scale_inputs(graph: Graph, x: Layer) -> Graph | None:
    """A Rescaling of an input is for the owner of the data to do: its numbers are public."""
    given = x.inputs[0]
    if x.op != "rescale" or given not in {*graph.inputs} - {*graph.masks} or len(graph.layers) == 1:
        return None
    if len(graph.uses()[given]) != 1:
        return None
    factor, offset = (_wide(v) for v in graph.scaling.get(given, (1.0, 0.0)))
    scale, more = _wide(x.options["scale"]), _wide(x.options["offset"])
    pair = ((factor * scale).tolist(), (offset * scale + more).tolist())
    kept = [y for y in graph.layers if y is not x]
    scaled = replaced(
        graph,
        [replace(y, inputs=_swap(y.inputs, x.name, given)) for y in kept],
        outputs=_swap(graph.outputs, x.name, given),
    )
    return replaced(scaled, scaled.layers, scaling={**graph.scaling, given: pair})


def _swap(names: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if n == old else n for n in names)


def scale_outputs(graph: Graph) -> Graph:
    """A Rescaling that ends the model: its coarse scale is for whoever gets the output to do."""
    layers, outputs = list(graph.layers), list(graph.outputs)
    results = list(graph.results) or [(1.0, 0.0)] * len(outputs)
    for i, name in enumerate(outputs):
        x = graph.by_name.get(name)
        if x is None or x.op != "rescale" or graph.uses()[name] != [""] or len(layers) == 1:
            continue
        rest, (factor, offset) = scales.parted_last(x.options["scale"], x.options["offset"])
        old, more = (_wide(v) for v in results[i])
        results[i] = ((factor * old).tolist(), (offset * old + more).tolist())
        place = layers.index(x)
        if scales.nothing(rest) and x.inputs[0] not in graph.inputs:
            del layers[place]
            outputs[i] = x.inputs[0]
        else:
            layers[place] = replace(x, options=scales.as_options(rest))
    if all(scales.nothing(pair) for pair in results):
        return graph
    return replaced(graph, layers, outputs=tuple(outputs), results=tuple(results))


def affine_rescaling(graph: Graph) -> Graph:
    """Any other Rescaling becomes the per-channel factor and shift that batch norm is, too.

    One by 1 or -1 that no product beside it can take over is local.
    """

    def of(x: Layer) -> Layer:
        scale, offset = _wide(x.options["scale"]), _wide(x.options["offset"])
        if scale.size == offset.size == 1 and abs(float(scale.item())) == 1:
            before, after = graph.by_name.get(x.inputs[0]), _only_use(graph, x.name)
            folds = before is not None and before.op in TERMS and _only_use(graph, before.name) is x
            if not folds and not (after is not None and _mixes(after)):
                own = {"sign": int(scale.item()), "offset": offset.item()}
                return replace(x, op="shift", options=own)
        channels = graph.shapes[x.name][-1]
        weights = {
            "kernel": np.broadcast_to(_wide(x.options["scale"]), (channels,)).copy(),
            "bias": np.broadcast_to(_wide(x.options["offset"]), (channels,)).copy(),
        }
        return replace(x, op="affine", options={}, weights=weights)

    return replaced(graph, [of(x) if x.op == "rescale" else x for x in graph.layers])


def products_of_two(graph: Graph) -> Graph:
    """A product of several values becomes products of two, each with a range of its own."""

    def pairs(x: Layer) -> list[Layer]:
        found, before = [], x.inputs[0]
        for i, factor in enumerate(x.inputs[1:-1]):
            found.append(replace(x, name=f"{x.name}@{i}", inputs=(before, factor)))
            before = found[-1].name
        return [*found, replace(x, inputs=(before, x.inputs[-1]))]

    layers = [pairs(x) if x.op == "multiply" else [x] for x in graph.layers]
    return replaced(graph, [x for several in layers for x in several])


@wherever
def add_constants(graph: Graph, x: Layer) -> Graph | None:
    """What weights are added to takes them as its own."""
    if x.op != "add" or len(x.inputs) != 2:
        return None
    parts = [graph.by_name.get(name) for name in x.inputs]
    for own, other in zip(parts, reversed(x.inputs), strict=True):
        if own is None or own.op != "constant" or _only_use(graph, own.name) is not x:
            continue
        if graph.shapes[own.name] == graph.shapes[other] == graph.shapes[x.name]:
            merged = replace(x, op="offset", inputs=(other,), options={}, weights=own.weights)
            return replaced(graph, _merged(graph, own, x, merged))
    return None


# ---- batch normalization


def _takes_factors(x: Layer) -> bool:
    """Whether a layer's kernel may become another; a table that another layer has stays one."""
    return x.op in TERMS and "transposed" not in x.options


def _of_channels(graph: Graph, x: Layer) -> bool:
    """Whether a layer has a factor for each channel."""
    return x.op == "affine" and x.weights["kernel"].shape == graph.shapes[x.name][-1:]


@wherever
def fold_back(graph: Graph, x: Layer) -> Graph | None:
    """Batch norm behind a convolution or dense layer goes into its weights."""
    before = graph.by_name.get(x.inputs[0])
    if not _of_channels(graph, x) or before is None or not _takes_factors(before):
        return None
    if _only_use(graph, before.name) is not x:
        return None
    factor, shift = _wide(x.weights["kernel"]), _bias(x, graph.shapes[x.name][-1])
    weights = {
        "kernel": TERMS[before.op].scaled(_wide(before.weights["kernel"]), factor),
        "bias": _bias(before, len(factor)) * factor + shift,
    }
    merged = replace(before, weights=weights)
    return renamed(graph, _merged(graph, x, before, merged), {x.name: before.name})


def _mixes(x: Layer) -> bool:
    """Whether a layer's outputs are sums over all channels, of no border's zeros."""
    kind = TERMS.get(x.op)
    return kind is not None and kind.mixes and kind.pads_nothing(x) and _takes_factors(x)


@wherever
def fold_forward(graph: Graph, x: Layer) -> Graph | None:
    """Batch norm, or a norm's gamma and beta, go into the products that take them.

    These are convolutions that pad nothing, and dense layers.  For what else takes it, it stays.
    """
    if not _of_channels(graph, x):
        return None
    takers = [graph.by_name[name] for name in graph.uses()[x.name] if name]
    # (weights that others share, too, are sent once as they are)
    shared = _shared(graph) if len(takers) > 1 else set[str]()
    merged = {
        y.name: _folded(x, y)
        for y in takers
        if _mixes(y) and not any(f"{y.name}/{name}" in shared for name in y.weights)
    }
    if not merged:
        return None
    layers = [merged.get(y.name, y) for y in graph.layers]
    if len(merged) == len(graph.uses()[x.name]):
        layers.remove(x)
    return replaced(graph, layers)


def _shared(graph: Graph) -> set[str]:
    """Weights that several layers have."""
    return {*graph.shared(), *graph.shared().values()}


def _folded(x: Layer, after: Layer) -> Layer:
    """A product that takes what a factor and a shift of channels take."""
    kernel = _wide(after.weights["kernel"])
    factor, shift = _wide(x.weights["kernel"]), _bias(x, kernel.shape[-2])
    over = tuple(range(kernel.ndim - 1))
    weights = {
        "kernel": kernel * factor[:, None],
        "bias": _bias(after, kernel.shape[-1]) + (kernel * shift[:, None]).sum(over),
    }
    return replace(after, inputs=x.inputs, weights=weights)


@wherever
def fold_scores(graph: Graph, x: Layer) -> Graph | None:
    """The scale of attention's scores goes into the product that queries are.

    With ln 2, scores are those of the base 2, and nothing is left to be multiplied.
    """
    if x.op != "attend" or x.options["scale"] == math.log(2):
        return None
    before = graph.by_name.get(x.inputs[0])
    while before is not None and _only_use(graph, before.name) and registry.find(before.op).local:
        before = graph.by_name.get(before.inputs[0]) if len(before.inputs) == 1 else None
    if before is None or before.op != "dense" or _only_use(graph, before.name) is None:
        return None
    if any(f"{before.name}/{name}" in _shared(graph) for name in before.weights):
        return None
    factor = x.options["scale"] / math.log(2)
    weights = {name: _wide(w) * factor for name, w in before.weights.items()}
    swap = {
        before.name: replace(before, weights=weights),
        x.name: replace(x, options={**x.options, "scale": math.log(2)}),
    }
    return replaced(graph, [swap.get(y.name, y) for y in graph.layers])


# ---- windows


@wherever
def pad_in_windows(graph: Graph, x: Layer) -> Graph | None:
    """Zeros around an image become the padding of the convolution that follows."""
    after = _only_use(graph, x.name) if x.op == "zero_pad" else None
    kind = None if after is None else registry.find(after.op)
    if after is None or not (isinstance(kind, Convolution) and kind.pads_images):
        return None
    padding = after.options["padding"]
    if padding == "SAME":
        return None
    own = [[0, 0] for _ in x.options["pads"]] if padding == "VALID" else padding
    both = [
        [a + b for a, b in zip(p, q, strict=True)]
        for p, q in zip(own, x.options["pads"], strict=True)
    ]
    merged = replace(after, inputs=x.inputs, options={**after.options, "padding": both})
    return replaced(graph, _merged(graph, x, after, merged))


def _in_place(x: Layer) -> bool:
    """Whether a layer gives the values that it takes, in order, and zeros at most."""
    return x.op == "zero_pad" or registry.find(x.op).moves


@wherever
def relu_after_pool(graph: Graph, x: Layer) -> Graph | None:
    """max(relu(x)) = relu(max(x)): fewer values are left to compare with 0.

    Zeros that pad the image in between are not below any relu(x), nor above it.
    """
    if x.op != "relu":
        return None
    last = x
    while (after := _only_use(graph, last.name)) and _in_place(after):
        last = after
    if after is None or not registry.find(after.op).largest:
        return None
    moved = replace(x, name=f"{x.name}@", inputs=(after.name,))
    kept = [
        replace(y, inputs=_swap(y.inputs, after.name, moved.name))
        for y in graph.layers
        if y is not x
    ]
    kept = [replace(y, inputs=_swap(y.inputs, x.name, x.inputs[0])) for y in kept]
    outputs = _swap(graph.outputs, after.name, moved.name)
    return replaced(graph, [*kept, moved], outputs=outputs)


@wherever
def pool_before_pointwise(graph: Graph, x: Layer) -> Graph | None:
    """The mean of a pointwise convolution is that convolution of the mean: fewer windows."""
    if not isinstance(registry.find(x.op), Average):
        return None
    before = graph.by_name.get(x.inputs[0])
    if before is None or before.op != "conv2d" or _only_use(graph, before.name) is not x:
        return None
    pointwise = before.weights["kernel"].shape[:2] == (1, 1) and _mixes(before)
    if not pointwise or list(before.options["strides"]) != [1, 1]:
        return None
    if x.op == "global_avg_pool2d" and not x.options["keepdims"]:
        return None
    pool = replace(x, inputs=before.inputs)
    after = replace(before, inputs=(x.name,))
    kept = [y for y in graph.layers if y is not x and y is not before]
    kept = [replace(y, inputs=_swap(y.inputs, x.name, after.name)) for y in kept]
    outputs = _swap(graph.outputs, x.name, after.name)
    return replaced(graph, [*kept, pool, after], outputs=outputs)


@wherever
def fold_averages(graph: Graph, x: Layer) -> Graph | None:
    """An average before a product becomes a sum, and the product's kernel takes the division."""
    kind = registry.find(x.op)
    if not isinstance(kind, Average):
        return None
    count, after = kind.count(x, graph.shapes[x.inputs[0]]), _only_use(graph, x.name)
    while after is not None and registry.find(after.op).moves:
        after = _only_use(graph, after.name)
    if count is None or after is None or not _takes_factors(after):
        return None
    kernel = _wide(after.weights["kernel"]) / count
    divided = replace(after, weights={**after.weights, "kernel": kernel})
    total = replace(x, op=kind.total)
    swap = {x.name: total, after.name: divided}
    return replaced(graph, [swap.get(y.name, y) for y in graph.layers])


# ---- fusion


def fuse_products(graph: Graph) -> Graph:
    """Each product becomes a `sum` of one term."""

    def of(x: Layer) -> Layer:
        if x.op not in TERMS:
            return x
        weights = {"kernel0": x.weights["kernel"]}
        if "bias" in x.weights:
            weights["bias"] = x.weights["bias"]
        term = {"op": x.op, "sign": 1, **x.options}
        options = {"terms": [term], "activation": "none", "max_value": None}
        return replace(x, op="sum", options=options, weights=weights)

    return replaced(graph, [of(x) for x in graph.layers])


@wherever
def fuse_additions(graph: Graph, x: Layer) -> Graph | None:
    """A residual is added to a product before that is truncated; two products are added so too."""
    if x.op not in ("add", "subtract"):
        return None
    if len({graph.shapes[i] for i in x.inputs}) != 1 or len(set(x.inputs)) < len(x.inputs):
        return None
    parts = [graph.by_name.get(i) for i in x.inputs]
    joined = [p if p and _open_sum(graph, p, x) else None for p in parts]
    if not any(joined):
        return None
    merged = _joined(x, joined)
    gone = {p.name for p in joined if p is not None}
    kept = [merged if y is x else y for y in graph.layers if y.name not in gone]
    return replaced(graph, kept)


def _open_sum(graph: Graph, part: Layer, taker: Layer) -> bool:
    return (
        part.op == "sum"
        and part.options["activation"] == "none"
        and _only_use(graph, part.name) is taker
    )


def _joined(x: Layer, parts: list[Layer | None]) -> Layer:
    terms: list[dict[str, Any]] = []
    inputs: list[str] = []
    weights: dict[str, Array] = {}
    bias: Any = None
    for i, (name, part) in enumerate(zip(x.inputs, parts, strict=True)):
        sign = -1 if x.op == "subtract" and i == 1 else 1
        if part is None:
            terms.append({"op": "skip", "sign": sign})
            inputs.append(name)
            continue
        for j, (given, term) in enumerate(zip(part.inputs, part.options["terms"], strict=True)):
            if f"kernel{j}" in part.weights:
                weights[f"kernel{len(terms)}"] = part.weights[f"kernel{j}"]
            terms.append({**term, "sign": sign * term["sign"]})
            inputs.append(given)
        if "bias" in part.weights:
            more = sign * _wide(part.weights["bias"])
            bias = more if bias is None else bias + more
    if bias is not None:
        weights["bias"] = bias
    options = {"terms": terms, "activation": "none", "max_value": None}
    return Layer(x.name, "sum", tuple(inputs), options, weights)


@wherever
def fuse_activations(graph: Graph, x: Layer) -> Graph | None:
    """A ReLU right behind a product is taken of the product before it is truncated."""
    before = graph.by_name.get(x.inputs[0]) if x.op == "relu" else None
    if before is None or not _open_sum(graph, before, x):
        return None
    options = {**before.options, "activation": "relu", **x.options}
    merged = replace(before, options=options)
    return renamed(graph, _merged(graph, x, before, merged), {x.name: before.name})


PASSES: tuple[Pass, ...] = (
    drop_identities,
    hide_masked,
    meet_turns,
    products_of_two,
    add_constants,
    scale_inputs,
    scale_outputs,
    affine_rescaling,
    fold_back,
    fold_forward,
    fold_scores,
    pad_in_windows,
    relu_after_pool,
    pool_before_pointwise,
    fold_averages,
    cut_first,
    fuse_products,
    fuse_additions,
    fuse_activations,
)


# What puts numbers of other layers into a layer's weights.
_MERGING = (
    *(hide_masked, fold_back, fold_forward, fold_scores),
    *(fold_averages, cut_first, fuse_additions),
)


def mask_inputs(graph: Graph) -> tuple[str, ...]:
    """The names of all inputs that are masks, those in sums in front of a softmax too."""
    return hide_masked(drop_identities(leave_training(graph))).masks


def optimize(graph: Graph, merge: bool = True) -> Graph:
    """All passes, in order, of a model that is done with training.

    Args:
        merge: False leaves every array of weights as it is, for weights that are yet to come.
    """
    graph = leave_training(graph)
    for each in PASSES:
        if merge or each not in _MERGING:
            graph = each(graph)
    return graph
