"""MultiHeadAttention and Attention: matrix products around `attend`."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from tfe_bench.models.layers import base as L
from tfe_bench.models.layers.attend import pack_attention_mask
from tfe_bench.models.layers.base import Array, Shape
from tfe_bench.models.layers.identity import InferenceOnlyLayer

_HEADS_FIRST = [2, 1, 3]


class MultiHeadAttention(InferenceOnlyLayer):
    """Queries, keys and values of several heads, attended in parallel."""

    op = "multi_head_attention"
    keras_layers = ("MultiHeadAttention",)
    handles_masks = True
    call_arguments: ClassVar[tuple[str, ...]] = (
        *("query", "value", "key", "use_causal_mask"),
        *("attention_mask", "value_mask", "key_mask"),
    )

    def convert_inference(self, r: L.Reader, call: L.LayerCall) -> str:
        """Convert the layer with Keras' mask rules: tensors' masks apply without an argument."""
        query, value = call.arguments["query"], call.arguments["value"]
        key = call.arguments.get("key")
        score_masks = [
            convert_attention_key_mask(r, get_attention_mask(call, name), value.shape[0])
            for name in ("value", "key")
        ]
        score_masks.append(call.arguments.get("attention_mask"))
        r.unmasked |= {operand.name for operand in (query, value, key) if operand is not None}
        r.mask = query.mask
        causal = bool(call.arguments.get("use_causal_mask"))
        return convert_multi_head_attention(
            r, call, query, key or value, value, score_masks, causal, query.mask
        )


def get_attention_mask(call: L.LayerCall, name: str) -> Any:
    """Return the mask argument of a layer, or else the mask of the argument that it belongs to."""
    explicit_mask, argument = call.arguments.get(f"{name}_mask"), call.arguments.get(name)
    return argument.mask if explicit_mask is None and argument is not None else explicit_mask


def convert_multi_head_attention(
    r: L.Reader,
    call: L.LayerCall,
    query: L.CallValue,
    key: L.CallValue,
    value: L.CallValue,
    score_masks: list[Any],
    causal: bool,
    rows: str = "",
) -> str:
    """Convert a Keras MultiHeadAttention, or a class composed of it.

    Args:
        score_masks: masks of the scores: `CallValue` objects and public numbers, None for none.
        rows: the name of a mask of the queries.

    Raises:
        UnsupportedLayer: an option is not supported.
    """
    layer, name = call.layer, call.name
    for option in ("use_gate", "sliding_window"):
        if getattr(layer, f"_{option}", None):
            raise L.UnsupportedLayer(f"{option}={getattr(layer, f'_{option}')!r}")
    if any(len(v.shape) != 2 for v in (query, key, value)) or tuple(layer._attention_axes) != (1,):
        raise L.UnsupportedLayer(
            f"over axes {list(layer._attention_axes)} of {list(query.shape)}; one is"
        )
    parts = []
    for operand, operand_name, dense in (
        (query, "query", layer.query_dense),
        (key, "key", layer.key_dense),
        (value, "value", layer.value_dense),
    ):
        projected = _add_attention_projection(r, operand.name, f"{name}/{operand_name}", dense, 1)
        heads = L.add_reshape_layer(
            r,
            projected,
            f"{name}/{operand_name}/heads",
            (operand.shape[0], *dense.kernel.shape[1:]),
        )
        parts.append(L.add_transpose_layer(r, heads, f"{name}/{operand_name}/turned", _HEADS_FIRST))
        values = projected
    scale, sizes = 1 / math.sqrt(layer.key_dim), (query.shape[0], key.shape[0])
    output = _add_attention_layer(
        r, r.make_unique(f"{name}/attend"), parts, scale, score_masks, causal, sizes
    )
    heads_last = L.add_transpose_layer(r, output, f"{name}/back", _HEADS_FIRST)
    output_depth = math.prod(layer.output_dense.kernel.shape[:2])
    flat = L.add_reshape_layer(r, heads_last, f"{name}/flat", (query.shape[0], output_depth))
    if rows:
        image = (value.shape[0], 1, output_depth)
        mean = None if layer.dropout > 0 else L.add_reshape_layer(r, values, f"{name}/image", image)
        flat = _fill_masked_attention_rows(
            r, name, flat, mean, rows, (query.shape[0], output_depth)
        )
    output = _add_attention_projection(r, flat, name, layer.output_dense, 2)
    if len(call.shape) > 2:
        output = L.add_reshape_layer(r, output, f"{name}/shape", call.shape)
    return output


def _fill_masked_attention_rows(
    r: L.Reader, name: str, flat: str, values: str | None, rows: str, shape: tuple[int, int]
) -> str:
    """Replace the results of masked queries: by the mean of all values; without values, by 0."""
    visible = L.add_reshape_layer(r, rows, f"{name}/rows", (shape[0], 1))
    if values is None:
        return r.add_layer(r.make_unique(f"{name}/shown"), "multiply", [flat, visible])
    mean = r.add_layer(
        r.make_unique(f"{name}/mean"), "global_avg_pool2d", [values], None, keepdims=False
    )
    mean = L.add_reshape_layer(r, mean, f"{name}/mean/row", (1, shape[1]))
    difference = r.add_layer(r.make_unique(f"{name}/apart"), "subtract", [flat, mean])
    shown = r.add_layer(r.make_unique(f"{name}/shown"), "multiply", [difference, visible])
    return r.add_layer(r.make_unique(f"{name}/whole"), "add", [shown, mean])


class Attention(InferenceOnlyLayer):
    """Queries that attend to keys and values without projections."""

    op = "attention"
    keras_layers = ("Attention",)
    handles_masks = True
    call_arguments: ClassVar[tuple[str, ...]] = ("inputs", "use_causal_mask", "mask")

    def convert_inference(self, r: L.Reader, call: L.LayerCall) -> str:
        layer = call.layer
        if layer.score_mode != "dot" or layer.use_scale:
            raise L.UnsupportedLayer(
                f"score_mode={layer.score_mode!r}, use_scale={layer.use_scale!r}; "
                "'dot' without a scale is supported"
            )
        query, value, *key = call.arguments["inputs"]
        mask_arguments = call.arguments.get("mask") or [query.mask, value.mask]
        sizes = (query.shape[0], value.shape[0])
        rows, key_mask = (
            convert_attention_key_mask(r, m, n) for m, n in zip(mask_arguments, sizes, strict=False)
        )
        if rows is not None and not isinstance(rows, L.CallValue):
            raise L.UnsupportedLayer("with a public mask of its queries")
        inputs = [operand.name for operand in (query, *(key or [value]), value)]
        causal = bool(call.arguments.get("use_causal_mask"))
        attend_name = call.name if rows is None else r.make_unique(f"{call.name}/attend")
        attended_values = _add_attention_layer(
            r, attend_name, inputs, 1.0, [key_mask], causal, sizes
        )
        if rows is None:
            return attended_values
        r.mask = rows.name
        row_mask = L.add_reshape_layer(r, rows.name, f"{call.name}/rows", (sizes[0], 1))
        return r.add_layer(call.name, "multiply", [attended_values, row_mask])


def convert_attention_key_mask(r: L.Reader, mask: Any, steps: int) -> Any:
    """Convert a mask of a sequence, [batch, steps], to a mask of scores; None for none.

    Raises:
        UnsupportedLayer: the mask has another shape.
    """
    if mask is None or isinstance(mask, str):
        return L.CallValue(mask, (1, steps)) if mask else None
    if not isinstance(mask, L.CallValue):
        return _read_public_attention_mask(mask, (1, steps))
    if mask.shape != (steps,):
        raise L.UnsupportedLayer(f"with a mask {[None, *mask.shape]} of {steps} steps")
    return L.CallValue(L.masks.check_sequence_mask(r, mask.name), (1, steps))


def _add_attention_layer(
    r: L.Reader,
    name: str,
    inputs: list[str],
    scale: float,
    score_masks: list[Any],
    causal: bool,
    sizes: tuple[int, int],
) -> str:
    """Add `attend`, with all masks combined into one."""
    private: dict[str, Shape] = {}
    public = np.ones(sizes, bool)
    for mask in score_masks:
        if isinstance(mask, L.CallValue):
            private[L.masks.check_sequence_mask(r, mask.name)] = _check_attention_mask_shape(
                mask.shape, sizes
            )
        elif mask is not None:
            public &= _read_public_attention_mask(mask, sizes)
    options: dict[str, Any] = {"scale": scale, "causal": causal}
    if not public.all():
        if private:
            raise L.UnsupportedLayer("with a public mask and a private one; multiply them to one")
        keep = public & np.tri(*sizes, dtype=np.bool_) if causal else public
        if not keep.any(1).all():
            raise L.UnsupportedLayer("with a public mask under which a query attends to nothing")
        options["keys"] = pack_attention_mask(public)
    if private:
        shaped = [
            L.masks.reshape_sequence_mask(r, f"{name}/mask", m, shape)
            for m, shape in private.items()
        ]
        inputs = [*inputs, L.masks.and_sequence_masks(r, f"{name}/masks", shaped)]
    return r.add_layer(name, "attend", inputs, None, **options)


def _check_attention_mask_shape(shape: Shape, sizes: tuple[int, int]) -> Shape:
    """Return the shape of a private mask of scores, [1, m] or [n, m], common to all heads."""
    score_shape = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
    if score_shape not in ((1, sizes[1]), sizes):
        queries, keys = sizes
        raise L.UnsupportedLayer(
            f"with a mask {[None, *shape]}; [None, {queries} or 1, {keys}] is supported"
        )
    return score_shape


def _read_public_attention_mask(mask: Any, sizes: tuple[int, int]) -> Array:
    """Return a public mask of scores, common to all samples and heads.

    Raises:
        UnsupportedLayer: the argument is not such a mask.
    """
    array = np.asarray(mask.numpy() if hasattr(mask, "numpy") else mask)
    shape, trimmed = array.shape, array
    while trimmed.ndim > 2 and len(trimmed) == 1:
        trimmed = trimmed[0]
    fits = trimmed.dtype.kind in "biuf" and trimmed.shape in ((1, sizes[1]), sizes)
    if not fits or not np.isin(trimmed, (0, 1)).all():
        raise L.UnsupportedLayer(
            f"with public numbers {list(shape)} as a mask; 0 and 1 for each score are"
        )
    return np.broadcast_to(trimmed.astype(bool), sizes)


def _add_attention_projection(
    r: L.Reader, input_name: str, name: str, dense: Any, summed: int
) -> str:
    """Add a product with an EinsumDense's kernel, summed over its first axes."""
    depth = math.prod(int(n) for n in dense.kernel.shape[:summed])
    shapes = {"kernel": (depth, -1), "bias": (-1,)}
    weights = {
        weight_name: w for weight_name in shapes if (w := getattr(dense, weight_name)) is not None
    }
    for weight_name, w in weights.items():
        if id(w) not in r.arrays:  # (a layer that is called twice shares one array)
            r.arrays[id(w)] = w, L.read_weights(name, weight_name, w).reshape(shapes[weight_name])
    return r.add_layer(name if summed > 1 else r.make_unique(name), "dense", [input_name], weights)
