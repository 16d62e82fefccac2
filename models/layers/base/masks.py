"""Masks: the valid steps of a sequence, as separate values of 0 and 1.

Keras passes masks in two ways: as arguments, and attached to tensors (`_keras_mask`), where a
layer's `supports_masking` and `compute_mask` define the mask of its output. Both follow Keras: a
mask that is lost there is lost here. A layer that cannot handle its mask is refused.
"""

from __future__ import annotations

from typing import Any

from tfe_bench.models.layers.base.layer import LayerSpec, Shape
from tfe_bench.models.layers.base.reading import LayerCall, Reader, UnsupportedLayer

# Layers whose outputs are elements of their inputs, or products of 0 and 1.
_TRUE_OF_TRUE = ("reshape", "permute", "crop", "take", "repeat", "concat", "multiply", "identity")
# Layers that output the truth value of a comparison.
_TRUE = ("negative", "zero")
_ANY_OF = ("Add", "Average", "Multiply", "Subtract")


def ignores_keras_mask(layer: Any) -> bool:
    """Return whether a layer accepts a mask and ignores it in a prediction."""
    kind = type(layer).__name__
    around = kind == "TimeDistributed" and not layer.layer._call_has_mask_arg
    return around or kind == "BatchNormalization"


def check_sequence_mask(r: Reader, name: str) -> str:
    """Use a value as a mask; the model inputs that it depends on must hold 0 and 1 alone.

    Raises:
        UnsupportedLayer: the value may differ from 0 and 1.
    """
    layers = {x.name: x for x in r.layers}
    pending, visited = [name], set[str]()
    while pending:
        value = pending.pop()
        if value in visited:
            continue
        visited.add(value)
        if value in r.inputs:
            r.masks[value] = None
            continue
        x = layers[value]
        if x.op in _TRUE or value in r.token_tests:
            continue
        if x.op not in _TRUE_OF_TRUE and not _is_mask_inversion(x):
            raise UnsupportedLayer(
                f"a mask that the model computes by {x.op!r}; inputs, comparisons and "
                "rearrangements of them are supported"
            )
        pending += x.inputs
    return name


def _is_mask_inversion(x: LayerSpec) -> bool:
    """Return whether a layer computes 1 - x."""
    return x.op == "rescale" and (x.options["scale"], x.options["offset"]) == (-1.0, 1.0)


def and_sequence_masks(r: Reader, name: str, masks: list[str]) -> str:
    """Add the mask that is 1 where all masks are, which have one shape; "" without masks."""
    combined = ""
    for mask in dict.fromkeys(m for m in masks if m):
        combined = (
            r.add_layer(r.make_unique(name), "multiply", [combined, mask]) if combined else mask
        )
    return combined


def or_sequence_masks(r: Reader, name: str, masks: list[str]) -> str:
    """Add the mask that is 1 where any mask is: 1 - (1 - a)(1 - b)."""
    distinct = list(dict.fromkeys(masks))
    if len(distinct) == 1:
        return distinct[0]
    return invert_sequence_mask(
        r,
        name,
        and_sequence_masks(
            r, f"{name}/none", [invert_sequence_mask(r, f"{name}/not", m) for m in masks]
        ),
    )


def invert_sequence_mask(r: Reader, name: str, mask: str) -> str:
    """Add 1 - mask."""
    return r.add_layer(r.make_unique(name), "rescale", [mask], None, scale=-1.0, offset=1.0)


def reshape_sequence_mask(r: Reader, name: str, mask: str, shape: Shape) -> str:
    """Reshape a mask to another shape of equal size."""
    return r.add_layer(r.make_unique(name), "reshape", [mask], None, shape=list(shape))


def infer_layer_output_mask(r: Reader, call: LayerCall, first: list[str]) -> str:
    """Infer the mask of a layer's output by Keras' rules, for kinds that do not handle masks.

    Args:
        first: the masks of the layer's first argument, several if it is a list.

    Raises:
        UnsupportedLayer: the layer cannot handle the mask, or its mask would have to be computed.
    """
    layer = call.layer
    if not any(first):
        return ""
    if not layer.supports_masking:
        raise UnsupportedLayer(
            "drops the mask of its input, as Keras warns; if this is intended, remove the mask "
            "before it: keras.ops.copy(x)"
        )
    if call.class_name in _ANY_OF:
        return or_sequence_masks(r, f"{call.name}/mask", first) if all(first) else ""
    takes_mask = layer._call_has_mask_arg and not ignores_keras_mask(layer)
    has_own_rule = type(layer).compute_mask is not r.keras.layers.Layer.compute_mask
    if takes_mask or has_own_rule or len(first) > 1:
        raise UnsupportedLayer("of values with a mask, which is not supported here")
    return first[0]
