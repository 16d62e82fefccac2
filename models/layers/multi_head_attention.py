"""MultiHeadAttention and Attention: matrix products around `attend`."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.kinds import masks
from tfe_bench.models.kinds.layer import Array, Shape
from tfe_bench.models.kinds.reading import Call, Given, Reader, Unfit, array_of
from tfe_bench.models.kinds.turning import reshaped, turned
from tfe_bench.models.layers.attend import packed
from tfe_bench.models.layers.identity import Untrained

_HEADS_FIRST = [2, 1, 3]


class MultiHeadAttention(Untrained):
    """Queries, keys and values of several heads, attended to side by side."""

    op = "multi_head_attention"
    keras = ("MultiHeadAttention",)
    masks = True
    arguments: ClassVar[tuple[str, ...]] = (
        *("query", "value", "key", "use_causal_mask"),
        *("attention_mask", "value_mask", "key_mask"),
    )

    def composed(self, r: Reader, call: Call) -> str:
        """What Keras' call does with masks: those of tensors count where none is an argument."""
        query, value = call.arguments["query"], call.arguments["value"]
        key = call.arguments.get("key")
        over = [of_keys(r, said(call, name), value.shape[0]) for name in ("value", "key")]
        over.append(call.arguments.get("attention_mask"))
        r.unmasked |= {each.name for each in (query, value, key) if each is not None}
        r.mask = query.mask
        causal = bool(call.arguments.get("use_causal_mask"))
        return attended(r, call, query, key or value, value, over, causal, query.mask)


def said(call: Call, name: str) -> Any:
    """A mask that a layer is called with, or the one that comes with the argument it is of."""
    found, of = call.arguments.get(f"{name}_mask"), call.arguments.get(name)
    return of.mask if found is None and of is not None else found


def attended(
    r: Reader,
    call: Call,
    query: Given,
    key: Given,
    value: Given,
    over: list[Any],
    causal: bool,
    rows: str = "",
) -> str:
    """Writes what a MultiHeadAttention of Keras, or a class made of it, computes.

    Args:
        over: masks of the scores: `Given` values and public numbers, None for none.
        rows: the name of a mask of the queries.

    Raises:
        Unfit: options that are not offered.
    """
    layer, name = call.layer, call.name
    for what in ("use_gate", "sliding_window"):
        if getattr(layer, f"_{what}", None):
            raise Unfit(f"{what}={getattr(layer, f'_{what}')!r}")
    if any(len(v.shape) != 2 for v in (query, key, value)) or tuple(layer._attention_axes) != (1,):
        raise Unfit(f"over axes {list(layer._attention_axes)} of {list(query.shape)}; one is")
    parts = []
    for each, of, dense in (
        (query, "query", layer.query_dense),
        (key, "key", layer.key_dense),
        (value, "value", layer.value_dense),
    ):
        made = _product(r, each.name, f"{name}/{of}", dense, 1)
        heads = reshaped(r, made, f"{name}/{of}/heads", (each.shape[0], *dense.kernel.shape[1:]))
        parts.append(turned(r, heads, f"{name}/{of}/turned", _HEADS_FIRST))
        values = made
    scale, sizes = 1 / math.sqrt(layer.key_dim), (query.shape[0], key.shape[0])
    found = _attend(r, r.unique(f"{name}/attend"), parts, scale, over, causal, sizes)
    back = turned(r, found, f"{name}/back", _HEADS_FIRST)
    whole = math.prod(layer.output_dense.kernel.shape[:2])
    flat = reshaped(r, back, f"{name}/flat", (query.shape[0], whole))
    if rows:
        image = (value.shape[0], 1, whole)
        mean = None if layer.dropout > 0 else reshaped(r, values, f"{name}/image", image)
        flat = _without(r, name, flat, mean, rows, (query.shape[0], whole))
    found = _product(r, flat, name, layer.output_dense, 2)
    if len(call.shape) > 2:
        found = reshaped(r, found, f"{name}/shape", call.shape)
    return found


def _without(
    r: Reader, name: str, flat: str, values: str | None, rows: str, shape: tuple[int, int]
) -> str:
    """What comes of queries that a mask hides: the mean of all values; of none, 0."""
    kept = reshaped(r, rows, f"{name}/rows", (shape[0], 1))
    if values is None:
        return r.emit(r.unique(f"{name}/shown"), "multiply", [flat, kept])
    mean = r.emit(r.unique(f"{name}/mean"), "global_avg_pool2d", [values], None, keepdims=False)
    mean = reshaped(r, mean, f"{name}/mean/row", (1, shape[1]))
    apart = r.emit(r.unique(f"{name}/apart"), "subtract", [flat, mean])
    shown = r.emit(r.unique(f"{name}/shown"), "multiply", [apart, kept])
    return r.emit(r.unique(f"{name}/whole"), "add", [shown, mean])


class Attention(Untrained):
    """Queries that attend to keys and values as they are."""

    op = "attention"
    keras = ("Attention",)
    masks = True
    arguments: ClassVar[tuple[str, ...]] = ("inputs", "use_causal_mask", "mask")

    def composed(self, r: Reader, call: Call) -> str:
        layer = call.layer
        if layer.score_mode != "dot" or layer.use_scale:
            raise Unfit(
                f"score_mode={layer.score_mode!r}, use_scale={layer.use_scale!r}; "
                "'dot' without a scale is supported"
            )
        query, value, *key = call.arguments["inputs"]
        given = call.arguments.get("mask") or [query.mask, value.mask]
        sizes = (query.shape[0], value.shape[0])
        rows, over = (of_keys(r, m, n) for m, n in zip(given, sizes, strict=False))
        if rows is not None and not isinstance(rows, Given):
            raise Unfit("with a public mask of its queries")
        inputs = [each.name for each in (query, *(key or [value]), value)]
        causal = bool(call.arguments.get("use_causal_mask"))
        own = call.name if rows is None else r.unique(f"{call.name}/attend")
        found = _attend(r, own, inputs, 1.0, [over], causal, sizes)
        if rows is None:
            return found
        r.mask = rows.name
        kept = reshaped(r, rows.name, f"{call.name}/rows", (sizes[0], 1))
        return r.emit(call.name, "multiply", [found, kept])


def of_keys(r: Reader, mask: Any, steps: int) -> Any:
    """A mask of a sequence, [batch, steps], as one of scores; None for none.

    Raises:
        Unfit: it is of another shape.
    """
    if mask is None or isinstance(mask, str):
        return Given(mask, (1, steps)) if mask else None
    if not isinstance(mask, Given):
        return _public(mask, (1, steps))
    if mask.shape != (steps,):
        raise Unfit(f"with a mask {[None, *mask.shape]} of {steps} steps")
    return Given(masks.truth(r, mask.name), (1, steps))


def _attend(
    r: Reader,
    name: str,
    inputs: list[str],
    scale: float,
    over: list[Any],
    causal: bool,
    sizes: tuple[int, int],
) -> str:
    """Writes `attend`, with the masks that there are as one."""
    private: dict[str, Shape] = {}
    public = np.ones(sizes, bool)
    for mask in over:
        if isinstance(mask, Given):
            private[masks.truth(r, mask.name)] = _over_heads(mask.shape, sizes)
        elif mask is not None:
            public &= _public(mask, sizes)
    options: dict[str, Any] = {"scale": scale, "causal": causal}
    if not public.all():
        if private:
            raise Unfit("with a public mask and a private one; multiply them to one")
        keep = public & np.tri(*sizes, dtype=np.bool_) if causal else public
        if not keep.any(1).all():
            raise Unfit("with a public mask under which a query attends to nothing")
        options["keys"] = packed(public)
    if private:
        shaped = [masks.in_rows(r, f"{name}/mask", m, shape) for m, shape in private.items()]
        inputs = [*inputs, masks.both(r, f"{name}/masks", shaped)]
    return r.emit(name, "attend", inputs, None, **options)


def _over_heads(shape: Shape, sizes: tuple[int, int]) -> Shape:
    """The shape of a private mask of scores, [1, m] or [n, m], which is one for all heads."""
    found = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
    if found not in ((1, sizes[1]), sizes):
        queries, keys = sizes
        raise Unfit(f"with a mask {[None, *shape]}; [None, {queries} or 1, {keys}] is supported")
    return found


def _public(mask: Any, sizes: tuple[int, int]) -> Array:
    """A public mask of scores, which is one for all samples and heads.

    Raises:
        Unfit: it is no such mask.
    """
    array = np.asarray(mask.numpy() if hasattr(mask, "numpy") else mask)
    shape, found = array.shape, array
    while found.ndim > 2 and len(found) == 1:
        found = found[0]
    fits = found.dtype.kind in "biuf" and found.shape in ((1, sizes[1]), sizes)
    if not fits or not np.isin(found, (0, 1)).all():
        raise Unfit(f"with public numbers {list(shape)} as a mask; 0 and 1 for each score are")
    return np.broadcast_to(found.astype(bool), sizes)


def _product(r: Reader, given: str, name: str, dense: Any, summed: int) -> str:
    """A product with an EinsumDense's kernel, whose first axes are summed over."""
    depth = math.prod(int(n) for n in dense.kernel.shape[:summed])
    shapes = {"kernel": (depth, -1), "bias": (-1,)}
    weights = {own: w for own in shapes if (w := getattr(dense, own)) is not None}
    for own, w in weights.items():
        if id(w) not in r.arrays:  # (a layer that is called twice has one array)
            r.arrays[id(w)] = w, array_of(name, own, w).reshape(shapes[own])
    return r.emit(name if summed > 1 else r.unique(name), "dense", [given], weights)
