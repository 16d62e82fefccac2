"""Masks: which steps of a sequence count, as values of 0 and 1 beside the values that they are of.

Keras hands them on in two ways: as arguments, and attached to tensors (`_keras_mask`), where a
layer's `supports_masking` and `compute_mask` say what becomes of them.  Both are followed as Keras
computes: a mask that is lost there is lost here.  Where one comes to a layer that can make nothing
of it the layer is refused.
"""

from __future__ import annotations

from typing import Any

from tfe_bench.models.kinds.layer import Layer, Shape
from tfe_bench.models.kinds.reading import Call, Reader, Unfit

# Layers that give elements of what they take, or products of 0 and 1.
_TRUE_OF_TRUE = ("reshape", "permute", "crop", "take", "repeat", "concat", "multiply", "identity")
# Layers that say whether something holds.
_TRUE = ("negative", "zero")
_ANY_OF = ("Add", "Average", "Multiply", "Subtract")


def idle(layer: Any) -> bool:
    """Whether a layer takes a mask and has no use for it in a prediction."""
    kind = type(layer).__name__
    around = kind == "TimeDistributed" and not layer.layer._call_has_mask_arg
    return around or kind == "BatchNormalization"


def truth(r: Reader, name: str) -> str:
    """A value that is taken as a mask; inputs of the model that it comes from hold 0 and 1 alone.

    Raises:
        Unfit: it may be anything else.
    """
    layers = {x.name: x for x in r.layers}
    left, seen = [name], set[str]()
    while left:
        each = left.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in r.inputs:
            r.masks[each] = None
            continue
        x = layers[each]
        if x.op in _TRUE or each in r.compared:
            continue
        if x.op not in _TRUE_OF_TRUE and not _inverted(x):
            raise Unfit(
                f"a mask that the model computes by {x.op!r}; inputs, comparisons and what puts "
                "their values elsewhere are supported"
            )
        left += x.inputs
    return name


def _inverted(x: Layer) -> bool:
    """Whether a layer gives 1 - x."""
    return x.op == "rescale" and (x.options["scale"], x.options["offset"]) == (-1.0, 1.0)


def both(r: Reader, name: str, masks: list[str]) -> str:
    """The mask that is 1 where all are, which are of one shape; "" of none."""
    found = ""
    for mask in dict.fromkeys(m for m in masks if m):
        found = r.emit(r.unique(name), "multiply", [found, mask]) if found else mask
    return found


def either(r: Reader, name: str, masks: list[str]) -> str:
    """The mask that is 1 where any is: 1 - (1 - a)(1 - b)."""
    several = list(dict.fromkeys(masks))
    if len(several) == 1:
        return several[0]
    return inverse(r, name, both(r, f"{name}/none", [inverse(r, f"{name}/not", m) for m in masks]))


def inverse(r: Reader, name: str, mask: str) -> str:
    """1 - mask."""
    return r.emit(r.unique(name), "rescale", [mask], None, scale=-1.0, offset=1.0)


def in_rows(r: Reader, name: str, mask: str, shape: Shape) -> str:
    """A mask in another shape of as many elements."""
    return r.emit(r.unique(name), "reshape", [mask], None, shape=list(shape))


def behind(r: Reader, call: Call, first: list[str]) -> str:
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
        raise Unfit(
            "drops the mask that comes with what it takes, as Keras warns; where that is meant, "
            "take the mask off before: keras.ops.copy(x)"
        )
    if call.kind in _ANY_OF:
        return either(r, f"{call.name}/mask", first) if all(first) else ""
    takes = layer._call_has_mask_arg and not idle(layer)
    own = type(layer).compute_mask is not r.keras.layers.Layer.compute_mask
    if takes or own or len(first) > 1:
        raise Unfit("of values with a mask, which is not supported here")
    return first[0]
