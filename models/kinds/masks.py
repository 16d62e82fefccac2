"""Masks: which steps of a sequence count, as values of 0 and 1 beside the values that they are of.

Keras hands them on in two ways: as arguments, and attached to tensors (`_keras_mask`), where a
layer's `supports_masking` and `compute_mask` say what becomes of them.  Both are followed as Keras
computes: a mask that is lost there is lost here.  Where one comes to a layer that can make nothing
of it the layer is refused.
"""

from __future__ import annotations

from typing import Any

from tfe_bench.models.kinds.layer import LayerSpec, Shape
from tfe_bench.models.kinds.reading import LayerCall, Reader, UnsupportedLayer

# Layers that give elements of what they take, or products of 0 and 1.
_TRUE_OF_TRUE = ("reshape", "permute", "crop", "take", "repeat", "concat", "multiply", "identity")
# Layers that say whether something holds.
_TRUE = ("negative", "zero")
_ANY_OF = ("Add", "Average", "Multiply", "Subtract")


def ignores_mask(layer: Any) -> bool:
    """Whether a layer takes a mask and has no use for it in a prediction."""
    kind = type(layer).__name__
    around = kind == "TimeDistributed" and not layer.layer._call_has_mask_arg
    return around or kind == "BatchNormalization"


def check_mask_value(r: Reader, name: str) -> str:
    """A value that is taken as a mask; inputs of the model that it comes from hold 0 and 1 alone.

    Raises:
        Unfit: it may be anything else.
    """
    layers = {x.name: x for x in r.layers}
    pending, seen = [name], set[str]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in r.inputs:
            r.masks[value] = None
            continue
        x = layers[value]
        if x.op in _TRUE or value in r.token_tests:
            continue
        if x.op not in _TRUE_OF_TRUE and not _is_inversion(x):
            raise UnsupportedLayer(
                f"a mask that the model computes by {x.op!r}; inputs, comparisons and what puts "
                "their values elsewhere are supported"
            )
        pending += x.inputs
    return name


def _is_inversion(x: LayerSpec) -> bool:
    """Whether a layer gives 1 - x."""
    return x.op == "rescale" and (x.options["scale"], x.options["offset"]) == (-1.0, 1.0)


def and_masks(r: Reader, name: str, masks: list[str]) -> str:
    """The mask that is 1 where all are, which are of one shape; "" of none."""
    combined = ""
    for mask in dict.fromkeys(m for m in masks if m):
        combined = (
            r.add_layer(r.make_unique(name), "multiply", [combined, mask]) if combined else mask
        )
    return combined


def or_masks(r: Reader, name: str, masks: list[str]) -> str:
    """The mask that is 1 where any is: 1 - (1 - a)(1 - b)."""
    distinct = list(dict.fromkeys(masks))
    if len(distinct) == 1:
        return distinct[0]
    return invert_mask(
        r, name, and_masks(r, f"{name}/none", [invert_mask(r, f"{name}/not", m) for m in masks])
    )


def invert_mask(r: Reader, name: str, mask: str) -> str:
    """1 - mask."""
    return r.add_layer(r.make_unique(name), "rescale", [mask], None, scale=-1.0, offset=1.0)


def reshape_mask(r: Reader, name: str, mask: str, shape: Shape) -> str:
    """A mask in another shape of as many elements."""
    return r.add_layer(r.make_unique(name), "reshape", [mask], None, shape=list(shape))


def infer_output_mask(r: Reader, call: LayerCall, first: list[str]) -> str:
    """The mask of a layer's value, where its kind does not say: by Keras' rules.

    Args:
        first: the masks of the layer's first argument, several if that is a list.

    Raises:
        Unfit: a layer that can make nothing of a mask, or for which it would have to be computed.
    """
    layer = call.layer
    if not any(first):
        return ""
    if not layer.supports_masking:
        raise UnsupportedLayer(
            "drops the mask that comes with what it takes, as Keras warns; where that is meant, "
            "take the mask off before: keras.ops.copy(x)"
        )
    if call.class_name in _ANY_OF:
        return or_masks(r, f"{call.name}/mask", first) if all(first) else ""
    takes_mask = layer._call_has_mask_arg and not ignores_mask(layer)
    has_own_rule = type(layer).compute_mask is not r.keras.layers.Layer.compute_mask
    if takes_mask or has_own_rule or len(first) > 1:
        raise UnsupportedLayer("of values with a mask, which is not supported here")
    return first[0]
